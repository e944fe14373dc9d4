#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks of one job that differ: command lines, decks, data, scripts. Every job ends with one error in one form."""
import contextlib
import os
import re
import shutil
import subprocess
import tarfile
import threading
import time
from unittest import mock

import harness


class Ranks(harness.RunTest):
    def launch(self, *contexts):
        """mpirun with several application contexts, each a list of words; stdout, stderr and exit code."""
        words = ["mpirun"]
        for i, context in enumerate(contexts):
            words += [":"] * (i > 0) + [str(word) for word in context]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD, cwd=self.folder,
                              stdin=subprocess.DEVNULL)
        self.output = done.stdout
        return done.returncode

    def test_ranks_are_started_alike(self):
        deck = self.deck(self.changed(("mesh   = { replica = 1, fsdp = -1 }",
                                       'mesh = { replica = 1, fsdp = -1, rule = [ { match = "a.*", replica = 2, fsdp = 1 } ] }')))
        one, others = ["-np", 1], ["-np", 1, harness.TRAINER, deck]
        cases = {
            "environment": ([*one, "-x", "TRAINER_MESH_SELECTOR=a", harness.TRAINER, deck],
                            ["--mesh-selector", '"a"', "TRAINER_MESH_SELECTOR"]),
            "selector": ([*one, harness.TRAINER, deck, "--mesh-selector", "ab"], ["--mesh-selector", '"ab"']),
            "mode": ([*one, harness.TRAINER, deck, "--mode", "bench"], ["--mode", '"bench"']),
            "dir": ([*one, harness.TRAINER, deck, "--dir", "other"], ["--dir", '"other"']),
            "set": ([*one, harness.TRAINER, deck, "--set", "run.seed=3"], ["--set", "run.seed=3"]),
        }
        for name, (context, fragments) in cases.items():
            with self.subTest(name):
                self.assertEqual(self.launch(context, others), 2, self.output)
                for fragment in ["not started alike", *fragments]:
                    self.assertIn(fragment, self.output)
        self.assertFalse(os.path.exists(self.dir))

    def test_gradients_are_exchanged_in_buckets(self):
        args = [self.deck(), *harness.sets("train.total_steps=4", "sharding.parameters=replicated", "sharding.optimizer=replicated")]
        found, calls = [], []
        for size in (0, 1, 64):
            bucket, folder = ["--set", f"mesh.bucket_mb={size}"], f"{self.folder}/{size}"
            self.expect(0, args=[*args, *bucket, "--mode", "plan", "--ranks", "2"])
            calls.append(sum(int(n) for n in re.findall(r"(\d+) calls", self.output)))
            if size != 1:
                self.expect(0, args=[*args, *bucket, "--dir", folder], ranks=2)
                # A group of all ranks adds up as the world does, so it is not timed again.
                self.assertRegex(self.output, r"check +all-reduce 16 MiB: world (\d+\.\d) ms, fsdp \1 ms, replica 0\.\d ms")
                found.append(([row["loss"] for row in self.rows(folder=folder)], self.tensors(4, folder)))
        self.assertGreater(calls[0], calls[1])
        self.assertGreaterEqual(calls[1], calls[2])
        self.assertEqual(found[0], found[1], "the same bits")

    def test_ranks_read_the_same_data(self):
        # Copies that differ: by number of samples, and by one caption only.
        deck = self.deck(self.changed((f"{self.data}/train-", "train-")))
        for name, samples in (("c1", 40), ("c2", 40), ("c3", 30), ("c4", 40)):
            os.mkdir(f"{self.folder}/{name}")
            harness.make_shards(f"{self.folder}/{name}", samples)
        with tarfile.open(f"{self.folder}/c1/train-001.tar") as old, tarfile.open(f"{self.folder}/c4/train-001.tar", "w") as tar:
            for i, member in enumerate(old.getmembers()):
                data = old.extractfile(member).read()
                harness.add_member(tar, member.name, data + b"s" if i == 1 else data)
        start = lambda folder, *args: ["-wdir", f"{self.folder}/{folder}", "-np", 1, harness.TRAINER, deck, *args]
        for args in ([], ["--mode", "bench"]):
            self.assertEqual(self.launch(start("c1", *args), start("c3", *args)), 4, self.output)
            for fragment in ("[data.train]", "rank 0: 40 samples", "rank 1: 30 samples"):
                self.assertIn(fragment, self.output)
        self.assertEqual(self.launch(start("c1"), start("c4")), 4, self.output)
        self.assertIn("fingerprint", self.output)
        self.assertFalse(os.path.exists(self.dir))
        short = ["--set", "train.total_steps=3"]
        self.assertEqual(self.launch(start("c1", *short), start("c2", *short)), 0, self.output)

    def test_ranks_see_the_same_deck(self):
        # Rank 1 gets another file: all ranks stop with 2.
        self.deck()
        self.deck(self.changed(("learning_rate = 1e-2", "learning_rate = 2e-2")), "other.toml")
        script = os.path.join(self.folder, "start.sh")
        with open(script, "w") as f:
            f.write(f'[ "$OMPI_COMM_WORLD_RANK" = 1 ] && cp other.toml mine1.toml || cp deck.toml mine0.toml\n'
                    f'exec {harness.TRAINER} mine$OMPI_COMM_WORLD_RANK.toml\n')
        done = subprocess.run(["mpirun", "-np", "2", "sh", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=harness.GUARD, cwd=self.folder)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("different bytes", done.stdout)
        self.assertFalse(os.path.exists(self.dir))

    def test_ranks_are_told_to_do_the_same(self):
        # Whatever two ranks were asked for: one error, exit 2, and no rank waits for another.
        deck = self.deck()
        train, bench = [deck], [deck, "--mode", "bench"]
        look = {"validate": [deck, "--validate"], "plan": [deck, "--mode", "plan"], "show": [deck, "--mode", "show"],
                "index": [deck, "--mode", "index"], "describe": ["--describe", "train"], "list": ["--list", "op"],
                "help": ["--help"], "version": ["--version"], "wrong": [deck, "--mode", "trian"], "unset": [deck, "--unset", "log"]}
        pairs = [(train, other) if i % 2 else (other, train) for i, other in enumerate(look.values())]
        pairs += [(look["plan"], bench), (look["validate"], look["plan"]), (look["help"], look["list"]), (look["wrong"], look["show"])]
        for one, other in pairs:
            with self.subTest(f"{one} {other}"):
                self.assertEqual(self.launch(["-np", 1, harness.TRAINER, *one], ["-np", 1, harness.TRAINER, *other]), 2, self.output)
                self.assertEqual(self.output.count("not started alike"), 1, self.output)
                self.assertEqual(self.output.count("error: "), 1, self.output)
        self.assertFalse(os.path.exists(self.dir))

    def test_ranks_that_run_scripts(self):
        # Ranks may look first and then train, and one rank may look alone: neither waits for ranks
        # that never start.
        look, train = f"{harness.TRAINER} {self.deck()} --validate", f"{harness.TRAINER} {self.deck()} --set train.total_steps=3"
        self.assertEqual(self.launch(["-np", 2, "sh", "-c", f"{look} && {train}"]), 0, self.output)
        self.assertIn("exit=0", self.output)
        self.assertEqual(self.launch(["-np", 2, "sh", "-c", f"if [ $OMPI_COMM_WORLD_RANK = 0 ]; then {look}; fi"]), 0, self.output)
        self.assertEqual(self.output.count(": valid"), 1, self.output)
        # A rank that trains gives up if the script of another rank only looks.
        with mock.patch.dict(os.environ, {"TRAINER_MPI_START_S": "2"}):
            code = self.launch(["-np", 1, harness.TRAINER, self.deck()], ["-np", 1, "sh", "-c", f"{look}; true"])
        self.assertIn(code, (1, 2), self.output)  # 1 if Open MPI notices first that the other rank never joined
        self.assertIn("error: MPI has not started within 2 s: some ranks never called MPI_Init", self.output)

    def test_one_error_in_one_form(self):
        def errors(*args, ranks, expected=()):
            self.run_trainer(*args, ranks=ranks)
            kept, skip, text = [], 0, self.output
            for line in expected:  # a rank's line may come in the middle of one of mpirun's
                text = text.replace(line, f"\n{line}\n")
            for line in text.splitlines():
                if line.startswith("-----"):
                    skip += 1  # mpirun's own text is between two rulers
                elif line and (skip % 2 == 0 or line in expected):  # or a rank's line that came between them
                    kept.append(line)
            return kept

        broken = self.deck(self.changed(("global_batch = 12", "global_batch = 0"), ("heads = 2", "heads = -2")), "broken.toml")
        good = self.deck()
        for args in ([broken], [broken, "--validate"], [good, "--mode", "trian"], ["no_such.toml"], [good, "--mesh-selector", "b1"]):
            with self.subTest(args):
                alone = errors(*args, ranks=0)
                self.assertEqual(sum(line.startswith("error: ") for line in alone), 1, alone)
                self.assertEqual(errors(*args, ranks=3, expected=alone), alone, self.output)
        # Data that no rank finds: named once. The rank is named if it found out before the others.
        self.expect(4, "error: ", "cannot open", args=[good, "--set", f"data.train.path={self.folder}/no.tar"], ranks=3)
        self.assertEqual(self.output.count("cannot open"), 1, self.output)
        # An error that one rank has alone names it.
        other = ["-np", 1, "-wdir", "/", harness.TRAINER, good, "--set", "data.train.path=data/train-{000..001}.tar"]
        self.assertEqual(self.launch(["-np", 1, *other[4:]], other), 4, self.output)
        self.assertIn("error: rank 1: ", self.output)

    def test_a_slow_rank_0_still_tells_the_error(self):
        """Rank 0 waits to write its error into a full pipe. mpirun ends it if another rank ends before."""
        pipe = f"{self.folder}/pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        fill = b"x" * os.fpathconf(reader, "PC_PIPE_BUF")
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(reader, fill)
        wrong = [self.deck(), "--mode", "trian"]
        text = []

        def drain():
            time.sleep(4)  # mpirun kills a rank 1 s after the signal
            data = b""
            while b"selftest}" not in data and len(text) < 300:
                with contextlib.suppress(BlockingIOError):
                    data += os.read(reader, 1 << 16)
                text.append(data.lstrip(b"x").decode())
                time.sleep(0.1)

        draining = threading.Thread(target=drain)
        draining.start()
        slow = ["sh", "-c", f'exec "$0" "$@" 2> {pipe}']
        code = self.launch(["-np", 1, *slow, harness.TRAINER, *wrong], ["-np", 2, harness.TRAINER, *wrong])
        draining.join()
        os.close(reader)
        self.assertEqual(code, 2, self.output)
        self.assertIn("error: --mode: trian not in", text[-1])

    def test_ranks_of_another_mpis_launcher_are_refused(self):
        """A shell of these names sets what mpiexec of MPICH tells its ranks; with Open MPI each of them would be alone."""
        for name in ("mpiexec", "mpiexec.mpich"):
            shutil.copy(os.path.realpath("/bin/sh"), f"{self.folder}/{name}")
            done = subprocess.run([f"{self.folder}/{name}", "-c", f"PMI_RANK=0 PMI_SIZE=2 {harness.TRAINER} {self.deck()}; exit $?"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD, cwd=self.folder)
            self.assertEqual(done.returncode, 3, done.stdout)
            self.assertRegex(done.stdout, "error: mpiexec of MPICH or Intel MPI, or srun --mpi=pmi2 has started 2 ranks, but this "
                                          r"program's MPI \(openmpi [\d.]+\) sees only one: use the launcher of that MPI")

    def test_looking_with_several_ranks_is_done_once(self):
        for args, text in (([self.deck(), "--validate"], ": valid"), (["--list", "optimizer"], "adafactor"), (["--version"], "git="),
                           ([self.deck(), "--mode", "plan"], "plan     "), ([self.deck(), "--mode", "show"], "show     ")):
            with self.subTest(args):
                self.expect(0, text, args=args, ranks=2)
                self.assertEqual(self.output.count(text), 1, self.output)


harness.main()
