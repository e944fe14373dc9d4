# SPDX-License-Identifier: Apache-2.0
"""Reads metrics.jsonl: all of it, what a running job adds, or parts of a long file. Nothing else reads it. Not a tool itself.

A row is a JSON object a line, with `kind`: start, train, eval, histogram or rms. Numbers that JSON lacks are texts: "nan",
"inf", "-inf".
"""
import json
import math
import os

import tail

NO_VALUES = {"kind", "eval", "step", "attempt"}     # members of a row that are no measurements
WINDOW = 1 << 16                                    # bytes that are read together of a file that is not read whole


def row_of(line):
    """Returns the row of a line (text or bytes); None if it is no row: being written, cut by a crash, or foreign."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def number(value):
    """Returns a member of a row as a float; NaN if it is no number."""
    kind = type(value)
    if kind is float:
        return value
    return float(value) if kind is int or value in ("inf", "-inf") else math.nan


def values(row):
    """Returns {column: number} of what a row measured."""
    # Only NaN differs from itself. Most members are finite numbers, and there are millions.
    return {name: found for name, value in row.items()
            if (found := value if type(value) is float else number(value)) == found and name not in NO_VALUES}


def rows(path):
    """Yields whole rows, oldest first; none if the file cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            yield from filter(None, map(row_of, file))
    except OSError:
        return


def checked(path):
    """Returns (rows, numbers of the lines that are no rows, number of lines). A last line without its end is being written, and is
    neither."""
    found, bad, count = [], [], 0
    with open(path, encoding="utf-8", errors="replace") as file:
        for count, line in enumerate(file, 1):
            if row := row_of(line):
                found.append(row)
            elif line.strip() and line.endswith("\n"):
                bad.append(count)
    return found, bad, count


def newer(path, step):
    """Returns the rows after the last one of training of this step, oldest first; none if the file cannot be read."""
    found = []
    try:
        for line in tail.backwards(path):
            row = row_of(line)
            if row and row.get("kind") == "train" and isinstance(row.get("step"), int) and row["step"] <= step:
                break
            found += [row] if row else []
    except OSError:
        return []
    return found[::-1]


class Follower:
    """Reads what is added to a file, also after a later attempt has replaced the file to leave rows out."""

    def __init__(self, path):
        self.path, self.inode, self.at = path, None, 0

    def new(self):
        """Returns (whole rows since the last call, true if these are all rows of a file that is new)."""
        try:
            with open(self.path, "rb") as file:
                about = os.fstat(file.fileno())
                anew = about.st_ino != self.inode or about.st_size < self.at
                file.seek(0 if anew else self.at)
                text = file.read()
        except OSError:
            return [], False
        whole = text[:text.rfind(b"\n") + 1]
        self.inode, self.at = about.st_ino, (0 if anew else self.at) + len(whole)
        return list(filter(None, map(row_of, whole.split(b"\n")))), anew


def lines(path, most):
    """Returns (whole lines as bytes, oldest first; true if these are all). At most about `most` bytes are read: all of a file that is
    no longer, else pieces, evenly spaced, with the first and the last."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= max(most, 2 * WINDOW):
            text = file.read()
            return [line for line in text[:text.rfind(b"\n") + 1].split(b"\n") if line], True
        found, count = [], max(2, most // WINDOW)
        for index in range(count):
            begin = (size - WINDOW) * index // (count - 1)
            # One byte more: a line that begins with the window is whole.
            file.seek(max(0, begin - 1))
            text = file.read(WINDOW + (begin > 0))
            first = text.find(b"\n") + 1 if begin else 0
            found += [line for line in text[first:text.rfind(b"\n") + 1].split(b"\n") if line]
        return found, False
