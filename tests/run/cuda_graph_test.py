#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""run.cuda_graph on the emulated GPU: passes that graphs repeat have the bits of passes without graphs.

Passes that no graph can repeat run without graphs and log this, or the key is refused.
"""
import re

import harness
from cuda_harness import EMULATED, ON_GPU, CudaTest
from harness import sets

# an odd number of passes, so the first pass of a step alternates between the sets of inputs
STEPS, PASSES = 6, 5
SETTINGS = [f"train.total_steps={STEPS}", "train.global_batch=10", "train.micro_batch=2", "schedule.default.warmup_steps=1",
            "checkpoint.every_steps=6", "eval.val.every_steps=3", "loader.threads=1"]
trace_file = harness.loaded("trace").trace_file
GRAPHS = re.compile(r"graphs   ([\d,]+) of ([\d,]+) passes of this attempt were one launch; (\d+) graphs of")


class CudaGraph(CudaTest):
    def train(self, name, *settings, ranks=0, device="cuda"):
        return super().train(name, device, *SETTINGS, *settings, ranks=ranks)

    def launches(self, ranks=0):
        """Returns the launches of graphs by rank, as the emulated GPU counts them."""
        launched = [int(n) for n in re.findall(r"cuda_on_cpu: (\d+) graphs launched", self.output)]
        self.assertEqual(len(launched), max(ranks, 1), self.output)
        return launched

    def with_graphs(self, name, *settings, ranks=0):
        """Returns rows, launches and graphs of rank 0."""
        rows = self.train(name, "run.cuda_graph=on", *settings, ranks=ranks)
        said = GRAPHS.search(self.output)
        self.assertIn(int(said[1]), self.launches(ranks))
        self.assertEqual(int(said[2]), STEPS * PASSES)
        return rows, int(said[1]), int(said[3])

    def same(self, name, other):
        folders = [f"{self.folder}/{n}" for n in (name, other)]
        for kind, keys in (("train", ("step", "loss", "loss_ar", "loss_parallel", "l2_grads", "l2_params", "l2_updates")),
                           ("eval", ("step", "perplexity"))):
            one, two = ([[row.get(key) for key in keys] for row in self.rows(kind, folder)] for folder in folders)
            self.assertEqual(one, two)
            self.assertTrue(one)
        self.assertEqual(*(self.tensors(STEPS, folder) for folder in folders))

    def with_and_without(self, *settings, ranks=0, least):
        """Returns launches and graphs, and checks the least number of graphs."""
        self.emulate(CUDA_ON_CPU_COUNT="1")
        without = self.train("off", *settings, ranks=ranks)
        self.assertEqual(set(self.launches(ranks)), {0})
        self.assertNotIn("graphs ", self.output.replace(" graphs launched", ""))
        rows, launched, graphs = self.with_graphs("on", *settings, ranks=ranks)
        self.assertIn("graphs   forward and backward of a pass are recorded", self.output)
        self.same("on", "off")
        self.assertEqual([r["hfu"] is None for r in rows], [r["hfu"] is None for r in without])
        # Launches of graphs count the ways of their ops.
        ways = [[[r[key] for key in ("attention_cudnn", "attention_products", "attention_own", "fallbacks")] for r in run]
                for run in (rows, without)]
        self.assertEqual(*ways)
        self.assertGreater(sum(ways[0][-1]), 0)
        self.assertGreaterEqual(graphs, least)
        self.assertGreater(launched, graphs)
        return launched, graphs

    def test_same_bits(self):
        # A step has first and later passes, two sets of inputs, and more than one shape of text.
        launched, graphs = self.with_and_without(least=5)
        # Work runs as late as CUDA allows, and the host may not wait.
        self.emulate(CUDA_ON_CPU_LATE="1")
        _, late, _ = self.with_graphs("late", "profile.forbid_waits=true")
        self.assertEqual(late, launched)
        self.same("late", "off")
        # Graphs beyond the limit are not made; their passes run without, and the log reports it
        # once.
        _, fewer, one = self.with_graphs("one", "run.cuda_graph_limit=1")
        self.assertEqual(one, 1)
        self.assertLess(fewer, launched)
        self.assertEqual(self.output.count("graphs   1 recorded, the limit: passes of other shapes run without a graph"), 1)
        self.same("one", "off")

    def test_rounded_operands(self):
        self.with_and_without("precision.compute=bf16", "memory.recompute=block", "optimizer.kind=adamw", least=5)

    def test_fp16(self):
        self.with_and_without("precision.compute=fp16", "precision.loss_scale.growth_interval=3", "optimizer.kind=adamw",
                              "precision.loss_scale.init=1024", least=5)

    def test_replicas(self):
        self.emulate(CUDA_ON_CPU_GPUS="2")
        self.with_and_without("mesh.fsdp=1", "mesh.replica=2", "sharding.optimizer=replicated", "sharding.parameters=replicated",
                              "train.micro_batch=1", ranks=2, least=4)
        self.assertIn("backend=nccl 2.28.9", self.output)

    def test_sharded_optimizer(self):
        self.with_and_without("mesh.fsdp=2", "sharding.parameters=replicated", "train.micro_batch=1", "precision.compute=bf16", ranks=2,
                              least=4)

    def test_steps_that_are_looked_at(self):
        """Such a step waits for the GPU and runs without graphs, with the same bits."""
        self.emulate(CUDA_ON_CPU_LATE="1")
        self.train("off")
        looks = 'histograms = [{ of = ["weights", "gradients", "updates", "activations"], every_steps = 3 }]'
        self.good = self.changed(("{ console_every_steps = 1 }", f"{{ console_every_steps = 1, {looks} }}"))
        self.train("looked", "run.cuda_graph=on", "profile.forbid_waits=true")
        self.assertEqual(int(GRAPHS.search(self.output)[2]), (STEPS - 3) * PASSES)
        self.same("looked", "off")
        found, rows = self.rows("histogram", f"{self.folder}/looked"), self.rows(folder=f"{self.folder}/looked")
        self.assertEqual({(row["of"], row["step"]) for row in found},
                         {(kind, step) for kind in ("weights", "gradients", "updates", "activations") for step in (1, 3, 6)})
        self.assertEqual({row["nonfinite"] for row in found}, {0})
        for kind, column in (("weights", "l2_params"), ("gradients", "l2_grads")):
            for step in (1, 3, 6):
                square = sum(row["count"] * row["rms"] ** 2 for row in found if row["of"] == kind and row["step"] == step)
                self.assertAlmostEqual(square ** 0.5 / rows[step - 1][column], 1, delta=1e-6)

    def test_memory_is_as_planned(self):
        self.train("run", "run.cuda_graph=on")
        said = re.search(r"memory   per rank, MiB: (.*)", self.output)[1].split()
        given = sets(*SETTINGS, "run.device=cuda", "run.cuda_graph=on")
        self.expect(0, args=[self.deck(), "--mode", "plan", "--ranks", "1", *given])
        planned = re.findall(r"^ +([a-z]\S*) +[0-9,]+ bytes +(\S+) MiB", self.output, re.M)
        self.assertIn("workspace", dict(planned))
        for name, mib in planned:
            self.assertEqual(said[said.index(name) + 1], mib, self.output)

    def test_bench(self):
        harness.TRAINER = EMULATED
        given = sets(*SETTINGS, *ON_GPU, "run.cuda_graph=on", "bench.steps=4", "run.cuda_graph_limit=3")
        self.expect(0, args=[self.deck(), "--mode", "bench", *given])
        said = re.search(r"graphs   ([\d.]+) launches per step; these, and recording (\d+) while timed", self.output)
        self.assertGreater(float(said[1]), 0)

    def test_where_none_can_be(self):
        self.train("sharded", "run.cuda_graph=on", "mesh.fsdp=2", "train.micro_batch=1", ranks=2)
        self.assertIn('graphs   none, though run.cuda_graph = "on": passes gather parameters that are sharded over 2 ranks', self.output)
        self.assertNotIn("were one launch", self.output)
        self.train("cpu", "run.cuda_graph=on", device="auto")
        self.assertIn("unused   run.cuda_graph: applies only to passes on GPUs, and this job computes on CPUs", self.output)
        cpu = sets(*SETTINGS, "run.device=cpu", "run.cuda_graph=on")
        self.expect(2, "run.cuda_graph", 'run.device is "cpu"', "leave it out", args=[self.deck(), "--validate", *cpu])
        for words, *settings in (("dropout draws other numbers in each pass", "model.decoder.dropout=0.1"),
                                 ("dropout draws other numbers in each pass", "model.encoder.dropout=0.1"),
                                 ('determinism.level = "mesh" exchanges', "determinism.level=mesh", "determinism.slices=2")):
            given = sets(*SETTINGS, "run.device=cuda", *settings, "run.cuda_graph=on")
            self.expect(2, "run.cuda_graph", words, "no CUDA graph can repeat a pass", args=[self.deck(), "--validate", *given])

    def test_a_trace_has_a_row_of_the_gpu(self):
        """Ops have the times of the GPU, in its order; a graph is one bar."""
        for graphs in ("off", "on"):
            self.train(graphs, f"run.cuda_graph={graphs}", "profile.steps=[4]")
            trace, = trace_file.read_window(f"{self.folder}/{graphs}")
            self.assertEqual(trace.rows[trace_file.GPU], "GPU")
            # The order of the file counts: many ops of the emulated GPU take no time, so several begin at once.
            bars = [bar for bar in trace_file.spans_of(trace.events) if bar.row == trace_file.GPU]
            for one, later in zip(bars, bars[1:]):
                self.assertLessEqual(one.end, later.begin + 1e-6)
            self.assertGreater(bars[0].begin, -1000)
            self.assertGreater(sum(bar.args["flops"] for bar in bars), 0)
            ops = [span for span in trace.of_row(trace_file.MAIN) if span.kind == "op"]
            self.assertEqual("graph" in {bar.name for bar in bars}, graphs == "on")
            if graphs == "off":
                self.assertEqual([bar.name for bar in bars], [op.name for op in ops])


harness.main()
