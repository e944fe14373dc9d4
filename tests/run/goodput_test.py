#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Goodput: the time of all starts of a run by what it was spent on, beside the time that this script measures; what each start
ran with; the memory and the tree of the state."""
import glob
import json
import os
import random
import re
import signal
import subprocess
import time
import unittest

import h5py

import harness
import place
import processes
from live_harness import LONG, LiveTest

attempts = harness.loaded("attempts.py")
TICK = os.sysconf("SC_CLK_TCK")
SLOW_EVALUATION = """
[data.many]
kind = "synthetic"
image_size = 16
seq_len = 12
vocab_size = 400
examples = 20000
preprocess = 'keep("image", "labels") | value_range(-1, 1, key="image")'
"""

# Two starts: the first one saves after 5 s, and is killed after 9.5 s; the second one goes on from its checkpoint.
KNOWN = [
    {"kind": "begin", "start": 1, "time": 1764350000.0, "host": "n1", "pid": 1, "ranks": 2},
    {"kind": "facts", "start": 1, "facts": {"mesh.shape": "replica 1 x fsdp 2", "env.X": "1"}},
    {"kind": "continues", "start": 1, "attempt": 1, "step": 0, "from": "random_init", "redone": []},
    {"kind": "save", "start": 1, "attempt": 1, "step": 4, "seconds": {"setup": 2, "training": 3}},
    {"kind": "end", "start": 1, "time": 1764350009.5, "how": "killed", "exit": -1, "reason": "killed in phase train, step 7",
     "step": 7, "seconds": {"setup": 2, "training": 6.5, "checkpoint": 1, "data": 0.5}},
    {"kind": "begin", "start": 2, "time": 1764350012.0, "host": "n1", "pid": 2, "ranks": 2},
    {"kind": "facts", "start": 2, "facts": {"mesh.shape": "replica 2 x fsdp 1", "env.X": "1"}},
    {"kind": "continues", "start": 2, "attempt": 2, "step": 4, "from": "checkpoint",
     "redone": [{"start": 1, "steps": 3, "seconds": {"training": 3.5, "checkpoint": 1}}]},
    {"kind": "end", "start": 2, "time": 1764350017, "how": "finished", "exit": 0, "reason": "finished", "step": 12,
     "seconds": {"setup": 1, "training": 4, "data": 1, "exchange": 0.25}}]


def begin_of(pid):
    """Returns the start of a process, in seconds since 1970; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            ticks = int(f.read().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / TICK


class Goodput(LiveTest):
    def status(self, *options):
        return subprocess.run([os.path.join(harness.SOURCE, "tools/status"), *options, self.dir], capture_output=True, text=True,
                              timeout=harness.GUARD).stdout

    def rank0_of(self, job):
        """Returns the process of rank 0, which starts first."""
        return self.wait("rank 0", lambda: processes.children(job.pid, "deck.toml"), pause=0.005)[0]

    def phase_of(self, pid):
        """Returns the phase of the job whose rank 0 this is; "" before it has taken the directory. A killed job leaves its lock."""
        try:
            with open(f"{self.dir}/lock") as f:
                return self.phase() if f":{pid} since " in f.readline() else ""
        except FileNotFoundError:
            return ""

    def unfinished_since(self, moment):
        """True if a checkpoint was begun after this moment and is not complete."""
        return any(os.path.getmtime(path) > moment for path in glob.glob(self.dir + "/checkpoints/*.h5.tmp"))

    def killed_in(self, phase, pause_s, ranks, *args):
        """Starts the job and kills its ranks `pause_s` after it has entered the phase. Returns begin and end of rank 0."""
        os.makedirs(self.folder + "/trace", exist_ok=True)
        # Saves take seconds, so that they are met, and no evaluation comes before them (tests/inject/inject.cpp).
        slow = {"LD_PRELOAD": harness.preload(os.environ["INJECT_LIBRARY"]), "INJECT_UNDER": self.dir + "/checkpoints",
                "INJECT_TRACE": self.folder + "/trace", "INJECT": "0:0:slow=100+"} if phase == "save" else {}
        args = [*args, *harness.sets("eval.val.every_steps=1000")] if slow else args
        exported = [word for name, value in slow.items() for word in ("-x", f"{name}={value}")]
        with open(self.folder + "/output", "a") as output:
            job = subprocess.Popen(["mpirun", "-np", str(ranks), *exported, harness.TRAINER, self.deck(self.text), *args],
                                   stdout=output, stderr=output, cwd=self.folder)
        first = self.rank0_of(job)
        begin = begin_of(first)

        def met():
            if phase == "save":  # most of it goes on in other phases
                return self.unfinished_since(begin)
            return self.phase_of(first).startswith(phase)

        self.wait(f"the phase {phase}", lambda: met() or job.poll() is not None, pause=0.005)
        self.assertIsNone(job.poll(), f"the job ended before {phase}")
        time.sleep(pause_s)
        victims = processes.children(job.pid, "deck.toml")
        end = time.time()  # the kernel takes long to take a process down on a busy machine
        for pid in sorted(victims, key=lambda pid: pid != first):
            os.kill(pid, signal.SIGKILL)
        processes.wait_for_launcher(job, harness.GUARD)
        if phase == "save":
            self.assertTrue(self.unfinished_since(begin))
        return begin, end

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_ten_kills_add_up(self):
        self.text = self.good + SLOW_EVALUATION
        args = [*LONG, *harness.sets("checkpoint.async=false", "checkpoint.every_steps=10", "eval.val.every_steps=15",
                                     "eval.val.data=many")]
        draw = random.Random(7)
        measured = []
        # Phases of the lock: "start" and "restore" come before the first step, and "" before the run directory is taken.
        for index, phase in enumerate(("train", "start", "evaluate", "train", "restore", "", "train", "save", "evaluate", "train")):
            killed = self.killed_in(phase, draw.uniform(0.3, 1.0) if phase in ("train", "evaluate") else draw.uniform(0.0, 0.1),
                                    1 + index % 3, *args)
            if phase:
                measured.append(killed)
            if index == 4:  # a tool that looks at the run before the next start finds the same end
                before = attempts.starts_of(self.dir)[-1]
        end = self.rows()[-1]["step"] + 10
        job = subprocess.Popen(["mpirun", "-np", "2", harness.TRAINER, self.deck(self.text), *args[2:], "--set",
                                f"train.total_steps={end}", "--set", "eval.val.data=train", "--allow-change", "eval"],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder)
        first = self.rank0_of(job)
        begin = begin_of(first)
        output = self.ended(job, 0)
        starts = attempts.starts_of(self.dir)
        self.assertEqual([s.how for s in starts], ["killed"] * 9 + ["finished"])
        measured.append((begin, starts[-1].end))

        # Each start lasted as long as seen from outside, and so did all of them. The one that was killed before it took the
        # directory counts as time between starts.
        for start, (begun, ended) in zip(starts, measured):
            self.assertAlmostEqual(start.begin, begun, delta=0.1, msg=start.number)
            self.assertAlmostEqual(start.end, ended, delta=1, msg=f"start {start.number}: {start.reason}")
            self.assertAlmostEqual(start.seconds(), start.end - start.begin, delta=0.05, msg=start.number)
        self.assertAlmostEqual(before.seconds(), starts[4].seconds(), delta=0.01)
        sums, (failures, redone, setup) = attempts.totals(starts)
        wall = sum(ended - begun for begun, ended in measured)
        print(f"job time {sums['job']:.2f} s, measured {wall:.2f} s ({100 * (sums['job'] / wall - 1):+.2f} %); "
              f"{({k: round(v, 2) for k, v in sums.items()})}", flush=True)
        self.assertAlmostEqual(sums["job"], wall, delta=0.01 * wall)
        self.assertAlmostEqual(sum(sums[kind] for kind in attempts.PARTS), sums["job"], delta=0.001 * wall)
        whole = measured[-1][1] - measured[0][0]
        self.assertAlmostEqual(sums["job"] + sums["idle"], whole, delta=0.01 * whole)
        self.assertEqual(failures, 9)
        for kind in ("setup", "training", "evaluation", "checkpoint", "redone", "data"):
            self.assertGreater(sums[kind], 0, kind)
        # What was redone is what came after the checkpoint that the next start took up.
        self.assertGreater(redone, 0)
        self.assertGreater(sum(start.lost_steps for start in starts), 0)

        # The program's own words, the metrics and tools/status say the same.
        found = re.search(r"goodput  ([\d.]+) % of ", output)
        self.assertAlmostEqual(float(found[1]), 100 * sums["training"] / sums["job"], delta=1)
        self.assertRegex(output, r"failures 9 of 10 starts, which cost .*; the last one: killed in phase \w+, step \d+")
        text = self.status()
        self.assertRegex(text, r"goodput +[\d.]+ % of .*\n.* between 10 starts\n")
        self.assertRegex(text, r"failures +9 of 10 starts, which cost")
        self.assertRegex(text, r"start 9: killed in phase \w+, step \d+; [\d,]+ MiB were resident")
        rows = self.rows("start")
        self.assertAlmostEqual(rows[-1]["idle_s"], attempts.idle(starts, 9), delta=0.01)
        self.assertEqual(rows[-1]["exit_before"], -1)
        newest = [line for line in attempts.lines_of(self.dir) if line["kind"] == "continues"][-1]
        self.assertAlmostEqual(rows[-1]["redone_s"], sum(lost["seconds"].get(kind, 0) for lost in newest["redone"]
                                                         for kind in attempts.PARTS), delta=0.01)
        # The times in the checkpoint are those of all starts.
        with h5py.File(f"{self.dir}/checkpoints/{end:010}.h5") as f:
            saved = sum(float(f.attrs[name]) for name in ("setup_s", "training_s", "evaluation_s", "checkpoint_s", "redone_s"))
        self.assertAlmostEqual(saved, sums["job"], delta=0.02 * sums["job"])
        self.assertAlmostEqual(self.rows()[-1]["goodput"], sums["training"] / sums["job"], delta=0.03)

    def test_failures_and_rewinds(self):
        # A failure has the code and the cause of its report, for tools at once and for the next start.
        stop = self.poisoned("stop")
        self.expect(6, args=stop, ranks=2)
        # mpirun may end before the last rank is gone, which holds the lock.
        newest = self.wait("the end", lambda: next((s for s in attempts.starts_of(self.dir)[-1:] if s.how), None))
        self.assertEqual(newest.how, "failed")
        self.assertIn("exit=6: step 4: loss=", newest.reason)
        self.expect(6, "from=checkpoint", args=stop, ranks=2)
        first, second = attempts.starts_of(self.dir)
        self.assertEqual((first.how, first.exit), ("failed", 6))
        self.assertRegex(first.reason, r"^rank=0 of 2 host=\S+ step=4 phase=train exit=6: step 4: loss=")
        self.assertAlmostEqual(first.seconds(), newest.seconds(), delta=0.05)
        self.assertEqual((second.first_step, first.lost_steps), (2, 2))
        # A run that goes back within a start moves that time to what is done again. The failed starts before it count as
        # redone, too, because this one begins anew.
        self.expect(0, "went back to step 2", args=self.poisoned("rewind", "--set", "checkpoint.resume=never"), ranks=2)
        start = attempts.starts_of(self.dir)[-1]
        self.assertEqual((start.how, start.source), ("finished", "random_init"))
        self.assertGreater(len(start.attempts), 1)
        self.assertGreater(start.spent["redone"], 0)
        self.assertAlmostEqual(start.seconds(), start.end - start.begin, delta=0.01)
        sums, (failures, redone, _) = attempts.totals(attempts.starts_of(self.dir))
        self.assertEqual(failures, 2)
        self.assertAlmostEqual(sums["redone"], redone + start.spent["redone"], delta=0.01)
        self.assertAlmostEqual(redone, first.seconds() + attempts.starts_of(self.dir)[1].seconds(), delta=0.05)

    def test_tools_on_a_known_file(self):
        os.makedirs(self.dir + "/logs")
        for name, text in (("lock", ""), ("logs/rank00000.log", "00:00:02 done     exit=0\n"),
                           ("attempts.jsonl", "".join(json.dumps(line) + "\n" for line in KNOWN) + '{"kind":"be'),
                           ("metrics.jsonl", '{"kind":"start","step":0,"attempt":1.0,"time":1764350000}\n')):
            with open(os.path.join(self.dir, name), "w") as f:
                f.write(text)
        text = self.status()
        self.assertIn("goodput     48.3 % of 14.5 s trained what counts; waits in it: data 21 %, exchanges 4 %\n"
                      "            start-up 20.7 %", text)
        self.assertIn("redone after a restart 31.0 %; 2.5 s between 2 starts", text)
        self.assertIn("failures    1 of 2 starts, which cost 5.5 s: redone 4.5 s, start-up after them 1.0 s", text)
        self.assertIn("start 1: killed in phase train, step 7; redone 3 steps, 4.5 s", text)
        text = self.status("--provenance")
        self.assertIn("start 2 changed  mesh.shape: replica 1 x fsdp 2 -> replica 2 x fsdp 1", text)
        self.assertNotIn("changed  env.X", text)
        subprocess.run([os.path.join(harness.SOURCE, "tools/report"), self.dir], check=True, capture_output=True, timeout=harness.GUARD)
        with open(self.dir + "/report.html") as f:
            page = f.read()
        section = page[page.index('<section id="goodput">'):page.index('</section>', page.index('<section id="goodput">'))]
        self.assertIn("<b>48.3 %</b> of 14.5 s of job time", section)
        self.assertEqual(section.count('class="bar small"'), 2)  # a bar for each start
        self.assertIn("redone after a restart: 4.5 s</title>", section)
        self.assertIn('<section id="provenance">', page)
        # Runs of older programs have no such file.
        os.remove(self.dir + "/attempts.jsonl")
        self.assertNotIn("goodput", self.status())
        self.assertIn("does not say what it ran with", self.status("--provenance"))

    # ---------------------------------------------------------------- what a start runs with

    def test_provenance_and_its_changes(self):
        def train(steps, **more):
            environment = os.environ | {"OMP_DYNAMIC": "false", "SLURM_JWT": "a secret", "HOME_OF_NOBODY": "x"} | more
            done = subprocess.run(["mpirun", "-np", "2", "-x", "OMP_DYNAMIC", "-x", "SLURM_JWT", harness.TRAINER, self.deck(), "--set",
                                   f"train.total_steps={steps}"], capture_output=True, text=True, cwd=self.folder,
                                  timeout=harness.GUARD, env=environment)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return done.stdout

        self.assertNotIn("changed  env", train(4))
        self.assertNotRegex(train(6), "changed  (env|library|limit|mesh|machine|program)")
        output = train(8, OMP_DYNAMIC="true")
        self.assertIn("changed  env.OMP_DYNAMIC: false -> true", output)
        starts = attempts.starts_of(self.dir)
        self.assertEqual(len(starts), 3)
        facts = starts[-1].facts
        self.assertEqual(facts["env.SLURM_JWT"], "(not shown)")
        self.assertNotIn("env.HOME_OF_NOBODY", facts)
        self.assertEqual(facts["mesh.shape"], "replica 1 x fsdp 2")
        self.assertEqual(facts["mesh.threads"], "1")
        self.assertIn("40 samples", facts["data.training"])
        for name in ("library.libmpi", "library.libc", "limit.open_files", "machine.kernel", "program.digest", "deck.digest"):
            self.assertTrue(facts[name], name)
        with h5py.File(self.dir + "/metrics.h5") as f:
            for number in (1, 2, 3):
                kept = {name: f[f"provenance/{number}"].attrs[name] for name in f[f"provenance/{number}"].attrs}
                self.assertEqual({k: v.decode() if isinstance(v, bytes) else v for k, v in kept.items()}, starts[number - 1].facts)
        text = self.status("--provenance")
        self.assertIn("start 3 changed  env.OMP_DYNAMIC: false -> true", text)
        self.assertRegex(text, r"(?m)^  library.libmpi +so")
        self.assertEqual([start.how for start in starts], ["finished"] * 3)

    # ---------------------------------------------------------------- state and memory

    def test_state_tree_is_that_of_the_checkpoint(self):
        self.expect(0, args=[self.deck(), "--set", "train.total_steps=4", "--set", "ema={decay=0.9}"], ranks=2)
        with open(self.dir + "/logs/state.txt") as f:
            lines = f.read().splitlines()
        tensors, members, sums = {}, set(), {}
        for line in lines[1:]:
            words = line.split()
            if line.startswith("/"):
                tensors[words[0]] = words[1:]
            elif line.startswith("@"):
                members.add(words[0][1:])
            elif words:
                sums[" ".join(words[:-1])] = int(words[-1].replace(",", ""))
        with h5py.File(f"{self.dir}/checkpoints/0000000004.h5") as f:
            found = {}
            f.visititems(lambda name, item: found.__setitem__("/" + name, item) if isinstance(item, h5py.Dataset) else None)
            held = {name: item for name, item in found.items() if not name.startswith("/checksums") and name != "/deck"}
            self.assertEqual(sorted(tensors), sorted(held))
            for name, item in held.items():
                shape, kind, placement, size, per_rank = tensors[name]
                self.assertEqual(shape, "[" + ",".join(map(str, item.shape)) + "]", name)
                self.assertEqual(int(size.replace(",", "")), item.nbytes, name)
                self.assertEqual(item.dtype.itemsize, {"f32": 4, "f64": 8, "i64": 8, "i32": 4, "bf16": 2}[kind], name)
                copies = {"sharded": 1, "replicated": 2}[placement]
                self.assertEqual(int(per_rank.replace(",", "")), item.nbytes * copies // 2, name)
            self.assertEqual(tensors["/params/encoder/embedding/kernel"][2], "sharded")
            self.assertEqual(members, set(f.attrs) | {"deck"})
            for root in ("params", "optimizer", "ema"):
                self.assertEqual(sums[f"all of /{root}"], sum(i.nbytes for n, i in held.items() if n.startswith(f"/{root}/")))
        total = sum(size for name, size in sums.items() if name.startswith("all of "))
        by_rank = sum(size * (2 if name.startswith("each") else 1) for name, size in sums.items() if "rank" in name)
        self.assertGreaterEqual(by_rank, total)

    def test_memory_at_chosen_steps(self):
        self.expect(0, args=[self.deck(), "--set", "train.total_steps=6", "--set", "log.memory_steps=[2, 5]", "--set",
                             "log.metrics_every_steps=3"], ranks=2)
        with open(self.dir + "/logs/memory.txt") as f:
            blocks = re.split(r"(?m)^step (\d+) of attempt 1, MiB$", f.read())
        self.assertEqual(blocks[1::2], ["2", "5"])
        for block in blocks[2::2]:
            rows = {words[0]: [float(word) for word in words[1:]] for words in map(str.split, block.splitlines()[2:])}
            for name in ("buffers.weights", "buffers.gradients", "buffers.optimizer", "process.resident", "process.anonymous"):
                self.assertGreater(rows[name][1], 0, name)
                self.assertGreaterEqual(rows[name][1], rows[name][0], name)
            self.assertAlmostEqual(rows["process.resident"][0], sum(rows[f"process.{name}"][0] for name in
                                                                    ("anonymous", "files", "shared")), delta=0.2)
        rows = {row["step"]: row for row in self.rows()}
        self.assertEqual(sorted(rows), [1, 2, 3, 5, 6])
        self.assertGreater(rows[5]["memory_mib[weights]"], 0)
        self.assertNotIn("memory_mib[weights]", rows[3])
        self.assertGreater(rows[3]["host_anon_mib"], 1)
        self.assertGreater(rows[3]["host_file_mib"], 1)
        self.expect(2, "log.memory_steps", args=[self.deck(), "--validate", "--set", "log.memory_steps=[0]"])


if __name__ == "__main__":
    harness.main()
