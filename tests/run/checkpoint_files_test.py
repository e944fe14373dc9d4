#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests checkpoint.driver and checkpoint.stripes in the real program: files equal to the byte by either driver, runs that change
the driver, errors of MPI-IO, what is refused, and a folder that `lfs` spreads over targets."""
import os
import shutil
import stat

import h5py

import harness
import hurt_harness

SHORT = harness.sets("train.total_steps=4", "checkpoint.every_steps=2", "eval.val.every_steps=0", "eval.val.at_end=false")
MPIO = harness.sets("checkpoint.driver=mpio")
INDEPENDENT = [*MPIO, *harness.sets("checkpoint.transfer=independent", 'checkpoint.hints={romio_ds_write = "disable"}')]
# A run directory without Lustre. The imitation keeps the number in a file beside itself.
LFS = """#!/bin/sh
echo "$*" >> {home}/calls
case "$1" in
  getstripe) cat {home}/stripes;;
  setstripe) {fault} echo "$3" > {home}/stripes;;
esac
"""


class Drivers(hurt_harness.HurtTest):
    def setUp(self):
        super().setUp()
        if harness.hdf5_kind() != "parallel":
            self.skipTest("HDF5 is serial")

    def run_by(self, folder, *args, ranks=2):
        self.expect(0, "done     exit=0", args=[self.deck(), "--dir", folder, *SHORT, *args], ranks=ranks)

    def test_either_driver_goes_on(self):
        """Runs that change the driver at step 2 end with the tensors of one that does not, which is equal on both."""
        self.run_by(self.folder + "/direct")
        want = self.tensors(4, self.folder + "/direct")
        for number, (first, second) in enumerate(((MPIO, []), ([], MPIO), (INDEPENDENT, MPIO))):
            with self.subTest(first=first, second=second):
                folder = f"{self.folder}/{number}"
                self.run_by(folder, *first, "--set", "checkpoint.async=false")
                self.assertEqual(self.tensors(4, folder), want)
                os.remove(folder + "/checkpoints/0000000004.h5")
                self.run_by(folder, *second)
                self.assertIn("from=checkpoint", self.output)
                self.assertNotIn("level=warning", self.output)
                self.assertEqual("which MPI-IO writes while training waits" in self.output, second == MPIO)
                self.assertEqual(self.tensors(4, folder), want)
                with h5py.File(f"{folder}/checkpoints/0000000004.h5") as f:
                    self.assertEqual(f.attrs["write_completed"], 1)

    def test_a_full_disk(self):
        """A rank's failed write is one warning, or exit 5; older files stay, no process crashes, and the run goes on."""
        for rank, more, code in ((0, [], 0), (1, ["--set", "checkpoint.on_error=stop"], 5)):
            with self.subTest(rank=rank):
                shutil.rmtree(self.dir, ignore_errors=True)
                got, _ = self.hurt(f"{rank}:0:errno=28+", self.dir + "/checkpoints", *SHORT, *INDEPENDENT, *more,
                                   "--set", "train.total_steps=6", call=self.written_by(), ends="0000000004.h5.tmp")
                self.assertEqual(got, code, self.output)
                self.assertRegex(self.output, r"checkpoint of step 4 was not written: .*0000000004.h5.tmp")
                self.assertEqual("0000000006.h5" in self.checkpoints(), code == 0)
                self.assertIn("0000000002.h5", self.checkpoints())
                self.assertNotIn("SIG", self.output)

    def written_by(self):
        """Returns the call by which this MPI-IO writes."""
        code, calls = self.hurt("", self.dir + "/checkpoints", *SHORT, *INDEPENDENT, ends="0000000004.h5.tmp")
        self.assertEqual(code, 0, self.output)
        shutil.rmtree(self.dir)
        made = [call for call, _ in calls[1] if "write" in call]
        return max(set(made), key=made.count)

    def test_stop_while_reading(self):
        self.run_by(self.dir, *MPIO)
        job = self.start_hurt("1:0:slow=10+", self.dir + "/checkpoints", *SHORT, *MPIO, "--set", "train.total_steps=6",
                              ends="0000000004.h5")
        self.wait("a read", lambda: os.path.exists(self.trace() + "/1.calls") and self.calls(1) or job.poll() is not None)
        self.assertIsNone(job.poll())
        with open(self.dir + "/stop", "w"):
            pass
        output = job.communicate(timeout=harness.GUARD)[0]
        self.assertEqual(job.returncode, 8, output)
        self.assertRegex(output, r"stopped  (before the first step|step=4 of 6)")


class Refusals(harness.RunTest):
    def test_keys(self):
        self.expect(2, 'checkpoint.transfer=independent: this is for checkpoint.driver = "mpio"', '"disable"}: this is for ',
                    args=[self.deck(), "--validate", *INDEPENDENT[2:]])
        if harness.hdf5_kind() == "serial":
            self.expect(2, 'checkpoint.driver: "mpio" needs an HDF5 that was built with MPI', "-serial",
                        'set checkpoint.driver = "direct"', args=[self.deck(), "--validate", *MPIO])
        else:
            self.expect(0, args=[self.deck(), "--validate", *INDEPENDENT])


class Stripes(harness.RunTest):
    def lfs(self, stripes, fault=""):
        """Puts an imitation of lfs into PATH."""
        home = self.folder + "/bin"
        os.makedirs(home, exist_ok=True)
        with open(home + "/lfs", "w") as f:
            f.write(LFS.format(home=home, fault=fault))
        os.chmod(home + "/lfs", stat.S_IRWXU)
        for name, text in (("stripes", stripes), ("calls", "")):
            with open(f"{home}/{name}", "w") as f:
                f.write(text)
        before = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", before)
        os.environ["PATH"] = home + ":" + before

    def calls(self):
        with open(self.folder + "/bin/calls") as f:
            return f.read().replace(f"{self.dir}/checkpoints", "FOLDER").splitlines()

    def go(self, *fragments, steps=4):
        self.expect(0, *fragments, args=[self.deck(), *SHORT, "--set", "checkpoint.stripes=4", "--set", f"train.total_steps={steps}"])

    def test_once(self):
        folder = self.dir + "/checkpoints"
        self.go(f"{folder} stays without checkpoint.stripes = 4: there is no lfs here")
        self.lfs("1\n")
        self.go(f"disk     {folder} has 4 stripes, set by lfs; before 1", steps=5)
        self.assertEqual(self.calls(), ["getstripe -d -c FOLDER", "setstripe -c 4 FOLDER", "getstripe -d -c FOLDER"])
        self.go(f"disk     {folder} has 4 stripes\n", steps=6)
        self.assertEqual(self.calls()[3:], ["getstripe -d -c FOLDER"])
        self.assertNotIn("level=warning", self.output)

    def test_problems_are_warnings(self):
        self.lfs("1\n", fault="echo 'not a Lustre file system' >&2; exit 25;")
        self.go("level=warning", "lfs setstripe -c 4 ", "exit 25: not a Lustre file system; the folder stays as it is")
        self.lfs("1\n", fault="exit;")
        self.go("was asked for 4 stripes and has 1", steps=5)
        self.lfs("error: cannot open\n")
        self.go("lfs getstripe -d -c ", "error: cannot open; the folder stays as it is", steps=6)
        self.assertEqual(len(self.calls()), 1)


if __name__ == "__main__":
    harness.main()
