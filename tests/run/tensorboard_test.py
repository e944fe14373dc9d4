#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests histograms of tensors and files for TensorBoard: equal counts on every mesh, the same training, every step once
after kills and rewinds."""
import importlib.util
import io
import json
import math
import os
import re
import signal
import subprocess
import tarfile
import time

import h5py
import numpy as np
from PIL import Image

import event_files
import harness
from live_harness import LiveTest

MESH = ["--set", "determinism.level=mesh", "--set", "determinism.slices=4", "--set", "train.global_batch=16", "--set",
        "train.micro_batch=4"]
LOOKS = """
[[log.histograms]]
match       = ".*"
of          = ["weights", "gradients", "updates", "activations"]
every_steps = 5
[[log.rms]]
match       = "decoder/.*"
of          = ["gradients", "activations"]
every_steps = 4
"""
CAPTIONS = """
[eval.captions]
kind        = "captioning"
data        = "train"
every_steps = 6
images      = 3
"""
KINDS = {"weights", "gradients", "updates", "activations"}


def magnitude(number):
    """Returns the lower limit of a bucket of positive values."""
    return float(np.array(number << 22, np.uint32).view(np.float32))


class Looked(LiveTest):
    def setUp(self):
        super().setUp()
        # Tables can be added to a table of this form.
        peak = "profile = { peak_tflops = 0.1 }"
        self.good = self.changed((f"log    = {{ console_every_steps = 1 }}\n{peak}", f"{peak}\n\n[log]\nconsole_every_steps = 1"))

    def looking(self, *more, extra=LOOKS):
        return [self.deck(self.good + extra), *more]

    def histograms(self, folder=None):
        """Returns {(kind, tensor, step): row} of metrics.jsonl."""
        found = {}
        for row in self.rows("histogram", folder):
            key = row.pop("of"), row.pop("tensor"), row.pop("step")
            self.assertNotIn(key, found)
            found[key] = row
        return found

    def weights(self, step, folder=None):
        with h5py.File(f"{folder or self.dir}/checkpoints/{step:010}.h5") as f:
            found = {}
            f["params"].visititems(lambda name, d: found.__setitem__(name, d[()]) if isinstance(d, h5py.Dataset) else None)
        return found

    # ---------------------------------------------------------------- histograms

    def test_counts_are_those_of_every_mesh(self):
        self.expect(0, args=[self.deck(), *MESH])
        plain = self.tensors(12)
        losses = [row["loss"] for row in self.rows()]
        seen = {}
        for name, ranks, *more in (("one", 1), ("two", 2), ("four", 4, "--set", "mesh.replica=2"),
                                   ("copies", 2, "--set", "sharding.parameters=replicated", "--set", "sharding.optimizer=replicated"),
                                   ("replicas", 2, "--set", "mesh.replica=2", "--set", "mesh.fsdp=1")):
            folder = f"{self.folder}/{name}"
            self.expect(0, args=self.looking(*MESH, "--dir", folder, *more), ranks=ranks)
            # Looking changes no bit of the run.
            self.assertEqual(self.tensors(12, folder), plain, name)
            self.assertEqual([row["loss"] for row in self.rows(folder=folder)], losses)
            seen[name] = self.histograms(folder), self.rows("rms", folder)
        one, roots = seen["one"]
        for name, found in seen.items():
            self.assertEqual(found, (one, roots), name)
        self.assertEqual({step for _, _, step in one}, {1, 5, 10, 12})
        self.assertEqual({kind for kind, _, _ in one}, KINDS)
        self.assertEqual({(row["of"], row["step"]) for row in roots},
                         {(kind, step) for kind in ("gradients", "activations") for step in (1, 4, 8, 12)})
        self.check_values(f"{self.folder}/one", one, roots)

    def check_values(self, folder, found, roots):
        # Weights are those of the checkpoint of their step.
        weights = self.weights(12, folder)
        for name, tensor in weights.items():
            row, values = found["weights", name, 12], tensor.astype(np.float64).ravel()
            self.assertEqual(row["count"], values.size)
            self.assertEqual((row["min"], row["max"]), (values.min(), values.max()))
            self.assertAlmostEqual(row["rms"], math.sqrt(np.mean(values ** 2)), delta=1e-12)
            bits = np.abs(tensor).ravel().view(np.uint32) >> 22
            numbers = np.where(np.signbit(tensor.ravel()), -bits.astype(int), bits.astype(int))
            expected = {f"b{n}": int(count) for n, count in zip(*np.unique(numbers, return_counts=True))}
            self.assertEqual({key: value for key, value in row.items() if re.fullmatch(r"b-?\d+", key)}, expected)
        # Norms of the same step are in the train rows.
        for kind, column in (("gradients", "l2_grads"), ("updates", "l2_updates"), ("weights", "l2_params")):
            rows = [row for (k, _, step), row in found.items() if k == kind and step == 12]
            norm = math.sqrt(sum(row["count"] * row["rms"] ** 2 for row in rows))
            wanted = self.rows(folder=folder)[-1][column]
            self.assertAlmostEqual(norm / wanted, 1, delta=1e-3 if kind == "updates" else 1e-6, msg=kind)
        # Blocks have outputs: 16 images of 4 patches in the encoder.
        outputs = {tensor: row for (k, tensor, step), row in found.items() if k == "activations" and step == 12}
        self.assertEqual(outputs["encoder/Transformer/encoderblock_0"]["count"], 16 * 4 * 32)
        self.assertEqual(len(outputs), 2)
        root = {row["of"]: row for row in roots if row["step"] == 12}
        for name, value in root["gradients"].items():
            if name.startswith("decoder/"):
                self.assertEqual(value, found["gradients", name, 12]["rms"])
        with h5py.File(folder + "/metrics.h5") as f:
            for (kind, tensor, step), row in found.items():
                group = f[f"histograms/{kind}/{tensor}"]
                at = list(group["step"]).index(step)
                numbers, low, high = list(group["bucket"]), list(group["low"]), list(group["high"])
                self.assertEqual({f"b{n}": c for n, c in zip(numbers, group["counts"][at]) if c},
                                 {key: value for key, value in row.items() if re.fullmatch(r"b-?\d+", key)})
                for number, left, right in zip(numbers, low, high):
                    if number > 0:
                        self.assertEqual((left, right), (magnitude(number), magnitude(number + 1)))
                for name in ("rms", "mean", "min", "max", "count", "nonfinite"):
                    self.assertEqual(group[name][at], row[name])
            names = {name.replace("~", "/") for name in f["rms/gradients"]} - {"step"}
            self.assertEqual(names, set(root["gradients"]) - {"kind", "of", "step"})

    def test_wrong_rules(self):
        for text, fragment in (('match = "encodr/.*"', "matches no parameter; paths look like "),
                               ('match = "enc(.*"', "regular expression"),
                               ('match = ".*/kernel"\nof = ["activations"]', "matches no block of the model (activations belong to"),
                               ('of = []', "names nothing"), ('of = ["weigths"]', 'did you mean "weights"')):
            with self.subTest(text):
                self.expect(2, "log.", fragment, args=[self.deck(self.good + f"[[log.histograms]]\n{text}\n"), "--validate"])

    def test_values_that_are_not_finite(self):
        """The gradients of a step that is skipped are counted all the same."""
        args = self.poisoned("skip")
        with open(args[0], "a") as f:
            f.write(LOOKS.replace("every_steps = 5", "every_steps = 1"))
        self.expect(0, args=args)
        bad = [row["nonfinite"] for (kind, _, step), row in self.histograms().items() if kind == "gradients" and step == 4]
        self.assertGreater(sum(bad), 0)
        self.assertEqual([row["nonfinite"] for (kind, _, step), row in self.histograms().items() if kind == "weights"],
                         [0] * sum(kind == "weights" for kind, _, _ in self.histograms()))
        self.assertIn("inf", [value for row in self.rows("rms") if row["step"] == 4 for value in row.values()])

    def test_report(self):
        self.expect(0, args=self.looking())
        done = subprocess.run(["/usr/bin/python3", os.path.join(harness.SOURCE, "tools/report"), self.dir, "--out", "page.html"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD, cwd=self.folder,
                              env={**os.environ, "TRAINER": harness.TRAINER})
        self.assertEqual(done.returncode, 0, done.stdout)
        with open(f"{self.folder}/page.html", encoding="utf-8") as f:
            page = re.search(r'<section id="tensors">(.*?)</section>', f.read(), re.S)[1]
        self.assertEqual(set(re.findall(r"<h4>([a-z]+)</h4>", page)), KINDS)
        tensors = {tensor for kind, tensor, _ in self.histograms() if kind == "weights"}
        self.assertLessEqual(tensors, set(re.findall(r"<figcaption title=\"([^\"]+)\"", page)))
        root = next(row for row in self.rows("rms") if row["of"] == "gradients" and row["step"] == 12)
        for name, value in root.items():
            if name.startswith("decoder/"):
                self.assertRegex(page, rf"<td>{re.escape(name)}</td>.*?<td>{value:.4g}</td></tr>")
        self.assertEqual(page.count("data:image/png"), page.count("<figure") + page.count('class="strip"'))

    # ---------------------------------------------------------------- TensorBoard

    def board_deck(self, *more):
        return self.looking("--set", "log.tensorboard=true", *more, extra=LOOKS + CAPTIONS)

    def check_events(self, last):
        """Checks that the event files hold what metrics.jsonl holds, every step once."""
        found = event_files.events(self.dir)
        rows = self.rows()
        self.assertEqual([row["step"] for row in rows], list(range(1, last + 1)))
        for tag, column in (("train/loss", "loss"), ("train/l2_grads", "l2_grads"), ("speed/ms", "ms"), ("memory/host_mib", "host_mib"),
                            ("progress/examples_seen", "examples_seen")):
            known = [(row["step"], "scalar", float(np.float32(row[column]))) for row in rows if column in row]
            self.assertEqual(found[tag], known, tag)
        for name in ("val", "captions"):
            evaluations = [row for row in self.rows("eval") if row["eval"] == name]
            column = {"val": "perplexity", "captions": "cider_d"}[name]
            self.assertEqual([step for step, _, _ in found[f"eval/{name}/{column}"]], [row["step"] for row in evaluations])
        histograms = self.histograms()
        self.assertEqual({(tag, step) for tag, values in found.items() for step, kind, _ in values if kind == "histogram"},
                         {(f"histograms/{kind}/{tensor}", step) for kind, tensor, step in histograms})
        for (kind, tensor, step), row in histograms.items():
            value, = (v for s, _, v in found[f"histograms/{kind}/{tensor}"] if s == step)
            self.assertEqual((value["num"], value["min"], value["max"], sum(value["counts"])),
                             (row["count"], row["min"], row["max"], row["count"]))
            self.assertEqual(value["limits"], sorted(value["limits"]))
            self.assertEqual(sum(count > 0 for count in value["counts"]), sum(bool(re.fullmatch(r"b-?\d+", key)) for key in row))
        self.assertEqual({(row["of"], row["step"]) for row in self.rows("rms")},
                         {(tag.split("/")[1], step) for tag, values in found.items() if tag.startswith("rms/") for step, _, _ in values})
        self.check_captions(found)
        with open(self.dir + "/deck.resolved.toml") as f:
            self.assertEqual([line[4:] for line in found["deck"][-1][2].rstrip("\n").split("\n")], f.read().rstrip("\n").split("\n"))
        return found

    def check_captions(self, found):
        for step, _, text in found["captions/captions"]:
            folder = f"{self.dir}/eval/captions/{step:010}"
            with open(folder + "/captions.jsonl") as f:
                rows = [json.loads(line) for line in f][:3]
            cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.strip().split("\n")]
            self.assertEqual(cells[0], ["image", "caption", "references", "log-likelihood"])
            self.assertEqual([re.sub(r"\\(.)", r"\1", cell) for cell in (row[1] for row in cells[2:])],
                             [" ".join(row["caption"].split(" ")).strip() for row in rows])
            for i, image in enumerate(np.load(folder + "/images.npy")):
                (height, width, channels, png), = (v for s, _, v in found[f"captions/captions/{i}"] if s == step)
                self.assertEqual((height, width, channels), image.shape)
                np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png))), image)

    def kill_after(self, step, *args):
        """Starts the run, and kills all of it when this step's row is there."""
        job = self.start_deck(*args)
        self.until(job, f"step={step} loss")
        for rank in self.ranks(job):
            os.kill(rank, signal.SIGKILL)
        job.communicate(timeout=harness.GUARD)

    def start_deck(self, *args):
        return subprocess.Popen(["mpirun", "-np", "2", harness.TRAINER, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                cwd=self.folder, text=True)

    def killed_twice(self):
        # Rows are written at once, so the record that the kill hits is a row's. Checkpoints are there at once, so no start
        # begins anew, which would make the decks before it void.
        args = self.board_deck("--set", "train.total_steps=24", "--set", "log.flush_s=0", "--set", "checkpoint.async=false")
        self.kill_after(7, *args)
        # The kill hit a record.
        path, = event_files.files(self.dir)
        whole, _ = event_files.records(path)
        with open(path, "r+b") as f:
            f.truncate(os.path.getsize(path) - len(whole[-1]) // 2 - 8)
        self.assertTrue(event_files.records(path)[1])
        self.kill_after(14, *args)
        self.expect(0, args=args, ranks=2)
        self.assertEqual(len(event_files.files(self.dir)), 3)

    def test_killed_twice(self):
        self.killed_twice()
        found = self.check_events(24)
        self.assertEqual(len(found["deck"]), 3)
        # --cleanup knows the files.
        self.expect(0, f"{self.dir} was removed", args=self.board_deck("--set", "train.total_steps=24", "--cleanup"))

    def test_the_run_goes_back(self):
        args = self.poisoned("rewind", "--set", "log.tensorboard=true")
        self.expect(0, "went back to step 2", args=args, ranks=2)
        found = event_files.events(self.dir)
        self.assertEqual([(step, value) for step, _, value in found["train/loss"]],
                         [(row["step"], float(np.float32(row["loss"]))) for row in self.rows()])
        self.assertEqual(len(event_files.files(self.dir)), 1 + self.output.count("went back to step"))

    def test_tensorboards_own_loader(self):
        """TensorBoard's package reads the files of a run that was killed twice."""
        if not importlib.util.find_spec("tensorboard"):
            self.skipTest("this Python has no package tensorboard")
        from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
        self.killed_twice()
        found = event_files.events(self.dir)
        loader = event_accumulator.EventAccumulator(self.dir + "/tensorboard",
                                                    size_guidance=dict.fromkeys(event_accumulator.DEFAULT_SIZE_GUIDANCE, 0))
        loader.Reload()
        tags = loader.Tags()
        by_kind = {kind: sorted(tag for tag, values in found.items() if values[0][1] == kind)
                   for kind in ("scalar", "histogram", "image", "text")}
        self.assertEqual([sorted(tags[key]) for key in ("scalars", "histograms", "images", "tensors")],
                         [by_kind[key] for key in ("scalar", "histogram", "image", "text")])
        for tag in by_kind["scalar"]:
            self.assertEqual([(e.step, e.value) for e in loader.Scalars(tag)], [(step, value) for step, _, value in found[tag]])
        for tag in by_kind["histogram"]:
            self.assertEqual([(e.step, list(e.histogram_value.bucket)) for e in loader.Histograms(tag)],
                             [(step, value["counts"]) for step, _, value in found[tag]])
        for tag in by_kind["image"]:
            self.assertEqual([(e.step, e.encoded_image_string) for e in loader.Images(tag)],
                             [(step, value[3]) for step, _, value in found[tag]])
        # This loader does not drop texts. The one behind the page keeps every value as a tensor, and drops all alike.
        page = plugin_event_accumulator.EventAccumulator(self.dir + "/tensorboard", size_guidance={"tensors": 0})
        page.Reload()
        self.assertEqual({tag: [e.step for e in page.Tensors(tag)] for tag in page.Tags()["tensors"]},
                         {tag: [step for step, _, _ in values] for tag, values in found.items()})
        for tag in by_kind["text"]:
            self.assertEqual([e.tensor_proto.string_val[0].decode() for e in page.Tensors(tag)], [value for _, _, value in found[tag]])


harness.main()
