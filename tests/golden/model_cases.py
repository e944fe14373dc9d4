# SPDX-License-Identifier: Apache-2.0
"""Cases of whole models: forward, gradient, and training with the published optimizers."""
import os

from published import OUT, X64, bv_optax, cappa, u  # before JAX

import flax.linen as nn
import h5py
import jax
import jax.numpy as jnp
import ml_collections
import ml_dtypes
import numpy as np
import optax

from golden_files import LIBVER, config_attrs, finish, load_inputs, names, put
from made_inputs import make_images, make_labels, make_params

TINY = dict(num_layers=2, num_heads=3, mlp_dim=40, emb_dim=24, vocab_size=37, seq_len=7, patches=(8, 8),
            posemb_type="learn", decoder_num_layers=2)
# head_dim 36 in the encoder (factored per head), 16 in the decoder (not factored); [48,48] MLP is a
# tie; [1,36,72] posemb factored
WIDE = dict(num_layers=1, num_heads=2, mlp_dim=40, emb_dim=72, vocab_size=37, seq_len=9, patches=(4, 4), posemb_type="learn",
            decoder_num_layers=1, decoder_num_heads=3, decoder_mlp_dim=48, decoder_emb_dim=48, masked_pred_prob=0.75,
            masking_ratio=1.0, decoder_bias=False)
LEN = [7, 5, 3, 1, 0, 6]


def recorder(rec):
  """Flax interceptor that keeps decoder inputs, masks and the outputs of the named modules."""
  def f(next_fun, a, kw, ctx):
    path = ctx.module.path
    out = next_fun(*a, **kw)
    if ctx.method_name == "__call__" and path[:1] == ("decoder",) and len(path) > 1:
      if path[1] == "EmbedTargets":
        rec["decoder_ids"] = a[0]
      if path[1:] == ("EncDecBlock0",):
        mask = kw.get("decoder_mask")
        if mask is not None:
          rec["decoder_mask"] = mask.astype(jnp.uint8)
      if len(path) == 2 or path[2] in ("SelfAttn", "CrossAttn", "MLP") and len(path) == 3:
        block = path[1].startswith("EncDecBlock") and len(path) == 2
        rec["/".join(path) + ("/out" if block else "")] = out[0] if isinstance(out, tuple) else out
    return out
  return f


def loss_of(logits, batch, smoothing, masks=True):
  w = jnp.where(batch["labels"] != 0, 1.0, 0.0)
  if masks and "label_masks" in batch:
    w = w * batch["label_masks"]
  return u.weighted_softmax_xent(logits=logits, labels=batch["labels"], weights=w, label_smoothing=smoothing,
                                 reduction=True, normalize=True)


def model_case(name, cfg, *, seed, b, hw, l, lengths, smoothing=0.0, masks=False, rng_seed=0):
  """Forward and gradient with train=True; forward with train=False where it differs."""
  path = os.path.join(OUT, f"case_{name}.h5")
  model = cappa.Model(**cfg)
  if not X64:
    rng = np.random.default_rng(seed)
    batch = {"image": make_images(rng, b, *hw), "labels": make_labels(rng, b, l, cfg["vocab_size"], lengths)}
    if masks:
      m = np.ones((b, l), np.float32)
      m[1, :2], m[2, 1:3], m[5 % b, 1] = 0.0, 0.0, 0.5
      batch["label_masks"] = m
    params = make_params(model, batch["image"], batch["labels"], seed)
    with h5py.File(path, "w", libver=LIBVER) as f:
      config_attrs(f, model=cfg, loss=dict(label_smoothing=smoothing, pad_token=0),
                   case=dict(name=name, seed=seed, train=True, dropout_rng_seed=rng_seed))
      for k, v in batch.items():
        put(f, f"batch/{k}", v)
      for k, v in names(params).items():
        put(f, f"params_init/{k}", v)
  params, batch = load_inputs(path)
  rngs = {"dropout": jax.random.PRNGKey(rng_seed)}

  @jax.jit
  def train_fn(params):
    def fn(p):
      rec = {}
      with nn.intercept_methods(recorder(rec)):
        logits = model.apply({"params": p}, batch["image"], batch["labels"], train=True, rngs=rngs)
      return loss_of(logits, batch, smoothing), (logits, rec)
    return jax.value_and_grad(fn, has_aux=True)(params)

  @jax.jit
  def eval_fn(params):
    enc, out = model.apply({"params": params}, batch["image"], None, return_enc_features=True)
    return enc, out, model.apply({"params": params}, batch["image"], batch["labels"], train=False)

  (loss, (logits, rec)), grads = train_fn(params)
  encoded, out, eval_logits = eval_fn(params)
  r = {"forward/logits": logits, "forward/loss": loss, "forward/encoded": encoded, "forward/pre_logits": out["pre_logits"]}
  for k in ("stem", "with_posemb"):
    r[f"forward/encoder/{k}"] = out[k][:4]  # intermediates: the first four examples
  for k, v in names(out["encoder"]).items():
    r[f"forward/encoder/{k}"] = v[:4]
  for k, v in rec.items():
    if k in ("decoder_ids", "decoder_mask"):
      r[f"draws/{k}"] = v
    else:
      r[f"forward/{k}"] = v[:4]
  if cfg.get("masked_pred_prob", 0) > 0:
    ids, v = np.asarray(rec["decoder_ids"]), cfg["vocab_size"]
    full = np.asarray(rec["decoder_mask"])[:, 0].all((1, 2))
    r["draws/parallel"] = full.astype(np.uint8)
    r["draws/masked"] = ((ids == v) & full[:, None]).astype(np.uint8)
    r["forward/eval_logits"] = eval_logits
    r["forward/eval_loss"] = loss_of(eval_logits, batch, smoothing)
    if not X64:
      want = np.where(full[:, None], np.where(ids == v, v, batch["labels"]),
                      np.pad(batch["labels"], ((0, 0), (1, 0)))[:, :-1])
      assert (want == ids).all() and (ids[full] == v).sum() == full.sum() * int(cfg["masking_ratio"] * l)
      print("   parallel flags", full.astype(int).tolist())
  else:
    assert np.abs(eval_logits - logits).max() < 1e-5, "train and eval path differ without masked prediction"
  if masks:
    r["forward/loss_without_label_masks"] = loss_of(logits, batch, smoothing, masks=False)
  for k, v in names(grads).items():
    r[f"grads/{k}"] = v
  finish(path, r)
  if not X64:
    low = {k: float(np.abs(v).max()) for k, v in names(grads).items()}
    print(f"   loss {float(loss):.6f}; smallest gradient maxima:", sorted((v, k) for k, v in low.items())[:3])


def train_case(name, cfg, tcfg, *, seed, b, hw, l, lengths, steps):
  """`steps` updates with the optimizer of big_vision.optax.make on `steps` different batches."""
  path = os.path.join(OUT, f"case_{name}.h5")
  model = cappa.Model(**cfg)
  config = ml_collections.ConfigDict(tcfg)
  if not X64:
    rng = np.random.default_rng(seed)
    images = np.stack([make_images(rng, b, *hw) for _ in range(steps)])
    labels = np.stack([make_labels(rng, b, l, cfg["vocab_size"], np.roll(lengths, s)) for s in range(steps)])
    params = make_params(model, images[0], labels[0], seed)
    with h5py.File(path, "w", libver=LIBVER) as f:
      config_attrs(f, model=cfg, train=tcfg, loss=dict(label_smoothing=tcfg.get("label_smoothing", 0.0), pad_token=0),
                   case=dict(name=name, seed=seed, steps=steps, batch_size=b, data_size=100 * b, rng_seed=seed))
      put(f, "batch/image", images)
      put(f, "batch/labels", labels)
      for k, v in names(params).items():
        put(f, f"params_init/{k}", v)
  params, batch = load_inputs(path)
  smoothing = tcfg.get("label_smoothing", 0.0)
  tx, scheds = bv_optax.make(config, params, sched_kw=dict(total_steps=steps, batch_size=b, data_size=100 * b))
  opt = jax.jit(tx.init)(params)
  rng = jax.random.split(jax.random.split(jax.random.PRNGKey(seed))[0])[1]  # the trainer's loop key for config.seed

  norm = lambda t: jnp.sqrt(sum(jnp.sum(x * x) for x in jax.tree_util.tree_leaves(t)))

  @jax.jit
  def update(params, opt, rng, image, labels):
    rng, sub = jax.random.split(rng)
    def fn(p):
      rec = {}
      with nn.intercept_methods(recorder(rec)):
        logits = model.apply({"params": p}, image, labels, train=True, rngs={"dropout": sub})
      return loss_of(logits, {"labels": labels}, smoothing), rec
    (loss, rec), grads = jax.value_and_grad(fn, has_aux=True)(params)
    updates, opt = tx.update(grads, opt, params)
    params = optax.apply_updates(params, updates)
    live = bv_optax.replace_frozen(config.schedule, grads, 0.0)
    # Same norms without the encoder's key biases: their gradient is rounding noise around zero
    # (README).
    clean = lambda t: {k: v for k, v in names(t).items() if not k.endswith("key/bias")}
    m = {"training_loss": loss, "l2_grads": norm(live), "l2_params": norm(params), "l2_updates": norm(updates),
         "l2_grads_no_key_bias": norm(clean(live)), "l2_params_no_key_bias": norm(clean(params)),
         "l2_updates_no_key_bias": norm(clean(updates))}
    for k, tree in (("grads", live), ("updates", updates)):
      m[f"tensor_norms/{k}"] = jnp.stack([norm(v) for _, v in sorted(clean(tree).items())])
    return params, opt, rng, m, {"decoder_ids": rec["decoder_ids"], "decoder_mask": rec["decoder_mask"]}

  rows, draws = [], []
  for s in range(steps):
    params, opt, rng, m, d = update(params, opt, rng, batch["image"][s], batch["labels"][s])
    rows.append(jax.device_get(m))
    draws.append(jax.device_get(d))
    for i, fn in enumerate(scheds):
      rows[-1]["global_schedule" + (str(i) if i else "")] = fn(s)
  r = {f"steps/{k}": np.array([row[k] for row in rows]) for k in rows[0]}
  if cfg.get("masked_pred_prob", 0) > 0:
    r["draws/decoder_ids"] = np.stack([d["decoder_ids"] for d in draws])
    r["draws/parallel"] = np.stack([d["decoder_mask"][:, 0].all((1, 2)) for d in draws]).astype(np.uint8)
  for k, v in names(params).items():
    r[f"params_final/{k}"] = v
  for k, v in names(opt).items():
    r[f"opt_final/{k}"] = v.astype(np.float64) if X64 and v.dtype == ml_dtypes.bfloat16 else v
  finish(path, r)
  with h5py.File(path, "r+", libver=LIBVER) as f:
    if not X64:
      print("   loss", np.array(r["steps/training_loss"]).round(4).tolist())
      names_sorted = sorted(k for k in names(params) if not k.endswith("key/bias"))
      f.create_dataset("steps/tensor_norms/names", data=np.array(names_sorted, dtype=h5py.string_dtype()), track_times=False)


def published_train_config(**over):
  from big_vision.configs.proj.cappa import pretrain
  c = pretrain.get_config()
  out = dict(optax_name=c.optax_name, optax=c.optax.to_dict() if hasattr(c.optax, "to_dict") else dict(c.optax),
             grad_clip_norm=c.grad_clip_norm, label_smoothing=c.label_smoothing, lr=c.lr, wd=c.wd,
             schedule=dict(c.schedule))
  return {**out, **over}


def model_cases():
  c = {}
  c["ar"] = lambda: model_case("ar", dict(TINY, decoder_bias=True), seed=11, b=12, hw=(24, 16), l=7, lengths=LEN, masks=True)
  c["parallel"] = lambda: model_case(
      "parallel", dict(TINY, seq_len=9, decoder_bias=False, masked_pred_prob=1.0, masking_ratio=1.0),
      seed=12, b=12, hw=(24, 16), l=5, lengths=[5, 4, 2, 1, 3])
  c["sincos"] = lambda: model_case(
      "sincos", dict(TINY, num_layers=1, posemb_type="sincos2d", seq_len=8, vocab_size=41, decoder_num_layers=1,
                     decoder_num_heads=4, decoder_mlp_dim=20, decoder_emb_dim=32, decoder_bias=True),
      seed=13, b=12, hw=(16, 24), l=6, lengths=[6, 5, 3, 2], smoothing=0.1)
  for ratio, s in ((1.0, 14), (0.5, 15)):
    n = f"mixed_r{int(ratio * 100):03d}"
    c[n] = lambda n=n, ratio=ratio, s=s: model_case(
        n, dict(TINY, num_layers=1, decoder_num_layers=1, decoder_bias=False, masked_pred_prob=0.75, masking_ratio=ratio),
        seed=s, b=12, hw=(24, 16), l=7, lengths=LEN, rng_seed=s)
  wide_sched = dict(decay_type="cosine", warmup_steps=3)
  c["adafactor"] = lambda: train_case("adafactor", WIDE, published_train_config(schedule=wide_sched),
                                      seed=21, b=12, hw=(24, 24), l=9, lengths=[9, 7, 4, 2, 0, 8], steps=10)
  multi = [("encoder/embedding/.*|pos_embedding_decoder", None), ("decoder/.*", dict(decay_type="cosine", warmup_steps=2)),
           (".*", dict(decay_type="rsqrt", timescale=5, warmup_steps=1, cooldown_steps=3, mult=0.5))]
  mults = dict(lr=0.01, wd=0.03, schedule=multi, lr_mults=[(".*/LogitsDense/.*", 0.25), ("encoder/Transformer/encoderblock_0/.*", 2.0)],
               wd_mults=[(".*EncDecBlock1.*/kernel", 0.5), (".*/kernel$", 1.0), (".*/embedding", 2.0)], grad_clip_norm=1.0)
  small = dict(TINY, num_layers=1, decoder_bias=True)
  kw = dict(b=12, hw=(24, 16), l=7, lengths=LEN)
  c["adam"] = lambda: train_case("adam", small, dict(mults, optax_name="scale_by_adam", optax=dict(b1=0.9, b2=0.95)),
                                 seed=22, steps=8, **kw)
  c["adam_bf16mu"] = lambda: train_case(
      "adam_bf16mu", dict(small, emb_dim=12, mlp_dim=20, decoder_num_layers=1),
      dict(optax_name="scale_by_adam", optax=dict(mu_dtype="bfloat16"), lr=0.003, wd=0.01,
           schedule=dict(decay_type="linear", warmup_steps=1, end=0.1), grad_clip_norm=0.5),
      seed=24, steps=5, **kw)
  c["momentum"] = lambda: train_case(
      "momentum", small, dict(mults, lr=0.05, grad_clip_norm=2.0, optax_name="big_vision.momentum_hp", optax=dict(momentum=0.9)),
      seed=23, steps=8, **kw)
  return c


def heldout_cases():
  c = {}
  c["held_mixed"] = lambda: model_case(
      "held_mixed", dict(num_layers=2, num_heads=5, mlp_dim=33, emb_dim=20, vocab_size=53, seq_len=12, patches=(4, 6),
                         posemb_type="learn", decoder_num_layers=3, decoder_num_heads=2, decoder_mlp_dim=18, decoder_emb_dim=28,
                         masked_pred_prob=0.6, masking_ratio=0.7, decoder_bias=True),
      seed=1031, b=12, hw=(12, 30), l=10, lengths=[10, 4, 7, 0, 2], smoothing=0.05, masks=True, rng_seed=1031)
  c["held_adafactor"] = lambda: train_case(
      "held_adafactor", dict(WIDE, num_layers=2, num_heads=2, emb_dim=64, mlp_dim=36, decoder_num_heads=1, decoder_emb_dim=40,
                             decoder_mlp_dim=0, vocab_size=45, masked_pred_prob=1.0, decoder_bias=True),
      published_train_config(schedule=dict(decay_type="cosine", warmup_steps=2), lr=0.002, wd=0.01, grad_clip_norm=0.5),
      seed=1032, b=12, hw=(20, 28), l=8, lengths=[8, 5, 3, 1, 6], steps=10)
  return c
