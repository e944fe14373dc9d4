# SPDX-License-Identifier: Apache-2.0
"""Shows images with their captions, and where the model looked, from the files of the evaluator `captioning`.

RUN/eval/NAME/STEP/captions.jsonl has an object a line, by position in the set: `position`, `key`, `caption`,
`log_likelihood`, `ended`, `references`, and for the first images perhaps `tokens`, whose texts together are the caption, with
`attention` [tokens, rows, columns].
images.npy beside it holds the images of the first positions: u8 [n, height, width, channels].
"""
import base64
import html
import io
import json
import os

import numpy as np
from PIL import Image

from console import short

SHOWN = 24                  # images of an evaluator
LISTED = 24                 # captions without an image, evenly spaced over the others
EARLIER = 6                 # steps before the shown one, evenly spaced
THUMB = 192                 # largest side of an image on the page, in pixels
MOST_WORDS = 24             # attention maps of a caption
MOST_REFERENCES = 5


# ------------------------------------------------------------------------------------------------------------- files

def parsed(line):
    """Returns the row of a line, without members of other types than this module reads; None if it is no row."""
    types = {"position": int, "key": str, "log_likelihood": (int, float), "ended": bool, "references": list, "tokens": list,
             "attention": list}
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("caption"), str):
        return None
    return {name: value for name, value in row.items() if isinstance(value, types.get(name, object))}


def lines_of(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [line for line in file.read().split("\n") if line]  # splitlines() would cut captions at U+2028
    except OSError:
        return []


def images_of(path):
    """Returns the images beside captions.jsonl, as u8 [n, height, width, channels]; n = 0 without any."""
    try:
        images = np.load(os.path.join(os.path.dirname(path), "images.npy"))
    except (OSError, ValueError):
        images = np.zeros(0, np.uint8)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in images.shape:
        return np.zeros((0, 1, 1, 3), np.uint8)
    return images


def spaced(count, most):
    """Returns at most `most` of the numbers below count, evenly spaced, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()


# ------------------------------------------------------------------------------------------------------------- pictures

def encoded(image, kind="PNG", **options):
    """Returns the image as the address of a CSS url()."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(out.getvalue()).decode()}"


def thumbnail(pixels):
    image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0])
    image.thumbnail((THUMB, THUMB))
    return encoded(image) if max(image.size) <= 64 else encoded(image, "JPEG", quality=82)


def veil(weights):
    """Returns a picture [rows, columns] that is clear where the attention is highest, and dark where there is none."""
    alpha = 0.85 * (1 - weights / max(weights.max(), 1e-12))
    pixels = np.zeros((*weights.shape, 2), np.uint8)
    pixels[..., 1] = (255 * np.clip(alpha, 0, 1) + 0.5).astype(np.uint8)
    return encoded(Image.fromarray(pixels, "LA"))


def words_of(tokens, maps):
    """Returns [(word, map)]. A token with a blank in front begins a word; the word's map is the mean over its tokens."""
    words = []
    for token, weights in zip(tokens, maps):
        if words and not token.startswith(" "):
            words[-1][0] += token
            words[-1][1].append(weights)
        else:
            words.append([token, [weights]])
    return [(text.strip(), np.mean(parts, axis=0)) for text, parts in words if text.strip()]


def attention(row):
    """Returns a small picture for each word with its map; "" without maps."""
    tokens = row.get("tokens", [])
    try:
        maps = np.asarray(row.get("attention", []), np.float64)
    except ValueError:
        return ""       # no matrices of one size
    if maps.ndim != 3 or len(maps) != len(tokens) or 0 in maps.shape or not np.isfinite(maps).all():
        return ""
    items = []
    for word, weights in words_of([str(token) for token in tokens], maps)[:MOST_WORDS]:
        down, right = np.unravel_index(np.argmax(weights), weights.shape)
        label = f"{word}: most at row {down + 1} of {weights.shape[0]}, column {right + 1} of {weights.shape[1]}"
        items.append(f'<li tabindex="0" title="{html.escape(label)}"><i style="--veil:url({veil(weights)})"></i>'
                     f'<span>{html.escape(word)}</span></li>')
    return f'<ul class="attention" aria-label="attention to the image for each word">{"".join(items)}</ul>'


# ------------------------------------------------------------------------------------------------------------- page

def truths(row):
    references = [str(text) for text in row.get("references", [])]
    more = f"<li>and {len(references) - MOST_REFERENCES} others</li>" if len(references) > MOST_REFERENCES else ""
    return "".join(f"<li>{html.escape(text)}</li>" for text in references[:MOST_REFERENCES]) + more


def facts(row):
    """Returns what else is known of a caption: its image, how likely it is, and whether it has an end."""
    likely = row.get("log_likelihood")
    key = html.escape(row.get("key", ""))
    image = f'<span title="{key}">{key.rpartition("/")[2]}</span>' if key else ""
    return " · ".join(filter(None, (image, "" if likely is None else f"{short(float(likely))}\u00a0nats",
                                    "" if row.get("ended", True) else "cut at the largest length")))


def shot(row, pixels, before):
    """Returns one image with its captions; `before` holds (step, caption) of earlier steps."""
    height, width = pixels.shape[:2]
    earlier = "".join(f"<tr><td>{step:,}</td><td>{html.escape(text) or '<em>empty</em>'}</td></tr>" for step, text in before)
    if earlier:
        earlier = (f"<details><summary>at earlier steps</summary><table><thead><tr><th>step</th><th>caption</th></tr></thead>"
                   f"<tbody>{earlier}</tbody></table></details>")
    return (f'<article class="shot" style="--image:url({thumbnail(pixels)});--ratio:{width}/{height}"><i class="thumb"></i>'
            f'<div><p class="said">{html.escape(row["caption"]) or "<em>empty</em>"}</p><ul class="truth">{truths(row)}</ul>'
            f'<p class="muted">{facts(row)}</p>{earlier}</div>{attention(row)}</article>')


def captions_at(steps, count):
    """Returns {position: [(step, caption)]} of the first `count` positions."""
    found = {}
    for step, path in steps:
        for line in lines_of(path)[:count]:
            row = parsed(line)
            if row and row.get("position", count) < count:
                found.setdefault(row["position"], []).append((step, row["caption"]))
    return found


def of_evaluator(name, steps):
    """Returns the captions of an evaluator; `steps` holds (step, path of captions.jsonl) in order, the last one is shown."""
    step, path = steps[-1]
    lines, images = lines_of(path), images_of(path)[:SHOWN]
    pictured = [row for line in lines[:len(images)] if (row := parsed(line)) and row.get("position", SHOWN) < len(images)]
    before = captions_at([steps[i] for i in spaced(len(steps) - 1, EARLIER)], len(images))
    shots = "".join(shot(row, images[row["position"]], before.get(row["position"], [])) for row in pictured)
    others = lines[len(images):]
    rows = [row for i in spaced(len(others), LISTED) if (row := parsed(others[i]))]
    listed = "".join(f'<tr><td>{html.escape(row["caption"]) or "<em>empty</em>"}</td><td><ul class="truth">{truths(row)}</ul></td>'
                     f'<td class="muted">{facts(row)}</td></tr>' for row in rows)
    if listed:
        listed = (f'<div class="scroll"><table class="listed"><thead><tr><th>generated</th><th>true</th><th>image</th></tr></thead>'
                  f'<tbody>{listed}</tbody></table></div>')
        listed = f"<details><summary>{len(rows)} of the other {len(others):,} captions</summary>{listed}</details>" if shots else listed
    words = " Point at a word, or tap it, to see where the model looked; a word of several tokens shows their mean." \
        if 'class="attention"' in shots else ""
    return (f'<h4>{html.escape(name)}</h4><p class="muted">{len(lines):,} images at step {step:,}: the generated caption in bold, '
            f'then the true ones.{words}</p><div class="shots">{shots}</div>{listed}')


def captions(run, until=None):
    """Returns the section of a run; "" without captions. `until` is the last step that counts; None: the newest one."""
    return "".join(of_evaluator(name, steps) for name, steps in run.written("captions.jsonl", until).items())
