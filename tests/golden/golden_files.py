# SPDX-License-Identifier: Apache-2.0
"""The HDF5 files of golden data: datasets, options, parameters by path, and the noise that the float64 pass measures."""
import json
import os

from published import F, X64, u  # before JAX

import h5py
import jax
import ml_dtypes
import numpy as np

LIBVER = ("v110", "v110")  # compact groups; readable from HDF5 1.10 on


def put(f, path, x, **attrs):
  """Writes one dataset; bfloat16 is stored as the equal float32 with attribute stored_dtype."""
  x = np.asarray(x)
  if x.dtype == ml_dtypes.bfloat16:
    attrs["stored_dtype"] = "bfloat16"
    x = x.astype(np.float32)
  if x.dtype == np.float64:
    x = x.astype(np.float32)
  if x.dtype == np.bool_:
    x = x.astype(np.uint8)
  if x.dtype == np.int64:
    x = x.astype(np.int32)
  kw = dict(compression="gzip", compression_opts=9, shuffle=True) if x.size > 1024 else {}
  d = f.create_dataset(path, data=x, track_times=False, **kw)
  for k, v in attrs.items():
    d.attrs[k] = v
  return d


def config_attrs(f, **groups):
  """Stores each dict flat as attributes of /config and all of them as one JSON string."""
  g = f.create_group("config")
  for name, d in groups.items():
    for k, v in d.items():
      if isinstance(v, (tuple, list)) and all(isinstance(i, int) for i in v):
        v = np.array(v, np.int32)
      elif isinstance(v, (dict, list, tuple)) or v is None:
        v = json.dumps(v)
      g.attrs[f"{name}.{k}"] = v
  g.attrs["json"] = json.dumps(groups, sort_keys=True)


def names(tree):
  """Leaves by big_vision path, as in its checkpoints."""
  return dict(u.tree_flatten_with_names(tree)[0]) if jax.tree_util.tree_leaves(tree) else {}


def read_tree(group):
  """A group of datasets as a nested dict of float arrays of the working precision."""
  out = {}
  for k, v in group.items():
    out[k] = read_tree(v) if isinstance(v, h5py.Group) else v[()].astype(F)
  return out


def load_inputs(path):
  with h5py.File(path) as f:
    params = read_tree(f["params_init"])
    batch = {k: v[()].astype(F) if v.dtype.kind == "f" else v[()] for k, v in f["batch"].items()}
  return params, batch


TOL_DEV, TOL_EPS = 8.0, 2e-6


def finish(path, result):
  """float32 pass: adds `result` to the file. float64 pass: adds scale, f64_dev and tol to each dataset."""
  with h5py.File(path, "r+", libver=LIBVER) as f:
    for k, v in result.items():
      v = np.asarray(v)
      if not X64:
        put(f, k, v)
        continue
      d = f[k]
      if d.dtype.kind != "f":
        if not np.array_equal(d[()], np.asarray(v).astype(d.dtype)):
          raise SystemExit(f"{path}:{k} differs between float32 and float64 pass")
        continue
      v = v.astype(np.float64)
      scale = float(np.max(np.abs(v), initial=0.0))
      dev = float(np.max(np.abs(v - d[()]), initial=0.0))
      tol = max(TOL_DEV * dev, TOL_EPS * scale)
      if "stored_dtype" in d.attrs:  # a value may fall on the other side of a rounding boundary
        tol = max(tol, 2.0**-7 * scale)
      if k.endswith("key/bias"):  # the exact gradient is zero, so the stored values are rounding noise (README)
        d.attrs["rounding_noise_only"], tol = 1, max(tol, 1e-7)
      d.attrs["f64_dev"], d.attrs["tol"] = np.float32(dev), np.float32(tol)
  print(("f64 " if X64 else "f32 ") + os.path.basename(path), len(result), "datasets", flush=True)
