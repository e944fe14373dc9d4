# SPDX-License-Identifier: Apache-2.0
"""Shows images with their captions, cross-attention maps and confusions, from the files that evaluators wrote.

RUN/captions.jsonl has an object a line: `image` (a sample's number in the evaluator's data, or a path), `caption`, and if
known `references`, `eval`, `step`, scores as numbers, and `words` with `attention` (for each word a matrix [rows, columns]
over the patches). RUN/confusions.json has an object, or a list of them: `eval`, `classes` [n] and `counts` [n, n], a row
for each true class and a column for each predicted one.
"""
import base64
import html
import io
import json
import os
import tempfile

import h5py
import numpy as np
from PIL import Image

import program
from console import Failure
from report_page.charts import short

SHOWN = 16                  # captions of a run; a third each are the best, the worst, and evenly spaced
THUMB = 128                 # largest side of an image on the page, in pixels
MOST_EXAMPLES = 4096        # as show.examples allows
MOST_BYTES = 256 << 20      # of images that --mode show may write to reach a sample
MOST_WORDS = 16             # attention maps of a caption
LISTED = 12                 # most frequent confusions in words
MATRIX = 480                # side of a drawn matrix, in its own units
NO_SCORES = {"image", "step", "position", "attempt"}    # numbers in a row of captions that are no scores


# ------------------------------------------------------------------------------------------------------------- captions

def checked(row):
    """Returns the row without members of other types than this module reads."""
    types = {"eval": str, "data": str, "step": int, "image": (int, str), "references": (str, list), "words": list, "attention": list}
    return {name: value for name, value in row.items() if isinstance(value, types.get(name, object))}


def caption_rows(folder):
    """Returns the rows of captions.jsonl of the newest step of each evaluator."""
    rows = []
    try:
        with open(os.path.join(folder, "captions.jsonl"), encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue    # a line that is being written
                if isinstance(row, dict) and isinstance(row.get("caption"), str):
                    rows.append(checked(row))
    except OSError:
        return []
    newest = {}
    for row in rows:
        newest[row.get("eval")] = max(newest.get(row.get("eval"), -1), row.get("step", -1))
    return [row for row in rows if row.get("step", -1) == newest[row.get("eval")]]


def scores_of(row):
    """Returns the numbers of a row that are scores: {"cider": 1.5}."""
    return {name: value for name, value in row.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and name not in NO_SCORES}


def cider(row):
    """Returns the caption's CIDEr-D, or None."""
    return next((row[name] for name in ("cider", "cider_d") if isinstance(row.get(name), (int, float))), None)


def chosen(rows):
    """Returns [(why, row)]: the best and worst by CIDEr-D if it is known, and evenly spaced ones."""
    count = SHOWN // 3
    scored = sorted((i for i, row in enumerate(rows) if cider(row) is not None), key=lambda i: -cider(rows[i]))
    if len(scored) <= SHOWN:
        return [("", rows[i]) for i in np.unique(np.linspace(0, len(rows) - 1, min(SHOWN, len(rows))).round().astype(int))]
    ends = set(scored[:count] + scored[-count:])
    others = [i for i in range(len(rows)) if i not in ends]
    middle = [others[i] for i in np.linspace(0, len(others) - 1, min(len(others), SHOWN - 2 * count)).round().astype(int)]
    return ([("highest CIDEr-D", rows[i]) for i in scored[:count]] + [("evenly spaced", rows[i]) for i in middle]
            + [("lowest CIDEr-D", rows[i]) for i in scored[-count:]])


class Images:
    """Finds the images of rows: files by path, and samples by number with `trainer --mode show`."""

    def __init__(self, run):
        self.run = run
        self.samples = {}       # of a data set: arrays u8 [n, H, W, 3]
        self.problem = ""

    def data_of(self, row):
        """Returns the name of the data set of the row's evaluator; "" if the deck does not say it."""
        tables = self.run.deck.get("eval", {})
        table = tables.get(row.get("eval")) or next((t for t in tables.values() if t.get("kind") == "captioning"), {})
        return row.get("data") or table.get("data", "")

    def prepare(self, rows):
        """Reads all samples that the rows number, in one call for each data set."""
        wanted = {}
        for row in rows:
            if isinstance(row.get("image"), int) and (data := self.data_of(row)):
                wanted[data] = max(wanted.get(data, 0), row["image"] + 1)
        side = self.run.deck.get("model", {}).get("image_size", 224)
        most = min(MOST_EXAMPLES, MOST_BYTES // (side * side * 3 * 4))
        for data, count in wanted.items():
            try:
                self.samples[data] = self.read(data, min(count, most))
            except (Failure, OSError, KeyError) as error:
                self.problem = f"the images of data.{data} could not be read: {str(error).splitlines()[-1]}"

    def read(self, data, count):
        deck = os.path.join(self.run.folder, "deck.resolved.toml")
        with tempfile.TemporaryDirectory(prefix="report_") as folder:
            program.run([deck, "--mode", "show", "--dir", folder, "--set", f"show.examples={count}", "--set",
                         f"show.data={json.dumps(data)}"], quiet=True)
            with h5py.File(os.path.join(folder, "show.h5")) as file:
                pixels = file["model/image"][()].astype(np.float32)
        low, high = float(pixels.min()), float(pixels.max())
        scaled = (pixels + 1) / 2 if low < 0 else pixels / 255 if high > 1 else pixels
        return (np.clip(scaled, 0, 1) * 255 + 0.5).astype(np.uint8)

    def of(self, row):
        """Returns a PIL image, or None."""
        name = row.get("image")
        if isinstance(name, int):
            samples = self.samples.get(self.data_of(row), ())
            return Image.fromarray(samples[name]) if 0 <= name < len(samples) else None
        for folder in (self.run.folder, ""):
            path = os.path.join(folder, name) if isinstance(name, str) else ""
            if path and os.path.isfile(path):
                try:
                    with Image.open(path) as image:
                        return image.convert("RGB")
                except OSError:
                    return None
        return None


def encoded(image, kind="PNG", **options):
    """Returns the image as the address of a CSS url()."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(out.getvalue()).decode()}"


def thumbnail(image):
    image = image.copy()
    image.thumbnail((THUMB, THUMB))
    return encoded(image) if max(image.size) <= 64 else encoded(image, "JPEG", quality=82)


def veil(weights):
    """Returns a picture [rows, columns] that is clear where the attention is highest, and dark where there is none."""
    weights = np.asarray(weights, np.float64)
    alpha = 0.85 * (1 - weights / max(weights.max(), 1e-12))
    pixels = np.zeros((*weights.shape, 2), np.uint8)
    pixels[..., 1] = (255 * np.clip(alpha, 0, 1) + 0.5).astype(np.uint8)
    return encoded(Image.fromarray(pixels, "LA"))


def attention(row):
    """Returns a picture for each word with its map over the image; "" without maps."""
    words, maps = row.get("words"), row.get("attention")
    if not isinstance(words, list) or not isinstance(maps, list) or len(words) != len(maps):
        return ""
    try:
        pictures = [(word, veil(weights)) for word, weights in zip(words[:MOST_WORDS], maps)]
    except (ValueError, TypeError, IndexError):
        return ""       # no matrix of numbers
    items = "".join(f'<li><i style="--veil:url({url})"></i>{html.escape(str(word))}</li>' for word, url in pictures)
    return f'<ul class="attention" aria-label="attention per word">{items}</ul>'


def shot(why, row, image):
    """Returns one image with its captions."""
    picture = f' style="--image:url({thumbnail(image)})"' if image is not None else ""
    references = row.get("references") or []
    references = [references] if isinstance(references, str) else references
    truths = "".join(f"<li>{html.escape(str(text))}</li>" for text in references[:5])
    scores = " · ".join(f"{html.escape(name)} {short(float(value))}" for name, value in scores_of(row).items())
    maps = attention(row) if image is not None else ""
    thumb = '<i class="thumb"></i>' if image is not None else '<i class="thumb none">no image</i>'
    return (f'<article class="shot"{picture}>{thumb}<div><p class="said">{html.escape(row["caption"]) or "<em>empty</em>"}</p>'
            f'<ul class="truth">{truths}</ul><p class="muted">{html.escape(str(row.get("image", "")))}'
            f'{" · " if scores else ""}{scores}{" · " if why else ""}{why}</p></div>{maps}</article>')


def captions(run):
    """Returns the section of a run; "" without captions."""
    rows = caption_rows(run.folder)
    if not rows:
        return ""
    selected = chosen(rows)
    images = Images(run)
    images.prepare([row for _, row in selected])
    shots = "".join(shot(why, row, images.of(row)) for why, row in selected)
    note = f'<p class="muted">{html.escape(images.problem)}</p>' if images.problem else ""
    return (f'<p class="muted">{len(selected)} of {len(rows):,} images of <code>captions.jsonl</code>: the generated caption, then the '
            f'true ones.</p>{note}<div class="shots">{shots}</div>')


# ------------------------------------------------------------------------------------------------------------- confusions

def confusion_tables(folder):
    """Returns [(evaluator, classes, counts)] of confusions.json."""
    try:
        with open(os.path.join(folder, "confusions.json"), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return []
    tables = []
    for table in found if isinstance(found, list) else [found]:
        try:
            classes, counts = [str(name) for name in table["classes"]], np.asarray(table["counts"], np.float64)
        except (KeyError, TypeError, ValueError):
            continue
        if counts.shape == (len(classes),) * 2 and len(classes):
            tables.append((str(table.get("eval", "")), classes, counts))
    return tables


def matrix(classes, counts):
    """Returns a square with a cell for each pair that occurs; the darker, the larger its share of the true class."""
    size = MATRIX / len(classes)
    rows = np.maximum(counts.sum(axis=1), 1)
    cells = []
    for true, predicted in zip(*np.nonzero(counts)):
        share = counts[true, predicted] / rows[true]
        label = f"{classes[true]} taken for {classes[predicted]}: {counts[true, predicted]:g} of {rows[true]:g}"
        cells.append(f'<rect class="{"hit" if true == predicted else "miss"}" x="{predicted * size:.2f}" y="{true * size:.2f}" '
                     f'width="{size:.2f}" height="{size:.2f}" fill-opacity="{0.15 + 0.85 * share:.2f}">'
                     f'<title>{html.escape(label)}</title></rect>')
    return (f'<svg class="matrix" viewBox="0 0 {MATRIX} {MATRIX}" role="img" aria-label="confusions: rows are true classes, columns '
            f'predicted ones">{"".join(cells)}</svg>')


def confusions(run):
    """Returns the section of a run; "" without confusions."""
    out = []
    for name, classes, counts in confusion_tables(run.folder):
        right, whole = float(np.trace(counts)), float(counts.sum())
        wrong = counts - np.diag(np.diag(counts))
        order = np.argsort(-wrong, axis=None, kind="stable")[:LISTED]
        pairs = [np.unravel_index(i, wrong.shape) for i in order if wrong.flat[i] > 0]
        rows = "".join(f"<tr><td>{html.escape(classes[t])}</td><td>{html.escape(classes[p])}</td>"
                       f"<td>{wrong[t, p]:g} of {counts[t].sum():g}</td></tr>" for t, p in pairs)
        out.append(f'<h4>{html.escape(name)}</h4><p class="muted">{len(classes)} classes; {right:g} of {whole:g} right '
                   f'({100 * right / max(whole, 1e-12):.1f} %). Rows are true classes, columns predicted ones.</p>'
                   f'<div class="confusions">{matrix(classes, counts)}<div class="scroll"><table><thead><tr><th>true</th><th>taken for</th>'
                   f'<th>images</th></tr></thead><tbody>{rows}</tbody></table></div></div>')
    return "".join(out)
