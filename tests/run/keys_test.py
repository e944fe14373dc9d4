#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every key of --describe has a deck or a test that sets it to another value than its default. The pages name keys that
exist, and inputs/keys.md lists the tables of a deck as --describe does."""
import glob
import os
import re
import tomllib
import unittest

import harness
from pages import pages, text_of

SUFFIXES = ("steps", "examples", "epochs", "fraction")
FILES = (".h5", ".json", ".jsonl", ".txt", ".md", ".toml", ".safetensors")  # endings of names that are no keys
# A line of --describe: key, type, default. Types have at most two words.
LINE = re.compile(r"^  (?P<key>(?!the keys of)[a-z]\S*) +(?P<type>[a-z]+(?: table)?) +"
                  r"(?P<default>required|\[.*?\]|\{.*?\}|\".*?\"|\S+)(?: |$)")
# A value in TOML, Python, C++ or on a command line, as far as it can be compared.
VALUE = r"""\\?["'](?P<text>[^"'\\\n]*)|(?P<list>[\[{][^\n]*)|(?P<plain>[^\s,;)}\]"']+)"""


def described(text):
    """Returns {key: its defaults}. A key that kinds have with different defaults has several."""
    keys = {}
    for line in text.splitlines():
        if match := LINE.match(line):
            default = match["default"]
            keys.setdefault(match["key"], set()).add(plain(default[1:-1] if default.startswith('"') else default))
    return keys


def plain(value):
    """Returns one form of equal values: 1, 1.0 and 1e0; true and True; lists without blanks."""
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value).strip()
    try:
        return repr(float(text.replace("_", "")))
    except ValueError:
        return re.sub(r"[\s'\"]", "", text[:1].lower() + text[1:])


def keys_of(table, path=""):
    """Yields the keys of a parsed deck, in the form of --describe without names and indices, with their values."""
    for name, value in table.items():
        here = f"{path}.{name}" if path else name
        yield here, value
        for inner in [value] if isinstance(value, dict) else value if isinstance(value, list) else []:
            if isinstance(inner, dict):
                yield from keys_of(inner, here)


def pattern_of(key):
    """Returns an expression for a key's path in parsed decks, where NAME stands for any name."""
    parts = [r"[^.]+" if part == "NAME" else re.escape(part) for part in key.replace("[]", "").split(".")]
    return r"\.".join(parts)[:-len(r"_\*")] + f"_(?:{'|'.join(SUFFIXES)})" if key.endswith("_*") else r"\.".join(parts)


def settings(texts):
    """Returns {last name: values} of all `name = value`, `name=value` and `"name": value` in texts of tests."""
    found = {}
    for text in texts:
        for match in re.finditer(r"""(?:^|[\s.{,"'(`>]|\\n)(?P<name>[a-z_][a-z0-9_]*)(?:\s*=|["']:)\s*(?=""" + VALUE + ")", text):
            value = next(part for part in (match["text"], match["list"], match["plain"]) if part is not None)
            found.setdefault(match["name"], set()).add(plain(value.split("]")[0] + "]" if value.startswith("[") else value))
    return found


def never_set(keys, decks, tests):
    """Returns the keys that neither the parsed decks nor the texts of tests set to another value than a default."""
    in_decks, in_tests = [pair for deck in decks for pair in keys_of(deck)], settings(tests)
    out = []
    for key, defaults in sorted(keys.items()):
        path, last = re.compile(pattern_of(key)), key.rpartition(".")[2].replace("[]", "")
        names = [last[:-2], *(last[:-1] + suffix for suffix in SUFFIXES)] if last.endswith("_*") else [last]
        values = {plain(value) for name, value in in_decks if path.fullmatch(name)}.union(*(in_tests.get(name, ()) for name in names))
        if not values - defaults:
            out.append(key)
    return out


def tables(text):
    """Returns the outermost tables of a deck as rows of a page: what --describe prints of each."""
    found = re.findall(r"^\[([a-z_]+(?:\.NAME)?)\]  (.*)$", text, re.M)
    return ["| `[{}]` | {} |".format(name, doc.replace("|", "\\|")) for name, doc in found]


def unknown(keys, page):
    """Returns the keys with their table, such as `run.dir`, that a page's sentences name and that do not exist."""
    known = [re.compile(pattern_of(key)) for key in keys]
    for key in keys:  # and the tables that hold keys
        parts = key.replace("[]", "").split(".")
        known += [re.compile(pattern_of(".".join(parts[:n]))) for n in range(1, len(parts))]
    roots = {key.split(".")[0] for key in keys if "." in key}
    page = re.sub(r"^```.*?^```$", "", page, flags=re.S | re.M)
    named = re.findall(r"`([a-z_]+(?:\.[A-Za-z_]+)+)(?: = [^`]*)?`", page)
    return [name for name in named if name.split(".")[0] in roots and not name.endswith(FILES)
            and not any(pattern.fullmatch(name) for pattern in known)]


class Keys(harness.RunTest):
    def setUp(self):
        self.folder = harness.SOURCE  # needs no data
        self.expect(0, args=["--describe"])

    def test_pages_name_keys_that_exist(self):
        keys = described(self.output)
        for page in pages():
            with self.subTest(page=page):
                self.assertEqual(unknown(keys, text_of(page)), [])

    def test_the_page_lists_the_tables(self):
        listed = re.search(r"^<!-- described -->\n(?:\|.*\n){2}((?:\|.*\n)+)", text_of("inputs/keys.md"), re.M)[1].splitlines()
        self.assertEqual(listed, tables(self.output), "inputs/keys.md: replace the rows by those of --describe")

    def test_every_key_is_used(self):
        keys = described(self.output)
        self.assertGreater(len(keys), 300)
        self.assertEqual([line for line in self.output.splitlines() if re.match(r"  [a-z]\S*\.\S+ ", line) and not LINE.match(line)], [])
        decks, tests = [], []
        for path in sorted(glob.glob(harness.SOURCE + "/inputs/*.toml")):
            with open(path, "rb") as f:
                decks.append(tomllib.load(f))
        for pattern in ("run/*.py", "unit/**/*.?pp", "mpi/*.?pp", "golden_runner/*.?pp"):
            for path in sorted(glob.glob(f"{harness.SOURCE}/tests/{pattern}", recursive=True)):
                if os.path.abspath(path) != os.path.abspath(__file__):
                    with open(path, encoding="utf-8", errors="replace") as f:
                        tests.append(f.read())
        self.assertEqual(never_set(keys, decks, tests), [], "keys without a deck or a test that sets another value than the default")


class Scan(unittest.TestCase):
    """The search itself finds what is missing."""
    TEXT = ('[run]  where | what\n  run.threads  integer  0  >= 0  [R] threads\n  data.NAME.part  string  ""  part\n'
            '  rule[].scale  number  1.0  factor {kind: a}\n  rule[].scale  number  2.0  factor {kind: b}\n'
            '  eval.NAME.every_*  duration  0  when\n')

    def missing(self, deck="", test=""):
        return never_set(described(self.TEXT), [tomllib.loads(deck)], [test])

    def test_tables_and_names_of_pages(self):
        self.assertEqual(tables(self.TEXT), ["| `[run]` | where \\| what |"])
        page = "`run.threads = 2` `eval.val.every_steps` `data.x` `run.log.txt` `other.key` `run.thread`\n```\n`run.no`\n```\n"
        self.assertEqual(unknown(described(self.TEXT), page), ["run.thread"])

    def test_what_counts(self):
        every = ["data.NAME.part", "eval.NAME.every_*", "rule[].scale", "run.threads"]
        self.assertEqual(self.missing(), every)
        self.assertEqual(self.missing('run.threads = 0\ndata.x.part = ""\n[[rule]]\nscale = 2\n', '"run.threads=0"'), every)
        self.assertEqual(self.missing('data.x.part = "1/2"\n[[rule]]\nscale = 3\n[eval.v]\nevery_epochs = 2\n'), ["run.threads"])
        self.assertEqual(self.missing("", '{.threads = 4}, "eval.v.every_steps=7", "scale": 0.5,\npart = "x"'), [])


if __name__ == "__main__":
    harness.main()
