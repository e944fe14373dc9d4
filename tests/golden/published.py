# SPDX-License-Identifier: Apache-2.0
"""The published code, ready to run: arguments and environment of generate.py, then the imports, which need both.

Other modules import this one before JAX. In the float64 pass some published functions are replaced (README.md).
"""
import argparse
import os
import sys

ap = argparse.ArgumentParser()
ap.add_argument("checkout")
ap.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)))
ap.add_argument("--heldout")
ap.add_argument("--only", default="")
ap.add_argument("--f64-pass", action="store_true", help=argparse.SUPPRESS)
args = ap.parse_args()

# One thread, so that a second run gives the same bits.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
X64 = args.f64_pass
if X64:
  os.environ["JAX_ENABLE_X64"] = "1"
sys.path.insert(0, os.path.abspath(args.checkout))

import warnings
warnings.filterwarnings("ignore")
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
from big_vision import optax as bv_optax
from big_vision import utils as u
from big_vision.models import vit
from big_vision.models.proj.cappa import cappa

jax.config.update("jax_threefry_partitionable", True)  # as the trainer does
F = np.float64 if X64 else np.float32
OUT = os.path.abspath(args.heldout or args.out)
os.makedirs(OUT, exist_ok=True)

if X64:
  # The published encoder casts to float32 by default; float64 uniforms would be other draws.
  _vit_model, _uniform = vit.Model, jax.random.uniform
  vit.Model = lambda *a, **kw: _vit_model(*a, **{"dtype_mm": "float64", **kw})
  jax.random.uniform = lambda key, shape=(), *a, **kw: _uniform(key, shape, *(a or (() if kw else (jnp.float32,))), **kw)
  # Compiled for float32, decay * (bfloat16 state) is not rounded to bfloat16 before the addition;
  # for float64 it would be.
  def _decayed(decay, t):
    return float(ml_dtypes.bfloat16(decay)) * t.astype(F) if t.dtype == ml_dtypes.bfloat16 else decay * t
  def _moment(g, m, decay, order):
    return jax.tree_util.tree_map(lambda g, t: (1 - decay) * g**order + _decayed(decay, t), g, m)
  def _trace(decay, nesterov=False, accumulator_dtype=None):
    def update(g, state, params=None):
      f = lambda g, t: jax.tree_util.tree_map(lambda g, t: g + _decayed(decay, t), g, t)
      new = f(g, state.trace)
      return (f(g, new) if nesterov else new), optax.TraceState(jax.tree_util.tree_map(lambda x: x.astype(accumulator_dtype), new))
    return optax.GradientTransformation(_optax_trace(decay, nesterov, accumulator_dtype).init, update)
  _optax_trace, optax.trace, optax._src.transform.update_moment = optax.trace, _trace, _moment
