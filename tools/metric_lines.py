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
LONG = 64 << 20                                     # bytes of a file that is read whole without a thought
ROW = 1 << 10                                       # bytes at the end of what was read that are compared
BLOCK = 16 << 20                                    # bytes of lines that are parsed together of a longer one


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


def step_of_train(line):
    """Returns the step of a line that is a row of training, else None."""
    row = row_of(line) if b'"train"' in line[:24] else None
    return row["step"] if row and isinstance(row.get("step"), int) else None


def first_train(file, begin, end):
    """Returns (step, place behind it) of the first row of training that begins in this part of the file; None without any."""
    size = 1 << 13
    while begin < end:
        file.seek(max(0, begin - 1))
        text = file.read(size + (begin > 0))
        at = text.find(b"\n") + 1 if begin else 0      # a line that begins with the part is whole
        while (stop := text.find(b"\n", at)) >= 0 and (at > 0 or not begin):
            if max(0, begin - 1) + at >= end:
                return None
            if (step := step_of_train(text[at:stop])) is not None:
                return step, max(0, begin - 1) + stop + 1
            at = stop + 1
        if len(text) < size:
            return None
        # The next part begins with the first line that was not whole; a line that is longer than the part needs a larger one.
        begin, size = (max(0, begin - 1) + at, size) if at > 0 else (begin, 4 * size)
    return None


def place_after(path, step):
    """Returns the place behind the last row of training up to this step, by few reads. In a file the steps of training ascend."""
    with open(path, "rb") as file:
        low, high = 0, os.fstat(file.fileno()).st_size
        while high - low > WINDOW:
            middle = (low + high) // 2
            found = first_train(file, middle, high)
            low, high = (found[1], high) if found and found[0] <= step else (low, middle)
        while (found := first_train(file, low, high + WINDOW)) and found[0] <= step:
            low = found[1]
        return low


def blocks(path, begin=0):
    """Yields (whole rows, numbers of the lines that are no rows, number of lines so far) of parts of a file, oldest first."""
    count = 0
    with open(path, "rb") as file:
        file.seek(begin)
        while lines := file.readlines(BLOCK):
            rows, bad = [], []
            for count, line in enumerate(lines, count + 1):
                if row := row_of(line):
                    rows.append(row)
                elif line.strip() and line.endswith(b"\n"):
                    bad.append(count)
            yield rows, bad, count


class Follower:
    """Reads what is added to a file, also after a later attempt has replaced or cut the file to leave rows out."""

    def __init__(self, path):
        self.path, self.inode, self.at, self.end, self.more = path, None, 0, b"", False

    def new(self):
        """Returns (whole rows since the last call, true if they begin a file that is new). Of a long part these are its first rows,
        and `more` is true until the last ones were returned."""
        self.more = False
        try:
            with open(self.path, "rb") as file:
                about = os.fstat(file.fileno())
                file.seek(self.at - len(self.end))
                # A file that was cut may be longer than before by now, but its rows have other times.
                anew = about.st_ino != self.inode or file.read(len(self.end)) != self.end
                file.seek(0 if anew else self.at)
                text = file.read(BLOCK)
                while b"\n" not in text[-BLOCK:] and (part := file.read(BLOCK)):
                    text += part
                self.more = len(text) >= BLOCK and b"\n" in text
        except OSError:
            return [], False
        whole = text[:text.rfind(b"\n") + 1]
        self.inode, self.at = about.st_ino, (0 if anew else self.at) + len(whole)
        self.end = whole[-ROW:] if whole or anew else self.end
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
