#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the layout of C++ and CUDA: clang-format 14 changes nothing, and no comma joins two
statements.

To lay out the files that git knows:   clang-format-14 -i $(tests/run/format_test.py --list)
"""
import os
import re
import shutil
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

CLANG_FORMAT = "clang-format-14"  # other versions lay out some lines differently
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SUFFIXES = (".cpp", ".hpp", ".cu", ".cuh", ".h")

COMMENT_OR_TEXT = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\])+\'', re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.M)
CONTROL = re.compile(r"(?:else\b|(?:if|for|while)\s*(?:constexpr\s*)?\x00|"
                     r"(?:case\b(?:[^:]|::)*?|default|public|private|protected)\s*:(?!:))\s*")
NAME = r"(?:::)?\**\s*[A-Za-z_][\w:]*(?:(?:\.|->)\w+|\x00)*"
ASSIGNED = re.compile(rf"(?:(?:\+\+|--)\s*{NAME}|{NAME}\s*(?:<<|>>|[-+*/%|&^])?=(?!=)|{NAME}\s*(?:\+\+|--)?\s*$)")


def files():
    """Returns the paths of all C++ and CUDA files of the project."""
    found = []
    for top in ("src", "kernels", "tests"):
        for folder, _, names in os.walk(f"{SOURCE}/{top}"):
            found += [f"{folder}/{name}" for name in names if name.endswith(SUFFIXES)]
    return sorted(found)


def joined(text):
    """Returns the line numbers of statements like `a = b, c = d;`, but not of declarations."""
    blank = lambda m: re.sub(r"[^\n]", " ", m[0])
    text = DIRECTIVE.sub(blank, COMMENT_OR_TEXT.sub(lambda m: blank(m).replace(" ", "_", 1) if m[0][0] in "\"'R" else blank(m), text))
    # Text in brackets becomes \x00 (and keeps its line breaks), from the innermost outwards. Braces
    # stay, unless the text after them shows that they close an initializer.
    inner = re.compile(r"\([^()\[\]{}]*\)|\[[^()\[\]{};]*\]|(?<=[\w>])\{[^()\[\]{};]*\}|\{[^()\[\]{};]*\}(?=\s*[,;)\]}.])")
    count = 1
    while count:
        text, count = inner.subn(lambda m: "\x00" + "\n" * m[0].count("\n"), text)
    found, line = [], 1
    for piece in re.split(r"([;{}])", text):
        start = line + piece[:len(piece) - len(piece.lstrip())].count("\n")
        line += piece.count("\n")
        statement = piece.strip()
        while control := CONTROL.match(statement):
            statement = statement[control.end():]
        if "(" in statement or ")" in statement:
            continue  # part of a call whose arguments hold a lambda
        parts = [part.strip() for part in statement.split(",")]
        if len(parts) > 1 and re.match(r"return\b", statement) and "<" not in parts[0]:
            found.append(start)
            continue
        if len(parts) > 1 and re.search(r"=|\+\+|--|\x00", parts[0]) and all(ASSIGNED.match(part) for part in parts):
            found.append(start)
    return found


class Layout(unittest.TestCase):
    def test_no_comma_joins_statements(self):
        for text, lines in (("a = b, c = d;", [1]), ("int a = b, c = d;", []), ("f(a, b);\nif (x) a[i, 1] += 1, ++b;", [2]),
                            ("for (i = 0, j = 0; i < n; ++i, ++j) f();", []), ("else x.start(), y.start();", [1]),
                            ("T x{1, 2}, y{3};", []), ("return f(1, 2), 3;", [1]), ("return {1, 2};", []),
                            ("case A::b: a = {1, 2}, b = 3;", [1]), ("a = R\"(x = 1, y = 2)\";", [])):
            self.assertEqual(joined(text), lines, text)
        self.assertGreater(len(files()), 500, "the search finds too few files")
        wrong = []
        for path in files():
            with open(path, encoding="utf-8") as f:
                wrong += [f"{os.path.relpath(path, SOURCE)}:{line}" for line in joined(f.read())]
        self.assertEqual(wrong, [], "write each statement on its own line")

    @unittest.skipUnless(shutil.which(CLANG_FORMAT), f"no {CLANG_FORMAT} here")
    def test_clang_format_changes_nothing(self):
        paths = files()
        groups = [paths[i:i + 40] for i in range(0, len(paths), 40)]

        def check(group):
            return subprocess.run([CLANG_FORMAT, "--dry-run", "-Werror", "--ferror-limit=1", *group], cwd=SOURCE, text=True,
                                  stderr=subprocess.PIPE, check=False).stderr

        with ThreadPoolExecutor(2) as pool:
            wrong = re.findall(r"^(\S+?:\d+):\d+: error", "".join(pool.map(check, groups)), re.M)
        self.assertEqual([os.path.relpath(path, SOURCE) for path in wrong], [],
                         "run tests/run/format_test.py --list | xargs clang-format-14 -i")


if __name__ == "__main__":
    if "--list" in sys.argv:
        print("\n".join(files()))
    else:
        unittest.main(verbosity=2)
