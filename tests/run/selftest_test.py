#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""--mode selftest: the table, and faulty machines, networks and file systems that it must name with host and rank.

tests/inject/machine.cpp makes the machine of one rank faulty, inject.cpp its calls of the file
system. A mount of its own gives a rank another folder.
"""
import json
import os
import socket
import stat

import harness
import place

HOST = socket.gethostname()
ONE = 'selftest.checks=["{}"]'

# Starts the program on rank 1 with a file system of its own in place of the run directory's.
APART = """#!/bin/sh
[ "$OMPI_COMM_WORLD_RANK" = 1 ] || exec {program} "$@"
exec unshare -m sh -c 'mount -t tmpfs tmpfs {folder} && exec {program} "$@"' sh "$@"
"""


class Selftest(harness.RunTest):
    def selftest(self, *args, ranks=2, code=0, **environment):
        """Runs the mode and returns its report; `environment` reaches all ranks."""
        for name, value in environment.items():
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name, None)
        got = self.run_trainer(self.deck(), "--mode", "selftest", "--json", *args, ranks=ranks)
        for name in environment:
            os.environ.pop(name, None)
        self.assertEqual(got, code, self.output)
        report = json.loads(next(line for line in self.output.splitlines() if line.startswith("{")))
        self.assertEqual(report["exit"], code)
        return report

    def faulty(self, fault, *args, **more):
        return self.selftest(*args, MACHINE=fault, LD_PRELOAD=harness.preload(os.environ["MACHINE_LIBRARY"]), **more)

    def states(self, report):
        return {row["check"]: row["state"] for row in report["checks"]}

    def bad(self, report, check, state="bad"):
        """Returns the ranks that a row names."""
        row = next(row for row in report["checks"] if row["check"] == check)
        for one in row["ranks"]:
            self.assertEqual(one["host"], HOST)
        return sorted({one["rank"] for one in row["ranks"] if one["state"] == state})

    def assert_named(self, report, check, rank, cause):
        """Checks that the last line names one rank, and why."""
        self.assertEqual(self.bad(report, check), [rank], report)
        self.assertRegex(report["verdict"], rf"^{check}: host {HOST} rank {rank}: .*{cause}")

    def test_good_machine(self):
        before = sorted(os.listdir(self.folder)) + ["deck.toml"]
        for ranks, groups in ((0, []), (2, ["world", "fsdp"]), (4, ["world", "fsdp"])):
            with self.subTest(ranks):
                report = self.selftest(ranks=ranks)
                states = self.states(report)
                self.assertEqual([c for c in states if c.startswith("exchange")], [f"exchange {g}" for g in groups] or ["exchange"])
                self.assertLessEqual({"products", "memory", "mesh", "files", "locks", "disk", "threads"}, set(states))
                self.assertEqual({s for c, s in states.items() if c != "threads"}, {"ok"}, report)
                self.assertEqual((report["ranks"], report["hosts"]), (max(ranks, 1), [HOST]))
                self.assertGreater(report["gflops"], 0.1)
                mesh = next(row["text"] for row in report["checks"] if row["check"] == "mesh")
                count = {0: 1, 2: 2, 4: 3}[ranks]
                self.assertRegex(mesh, rf"^cappa, {count} of {count} mesh(es)? of \d ranks? and the first again: the same bits; loss \d")
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(before))  # the run directory is gone again

    def test_without_a_deck(self):
        self.expect(0, "exchange world   ok", "exchange replica ok", "exchange fsdp    ok", "mesh             ok", "selftest ok in",
                    args=["--mode", "selftest"], ranks=4)
        self.assertEqual(os.listdir(self.folder), ["data"])
        # Three ranks allow no level "mesh".
        self.expect(0, "within 1e-5 (no power of two)", "disk             ok", args=["--mode", "selftest", "--dir", self.dir], ranks=3)
        self.assertFalse(os.path.exists(self.dir))

    def test_command_line(self):
        self.expect(2, "--json", "is for --mode selftest", args=[self.deck(), "--json"])
        self.expect(2, "deck", args=["--mode", "selftest", "--validate"])
        self.expect(2, "selftest.checks", "clocks", args=["--mode", "selftest", "--set", 'selftest.checks=["clock"]'])
        self.expect(2, "model.kind", args=["--mode", "selftest", "--set", "model.kind=cap"])

    def test_wrong_sums(self):
        only = ("--set", ONE.format("exchange"))
        self.assert_named(self.faulty("2:sum", *only, ranks=4, code=3), "exchange world", 2, "every sum with it is wrong")
        self.assertEqual(self.bad(self.faulty("1:sum", *only, ranks=2, code=3), "exchange world"), [0, 1])
        self.assert_named(self.faulty("1:block", *only, ranks=4, code=3), "exchange world", 1, "its values arrive wrong")
        # No mesh is tried with an exchange that lies.
        report = self.faulty("1:sum", "--set", 'selftest.checks=["exchange", "mesh"]', ranks=3, code=3)
        self.assertIn("not checked", next(row["text"] for row in report["checks"] if row["check"] == "mesh"))

    def test_slow_rank(self):
        only = ("--set", ONE.format("speed"))
        report = self.faulty("3:slow=6", *only, ranks=4, code=3)
        self.assert_named(report, "products", 3, "slow: .* of the median")
        # What counts as slow is a key.
        self.faulty("3:slow=2", *only, "--set", "selftest.slow_below=0.01", ranks=4)

    def test_wrong_clock(self):
        only = ("--set", ONE.format("clocks"))
        for rank, shift, how in ((1, 5, "5.0 s ahead of"), (0, -7, "7.0 s behind")):
            report = self.faulty(f"{rank}:clock={shift}", *only, ranks=4)
            self.assertEqual(self.bad(report, "clocks", "warn"), [rank])
            self.assertIn(f"clocks: host {HOST} rank {rank}: its clock is {how}", report["verdict"])

    def test_no_locks(self):
        report = self.faulty("1:nolocks", "--set", ONE.format("files"), code=5)
        self.assert_named(report, "locks", 1, "No locks available")

    def test_read_only_folder(self):
        inject = dict(LD_PRELOAD=harness.preload(os.environ["INJECT_LIBRARY"]), INJECT_UNDER=self.dir, INJECT_CALL="create")
        report = self.selftest("--set", ONE.format("files"), code=5, INJECT="1:0:errno=30+", **inject)
        self.assert_named(report, "files", 1, "Read-only file system")
        report = self.selftest("--set", ONE.format("files"), code=5, INJECT="-1:0:errno=28+", **inject)
        self.assertEqual(self.bad(report, "files"), [0, 1])

    def test_two_folders(self):
        """A rank that has another disk under the same name."""
        why = place.no_private_mount()
        if why:
            self.skipTest(why)
        program = f"{self.folder}/apart"
        with open(program, "w") as f:
            f.write(APART.format(program=harness.TRAINER, folder=self.dir))
        os.chmod(program, os.stat(program).st_mode | stat.S_IXUSR)
        os.mkdir(self.dir)
        trainer, harness.TRAINER = harness.TRAINER, program
        try:
            report = self.selftest("--set", ONE.format("files"), ranks=3, code=5)
        finally:
            harness.TRAINER = trainer
        self.assert_named(report, "files", 1, "neither sees the other's files")
        self.assertEqual(os.listdir(self.dir), [])

    def test_large_model(self):
        """A model that would take too long is replaced, and the table says so."""
        report = self.selftest("--set", ONE.format("mesh"), "--set", "selftest.mesh_s=1e-4")
        self.assertRegex(report["checks"][0]["text"],
                         r"^a small model instead of the deck's \(6 steps would take about .*selftest.mesh_s = ")


if __name__ == "__main__":
    harness.main()
