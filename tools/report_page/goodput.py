# SPDX-License-Identifier: Apache-2.0
"""Shows what the time of all starts of the program was spent on, what each failure cost, and what the starts ran with."""
import datetime
import html

import attempts
from console import duration
from report_page import charts

MOST_STARTS = 100       # newest ones that have a row
escape = html.escape


def parts_of(seconds):
    return [(attempts.LABELS[kind], seconds.get(kind, 0.0)) for kind in attempts.PARTS]


def row(starts, index, longest):
    """Returns the cells of a start; what a failure cost includes the start-up of the next one."""
    start = starts[index]
    begun = datetime.datetime.fromtimestamp(start.begin).strftime("%Y-%m-%d %H:%M:%S")
    cost = ""
    if start.failed():
        after = starts[index + 1].kept()["setup"] if index + 1 < len(starts) else 0.0
        cost = duration(start.lost_s() + after)
    steps = "" if start.first_step is None else f"{start.first_step:,} to {start.last_step or start.first_step:,}"
    bar = charts.small_bar(parts_of(start.kept()), longest, f"time of start {start.number}")
    word = start.how or "running"
    return [str(start.number), begun, duration(start.seconds()), f'<td class="time">{bar}</td>', steps,
            f"{start.lost_steps:,}" if start.lost_steps else "", cost, duration(attempts.idle(starts, index)) if index else "",
            f'<span class="state {word}">{word}</span> {escape(start.reason)}']


def goodput(run, table):
    starts = run.log
    if not starts:
        return ""
    sums, (failures, redone, setup) = attempts.totals(starts)
    share = 100 * sums["training"] / max(sums["job"], 1e-9)
    text = (f"<p><b>{share:.1f} %</b> of {duration(sums['job'])} of job time trained steps that count. Between the {len(starts)} "
            f"start{'s' * (len(starts) != 1)} of the program passed {duration(sums['idle'])}. Of the training, rank 0 waited "
            f"{duration(sums['data'])} for data and {duration(sums['exchange'])} for exchanges.</p>")
    if failures:
        text += (f"<p>{failures} start{'s' * (failures != 1)} failed or were killed. That cost {duration(redone + setup)}: "
                 f"{duration(redone)} of work was done again, and the starts after them took {duration(setup)} to begin.</p>")
    longest = max(start.seconds() for start in starts)
    first = max(0, len(starts) - MOST_STARTS)
    head = ["start", "begun", "lasted", "spent on", "steps", "done again", "cost of its failure", "idle before", "end"]
    note = f'<p class="muted">Only the newest {MOST_STARTS} starts have a row.</p>' if first else ""
    rows = [row(starts, index, longest) for index in range(first, len(starts))]
    return text + charts.time_bar(parts_of(sums)) + table(head, rows) + note


def provenance(run, table):
    """Shows the facts of the newest start, and what changed from start to start."""
    starts = [start for start in run.log if start.facts]
    if not starts:
        return ""
    rows = [[f"<th>{escape(name)}</th>", escape(value)] for name, value in sorted(starts[-1].facts.items())]
    changed = [[str(start.number), escape(name), escape(was), escape(now)] for before, start in zip(starts, starts[1:])
               for name, was, now in attempts.changes(before.facts, start.facts)]
    every = table(["", ""], rows, "facts one")
    return ((table(["start", "changed", "from", "to"], changed, "deck") if changed else "")
            + f"<details><summary>all {len(rows)} facts of start {starts[-1].number}</summary>{every}</details>")
