# SPDX-License-Identifier: Apache-2.0
"""Finds run directories, and reads of each what a table of many shows: in milliseconds, however long the run was."""
import functools
import multiprocessing
import os
import re

import attempts
import measures
import metric_lines
import run_dir
from report_page import deck

MOST_BYTES = 512 << 20      # of all metrics.jsonl together, unless everything is asked for
MOST_POINTS, LEAST_POINTS, ALL_POINTS = 400, 60, 40_000     # rows of training that a page has of a run, and of all runs
FEW = 8                     # runs that one process reads
RUN_FILES = ("lock", "metrics.jsonl", "metrics.h5", "deck.resolved.toml")
OWN_PLACE = ("run.dir", "run.name")     # keys of a deck that differ between any two runs


# ------------------------------------------------------------------------------------------------------------- finding

def is_run(folder):
    return any(os.path.exists(os.path.join(folder, name)) for name in RUN_FILES)


def find(folders):
    """Returns [(path, reason)] of all run directories in and below the folders, by path; the reason is "" for a run directory. A
    folder that holds no run is there too if it was asked for, or lies beside runs in one that was."""
    found = {}

    def add(folder, reason):
        found.setdefault(os.path.realpath(folder), (folder, reason))

    def search(folder, above):
        """Adds the runs in and below a folder; returns why there is none, or ""."""
        try:
            here = os.stat(folder)
            if is_run(folder):
                return add(folder, "") or ""
            if (here.st_dev, here.st_ino) in above:
                return "a link to a folder above it"
            inside = [entry.path for entry in os.scandir(folder) if entry.is_dir()]
            empty = not os.listdir(folder)
        except OSError as error:
            return error.strerror.lower()
        reasons = {path: search(path, above | {(here.st_dev, here.st_ino)}) for path in sorted(inside)}
        if all(reasons.values()):
            return "an empty folder" if empty else "no run directory, and none in it"
        for path, reason in reasons.items():
            if reason and not above:
                add(path, reason)
        return ""

    for folder in map(os.path.normpath, folders):
        if reason := search(folder, frozenset()):
            add(folder, reason)
    return sorted(found.values(), key=lambda item: natural(item[0]))


def natural(text):
    """Returns a key that sorts run-9 before run-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text) if part]


# ------------------------------------------------------------------------------------------------------------- metrics

class Metrics:
    """What the lines of metrics.jsonl say. `whole`: these are all lines; else sums are estimates from evenly spaced ones."""

    def __init__(self, lines, whole, points):
        self.starts, self.evals, self.bad, self.whole = [], {}, 0, whole
        self.uptime = {}        # last seconds of each attempt, by its number
        train, attempt, last = [], 1, None
        for line in lines:
            if b'"train"' in line[:24]:     # most lines: they are parsed only if they are shown
                last = line
                train.append(line)
                continue
            row = metric_lines.row_of(line)
            if row is None or not isinstance(row.get("step"), int):
                self.bad += 1
            elif row.get("kind") == "start":
                self.note(attempt, last)
                given = metric_lines.number(row.get("attempt"))
                attempt, last = int(given) if given >= 1 else attempt + 1, None
                self.starts.append(row)
            elif row.get("kind") == "eval" and isinstance(row.get("eval"), str):
                self.evals.setdefault(row["eval"], {})[row["step"]] = metric_lines.values(row)     # a later row replaces
        self.note(attempt, last)
        self.train = self.shown(train, points)
        ms = list(map(float, re.findall(rb'"ms": ?([-+\d][-+.\deE]*)', b"\n".join(train))))
        self.seconds_per_row = sum(ms) / len(ms) / 1000 if ms else None

    def note(self, attempt, line):
        uptime = metric_lines.number((metric_lines.row_of(line) or {}).get("uptime_s")) if line else 0
        if uptime > 0:
            self.uptime[attempt] = max(self.uptime.get(attempt, 0), uptime)

    def shown(self, lines, points):
        """Returns {step: {column: number}} of at most `points` lines, evenly spaced, with the first and the last."""
        count = min(len(lines), points)
        chosen = [lines[i * (len(lines) - 1) // max(1, count - 1)] for i in range(count)]
        rows = [metric_lines.row_of(line) for line in chosen]
        good = [row for row in rows if row and isinstance(row.get("step"), int)]
        self.bad += len(rows) - len(good)
        return dict(sorted((row["step"], metric_lines.values(row)) for row in good))


def abandoned_uptime(folder, most):
    """Returns the last seconds of each attempt in the rows that later attempts left out."""
    try:
        lines, _ = metric_lines.lines(os.path.join(folder, "metrics.abandoned.jsonl"), most)
    except OSError:
        return {}
    found = {}
    for row in filter(None, map(metric_lines.row_of, lines)):
        attempt, uptime = metric_lines.number(row.get("attempt", 1)), metric_lines.number(row.get("uptime_s"))
        if attempt > 0 and uptime > 0:
            found[int(attempt)] = max(found.get(int(attempt), 0), uptime)
    return found


def goodput(folder, metrics, steps, most):
    """Returns {"goodput": share of training in the time of all starts, "hours": that time, ...}. Steps that were redone count once.

    Runs of older programs lack attempts.jsonl. A finished one has the share in its log; of others the rows tell: each attempt's
    seconds, and the time of its steps.
    """
    starts = attempts.starts_of(folder)
    if starts and next((number for start in starts for number in start.attempts), 1) == 1:
        sums, (failures, redone, setup) = attempts.totals(starts)
        return {"hours": sums["job"] / 3600, "goodput": sums["training"] / sums["job"] if sums["job"] else None,
                "starts": len(starts), "failures": failures, "failures_hours": (redone + setup) / 3600}
    uptime = abandoned_uptime(folder, most)
    for attempt, seconds in metrics.uptime.items():
        uptime[attempt] = max(seconds, uptime.get(attempt, 0))
    whole = sum(uptime.values())
    found = {"hours": whole / 3600 if whole else None, "goodput": None, "starts": max([len(metrics.starts), *uptime])}
    if share := said_at_the_end(folder):
        found["goodput"] = share
    elif whole and metrics.seconds_per_row is not None:
        found["goodput"] = min(1.0, metrics.seconds_per_row * steps / whole)
    return found


def said_at_the_end(folder):
    """Returns the share of training that a finished run wrote into its log; None without it."""
    for line in run_dir.end_of_log(folder):
        if line.startswith("trainer "):
            return None
        if found := re.match(r"time .* of job time: training ([\d.]+) %", line):
            return float(found[1]) / 100
    return None


# ------------------------------------------------------------------------------------------------------------- best value

def choice_of(text):
    """Returns (evaluator, measure, "min", "max" or "") of EVAL/MEASURE[:min|:max]; None if the text has another form."""
    found = re.fullmatch(r"([^/]+)/(.+?)(?::(min|max))?", text)
    return (found[1], found[2], found[3] or measures.best_end(found[2])) if found else None


def best_of(metrics, settings, wanted):
    """Returns the best value of the wanted measure, or of the one that the deck keeps the best checkpoint of, or of the first
    evaluator's main measure, as a dictionary; None without any."""
    chosen = next(filter(None, map(choice_of, [wanted] if wanted else
                                   [str(settings.get(key, "")) for key in ("checkpoint.best", "early_stop.metric")])), None)
    if not chosen and not wanted:
        mains = [(name, main) for name, rows in sorted(metrics.evals.items())
                 if (main := measures.main_of({column for row in rows.values() for column in row}))]
        name, main = min(mains, key=lambda item: measures.FIRST.index(item[1]) if item[1] in measures.FIRST else 99, default=("", ""))
        chosen = (name, main, measures.best_end(main)) if mains else None
    if not chosen:
        return None
    name, column, end = chosen
    found = [(row[column], step) for step, row in sorted(metrics.evals.get(name, {}).items()) if column in row]
    if not found:
        return None
    value, step = found[-1] if not end else min(found) if end == "min" else max(found, key=lambda item: (item[0], -item[1]))
    return {"measure": f"{name}/{column}", "value": value, "step": step, "end": end}


# ------------------------------------------------------------------------------------------------------------- one run

def flat(tree):
    """Returns {place: value} of a resolved deck; {} of an empty one."""
    return tree and {setting.place: setting.value for setting in deck.settings(tree, [])}


def read_run(folder, most, points, best):
    """Returns a row of the table as a dictionary. `problem` says what is missing or broken; the rest is what there is."""
    row = {"run": folder, "state": run_dir.state_of(folder)[0], "problem": ""}
    tree, broken = run_dir.deck_of(folder)
    settings = flat(tree)
    problems = [broken] if broken and os.path.exists(os.path.join(folder, "deck.resolved.toml")) else []
    try:
        lines, whole = metric_lines.lines(run_dir.metrics_of(folder), most)
        row["last"] = os.path.getmtime(run_dir.metrics_of(folder))
    except OSError as error:
        lines, whole = [], True
        there = os.path.exists(os.path.join(folder, "metrics.h5"))
        problems.append(f"metrics.jsonl: {error.strerror.lower()}" + "; metrics.h5 exists, and the next start restores the rows" * there)
    metrics = Metrics(lines, whole, points)
    if metrics.bad:
        problems.append(f"metrics.jsonl: {metrics.bad} lines are not rows")
    if lines and not metrics.train and not metrics.bad:
        problems.append("no step yet")
    if row["state"] == "failed":
        problems.append(run_dir.report_of(folder))
    newest = list(metrics.train.items())[-1:]
    step, values = newest[0] if newest else (0, {})
    begun = metrics.starts[0] if metrics.starts else {}
    progress = values.get("progress")
    row |= {"problem": "; ".join(problems), "step": step, "total_steps": round(step / progress) if progress else None,
            "loss": values.get("loss"), "best": best_of(metrics, settings, best), "core_hours": values.get("core_hours"),
            **goodput(folder, metrics, step - begun.get("step", 0), most // 4), "begun": begun.get("time"), "whole": whole,
            "deck": {place: value for place, value in settings.items() if place not in OWN_PLACE},
            "train": metrics.train, "evals": metrics.evals}
    return row


def read_or_reason(item, most, points, best):
    """Returns read_run's row, or for a folder that cannot be read as a run one with the reason alone."""
    folder, reason = item
    if not reason:
        try:
            return read_run(folder, most, points, best)
        except (OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # A foreign file with a name of ours.
            reason = f"{type(error).__name__}: {error}"
    return {"run": folder, "state": "", "problem": reason}


def read_all(found, best=None, whole=False, curves=False):
    """Returns the rows of all folders that find() has found, in their order, read by as many processes as there are cores. With
    `curves` they have rows of training from the whole run, else the first and the last."""
    runs = max(1, len(found))
    read = functools.partial(read_or_reason, most=(1 << 62) if whole else MOST_BYTES // runs, best=best,
                             points=min(MOST_POINTS, max(LEAST_POINTS, ALL_POINTS // runs)) if curves else 2)
    workers = min(len(os.sched_getaffinity(0)), runs // FEW)
    if workers < 2:
        return [read(item) for item in found]
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        return pool.map(read, found, chunksize=FEW)
