#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of a run takes 300 ms longer in each step: metrics, warning, tools/status and tools/report name it, its host and what it does.

SLOW_RANK_RECORD=FILE writes the windows of these runs to a file, for tests/data/slow_windows.txt.
"""
import concurrent.futures
import os
import re
import socket
import subprocess
import unittest

import harness

MS = 300
STEPS = 36      # 2 for warming up, 4 windows of 8, and the rows after the last one
# name: ranks, slow rank, phase
RUNS = {"input": (2, 1, "input"), "computing": (4, 2, "computing"), "exchange": (2, 0, "exchange"), "saving": (2, 0, "saving")}


class SlowRank(harness.RunTest):
    def start(self, name):
        """Runs a deck to its end with one slow rank; returns the output."""
        ranks, slow, phase = RUNS[name]
        folder = f"{self.folder}/{name}"
        args = harness.sets(f"train.total_steps={STEPS}", "eval.val.every_steps=0", "eval.val.at_end=false",
                            f"checkpoint.every_steps={STEPS}", "log.console_every_steps=100", 'log.levels={ train = "debug" }',
                            *["log.samples=true"] * (phase == "input"), *["log.flush_s=0"] * (phase == "saving"))
        environment = dict(os.environ)
        if phase in ("input", "saving"):    # the rank's list of samples is slow to write, or its metrics to sync
            call, end = ("write", ".tsv") if phase == "input" else ("fsync", "metrics.jsonl")
            environment.update(LD_PRELOAD=harness.preload(os.environ["INJECT_LIBRARY"]), INJECT_UNDER=folder, INJECT_CALL=call,
                               INJECT_ENDS=end, INJECT=f"{slow}:0:slow={MS}+")
        else:
            environment.update(LD_PRELOAD=harness.preload(os.environ["SLOW_LIBRARY"]), SLOW=f"{slow}:{MS}:{phase}")
        done = subprocess.run(["mpirun", "-np", str(ranks), harness.TRAINER, self.path, "--dir", folder, *args], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment,
                              timeout=harness.GUARD)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def tool(self, name, folder):
        done = subprocess.run([f"{harness.SOURCE}/tools/{name}", folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=harness.GUARD)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_the_slow_rank_is_named(self):
        self.path = self.deck()
        with concurrent.futures.ThreadPoolExecutor(max_workers=len(RUNS)) as threads:     # they mostly sleep
            outputs = dict(zip(RUNS, threads.map(self.start, RUNS)))
        phases = harness.loaded("status").slow_ranks.PHASES
        for name, (ranks, slow, phase) in RUNS.items():
            with self.subTest(name):
                folder, host, output = f"{self.folder}/{name}", socket.gethostname(), outputs[name]
                if record := os.environ.get("SLOW_RANK_RECORD"):
                    with open(record, "a") as f:
                        f.write(f"run {name} {ranks} {phase} {slow}\n")
                        f.writelines(line + "\n" for line in re.findall(r"window steps=.*", output))
                rows = [row for row in self.rows(folder=folder) if "slow_rank" in row]
                self.assertEqual(len(rows), 4, output)
                for row in rows:
                    self.assertEqual((row["slow_rank"], phases[int(row["slow_phase"])]), (slow, phase), output)
                    self.assertGreater(row["slow_ms"], 0.5 * MS)
                    self.assertGreaterEqual(row["data_max_ms"], row["data_mean_ms"])
                self.assertEqual([row["slow_chronic"] for row in rows], [0, 0, 0, 1])
                self.assertEqual(rows[0]["data_max_ms"] > MS, phase == "input", rows)
                # One warning, though more windows may be chronic.
                warning, = re.findall(r"rank \d+ on \S+ makes the others wait.*", output)
                self.assertRegex(warning, rf"^rank {slow} on {re.escape(host)} makes the others wait in most steps, phase {phase}: "
                                          r"a step takes \d+ ms, and would take \d+ ms without this rank; ")
                whole, without = map(int, re.findall(r"(\d+) ms", warning)[:2])
                self.assertGreater(whole - without, 0.5 * MS)
                self.assertRegex(self.tool("status", folder),
                                 rf"slow +rank {slow} on {re.escape(host)}: {phase}, in most steps; costs \d+ ms")
                self.tool("report", folder)
                with open(folder + "/report.html", encoding="utf-8") as f:
                    self.assertRegex(f.read(), rf'id="slow">.*<td>rank {slow} on {re.escape(host)}</td><td>{phase}</td><td>4</td>'
                                               r"<td>100 %</td>")

    def test_rows_of_older_runs(self):
        """Rows without the columns say nothing about slow ranks, nor do rows that are no numbers."""
        windows = harness.loaded("status").slow_ranks.Windows()
        for row in ({"step": 1, "data_ms": 3.0}, {"step": 2, "slow_rank": "nan", "slow_phase": 1.0, "slow_ms": 2.0},
                    {"step": 3, "slow_rank": -1.0, "slow_phase": 0.0, "slow_ms": 0.0}):
            windows.add(row)
            self.assertEqual(windows.text([]), "")
        windows.add({"step": 4, "slow_rank": -1.0, "slow_phase": 4.0, "slow_ms": 20.0, "slow_chronic": 0.0})
        self.assertEqual(windows.text([]), "all ranks alike: saving, once; costs 20 ms per step (up to step 4)")
        windows.add({"step": 5, "slow_rank": 3.0, "slow_phase": 5.0, "slow_ms": 40.0, "slow_chronic": 1.0})
        self.assertEqual(windows.text([(0, 1, "a"), (2, 7, "b")]),
                         "rank 3 on b: machine, in most steps; costs 40 ms per step (up to step 5)")
        self.assertEqual((windows.count, len(windows.slow)), (3, 2))


if __name__ == "__main__":
    harness.main()
