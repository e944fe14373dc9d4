#!/usr/bin/python3
"""The average of the weights ([ema]) through the real program: against a replay in NumPy, on every mesh, after kills, in evaluations,
as initial weights, added to a run and taken away from one."""
import os
import shutil

import h5py
import numpy as np

import harness

EMA = "\n[ema]\ndecay = 0.9\nwarmup_steps = 4\nevery_steps = 2\n"
EACH = ["--set", "checkpoint.every_steps=1", "--set", "checkpoint.keep_last=20"]
MESH = ["--set", "determinism.level=mesh", "--set", "determinism.slices=4", "--set", "train.micro_batch=3"]


def replay(average, weights, steps, decay=0.9, warmup=4, every=2):
    """The averages after each of `steps`, in double precision; weights: by step."""
    average = {name: value.astype(np.float64) for name, value in average.items()}
    for step in steps:
        if step % every == 0:
            keep = min(decay, (1 + step) / (warmup + step)) if warmup else decay
            average = {name: keep * value + (1 - keep) * weights[step][name] for name, value in average.items()}
        yield step, average


class Ema(harness.RunTest):
    def group(self, root, step, folder=None):
        with h5py.File(f"{folder or self.dir}/checkpoints/{step:010}.h5") as f:
            out = {}
            if root in f:
                f[root].visititems(lambda name, d: out.__setitem__(name, d[()]) if isinstance(d, h5py.Dataset) else None)
            return out

    def evals(self, folder=None):
        return {(row["eval"], row["step"]): row["perplexity"] for row in self.rows("eval", folder)}

    def close(self, got, want):
        self.assertEqual(sorted(got), sorted(want))
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-6, err_msg=name)

    def with_ema(self, *more, folder=None):
        return [self.deck(self.good + EMA, "ema.toml"), "--dir", folder or self.dir, *EACH, *more]

    def test_replay_meshes_and_kills(self):
        both = ["--set", "eval.val.weights=both"]
        self.expect(0, args=self.with_ema(*MESH, *both, "--set", "run.threads=2"))
        weights = {step: self.group("params", step) for step in range(1, 13)}
        # The schedule is 0 in step 1, so these are the weights that the run began with.
        for step, average in replay(weights[1], weights, range(1, 13)):
            self.close(self.group("ema", step), average)
        apart = max(np.abs(self.group("ema", 12)[name] - value).max() for name, value in weights[12].items())
        self.assertGreater(apart, 1e-3)
        reference, evals = self.tensors(12), self.evals()
        self.assertEqual(sorted(evals), [("val", 6), ("val", 12), ("val_ema", 6), ("val_ema", 12)])
        for ranks, replica, sharding in ((2, 2, "replicated"), (2, 1, "sharded"), (4, 2, "sharded"), (4, 2, "zero1")):
            with self.subTest(ranks=ranks, replica=replica, sharding=sharding):
                folder = f"{self.folder}/on{ranks}{replica}{sharding}"
                how = ["--set", f"mesh.replica={replica}", "--set",
                       f"sharding.parameters={'sharded' if sharding == 'sharded' else 'replicated'}", "--set",
                       f"sharding.optimizer={'replicated' if sharding == 'replicated' else 'sharded'}"]
                self.expect(0, args=self.with_ema(*MESH, *both, *how, folder=folder), ranks=ranks)
                self.assertEqual(self.tensors(12, folder), reference)
                self.assertEqual(self.evals(folder), evals)
        # Killed after step 7, and continued on another mesh.
        folder = f"{self.folder}/on21sharded"
        for step in range(8, 13):
            os.remove(f"{folder}/checkpoints/{step:010}.h5")
        self.expect(0, "from=checkpoint", "step=8 ", args=self.with_ema(*MESH, *both, folder=folder), ranks=4)
        self.assertEqual(self.tensors(12, folder), reference)
        self.assertEqual(self.evals(folder), evals)

    def test_bf16_and_best(self):
        # Rounded weights travel; the best value is that of the average; another run begins from it.
        narrow = ["--set", "precision.compute=bf16", "--set", "sharding.parameters=replicated"]
        self.expect(0, "eval=val_ema step=12", "best     val_ema/perplexity", ranks=2,
                    args=self.with_ema(*narrow, "--set", "eval.val.weights=ema", "--set", "checkpoint.best=val_ema/perplexity:min"))
        evals = self.evals()
        self.assertEqual(sorted(evals), [("val_ema", 6), ("val_ema", 12)])
        source = f"{self.dir}/checkpoints/{12:010}.h5"
        folder = self.folder + "/begun"
        self.expect(0, "from=init", args=[self.deck(), "--dir", folder, *narrow, *EACH, "--set", f"init.from={source}", "--set",
                                          "init.weights=ema", "--set", "train.total_steps=1", "--set", "schedule.default.warmup_steps=1",
                                          "--set", "eval.val.at_start=true"], ranks=2)
        want = {name: value.tobytes() for name, value in self.group("ema", 12).items()}
        self.assertEqual({name: value.tobytes() for name, value in self.group("params", 1, folder).items()}, want)
        self.assertEqual(self.evals(folder)[("val", 0)], evals[("val_ema", 12)])
        # Without init.weights the trained ones are taken.
        other = self.folder + "/raw"
        self.expect(0, "from=init", args=[self.deck(), "--dir", other, *narrow, *EACH, "--set", f"init.from={source}", "--set",
                                          "train.total_steps=1", "--set", "schedule.default.warmup_steps=1"], ranks=2)
        self.assertNotEqual({name: value.tobytes() for name, value in self.group("params", 1, other).items()}, want)
        self.assertEqual(self.group("ema", 1, other), {})

    def test_a_skipped_step_leaves_it(self):
        args = self.poisoned("skip", *EACH, "--set", "ema.decay=0.5")
        self.expect(0, "skipped", args=args)
        weights = {step: self.group("params", step) for step in range(1, 9)}
        skipped = {4: weights[4]}
        for name, value in self.group("ema", 3).items():
            self.assertEqual(self.group("ema", 4)[name].tobytes(), value.tobytes())
        self.assertEqual(weights[3].keys(), skipped[4].keys())
        moved = max(np.abs(self.group("ema", 3)[name] - weights[3][name]).max() for name in weights[3])
        self.assertGreater(moved, 1e-4)  # an update would have been seen
        steps = [step for step in range(1, 9) if step != 4]
        for step, average in replay(weights[1], weights, steps, decay=0.5, warmup=0, every=1):
            self.close(self.group("ema", step), average)

    def test_frozen(self):
        rule = '[[optimizer.rule]]\nmatch = "encoder/.*"\nfrozen = true\n'
        self.good = self.changed(("[[optimizer.rule]]\nmatch       = \".*/kernel\"", rule + "[[optimizer.rule]]\nmatch       = \".*/kernel\""))
        self.expect(0, args=self.with_ema("--set", "eval.val.weights=both"), ranks=2)
        self.assertEqual(sorted(self.group("ema", 12)), sorted(n for n in self.group("params", 12) if not n.startswith("encoder/")))
        folder = self.folder + "/begun"
        self.expect(0, "from=init", args=[self.deck(), "--dir", folder, *EACH, "--set", f"init.from={self.dir}", "--set", "init.weights=ema",
                                          "--set", "train.total_steps=1", "--set", "schedule.default.warmup_steps=1", "--set",
                                          "eval.val.at_start=true"], ranks=2)
        self.assertEqual(self.evals(folder)[("val", 0)], self.evals()[("val_ema", 12)])

    def test_added_and_taken_away(self):
        plain = [self.deck(), *EACH]
        self.expect(0, args=[*plain, "--set", "train.total_steps=8"], ranks=2)
        with open(self.dir + "/deck.resolved.toml") as f:
            self.assertNotIn("\n[ema]", f.read())
        self.assertEqual(self.group("ema", 8), {})
        straight = self.folder + "/straight"
        shutil.copytree(self.dir, straight)
        self.expect(0, "holds no average of the weights: it starts from the weights", "changed  ema.decay: absent -> 0.9",
                    args=self.with_ema(), ranks=2)
        weights = {step: self.group("params", step) for step in range(8, 13)}
        for step, average in replay(weights[8], weights, range(9, 13)):
            self.close(self.group("ema", step), average)
        # Training itself is not changed by it.
        self.expect(0, args=[*plain, "--dir", straight], ranks=2)
        self.assertEqual(self.tensors(12, straight), {name: value for name, value in self.tensors(12).items() if not name.startswith("ema/")})
        # A branch begins with the average, or without.
        branch = self.folder + "/branch"
        how = ["--set", f"checkpoint.branch_from={straight}", "--set", "train.total_steps=13"]
        self.expect(0, "holds no average", args=self.with_ema(*how, folder=branch), ranks=2)
        self.expect(0, "it is left out, because the deck has no [ema]", "changed  ema.decay: 0.9 -> absent",
                    args=[*plain, "--set", "train.total_steps=14"], ranks=2)
        self.assertEqual(self.group("ema", 14), {})

    def test_refused(self):
        for words, text in ((["ema.decay=1"], "would never let a weight in"), (["ema.decay=-0.5"], "ema.decay"),
                            (["ema.decay=2"], "ema.decay"), (["ema.decai=0.9"], "did you mean"), (["ema.every_steps=0"], "ema.every"),
                            (["ema=true"], "expected a table"), (["ema.warmup_steps=-1"], "ema.warmup"),
                            (["eval.val.weights=ema"], "needs the average of the weights"),
                            (["eval.val.weights=average"], "Accepted"), (["init.weights=best"], "Accepted"),
                            (["checkpoint.best=val_ema/perplexity:min"], "there is no [eval.val_ema]"),
                            (["ema.decay=0.9", "eval.val.weights=ema", "checkpoint.best=val/perplexity:min"], "val_ema"),
                            (["ema.decay=0.9", "eval.val.weights=both", 'eval.val_ema={kind="perplexity",data="train"}'], "rename")):
            with self.subTest(words=words):
                self.expect(2, text, args=[self.deck(), "--validate", *(part for word in words for part in ("--set", word))])
        self.expect(0, args=[self.deck(), *EACH, "--set", "train.total_steps=1"], ranks=2)
        self.expect(5, "holds no average of weights", args=[self.deck(), "--dir", self.folder + "/other", "--set", f"init.from={self.dir}",
                                                            "--set", "init.weights=ema"], ranks=2)


if __name__ == "__main__":
    harness.main()
