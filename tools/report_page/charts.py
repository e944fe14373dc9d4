# SPDX-License-Identifier: Apache-2.0
"""Draws panels of curves as inline SVG, with the numbers that the page's script shows under the pointer."""
import html
import math

import numpy as np

import curves
from console import duration, short

WIDTH, HEIGHT = 380, 226                            # of a panel, in its own units
LEFT, RIGHT, TOP, BOTTOM = 46, 372, 8, 202          # edges of the plot
COLOURS, DASHES = 8, ["", "6 3", "2 2", "8 3 2 3"]  # colours are in page.css; dashes distinguish runs without colour
MOST_POINTS, LEAST_POINTS, ALL_POINTS = 2000, 100, 60_000   # points of a curve, and of all curves together
# Columns of training that are no curves, or that have a panel of their own.
NO_CURVES = {"step", "attempt", "skipped", "epoch", "examples_seen", "progress", "core_hours", "uptime_s", "examples_s_core",
             "first_step_s", "loss", "loss_ar", "loss_parallel", "accuracy", "l2_grads", "examples_s", "ms", "compute_ms", "data_ms",
             "comm_ms", "mfu", "hfu", "slow_rank", "slow_phase", "slow_chronic"}
STEP_PARTS = (("ms", "whole step"), ("compute_ms", "computing"), ("data_ms", "waiting for data"), ("comm_ms", "communication"))
TITLES = {"l2_params": "norm of the parameters", "l2_updates": "norm of the updates", "clip": "factor of clipping",
          "host_mib": "memory of rank 0, its peak", "host_anon_mib": "memory of rank 0, without files",
          "host_file_mib": "mapped files of rank 0", "host_shared_mib": "memory that rank 0 shares",
          "host_available_mib": "memory that its node has left",
          "skipped_updates": "steps without an update", "bad_samples": "bad samples",
          "data_mean_ms": "wait for data, mean of the ranks", "data_max_ms": "wait for data, slowest rank",
          "slow_ms": "cost of a slow rank",
          "loss_per_token": "training loss per token", "loss_scale": "loss scale"}
ONLY_IF_ANY = {"skipped_updates", "bad_samples", "slow_ms"}    # no panel for zeros alone
OF_WINDOWS = {"data_mean_ms", "data_max_ms", "slow_ms"}         # a short run has one value of them, which is no curve


def by_unit(panel, run):
    """Returns a panel for each unit of an evaluator's measures; none if the evaluator ran once, because a table has its values."""
    table = panel.title.replace("evaluator ", "eval/", 1)
    if table == panel.title or not any(len(curve[2]) > 1 for curve in panel.curves):
        return [panel] if table == panel.title else []
    parts = {}
    for curve in panel.curves:
        unit = run.unit(table, curve[1])[0]
        unit = "" if unit == "1" else unit
        parts.setdefault(unit, curves.Panel(panel.title, unit)).curves.append(curve)
    for part in list(parts.values())[1:]:
        part.title += f": {', '.join(part.labels())}"
    return list(parts.values())


def panels_of(runs):
    """Returns the panels of tools/plot_metrics, then those of the parts of a step and of all other measures."""
    read = [run.metrics for run in runs]
    panels = curves.panels_of(read, {})
    if len(runs) == 1:
        panels = [part for panel in panels for part in by_unit(panel, runs[0])]
    more = []
    parts = curves.Panel("time of a step", "ms", zero=True, smoothed="median")
    use = curves.Panel("utilisation of the peak", "share", zero=True, smoothed="median")
    for run in read:
        for column, label in STEP_PARTS:
            parts.add(run, label, run.train, column)
        for column in ("mfu", "hfu"):
            use.add(run, column, run.train, column)
    more += [parts, use]
    for column in sorted({name for run in read for name in run.train}):
        if column in NO_CURVES or column.startswith(("schedule", "epoch[", "examples_seen[", "core_hours[", "memory_mib[")):
            continue
        if column in ONLY_IF_ANY and not any(np.any(np.nan_to_num(run.train.get(column, 0))) for run in read):
            continue
        unit = next((run.unit("train", column)[0] for run in runs if run.unit("train", column)[0] not in ("", "1")), "")
        panel = curves.Panel(TITLES.get(column, column), unit, log=column.startswith("l2_"), smoothed="mean")
        for run in read:
            if column not in OF_WINDOWS or curves.count(run.train, column) > 1:
                panel.add(run, column, run.train, column)
        more.append(panel)
    more = [panel for panel in more if panel.curves]
    return panels + (more if len(runs) == 1 else [part for panel in more for part in panel.one_per_label()])


def picked(count, most):
    """Returns the indices of at most `most` of `count` rows, evenly spaced, with the first and the last."""
    return np.arange(count) if count <= most else np.unique(np.linspace(0, count - 1, most).round().astype(int))


def extremes(value, most):
    """Returns indices in order: of all values, or of the least and the largest of each of most / 2 stretches."""
    if len(value) <= most:
        return np.arange(len(value))
    borders = np.linspace(0, len(value), most // 2 + 1).astype(int)
    found = {0, len(value) - 1}
    for begin, end in zip(borders[:-1], borders[1:]):
        found |= {begin + int(np.argmin(value[begin:end])), begin + int(np.argmax(value[begin:end]))}
    return np.array(sorted(found))


def ticks(low, high, count=5):
    """Returns round numbers between low and high, at most about `count`."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(raw))
    width = next(unit * k for k in (1, 2, 2.5, 5, 10) if unit * k >= raw * 0.999)
    return [width * i for i in range(math.ceil(low / width - 1e-9), math.floor(high / width + 1e-9) + 1)]


def log_ticks(low, high):
    """Returns 1, 2 and 5 times powers of ten between low and high; powers alone if there are many."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [k * 10.0 ** e for e in exponents for k in factors if low * 0.999 <= k * 10.0 ** e <= high * 1.001]
        if len(found) <= 7:
            return found
    return found[::math.ceil(len(found) / 7)]


class Scale:
    """Maps steps and values to the panel's units."""

    def __init__(self, panel, steps, values, strong):
        self.x0, self.x1 = float(steps.min()), float(steps.max())
        if self.x0 == self.x1:
            self.x0, self.x1 = self.x0 - 1, self.x1 + 1
        low, high = float(values.min()), float(values.max())
        self.log = panel.log and low > 0 and high / low > 5
        if panel.zero and low >= 0:
            # Single slow steps may leave a panel of medians.
            low, high = 0.0, max(1.25 * float(strong.max()) if panel.smoothed == "median" else 1.05 * high, 1e-12)
        elif self.log:
            low, high = low / 1.1, high * 1.1
        else:
            margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
            low, high = low - margin, high + margin
        self.y0, self.y1 = low, high

    def x(self, step):
        return LEFT + (RIGHT - LEFT) * (np.asarray(step, float) - self.x0) / (self.x1 - self.x0)

    def y(self, value):
        low, high, value = self.y0, self.y1, np.asarray(value, float)
        if self.log:
            low, high, value = math.log(low), math.log(high), np.log(np.maximum(value, 1e-300))
        # A curve that leaves the panel runs along its edge.
        return np.clip(BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low), TOP, BOTTOM)

    def value_ticks(self):
        return log_ticks(self.y0, self.y1) if self.log else ticks(self.y0, self.y1)

    def step_ticks(self):
        return [t for t in ticks(self.x0, self.x1) if t == round(t)]


def path_of(scale, step, value):
    """Returns the `d` of a path."""
    x, y = scale.x(step), scale.y(value)
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y))


def step_text(step):
    return f"{step / 1e6:g}M" if step >= 1e6 else f"{step / 1e3:g}k" if step >= 10_000 else f"{step:g}"


def axes(scale):
    """Returns the grid with its numbers."""
    out = []
    for value in scale.value_ticks():
        y = float(scale.y(value))
        out.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{RIGHT}"/>'
                   f'<text class="y" x="{LEFT - 5}" y="{y + 3.5:.1f}">{short(value)}</text>')
    for step in scale.step_ticks():
        x, text = float(scale.x(step)), step_text(step)
        middle = min(x, WIDTH - 3.4 * len(text))    # the whole number is within the panel
        out.append(f'<path class="grid" d="M{x:.1f} {BOTTOM}v4"/><text class="x" x="{middle:.1f}" y="{BOTTOM + 16}">{text}</text>')
    return "".join(out) + f'<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/>'


class Charts:
    """Draws panels. `payload` gets the numbers for the script, by panel."""

    def __init__(self, runs, panels):
        self.runs = runs
        self.names = curves.run_names([run.metrics for run in runs])
        count = sum(len(panel.curves) for panel in panels)
        self.most = max(LEAST_POINTS, min(MOST_POINTS, ALL_POINTS // max(1, count)))
        self.thinned = any(len(curve[2]) > self.most for panel in panels for curve in panel.curves)
        self.payload = []

    def look(self, panel, run, label):
        """Returns the numbers of the colour and of the dashes."""
        if len(self.runs) == 1:
            return panel.labels().index(label) % COLOURS, 0
        index = [r.metrics for r in self.runs].index(run)
        return index % COLOURS, index % len(DASHES)

    def draw(self, panel):
        """Returns the figure of a panel."""
        strong = [curves.smooth(panel, curve) for curve in panel.curves]
        scale = Scale(panel, np.concatenate([c[2] for c in panel.curves]), np.concatenate([c[3] for c in panel.curves]),
                      np.concatenate([value for _, value in strong]))
        pale, lines, legend, numbers = [], [], [], []
        for (run, label, step, value), (mean_step, mean) in zip(panel.curves, strong):
            colour, dashes = self.look(panel, run, label)
            name = label if len(self.runs) == 1 else self.names[[r.metrics for r in self.runs].index(run)]
            smoothed = panel.smoothed is not None and not np.array_equal(mean, value)
            if smoothed:
                at = extremes(value, self.most)
                pale.append(f'<path class="c{colour} pale" d="{path_of(scale, step[at], value[at])}"/>')
            at = picked(len(mean), self.most // 2 if smoothed else self.most)
            style = f' stroke-dasharray="{DASHES[dashes]}"' if dashes else ""
            lines.append(f'<path class="c{colour} line"{style} d="{path_of(scale, mean_step[at], mean[at])}"/>')
            if len(at) <= 30:
                dots = zip(scale.x(mean_step[at]), scale.y(mean[at]))
                lines += [f'<circle class="c{colour} dot" cx="{x:.1f}" cy="{y:.1f}" r="2.2"/>' for x, y in dots]
            legend.append(f'<li><svg class="key" viewBox="0 0 22 8"><path class="c{colour} line"{style} d="M0 4H22"/></svg>'
                          f'<span>{html.escape(name)}</span> <b>{short(value[-1])}</b></li>')
            at = picked(len(value), self.most)
            row = {"n": name, "c": colour, "x": step[at].tolist(), "y": [float(f"{v:.7g}") for v in value[at]]}
            if smoothed:
                row["m"] = [float(f"{v:.5g}") for v in np.interp(step[at], mean_step, mean)]
            numbers.append(row)
        self.payload.append({"t": panel.title, "x": [scale.x0, scale.x1], "y": [scale.y0, scale.y1], "log": bool(scale.log), "c": numbers,
                             "s": panel.smoothed or ""})
        unit = f' <span class="unit">{html.escape(panel.unit)}</span>' if panel.unit else ""
        title = html.escape(panel.title)
        return (f'<figure class="panel" data-panel="{len(self.payload) - 1}"><figcaption>{title}{unit}</figcaption>'
                f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" aria-label="{title} against the step">'
                f'{axes(scale)}{"".join(pale)}{"".join(lines)}<g class="marks"></g></svg>'
                f'<ul class="legend">{"".join(legend)}</ul></figure>')


def time_bar(parts):
    """Returns a stacked bar of [(part, seconds)] with a legend of seconds and shares."""
    whole = sum(seconds for _, seconds in parts)
    if whole <= 0:
        return '<p class="muted">No time has been counted yet.</p>'
    x, pieces, rows = 0.0, [], []
    for index, (name, seconds) in enumerate(parts):
        width, label = 1000 * seconds / whole, f"{name}: {duration(seconds)}, {100 * seconds / whole:.1f} %"
        pieces.append(f'<rect class="f{index % COLOURS}" x="{x:.2f}" y="0" width="{width:.2f}" height="30">'
                      f'<title>{html.escape(label)}</title></rect>')
        rows.append(f'<li><i class="swatch f{index % COLOURS}"></i><span>{html.escape(name)}</span> <b data-seconds="{seconds:.3f}">'
                    f'{duration(seconds)}</b> <span class="muted">{100 * seconds / whole:.1f} %</span></li>')
        x += width
    return (f'<svg class="bar" viewBox="0 0 1000 30" preserveAspectRatio="none" role="img" aria-label="time of the job">'
            f'{"".join(pieces)}</svg><ul class="legend wide">{"".join(rows)}</ul>')


def small_bar(parts, whole, label):
    """Returns a bar of [(part, seconds)] without a legend, whose length is its share of `whole` seconds."""
    x, pieces = 0.0, []
    for index, (name, seconds) in enumerate(parts):
        width = 1000 * seconds / max(whole, 1e-9)
        if width > 0:
            pieces.append(f'<rect class="f{index % COLOURS}" x="{x:.2f}" y="0" width="{width:.2f}" height="14">'
                          f'<title>{html.escape(name)}: {duration(seconds)}</title></rect>')
        x += width
    return (f'<svg class="bar small" viewBox="0 0 1000 14" preserveAspectRatio="none" role="img" aria-label="{html.escape(label)}">'
            f'{"".join(pieces)}</svg>')
