#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the average of the weights ([ema]) in the real program: against a replay in NumPy, on
every mesh, after kills, in evaluations, as initial weights, added to a run and removed from one."""
import os
import shutil

import h5py
import numpy as np

import harness
from harness import sets

EMA = "\n[ema]\ndecay = 0.9\nwarmup_steps = 4\nevery_steps = 2\n"


EACH = sets("checkpoint.every_steps=1", "checkpoint.keep_last=20")
MESH = sets("determinism.level=mesh", "determinism.slices=4", "train.micro_batch=3")
# One step with a learning rate of 0 leaves the run's initial weights.
BEGIN = sets("train.total_steps=1", "schedule.default.warmup_steps=1")
FROZEN = '[[optimizer.rule]]\nmatch = "encoder/.*"\nfrozen = true\n'
FIRST_RULE = '[[optimizer.rule]]\nmatch       = ".*/kernel"'


def replay(average, weights, steps, decay=0.9, warmup=4, every=2):
    """Yields the averages after each of `steps`, in double precision; weights: by step."""
    average = {name: value.astype(np.float64) for name, value in average.items()}
    for step in steps:
        if step % every == 0:
            keep = min(decay, (1 + step) / (warmup + step)) if warmup else decay
            average = {name: keep * value + (1 - keep) * weights[step][name]
                       for name, value in average.items()}
        yield step, average


def as_bytes(tensors):
    return {name: value.tobytes() for name, value in tensors.items()}


class Ema(harness.RunTest):
    def group(self, root, step, folder=None):
        out = {}

        def take(name, item):
            if isinstance(item, h5py.Dataset):
                out[name] = item[()]

        with h5py.File(f"{folder or self.dir}/checkpoints/{step:010}.h5") as f:
            if root in f:
                f[root].visititems(take)
        return out

    def evals(self, folder=None):
        rows = self.rows("eval", folder)
        return {(row["eval"], row["step"]): row["perplexity"] for row in rows}

    def same(self, got, want):
        """Compares tensor by tensor: a difference of all tensors would take minutes to print."""
        self.assertEqual(sorted(got), sorted(want))
        for name, value in want.items():
            self.assertTrue(got[name] == value, name)

    def close(self, got, want):
        self.assertEqual(sorted(got), sorted(want))
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-6, err_msg=name)

    def with_ema(self, *more, folder=None):
        deck = self.deck(self.good + EMA, "ema.toml")
        return [deck, "--dir", folder or self.dir, *EACH, *more]

    def test_replay_meshes_and_kills(self):
        both = sets("eval.val.weights=both")
        self.expect(0, args=self.with_ema(*MESH, *both, *sets("run.threads=2")))
        weights = {step: self.group("params", step) for step in range(1, 13)}
        # The schedule is 0 in step 1, so these are the run's initial weights.
        for step, average in replay(weights[1], weights, range(1, 13)):
            self.close(self.group("ema", step), average)
        last = self.group("ema", 12)
        apart = max(np.abs(last[name] - value).max() for name, value in weights[12].items())
        self.assertGreater(apart, 1e-3)
        reference, evals = self.tensors(12), self.evals()
        self.assertEqual(sorted(evals),
                         [("val", 6), ("val", 12), ("val_ema", 6), ("val_ema", 12)])
        replicated, sharded = "replicated", "sharded"
        for ranks, replica, parameters, optimizer in ((2, 2, replicated, replicated),
                                                      (2, 1, sharded, sharded),
                                                      (4, 2, sharded, sharded),
                                                      (4, 2, replicated, sharded)):
            with self.subTest(ranks=ranks, replica=replica, parameters=parameters):
                folder = f"{self.folder}/on{ranks}{replica}{parameters}"
                how = sets(f"mesh.replica={replica}", f"sharding.parameters={parameters}",
                           f"sharding.optimizer={optimizer}")
                self.expect(0, args=self.with_ema(*MESH, *both, *how, folder=folder), ranks=ranks)
                self.same(self.tensors(12, folder), reference)
                self.assertEqual(self.evals(folder), evals)
        # The run is killed after step 7 and continues on another mesh.
        folder = f"{self.folder}/on21sharded"
        for step in range(8, 13):
            os.remove(f"{folder}/checkpoints/{step:010}.h5")
        self.expect(0, "from=checkpoint", "step=8 ",
                    args=self.with_ema(*MESH, *both, folder=folder), ranks=4)
        self.same(self.tensors(12, folder), reference)
        self.assertEqual(self.evals(folder), evals)

    def test_bf16_and_best(self):
        # Ranks exchange rounded weights. The best value is that of the average. Another run begins
        # from the average.
        narrow = sets("precision.compute=bf16", "sharding.parameters=replicated")
        best = sets("eval.val.weights=ema", "checkpoint.best=val_ema/perplexity:min")
        self.expect(0, "eval=val_ema step=12", "best     val_ema/perplexity", ranks=2,
                    args=self.with_ema(*narrow, *best))
        evals = self.evals()
        self.assertEqual(sorted(evals), [("val_ema", 6), ("val_ema", 12)])
        source = sets(f"init.from={self.dir}/checkpoints/{12:010}.h5")
        begin = [self.deck(), *narrow, *EACH, *BEGIN, *source]
        want = as_bytes(self.group("ema", 12))
        folder = self.folder + "/begun"
        self.expect(0, "from=init", ranks=2,
                    args=[*begin, "--dir", folder,
                          *sets("init.weights=ema", "eval.val.at_start=true")])
        self.same(as_bytes(self.group("params", 1, folder)), want)
        self.assertEqual(self.evals(folder)[("val", 0)], evals[("val_ema", 12)])
        # Without init.weights the trained ones are taken.
        other = self.folder + "/raw"
        self.expect(0, "from=init", args=[*begin, "--dir", other], ranks=2)
        self.same(as_bytes(self.group("params", 1, other)), as_bytes(self.group("params", 12)))
        self.assertEqual(self.group("ema", 1, other), {})

    def test_a_skipped_step_leaves_it(self):
        self.expect(0, "skipped", args=self.poisoned("skip", *EACH, *sets("ema.decay=0.5")))
        weights = {step: self.group("params", step) for step in range(1, 9)}
        before = self.group("ema", 3)
        self.same(as_bytes(self.group("ema", 4)), as_bytes(before))
        moved = max(np.abs(before[name] - weights[3][name]).max() for name in before)
        self.assertGreater(moved, 1e-4)  # an update would change the weights
        steps = [step for step in range(1, 9) if step != 4]
        for step, average in replay(weights[1], weights, steps, decay=0.5, warmup=0, every=1):
            self.close(self.group("ema", step), average)

    def test_frozen(self):
        self.good = self.changed((FIRST_RULE, FROZEN + FIRST_RULE))
        self.expect(0, args=self.with_ema(*sets("eval.val.weights=both")), ranks=2)
        trained = [name for name in self.group("params", 12) if not name.startswith("encoder/")]
        self.assertEqual(sorted(self.group("ema", 12)), sorted(trained))
        folder = self.folder + "/begun"
        self.expect(0, "from=init", ranks=2,
                    args=[self.deck(), "--dir", folder, *EACH, *BEGIN,
                          *sets(f"init.from={self.dir}", "init.weights=ema",
                                "eval.val.at_start=true")])
        self.assertEqual(self.evals(folder)[("val", 0)], self.evals()[("val_ema", 12)])

    def test_added_and_taken_away(self):
        plain = [self.deck(), *EACH]
        self.expect(0, args=[*plain, *sets("train.total_steps=8")], ranks=2)
        with open(self.dir + "/deck.resolved.toml") as f:
            self.assertNotIn("\n[ema]", f.read())
        self.assertEqual(self.group("ema", 8), {})
        straight = self.folder + "/straight"
        shutil.copytree(self.dir, straight)
        self.expect(0, "holds no average of the weights: the average starts from the weights",
                    "changed  ema.decay: absent -> 0.9", args=self.with_ema(), ranks=2)
        weights = {step: self.group("params", step) for step in range(8, 13)}
        for step, average in replay(weights[8], weights, range(9, 13)):
            self.close(self.group("ema", step), average)
        # The average must not change training itself.
        self.expect(0, args=[*plain, "--dir", straight], ranks=2)
        trained = {name: value for name, value in self.tensors(12).items()
                   if not name.startswith("ema/")}
        self.same(self.tensors(12, straight), trained)
        # A branch may begin to keep an average, too.
        how = sets(f"checkpoint.branch_from={straight}", "train.total_steps=13")
        self.expect(0, "holds no average", ranks=2,
                    args=self.with_ema(*how, folder=self.folder + "/branch"))
        self.expect(0, "it is left out, because the deck has no [ema]",
                    "changed  ema.decay: 0.9 -> absent",
                    args=[*plain, *sets("train.total_steps=14")], ranks=2)
        self.assertEqual(self.group("ema", 14), {})

    def test_refused(self):
        decay = "ema.decay=0.9"
        other = 'eval.val_ema={kind="perplexity",data="train"}'
        for words, text in ((["ema.decay=1"], "would ignore all weights of the run"),
                            (["ema.decay=-0.5"], "ema.decay"),
                            (["ema.decay=2"], "ema.decay"),
                            (["ema.decai=0.9"], "did you mean"),
                            (["ema.every_steps=0"], "ema.every"),
                            (["ema=true"], "expected a table"),
                            (["ema.warmup_steps=-1"], "ema.warmup"),
                            (["eval.val.weights=ema"], "needs the average of the weights"),
                            (["eval.val.weights=average"], "Accepted"),
                            (["init.weights=best"], "Accepted"),
                            (["checkpoint.best=val_ema/perplexity:min"],
                             "there is no [eval.val_ema]"),
                            ([decay, "eval.val.weights=ema",
                              "checkpoint.best=val/perplexity:min"], "val_ema"),
                            ([decay, "eval.val.weights=both", other], "rename")):
            with self.subTest(words=words):
                self.expect(2, text, args=[self.deck(), "--validate", *sets(*words)])
        self.expect(0, args=[self.deck(), *EACH, *sets("train.total_steps=1")], ranks=2)
        self.expect(5, "holds no average of weights", ranks=2,
                    args=[self.deck(), "--dir", self.folder + "/other",
                          *sets(f"init.from={self.dir}", "init.weights=ema")])


if __name__ == "__main__":
    harness.main()
