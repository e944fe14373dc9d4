# SPDX-License-Identifier: Apache-2.0
"""Puts the sections of a report together."""
import datetime
import html
import json
import os
import re

import numpy as np

import curves
import run_dir
import slow_ranks
from console import duration, short
from measures import best_end, main_of
from report_page import captions, charts, confusions, deck, goodput, tensors, trace

HERE = os.path.dirname(os.path.abspath(__file__))
MOST_RANKS = 256        # ranks of a mesh that is drawn
MOST_WARNINGS = 50      # different warnings in the page
escape = html.escape


def table(head, rows, kind=""):
    """Returns a table in a box of its own that scrolls sideways. Cells are HTML."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(cell if cell.startswith("<t") else f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def run_column(runs):
    """Returns the head of the column with the run's name, which a page about one run lacks."""
    return ["run"] if len(runs) > 1 else []


def section(anchor, title, body):
    return f'<section id="{anchor}"><h2>{title}</h2>{body}</section>' if body else ""


def per_run(names, bodies):
    """Returns the bodies of several runs below each other, each with the run's name; one body alone has none."""
    if len(names) == 1:
        return bodies[0]
    return "".join(f"<h3>{escape(name)}</h3>{body}" for name, body in zip(names, bodies) if body)


# ------------------------------------------------------------------------------------------------------------- overview

def parted(text):
    """Returns a line of the log, which parts its pieces by two blanks, as HTML with dots between the pieces."""
    return escape(re.sub(r"  +", " · ", re.sub(r"(?<=[:;])  +", " ", text)))


def of_log(key):
    """Returns a function of a run: the line of its newest attempt with this first word."""
    return lambda run: parted(run.line(key))


def network(run):
    """Returns the sizes of the model from the deck: its plain keys, and a line for each part."""
    model = run.deck.get("model", {})

    def sizes(node):
        return ", ".join(f"{name} {deck.written(value).strip(chr(34))}" for name, value in node.items()
                         if not isinstance(value, (dict, list)) and value not in ("", 0, 0.0) and name != "kind")

    lines = [sizes(model)] + [f"{name}: {sizes(part)}" for name, part in model.items() if isinstance(part, dict)]
    return "<br>".join(escape(line) for line in lines if line)


def progress(run):
    total = run.total_steps()
    return f"{run.step():,} of {total:,}" if total else f"{run.step():,}"


def number(value, pattern="{}"):
    return pattern.format(short(value)) if value is not None else "–"


def last_loss(run):
    return number(run.last("loss"), "{} " + escape(run.metrics.loss_unit.replace("/", " per ")))


def main_results(run):
    """Returns the newest value of each evaluator's main measure."""
    out = []
    for name, found in sorted(run.metrics.evals.items()):
        column = main_of(found)
        values = curves.measured(found, column) if column else None
        if values:
            out.append(f"{escape(name)}: {escape(column)} <b>{short(float(values[1][-1]))}</b>")
    return "<br>".join(out) or "–"


def overview(runs, names):
    def median(run, column, pattern, factor=1.0):
        found = run.quantiles(column)
        return pattern.format(short(factor * found[1])) if found else "–"

    rows = (
        ("state", lambda r: f'<span class="state {r.state[0]}">{escape(r.state[0])}</span> {escape(r.state[1].partition(": ")[2])}'),
        ("steps", progress),
        ("training loss, last", last_loss),
        ("evaluators, last", main_results),
        ("model", of_log("model")),
        ("its sizes", network),
        ("parameters began as", lambda r: escape(str(r.saved.get("origin", "")))),
        ("data", of_log("data")),
        ("length", of_log("length")),
        ("batch", of_log("batch")),
        ("optimizer", of_log("optim")),
        ("mesh", of_log("mesh")),
        ("compute", of_log("compute")),
        ("memory", of_log("memory")),
        ("evaluations", of_log("evals")),
        ("speed, median", lambda r: median(r, "examples_s", "{} examples/s") + ", " + median(r, "ms", "{} ms per step")),
        ("share of the peak, median", lambda r: median(r, "mfu", "{} %", 100)),
        ("time of the job", lambda r: duration(sum(seconds for _, seconds in r.times()[0]))),
        ("core hours", lambda r: number(r.last("core_hours"))),
        ("notes", lambda r: escape(str(r.deck.get("run", {}).get("notes", "")))),
        ("directory", lambda r: f"<code>{escape(os.path.abspath(r.folder))}</code>"),
    )
    cells = [(label, [show(run) for run in runs]) for label, show in rows]
    body = [[f"<th>{label}</th>", *values] for label, values in cells if any(value not in ("", "–", "–, –") for value in values)]
    return table(["", *map(escape, names)] if len(runs) > 1 else ["", ""], body, "facts" if len(runs) > 1 else "facts one")


# ------------------------------------------------------------------------------------------------------------- results

def best_of(column, values):
    """Returns the indices of the best values: one if the measure's name says which end is better, else the lowest and the highest.

    Values that are all equal have no best one.
    """
    if np.min(values) == np.max(values):
        return []
    if end := best_end(column):
        return [("", int(np.argmin(values) if end == "min" else np.argmax(values)))]
    return [("lowest ", int(np.argmin(values))), ("highest ", int(np.argmax(values)))]


def evaluators(runs, names):
    rows = []
    for name in sorted({name for run in runs for name in run.metrics.evals}):
        columns = {c for run in runs for c in run.metrics.evals.get(name, {})} - {"step", "attempt"}
        for column in sorted(columns, key=lambda c: (c == "eval_s", c)):
            for run, label in zip(runs, names):
                table_of = run.metrics.evals.get(name, {"step": np.array([])})
                found = curves.measured(table_of, column)
                if not found:
                    continue
                step, values = found
                unit, doc = run.unit(f"eval/{name}", column)
                def at(i, step=step, values=values):
                    return f"{short(float(values[i]))} <small>step {step[i]:,}</small>"

                best = "" if column == "eval_s" else "<br>".join(word + at(i) for word, i in best_of(column, values))
                rows.append([escape(name), f'<span title="{escape(doc)}">{escape(column)}</span>',
                             *([escape(label)] if len(runs) > 1 else []), escape("" if unit == "1" else unit),
                             at(0) if len(values) > 1 else "", f"<b>{at(-1)}</b>", best, str(curves.count(table_of, column))])
    if not rows:
        return ""
    return table(["evaluator", "measure", *run_column(runs), "unit", "first", "last", "best", "rows"], rows)


def times(runs, names):
    bodies = []
    for run in runs:
        parts, source = run.times()
        own = run.newest().text("time")
        line = f' The log\'s own sum at the end: <q>{parted(own)}</q>' if own else ""
        bodies.append(charts.time_bar(parts) + f'<p class="muted">From {escape(source)}; training is divided as the rows of the '
                      f'metrics are.{line}</p>')
    return per_run(names, bodies)


def throughput(runs, names):
    columns = (("examples_s", "examples per second"), *((column, f"{label}, ms") for column, label in charts.STEP_PARTS),
               ("data_mean_ms", "waiting for data, mean of the ranks, ms"), ("data_max_ms", "waiting for data, slowest rank, ms"),
               ("mfu", "MFU"), ("hfu", "HFU"), ("host_mib", "memory of rank 0, MiB"))
    rows = []
    for column, label in columns:
        for run, name in zip(runs, names):
            if found := run.quantiles(column, (0.1, 0.5, 0.9)):
                rows.append([label, *([escape(name)] if len(runs) > 1 else []), *map(short, found)])
    head = ["per step", *run_column(runs), "10th percentile", "median", "90th percentile"]
    return table(head, rows, "numbers") if rows else ""


# ------------------------------------------------------------------------------------------------------------- the job

def mesh_drawing(run):
    """Returns a grid of ranks, a row for each replica; "" for a mesh that is not known or is too large."""
    found = re.search(r"(\d+) ranks? on .* = replica (\d+) x fsdp (\d+)", run.line("mesh"))
    if not found or not 1 < int(found[1]) <= MOST_RANKS:
        return ""
    replica, fsdp = int(found[2]), int(found[3])
    cells = "".join(f"<i>{rank}</i>" for rank in range(replica * fsdp))
    return (f'<div class="scroll"><div class="mesh" style="grid-template-columns:repeat({fsdp},2.2em)">{cells}</div></div>'
            f'<p class="muted">A row for each of {replica} replica{"s" * (replica > 1)}; the shards are divided by the {fsdp} '
            f'rank{"s" * (fsdp > 1)} of a row (fsdp).</p>')


def mesh(runs, names):
    bodies = []
    for run in runs:
        lines = run.newest().lines.get("mesh", [])
        rows = [re.split(r" {2,}", line) for line in lines[2:]]
        hosts = table(["ranks", "host", "device", "threads per rank"], [[escape(cell) for cell in row] for row in rows if len(row) == 4])
        bodies.append(f"<p>{parted(lines[0])}</p>{mesh_drawing(run)}{hosts}" if lines else "")
    return per_run(names, bodies) if any(bodies) else ""


def slow(runs, names):
    bodies = []
    for run in runs:
        rows = [[escape(slow_ranks.who(run.hosts, rank)), phase, f"{windows:,}", f"{100 * windows / run.windows.count:.0f} %",
                 f"{first:,} to {last:,}" if last != first else f"{first:,}", short(ms / windows), "yes" if chronic else ""]
                for (rank, phase), (windows, first, last, ms, chronic) in sorted(run.windows.slow.items(), key=lambda item: -item[1][3])]
        head = ["who", "phase", "windows", "of all", "steps", "costs, ms per step", "chronic"]
        note = ('<p class="muted">A window is a stretch of steps, about 10 s. The slow rank waits least for the others. Hosts are those '
                'of the newest attempt.</p>')
        bodies.append(table(head, rows, "numbers") + note if rows else "")
    return per_run(names, bodies) if any(bodies) else ""


def attempts(runs, names):
    bodies = []
    for run in runs:
        rows = []
        for index, attempt in enumerate(run.attempts, 1):
            word, text = attempt.end()
            if not word:
                running = index == len(run.attempts) and run.state[0] == "running"
                word, text = ("running", "") if running else ("killed", "the log ends without a message")
            # An attempt that fails says its exit code in report.txt, which the next attempt repeats.
            report = run.attempts[index].text("before") if index < len(run.attempts) else run_dir.report_of(run.folder)
            code = attempt.code if attempt.code is not None else (re.search(r" exit=(\d+):", report) or ["", ""])[1]
            seconds = attempt.seconds()
            ranks = re.match(r"(\d+) ranks?", attempt.text("mesh"))
            steps = ["" if step is None else f"{step:,}" for step in (attempt.first_step, attempt.last_step)]
            rows.append([str(index), escape(attempt.begin.replace("T", " ").partition(".")[0]),
                         duration(seconds) if seconds is not None else "", ranks[1] if ranks else "", *steps,
                         f'<span class="state {word}">{word}</span>', str(code), escape(text)])
        body = table(["attempt", "begun", "lasted", "ranks", "from step", "last line at", "end", "exit", "message"], rows) if rows else ""
        if run.state[0] == "failed":
            body = f'<p class="alarm">{escape(run.state[1])}</p>' + body
        changed = [text for attempt in run.attempts for key in ("changed", "lost", "before") for text in attempt.lines.get(key, [])]
        body += "".join(f'<p class="muted">{escape(text)}</p>' for text in changed[:20])
        bodies.append(body)
    return per_run(names, bodies) if any(bodies) else ""


def warnings(runs, names):
    bodies = []
    for run in runs:
        rows = [[escape(text), f"{count:,}", "" if first is None else f"{first:,}" + (f" to {last:,}" if last != first else "")]
                for text, count, first, last in run.warnings]
        body = table(["warning", "times", "steps"], rows[:MOST_WARNINGS]) if rows else '<p class="muted">No warnings.</p>'
        if len(rows) > MOST_WARNINGS:
            body += f'<p class="muted">and {len(rows) - MOST_WARNINGS} others in logs/warnings.txt</p>'
        bodies.append(body)
    return per_run(names, bodies)


def files(runs, names):
    rows = []
    for run, name in zip(runs, names):
        rows += [[*([escape(name)] if len(runs) > 1 else []), f"<code>checkpoints/{os.path.basename(path)}</code>",
                  f"{os.path.getsize(path) / 2**20:,.1f}"] for path in run.files[-20:] if os.path.exists(path)]
    return table([*run_column(runs), "checkpoint", "MiB"], rows, "numbers") if rows else ""


def environment(runs, names):
    def words(run):
        found = dict(re.findall(r"(\S+?)=(\S+)", run.newest().version))
        version = run.newest().version.split()
        return {"trainer": version[1] if len(version) > 1 else str(run.saved.get("version", "")), **found}

    found = [words(run) for run in runs]
    rows = [[f"<th>{escape(key)}</th>", *(escape(w.get(key, "")) for w in found)] for key in dict.fromkeys(k for w in found for k in w)]
    for label, key in (("device", "device"), ("binding", "binding"), ("threads", "threads"), ("exchanges", "check"), ("disk", "disk"),
                       ("limits", "limits"), ("deck", "deck"), ("run", "run")):
        cells = ["<br>".join(parted(text) for text in run.newest().lines.get(key, [])) for run in runs]
        if any(cells):
            rows.append([f"<th>{label}</th>", *cells])
    return table(["", *map(escape, names)] if len(runs) > 1 else ["", ""], rows, "facts" if len(runs) > 1 else "facts one")


# ------------------------------------------------------------------------------------------------------------- deck

def decks(runs, names):
    """Returns the keys that differ from their defaults or between the runs, then all keys."""
    keys, problem = deck.defaults()
    found = [{s.place: s for s in deck.settings(run.deck, keys)} for run in runs]
    places = list(dict.fromkeys(place for settings in found for place in settings))
    few, every, changed = [], [], 0
    for place in places:
        here = [settings.get(place) for settings in found]
        one = next(s for s in here if s)
        states = [s.state() if s else "default" for s in here]
        differ = len({deck.written(s.value) if s else None for s in here}) > 1
        values = [f'<td class="value {state}">{escape(deck.written(s.value)) if s else "–"}</td>' for s, state in zip(here, states)]
        if one.key is None:
            default, doc = "not known to this trainer" if keys and one.state() == "unknown" else "", ""
        else:
            default, doc = "no default" if one.state() == "needed" else escape(one.key.default), escape(one.key.doc)
        kind = "changed" if "changed" in states else "needed" if "needed" in states else ""
        row = [f'<th class="{kind}{" differ" if differ else ""}">{escape(place)}</th>', *values,
               f'<td class="default">{default}</td>', f'<td class="doc">{doc}</td>']
        every.append(row)
        if kind or differ or "unknown" in states:
            few.append(row)
        changed += kind == "changed"
    if not every:
        return ""
    head = ["key", *(map(escape, names) if len(runs) > 1 else ["value"]), "default", "meaning"]
    note = escape(problem) or f"{changed} of {len(every)} keys differ from their defaults and are highlighted."
    note += " Dots mark keys that differ between the runs." if len(runs) > 1 else ""
    return (f'<p class="muted">{note}</p>{table(head, few, "deck") if keys else ""}'
            f'<details><summary>all {len(every)} keys</summary>{table(head, every, "deck")}</details>')


# ------------------------------------------------------------------------------------------------------------- page

def asset(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return file.read()


def page(runs, until=None, every_s=0):
    """Returns the page as text. Captions and confusions are those of the newest step, `until` at the most. With `every_s` the page
    loads itself again, because it is made again that often."""
    names = curves.run_names([run.metrics for run in runs])
    panels = charts.panels_of(runs)
    drawn = charts.Charts(runs, panels)
    figures = "".join(drawn.draw(panel) for panel in panels)
    smoothed = "Strong lines are means over 1/60 of a curve (times and speeds: medians over 1/30), pale lines are measured values."
    thinned = f" At most {drawn.most:,} rows of a curve are in this page; the run directory has all." if drawn.thinned else ""
    curve_text = (f'<p class="muted">{smoothed}{thinned} Point at a curve, or tap it, to read values.</p>'
                  f'<div class="panels">{figures}</div>' if figures else '<p class="muted">The run has no rows of metrics yet.</p>')
    sections = [
        ("overview", "Overview", overview(runs, names)),
        ("curves", "Curves", curve_text),
        ("evaluators", "Evaluators", evaluators(runs, names)),
        ("captions", "Captions", per_run(names, [captions.captions(run, until) for run in runs])),
        ("confusions", "Confusions", per_run(names, [confusions.confusions(run, until) for run in runs])),
        ("tensors", "Tensors", per_run(names, [tensors.tensors(run) for run in runs])),
        ("time", "Time of the job", times(runs, names)),
        ("goodput", "Goodput", per_run(names, [goodput.goodput(run, table) for run in runs])),
        ("throughput", "Throughput", throughput(runs, names)),
        ("trace", "Trace of some steps", per_run(names, [trace.trace(run, table) for run in runs])),
        ("mesh", "Mesh", mesh(runs, names)),
        ("slow", "Slow ranks", slow(runs, names)),
        ("attempts", "Attempts and stops", attempts(runs, names)),
        ("warnings", "Warnings", warnings(runs, names)),
        ("deck", "Deck", decks(runs, names)),
        ("environment", "Environment", environment(runs, names)),
        ("provenance", "What the starts ran with", per_run(names, [goodput.provenance(run, table) for run in runs])),
        ("files", "Checkpoints", files(runs, names)),
    ]
    links = "".join(f'<a href="#{anchor}">{title}</a>' for anchor, title, body in sections if body)
    title = escape(", ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} other runs")
    chips = "".join(f'<span class="state {run.state[0]}">{escape(name) + ": " if len(runs) > 1 else ""}{run.state[0]}</span>'
                    for run, name in zip(runs, names))
    renews = f' data-every="{every_s:g}"' if every_s else ""
    written = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    numbers = json.dumps(drawn.payload, separators=(",", ":")).replace("</", "<\\/")
    body = "".join(section(*parts) for parts in sections)
    return f"""<!DOCTYPE html>
<html lang="en"{renews}>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{asset("page.css")}</style>
</head>
<body>
<header><h1>{title}</h1><p>{chips} <span class="muted">report of {written}{", renewed as the run goes on" if every_s else ""}</span></p>
<nav>{links}</nav></header>
<main>{body}</main>
<div id="tip" hidden></div>
<script type="application/json" id="numbers">{numbers}</script>
<script>
{asset("page.js")}</script>
</body>
</html>
"""
