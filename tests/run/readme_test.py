#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""README.md's run of inputs/emoji.toml, whole: any CPU must give the bits of tests/recorded/emoji.json, and README.md must print its
values. TRAINER_RECORD=1 writes the file anew."""
import json
import os
import re
import unittest

import harness

RESULT = harness.loaded("quickstart_result.py")
DATA = f"{harness.SOURCE}/data/emoji"
WORDS = {"probe": ("10shot",), "beam": ("bleu4", "cider_d"), "beam_shuffled": ("bleu4", "cider_d"), "retrieval": ("i2t_r5", "t2i_r5"),
         "zero_shot": ("top1",), "val": ("perplexity_per_token",), "val_shuffled": ("perplexity_per_token",)}


def summary():
    with open(f"{DATA}/summary.json", encoding="utf-8") as f:
        return json.load(f)


def recorded():
    with open(RESULT.RECORDED, encoding="utf-8") as f:
        return json.load(f)


class Readme(harness.RunTest):
    def values(self, text):
        """Returns the evaluations that --mode eval has printed, as far as README.md needs them."""
        rows = {row["eval"]: row for row in json.loads(text.splitlines()[-1])["evaluations"]}
        return {f"{name} {word}": rows[name][word] for name, words in WORDS.items() for word in words}

    @unittest.skipUnless(os.path.exists(f"{DATA}/summary.json"), "data/emoji was not made (tools/make_emoji_dataset data/emoji)")
    def test_the_run(self):
        files = {name: sha for name, sha in summary()["files"].items() if name != "README.txt"}
        record = os.environ.get("TRAINER_RECORD")
        if not record and files != recorded()["data"]:
            self.skipTest("this system's packages of fonts and names make other data than README.md's run had")
        args = ["inputs/emoji.toml", "--dir", self.dir]
        self.expect(0, "determinism=anywhere", args=args, ranks=2, cwd=harness.SOURCE)
        losses, weights = re.search(r"^digest   losses=(\w+) weights=(\w+)$", self.output, re.M).groups()
        self.expect(0, args=[*args, "--mode", "eval"], ranks=2, cwd=harness.SOURCE)
        found = {"data": files, "losses": losses, "weights": weights, "values": self.values(self.output)}
        if record:
            with open(RESULT.RECORDED, "w", encoding="utf-8") as f:
                f.write(json.dumps(found, indent=1) + "\n")
        self.assertEqual(found, recorded())

    def test_the_page(self):
        with open(harness.SOURCE + "/README.md", encoding="utf-8") as f:
            page = f.read()
        values = recorded()["values"]
        val, shuffled = (values[f"{name} perplexity_per_token"] for name in ("val", "val_shuffled"))
        for name, value in (("validation loss per token", val), ("the same, images shuffled", shuffled),
                            ("worth of the image", shuffled - val), ("zero-shot accuracy", values["zero_shot top1"])):
            self.assertRegex(page, rf"(?m)^  {name} +{value:.3f} ")
        for name, word, by_chance in (("zero-shot accuracy", "zero_shot top1", None), ("linear probe", "probe 10shot", None),
                                      ("BLEU-4", "beam bleu4", "beam_shuffled bleu4"), ("CIDEr-D", "beam cider_d", "beam_shuffled cider_d"),
                                      ("image to text", "retrieval i2t_r5", None), ("text to image", "retrieval t2i_r5", None)):
            line = re.search(rf"(?m)^\|.*{name}.*$", page)[0]
            cells = [cell.strip() for cell in line.split("|")]
            self.assertEqual(cells[2], f"{values[word]:.3f}", line)
            if by_chance:
                self.assertEqual(cells[4], f"{values[by_chance]:.3f}", line)


if __name__ == "__main__":
    harness.main()
