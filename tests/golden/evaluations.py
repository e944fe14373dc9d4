# SPDX-License-Identifier: Apache-2.0
"""The published evaluators: scores, perplexity, representations, cached decoding, linear probes."""
import os

from published import OUT, X64, cappa  # before JAX

import h5py
import jax
import jax.numpy as jnp
import numpy as np

from golden_files import LIBVER, TOL_DEV, TOL_EPS, finish, load_inputs, names, put
from model_cases import TINY


def predict():
  """score, perplexity, encoder representation and cached decoding with the parameters of case_ar.h5."""
  from big_vision.evaluators import mean
  from big_vision.evaluators.proj.cappa import perplexity, scoring_classifier
  from big_vision.trainers.proj.cappa import predict_fns
  path = os.path.join(OUT, "predict.h5")
  params, batch = load_inputs(os.path.join(OUT, "case_ar.h5"))
  cfg = dict(TINY, decoder_bias=True)
  model = cappa.Model(**cfg)
  fns = predict_fns.get_predict_fns(model)
  state = {"params": params}
  if not X64:
    with h5py.File(path, "w", libver=LIBVER) as f:
      put(f, "score/label_tokens", np.array(
          [[35, 15, 1, 0, 0], [33, 10, 1, 0, 0], [14, 32, 1, 0, 0], [28, 1, 0, 0, 0], [5, 4, 1, 0, 0]], np.int32))
      put(f, "score/label", np.array([3, 3, 1, 4, 3, 0, 2, 3, 1, 2, 3, 0], np.int32))
      put(f, "score/mask", np.array([1] * 10 + [0, 0], np.uint8))
      put(f, "perplexity/mask", np.array([1] * 10 + [0, 0], np.uint8))
      put(f, "decode/tokens", np.array([[0, 0, 0], [5, 9, 1], [36, 3, 20]], np.int32).T)
  with h5py.File(path) as f:
    tok, label, smask = f["score/label_tokens"][()], f["score/label"][()], f["score/mask"][()].astype(bool)
    pmask, dec = f["perplexity/mask"][()].astype(bool), f["decode/tokens"][()]
  r = {}
  sb = {"image": batch["image"], "_label_tokens": tok}
  r["score/scores"] = jax.jit(fns["score"])(state, sb)
  r["score/prediction"] = np.argmax(r["score/scores"], -1).astype(np.int32)
  m = mean._run_predict_fn(scoring_classifier.scoring(fns["score"], tok), state,
                           {"image": batch["image"], "label": label, "_mask": smask})
  r["score/prec@1_sum"], r["score/mask_sum"] = m["prec@1"], m["_mask"]
  pb = dict(batch, _mask=pmask)
  for k, norm in (("sum", False), ("per_token", True)):
    for masks in (True, False):
      bb = pb if masks else {k2: v for k2, v in pb.items() if k2 != "label_masks"}
      fn = perplexity.perplexity(fns["perplexity"], norm)
      name = f"perplexity/{k}{'_label_masks' if masks else ''}"
      r[f"{name}/per_example"] = jax.jit(fn)(state, bb)["perplexity"]
      m = mean._run_predict_fn(fn, state, bb)
      r[f"{name}/batch_sum"], r[f"{name}/value"] = m["perplexity"], m["perplexity"] / m["_mask"]
  r["enc_rep/pre_logits"] = jax.jit(fns["enc_rep"])(state, batch)[1]["pre_logits"]
  # cached decoding: three images, three steps; first fed token is 0
  encoded = model.apply(state, batch["image"][:3], method=model.encode)
  _, cache = model.apply(state, encoded, jnp.zeros((3, 7), jnp.int32), decode=True, method=model.decode, mutable=["cache"])
  if not X64:
    print("   cache:", {k: (v.shape, str(v.dtype)) for k, v in names(cache["cache"]).items()})
  if X64:  # flax 0.7.5 mixes index types otherwise
    cache = jax.tree_util.tree_map(lambda x: x.astype(jnp.int64) if x.dtype == jnp.int32 else x, cache)
  r["decode/encoded"] = encoded
  step = jax.jit(lambda c, t: model.apply({**state, **c}, encoded, t, decode=True, method=model.decode, mutable=["cache"]))
  outs = []
  for s in range(3):
    logits, cache = step(cache, jnp.asarray(dec[:, s:s + 1]))
    outs.append(logits[:, 0])
  r["decode/logits"] = np.stack(outs, 1)
  for k, v in names(cache["cache"]).items():
    r[f"decode/cache/{k}"] = np.asarray(v).astype(np.int32) if np.asarray(v).dtype.kind in "iu" else v
  ref = model.apply(state, encoded, jnp.asarray(np.c_[dec[:, 1:], np.zeros((3, 1), np.int32)]), method=model.decode)
  d = np.abs(np.asarray(ref) - r["decode/logits"]).max()
  assert d < 1e-4, d
  finish(path, r)


def fewshot():
  """Linear probe: the published evaluator on two small representation matrices."""
  from big_vision.evaluators import fewshot_lsr
  path, l2s = os.path.join(OUT, "fewshot.h5"), [2.0**i for i in range(-4, 13, 4)] + [1024.0]
  if X64:
    return
  with h5py.File(path, "w", libver=LIBVER) as f:
    for name, (dim, ncls, ntr, nte) in dict(wide=(40, 4, 60, 200), narrow=(6, 5, 120, 300)).items():
      rng = np.random.default_rng(41 + dim)
      centre = rng.standard_normal((ncls, dim)) * (0.5 if name == "wide" else 1.0)
      def draw(n):
        y = rng.integers(0, ncls, n)
        return ((centre[y] + rng.standard_normal((n, dim))) * np.linspace(.5, 4, dim) + 3).astype(np.float32), y.astype(np.int32)
      xtr, ytr = draw(ntr)
      xte, yte = draw(nte)
      for k, v in dict(train_x=xtr, train_y=ytr, test_x=xte, test_y=yte).items():
        put(f, f"{name}/{k}", v)
      f[name].attrs["num_classes"] = ncls
      shots, seeds = (1, 2, 5, 10, 25), 3
      ev = object.__new__(fewshot_lsr.Evaluator)
      ev.shots, ev._repr = shots, {"toy": (xtr, ytr, xte, yte, ncls)}
      acc = np.zeros((len(l2s), seeds, len(shots)), np.float32)
      for i, l2 in enumerate(l2s):
        ev.l2_reg = l2
        for s in range(seeds):
          res = ev.compute_fewshot_metrics(None, s, "toy", "train", "test")
          acc[i, s] = [res[k] for k in shots]
      put(f, f"{name}/l2", np.array(l2s, np.float32))
      put(f, f"{name}/shots", np.array(shots, np.int32))
      put(f, f"{name}/accuracy", acc, axes="l2, seed, shots")
      for s in range(seeds):
        g = np.random.default_rng(s)
        perm = [g.permutation(np.where(ytr == c)[0]) for c in range(ncls)]
        put(f, f"{name}/seed{s}/indices", np.concatenate(perm).astype(np.int32))
        put(f, f"{name}/seed{s}/per_class", np.array([len(p) for p in perm], np.int32))
        for n in (1, 5, 25):
          idx = np.concatenate([p[:n] for p in perm])
          c = fewshot_lsr._precompute_cache(xtr[idx], ytr[idx], ncls)
          x = np.pad((xtr[idx].astype(np.float64) - xtr[idx].astype(np.float64).mean(0)) / (xtr[idx].astype(np.float64).std(0) + 1e-5),
                     ((0, 0), (0, 1)), constant_values=100.0)
          y = 2.0 * np.eye(ncls)[ytr[idx]] - 1
          for l2 in (16.0, 1024.0):
            w = np.asarray((c["lhs"] * (1.0 / (c["eigs"] + l2)).reshape(1, -1)) @ c["rhs"])
            w64 = np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ y)
            dev, scale = float(np.abs(w - w64).max()), float(np.abs(w64).max())
            put(f, f"{name}/seed{s}/weights_{n}shot_l2_{int(l2)}", w, f64_dev=dev, scale=scale,
                tol=max(TOL_DEV * dev, TOL_EPS * scale))
  print("fewshot.h5")
