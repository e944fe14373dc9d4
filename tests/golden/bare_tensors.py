# SPDX-License-Identifier: Apache-2.0
"""Functions of the published code on bare tensors: loss, optimizers, schedules, durations, position tables."""
import json
import os

from published import F, OUT, X64, u, vit  # before JAX

import h5py
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax

from golden_files import LIBVER, finish, names, put, read_tree
from made_inputs import make_labels


def loss_table():
  """weighted_softmax_xent on given logits: all options, an all-pad row, labels outside the vocabulary."""
  path, (b, l, v) = os.path.join(OUT, "loss.h5"), (5, 6, 11)
  if not X64:
    rng = np.random.default_rng(31)
    logits = (rng.standard_normal((b, l, v)) * 4).astype(np.float32)
    logits[3, 0] += 80
    labels = make_labels(rng, b, l, v, [6, 4, 2, 1, 0])
    outside = labels.copy()
    outside[0, 0], outside[0, 1] = v, -1
    with h5py.File(path, "w", libver=LIBVER) as f:
      put(f, "inputs/logits", logits)
      put(f, "inputs/labels", labels)
      put(f, "inputs/labels_outside", outside)
      put(f, "inputs/weights", (labels != 0).astype(np.float32) * np.array([1, 1, .5, 1, 1, 1], np.float32))
  r = {}
  with h5py.File(path) as f:
    logits, weights = f["inputs/logits"][()].astype(F), f["inputs/weights"][()].astype(F)
    for lab in ("labels", "labels_outside"):
      labels = f[f"inputs/{lab}"][()]
      for w in (0, 1):
        for eps in (0.0, 0.1):
          for norm in (0, 1):
            fn = jax.jit(lambda z: u.weighted_softmax_xent(logits=z, labels=labels, weights=weights if w else None,
                                                           label_smoothing=eps, normalize=bool(norm), reduction=False))
            key = f"{lab}/weights{w}_smoothing{eps}_normalize{norm}"
            r[f"{key}/per_example"] = fn(logits)
            r[f"{key}/grad_of_mean"] = jax.grad(lambda z: fn(z).mean())(logits)
  finish(path, r)


TENSORS = {"a_2d": (40, 33), "b_tie": (33, 33), "c_heads_in": (36, 2, 33), "d_heads_out": (2, 33, 34), "e_posemb": (1, 36, 32),
           "f_tall": (33, 2), "g_conv": (4, 3, 2, 40), "h_vector": (50,), "i_heads_bias": (3, 34), "j_scalarlike": (1,)}


def optimizer_tables():
  """Each published gradient transformation fed with given gradients: outputs of 3 steps and the last state."""
  path, n = os.path.join(OUT, "optimizers.h5"), 3
  if not X64:
    rng = np.random.default_rng(32)
    with h5py.File(path, "w", libver=LIBVER) as f:
      for k, s in TENSORS.items():
        g = (rng.standard_normal((n,) + s) * np.exp(rng.normal(0, 1.5, s))).astype(ml_dtypes.bfloat16).astype(np.float32)
        if len(s) == 2:
          g[:, 1] = 0  # a row without gradient
        g[2] *= 20  # a spike
        put(f, f"grads/{k}", g)
        put(f, f"params/{k}", rng.standard_normal(s).astype(ml_dtypes.bfloat16).astype(np.float32))
  with h5py.File(path) as f:
    grads, params = read_tree(f["grads"]), read_tree(f["params"])
  bv = optax.big_vision
  variants = {
      "adafactor": (bv.scale_by_adafactor, {}),
      "adafactor_pretrain": (bv.scale_by_adafactor, dict(beta2_cap=0.999)),
      "adafactor_f32_momentum": (bv.scale_by_adafactor, dict(dtype_momentum="float32")),
      "adafactor_options": (bv.scale_by_adafactor, dict(momentum=None, clipping_threshold=1.0, decay_rate=0.6, beta2_cap=0.5,
                                                        min_dim_size_to_factor=33, eps=1e-8)),
      "adam": (optax.scale_by_adam, {}),
      "adam_options": (optax.scale_by_adam, dict(b1=0.8, b2=0.9, eps=1e-3, eps_root=1e-4, mu_dtype="bfloat16")),
      "momentum_hp": (bv.momentum_hp, {}),
      "momentum_hp_nesterov": (bv.momentum_hp, dict(momentum=0.7, nesterov=True)),
      "clip_by_global_norm": (optax.clip_by_global_norm, dict(max_norm=100.0)),
  }
  only = {"adafactor_pretrain": ["a_2d", "c_heads_in", "h_vector"], "adafactor_f32_momentum": ["a_2d", "h_vector"],
          "momentum_hp_nesterov": ["i_heads_bias"], "adam_options": ["f_tall", "i_heads_bias"], "adam": ["i_heads_bias", "h_vector"],
          "momentum_hp": ["i_heads_bias", "h_vector"], "clip_by_global_norm": ["f_tall", "h_vector"],
          "adafactor_options": ["a_2d", "b_tie", "e_posemb", "h_vector"]}
  r = {}
  for v, (make, kw) in variants.items():
    keep = only.get(v, list(TENSORS))
    p = {k: params[k] for k in keep}
    tx = make(**kw)
    state = tx.init(p)
    step = jax.jit(tx.update)
    for s in range(n):
      out, state = step({k: grads[k][s] for k in keep}, state, p)
      for k, x in out.items():
        r[f"{v}/step{s + 1}/update/{k}"] = x
      for k, x in names(state).items():
        if s == n - 1:
          r[f"{v}/step{s + 1}/state/{k}"] = x.astype(np.float64) if X64 and x.dtype == ml_dtypes.bfloat16 else x
    if not X64:
      with h5py.File(path, "r+", libver=LIBVER) as f:
        f.require_group(v).attrs["options"] = json.dumps(kw)
  finish(path, r)


def schedule_tables():
  steps = np.unique(np.r_[np.arange(0, 101), 150, 299, 366, 499, 500, 501, 998, 999, 1000])
  one = dict(total_steps=1000, batch_size=512, data_size=20480)
  tab = {
      "constant": {}, "stair": dict(steps=[10, 50, 500], mults=[0.5, 0.1, 0.01]), "stair_mult": dict(steps=[3], mults=[2.0], base=0.3),
      "cosine": dict(decay_type="cosine"), "cosine_warmup": dict(decay_type="cosine", warmup_steps=37),
      "cosine_warmup_cooldown": dict(decay_type="cosine", warmup_percent=0.05, cooldown_percent=0.1),
      "linear": dict(decay_type="linear"), "linear_end": dict(decay_type="linear", linear_end=0.2, warmup_steps=10),
      "polynomial": dict(decay_type="polynomial", power=2, end=0.1, warmup_epochs=1.3, base=0.5),
      "polynomial_half": dict(decay_type="polynomial", power=0.5, cooldown_examples=51200),
      "rsqrt": dict(decay_type="rsqrt"), "rsqrt_t20": dict(decay_type="rsqrt", timescale=20, warmup_steps=30),
      "rsqrt_cooldown": dict(decay_type="rsqrt", timescale=50, warmup_steps=30, cooldown_steps=500),
      "batch_scaled": dict(decay_type="cosine", scale_with_batchsize=True, base=0.1),
      "warmup_only": dict(warmup_steps=40), "cooldown_only": dict(cooldown_steps=700),
  }
  full = np.array([0, 1, 2, 100, 5000, 9999, 10000, 10001, 50000, 100000, 188250, 250000, 300000, 360000, 366498, 366499])
  cases = {k: (steps, one, v) for k, v in tab.items()}
  cases["pretrain"] = (full, dict(total_steps=366500, batch_size=8192, data_size=82783), dict(decay_type="cosine", warmup_steps=10000))
  with h5py.File(os.path.join(OUT, "schedules.h5"), "w", libver=LIBVER) as f:
    f.attrs["tol_relative"], f.attrs["tol_absolute"] = 2e-6, 5e-7
    for k, (st, base, kw) in cases.items():
      fn = jax.jit(u.create_learning_rate_schedule(**base, **kw))
      put(f, f"{k}/step", st.astype(np.int32))
      put(f, f"{k}/value", np.array([fn(jnp.int32(s)) for s in st], np.float32))
      f[k].attrs["args"] = json.dumps({**base, **kw})
  # durations, events, time strings
  dur = []
  for cfg in ({"x_steps": 7}, {"x_steps": 0}, {"x_examples": 1000}, {"x_examples": 10}, {"x_examples": 160}, {"x_examples": 96},
              {"x_epochs": 2.5}, {"x_epochs": 0.001}, {"x_percent": 0.1}, {"x_percent": 0.0}, {"x_percent": 1.0},
              {"x_percent": 0.0025}, {"x_percent": 0.0035}, {"x_percent": 1.5}, {"x_steps": 3, "x_epochs": 1}, {},
              {"x_steps": None}, {"x_steps": None, "x_epochs": 2}, {"x_examples": 0}):
    for default in ("error", None):
      try:
        v = u.steps("x", cfg, data_size=1000, batch_size=64, total_steps=1000, default=ValueError if default else None)
      except (AssertionError, ValueError) as e:
        v = type(e).__name__
      except TypeError as e:
        v = "TypeError"
      dur.append(dict(config=cfg, data_size=1000, batch_size=64, total_steps=1000, default=default, result=v))
  times = []
  for every, total, host, last, first in ((10, 100, None, True, True), (10, 98, None, True, True), (40, 100, None, True, False),
                                          (40, 89, None, True, False), (7, 50, None, False, True), (None, 20, None, True, True),
                                          (0, 20, None, True, True), (1, 5, None, True, True), (1000, 20, None, True, True)):
    hit = [s for s in range(1, total + 1) if u.itstime(s, every, total, host=host, last=last, first=first)]
    times.append(dict(every=every, total=total, last=last, first=first, true_at=hit))
  hms = {str(s): u.hms(s) for s in (0, 0.4, 59.4, 59.6, 60, 61, 3599, 3600, 3661, 86399, 86400, 89999, 90000, 200000, 1e6)}
  with open(os.path.join(OUT, "durations.json"), "w") as f:
    json.dump(dict(steps=dur, itstime=times, hms=hms), f, indent=1)
    f.write("\n")
  print("schedules.h5 durations.json")


def posemb():
  with h5py.File(os.path.join(OUT, "posemb.h5"), "w", libver=LIBVER) as f:
    rng = np.random.default_rng(51)
    for a, b in ((3, 5), (5, 3), (4, 8), (14, 7), (2, 3), (6, 7)):
      old = rng.standard_normal((1, a * a, 5)).astype(np.float32)
      new = vit.resample_posemb(old, np.zeros((1, b * b, 5), np.float32))
      put(f, f"resample_{a}to{b}/old", old)
      put(f, f"resample_{a}to{b}/new", new, tol=2e-6)
    for h, w, d in ((3, 2, 24), (2, 5, 8), (1, 8, 32), (14, 14, 64)):
      put(f, f"sincos2d_{h}x{w}x{d}", vit.posemb_sincos_2d(h, w, d), tol=2e-6 if max(h, w) < 10 else 5e-6)
  print("posemb.h5")
