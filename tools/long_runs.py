# SPDX-License-Identifier: Apache-2.0
"""Gives those rows of a run that a state or a summary needs, without reading millions of others. Not a tool itself.

metrics.h5 says what was long ago, because a part of a column can be read by itself. The end of metrics.jsonl says what is newer. A
short metrics.jsonl is read whole. Without metrics.h5 a long one is read, too, but few of its rows are parsed.
"""
import collections
import os

import metric_lines
import run_dir

TAIL = 8 << 20      # bytes at the end of a long metrics.jsonl that are looked at in any case
PIECE = 1 << 18     # rows of a column that are read together
SIEVE = 1 << 10     # bytes that HDF5 reads for a single number; without this, 64 KiB
TOLD = ("uptime_s", "data_mean_ms", "data_max_ms", "slow_rank", "slow_ms", "slow_phase", "slow_chronic")     # of telling_rows


# ------------------------------------------------------------------------------------------------------------- metrics.jsonl

def sifted(file, begin, first, last):
    """Yields rows from a byte on, in order: the first and the last ones of training of each attempt, those about slow ranks, and all
    other kinds. `first` counts from a start in this part."""
    file.seek(begin)
    count, newest = first if begin else 0, collections.deque()
    for line in file:
        if b'"train"' in line[:24]:
            count += 1
            newest.append((line, count <= first or b'"slow_rank"' in line))
            if len(newest) > last:
                line, told = newest.popleft()
                yield from rows_of([line] * told)
        elif row := metric_lines.row_of(line):
            if row.get("kind") == "start":
                yield from rows_of(line for line, _ in newest)
                newest.clear()
                count = 0
            yield row
    yield from rows_of(line for line, _ in newest)


def rows_of(lines):
    return filter(None, map(metric_lines.row_of, lines))


def begin_of_line(file, place):
    """Returns the begin of the first line that begins there or later."""
    if place <= 0:
        return 0
    file.seek(place - 1)
    file.readline()
    return file.tell()


# ------------------------------------------------------------------------------------------------------------- metrics.h5

class Stored:
    """Rows of a metrics.h5. Raises what h5py raises for a file that is not like this."""

    def __init__(self, file):
        self.file, self.steps = file, file["train/step"]
        self.count = len(self.steps)
        if not self.count:
            raise KeyError("train/step")
        self.last_step = int(self.steps[self.count - 1])
        # A kill may leave the attempts in another order than that of their numbers.
        self.starts = sorted((self.row("start", at) for at in range(len(file["start/step"]))), key=lambda row: row.get("attempt", 1))

    def row(self, group, at, **what):
        """Returns a row of a group as a line of metrics.jsonl has it."""
        found = {"kind": group, **what, "step": int(self.file[group]["step"][at])}
        for name, column in self.file[group].items():
            if name != "step" and (value := float(column[at])) == value:
                found[str(column.attrs.get("name", name))] = value
        return found

    def up_to(self, step):
        """Returns the number of rows of training up to this step."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.steps[middle] <= step else (low, middle)
        return low

    def newest(self, until, first):
        """Yields the newest start up to a step, the row before it, the first rows after it, and the last row of each evaluator."""
        starts = [row for row in self.starts if row["step"] <= until]
        if starts:
            after, end = self.up_to(starts[-1]["step"]), self.up_to(until)
            if after:
                yield self.row("train", after - 1)
            yield starts[-1]
            for at in range(after, min(after + first, end)):
                yield self.row("train", at)
        for name, group in self.file["eval"].items() if "eval" in self.file else ():
            steps = group["step"][()]
            if len(before := steps[steps <= until]):
                row = self.row(f"eval/{name}", len(before) - 1, eval=name)
                yield row | {"kind": "eval"}

    def told(self):
        """Yields the starts, the last row of training of each attempt, and all rows about slow ranks, with some columns."""
        import numpy as np  # pylint: disable=import-outside-toplevel
        # An attempt goes on until the next one that began at the same step or before it.
        begins = np.minimum.accumulate([row["step"] for row in self.starts][::-1])[::-1]
        columns = {name: self.file["train"][name] for name in TOLD if name in self.file["train"]}
        given = 0
        for first in range(0, self.count, PIECE):
            last = min(self.count, first + PIECE)
            step = self.steps[first:min(self.count, last + 1)]
            writer = np.searchsorted(begins, step, side="left")
            # An attempt ends with this piece if the next row belongs to another one.
            wanted = np.append(writer[:-1] != writer[1:], [last == self.count])[:last - first]
            part = {name: column[first:last] for name, column in columns.items()}
            if "slow_rank" in part:
                wanted = wanted | np.isfinite(part["slow_rank"])
            for at in np.flatnonzero(wanted).tolist():
                yield from self.starts[given:writer[at]]
                given = max(given, int(writer[at]))
                yield {"kind": "train", "step": int(step[at]),
                       **{name: float(column[at]) for name, column in part.items() if column[at] == column[at]}}
        yield from self.starts[given:]


def with_stored(run, work):
    """Returns what work(Stored) returns; None if metrics.h5 cannot be read."""
    os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")     # reading must not hold a lock against the writer
    try:
        import h5py     # pylint: disable=import-outside-toplevel
        access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
        access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
        access.set_sieve_buf_size(SIEVE)
        with h5py.File(h5py.h5f.open(os.fsencode(os.path.join(run, "metrics.h5")), h5py.h5f.ACC_RDONLY, access)) as file:
            return work(Stored(file))
    except (ImportError, OSError, LookupError, RuntimeError, TypeError, ValueError):
        return None


# ------------------------------------------------------------------------------------------------------------- both

def is_long(path):
    try:
        return os.path.getsize(path) > metric_lines.LONG
    except OSError:
        return False


def newest_rows(run, first, last):
    """Returns rows, oldest first, with the newest start, the last row of training before it, the first and the last ones after it,
    and the last row of each evaluator."""
    path = run_dir.metrics_of(run)
    if not is_long(path):
        return run_dir.rows(run)

    def both(stored):
        with open(path, "rb") as file:
            tail = begin_of_line(file, os.fstat(file.fileno()).st_size - TAIL)
            begin = min(tail, metric_lines.place_after(path, stored.last_step))
            newer = list(sifted(file, begin, first, last))
        # Rows that a killed job has left behind are in metrics.h5 until it is written again.
        until = next((row["step"] - 1 for row in newer if row.get("kind") == "train"), stored.last_step)
        return [*stored.newest(until, first), *newer]

    found = with_stored(run, both)
    if found is None:
        with open(path, "rb") as file:
            found = list(sifted(file, 0, first, last))
    return found


def telling_rows(run):
    """Returns rows, oldest first, with all starts, the last row of training of each attempt, and all rows about slow ranks."""
    path = run_dir.metrics_of(run)
    if not is_long(path):
        return run_dir.rows(run)

    def both(stored):
        with open(path, "rb") as file:
            return [*stored.told(), *sifted(file, metric_lines.place_after(path, stored.last_step), 0, 1)]

    found = with_stored(run, both)
    if found is None:
        with open(path, "rb") as file:
            found = list(sifted(file, 0, 0, 1))
    return found
