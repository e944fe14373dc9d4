# SPDX-License-Identifier: Apache-2.0
"""Compares decks with the defaults that `trainer --describe` prints, and with each other."""
import json
import re
import subprocess
import tomllib

import program
from console import Failure

LIMIT_S = 60    # longest time for --describe, which takes milliseconds


class Key:
    """A row of --describe: its pattern ("schedule.NAME.warmup_*"), type, default and doc, and the kinds that have it."""

    def __init__(self, name, type_name, default, rest):
        self.pattern = name.split(".")
        self.type = type_name
        self.default = default
        found = re.search(r" \{(\w+): ([^{}]+)\}$", rest)
        self.kinds = found[2].split(", ") if found else []
        self.doc = re.sub(r"^\[R\] ", "", rest[:found.start()] if found else rest)

    def matches(self, path, kinds):
        """True if this row describes the key; `kinds` are the values of `kind` in the tables around the key."""
        if len(path) != len(self.pattern) or (self.kinds and not set(self.kinds) & set(kinds)):
            return False
        return all(part == wanted or (wanted == "NAME" and not part.endswith("[]"))
                   or (wanted.endswith("_*") and part.startswith(wanted[:-1])) for part, wanted in zip(path, self.pattern))


def keys_of(text):
    """Returns the rows of the output of --describe."""
    found = []
    for line in text.splitlines():
        # name, type and default; then, if there is one, the range; then the doc.
        row = re.match(r"  (\S+) +((?:string|number|integer|boolean|duration|strings|numbers|integers)(?: table)?)  +(\S.*)$", line)
        if row:
            cells = re.split(r" {2,}", row[3])
            found.append(Key(row[1], row[2], cells[0], cells[-1] if len(cells) > 1 else ""))
    return found


def defaults():
    """Returns (rows of --describe, ""), or ([], why there are none)."""
    try:
        done = subprocess.run([program.find(), "--describe"], capture_output=True, text=True, errors="replace", check=False,
                              timeout=LIMIT_S)
    except (Failure, OSError, subprocess.TimeoutExpired):
        return [], "no trainer program was found (build/trainer or $TRAINER), so defaults are unknown"
    keys = keys_of(done.stdout)
    return keys, "" if keys else "trainer --describe printed no keys, so defaults are unknown"


class Setting:
    """One key of a resolved deck. `place` numbers the elements of lists, `path` does not: optimizer.rule[1].match."""

    def __init__(self, place, path, value, key):
        self.place, self.path, self.value, self.key = place, path, value, key

    def table(self):
        return self.place.rpartition(".")[0]

    def state(self):
        """Returns "default", "changed", "needed" (the key has no default) or "unknown"."""
        if self.key is None:
            return "unknown" if self.value not in ([], {}) else "default"   # a list of tables without elements
        if self.key.default == "required":
            return "needed"
        return "default" if self.is_default() else "changed"

    def is_default(self):
        text = self.key.default
        if self.key.type == "duration":
            return text == f"{self.value} {self.place.rpartition('_')[2]}"
        if text.endswith("..."):    # --describe cuts long values
            return written(self.value).startswith(text[:-3])
        try:
            return tomllib.loads(f"x = {text}")["x"] == self.value
        except ValueError:
            return text == written(self.value)


def written(value):
    """Returns a value as the deck has it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {written(item)}" for name, item in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    if isinstance(value, str):
        return json.dumps(" ".join(value.split()) if "\n" in value else value, ensure_ascii=False)
    return json.dumps(value)


def settings(deck, keys):
    """Returns the settings of a resolved deck in its order."""
    found = []

    def visit(node, place, path, kinds):
        rows = [key for key in keys if key.matches(path, kinds)] if path else []
        # A key of its own name comes before a duration of any unit: every_s, every_*.
        rows.sort(key=lambda row: row.pattern[-1] != path[-1])
        if isinstance(node, dict) and node and not rows:
            inner = [*kinds, node["kind"]] if isinstance(node.get("kind"), str) else kinds
            for name, child in node.items():
                visit(child, f"{place}.{name}" if place else name, [*path, name], inner)
        elif isinstance(node, list) and node and all(isinstance(child, dict) for child in node) and not rows:
            for index, child in enumerate(node):
                visit(child, f"{place}[{index}]", [*path[:-1], path[-1] + "[]"], kinds)
        else:
            found.append(Setting(place, path, node, rows[0] if rows else None))

    visit(deck, "", [], [])
    return found
