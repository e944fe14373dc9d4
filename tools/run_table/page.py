# SPDX-License-Identifier: Apache-2.0
"""Makes one HTML page about many runs: the table, and the curves of a measure on top of each other, which page.js draws."""
import datetime
import html
import json
import os

import console
from report_page.deck import written
from run_table import table

HERE = os.path.dirname(os.path.abspath(__file__))
STYLE = os.path.join(os.path.dirname(HERE), "report_page", "page.css")     # the report's
MOST_KEYS = 40              # columns of keys of the decks
MOST_NUMBERS = 400_000      # values of all curves together
AXES = (("step", "step"), ("examples_seen", "examples"), ("core_hours", "core hours"), ("uptime_s", "seconds of the attempt"))
# Columns of training that are no curves to compare.
NO_CURVES = {"step", "progress", "skipped", "first_step_s", "slow_rank", "slow_phase", "slow_chronic", *(name for name, _ in AXES)}
FIRST = ("train/loss", "train/accuracy", "train/l2_grads", "train/examples_s")
escape = html.escape


# ------------------------------------------------------------------------------------------------------------- numbers

def thinned(rows, most):
    """Returns at most `most` of the rows {step: ...}, evenly spaced, with the first and the last."""
    items = list(rows.items())
    count = min(len(items), most)
    return [items[i * (len(items) - 1) // max(1, count - 1)] for i in range(count)]


def columns_of(rows, left_out=()):
    """Returns {column: values} of [(step, {column: number})] with null for what a row lacks; columns of one value are left out."""
    names = sorted({name for _, values in rows for name in values} - set(left_out))
    return {name: [None if (value := values.get(name)) is None else float(f"{value:.6g}") for _, values in rows] for name in names}


def finite(columns):
    """Returns the columns without what JSON cannot hold, as null."""
    return {name: [value if value is not None and abs(value) < 1e300 else None for value in values] for name, values in columns.items()}


def measures_of(rows):
    """Returns the names of all curves that the page can show, the most important ones first; those that never change in any run are
    left out."""
    seen = {}
    for row in rows:
        for group, steps in (("train", row.get("train", {})), *((f"eval/{name}", steps) for name, steps in row.get("evals", {}).items())):
            for values in steps.values():
                for name, value in values.items():
                    if not (group == "train" and name in NO_CURVES) and name != "eval_s":
                        low, high = seen.get(f"{group}/{name}", (value, value))
                        seen[f"{group}/{name}"] = (min(low, value), max(high, value))
    changing = [name for name, (low, high) in seen.items() if low < high]
    return sorted(changing, key=lambda name: (FIRST.index(name) if name in FIRST else 5 if name.startswith("eval/") else 6, name))


def numbers(rows, names):
    """Returns what page.js draws: for each run its axes and curves."""
    shown = {name.partition("/")[2] for name in names if name.startswith("train/")}
    axes = [axis for axis, _ in AXES]
    most = max(20, MOST_NUMBERS // max(1, len(rows) * (len(shown) + len(axes))))
    found = []
    for row, label in zip(rows, labels(rows)):
        train = thinned(row.get("train", {}), most)
        columns = finite(columns_of(train))
        columns["step"] = [step for step, _ in train]
        evals = {name: {**finite(columns_of(list(steps.items()), ("eval_s",))), "step": list(steps)}
                 for name, steps in row.get("evals", {}).items()}
        found.append({"n": label, "train": {name: values for name, values in columns.items() if name in shown or name in axes},
                      "eval": evals})
    return {"runs": found, "measures": names, "axes": AXES}


def labels(rows):
    """Returns the paths of the runs below the folder that all of them are in."""
    paths = [os.path.abspath(row["run"]) for row in rows]
    top = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [console.shown(os.path.relpath(path, top)) for path in paths]


# ------------------------------------------------------------------------------------------------------------- table

def cell(text, value=None, kind=""):
    """Returns a cell; `value` is what its column is sorted by, if that is not the text."""
    sort = "" if value is None else f' data-v="{escape(str(value))}"'
    return f'<td{sort}{f" class={kind}" if kind else ""}>{escape(text)}</td>'


def line(row, index, label, keys):
    _, state, step, loss, best, hours, cost, share, starts, failures, *_ = table.cells(row, ())
    value = {name: row.get(name) for name in table.NUMBERS} | {"best": (row.get("best") or {}).get("value")}
    swatch = f'<label><input type="checkbox" checked aria-label="show {escape(label)}"><i class="swatch f{index % 8}"></i></label>'
    cells = [f"<td>{swatch}</td>", f'<th scope="row" title="{escape(os.path.abspath(row["run"]))}">{escape(label)}</th>',
             f'<td><span class="state {row["state"]}">{escape(state)}</span></td>', cell(step, value["step"]), cell(loss, value["loss"]),
             cell(best, value["best"]), cell(hours, value["hours"]), cell(cost, value["core_hours"]), cell(share, value["goodput"]),
             cell(starts, value["starts"]), cell(failures, value["failures"])]
    for key in keys:
        setting = row.get("deck", {}).get(key)
        number = setting if isinstance(setting, (int, float)) and not isinstance(setting, bool) else None
        cells.append(cell("" if setting is None else written(setting), number, "value"))
    return f'<tr data-run="{index}">{"".join(cells)}{cell(row["problem"])}</tr>'


def table_of(rows, wanted):
    keys, left = table.shown_keys(rows, wanted, MOST_KEYS)
    names = table.short_names(keys)
    head = ["run", "state", "step", "last loss", "best", "time", "core hours", "goodput", "starts", "failures"]
    top = '<th><input type="checkbox" checked aria-label="show all runs" id="all"></th>'
    top += "".join(f'<th><button type="button">{title}</button></th>' for title in head)
    top += "".join(f'<th title="{escape(key)}"><button type="button">{escape(names[key])}</button></th>' for key in keys)
    top += '<th><button type="button">what is wrong</button></th>'
    body = "".join(line(row, i, label, keys) for i, (row, label) in enumerate(zip(rows, labels(rows))))
    note = f" {left} more keys differ." if left else ""
    guess = "" if all(row.get("whole", True) for row in rows) else " ~: estimated from parts of long metrics."
    return (f'<p class="muted">Keys of the decks that are not alike in all runs follow after the failures; point at one for its whole name.'
            f'{note}{guess} Click on a title to sort.</p><div class="scroll"><table class="runs"><thead><tr>{top}</tr></thead>'
            f'<tbody>{body}</tbody></table></div>')


# ------------------------------------------------------------------------------------------------------------- page

def chooser(name, label, options):
    choices = "".join(f'<option value="{escape(str(value))}">{escape(text)}</option>' for value, text in options)
    return f'<label>{label} <select id="{name}">{choices}</select></label>'


def asset(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def page(rows, wanted):
    """Returns the page as text."""
    names = measures_of(rows)
    payload = json.dumps(numbers(rows, names), separators=(",", ":")).replace("</", "<\\/")
    controls = (chooser("measure", "curve", [(name, name.removeprefix("train/").removeprefix("eval/")) for name in names])
                + chooser("axis", "against", AXES)
                + chooser("mean", "mean over", [(1, "nothing"), (5, "5 points"), (15, "15 points"), (45, "45 points")])
                + '<label><input type="checkbox" id="log"> logarithmic</label>')
    curves = (f'<p class="controls">{controls}</p><figure class="panel"><figcaption id="title"></figcaption>'
              '<svg id="chart" role="img" tabindex="0" aria-label="curves of the runs"></svg></figure>'
              if names else '<p class="muted">No run has rows of metrics yet.</p>')
    runs = sum(bool(row["state"]) for row in rows)
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{runs} runs</title>
<style>
{asset(STYLE)}{asset(os.path.join(HERE, "page.css"))}</style>
</head>
<body>
<header><h1>{runs} runs</h1><p class="muted">written {date}</p></header>
<main><section id="curves"><h2>Curves</h2>{curves}</section><section id="runs"><h2>Runs</h2>{table_of(rows, wanted)}</section></main>
<div id="tip" hidden></div>
<script type="application/json" id="numbers">{payload}</script>
<script>
{asset(os.path.join(HERE, "page.js"))}</script>
</body>
</html>
"""
