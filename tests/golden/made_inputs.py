# SPDX-License-Identifier: Apache-2.0
"""Made-up inputs: images, labels, parameters, photographs, captions. Each is a function of a seed."""
from published import u  # before JAX

import jax
import ml_dtypes
import numpy as np

from golden_files import names


def make_images(rng, b, h, w):
  """[b,h,w,3] float32 in [-1,1): colour ramps, a disc or a box, noise; every value is a multiple of 1/32."""
  y, x = np.mgrid[:h, :w].astype(np.float64)
  out = np.zeros((b, h, w, 3), np.float32)
  for i in range(b):
    a, c = rng.uniform(-1, 1, (2, 3)), rng.uniform(40, 215, 3)
    img = c + a[0] * (x[..., None] - w / 2) * 120 / w + a[1] * (y[..., None] - h / 2) * 120 / h
    cy, cx, r = rng.uniform(0, h), rng.uniform(0, w), rng.uniform(2, h / 2)
    inside = (y - cy)**2 + (x - cx)**2 < r * r if i % 2 else (abs(y - cy) < r) & (abs(x - cx) < r / 2)
    img[inside] = rng.uniform(0, 255, 3)
    out[i] = np.clip(np.floor((img + rng.normal(0, 12, img.shape)) / 4), 0, 63) / 32 - 1
  return out


def make_labels(rng, b, l, vocab, lengths):
  """[b,l] int32: words 3..vocab-1, then id 1 (end), then id 0 (pad); length 0 is an all-pad row."""
  out = np.zeros((b, l), np.int32)
  for i in range(b):
    n = lengths[i % len(lengths)]
    out[i, :n] = rng.integers(3, vocab, n)
    if n:
      out[i, n - 1] = 1
  return out


def make_params(model, image, labels, seed):
  """Published init, then every zero-initialised or near-zero tensor and LayerNorm replaced by seeded values; bf16-rounded.

  Order of draws: paths sorted, one numpy default_rng(seed). LayerNorm scale 1+0.2n, bias of anything 0.1n,
  LogitsDense/kernel n/sqrt(D); all other tensors keep the init of jax PRNGKey(seed).
  """
  shapes = model.init(jax.random.PRNGKey(seed), image, labels)["params"]
  rng, out = np.random.default_rng(seed), []
  for name, v in sorted(names(shapes).items()):
    v = np.asarray(v, np.float32)
    if name.endswith("scale"):
      v = 1 + 0.2 * rng.standard_normal(v.shape)
    elif name.endswith("bias"):
      v = 0.1 * rng.standard_normal(v.shape)
    elif name.endswith("LogitsDense/kernel"):
      v = rng.standard_normal(v.shape) / np.sqrt(v.shape[0])
    out.append((name, v.astype(ml_dtypes.bfloat16).astype(np.float32)))
  return u.tree_unflatten(out)


def photo(seed, h, w, ch=3):
  """A made-up picture as uint8: smooth ramps, waves, boxes, a little noise."""
  rng = np.random.default_rng(seed)
  y, x = np.mgrid[:h, :w].astype(np.float64)
  img = np.stack([128 + 70 * np.sin(x / w * 6 + i) + 50 * np.cos(y / h * (4 + i) + i) for i in range(ch)], -1)
  for _ in range(6):
    a, b = rng.integers(0, h), rng.integers(0, w)
    img[a:a + rng.integers(2, h // 2 + 3), b:b + rng.integers(2, w // 2 + 3)] = rng.uniform(0, 255, ch)
  return np.clip(img + rng.normal(0, 6, img.shape), 0, 255).astype(np.uint8)


def sentences():
  """About 200 made-up captions."""
  size = ["small", "large", "tiny", "long", "round", "heavy", "broken", "quiet", "narrow", "shiny"]
  col = ["red", "blue", "green", "yellow", "brown", "white", "striped", "purple", "orange", "grey", "golden"]
  thing = ["bicycle", "teapot", "dog", "boat", "lantern", "chair", "kite", "cat", "tractor", "umbrella", "violin", "mountain goat",
           "newspaper", "elephant", "piano", "railway carriage", "sunflower", "lighthouse", "penguin", "sandwich", "helicopter"]
  verb = ["leaning against", "standing near", "hidden behind", "floating above", "sleeping under", "painted on", "pushed towards",
          "reflected in", "resting beside", "jumping over"]
  place = ["a wooden fence", "the old bridge", "a stone wall", "two apple trees", "the harbour at night", "a window", "an empty street",
           "the market square", "a frozen lake", "a crowded kitchen table", "the museum entrance", "a field of wheat"]
  rng, out = np.random.default_rng(61), []
  while len(out) < 190:
    w = lambda x: x[rng.integers(len(x))]
    s = [f"A {w(size)} {w(col)} {w(thing)} {w(verb)} {w(place)}.", f"{w(thing)} and {w(thing)}, {w(col)} on {w(col)}",
         f"Photo of {rng.integers(2, 12)} {w(col)} {w(thing)}s {w(verb)} {w(place)}",
         f"The {w(thing)} is {w(size)}, isn't it?"][rng.integers(4)]
    if s not in out:
      out.append(s)
  return out + ["naïve café scene", "Straße im Regen", "ÄÖÜ äöü", "1,234.50 metres", "a/b - c (d)", "e-mail: no@where", "¿qué es?",
                "猫 と 犬", "50% off!", "rock'n'roll"]
