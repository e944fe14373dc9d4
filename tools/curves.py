# SPDX-License-Identifier: Apache-2.0
"""Reads the metrics of runs, groups them into panels of curves, and smooths them. Not a tool itself.

Tables of millions of rows are thinned while they are read (thinning.py).
"""
import collections
import functools
import math
import os
import sys

import metric_lines
import run_dir
from console import Failure, shown
from measures import BOOKKEEPING

# A run may still be writing its file. Reading needs no lock, and must not hold one against the
# writer.
os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")

import h5py
import numpy as np

import thinning
from thinning import MEAN_OF, MEDIAN_OF, borders, centres

LOSSES = [("loss", "total"), ("loss_ar", "autoregressive"), ("loss_parallel", "parallel")]


# ---------------------------------------------------------------------------------------------------------------- reading

class Run:
    """Tables of one run: train and evals[name], each {column: array}, all columns of a table as long as its `step`. A long table is a
    thinning.Table."""

    def __init__(self, folder):
        self.folder = folder
        self.name = shown(os.path.basename(os.path.abspath(folder)))
        self.train = {}
        self.evals = {}
        self.loss_unit = ""

    def empty(self):
        return not any(table.rows if isinstance(table, thinning.Table) else len(table.get("step", ()))
                       for table in [self.train, *self.evals.values()])


def last_of_each_step(table):
    """Returns the rows sorted by step. An interrupted run may have a step twice: the later row counts."""
    step = table.get("step")
    if step is None or len(step) == 0:
        return {}
    _, index = np.unique(step[::-1], return_index=True)
    index = len(step) - 1 - index
    return {name: column[index] for name, column in table.items()}


def read_group(group, whole=False):
    """Returns the table of a group of metrics.h5. A long one is thinned, unless it is wanted whole."""
    columns = {name: item for name, item in group.items()
               if isinstance(item, h5py.Dataset) and item.ndim == 1 and item.dtype.kind in "iuf"}
    if "step" not in columns:
        return {}
    # A file that is being written may have one column a row ahead of another.
    rows = min(len(column) for column in columns.values())
    if rows > thinning.LONG and not whole and (table := thinned(columns, rows)) is not None:
        return table
    return last_of_each_step(rows_of(columns, 0, rows))


def rows_of(columns, first, last):
    return {name: column[first:last].astype(np.int64 if name == "step" else np.float64) for name, column in columns.items()}


def thinned(columns, rows):
    """Returns the long table of these columns of a file; None if its steps do not ascend."""
    table = thinning.Table(rows)
    for first in range(0, rows, thinning.PIECE):
        piece = rows_of(columns, first, min(rows, first + thinning.PIECE))
        if not (np.diff(piece["step"]) > 0).all() or piece["step"][0] <= table.last_step():
            return None
        table.add(piece)
    return table


def open_hdf5(path):
    try:
        return h5py.File(path, "r")
    except OSError:
        # A file that a run has open for single-writer, multiple-reader access is refused to an
        # ordinary reader.
        return h5py.File(path, "r", libver="latest", swmr=True)


def read_hdf5(run, path, whole):
    with open_hdf5(path) as file:
        if isinstance(file.get("train"), h5py.Group):
            run.train = read_group(file["train"], whole)
            unit = file["train/loss"].attrs.get("unit", "") if "train/loss" in file else ""
            run.loss_unit = unit.decode() if isinstance(unit, bytes) else unit
        if isinstance(file.get("eval"), h5py.Group):
            run.evals = {name: read_group(group, whole) for name, group in file["eval"].items() if isinstance(group, h5py.Group)}


def table_of(rows):
    """Turns rows with different keys into columns; missing values are NaN."""
    measured_in = [metric_lines.values(row) for row in rows]
    table = {name: np.array([values.get(name, math.nan) for values in measured_in]) for name in set().union(*measured_in)}
    table["step"] = np.array([row["step"] for row in rows], dtype=np.int64)
    return last_of_each_step(table)


def tables_of(rows):
    """Returns (rows of training as a table, {evaluator: table})."""
    train, evals = [], {}
    for row in rows:
        if not isinstance(row.get("step"), int):
            continue
        if row.get("kind") == "train":
            train.append(row)
        elif row.get("kind") == "eval" and isinstance(row.get("eval"), str):
            evals.setdefault(row["eval"], []).append(row)
    return table_of(train) if train else {}, {name: table_of(found) for name, found in evals.items()}


def read_jsonl(run, path):
    rows, broken, lines = metric_lines.checked(path)
    warn_of(path, broken, lines)
    run.train, run.evals = tables_of(rows)


def warn_of(path, broken, lines):
    if broken:
        print(f"warning: {path}: left out what is not JSON: {len(broken)} of {lines} lines, the first is line {broken[0]}",
              file=sys.stderr)


def thin_jsonl(run, path, begin=0):
    """Adds the rows from a byte of a long file on to the tables of a run."""
    broken, lines = [], 0
    train, evals = collector(run.train), {name: collector(table) for name, table in run.evals.items()}
    for rows, bad, lines in metric_lines.blocks(path, begin):
        broken += bad
        table, others = tables_of(rows)
        for one, more in ((train, table), *((evals.setdefault(name, thinning.Rows()), more) for name, more in others.items())):
            if more:
                one.add(more)
    if not begin:
        warn_of(path, broken, lines)
    run.train, run.evals = tables_in(train), {name: tables_in(rows) for name, rows in evals.items()}


def collector(table):
    found = thinning.Rows()
    if isinstance(table, thinning.Table):
        found.table = table
    elif table:
        found.add(table)
    return found


def tables_in(rows):
    table = rows.table
    if table is None:
        for part in rows.parts:
            table = joined(table, part)
    return {} if table is None else table


def joined(table, more):
    """Returns the rows of two tables; a step that both have is that of the second one."""
    return last_of_each_step(thinning.joined(table, more)) if table and more else table or more


def add_newer(run, path):
    """Adds the rows that a running job has not written into metrics.h5 yet, which it writes now and then."""
    if isinstance(run.train, thinning.Table):
        thin_jsonl(run, path, metric_lines.place_after(path, run.train.last_step()))
        return
    last = int(run.train["step"][-1]) if run.train else -1
    train, evals = tables_of(metric_lines.newer(path, last))
    run.train = joined(run.train, train)
    for name, table in evals.items():
        run.evals[name] = joined(run.evals.get(name, {}), table)


def read_run(folder, whole=False):
    """Returns the metrics of a run. Long tables are thinned, unless they are wanted whole."""
    if not os.path.isdir(folder):
        raise Failure(f"{folder} is not a folder: name a run directory, the run.dir of a deck")
    run = Run(folder)
    hdf5, jsonl = os.path.join(folder, "metrics.h5"), run_dir.metrics_of(folder)
    if os.path.isfile(hdf5):
        try:
            read_hdf5(run, hdf5, whole)
        except (OSError, KeyError, RuntimeError) as error:
            if not os.path.isfile(jsonl):
                raise Failure(f"{hdf5} cannot be read ({error}) and there is no metrics.jsonl beside it") from error
            print(f"warning: {hdf5} cannot be read ({error}); using metrics.jsonl", file=sys.stderr)
            run.train, run.evals = {}, {}
    if not run.empty():
        add_newer(run, jsonl)
    elif os.path.isfile(jsonl):
        (thin_jsonl if not whole and os.path.getsize(jsonl) > metric_lines.LONG else read_jsonl)(run, jsonl)
    for table in (run.train, *run.evals.values()):
        if isinstance(table, thinning.Table):
            table.finish()
    if run.empty():
        if os.path.isfile(hdf5) or os.path.isfile(jsonl):
            raise Failure(f"{folder} holds no metrics yet: has the run finished its first step?")
        raise Failure(f"{folder} holds neither metrics.h5 nor metrics.jsonl: is it a run directory, and has the run started?")
    return run


# ---------------------------------------------------------------------------------------------------------------- drawing

def measured(table, column):
    """Returns steps and finite values of a column, or None without any. Of a long table these are the extremes of its stretches."""
    if column not in table:
        return None
    if isinstance(table, thinning.Table):
        return table.columns[column].points()
    step, value = table["step"], table[column]
    keep = np.isfinite(value)
    return (step[keep], value[keep]) if keep.any() else None


def sample(table, column):
    """Returns the finite values of a column, of a long table an even sample of them; none without the column."""
    values = table.columns[column].picks if isinstance(table, thinning.Table) and column in table else table.get(column, np.zeros(0))
    return values[np.isfinite(values)]


def total(table, column):
    """Returns the sum of a column without the values that were not measured."""
    if isinstance(table, thinning.Table):
        return float(table.columns[column].sum.sum())
    return float(np.nansum(table[column]))


def count(table, column):
    """Returns the number of finite values of a column."""
    if isinstance(table, thinning.Table):
        return int(table.columns[column].count.sum()) if column in table else 0
    return int(np.count_nonzero(np.isfinite(table.get(column, np.nan))))


class Curve(collections.namedtuple("Curve", "run label step value")):
    """A curve of a panel. `strong(how)`: its mean or its median, if its table was long."""
    strong = None


class Panel:
    """One set of axes with curves (run, label, steps, values). `smoothed`: "mean", "median" (against outliers) or None."""

    def __init__(self, title, unit, log=False, zero=False, smoothed=None):
        self.title, self.unit, self.log, self.zero, self.smoothed = title, unit, log, zero, smoothed
        self.curves = []
        self.lines = {}     # horizontal reference lines: label -> value

    def add(self, run, label, table, column):
        data = measured(table, column)
        if data:
            curve = Curve(run, label, *data)
            if isinstance(table, thinning.Table):
                curve.strong = functools.partial(table.smooth, column)
            self.curves.append(curve)

    def labels(self):
        return list(dict.fromkeys(label for _, label, _, _ in self.curves))

    def one_per_label(self):
        """Returns a panel for each quantity, because several runs share it."""
        out = []
        for label in self.labels():
            panel = Panel(f"{self.title}: {label}" if len(self.labels()) > 1 else self.title, self.unit, self.log, self.zero, self.smoothed)
            panel.curves = [curve for curve in self.curves if curve[1] == label]
            panel.lines = self.lines
            out.append(panel)
        return out


def panels_of(runs, references):
    units = {run.loss_unit.replace("/", " per ") for run in runs}
    loss = Panel("training loss", units.pop() if len(units) == 1 else "", smoothed="mean")
    accuracy = Panel("training accuracy", "share of the batch", zero=True, smoothed="mean")
    norm = Panel("gradient norm", "l2 norm before clipping", log=True, smoothed="mean")
    schedule = Panel("schedule", "factor on the learning rate", zero=True)
    speed = Panel("speed", "examples per second", zero=True, smoothed="median")
    validation = Panel("validation: perplexity per token", "nats per token")
    others = {}
    for run in runs:
        for column, label in LOSSES:
            loss.add(run, label, run.train, column)
        accuracy.add(run, "accuracy", run.train, "accuracy")
        norm.add(run, "l2_grads", run.train, "l2_grads")
        names = [n for n in sorted(run.train) if n == "schedule" or n.startswith(("schedule_", "schedule/"))]
        for column in names:
            schedule.add(run, column, run.train, column)
        speed.add(run, "examples_s", run.train, "examples_s")
        for name, table in sorted(run.evals.items()):
            if "perplexity_per_token" in table:
                validation.add(run, name, table, "perplexity_per_token")
                continue
            for column in sorted(set(table) - BOOKKEEPING):
                panel = others.setdefault(name, Panel(f"evaluator {name}", ""))
                panel.add(run, column, table, column)
    if validation.curves:
        validation.lines = references
    panels = [p for p in (loss, accuracy, validation, *others.values(), norm, schedule, speed) if p.curves]
    return panels if len(runs) == 1 else [part for panel in panels for part in panel.one_per_label()]


def running_mean(step, value):
    """Returns the centred mean over 1/60 of the curve."""
    begin, end = borders(np.arange(len(value)), max(1, len(value) // MEAN_OF), len(value))
    sums = np.concatenate([[0], np.cumsum(value)])
    return step, (sums[end] - sums[begin]) / (end - begin)


def running_median(step, value):
    """Returns the centred median over 1/30 of the curve, of at least five values.

    A slow disk delays single steps, not the run.
    """
    centre = centres(len(value))
    begin, end = borders(centre, max(5, len(value) // MEDIAN_OF), len(value))
    return step[centre], np.array([np.median(value[b:e]) for b, e in zip(begin, end)])


def smooth(panel, curve):
    """Returns (steps, values) of the strong line."""
    if panel.smoothed is None:
        return curve.step, curve.value
    if curve.strong:
        return curve.strong(panel.smoothed)
    return (running_mean if panel.smoothed == "mean" else running_median)(curve.step, curve.value)


# -------------------------------------------------------------------------------------------------------------------- names

def run_names(runs):
    """Returns short labels. Run directories with the same last part have their whole path."""
    names = [run.name for run in runs]
    return [shown(run.folder) if names.count(run.name) > 1 else run.name for run in runs]
