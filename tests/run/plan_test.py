#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares --mode plan with the run itself: checkpoint size, bytes of its tensors and memory,
for some decks, and the table of parameters."""
import os
import re
import shutil
import subprocess

import h5py

import harness


FEATURES = """
format    = 1
run       = {{ name = "features", dir = "{folder}/features", device = "cpu", threads = 1 }}
train     = {{ data = "few", shuffle = "classes", total_steps = 2, global_batch = 8 }}
model.kind        = "classifier"
model.image_size  = 8
model.num_classes = 5
model.trunk       = {{ kind = "vit", patch = 8, depth = 1, width = 24, mlp = 24, heads = 2, pool = "gap" }}
optimizer = {{ kind = "adamw", learning_rate = 1e-3 }}
schedule  = {{ default = {{ kind = "constant" }} }}
data.few    = {{ kind = "synthetic", examples = 1001, image_size = 8, classes = 5, class_field = "label" }}
data.tested = {{ kind = "synthetic", examples = 203, image_size = 8, classes = 5 }}
data.gone.kind       = "webdataset"
data.gone.path       = "{folder}/nowhere.tar"
data.gone.fields     = {{ image = "png", label = "cls" }}
data.gone.preprocess = 'decode | resize(8) | value_range(-1, 1) | keep("image", "label")'
eval.near   = {{ kind = "knn", data = "tested", train_data = "few", k = [3] }}
eval.shots  = {{ kind = "fewshot", data = "tested", train_data = "few", shots = [2] }}
eval.ranks  = {{ kind = "rankme", data = "tested" }}
eval.top    = {{ kind = "classification", data = "tested" }}
"""


class Plan(harness.RunTest):
    def number(self, pattern):
        found = re.search(pattern, self.output)
        self.assertTrue(found, (pattern, self.output))
        return int(found.group(1).replace(",", ""))

    def test_plan_equals_run(self):
        decks = {
            "as it is": [],
            "zero1": ["--set", "sharding.parameters=replicated"],
            "data parallel, adamw": ["--set", "sharding.parameters=replicated", "--set", "sharding.optimizer=replicated",
                                     "--set", "optimizer.kind=adamw"],
            "mesh level, recompute": ["--set", "determinism.level=mesh", "--set", "determinism.slices=4", "--set", "train.micro_batch=3",
                                      "--set", "memory.recompute=block"],
            "muon": ["--set", 'optimizer.rule=[{ match = ".*block_[0-9]+/.*/kernel", kind = "muon" }, { match = ".*" }]'],
            "wider": ["--set", "model.encoder.width=96", "--set", "model.decoder.depth=3", "--set", "optimizer.momentum_type=f32"],
        }
        for i, (name, change) in enumerate(decks.items()):
            with self.subTest(name):
                # A plan assumes that every position of a text counts. Padding leaves rows out, so
                # such runs need less.
                args = [self.deck(), *change, "--set", "model.pad_id=399", "--set", "train.total_steps=4", "--dir", f"{self.folder}/run{i}"]
                self.expect(0, args=[*args, "--mode", "plan", "--ranks", 2])
                planned = self.number(r"checkpoint ([\d,]+) bytes")
                tensors = self.number(r"of which ([\d,]+) are tensors")
                memory = self.number(r"activations +([\d,]+) bytes")
                self.expect(0, args=args, ranks=2)
                path = f"{self.folder}/run{i}/checkpoints/0000000004.h5"
                self.assertLess(abs(os.path.getsize(path) - planned), 0.01 * planned)
                total = 0
                with h5py.File(path) as f:
                    def add(_, d):
                        nonlocal total
                        total += d.nbytes if isinstance(d, h5py.Dataset) else 0
                    f["params"].visititems(add)
                    f["optimizer"].visititems(add)
                self.assertEqual(total, tensors)
                peak = self.number(r"activation arena ([\d,]+) bytes")
                self.assertEqual(peak, memory)

    def test_units_that_no_int_counts(self):
        words = 6_000_000  # times 384, twice: each of the two tables has more than 2^31 elements
        args = [f"{harness.SOURCE}/inputs/bench_s16.toml", "--mode", "plan",
                *harness.sets(f"model.vocab_size={words}", f"data.train.vocab_size={words}", "train.micro_batch=1")]
        for way in ("replicated", "sharded"):
            for ranks in (2, 32):
                self.expect(0, args=[*args, "--ranks", ranks, *harness.sets(f"sharding.parameters={way}", f"sharding.optimizer={way}")])
                parameters = self.number(r"([\d,]+) parameters")
                self.assertGreater(parameters, 2 * 384 * words)
                part = ranks if way == "sharded" else 1
                self.assertLess(abs(self.number(r"weights +([\d,]+) bytes") * part / (4 * parameters) - 1), 0.001)

    def test_features_and_classes(self):
        deck = self.deck(FEATURES.format(folder=self.folder))
        self.expect(0, args=[deck, "--mode", "plan", "--ranks", 4, "--set", "mesh.fsdp=4"])
        table = {name: rest for name, rest in re.findall(r"^ +(?:eval|data)\.(\w+): (.*)$", self.output, re.M)}
        self.assertEqual(set(table), {"few", "near", "shots", "ranks"}, "the classification keeps no features")
        # A label takes 3 bits, each bit a line of 64 bytes for 512 samples and a count for each line and for all.
        self.assertIn(f"1,001 samples in 5 classes: {3 * (2 * 64 + 3 * 8)} bytes on each rank; each start reads 1,001 labels", table["few"])
        kept = {name: [int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", row)] for name, row in table.items()}
        images = 1001 + 203
        self.assertEqual(kept["near"], [1001, 24, 1001 * 25 * 4, 1001 * (1 + 4 + 8), images, -(-images // 4)])
        self.assertEqual(kept["shots"], [1001, 24, 1001 * 25 * 4, 1001 * (1 + 4), images, -(-images // 4)])
        self.assertEqual(kept["ranks"], [203, 24, 203 * 24 * 4, 203, 203, 51])
        lost = FEATURES.format(folder=self.folder).replace('train_data = "few", k', 'train_data = "gone", k')
        self.expect(0, "eval.near: 24 features of each image; the files of data.gone cannot be read here",
                    args=[self.deck(lost, "lost.toml"), "--mode", "plan", "--ranks", 2, "--set", "mesh.fsdp=2"])

    def graph(self, *args, ranks=4):
        """Returns the plan's graph of a step: labels of work, labels of exchanges, arrows by style."""
        path = f"{self.folder}/step.dot"
        self.expect(0, args=[self.deck(), "--mode", "plan", "--ranks", ranks, "--graph", path, *args])
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if shutil.which("dot"):
            drawn = subprocess.run(["dot", "-Tsvg", path], capture_output=True, text=True, check=True).stdout
            self.assertEqual(drawn.count('class="node"'), len(re.findall(r"^ +[we]\d+ \[label", text, re.M)))
        labels = {name: label for name, label in re.findall(r"^ +([we]\d+) \[label=\"(.*)\"\];$", text, re.M)}
        arrows = re.findall(r"^ +([we]\d+) -> ([we]\d+) \[(.*)\];$", text, re.M)
        return labels, arrows

    def test_graph_of_a_step(self):
        labels, arrows = self.graph("--set", "mesh.fsdp=2", "--set", "mesh.replica=2")
        planned = sum(int(calls) for calls in re.findall(r"^ +(?:fsdp|replica) all-\w+ +(\d+) calls|^ +fsdp reduce-\w+ +(\d+) calls",
                                                         self.output, re.M) for calls in calls if calls)
        exchanges = {name: label for name, label in labels.items() if name[0] == "e"}
        self.assertEqual(len(exchanges), planned, "each exchange is a node")
        self.assertTrue(any("all_gather of fsdp" in label for label in exchanges.values()))
        work = [label for name, label in labels.items() if name[0] == "w"]
        self.assertTrue(any("block backward" in label and "gemm" in label for label in work), work)
        # Weights of the next block are gathered beside the products of this one.
        begins = {to: int(of[1:]) for of, to, style in arrows if "dashed" in style}
        needs = {of: int(to[1:]) for of, to, style in arrows if "bold" in style}
        self.assertTrue(any(needs[e] - begins[e] > 1 for e in needs if e in begins), arrows)
        self.assertTrue(all(needs[e] > begins[e] for e in needs if e in begins))
        # One rank exchanges nothing.
        self.assertFalse([name for name in self.graph("--set", "mesh.fsdp=1", "--set", "mesh.replica=1", ranks=1)[0] if name[0] == "e"])

    def test_graph_is_for_plans(self):
        self.expect(2, "--graph", "is for --mode plan", args=[self.deck(), "--graph", "x.dot"])

    def test_table_of_parameters(self):
        """The table agrees with the checkpoint of a run: paths, shapes, and the tensors of the optimizer's state."""
        rules = """
[[optimizer.rule]]
match = "encoder/embedding/.*"
frozen = true
[[optimizer.rule]]
match = "encoder/.*kernel"
lr_scale = 0.5
decay_scale = 3
[[optimizer.rule]]
match = ".*"
"""
        sharding = """sharded", rule = [{ match = "decoder/.*", parameters = "replicated" },
  { match = ".*scale", parameters = "replicated", optimizer = "replicated" }] }"""
        # The rules of the deck itself come last in the text, so these replace them.
        text = re.sub(r"\[\[optimizer.rule\]\]\n(?:.+\n)*", "", self.changed(('optimizer = "sharded" }', 'optimizer = "' + sharding)))
        deck = self.deck(text + rules)
        for kind in ("adafactor", "adamw"):
            args = [deck, "--set", f"optimizer.kind={kind}", "--set", "optimizer.weight_decay=0.01", "--set", "train.total_steps=4",
                    *(["--set", "optimizer.factor_min=16"] if kind == "adafactor" else []), "--dir", f"{self.folder}/{kind}"]
            self.expect(0, args=[*args, "--mode", "plan", "--ranks", "2"])
            self.assertNotIn("lecun_normal", self.output)
            self.expect(0, args=[*args, "--mode", "plan", "--ranks", "2", "--set", "plan.parameters=true"])
            lines = [re.split(r"  +", line.strip()) for line in self.output.splitlines()]
            first = lines.index(["path", "shape", "init", "decay", "rate", "schedule", "placement", "unit", "optimizer state"])
            rows = {line[0]: line[1:] for line in lines[first + 1:] if len(line) == 9}
            self.expect(0, args=args, ranks=2)
            with h5py.File(f"{self.folder}/{kind}/checkpoints/0000000004.h5") as f:
                shapes, states = {}, {}
                f["params"].visititems(lambda n, d: shapes.__setitem__(n, d.shape) if isinstance(d, h5py.Dataset) else None)
                f[f"optimizer/{kind}"].visititems(lambda n, d: states.__setitem__(n, d.shape) if isinstance(d, h5py.Dataset) else None)
            text = lambda shape: "[" + ",".join(map(str, shape)) + "]"
            self.assertEqual({path: row[0] for path, row in rows.items()}, {path: text(shape) for path, shape in shapes.items()})
            factored = 0
            for path, (shape, init, decay, rate, schedule, placement, unit, state) in rows.items():
                words = state.split()
                expected = {name: list(states[f"{name}/{path}"]) for name in {n.split("/", 1)[0] for n in states}
                            if f"{name}/{path}" in states}
                found = {}
                for word in words:
                    if word.startswith("["):
                        found[last] = [int(n) for n in word.strip("[]").split(",")]
                    elif word != "-":
                        found[word], last = list(shapes[path]), word
                self.assertEqual(found, expected, path)
                factored += "v_row" in found
                kernel = path.endswith("kernel")
                if path.startswith("encoder/embedding/"):
                    self.assertEqual((decay, rate, schedule, state), ("-", "-", "frozen", "-"), path)
                elif path.startswith("encoder/") and kernel:
                    self.assertEqual((decay, rate, schedule), ("0.03", "0.5", "default"), path)
                else:
                    self.assertEqual((decay, rate, schedule), ("0.01" if kernel else "0", "1", "default"), path)
                placed = "zero1" if path.startswith("decoder/") else "replicated" if path.endswith("scale") else "sharded"
                self.assertEqual(placement, placed, path)
                self.assertTrue(unit)
                self.assertEqual(init == "ones", path.endswith("scale"), path)
            self.assertEqual(factored > 10, kind == "adafactor")

    def test_plan_for_what_is_not_here(self):
        # A login node has no GPU, and can still plan for one, with settings that CPUs refuse.
        hidden = ["--mode", "plan", "--set", "run.device=auto"]
        for compute in ("fp16", "tf32"):
            with self.subTest(compute):
                self.expect(0, f"cuda (auto: CPUs have no {compute})", args=[self.deck(), *hidden, "--set", f"precision.compute={compute}"])


harness.main()
