#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Hooks: what they are told, the order of all that follows from a step, hooks that misbehave, and every end of a job."""
import glob
import json
import os
import signal
import subprocess
import unittest
from unittest import mock

import harness
import place
import processes
from live_harness import LONG, LiveTest

CALM = harness.sets("eval.val.every_steps=0", "eval.val.at_end=false", "checkpoint.every_steps=100000")


class Hooks(LiveTest):
    def setUp(self):
        super().setUp()
        self.told = f"{self.folder}/told.jsonl"
        self.record = f"cat >> {self.told}"

    def hooked(self, **hooks):
        """Returns the good deck with these hooks, which begin to be told of events now."""
        if os.path.exists(self.told):
            os.remove(self.told)
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in hooks.items())
        return self.deck(self.good + "\n[hooks]\n" + lines, "hooked.toml")

    def recorded(self, *names, **more):
        """Returns a deck whose hooks of these names record what they are told."""
        return self.hooked(**dict.fromkeys(names, self.record), **more)

    def events(self):
        with open(self.told, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def last_words(self, *names, code):
        """The job has told these hooks of its end, once each, with this exit code. Returns the last event."""
        events = [e for e in self.events() if e["event"] in ("error", "end")]
        self.assertEqual([(e["event"], e["exit"]) for e in events], [(name, code) for name in names], events)
        return events[-1]

    def log(self):
        try:
            with open(f"{self.dir}/logs/hooks.log", encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def start_deck(self, deck, *args, launcher=("mpirun", "-np", "2"), **env):
        """Starts a job; `env` has further variables."""
        return subprocess.Popen([*launcher, harness.TRAINER, deck, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                cwd=self.folder, text=True, env=os.environ | env)

    # ---------------------------------------------------------------- order, facts, bits

    def test_order_facts_and_bits(self):
        calm = ["--set", "checkpoint.async=false", "--set", "checkpoint.best=val/perplexity:min"]
        # What an event follows from is there: its row, its file.
        row = f'grep -c "\\"eval\\".*\\"step\\":$TRAINER_STEP[,}}]" $TRAINER_RUN/metrics.jsonl >> {self.folder}/rows'
        deck = self.hooked(
            start=f"{self.record}; env > {self.folder}/env; grep Sig /proc/self/status > {self.folder}/signals; "
                  f"ls /proc/self/fd | wc -l > {self.folder}/files; mpirun -np 1 true",
            step=self.record, every_steps=6, evaluation=f"{self.record}; {row}",
            checkpoint=f"tee -a {self.told} > /dev/null; {harness.SOURCE}/tools/copy_checkpoint {self.folder}/copies --keep 2",
            end=f"tee -a {self.told} | {harness.SOURCE}/tools/log_run {self.folder}/runs.tsv")
        self.expect(0, "finished step=12", ranks=2, args=[deck, *calm])
        self.assertNotIn(" hook ", self.output)
        events = self.events()
        expected = [("start", 0), ("checkpoint", 4), ("evaluation", 6), ("checkpoint", 6), ("step", 6), ("checkpoint", 8),
                    ("evaluation", 12), ("checkpoint", 12), ("step", 12), ("end", 12)]
        self.assertEqual([(e["event"], e["step"]) for e in events], expected, self.log())
        steps = [e for e in events if e["event"] == "step"]
        self.assertEqual([e["left_out"] for e in steps], [0, 0])
        for event in events:
            self.assertEqual([event[key] for key in ("run", "name", "total", "attempt", "ranks")], [self.dir, "test", 12, 1, 2])
        losses = {row["step"]: row["loss"] for row in self.rows()}
        self.assertEqual([e["loss"] for e in (*steps, events[-1])], [losses[e["step"]] for e in (*steps, events[-1])])
        evaluations = {row["step"]: row for row in self.rows("eval")}
        best = min(evaluations, key=lambda step: evaluations[step]["perplexity"])
        for event in events:
            if event["event"] == "evaluation":
                row = evaluations[event["step"]]
                self.assertEqual(event["values"], {key: row[key] for key in row if key not in ("kind", "eval", "step")})
                self.assertEqual((event["eval"], event["best"] or event["step"] != best), ("val", True))
            if event["event"] == "checkpoint":
                self.assertEqual(event["file"], f"{self.dir}/checkpoints/{event['step']:010}.h5")
        self.assertEqual((events[-1]["exit"], events[-1]["reason"]), (0, "finished"))
        with open(f"{self.folder}/rows", encoding="utf-8") as file:
            self.assertEqual(file.read().split(), ["1", "1"])

        # The environment is that of the job without its rank; signals are as in a shell, and no file is open.
        with open(f"{self.folder}/env", encoding="utf-8") as file:
            env = dict(line.rstrip("\n").partition("=")[::2] for line in file)
        self.assertEqual([name for name in env if name.startswith(("OMPI_", "PMIX_")) and "RUN_AS_ROOT" not in name], [])
        self.assertEqual((env["TRAINER_EVENT"], env["TRAINER_STEP"], env["TRAINER_RUN"], env["PATH"]),
                         ("start", "0", self.dir, os.environ["PATH"]))
        with open(f"{self.folder}/signals", encoding="utf-8") as file:
            signals = dict(line.split(":") for line in file)
        # Signals 32 and 33 are the C library's own.
        self.assertEqual([int(signals[kind], 16) & 0x7fffffff for kind in ("SigBlk", "SigIgn")], [0, 0])
        with open(f"{self.folder}/files", encoding="utf-8") as file:
            self.assertEqual(int(file.read()), 4)  # three, and that of ls itself

        # The example hooks have done their work.
        self.assertEqual(sorted(os.path.basename(f) for f in glob.glob(f"{self.folder}/copies/*")), ["0000000008.h5", "0000000012.h5"])
        for step in (8, 12):
            with open(f"{self.folder}/copies/{step:010}.h5", "rb") as a, open(f"{self.dir}/checkpoints/{step:010}.h5", "rb") as b:
                self.assertEqual(a.read(), b.read())
        with open(f"{self.folder}/runs.tsv", encoding="utf-8") as file:
            head, line = (line.rstrip("\n").split("\t") for line in file)
        line = dict(zip(head, line))
        self.assertEqual((line["run"], line["step"], line["exit"], line["reason"]), (self.dir, "12", "0", "finished"))
        self.assertIn("checkpoint | ", self.log())

        # Without hooks: the same bits.
        with_hooks = self.tensors(12), losses
        self.expect(0, ranks=2, args=[self.deck(), *calm, "--dir", f"{self.folder}/plain"])
        self.assertEqual((self.tensors(12, f"{self.folder}/plain"),
                          {row["step"]: row["loss"] for row in self.rows(folder=f"{self.folder}/plain")}), with_hooks)

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_killed_and_continued(self):
        # A hook that ignores TERM is killed with the job.
        deck = self.hooked(start=f"trap '' TERM; echo $$ > {self.folder}/pid; while :; do sleep 0.05; done", timeout_s=600)
        job = self.start_deck(deck, *LONG, launcher=())
        self.wait("a checkpoint and the hook", lambda: self.checkpoints() and os.path.exists(f"{self.folder}/pid"))
        job.kill()
        job.communicate()
        with open(f"{self.folder}/pid", encoding="utf-8") as file:
            pid = int(file.read())
        self.wait("the end of the hook", lambda: processes.ended(pid))
        # The next attempt's events begin where it begins.
        newest = self.newest()
        deck = self.recorded("start", "step", "evaluation", "checkpoint", "error", "end", every_steps=1)
        last = newest + 3
        self.expect(0, f"start    step={newest}", args=[deck, "--set", f"train.total_steps={last}", "--set", "checkpoint.async=false"])
        events = [(e["event"], e["step"]) for e in self.events()]
        self.assertEqual((events[0], events[-1]), (("start", newest), ("end", last)))
        self.assertEqual([e for e in events if e[0] in ("checkpoint", "error")][-1], ("checkpoint", last))
        self.assertEqual({e["attempt"] for e in self.events()}, {2})
        steps = [step for _, step in events]
        self.assertEqual(steps, sorted(steps))
        self.assertGreater(min(step for event, step in events if event == "step"), newest)

    # ---------------------------------------------------------------- hooks that misbehave

    def test_hooks_that_misbehave(self):
        deck = self.hooked(start="trap '' TERM; while :; do sleep 0.05; done", checkpoint="sleep 1000",
                           evaluation="head -c 3000000 /dev/zero | tr '\\0' x; exit 3", step=f"cat >> {self.folder}/steps; kill -9 $$",
                           error="exit 1", end=self.record, every_steps=1, timeout_s=1)
        job = self.start_deck(deck, *LONG, "--set", "checkpoint.every_steps=50", "--set", "eval.val.every_steps=40")
        for line in ("start step=0 ended after 1.00 s: no end within 1 s: it was killed", "checkpoint step=50 ended after 1.00 s: no end",
                     "evaluation step=40 ended after ", " bytes more are left out", ": signal 9 (Killed)"):
            self.wait(line, lambda line=line: line in self.log())
        for line in (r"evaluation step=40 ended after .* s: exit 3", r"step step=\d+ ended after .* s: signal 9 \(Killed\)"):
            self.assertRegex(self.log(), line)
        job.send_signal(signal.SIGUSR1)
        output = self.ended(job, 75)
        for warning in ("hook start step=0: no end within 1 s", "hook evaluation step=40: exit 3", "hook checkpoint step=50: no end",
                        ": signal 9 (Killed); logs/hooks.log has its output"):
            self.assertIn(warning, output)
        self.assertLess(max(map(len, self.log().splitlines())), 70000)
        end = self.last_words("end", code=75)
        self.assertRegex(end["reason"], "^signal USR1 at rank [01]$")
        with open(f"{self.folder}/steps", encoding="utf-8") as file:
            steps = [json.loads(line) for line in file]
        for a, b in zip(steps, steps[1:]):
            self.assertEqual(b["step"], a["step"] + 1 + b["left_out"])

    def test_a_failure_may_stop_the_run(self):
        deck = self.hooked(checkpoint="exit 3", end=self.record, on_failure="stop")
        self.expect(8, 'stopped  ', 'hook checkpoint step=4: exit 3 (hooks.on_failure = "stop")', ranks=2, args=[deck, *LONG])
        end = self.last_words("end", code=8)
        self.assertIn("hook checkpoint step=4: exit 3", end["reason"])
        self.assertEqual(end["step"], self.newest())
        # At the end of a run nothing is left to stop.
        deck = self.hooked(end=f"{self.record}; exit 1", on_failure="stop")
        self.expect(0, "finished", f"hook end step={self.newest() + 1}: exit 1", ranks=2,
                    args=[deck, "--set", f"train.total_steps={self.newest() + 1}"])
        self.last_words("end", code=0)

    def test_decks(self):
        for hooks, words in (({"step": "true"}, "hooks.step: say how often"), ({"every_steps": 3}, "hooks.step: missing"),
                             ({"end": "true", "timeout_s": 0}, "hooks.timeout_s"), ({"evaluate": "true"}, "hooks.evaluate: unknown key")):
            self.expect(2, words, args=[self.hooked(**hooks), "--validate"])
        self.expect(0, args=[self.recorded("start", "end"), "--fast-dev", "1"], ranks=2)
        self.assertFalse(os.path.exists(self.told))

    # ---------------------------------------------------------------- ends

    def test_errors(self):
        # An error of all ranks. Before it had a run directory, the job had told nobody.
        deck, *args = self.poisoned("stop")
        with open(deck, encoding="utf-8") as file:
            text = file.read()
        ending = f'\n[hooks]\nerror = "{self.record}"\nend = "{self.record}"\n'
        self.deck(text + ending)
        self.expect(4, ranks=2, args=[deck, *args, "--set", "data.poisoned.path=/none.h5"])
        self.assertFalse(os.path.exists(self.told))
        self.expect(6, ranks=2, args=[deck, *args])
        error = self.last_words("error", "end", code=6)
        self.assertEqual((error["rank"], error["step"], error["phase"]), (0, 4, "train"))
        with open(f"{self.dir}/report.txt", encoding="utf-8") as file:
            self.assertIn(error["reason"].splitlines()[0], file.read())
        # The same place, and data that are gone: now there is somebody to tell.
        os.remove(self.told)
        self.expect(4, ranks=2, args=[deck, *args, "--set", "data.poisoned.path=/none.h5"])
        self.last_words("error", "end", code=4)
        # The job's time ends while a rank still reads the checkpoint.
        os.remove(self.told)
        slow = {"LD_PRELOAD": harness.preload(os.environ["INJECT_LIBRARY"]), "INJECT_UNDER": self.folder,
                "INJECT_CALL": "preadv", "INJECT_ENDS": ".h5", "INJECT": "1:0:slow=4000+"}
        with mock.patch.dict(os.environ, slow):
            self.expect(8, "stopped  before the first step", ranks=2,
                        args=[deck, *args, *harness.wall_time(4), "--set", "limits.margin_s=1"])
        self.assertIn("wall time", self.last_words("end", code=8)["reason"])

    def test_an_error_of_one_rank(self):
        deck = self.hooked(error=f"sleep 1; {self.record}", end=self.record)
        job = self.start_deck(deck, *LONG, *CALM, LD_PRELOAD=harness.preload(os.environ["INJECT_LIBRARY"]), INJECT_UNDER=self.folder,
                              INJECT_CALL="pread", INJECT_ENDS=".tar", INJECT="1:30:errno=5+")
        self.ended(job, 4)
        self.assertEqual(self.last_words("error", "end", code=4)["rank"], 1)

    def test_a_hang(self):
        # The others, which end the job, wait for the hooks of the one that judges.
        deck = self.hooked(error="trap '' TERM; while :; do sleep 0.05; done", end=self.record)
        job = self.start_deck(deck, *LONG, *CALM, "--set", "watch.limit_s=5", FAULT="1:MPI_Iallgather:5:hang",
                              LD_PRELOAD=harness.preload(os.environ["FAULT_LIBRARY"]))
        self.ended(job, 7)
        self.assertIn("hang: rank 1", self.last_words("end", code=7)["reason"])
        self.assertIn("no end within 1.25 s", self.log())


harness.main()
