# SPDX-License-Identifier: Apache-2.0
"""CapPa written plainly in JAX, timed: peer of tools/gpu_check. Argument: a JSON object with the shapes. Last line: JSON.

jit, jax.nn.dot_product_attention (cuDNN in bf16), AdamW by hand; bf16 = products and activations, tf32 = f32
with TF32 products."""
import functools
import json
import os
import statistics
import sys
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import jax
import jax.numpy as jnp

S = json.loads(sys.argv[1])
if S["precision"] == "tf32":  # the default of GPUs, unless the environment changes it
    jax.config.update("jax_default_matmul_precision", "tensorfloat32")
D, HEADS, TEXT, BATCH, VOCABULARY, PATCH = S["width"], S["heads"], S["text"], S["batch"], S["vocabulary"], S["patch"]
SIDE = S["side"] // PATCH
TYPE = jnp.bfloat16 if S["precision"] == "bf16" else jnp.float32


def weights(key):
    keys = iter(jax.random.split(key, 4096))

    def linear(a, b, bias=True):
        w = {"w": jax.random.normal(next(keys), (a, b)) * a ** -0.5}
        return {**w, "b": jnp.zeros(b)} if bias else w

    def norm():
        return {"scale": jnp.ones(D), "bias": jnp.zeros(D)}

    def attention(bias):
        return {name: linear(D, D, bias) for name in ("q", "k", "v", "out")}

    def block(cross, bias):
        p = {"norm1": norm(), "attention": attention(bias), "norm3": norm(),
             "mlp1": linear(D, S["mlp"], bias), "mlp2": linear(S["mlp"], D, bias)}
        return {**p, "norm2": norm(), "cross": attention(bias)} if cross else p

    def table(rows):
        return jax.random.normal(next(keys), (rows, D)) * 0.02

    return {"stem": linear(PATCH * PATCH * 3, D), "positions": table(SIDE * SIDE), "norm": norm(),
            "encoder": [block(False, True) for _ in range(S["encoder"])], "embedding": table(VOCABULARY + 1),
            "text_positions": table(TEXT), "decoder": [block(True, False) for _ in range(S["decoder"])],
            "text_norm": norm(), "head": linear(D, VOCABULARY)}


def dense(p, x):
    y = x.astype(TYPE) @ p["w"].astype(TYPE)
    return y + p["b"].astype(TYPE) if "b" in p else y


def layer_norm(p, x):
    x = x.astype(jnp.float32)
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-6) * p["scale"] + p["bias"]


def attend(p, x, memory, mask=None):
    q, k, v = (dense(p[name], t).reshape(BATCH, -1, HEADS, D // HEADS) for name, t in (("q", x), ("k", memory), ("v", memory)))
    kind = "cudnn" if TYPE == jnp.bfloat16 else "xla"
    y = jax.nn.dot_product_attention(q, k, v, mask=mask, implementation=kind)
    return dense(p["out"], y.reshape(BATCH, -1, D))


def block(p, x, memory=None, mask=None):
    y = layer_norm(p["norm1"], x)
    x = x + attend(p["attention"], y, y, mask)
    if memory is not None:
        x = x + attend(p["cross"], layer_norm(p["norm2"], x), memory)
    return x + dense(p["mlp2"], jax.nn.gelu(dense(p["mlp1"], layer_norm(p["norm3"], x))))


def loss_of(p, image, ids, mask, rows, labels):
    x = image.reshape(BATCH, SIDE, PATCH, SIDE, PATCH, 3).transpose(0, 1, 3, 2, 4, 5).reshape(BATCH, SIDE * SIDE, -1)
    x = dense(p["stem"], x).astype(jnp.float32) + p["positions"]
    for b in p["encoder"]:
        x = block(b, x)
    x = layer_norm(p["norm"], x)
    y = p["embedding"][ids] + p["text_positions"]
    for b in p["decoder"]:
        y = block(b, y, x, mask)
    y = layer_norm(p["text_norm"], y).reshape(-1, D)[rows]  # rows that carry a loss
    logits = dense(p["head"], y).astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]
    return (jax.nn.logsumexp(logits, -1) - chosen).sum() / BATCH


@functools.partial(jax.jit, donate_argnums=(0, 1, 2))
def step(p, mu, nu, count, *batch):
    loss, g = jax.value_and_grad(loss_of)(p, *batch)
    tree = jax.tree_util.tree_map
    norm = jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree_util.tree_leaves(g)))
    g = tree(lambda x: x * jnp.minimum(1, 1 / norm), g)
    mu, nu = tree(lambda m, x: 0.9 * m + 0.1 * x, mu, g), tree(lambda n, x: 0.999 * n + 0.001 * x * x, nu, g)
    p = tree(lambda w, m, n: w - 1e-4 * (m / (1 - 0.9 ** count) / (jnp.sqrt(n / (1 - 0.999 ** count)) + 1e-8) + 1e-2 * w), p, mu, nu)
    return p, mu, nu, loss


def main():
    p = weights(jax.random.PRNGKey(0))
    zeros = functools.partial(jax.tree_util.tree_map, jnp.zeros_like)
    mu, nu = zeros(p), zeros(p)
    key = jax.random.PRNGKey(1)
    causal = jnp.arange(BATCH)[:, None, None, None] < BATCH // 4  # three examples in four are parallel: masks only
    ids = jnp.where(causal[:, 0, 0], jax.random.randint(key, (BATCH, TEXT), 0, VOCABULARY), VOCABULARY)
    mask = jnp.tril(jnp.ones((TEXT, TEXT), bool))[None, None] | ~causal
    # 30 % of the positions are targets
    rows = jnp.array([r for r in range(BATCH * TEXT) if r % 10 < 3])
    labels = jax.random.randint(key, rows.shape, 0, VOCABULARY)
    batch = (jax.random.uniform(key, (BATCH, S["side"], S["side"], 3)) * 2 - 1, ids, mask, rows, labels)
    times = []
    for i in range(25):
        begin = time.perf_counter()
        p, mu, nu, loss = step(p, mu, nu, jnp.float32(i + 1), *batch)
        loss.block_until_ready()
        jax.block_until_ready(p)
        times.append(time.perf_counter() - begin)
    stats = jax.devices()[0].memory_stats() or {}
    print(json.dumps({"ms_per_step": 1e3 * statistics.median(times[5:]), "loss": float(loss),
                      "peak_memory_gib": stats.get("peak_bytes_in_use", 0) / 2**30, "versions": {"jax": jax.__version__}}))


main()
