#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Traces of some steps: their structure on one to four ranks, every way to end in a window, and what they cost."""
import collections
import json
import os
import re
import shutil
import signal
import subprocess
import unittest

import harness
import place
from live_harness import LONG, LiveTest

TOOL = os.path.join(harness.SOURCE, "tools", "trace")
WINDOW = ["--set", "profile.steps=[4]", "--set", "profile.length=2", "--set", "profile.ranks=all"]
REPLICAS = ["--set", "mesh.replica=2"]
trace_file = harness.loaded("trace").trace_file


class Trace(LiveTest):
    def path(self, step, rank=0):
        return f"{self.dir}/logs/trace/step{step:010}.rank{rank:05}.json"

    def files(self):
        return sorted(os.listdir(self.dir + "/logs/trace")) if os.path.isdir(self.dir + "/logs/trace") else []

    def closed(self, step, rank=0):
        """Returns the events of a file that was closed: all of it is one JSON array."""
        with open(self.path(step, rank)) as f:
            events = json.load(f)
        self.assertEqual(events[-1]["name"], "trainer_trace_end")
        return events

    def tool(self, *args, code=0):
        done = subprocess.run([TOOL, self.dir, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD)
        self.assertEqual(done.returncode, code, done.stdout)
        self.assertNotIn("Traceback", done.stdout)
        return done.stdout

    def check_nesting(self, trace):
        """Two spans of a row lie one within the other, or one after the other."""
        for row in {span.row for span in trace.spans}:
            ends = []
            for span in trace.of_row(row):
                while ends and ends[-1] <= span.begin:
                    ends.pop()
                if ends:
                    self.assertLessEqual(span.end, ends[-1] + 1e-6, span)
                ends.append(span.end)

    def check_steps(self, trace, steps):
        self.assertEqual([s.args["number"] for s in trace.steps], steps)
        rows = {row["step"]: row for row in self.rows()}
        main = trace_file.within_steps(trace, trace_file.MAIN)
        for whole in trace.steps:
            inside = [s for s in main if s.begin >= whole.begin and s.end <= whole.end]
            length = whole.end - whole.begin
            # The times of a step add up.
            self.assertAlmostEqual(sum(own for _, own in trace_file.self_times(inside)), length, delta=0.02 * length)
            step, = (s for s in inside if s.name == "step")
            self.assertEqual(step.args["number"], whole.args["number"])
            self.assertEqual([s.name for s in inside if s.name in ("reduce", "update")], ["reduce", "update"])
            self.assertEqual(sum(s.name == "pass" for s in inside), 12 // (6 * trace.head["ranks"]) or 1)
            # The rows of metrics know the step's products, and so does the trace.
            gemms = [s for s in inside if s.name == "gemm" and s.kind == "op"]
            self.assertGreater(sum(s.args["flops"] for s in gemms), 0)
            self.assertTrue(all(s.args["bytes"] > 0 for s in gemms))
            if trace.rank == 0:
                self.assertGreater(length / 1e3, rows[whole.args["number"]]["comm_ms"])

    def check_between_steps(self, traces):
        """Steps follow each other, so what lies between them is next to nothing, for a rank that kept its core meanwhile."""
        between = [t.steps[-1].end - t.steps[0].begin - sum(s.end - s.begin for s in t.steps) for t in traces]
        self.assertTrue(any(us < 0.02 * t.seconds() * 1e6 + 200 for us, t in zip(between, traces)), between)

    def check_exchanges(self, traces):
        """Each exchange within the steps is in the files of all ranks of its group, at times that overlap."""
        calls = collections.defaultdict(list)
        for trace in traces:
            for span in trace.exchanges():
                if trace.steps[0].begin < span.begin and span.end < trace.steps[-1].begin:
                    group = span.args["group"]
                    calls[group, trace.head["groups"][group], span.args["call"]].append((trace.rank, span))
        self.assertGreater(len(calls), 3)
        unsure = 2 * max(t.head["clock_unsure_ns"] for t in traces) / 1e3
        for (group, _, _), spans in calls.items():
            self.assertEqual(len(spans), {"world": len(traces), "fsdp": 2, "replica": len(traces) // 2}[group], spans)
            self.assertEqual(len({(s.name, s.args.get("count"), s.args.get("bytes")) for _, s in spans}), 1, spans)
            # None ends before the last one begins, on one clock. A broadcast's root need not wait.
            if not spans[0][1].name.startswith("broadcast"):
                self.assertGreater(min(s.end for _, s in spans) + unsure, max(s.begin for _, s in spans), spans)

    def check_merged(self, ranks):
        with open(f"{self.dir}/logs/trace/step0000000004.json") as f:
            events = json.load(f)["traceEvents"]
        self.assertEqual({e["pid"] - trace_file.PROCESSES for e in events}, set(range(ranks)))
        chains = collections.defaultdict(list)
        for e in events:
            if e.get("cat") == "exchange" and e["ph"] in "stf":
                chains[e["id"]].append(e)
        self.assertGreater(len(chains), 3)
        spans = {(e["pid"], e["tid"], round(e["ts"], 3)) for e in events if e["ph"] == "X"}
        for chain in chains.values():
            self.assertEqual([e["ph"] for e in chain], ["s", *"t" * (len(chain) - 2), "f"])
            self.assertEqual(len({e["pid"] for e in chain}), len(chain), "one for each rank")
            self.assertTrue(all((e["pid"], e["tid"], e["ts"]) in spans for e in chain), "each begins where a span does")
        self.assertEqual(max(map(len, chains.values())), ranks)

    def check_ranks(self, ranks, *more):
        self.expect(0, args=[self.deck(), *WINDOW, *more], ranks=ranks)
        self.assertEqual(self.files(), [os.path.basename(self.path(4, rank)) for rank in range(ranks)])
        traces = trace_file.read_window(self.dir)
        for rank, trace in enumerate(traces):
            self.closed(4, rank)
            self.assertEqual((trace.rank, trace.head["ranks"], trace.head["first_step"], trace.head["last_step"]), (rank, ranks, 4, 5))
            self.assertEqual(trace.end["reason"], "the window has ended")
            self.assertEqual(trace.end["lost"], 0)
            names = set(trace.rows.values())
            self.assertEqual(trace.rows[trace_file.MAIN], "main")
            self.assertIn("exchanges 1", names)
            self.assertTrue(any(name.startswith("loader") for name in names), names)
            self.check_nesting(trace)
            self.check_steps(trace, [4, 5])
            # An arrow leads from the main thread to the row of each exchange.
            arrows = collections.defaultdict(list)
            for e in trace.events:
                if e["ph"] in "sf":
                    arrows[e["id"]].append((e["ph"], e["tid"]))
            self.assertTrue(arrows)
            for begin, end in arrows.values():
                self.assertEqual(begin, ("s", trace_file.MAIN))
                self.assertEqual(end[0], "f")
                self.assertGreaterEqual(end[1], trace_file.EXCHANGES)
        self.check_between_steps(traces)
        self.check_exchanges(traces)
        text = self.tool()
        self.assertIn(f"all ranks: {self.dir}/logs/trace/step0000000004.json", text)
        for name in ("gemm", "whole step", "wait for an exchange"):
            self.assertRegex(text, rf"\n  {name} +\w+ +[\d,]+ +[\d.]+ +[\d.]+ +[\d.]+%")
        shares = re.findall(r"(\d+\.\d+)%", text.split("\nother threads")[0])
        self.assertAlmostEqual(sum(map(float, shares)), 100, delta=0.5)
        self.check_merged(ranks)

    def test_two_ranks(self):
        self.check_ranks(2)
        # The report has the table, and a bar for what the step did.
        done = subprocess.run([os.path.join(harness.SOURCE, "tools", "report"), self.dir], stdout=subprocess.PIPE, text=True,
                              timeout=harness.GUARD, check=True, env=os.environ | {"TRAINER": harness.TRAINER})
        with open(done.stdout.strip(), encoding="utf-8") as f:
            page = f.read()
        section = re.search(r'<section id="trace">(.*?)</section>', page, re.S)[1]
        self.assertIn("<td>gemm</td><td>op</td>", section)
        self.assertIn("rank 1, main</text>", section)
        self.assertIn("<title>step 5: ", section)

    def test_four_ranks(self):
        self.check_ranks(4, *REPLICAS)

    # ---------------------------------------------------------------- which steps

    def test_by_default_three_steps_of_rank_0(self):
        self.expect(0, args=[self.deck()], ranks=2)
        self.assertEqual(self.files(), [os.path.basename(self.path(3))])
        trace, = trace_file.read_window(self.dir)
        self.assertEqual([s.args["number"] for s in trace.steps], [3, 4, 5])
        self.assertIn("1 of 2 ranks", self.tool("--step", "5"))
        self.assertIn("no trace of step 6", self.tool("--step", "6", code=2))
        # It changes no bit, and can be turned off.
        traced = self.tensors(12)
        shutil.rmtree(self.dir)
        self.expect(0, args=[self.deck(), "--set", "profile.steps=[]"], ranks=2)
        self.assertEqual(self.files(), [])
        self.assertEqual(self.tensors(12), traced)
        self.assertIn("logs/trace", self.tool(code=2))

    def test_windows_that_begin_too_early(self):
        self.expect(0, "unused   profile.steps: windows of 2 steps at 3, 5 would begin", args=[
            self.deck(), "--set", "profile.steps=[4, 2, 3, 5, 9]", "--set", "profile.length=2"])
        self.assertEqual(self.files(), [os.path.basename(self.path(step)) for step in (2, 4, 9)])
        self.assertEqual([[s.args["number"] for s in trace_file.read_window(self.dir, step)[0].steps] for step in (3, 4, 9)],
                         [[2, 3], [4, 5], [9, 10]])

    def test_stop_after_the_last_window(self):
        stop = [*WINDOW, "--set", "profile.stop_after=true"]
        self.expect(8, "the last traced step was 5", args=[self.deck(), *stop], ranks=2)
        self.assertEqual(self.checkpoints()[-1], "0000000005.h5")
        for rank in range(2):
            self.closed(4, rank)
        # The run goes on behind the window.
        self.expect(0, args=[self.deck(), *stop], ranks=2)
        self.assertEqual(self.checkpoints()[-1], "0000000012.h5")

    # ---------------------------------------------------------------- ends within a window

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_a_signal_closes_the_file(self):
        job = self.start(*LONG, *WINDOW, "--set", "profile.length=100000")
        self.until(job, "step=6 ")
        os.kill(self.ranks(job)[1], signal.SIGTERM)
        self.ended(job, 75)
        for rank in range(2):
            self.assertIn("signal TERM", self.closed(4, rank)[-1]["args"]["reason"])
            self.check_nesting(trace_file.RankTrace(self.path(4, rank)))

    def test_an_error_closes_the_file(self):
        self.expect(6, args=self.poisoned("stop", "--set", "profile.length=100"))
        self.assertIn("step 4", self.closed(3)[-1]["args"]["reason"])

    def test_a_rewind_closes_the_file(self):
        self.expect(0, "went back", args=self.poisoned("rewind", "--set", "profile.length=100"))
        self.assertIn("went back to step", self.closed(3)[-1]["args"]["reason"])

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_a_kill_leaves_a_file_that_can_be_read(self):
        job = self.start(*LONG, *WINDOW, "--set", "profile.length=100000")
        self.until(job, "step=8 ")
        for pid in self.ranks(job):
            os.kill(pid, signal.SIGKILL)
        job.communicate(timeout=harness.GUARD)
        for trace in trace_file.read_window(self.dir):
            self.assertIsNone(trace.end)
            self.assertGreaterEqual(len(trace.steps), 4)
            self.check_nesting(trace)
            # The file ends with a whole event, so only the end of the array is missing.
            with open(trace.path) as f:
                text = f.read()
            self.assertEqual(json.loads(text + "]"), trace.events)
            # A disk that lost the end of the file leaves a part of a line.
            with open(trace.path, "w") as f:
                f.write(text[:len(text) * 2 // 3])
            self.assertGreater(len(trace_file.RankTrace(trace.path).events), len(trace.events) // 3)
        self.assertIn("the file has no end", self.tool())

    # ---------------------------------------------------------------- cost

    def test_cost_of_a_traced_span(self):
        """A step of the emoji run has about 900 spans and takes 80 ms or more, so 2,500 ns each are below 3 % of it."""
        self.expect(0, args=[self.deck(), "--mode", "bench", "--set", "bench.steps=3", "--set", "bench.warmup_steps=1"])
        found = re.search(r"spans    idle (\d+) ns, kept (\d+) ns, traced (\d+) ns, .* while traced ([\d.]+) %", self.output)
        self.assertTrue(found, self.output)
        self.assertLess(int(found[3]), 2500)
        self.assertLess(int(found[1]), 200)
        self.assertGreater(json.loads(self.output.strip().splitlines()[-1])["traced_spans_share"], 0)


if __name__ == "__main__":
    harness.main()
