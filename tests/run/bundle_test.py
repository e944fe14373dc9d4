#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""tools/bundle: the bundle runs in another place with only the C and C++ run time, a shell and no environment."""
import os
import shutil
import subprocess

import harness
import place
import surroundings

RUNTIME = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libresolv.so.2", "libutil.so.1", "libstdc++.so.6",
           "libgcc_s.so.1")


def library(name):
    for folder in ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64"):
        if os.path.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    raise FileNotFoundError(name)


class Bundle(harness.RunTest):
    def bare_root(self):
        """Makes a root directory with /bin/sh and the C library's files."""
        root = os.path.join(self.folder, "root")
        for folder in ("bin", "lib64", "lib/x86_64-linux-gnu", "tmp", "dev/shm", "proc"):
            os.makedirs(os.path.join(root, folder))
        shutil.copy("/lib64/ld-linux-x86-64.so.2", os.path.join(root, "lib64"))
        for name in RUNTIME:
            shutil.copy(library(name), os.path.join(root, "lib/x86_64-linux-gnu"))
        shutil.copy(os.path.realpath("/bin/sh"), os.path.join(root, "bin/sh"))
        for name, minor in (("null", 3), ("urandom", 9)):
            device = os.path.join(root, "dev", name)
            try:
                os.mknod(device, 0o020666, os.makedev(1, minor))
                open(device, "rb").close()
            except PermissionError:  # containers without rights: an empty file replaces the device
                if os.path.exists(device):
                    os.remove(device)
                open(device, "wb").close()
        return root

    def inside(self, root, command):
        """Returns exit code and output of a shell command there, with an empty environment.

        Only the limit of instructions stays, which changes sums."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        if limit := os.environ.get("ONEDNN_MAX_CPU_ISA"):
            environment["ONEDNN_MAX_CPU_ISA"] = limit
        done = subprocess.run([*place.new_root()[0], root, "/bin/sh", "-c", command], env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout

    def test_trains_on_a_bare_machine(self):
        reason = place.new_root()[1]
        if reason:
            self.skipTest(reason)
        if "libasan" in subprocess.run(["ldd", harness.TRAINER], capture_output=True, text=True, check=True).stdout:
            self.skipTest("programs under sanitizers need more than the C library")
        root = self.bare_root()
        packed = os.path.join(self.folder, "bundle.tar.gz")
        done = subprocess.run([os.path.join(harness.SOURCE, "tools/bundle"), packed, os.path.dirname(harness.TRAINER)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertLess(os.path.getsize(packed), 64 << 20)
        os.mkdir(os.path.join(root, "some where"))
        subprocess.run(["tar", "xzf", packed, "-C", os.path.join(root, "some where")], check=True)
        shutil.copytree(self.data, os.path.join(root, "data"))
        shutil.copy(harness.TOKENIZER, os.path.join(root, "data"))
        with open(os.path.join(root, "deck.toml"), "w") as f:
            f.write(harness.DECK.format(dir="/run", data="/data", tokenizer="/data/" + os.path.basename(harness.TOKENIZER)))

        trainer, mpirun = "\"/some where/trainer-bundle/bin/trainer\"", "\"/some where/trainer-bundle/bin/mpirun\""
        code, output = self.inside(root, f"{trainer} --list optimizer")
        self.assertEqual(code, 0, output)
        self.assertIn("adafactor", output)
        code, output = self.inside(root, f"{trainer} /deck.toml")
        self.assertEqual(code, 0, output)
        self.assertIn("finished step=12", output)
        code, two = self.inside(root, f"{mpirun} -np 2 {trainer} /deck.toml --dir /run2")
        self.assertEqual(code, 0, two)
        self.assertIn("2 ranks", two)
        bundle = os.path.join(root, "some where/trainer-bundle")
        self.assertEqual(surroundings.needed_versions(bundle), surroundings.stated_versions())
        with self.subTest("read-only, with a full home, without /tmp"):
            words = [mpirun.strip('"'), "-np", "2", trainer.strip('"'), "/deck.toml", "--dir", "/run3"]
            code, output = surroundings.run_in_odd_place(root, *words)
            if code is None:
                self.skipTest(output)
            self.assertEqual(code, 0, output)
            self.assertEqual(*([row["loss"] for row in self.rows(folder=f"{root}/{name}")] for name in ("run2", "run3")))

        # The run must be the same with this machine's own libraries.
        self.expect(0, args=[self.deck()])
        losses = [[row["loss"] for row in self.rows(folder=folder)] for folder in (os.path.join(root, "run"), self.dir)]
        self.assertEqual(*losses)


harness.main()
