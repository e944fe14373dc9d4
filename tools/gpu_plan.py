# SPDX-License-Identifier: Apache-2.0
"""What gpu_check runs, in which order, and how long each part may take. Not a tool itself.

The order puts first what tells most, because a node may be lent for ten minutes only. A batch is a few programs of one step;
those that only compare numbers share the GPU."""
import glob
import json
import os
import re
from collections import namedtuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GPU_TESTS = os.path.join(ROOT, "tests/gpu")
CHECK_S, PEER_S = 520, 240  # the whole check without peers; each peer, whose compilers start cold
STEPS = ("libraries", "training", "table", "ops", "golden", "mesh", "sanitizer", "peers")

# `budget_s` is what a batch should take on an H200, `limit_s` ends each of its programs.
Batch = namedtuple("Batch", "step budget_s limit_s tasks at_once")
# `program` is a name in the build, or a path. `kind` says how its output is read.
Task = namedtuple("Task", "what program arguments kind environment ranks row")


def task(what, program, arguments, kind="tests", environment=None, ranks=1, row=None):
    return Task(what, program, arguments, kind, environment or {}, ranks, row or {})


MODELS = {  # those of tests/gpu/kernel_rows.cpp
    "B/16": {"patch": 16, "encoder": 12, "decoder": 6, "width": 768, "mlp": 3072, "heads": 12, "text": 64, "vocabulary": 32000,
             "side": 224, "batch": 256},
    "L/14": {"patch": 14, "encoder": 24, "decoder": 6, "width": 1024, "mlp": 4096, "heads": 16, "text": 64, "vocabulary": 32000,
             "side": 224, "batch": 256},
    "tiny": {"patch": 8, "encoder": 1, "decoder": 1, "width": 32, "mlp": 64, "heads": 2, "text": 8, "vocabulary": 500, "side": 16,
             "batch": 4},
}

# Op tests by groups. Each is a process, because an error of a kernel spoils all later calls of its process. An emulator runs the
# shorter filter. A group leaves out what an earlier one has; the last one has the rest.
GROUPS = (("products with epilogues", "GemmNarrow*:GemmGelu*:GemmSums*", "GemmSums.Are*"),
          ("attention", "*Attention*", "PackedAttention.*"),
          ("shapes of launches", "CudaShapes*:LaunchShapes*:ManyOps*", "LaunchShapes*"),
          ("products", "Gemm*:RowProduct*", "RowProduct*"),
          ("norms, activations, casts", "*Norm*:*Gelu*:Activation*:Narrow*:Cast*:Bf16*:Elementwise*", "Cast*:Elementwise*"),
          ("convolutions and pools", "Convolution*:*Pool*", "*Pool*"),
          ("updates", "*Update*", "UpdateOps.Decisions*"),
          ("losses and all others", "*", "TokenMean*"))
OPTIM_FILTER = "--gtest_filter=-Optimizer.AllocatesNothing*:*Sharding.SameBits*:*Sharding.ResumesOn*"  # as tests/cuda_tests.cmake


def gflop_per_example(m):
    """Returns the GFLOP of all products of a step. The first one has no gradient of its input."""
    n, d, f, text = (m["side"] // m["patch"]) ** 2, m["width"], m["mlp"], m["text"]
    first = 2 * n * 3 * m["patch"] ** 2 * d
    encoder = m["encoder"] * (8 * n * d * d + 4 * n * d * f + 4 * n * n * d)
    decoder = m["decoder"] * (12 * text * d * d + 4 * n * d * d + 4 * text * d * f + 4 * text * text * d + 4 * text * n * d)
    return (3 * (first + encoder + decoder + 2 * text * m["vocabulary"] * d) - first) / 1e9


def groups(emulated):
    """Returns (name, filter) of each group of op tests."""
    out, before = [], []
    for name, wanted, short in GROUPS:
        out.append((name, short if emulated else wanted + ("-" + ":".join(before) if before else "")))
        before.append(wanted)
    return out


def bench(model, precision, steps, micro=None, op_steps=3, note="", **more):
    """Returns a task that times training steps. `micro`: examples per pass, where activations need more than 80 GB."""
    m = MODELS[model]
    sets = {"run.device": "cuda", "precision.compute": precision, "train.global_batch": m["batch"],
            "train.micro_batch": micro or m["batch"], "memory.recompute": "none", "model.image_size": m["side"],
            "model.vocab_size": m["vocabulary"], "model.seq_len": m["text"], "data.train.image_size": m["side"],
            "data.train.vocab_size": m["vocabulary"], "data.train.seq_len": m["text"],
            **{f"model.encoder.{key}": m[key] for key in ("patch", "width", "mlp", "heads")}, "model.encoder.depth": m["encoder"],
            "model.decoder.depth": m["decoder"], "bench.steps": steps, "bench.warmup_steps": min(steps, 3),
            "bench.max_s": 12, "bench.op_steps": min(steps, op_steps), "loader.threads": 4,
            **{key.replace("_", ".", 1): value for key, value in more.items()}}
    words = [w for key, value in sets.items() for w in ("--set", f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}")]
    row = {"who": "this program" + note, "model": model, "precision": precision, "batch": m["batch"]}
    what = f"{row['who']}, {model}, {precision}"
    return task(what, "trainer", [os.path.join(ROOT, "inputs/bench_s16.toml"), "--mode", "bench", *words], "bench", row=row)


def table(model, out, emulated):
    name = model.lower().replace("/", "")
    files = {end: os.path.join(out, f"kernel_table_{name}.{end}") for end in ("md", "json")}
    arguments = [f"--models={name}", f"--markdown={files['md']}", f"--json={files['json']}"]
    return task(f"kernel table, {model}", "kernel_table", arguments + (["--seconds=0.0003"] if emulated else []), "table", row=files)


def golden_cases(emulated):
    cases = sorted(glob.glob(os.path.join(ROOT, "tests/golden/case_*.h5")))
    return [c for c in cases if not emulated or c.endswith("case_mixed_r050.h5")]


def checked(sanitizer, build):
    """Returns the tasks of compute-sanitizer: invalid accesses, then races, each in small shapes."""
    if not sanitizer:
        return [task("compute-sanitizer", "", ["it is neither in PATH nor in CUDA_HOME/bin, or there is no GPU"], "skipped")]
    filters = {"memcheck": "CudaShapes.*:PackedAttention.*:LaunchShapes.*", "racecheck": "PackedAttention.*:SoftmaxXent.*:LayerNorm.*"}
    return [task(f"compute-sanitizer, {tool}", sanitizer,
                 ["--tool", tool, "--target-processes", "all", "--error-exitcode", "9", build("test_kernels"), "--kind=cuda",
                  f"--gtest_filter={wanted}"]) for tool, wanted in filters.items()]


def check(emulated, out, sanitizer, build):
    """Returns the batches of the check. `build(name)` is the path of a program. The emulator runs the same with small shapes."""
    first, second = ("tiny", "tiny") if emulated else ("B/16", "L/14")
    steps = 1 if emulated else 30
    cases = golden_cases(emulated)
    # Other cases are steps, in f32 only.
    passes = [c for c in cases if not re.search(r"adafactor|adam|momentum", c)]

    def golden(precision, files):
        compute = [] if precision == "f32" else ["--compute", precision]
        return task(f"one rank, {precision}", "golden", ["--device", "cuda", *compute, *files])

    def mesh(shape):
        return task(f"two ranks, {shape}", "golden", ["--device", "cuda", "--mesh", shape, *cases], ranks=2)

    ops = [task(name, "test_kernels", ["--kind=cuda", f"--gtest_filter={wanted}"]) for name, wanted in groups(emulated)]
    optim = ["--gtest_filter=*Golden*" if emulated else OPTIM_FILTER]
    ops.append(task("optimizers", "test_optim", optim, environment={"TRAINER_TEST_KIND": "cuda"}))
    # Products are searched as in training. An emulator is slow, so it searches once, and takes fewer cases.
    searched = {"run_gemm_search": "off" if emulated else "on"}
    narrow, meshes = (("bf16",), ("1x2",)) if emulated else (("bf16", "tf32", "fp16"), ("1x2", "2x1"))

    def of_large(*batch):  # the emulator has one model
        return [] if emulated else [Batch(*batch)]

    return [
        Batch("libraries", 10, 40, [task("libraries, NCCL of one rank", "gpu_libraries", [], "libraries")], 1),
        Batch("training", 20, 60, [bench(first, "bf16", steps, note=", first proposals", run_gemm_search="off")], 1),
        Batch("training", 30, 60, [bench(first, "bf16", steps, run_gemm_search="on")], 1),
        Batch("training", 20, 50, [bench(first, "bf16", steps, op_steps=0, note=", graphs", run_cuda_graph="on", **searched)], 1),
        Batch("table", 25, 60, [table(first, out, emulated)], 1),
        Batch("ops", 40, 90, ops, 4),
        Batch("golden", 15, 60, [golden("f32", cases)] + [golden(p, passes) for p in narrow], 4),
        Batch("mesh", 25, 60, [mesh(shape) for shape in meshes], 1),
        *of_large("training", 25, 60, [bench(second, "bf16", steps, **searched)], 1),
        Batch("training", 20, 50, [bench(first, "tf32", steps, **searched)], 1),
        Batch("sanitizer", 35, 90, checked(sanitizer, build), 2),
        *of_large("table", 25, 60, [table(second, out, emulated)], 1),
        Batch("training", 20, 50, [bench(first, "fp16", steps, **searched)], 1),
        Batch("training", 20, 50, [bench(first, "f32", min(steps, 10), **searched)], 1),
        *of_large("training", 25, 60, [bench(second, "tf32", steps, micro=MODELS[second]["batch"] // 2, **searched)], 1)]


def peers(interpreters):
    """Returns the batches of the peers. `interpreters`: a Python, or None, for each of torch and jax."""
    batches = []
    for precision in ("bf16", "tf32"):
        for model in ("B/16", "L/14"):
            # JAX keeps scores in tf32, beside 100 GB of activations.
            batch = MODELS[model]["batch"] // (2 if (precision, model) == ("tf32", "L/14") else 1)
            for peer, python in interpreters.items():
                what = f"{peer}, {model}, {precision}"
                if not python:
                    batches.append(Batch("peers", 0, 1, [task(what, "", [f"no Python with {peer}; --python names one"], "skipped")], 1))
                    continue
                row = {"who": peer, "model": model, "precision": precision, "batch": batch}
                shape = json.dumps({**MODELS[model], "batch": batch, "precision": precision})
                program = os.path.join(GPU_TESTS, f"peer_{peer}.py")
                batches.append(Batch("peers", 120, PEER_S, [task(what, python, [program, shape], "bench", row=row)], 1))
    return batches


def described(batches):
    """Returns a table of the batches for people."""
    lines = [f"{'step':<10} {'should take':>11} {'limit each':>11}  what"]
    for b in batches:
        names = [t.what for t in b.tasks]
        lines.append(f"{b.step:<10} {b.budget_s:>9} s {b.limit_s:>9} s  {names[0]}" + (f" and {len(names) - 1} more" if names[1:] else ""))
    return "\n".join(lines + [f"{'together':<10} {sum(b.budget_s for b in batches):>9} s"])
