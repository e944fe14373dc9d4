# SPDX-License-Identifier: Apache-2.0
"""Reads what a report shows of one run: attempts, time, warnings, checkpoints, deck, units of the metrics."""
import datetime
import glob
import os
import re

import h5py
import numpy as np

import attempts
import curves
import long_runs
import run_dir
import slow_ranks
from console import Failure

# Parts of the job's time: label and attribute of a checkpoint.
TIMES = (("training", "training_s"), ("evaluation", "evaluation_s"), ("checkpoints", "checkpoint_s"), ("start-up", "setup_s"),
         ("redone after restart", "redone_s"))
# Parts of a training step: label and column of the metrics.
STEP_PARTS = (("computing", "compute_ms"), ("waiting for data", "data_ms"), ("communication", "comm_ms"))


class Attempt:
    """One start of the program, from rank 0's log: times, lines by their first word, and the end."""

    def __init__(self, begin, version):
        self.begin = self.last = begin      # texts of the log, local time
        self.version = version
        self.lines = {}
        self.code = None
        self.error = ""
        self.first_step = self.last_step = None

    def text(self, key):
        """Returns the first line with this word; "" without one."""
        return self.lines.get(key, [""])[0]

    def seconds(self):
        """Returns the time between the first and the last line; None if the log has no times."""
        try:
            return (datetime.datetime.fromisoformat(self.last) - datetime.datetime.fromisoformat(self.begin)).total_seconds()
        except ValueError:
            return None

    def end(self):
        """Returns (word, text): finished, stopped, failed, or "" without a line about the end."""
        if self.text("finished"):
            return "finished", self.text("finished")
        if self.text("stopped"):
            return "stopped", self.text("stopped")
        if self.error or self.code:
            return "failed", self.error
        return ("finished", "") if self.code == 0 else ("", "")

    def add(self, text):
        if found := re.match(r"(?:stopped +|finished +)?step=(\d+) ", text):
            self.last_step = int(found[1])
        if text.startswith("error: "):
            self.error = self.error or text[len("error: "):]
        elif found := re.match(r"([a-z][a-z0-9]*) +(?=\S)", text):
            # The first word fills nine columns.
            if len(found[0]) >= 9 and len(found[1]) < 9:
                self.lines.setdefault(found[1], []).append(text[9:].strip())
            if found := re.match(r"done +exit=(\d+)", text):
                self.code = int(found[1])
            elif found := re.match(r"start +step=(\d+) ", text):
                self.first_step = int(found[1])
        elif text.startswith(" " * 11) and self.lines:
            last = list(self.lines)[-1]
            self.lines[last].append(text.strip())


def attempts_of(folder):
    """Returns the attempts in the log, oldest first."""
    found = []
    try:
        with open(run_dir.log_of(folder), encoding="utf-8", errors="replace") as file:
            for line in file:
                when, _, text = line.rstrip("\n").partition(" ")
                if text.startswith("trainer "):
                    found.append(Attempt(when, text))
                elif found:
                    found[-1].add(text)
                    found[-1].last = when if when[:1].isdigit() else found[-1].last
    except OSError:
        pass
    return found


def warnings_of(folder):
    """Returns [text, count, first step, last step] of each different warning, in the order of the file."""
    found = {}
    try:
        with open(os.path.join(folder, "logs", "warnings.txt"), encoding="utf-8", errors="replace") as file:
            for line in file:
                parts = re.match(r"(?:\S+ )?(?:rank=\d+ level=warning step=(-?\d+) )?(.*)", line.rstrip("\n"))
                if not parts[2]:
                    continue
                step = int(parts[1]) if parts[1] else None
                row = found.setdefault(parts[2], [parts[2], 0, step, step])
                row[1] += 1
                row[3] = step
    except OSError:
        pass
    return list(found.values())


def attributes(path):
    """Returns the attributes of an HDF5 file as numbers and texts."""
    with curves.open_hdf5(path) as file:
        return {name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in file.attrs.items()}


def units_of(folder):
    """Returns {table/column: (unit, doc)} from metrics.h5, for example "train/loss" or "eval/val/perplexity"."""
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            text = [item.attrs.get(key, "") for key in ("unit", "doc")]
            found[name] = tuple(t.decode(errors="replace") if isinstance(t, bytes) else str(t) for t in text)

    try:
        with curves.open_hdf5(os.path.join(folder, "metrics.h5")) as file:
            file.visititems(visit)
    except (OSError, RuntimeError):
        pass
    return found


class ReportRun:
    """All that the page shows of one run directory."""

    def __init__(self, folder):
        if not any(os.path.exists(os.path.join(folder, name)) for name in ("metrics.jsonl", "metrics.h5", "deck.resolved.toml", "lock")):
            raise Failure(f"{folder} is not a run directory (no metrics.jsonl, no deck.resolved.toml): name the run.dir of a deck")
        self.folder = folder
        try:
            self.metrics = curves.read_run(folder)
        except Failure:     # a run that failed before its first row still has a log and a report
            self.metrics = curves.Run(folder)
        self.attempts = attempts_of(folder)
        self.log = attempts.starts_of(folder)
        self.state = run_dir.state_of(folder)
        self.deck = run_dir.deck_of(folder)[0]
        self.units = units_of(folder)
        self.warnings = warnings_of(folder)
        self.files = run_dir.checkpoints(folder)
        self.saved = self.read_newest()
        self.windows, self.hosts = slow_ranks.Windows(), slow_ranks.hosts_of(folder)
        self.starts, self.last_uptime = self.read_starts()

    def read_newest(self):
        """Returns the attributes of the newest checkpoint that can be read; {} without one."""
        for path in reversed(self.files):
            try:
                return attributes(path)
            except (OSError, RuntimeError):
                continue
        return {}

    def read_starts(self):
        """Returns the rows of starts, and the last uptime_s of each attempt by its number. Counts the windows with slow ranks."""
        starts, uptime, attempt = [], {}, 1
        for row in long_runs.telling_rows(self.folder):
            if row.get("kind") == "start":
                starts.append(row)
                attempt = int(row.get("attempt") or attempt)
            elif row.get("kind") == "train":
                self.windows.add(row)
            if row.get("kind") == "train" and isinstance(row.get("uptime_s"), (int, float)):
                uptime[attempt] = max(uptime.get(attempt, 0), row["uptime_s"])
        return starts, uptime

    def written(self, name, until=None):
        """Returns {evaluator: [(step, path)]} of the files of this name that evaluators wrote, by step; none after `until`."""
        found = {}
        for path in glob.glob(os.path.join(glob.escape(self.folder), "eval", "*", "[0-9]*", name)):
            evaluator, step = path.split(os.sep)[-3:-1]
            if step.isdigit() and (until is None or int(step) <= until):
                found.setdefault(evaluator, []).append((int(step), path))
        return {evaluator: sorted(found[evaluator]) for evaluator in sorted(found)}

    def newest(self):
        """Returns the newest attempt of the log that reached its mesh line, else the newest one, else an empty one."""
        for attempt in reversed(self.attempts):
            if attempt.text("mesh"):
                return attempt
        return self.attempts[-1] if self.attempts else Attempt("", "")

    def line(self, key):
        return self.newest().text(key)

    def last(self, column):
        """Returns the last finite value of a training metric, or None."""
        values = curves.measured(self.metrics.train, column) if self.metrics.train else None
        return float(values[1][-1]) if values else None

    def quantiles(self, column, at=(0.1, 0.5, 0.9)):
        """Returns quantiles of a training metric, or None without it."""
        values = curves.sample(self.metrics.train, column)
        return [float(q) for q in np.quantile(values, at)] if len(values) else None

    def step(self):
        return int(self.metrics.train["step"][-1]) if len(self.metrics.train.get("step", ())) else 0

    def total_steps(self):
        progress = self.last("progress")
        return round(self.step() / progress) if progress else None

    def unit(self, table, column):
        return self.units.get(f"{table}/{column.replace('/', '~')}", ("", ""))

    # ---------------------------------------------------------------- time

    def times(self):
        """Returns [(part, seconds)] of the job's time over all attempts, and where the numbers come from.

        Checkpoints count the time of all attempts. Metrics know the time after the newest one. Without a checkpoint,
        only the metrics count.
        """
        if "training_s" in self.saved:
            parts = {name: float(self.saved.get(key, 0)) for name, key in TIMES}
            number, uptime = int(self.saved.get("attempts", 1)), float(self.saved.get("uptime_s", 0))
            after = sum(max(0.0, last - (uptime if attempt == number else 0)) for attempt, last in self.last_uptime.items()
                        if attempt >= number)
            if after > 0:
                parts["after the newest checkpoint"] = after
            source = f"the checkpoint of step {int(self.saved['step']):,}, whose own save is not in it"
        else:
            evaluation = sum(curves.total(table, "eval_s") for table in self.metrics.evals.values() if "eval_s" in table)
            training = curves.total(self.metrics.train, "ms") / 1000 if "ms" in self.metrics.train else 0.0
            rest = max(0.0, sum(self.last_uptime.values()) - training - evaluation)
            parts = {"training": training, "evaluation": evaluation, "start-up, saves and the rest": rest}
            source = "the metrics, because there is no checkpoint"
        return self.split_training(parts), source

    def split_training(self, parts):
        """Splits the time of training by the parts of the steps that the metrics have."""
        train = self.metrics.train
        whole = curves.total(train, "ms") if "ms" in train else 0.0
        if whole <= 0 or any(column not in train for _, column in STEP_PARTS):
            return [(name, seconds) for name, seconds in parts.items() if seconds > 0]
        training = parts.pop("training")
        split = [(f"training: {name}", training * max(0.0, curves.total(train, column)) / whole) for name, column in STEP_PARTS]
        return [(name, seconds) for name, seconds in split + list(parts.items()) if seconds > 0]
