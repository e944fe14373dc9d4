# SPDX-License-Identifier: Apache-2.0
"""Reads the metrics of runs, groups them into panels of curves, and smooths them. Not a tool itself."""
import math
import os
import sys

import metric_lines
from console import Failure, shown
from measures import BOOKKEEPING

# A run may still be writing its file. Reading needs no lock, and must not hold one against the
# writer.
os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")

import h5py
import numpy as np

MEAN_OF, MEDIAN_OF = 60, 30         # a smoothed point covers this part of the curve: 1/60, 1/30
MOST_MEDIANS = 1000                 # largest number of points of a curve of medians
LOSSES = [("loss", "total"), ("loss_ar", "autoregressive"), ("loss_parallel", "parallel")]


# ---------------------------------------------------------------------------------------------------------------- reading

class Run:
    """Tables of one run: train and evals[name], each {column: array}, all columns of a table as long as its `step`."""

    def __init__(self, folder):
        self.folder = folder
        self.name = shown(os.path.basename(os.path.abspath(folder)))
        self.train = {}
        self.evals = {}
        self.loss_unit = ""

    def empty(self):
        return not any(len(table.get("step", ())) for table in [self.train, *self.evals.values()])


def last_of_each_step(table):
    """Returns the rows sorted by step. An interrupted run may have a step twice: the later row counts."""
    step = table.get("step")
    if step is None or len(step) == 0:
        return {}
    _, index = np.unique(step[::-1], return_index=True)
    index = len(step) - 1 - index
    return {name: column[index] for name, column in table.items()}


def read_group(group):
    columns = {name: np.asarray(item[()]) for name, item in group.items()
               if isinstance(item, h5py.Dataset) and item.ndim == 1 and item.dtype.kind in "iuf"}
    if "step" not in columns:
        return {}
    # A file that is being written may have one column a row ahead of another.
    rows = min(len(column) for column in columns.values())
    return last_of_each_step({name: column[:rows].astype(np.int64 if name == "step" else np.float64) for name, column in columns.items()})


def open_hdf5(path):
    try:
        return h5py.File(path, "r")
    except OSError:
        # A file that a run has open for single-writer, multiple-reader access is refused to an
        # ordinary reader.
        return h5py.File(path, "r", libver="latest", swmr=True)


def read_hdf5(run, path):
    with open_hdf5(path) as file:
        if isinstance(file.get("train"), h5py.Group):
            run.train = read_group(file["train"])
            unit = file["train/loss"].attrs.get("unit", "") if "train/loss" in file else ""
            run.loss_unit = unit.decode() if isinstance(unit, bytes) else unit
        if isinstance(file.get("eval"), h5py.Group):
            run.evals = {name: read_group(group) for name, group in file["eval"].items() if isinstance(group, h5py.Group)}


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
    if broken:
        print(f"warning: {path}: left out what is not JSON: {len(broken)} of {lines} lines, the first is line {broken[0]}",
              file=sys.stderr)
    run.train, run.evals = tables_of(rows)


def joined(table, more):
    """Returns the rows of two tables; a step that both have is that of the second one."""
    if not table or not more:
        return table or more
    length = [len(one["step"]) for one in (table, more)]
    columns = {name: [one.get(name, np.full(count, math.nan)) for one, count in zip((table, more), length)] for name in {*table, *more}}
    return last_of_each_step({name: np.concatenate(parts) for name, parts in columns.items()})


def add_newer(run, path):
    """Adds the rows that a running job has not written into metrics.h5 yet, which it writes now and then."""
    last = int(run.train["step"][-1]) if run.train else -1
    train, evals = tables_of(metric_lines.newer(path, last))
    run.train = joined(run.train, train)
    for name, table in evals.items():
        run.evals[name] = joined(run.evals.get(name, {}), table)


def read_run(folder):
    if not os.path.isdir(folder):
        raise Failure(f"{folder} is not a folder: name a run directory, the run.dir of a deck")
    run = Run(folder)
    hdf5, jsonl = os.path.join(folder, "metrics.h5"), os.path.join(folder, "metrics.jsonl")
    if os.path.isfile(hdf5):
        try:
            read_hdf5(run, hdf5)
        except (OSError, KeyError, RuntimeError) as error:
            if not os.path.isfile(jsonl):
                raise Failure(f"{hdf5} cannot be read ({error}) and there is no metrics.jsonl beside it") from error
            print(f"warning: {hdf5} cannot be read ({error}); using metrics.jsonl", file=sys.stderr)
            run.train, run.evals = {}, {}
    if not run.empty():
        add_newer(run, jsonl)
    elif os.path.isfile(jsonl):
        read_jsonl(run, jsonl)
    if run.empty():
        if os.path.isfile(hdf5) or os.path.isfile(jsonl):
            raise Failure(f"{folder} holds no metrics yet: has the run finished its first step?")
        raise Failure(f"{folder} holds neither metrics.h5 nor metrics.jsonl: is it a run directory, and has the run started?")
    return run


# ---------------------------------------------------------------------------------------------------------------- drawing

def measured(table, column):
    """Returns steps and finite values of a column, or None without any."""
    if column not in table:
        return None
    step, value = table["step"], table[column]
    keep = np.isfinite(value)
    return (step[keep], value[keep]) if keep.any() else None


class Panel:
    """One set of axes with curves (run, label, steps, values). `smoothed`: "mean", "median" (against outliers) or None."""

    def __init__(self, title, unit, log=False, zero=False, smoothed=None):
        self.title, self.unit, self.log, self.zero, self.smoothed = title, unit, log, zero, smoothed
        self.curves = []
        self.lines = {}     # horizontal reference lines: label -> value

    def add(self, run, label, table, column):
        data = measured(table, column)
        if data:
            self.curves.append((run, label, *data))

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


def borders(centre, window, count):
    """Returns first and last + 1 of the `window` values around each centre; fewer at the ends."""
    return np.maximum(0, centre - window // 2), np.minimum(count, centre + (window - 1) // 2 + 1)


def running_mean(step, value):
    """Returns the centred mean over 1/60 of the curve."""
    begin, end = borders(np.arange(len(value)), max(1, len(value) // MEAN_OF), len(value))
    sums = np.concatenate([[0], np.cumsum(value)])
    return step, (sums[end] - sums[begin]) / (end - begin)


def running_median(step, value):
    """Returns the centred median over 1/30 of the curve, of at least five values.

    A slow disk delays single steps, not the run.
    """
    centre = np.unique(np.linspace(0, len(value) - 1, min(len(value), MOST_MEDIANS)).astype(int))
    begin, end = borders(centre, max(5, len(value) // MEDIAN_OF), len(value))
    return step[centre], np.array([np.median(value[b:e]) for b, e in zip(begin, end)])


def smooth(panel, step, value):
    """Returns (steps, values) of the strong line."""
    if panel.smoothed is None:
        return step, value
    return (running_mean if panel.smoothed == "mean" else running_median)(step, value)


# -------------------------------------------------------------------------------------------------------------------- names

def run_names(runs):
    """Returns short labels. Run directories with the same last part have their whole path."""
    names = [run.name for run in runs]
    return [shown(run.folder) if names.count(run.name) > 1 else run.name for run in runs]
