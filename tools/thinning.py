# SPDX-License-Identifier: Apache-2.0
"""Keeps of a table with millions of rows what pages and pictures show, while the rows are read. Not a tool itself.

The rows are divided into stretches of equally many rows, 8,192 to 16,384 of them. Of each stretch every column keeps its least and
its largest value with their steps, the sum, the number of values, and a few values as an even sample. So memory does not grow with
the rows. No peak is lost, means and sums are exact but for rounding, and medians and quantiles are those of the sample.
"""
import numpy as np

LONG = 1 << 17          # rows of a table that is kept as it is
STRETCHES = 1 << 13     # least number of stretches of a longer one
PICKS = 8               # values of a stretch in the sample
PIECE = 1 << 18         # rows that are read together
MEAN_OF, MEDIAN_OF = 60, 30         # a smoothed point covers this part of the curve: 1/60, 1/30
MOST_MEDIANS = 1000                 # largest number of points of a curve of medians


def borders(centre, window, count):
    """Returns first and last + 1 of the `window` values around each centre; fewer at the ends."""
    return np.maximum(0, centre - window // 2), np.minimum(count, centre + (window - 1) // 2 + 1)


def centres(count):
    """Returns the places of the medians of a curve with so many values."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_MEDIANS)).astype(int))


def spread(values):
    """Returns an even choice of PICKS values of each row, NaN where a row has fewer."""
    width = values.shape[1]
    if width <= PICKS:
        return np.pad(values, ((0, 0), (0, PICKS - width)), constant_values=np.nan)
    finite = np.isfinite(values)
    if finite.all():
        return values[:, np.arange(PICKS) * width // PICKS]
    order = np.argsort(~finite, axis=1, kind="stable")
    at = np.arange(PICKS) * np.maximum(finite.sum(axis=1), PICKS)[:, None] // PICKS
    chosen = np.take_along_axis(values, np.take_along_axis(order, at, axis=1), axis=1)
    return np.where(np.isfinite(chosen), chosen, np.nan)


class Column:
    """The stretches of one column: arrays with an element for each."""

    def __init__(self, stretches):
        self.count, self.sum = np.zeros(stretches, np.int64), np.zeros(stretches)
        self.low, self.high = np.full(stretches, np.inf), np.full(stretches, -np.inf)
        self.low_step, self.high_step = np.zeros(stretches, np.int64), np.zeros(stretches, np.int64)
        self.picks = np.full((stretches, PICKS), np.nan)
        self.first = self.last = None       # (step, value) of the finite ones

    @classmethod
    def of(cls, step, values):
        """Returns the stretches of steps and values [stretches, rows]."""
        found = cls(len(values))
        with np.errstate(invalid="ignore"):
            found.sum = values.sum(axis=1)
        finite = None if np.isfinite(found.sum).all() else np.isfinite(values)
        low = values if finite is None else np.where(finite, values, np.inf)
        high = values if finite is None else np.where(finite, values, -np.inf)
        found.count = np.full(len(values), values.shape[1]) if finite is None else finite.sum(axis=1)
        if finite is not None:
            found.sum = np.where(finite, values, 0).sum(axis=1)
        rows = np.arange(len(values))
        for name, at, of in (("low", low.argmin(axis=1), low), ("high", high.argmax(axis=1), high)):
            setattr(found, name, of[rows, at])
            setattr(found, name + "_step", step[rows, at])
        found.picks = spread(values)
        if found.count.any():
            places = np.flatnonzero(np.isfinite(values) if finite is None else finite)[[0, -1]]
            found.first, found.last = ((int(step.flat[at]), float(values.flat[at])) for at in places)
        return found

    def extend(self, more):
        for name in ("count", "sum", "low", "high", "low_step", "high_step", "picks"):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(more, name)]))
        self.first, self.last = self.first or more.first, more.last or self.last

    def halve(self):
        """Makes one stretch of every two. Their number is even."""
        for name, better in (("low", np.argmin), ("high", np.argmax)):
            pairs, steps = getattr(self, name).reshape(-1, 2), getattr(self, name + "_step").reshape(-1, 2)
            at = better(pairs, axis=1)
            setattr(self, name, pairs[np.arange(len(pairs)), at])
            setattr(self, name + "_step", steps[np.arange(len(pairs)), at])
        self.count, self.sum = self.count.reshape(-1, 2).sum(axis=1), self.sum.reshape(-1, 2).sum(axis=1)
        self.picks = spread(self.picks.reshape(-1, 2 * PICKS))

    def points(self):
        """Returns steps and values of the extremes of all stretches, and of the first and the last value; None without any."""
        there = self.count > 0
        if not there.any():
            return None
        step = np.concatenate([self.low_step[there], self.high_step[there], [self.first[0], self.last[0]]])
        value = np.concatenate([self.low[there], self.high[there], [self.first[1], self.last[1]]])
        step, at = np.unique(step, return_index=True)
        return step, value[at]


class Table(dict):
    """A long table. As a dictionary it is {column: mean of each stretch}, with the last step of each stretch as `step`."""

    def __init__(self, expected):
        """`expected`: about the number of rows; more or fewer may come."""
        super().__init__()
        self.rows, self.columns = 0, {}
        self.width = 1 << max(0, (expected // STRETCHES).bit_length() - 1)      # rows of a stretch
        self.begin, self.end = np.zeros(0, np.int64), np.zeros(0, np.int64)     # first and last step of each
        self.rest = {}      # rows that do not fill a stretch yet

    def last_step(self):
        return int(self.rest["step"][-1] if self.rest else self.end[-1]) if self.rows else -1

    def add(self, table):
        """Adds rows with ascending steps. Those that are not after the last step are left out."""
        table = after(table, self.last_step())
        count = len(table["step"])
        if not count:
            return
        self.rows += count
        table = joined(self.rest, table) if self.rest else table
        whole = len(table["step"]) // self.width * self.width
        self.rest = {name: column[whole:] for name, column in table.items()} if whole < len(table["step"]) else {}
        self.take({name: column[:whole] for name, column in table.items()})
        while len(self.end) > 2 * STRETCHES:
            self.halve()

    def take(self, table):
        """Adds rows that fill stretches."""
        step = table["step"].reshape(-1, self.width)
        if not len(step):
            return
        for name in table:
            if name != "step" and name not in self.columns:
                self.columns[name] = Column(len(self.end))
        for name, column in self.columns.items():
            values = table.get(name)
            column.extend(Column(len(step)) if values is None else Column.of(step, values.reshape(-1, self.width)))
        self.begin, self.end = np.concatenate([self.begin, step[:, 0]]), np.concatenate([self.end, step[:, -1]])

    def halve(self):
        if odd := len(self.end) % 2:
            # The last stretch gets rows without values.
            self.begin, self.end = np.append(self.begin, self.end[-1]), np.append(self.end, self.end[-1])
        for column in self.columns.values():
            if odd:
                column.extend(Column(1))
            column.halve()
        self.begin, self.end, self.width = self.begin[::2], self.end[1::2], 2 * self.width

    def finish(self):
        """Returns the table, after all rows were added."""
        if self.rest:
            missing = self.width - len(self.rest["step"])
            self.take({name: np.pad(column, (0, missing), mode="edge") if name == "step" else
                       np.pad(column, (0, missing), constant_values=np.nan) for name, column in self.rest.items()})
            self.rest = {}
        self.clear()
        self["step"] = self.end
        for name, column in self.columns.items():
            self[name] = np.where(column.count > 0, column.sum / np.maximum(column.count, 1), np.nan)
        return self

    def smooth(self, name, how):
        """Returns steps and values of the strong line of a column: "mean" or "median"."""
        column = self.columns[name]
        there = np.flatnonzero(column.count > 0)
        middle = (self.begin[there] + self.end[there]) / 2
        if how == "mean":
            begin, end = borders(np.arange(len(there)), max(1, len(there) // MEAN_OF), len(there))
            sums, counts = (np.concatenate([[0], np.cumsum(part[there])]) for part in (column.sum, column.count))
            return middle, (sums[end] - sums[begin]) / (counts[end] - counts[begin])
        centre, picks = centres(len(there)), column.picks[there]
        begin, end = borders(centre, max(5, len(there) // MEDIAN_OF), len(there))
        return middle[centre], np.array([np.nanmedian(picks[b:e]) for b, e in zip(begin, end)])


def after(table, step):
    """Returns the rows of a table after a step."""
    first = int(np.searchsorted(table["step"], step, side="right"))
    return {name: column[first:] for name, column in table.items()} if first else table


def joined(table, more):
    """Returns the rows of one table and then those of another."""
    length = [len(one["step"]) for one in (table, more)]
    return {name: np.concatenate([one[name] if name in one else np.full(count, np.nan) for one, count in zip((table, more), length)])
            for name in {**table, **more}}


class Rows:
    """Joins tables of ascending steps; many rows become a Table."""

    def __init__(self):
        self.parts, self.rows, self.table = [], 0, None

    def add(self, table):
        self.rows += len(table["step"])
        if self.table is not None:
            self.table.add(table)
            return
        self.parts.append(table)
        if self.rows > LONG:
            self.table = Table(0)
            for part in self.parts:
                self.table.add(part)
            self.parts = []
