#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Perplexity of an untrained model and of data without targets, and evaluators that refuse their data before a run."""
import math
import os
import re
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


harness.main()
