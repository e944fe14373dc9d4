# SPDX-License-Identifier: Apache-2.0
"""Draws how the values of tensors change over the steps, from the groups /histograms and /rms of metrics.h5.

/histograms/KIND/TENSOR has `step`, `rms`, ... with a value per row, and `bucket`, `low`, `high` (number and limits of each
bucket that has values) and `counts` [rows, buckets]. /rms/KIND has a column per tensor. KIND: weights, gradients, updates,
activations.
"""
import html
import math
import os

import h5py
import numpy as np
from PIL import Image

import curves
from console import short
from report_page.captions import encoded, spaced
from report_page.charts import picked

MOST_STEPS = 240        # columns of a picture
MOST_SHOWN = 40         # histograms of a kind, evenly spaced
MOST_ROWS = 200         # tensors of a table of root mean squares, evenly spaced
COLOUR = (31, 104, 180)
KINDS = ("weights", "gradients", "updates", "activations")


def picture(shares, title):
    """Returns an image of shares [rows, columns] from 0 to 1; 0 is clear."""
    pixels = np.zeros((*shares.shape, 4), np.uint8)
    pixels[..., :3] = COLOUR
    pixels[..., 3] = (255 * np.clip(shares, 0, 1) + 0.5).astype(np.uint8)
    return f'<img src="{encoded(Image.fromarray(pixels, "RGBA"), optimize=True)}" alt="{html.escape(title)}">'


def rows_of(numbers):
    """Returns the numbers of the buckets to draw, the largest values first: those with values, and those between them that
    have the same sign."""
    parts = [[n for n in numbers if n < 0], [n for n in numbers if n == 0], [n for n in numbers if n > 0]]
    return [n for part in reversed(parts) if part for n in range(max(part), min(part) - 1, -1)]


def heat_map(name, group):
    """Returns the histograms of a tensor as a figure: steps to the right, values upwards."""
    step, counts, numbers = group["step"][()], group["counts"][()], group["bucket"][()].tolist()
    rows = rows_of(numbers)
    columns = picked(len(step), MOST_STEPS)
    place = {number: i for i, number in enumerate(rows)}
    totals = np.maximum(counts.sum(axis=1), 1)
    shares = np.zeros((len(rows), len(columns)))
    for i, number in enumerate(numbers):
        shares[place[number]] = counts[columns, i] / totals[columns]
    # A bucket with one value in a million is still seen.
    drawn = np.where(shares > 0, np.clip(1 + np.log10(np.maximum(shares, 1e-12) / shares.max()) / 6, 0.06, 1), 0)
    top, bottom = float(group["high"][-1]), float(group["low"][0])
    facts = f"rms {short(float(group['rms'][-1]))}" if "rms" in group and np.isfinite(group["rms"][-1]) else ""
    if bad := int(np.nan_to_num(group["nonfinite"][()]).sum()) if "nonfinite" in group else 0:
        facts += f", {bad:,} values not finite in all"
    title = f"{name}: values from {short(bottom)} to {short(top)}, steps {step[0]:,} to {step[-1]:,}"
    return (f'<figure class="heat"><figcaption title="{html.escape(name)}">{html.escape(name)}</figcaption>'
            f'<div><span>{short(top)}</span><span>{short(bottom)}</span></div>{picture(drawn, title)}'
            f'<p class="muted">steps {step[0]:,} to {step[-1]:,}; {facts}</p></figure>')


def histograms_of(file, kind):
    """Returns the figures of a kind; "" without any."""
    root, found = file.get(f"histograms/{kind}"), []
    if not isinstance(root, h5py.Group):
        return ""
    root.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Group) and "counts" in item else None)
    shown = [found[i] for i in spaced(len(found), MOST_SHOWN)] if found else []
    note = f" {len(shown)} of {len(found):,} tensors." if len(shown) < len(found) else ""
    figures = "".join(heat_map(name, root[name]) for name in shown)
    return f'<h4>{kind}</h4><p class="muted">Steps to the right, values upwards in buckets of half an octave; dark: many values.' \
           f'{note}</p><div class="heats">{figures}</div>' if figures else ""


def roots_of(file, kind):
    """Returns a table of the root mean squares of a kind, with a strip of its course for each tensor."""
    table = curves.read_group(file[f"rms/{kind}"]) if isinstance(file.get(f"rms/{kind}"), h5py.Group) else {}
    names = sorted(set(table) - {"step"})
    if not names:
        return ""
    columns = picked(len(table["step"]), MOST_STEPS)
    logs = {name: np.log10(np.maximum(table[name][columns], 1e-45)) for name in names}
    finite = np.concatenate([column[np.isfinite(column) & (column > -45)] for column in logs.values()])
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (-1.0, 0.0)
    rows = []
    for name in [names[i] for i in spaced(len(names), MOST_ROWS)]:
        shares = np.nan_to_num((logs[name] - low) / max(high - low, 1e-9), nan=0, posinf=1, neginf=0)
        values = [v for v in table[name] if not math.isnan(v)] or [math.nan]
        shown = html.escape(name.replace("~", "/"))
        rows.append(f"<tr><td>{shown}</td><td class=\"strip\">{picture(0.08 + 0.92 * shares[None], shown)}</td>"
                    f"<td>{short(float(values[0]))}</td><td>{short(float(values[-1]))}</td></tr>")
    return (f'<h4>root mean square: {kind}</h4><p class="muted">Dark: {short(10 ** high)}, pale: {short(10 ** low)}, on a logarithmic '
            f'scale.</p><div class="scroll"><table class="numbers"><thead><tr><th>tensor</th><th>steps {table["step"][0]:,} to '
            f'{table["step"][-1]:,}</th><th>first</th><th>last</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div>')


def tensors(run):
    """Returns the section of a run; "" without rows about tensors."""
    try:
        with curves.open_hdf5(os.path.join(run.folder, "metrics.h5")) as file:
            return "".join(part(file, kind) for part in (roots_of, histograms_of) for kind in KINDS)
    except (OSError, KeyError, RuntimeError):
        return ""
