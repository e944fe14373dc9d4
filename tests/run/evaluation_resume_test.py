#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Kills jobs in the middle of evaluations: the next attempt goes on there, on other ranks and with another batch, and its
values are those of an uncut run to the last bit."""
import glob
import json
import os
import re
import signal
import struct
import subprocess
import tarfile

import harness
import processes
from harness import sets

SIZE = 240
CLASSES = ["a cat", "red", "two", "water", "tree"]
EVALUATORS = {
    "captions": 'kind = "captioning"\nmethod = "sample"',
    "likely": 'kind = "perplexity"\nshuffle_images = true',
    "pairs": 'kind = "retrieval"',
    "prior": f'kind = "scoring"\nclasses = {json.dumps(CLASSES)}\nsubtract_prior = true',
    "probe": 'kind = "fewshot"\ntrain_data = "big"\nshots = [3, 50]\nl2_reg = [1024, 1]',
    "zero": f'kind = "scoring"\nclasses = {json.dumps(CLASSES)}',
}


class EvaluationResume(harness.RunTest):
    def setUp(self):
        super().setUp()
        with tarfile.open(f"{self.data}/big.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(SIZE):
                harness.add_member(tar, f"{i:06}.png", harness.png(i))
                harness.add_member(tar, f"{i:06}.txt", f"{CLASSES[i % 5]} {CLASSES[i // 5 % 5]}".encode())
                harness.add_member(tar, f"{i:06}.cls", str(i % 5).encode())
        text = self.good[:self.good.index("[eval.val]")] + "[checkpoint]\nevery_steps = 2\n"
        self.good = text.replace("depth = 1, width = 32", "depth = 4, width = 64").replace(
            "global_batch = 12, micro_batch = 6", "global_batch = 4, micro_batch = 1") + f"""
[determinism]
level  = "mesh"
slices = 4
[data.big]
path       = "{self.data}/big.tar"
fields     = {{ image = "png", text = "txt", label = "cls" }}
preprocess = '''decode | resize(16) | value_range(-1, 1)
              | tokenize("words", max_len=12, eos="sticky", inkey="text", outkey="labels") | keep("image", "labels", "label")'''
"""

    def with_evaluators(self, names):
        text = self.good
        for name in names:
            text += f'\n[eval.{name}]\ndata = "big"\nevery_steps = 3\nat_end = false\n{EVALUATORS[name]}\n'
        return self.deck(text, "-".join(names) + ".toml")

    def records(self, folder):
        """Returns the positions in the records of a journal by stage; a torn record at the end does not count."""
        found = {}
        for path in glob.glob(folder + "/*"):
            try:
                with open(path, "rb") as f:
                    data = f.read()
            except FileNotFoundError:  # its evaluation ended
                continue
            at, first = 0, True
            while at + 16 <= len(data):
                size = struct.unpack_from("<q", data, at)[0]
                payload = data[at + 16:at + 16 + size]
                if len(payload) < size:
                    break
                if not first:
                    length = struct.unpack_from("<q", payload)[0]
                    stage, place = payload[8:8 + length].decode(), 8 + length
                    while place < size:
                        position, count = struct.unpack_from("<qq", payload, place)
                        found.setdefault(stage, []).append(position)
                        place += 16 + count
                at, first = at + 16 + size, False
        return found

    def kill_in(self, folder, least, *args, ranks, stop=signal.SIGKILL, stage=""):
        """Starts a job and ends it once the journal in FOLDER has `least` examples, of a stage if one is named; returns the
        examples by stage."""
        log = open(self.folder + "/log", "w+")
        self.addCleanup(log.close)
        job = subprocess.Popen(["mpirun", "-np", str(ranks), harness.TRAINER, *map(str, args)], stdout=log,
                               stderr=subprocess.STDOUT, cwd=self.folder)
        self.addCleanup(job.kill)

        def far_enough():
            if job.poll() is not None:
                with open(self.folder + "/log") as f:
                    self.fail(f"the job ended before it was killed: {f.read()}")
            return sum(len(found) for name, found in self.records(folder).items() if stage in name) >= least
        self.wait(folder, far_enough, 0.002)
        for pid in processes.descendants(job.pid):
            if harness.TRAINER in processes.words(pid):
                try:
                    os.kill(pid, stop)
                except ProcessLookupError:
                    pass
        job.wait(timeout=harness.GUARD)
        return self.records(folder)

    def assert_little_is_lost(self, records, name, lost):
        """Checks the line of the job that went on: at most `lost` examples of those in the records are made again."""
        for stage, positions in records.items():
            found = re.search(rf"eval={name} step=\d+ goes on: (\d+) of \d+ {stage} are taken over", self.output)
            kept = int(found[1]) if found else 0
            self.assertGreaterEqual(kept, len(set(positions)) - lost, (stage, self.output))
            self.assertLessEqual(set(range(kept)), set(positions))

    def values(self, folder):
        rows = self.rows("eval", folder)
        for row in rows:
            del row["eval_s"]
        return sorted(rows, key=json.dumps)

    def losses(self, folder):
        return [(row["step"], row["loss"]) for row in self.rows("train", folder)]

    def test_every_evaluator_goes_on_where_it_was_killed(self):
        deck = self.with_evaluators(EVALUATORS)
        more = sets("train.total_steps=4")
        self.expect(0, args=[deck, *more, "--dir", self.folder + "/uncut"], ranks=2)
        self.assertEqual(len(self.rows("eval", self.folder + "/uncut")), len(EVALUATORS))
        self.assertFalse(glob.glob(self.folder + "/uncut/eval/*/*/partial"))
        self.assertEqual(sorted(os.listdir(self.folder + "/uncut/eval")), ["captions", "prior", "zero"])
        # The run begins again at step 2 each time, and comes back to step 3 on another mesh. Evaluators that were done
        # take over all of their examples.
        killed = None
        for number, name in enumerate(EVALUATORS):
            ranks, batch = ((2, 1), (1, 2), (2, 2))[number % 3]
            folder = f"{self.dir}/eval/{name}/{3:010}/partial"
            args = [deck, *more, "--set", f"train.micro_batch={batch}", "--dir", self.dir]
            records = self.kill_in(folder, 60 + SIZE * (name in ("pairs", "probe")), *args, ranks=ranks)
            if killed:
                with open(self.folder + "/log") as f:
                    self.output = f.read()
                self.assert_little_is_lost(*killed)
            killed = (records, name, ranks * batch)
        self.expect(0, args=[deck, *more, "--dir", self.dir], ranks=2)
        self.assert_little_is_lost(*killed)
        for name in EVALUATORS:
            self.assertIn(f"eval={name} step=3 goes on: ", self.output)
        self.assertEqual(self.values(self.dir), self.values(self.folder + "/uncut"))
        for name in ("captions/{}/captions.jsonl", "captions/{}/images.npy", "prior/{}/confusions.json", "zero/{}/confusions.json"):
            path = f"/eval/{name.format(f'{3:010}')}"
            with open(self.dir + path, "rb") as got, open(self.folder + "/uncut" + path, "rb") as want:
                self.assertEqual(got.read(), want.read(), path)
        self.assertEqual(glob.glob(self.dir + "/eval/*/*/partial"), [])

        # Evaluators change nothing: the losses are those of a run without.
        self.expect(0, args=[self.deck(), *more, "--dir", self.folder + "/plain"], ranks=2)
        self.assertEqual(self.losses(self.dir), self.losses(self.folder + "/uncut"))
        self.assertEqual(self.losses(self.dir), self.losses(self.folder + "/plain"))

    def test_a_stop_and_other_weights(self):
        deck = self.with_evaluators(["likely"])
        args = [deck, *sets("train.total_steps=4"), "--dir", self.dir]
        folder = f"{self.dir}/eval/likely/{3:010}/partial"
        records = self.kill_in(folder, 40, *args, ranks=2, stop=signal.SIGUSR1)
        with open(self.folder + "/log") as f:
            self.assertIn("eval=likely step=3 interrupted: continued when the run goes on", f.read())
        # The checkpoint of step 3 exists, so the same weights go on; with other options the evaluation begins anew.
        self.expect(0, "eval=likely step=3 begins anew: its journal has other options",
                    args=[*args, *sets("eval.likely.normalize_by_seqlen=true")], ranks=1)
        self.assertEqual(os.path.exists(folder), False)
        self.assertGreaterEqual(len(records["captions"]), 40)

    def test_a_call_of_mode_eval(self):
        deck = self.with_evaluators(["likely", "prior", "zero"])
        args = [deck, *sets("train.total_steps=4"), "--dir", self.dir]
        self.expect(0, args=args, ranks=2)
        out = self.folder + "/values.jsonl"
        args += ["--mode", "eval", *sets(f"evaluate.out={out}", "evaluate.batch=1")]
        plain = json.loads(self.evaluated(args[:-4] + sets("evaluate.batch=1")))["evaluations"]
        records = self.kill_in(out + ".partial/*", 80, *args, ranks=2)
        self.assertEqual(list(records), ["captions"])
        records = self.kill_in(out + ".partial/*", 80, *args, ranks=1, stage="images")
        with open(self.folder + "/log") as f:
            self.assertIn("eval=likely step=4 goes on: ", f.read())
        self.assertTrue(records)
        rows = json.loads(self.evaluated(args))["evaluations"]
        self.assertIn("eval=likely step=4 is taken over from the call before", self.output)
        self.assertIn("eval=prior step=4 goes on: ", self.output)
        with open(out) as f:
            self.assertEqual([json.loads(line) for line in f], rows)
        for row in rows + plain:
            del row["eval_s"]
        self.assertEqual(rows, plain)
        self.assertFalse(os.path.exists(out + ".partial"))

    def evaluated(self, args):
        self.expect(0, args=args, ranks=2)
        return self.output.splitlines()[-1]

    def test_a_folder_that_cannot_be_made(self):
        deck = self.with_evaluators(["likely", "pairs"])  # they write no files of their own
        os.makedirs(self.dir)
        with open(self.dir + "/eval", "w") as f:
            f.write("a file in the way")
        self.expect(0, "eval=likely step=3 perplexity", "eval=pairs step=3 i2t_r1",
                    args=[deck, *sets("train.total_steps=4"), "--dir", self.dir], ranks=2)
        self.assertEqual(self.output.count("begins anew if it is cut off"), 1, self.output)


harness.main()
