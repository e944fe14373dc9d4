#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the layout of C++ and CUDA: clang-format 14 changes nothing, no comma joins two
statements, functions are short, and classes have few data members.

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


def code_of(text):
    """Returns the text without comments, directives and the characters of literals, line by line."""
    blank = lambda m: re.sub(r"[^\n]", " ", m[0])
    return DIRECTIVE.sub(blank, COMMENT_OR_TEXT.sub(lambda m: blank(m).replace(" ", "_", 1) if m[0][0] in "\"'R" else blank(m), text))


def joined(text):
    """Returns the line numbers of statements like `a = b, c = d;`, but not of declarations."""
    text = code_of(text)
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


MOST_LINES, MOST_MEMBERS = 79, 14  # of a function, of a class
NESTED = re.compile(r"<[^<>;{}]*>|\[[^\[\]]*\]")
LABEL = re.compile(r"\b(?:public|private|protected)\s*:")
NO_MEMBER = re.compile(r"\s*(?:using|typedef|friend|static|template|enum|struct|class|union|namespace|extern)\b")


def blocks(code, begin=0, end=None):
    """Yields (head, first character of the head, first and last character inside) of the outermost blocks in braces."""
    end = len(code) if end is None else end
    start, depth = begin, 0
    for m in re.finditer(r"[{};]", code[begin:end]):
        at = begin + m.start()
        if m[0] == "{":
            if depth == 0:
                inside = at + 1
            depth += 1
        elif m[0] == "}":
            depth -= 1
            if depth == 0:
                yield code[start:inside - 1], start, inside, at
                start = at + 1
        elif depth == 0:
            start = at + 1


def members(body):
    """Returns the number of data members of a class with this body."""
    count = 1
    while count:
        body, count = re.subn(r"\([^()]*\)", "\x00", body)  # also around default arguments, whose braces are no blocks
    statements, at = "", 0
    for head, _, inside, last in blocks(body):
        statements += body[at:inside - 1] + (";" if "\x00" in NESTED.sub("", head.split("=")[0]) else "")
        at = last + 1
    count = 0
    for statement in LABEL.sub(" ", statements + body[at:]).split(";"):
        while (plain := NESTED.sub(" ", statement)) != statement:
            statement = plain
        if not statement.strip() or NO_MEMBER.match(statement) or re.search(r"\boperator\b", statement):
            continue
        if re.search(r"\x00\s*\x00", statement):
            count += 1  # a pointer to a function
        elif "\x00" not in statement.split("=")[0]:
            count += 1 + statement.count(",")
    return count


def large(text):
    """Yields (line, problem) of functions and classes that are too large, except those with a sentence that says why."""
    code = code_of(text)
    line_of = lambda at: text.count("\n", 0, at) + 1

    def look(begin, end):
        for head, start, inside, last in blocks(code, begin, end):
            start += len(head) - len(head.lstrip())
            first = line_of(start)
            kind = re.sub(r"template\s*<[^{}()]*>", "", head)
            if re.search(r"\bnamespace\b|\bextern\b\s*_?\s*$", kind):
                yield from look(inside, last)
            elif re.search(r"\b(?:struct|class|union)\b", kind) and not re.search(r"\benum\b|\(|=", kind):
                above = re.search(r"(?:^[ ]*//.*\n)*\Z", text[:text.rfind("\n", 0, start) + 1], re.M)[0]
                count = members(code[inside:last])
                if count > MOST_MEMBERS and "many" not in above:
                    yield first, f"{count} data members"
                yield from look(inside, last)
            elif "(" in kind and not re.search(r"=\s*$", kind) and line_of(last) - first + 1 > MOST_LINES:
                yield first, f"{line_of(last) - first + 1} lines"

    yield from look(0, len(code))


class Layout(unittest.TestCase):
    def test_functions_and_classes_are_small(self):
        many = "struct S {\n  int a, b = f(1, 2);\n  void (*f)(int);\n" + "".join(f"  T<int, U> x{i} = {{1, 2}};\n" for i in range(12))
        many += "  static int s;\n  int g(int a, int b) const { return a; }\n};\n"
        self.assertEqual(list(large(many)), [(1, "15 data members")])
        self.assertEqual(list(large("// There are many members because.\n" + many)), [])
        self.assertEqual(list(large("namespace a {\nvoid f() {\n" + "  g();\n" * 78 + "}\n}\n")), [(2, "80 lines")])
        self.assertEqual(list(large("class C {\n  C() : a{1} {\n" + "    g();\n" * 77 + "  }\n};\n")), [])
        wrong = []
        for path in files():
            with open(path, encoding="utf-8") as f:
                wrong += [f"{os.path.relpath(path, SOURCE)}:{line}: {problem}" for line, problem in large(f.read())]
        self.assertEqual(wrong, [], "split it, or say above the class why it has many members")

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
