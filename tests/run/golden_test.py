#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that the runner of recorded cases reports different results: copies of case files with
one change must fail, by name. Cases of other sizes, made with NumPy, must pass."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest
from unittest import mock

import h5py
import numpy as np

import harness
import published_model

GOLDEN = os.path.join(os.path.dirname(harness.TRAINER), "tests", "golden")
CASES = os.path.join(harness.SOURCE, "tests", "golden")


def put(f, name, values, dtype=np.float32, allowed=1e-5):
    f[name] = np.asarray(values, dtype)
    if np.dtype(dtype).kind == "f":
        f[name].attrs["tol"] = allowed * np.abs(values).max()


def make_predictions(path, case, classes, tokens, images, steps):
    """Writes predict.h5 for a case, from the NumPy model. tokens: length of the texts of the classes."""
    m, rng = published_model.load(), np.random.default_rng(classes)
    config, p = json.loads(case["config"].attrs["json"])["model"], m.tree(case["params_init"])
    encoded = m.encode(p, config, case["batch/image"][()].astype(np.float64))
    n, causal = len(encoded), np.zeros(len(encoded), bool)
    with h5py.File(path, "w") as f:
        texts = rng.integers(3, config["vocab_size"], (classes, tokens)) * (np.arange(tokens) < rng.integers(1, tokens + 1, (classes, 1)))
        scores = published_model.scores(p, config, encoded, texts)
        label, mask = rng.integers(0, classes, n), np.arange(n) % 5 != 2
        for name, values in {"label_tokens": texts, "label": label, "prediction": scores.argmax(1), "mask_sum": mask.sum(),
                             "prec@1_sum": (scores.argmax(1) == label)[mask].sum()}.items():
            put(f, f"score/{name}", values, np.int32)
        put(f, "score/mask", mask, np.uint8)
        put(f, "score/scores", scores)
        if "labels" in case["batch"]:
            labels = case["batch/labels"][()]
            w = m.weights_of(labels)
            mean = m.xent(m.decode(p, config, encoded, m.shift(labels), causal), labels, w, 0.0)
            put(f, "perplexity/mask", mask, np.uint8)
            for kind, each in (("sum", mean * w.sum(1)), ("per_token", mean)):
                put(f, f"perplexity/{kind}/per_example", each)
                put(f, f"perplexity/{kind}/batch_sum", each[mask].sum())
                put(f, f"perplexity/{kind}/value", each[mask].mean())
        put(f, "enc_rep/pre_logits", encoded.mean(1))
        caches = {}

        def recording(p, path, queries, memory, mask=None, attend=m.attention):
            if path.endswith("SelfAttn"):
                for name in ("key", "value"):
                    made = np.einsum("bli,ihd->blhd", memory, p[f"{path}/{name}/kernel"]) + p.get(f"{path}/{name}/bias", 0.0)
                    unused = config["seq_len"] - made.shape[1]
                    caches[f"{path}/cached_{name}"] = np.pad(made, ((0, 0), (0, unused), (0, 0), (0, 0)))
            return attend(p, path, queries, memory, mask)

        fed = rng.integers(0, config["vocab_size"], (images, steps))
        fed[:, 0] = 0
        put(f, "decode/tokens", fed, np.int32)
        put(f, "decode/encoded", encoded[:images])
        with mock.patch.object(m, "attention", recording):
            put(f, "decode/logits", m.decode(p, config, encoded[:images], fed, causal[:images]))
        for name, values in caches.items():
            put(f, f"decode/cache/{name}", values)


def make_probes(path, sizes):
    """Writes fewshot.h5: probes of sizes {name: (features, classes, training rows, test rows, shots)}, solved by NumPy."""
    with h5py.File(path, "w") as f:
        for name, (features, classes, rows, tests, shots) in sizes.items():
            rng = np.random.default_rng(features)
            centres = rng.standard_normal((classes, features))
            sets = {}
            for part, count in (("train", rows), ("test", tests)):
                y = rng.integers(0, classes, count)
                x = (centres[y] + rng.standard_normal((count, features))).astype(np.float32)
                sets[part] = x, y
                put(f, f"{name}/{part}_x", x)
                put(f, f"{name}/{part}_y", y, np.int32)
            (x, y), (test_x, test_y) = sets["train"], sets["test"]
            f[name].attrs["num_classes"] = classes
            l2s, accuracy = [16.0, 1024.0], np.zeros((2, 2, len(shots)))
            for seed in range(2):
                choose = np.random.default_rng(seed)
                rows_of = [choose.permutation(np.where(y == c)[0]) for c in range(classes)]
                put(f, f"{name}/seed{seed}/indices", np.concatenate(rows_of), np.int32)
                put(f, f"{name}/seed{seed}/per_class", [len(r) for r in rows_of], np.int32)
                for s, count in enumerate(shots):
                    chosen = np.concatenate([r[:count] for r in rows_of])
                    few = x[chosen].astype(np.float64)
                    mean, std = few.mean(0), few.std(0) + 1e-5

                    def normed(a, mean=mean, std=std):
                        return np.c_[(a - mean) / std, np.full(len(a), 100.0)]

                    a, target = normed(few), 2.0 * np.eye(classes)[y[chosen]] - 1
                    for i, l2 in enumerate(l2s):
                        w = np.linalg.solve(a.T @ a + l2 * np.eye(features + 1), a.T @ target)
                        accuracy[i, seed, s] = np.mean(np.argmax(normed(test_x) @ w, 1) == test_y)
                        put(f, f"{name}/seed{seed}/weights_{count}shot_l2_{int(l2)}", w)
            put(f, f"{name}/l2", l2s)
            put(f, f"{name}/shots", shots, np.int32)
            put(f, f"{name}/accuracy", accuracy)


class Golden(unittest.TestCase):
    def temporary(self):
        folder = tempfile.mkdtemp(prefix="golden_test_")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        return folder

    @staticmethod
    def run_files(files, ranks, *options):
        done = subprocess.run(["mpirun", "-np", str(ranks), GOLDEN, *options, *files], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=harness.GUARD, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout

    def run_case(self, case, change=None, ranks=2):
        folder = self.temporary()
        path = shutil.copy(f"{CASES}/{case}.h5", folder)
        if case == "predict":
            shutil.copy(f"{CASES}/case_ar.h5", folder)
        if change:
            with h5py.File(path, "r+") as f:
                change(f)
        return self.run_files([path], ranks)

    def refused(self, case, quantity, change):
        code, output = self.run_case(case, change)
        self.assertEqual(code, 1, output)
        beyond = [line for line in output.splitlines() if line.endswith("BEYOND")]
        self.assertTrue(any(quantity in line for line in beyond), output)

    @staticmethod
    def shifted(name, factor, element=None):
        """Adds `factor` tolerances to one element, or to all."""
        def change(f):
            values = f[name][()]
            shift = factor * f[name].attrs["tol"]
            if element is None:
                values = values + shift
            else:
                values.reshape(-1)[element] += shift
            f[name][...] = values
        return change

    def test_unchanged(self):
        for case in ("case_mixed_r050", "case_momentum"):
            self.assertEqual(self.run_case(case)[0], 0)

    def test_models(self):
        kernel = "encoder/Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel"
        self.refused("case_ar", "forward/logits", self.shifted("forward/logits", 3, element=5))
        self.refused("case_ar", "forward/loss", self.shifted("forward/loss", 3))
        self.refused("case_ar", "grad", self.shifted("grads/" + kernel, 2, element=7))

    def test_training(self):
        kernel = "encoder/Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel"
        self.refused("case_adam", "parameters", self.shifted("params_final/" + kernel, 2, element=7))
        self.refused("case_adam", "training_loss", self.shifted("steps/training_loss", 2, element=3))
        self.refused("case_adafactor", "parameters", self.shifted("params_final/" + kernel, 1.5))
        with h5py.File(f"{CASES}/case_adafactor.h5") as f:
            v_row = sorted(name for name in f["opt_final/1/0/0/1"] if name)
        self.assertTrue(v_row)
        self.refused("case_adafactor", "v_row", self.shifted(f"opt_final/1/0/0/1/{kernel}", 3))

    def test_predictions(self):
        cache = "decode/cache/decoder/EncDecBlock1/SelfAttn/cached_value"
        self.assertEqual(self.run_case("predict")[0], 0)
        for quantity, name, element in (("cached logits", "decode/logits", 7), ("caches", cache, 5),
                                        ("representations", "decode/encoded", -1), ("representations", "enc_rep/pre_logits", 9),
                                        ("scores", "score/scores", -1), ("perplexity", "perplexity/sum/per_example", 2)):
            self.refused("predict", quantity, self.shifted(name, 2, element=element))

        def fed_another(f):
            f["decode/tokens"][1, 1] += 1
        self.refused("predict", "cached logits", fed_another)

    def test_predictions_of_other_sizes(self):
        """Another model, whose texts are shorter than its positions. Numbers of classes, tokens, images, steps and
        features, and shots, are other ones than those of the recorded files."""
        folder = self.temporary()
        case = shutil.copy(f"{CASES}/case_sincos.h5", f"{folder}/case_ar.h5")
        with h5py.File(case) as f:
            make_predictions(f"{folder}/predict.h5", f, classes=7, tokens=8, images=5, steps=8)
        make_probes(f"{folder}/fewshot.h5", {"small": (9, 3, 50, 111, (1, 4, 30)), "large": (70, 8, 90, 64, (2, 3))})
        files = [f"{folder}/predict.h5", f"{folder}/fewshot.h5"]
        for ranks in (1, 2, 3, 4):
            for compute in ("f32", "bf16"):
                code, output = self.run_files(files, ranks, "--compute", compute)
                self.assertEqual(code, 0, output)
                for quantity in ("scores", "predictions", "perplexity", "representations", "cached logits", "caches", "weights",
                                 "accuracy, l2 >= 16"):
                    self.assertIn(f"\n  {quantity} ", output)

    def test_predictions_need_parameters_and_images_alone(self):
        """Five images, which divide among no two ranks, and one class; no labels, draws and gradients."""
        folder = self.temporary()
        with h5py.File(shutil.copy(f"{CASES}/case_mixed_r050.h5", f"{folder}/case_ar.h5"), "r+") as f:
            images = f["batch/image"][:5]
            for group in set(f) - {"config", "params_init"}:
                del f[group]
            f["batch/image"] = images
            make_predictions(f"{folder}/predict.h5", f, classes=1, tokens=1, images=1, steps=1)
        for options in ([], ["--compute", "bf16"], ["--level", "mesh"]):
            for ranks in (1, 2, 4):
                code, output = self.run_files([f"{folder}/predict.h5"], ranks, *options)
                self.assertEqual(code, 0, output)
        self.assertEqual(self.run_files([f"{folder}/predict.h5"], 3)[0], 0)
        with h5py.File(f"{folder}/predict.h5", "r+") as f:
            self.shifted("score/scores", 2, element=4)(f)
        self.assertEqual(self.run_files([f"{folder}/predict.h5"], 4)[0], 1)
        code, output = self.run_files([f"{folder}/case_ar.h5"], 1)
        self.assertEqual(code, 2, output)

    def test_heads_and_losses(self):
        self.refused("ssl/heads", "gradients", self.shifted("mlp_bn_relu/grads/clf.0.weight", 3, element=5))
        self.refused("ssl/losses", "loss gradients", self.shifted("swav_queue/ranks4/step2/grad", 3, element=7))
        self.refused("ssl/losses", "loss states", self.shifted("dino/ranks1/step2/center", 3, element=1))

    def test_probes(self):
        def swapped(f):
            rows = f["wide/seed1/indices"]
            rows[0], rows[1] = rows[1], rows[0]

        def of_accuracy(change):
            def moved(f):
                f["narrow/accuracy"][3, 2, 4] += change
            return moved

        self.assertEqual(self.run_case("fewshot")[0], 0)
        self.refused("fewshot", "wide/seed1/indices", swapped)
        self.refused("fewshot", "narrow/seed2/weights_25shot_l2_16",
                     self.shifted("narrow/seed2/weights_25shot_l2_16", 1.5, element=4))
        self.refused("fewshot", "seed 2 shots 25", of_accuracy(3 / 300))


harness.main()
