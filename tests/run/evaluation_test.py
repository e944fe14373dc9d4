#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Perplexity of an untrained model and of data without targets, probes on any number of ranks, and evaluators that refuse
their data before a run."""
import math
import os
import re
import subprocess
import tarfile

import harness


class Evaluation(harness.RunTest):
    def test_evaluators_are_asked_before_the_run(self):
        os.mkdir(f"{self.folder}/one")
        harness.make_shards(f"{self.folder}/one", 1, 1)
        text = self.changed(('data        = "train"', 'data = "one"\nshuffle_images = true'))
        text += f"""[data.one]
path = "{self.folder}/one/train-000.tar"
fields = {{ image = "png", text = "txt" }}
preprocess = "@train"
"""
        self.expect(4, "shuffle_images", "[data.one]", "1 example", args=[self.deck(text)])
        self.assertFalse(os.path.exists(self.dir))

    def test_evaluators_are_built_when_they_are_needed(self):
        """The data of all are checked before the run. They are open from their first evaluation on."""
        deck = self.deck(self.with_probes("many").replace("at_start    = true", "at_start    = false"))
        self.expect(0, args=[deck, "--set", "eval.val.at_start=true", "--set", 'log.levels={eval="debug"}'])
        lines = self.output.splitlines()
        at = lambda text: next(i for i, line in enumerate(lines) if text in line)
        self.assertEqual(self.output.count(": built in "), 1)  # val runs at the start and stays open
        self.assertLess(at("step=6 loss="), at("of_many: built in "))
        self.assertLess(at("of_many: built in "), at("eval=of_many step=6 "))
        # Other samples at the first evaluation than at the check.
        os.mkdir(f"{self.folder}/other")
        harness.make_shards(f"{self.folder}/other", 41, 2)
        text = self.changed(('data        = "train"', 'data = "later"')) + f"""[data.later]
path = "{self.folder}/later.tar"
fields = {{ image = "png", text = "txt" }}
preprocess = "@train"
"""
        os.link(f"{self.data}/train-000.tar", f"{self.folder}/later.tar")
        job = subprocess.Popen([harness.TRAINER, self.deck(text), *harness.sets("train.total_steps=100000", "eval.val.every_steps=400"),
                                "--dir", self.folder + "/changed"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in job.stdout:
            if "step=2 " in line:
                os.replace(f"{self.folder}/other/train-000.tar", f"{self.folder}/later.tar")
                break
        output = job.communicate(timeout=harness.GUARD)[0]
        self.assertEqual(job.returncode, 4, output)
        self.assertIn("data.later: its samples have changed since this job began: 20 then, 21 now", output)

    def test_an_untrained_model_costs_the_logarithm_of_the_vocabulary(self):
        # The head starts at zero, so all tokens are equally likely for any image. The last batch is
        # not full.
        tokens = set()
        for ranks, shuffled in ((1, "false"), (2, "true"), (3, "false")):
            folder = f"{self.folder}/on{ranks}"
            self.expect(0, "eval=val step=0 ", ranks=ranks,
                        args=[self.deck(), "--dir", folder, "--set", "eval.val.at_start=true",
                              "--set", f"eval.val.shuffle_images={shuffled}"])
            row = self.rows("eval", folder)[0]
            self.assertEqual(row["step"], 0)
            self.assertAlmostEqual(row["perplexity_per_token"], math.log(400), delta=1e-5)
            tokens.add(round(40 * row["perplexity"] / row["perplexity_per_token"], 3))
        self.assertEqual(len(tokens), 1)
        self.assertEqual(tokens.pop() % 1, 0)  # of 40 captions

    def test_a_measure_of_training_chooses_the_steps(self):
        args = [self.deck(), "--set", "eval.val.every_steps=1", "--set", "checkpoint.every_steps=1",
                "--set", "checkpoint.keep_last=100"]
        self.expect(0, args=[*args, "--dir", self.folder + "/all"])
        losses = {row["step"]: row["loss"] for row in self.rows("train", self.folder + "/all")}
        bound = sorted(losses.values())[len(losses) // 2]
        wanted = [step for step, loss in losses.items() if loss > bound or step == max(losses)]
        self.assertLess(1, len(wanted))
        self.assertLess(len(wanted), len(losses))
        rule = ["--set", f'eval.val.when="loss:above:{bound!r}"']
        self.expect(0, f"left out: loss={bound:.6g} is not above {bound:.6g}",
                    args=[*args, *rule, "--dir", self.folder + "/some"], ranks=1)
        self.assertEqual([row["step"] for row in self.rows("eval", self.folder + "/some")], wanted)
        # A checkpoint keeps the measure, so a run that goes on from one makes the same evaluations.
        before = self.rows("eval", self.folder + "/some")
        again = ["--dir", self.folder + "/some", "--set", f'checkpoint.resume="{wanted[0]}"']
        self.expect(0, args=[*args, *rule, *again], ranks=1)
        self.assertEqual([(row["step"], row["perplexity"]) for row in self.rows("eval", self.folder + "/some")],
                         [(row["step"], row["perplexity"]) for row in before])
        for rule, text in (("lost:below:2", 'the model has no measure "lost"; did you mean "loss"?'),
                           ("loss:2", "MEASURE:below:VALUE")):
            self.expect(2, "eval.val.when", text, args=[*args, "--set", f'eval.val.when="{rule}"', "--validate"])
        self.expect(2, "eval.val.when", "`every`",
                    args=[*args, "--set", 'eval.val.when="loss:below:2"', "--set", "eval.val.every_steps=0", "--validate"])

    def test_no_result_without_targets(self):
        # Empty captions give labels of padding only, for which 0 nats would mean nothing.
        with tarfile.open(f"{self.folder}/blank.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(5):
                harness.add_member(tar, f"{i}.png", harness.png(i))
                harness.add_member(tar, f"{i}.txt", b"")
        preprocess = re.search("preprocess = '''.*?'''", self.good, re.S).group(0).replace("sticky", "none")
        text = self.changed(('data        = "train"', 'data = "blank"'))
        text += f"""[data.blank]
path = "{self.folder}/blank.tar"
fields = {{ image = "png", text = "txt" }}
{preprocess}
"""
        self.expect(0, args=[self.deck(text)])
        for row in self.rows("eval"):
            self.assertNotIn("perplexity_per_token", row)
        self.assertTrue(self.rows("eval"))

    def with_probes(self, *names):
        """Returns the good deck with probes on sets of three classes of two pictures each: `few` and NAMES."""
        sizes = {"few": 23, "many": 17, "pair": 2}
        text = self.good
        for name, size in sizes.items():
            with tarfile.open(f"{self.folder}/{name}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
                for i in range(size):
                    harness.add_member(tar, f"{i:03}.png", harness.png(100 + i % 6))
                    harness.add_member(tar, f"{i:03}.cls", str(i % 3).encode())
            text += f"""[data.{name}]
path = "{self.folder}/{name}.tar"
fields = {{ image = "png", label = "cls" }}
preprocess = 'decode | resize(16) | value_range(-1, 1)'
"""
        for name in names:
            text += f"""[eval.of_{name}]
kind        = "fewshot"
data        = "{name}"
train_data  = "few"
shots       = [1, 7]
l2_reg      = [1024, 1]
every_steps = 6
at_start    = true
"""
        return text

    def test_probes_have_the_same_numbers_on_any_number_of_ranks(self):
        deck = self.deck(self.with_probes("many", "pair"))
        found = []
        for ranks, micro_batch in ((1, 12), (2, 1), (3, 2), (4, 3)):
            folder = f"{self.folder}/on{ranks}"
            self.expect(0, "eval=of_many step=0 ", ranks=ranks,
                        args=[deck, "--dir", folder, "--set", "train.total_steps=1", "--set", f"train.micro_batch={micro_batch}"])
            rows = [row for row in self.rows("eval", folder) if row["step"] == 0 and row["eval"] != "val"]
            self.assertEqual([row["eval"] for row in rows], ["of_many", "of_pair"])
            for row in rows:
                del row["eval_s"]
                self.assertEqual(len(row), 17, row)
                # Each picture of `many` and `pair` is among the seven of its class.
                self.assertEqual(row["7shot"], 1)
                self.assertEqual(row["1shot_seed0_l2"], 1024)  # one image holds none out
            self.assertLess(rows[0]["1shot"], 1)
            found.append(rows)
        for rows in found[1:]:
            self.assertEqual(rows, found[0])

    def test_a_probe_is_refused_before_the_run(self):
        text = self.with_probes("many")
        deck = self.deck(text)
        for setting, parts in (("eval.of_many.tap=encoder", ("eval.of_many", "there is no tap", "block00_mean")),
                               ("eval.of_many.train_data=train", ("data.train.preprocess", 'eval.of_many.train_data needs "label"')),
                               ("eval.of_many.train_data=fw", ("eval.of_many.train_data", "there is no [data.fw]"))):
            self.expect(2, *parts, args=[deck, "--set", setting])
        os.remove(f"{self.folder}/few.tar")
        with tarfile.open(f"{self.folder}/few.tar", "w", format=tarfile.USTAR_FORMAT):
            pass
        self.expect(4, "data.few", args=[deck])


harness.main()
