# SPDX-License-Identifier: Apache-2.0
"""Shows the newest trace of a run: what took the time, and a picture of one step."""
import html

import trace_file
from console import Failure, short

MOST_NAMES = 20                 # in the table
MOST_RANKS, MOST_THREADS = 4, 6     # in the picture; threads beside the main one, of each rank
MOST_DEPTH = 5                  # of spans within spans
WIDTH, LEFT, BAR, GAP = 1000, 110, 13, 7
LEAST, MOST_BARS = 0.4, 3000    # narrower spans are not drawn, and of more than that the longest ones
# Colours of page.css, by what a span is.
COLOURS = {"op": 0, "wait": 1, "block": 2, "exchange": 3, "load": 4, "step": 7, "work": 5, "device": 0, "save": 6, "evaluate": 6,
           "restore": 6}
LEGEND = (("step", "step"), ("work", "parts of it"), ("block", "blocks"), ("op", "ops"), ("wait", "waits"), ("exchange", "exchanges"),
          ("load", "loading"), ("save", "saves, evaluations"))
escape = html.escape


def newest(run):
    """Returns the traces of the newest window; none if there is no trace with a whole step."""
    try:
        traces = trace_file.read_window(run.folder)
    except (Failure, OSError, KeyError):
        return []
    return [t for t in traces if t.steps]


def sums_rows(sums, whole):
    rows = []
    for s in sums[:MOST_NAMES]:
        flops, moved = s.rates()
        rows.append([escape(s.name), s.kind, f"{s.count:,}", f"{s.own / 1e3:.2f}", f"{100 * s.own / whole:.1f} %",
                     f"{flops:.1f}" if flops else "", f"{moved:.2f}" if moved else ""])
    return rows


def lanes(trace, step):
    """Returns [(label, [[span] of each depth])] of what the rank's rows did in the step."""
    found = [("main", depths([s for s in trace.of_row(trace_file.MAIN) if s.begin >= step.begin and s.end <= step.end]))]
    inside = [s for s in trace.spans if s.row != trace_file.MAIN and s.end > step.begin and s.begin < step.end]
    for row, name in sorted(trace.rows.items()):
        spans = [s for s in inside if s.row == row and row < trace_file.EXCHANGES]
        if spans and len(found) <= MOST_THREADS:
            found.append((name, depths(spans)[:1]))
    exchanges = [s for s in inside if s.row >= trace_file.EXCHANGES]
    if exchanges:
        found.append(("exchanges", depths(exchanges)[:1]))
    return found


def depths(spans):
    """Returns the spans of each depth. The spans are by begin."""
    found, ends = [], []
    for span in sorted(spans, key=lambda s: (s.begin, -s.end)):
        while ends and ends[-1] <= span.begin:
            ends.pop()
        ends.append(span.end)
        if len(ends) <= MOST_DEPTH:
            while len(found) < len(ends):
                found.append([])
            found[len(ends) - 1].append(span)
    return found


def bar(span, step, y):
    """Returns (width, the bar of a span); None for one that is too narrow."""
    scale = (WIDTH - LEFT) / (step.end - step.begin)
    begin, end = max(span.begin, step.begin), min(span.end, step.end)
    width = (end - begin) * scale
    if width < LEAST:
        return None
    number = f" {span.args['number']}" if "number" in span.args else ""
    rates = "".join(f", {value:.1f} {unit}" for value, unit in zip(
        (span.args.get(k, 0) / max(span.end - span.begin, 1e-3) / 1e3 for k in ("flops", "bytes")), ("GFLOP/s", "GB/s")) if value)
    title = escape(f"{span.name}{number}: {(span.end - span.begin) / 1e3:.3f} ms{rates}")
    return width, (f'<rect class="f{COLOURS.get(span.kind, 5)}" x="{LEFT + (begin - step.begin) * scale:.1f}" y="{y}" width="{width:.1f}" '
            f'height="{BAR - 1}"><title>{title}</title></rect>')


def picture(traces):
    """Returns one step of all ranks: the last one that was traced whole."""
    number = max(s.args["number"] for t in traces for s in t.steps)
    shown = [(t, s) for t in traces[:MOST_RANKS] for s in t.steps if s.args["number"] == number]
    # All ranks in one scale of time.
    begin, end = min(s.begin for _, s in shown), max(s.end for _, s in shown)
    y, labels, bars = 4, [], []
    for trace, step in shown:
        whole = step._replace(begin=begin, end=end)
        for label, rows in lanes(trace, step):
            labels.append(f'<text x="0" y="{y + BAR - 3}">rank {trace.rank}, {escape(label)}</text>')
            for row in rows:
                bars += filter(None, (bar(span, whole, y) for span in row))
                y += BAR
            y += 3
        y += GAP
    bars = "".join(text for _, text in sorted(bars, key=lambda b: -b[0])[:MOST_BARS])
    legend = "".join(f'<li><i class="swatch f{COLOURS[kind]}"></i><span>{text}</span></li>' for kind, text in LEGEND)
    return (f'<div class="scroll"><svg class="trace" viewBox="0 0 {WIDTH} {y}" role="img" aria-label="step {number}">{"".join(labels)}'
            f'{bars}</svg></div><ul class="legend wide">{legend}</ul><p class="muted">Step {number}, {(end - begin) / 1e3:.2f} ms. Point '
            f'at a bar to read its name and time.</p>')


def trace(run, table):
    """Returns the section; "" without a trace. `table` makes tables."""
    traces = newest(run)
    if not traces:
        return ""
    head, whole = traces[0].head, sum(t.seconds() for t in traces) * 1e6
    steps = ", ".join(f"{step}: {ms:.2f} ms" for step, ms in sorted(trace_file.steps_of(traces).items()))
    sums = table(["span of the main threads", "kind", "count", "self, ms", "share", "GFLOP/s", "GB/s"],
                 sums_rows(trace_file.main_sums(traces), whole), "numbers")
    gpus = trace_file.device_sums(traces)
    if gpus:
        sums += table(["op of the GPUs", "kind", "count", "ms", "share", "GFLOP/s", "GB/s"], sums_rows(gpus, whole), "numbers")
    waits = []
    for t in traces:
        w = trace_file.waits_of(t)
        waits.append([str(t.rank), *(short(w[key]) for key in ("exchanges", "exposed", "other waits"))])
    sums += table(["rank", "exchanges ran, ms", "only waited for them, ms", "other waits, ms"], waits, "numbers")
    return (f'<p>Steps {head["first_step"]} to {head["last_step"]} of {len(traces)} of {head["ranks"]} ranks. {steps}. '
            f'<code>tools/trace RUN</code> writes a file of all ranks for ui.perfetto.dev.</p>'
            f'{picture(traces)}{sums}')
