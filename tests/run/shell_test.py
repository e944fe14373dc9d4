#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests all scripts for bash: shellcheck finds nothing (Debian's version), bash can read them,
and jobs stop on request."""
import os
import shutil
import signal
import subprocess
import tempfile
import unittest

import place

GUARD = 1800  # s: ends hung tests
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def scripts():
    """Returns all files in jobs/, tools/ and .ci/ whose first line names bash or sh."""
    found = []
    for folder in ("jobs", "tools", ".ci"):
        for name in sorted(os.listdir(f"{SOURCE}/{folder}")):
            path = f"{SOURCE}/{folder}/{name}"
            if os.path.isfile(path):
                with open(path, "rb") as f:
                    first = f.readline()
                if first.startswith((b"#!/usr/bin/env bash", b"#!/bin/bash", b"#!/bin/sh", b"# shellcheck shell=")):
                    found.append(f"{folder}/{name}")
    return found


# Replaces mpirun by one that loses the first USR1, as Open MPI's does until it has started its
# ranks. The ranks end with 75 at the second.
LOSES_ONE = """#!/bin/bash
came=0
trap 'came=$((came + 1)); [ "$came" -lt 2 ] || exit 75' USR1
echo ready
while :; do sleep 0.1; done
"""


class Warnings(unittest.TestCase):
    def test_jobs_warn_of_qsig(self):
        """qsig kills a job under PBS, and all progress since its last checkpoint is lost."""
        for name in ("jobs/pbs.sh", "jobs/README.md"):
            with open(f"{SOURCE}/{name}", encoding="utf-8") as f:
                self.assertRegex(f.read(), r"(?i)never (use )?`?qsig\b", name)


class Jobs(unittest.TestCase):
    """Tests the handling of signals in jobs/common.sh, without a scheduler."""

    def start(self, script, **environment):
        return subprocess.Popen(["bash", "-c", script], env=os.environ | environment, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)

    def end(self, job):
        """Kills all remaining processes of the job."""
        try:
            os.killpg(job.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        job.wait()

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_a_request_while_mpirun_starts_is_passed_on(self):
        """A USR1 between the start of mpirun and the assignment of its process id is not lost. It may end mpirun before that
        is ready for it."""
        with open(f"{SOURCE}/jobs/common.sh", encoding="utf-8") as f:
            text = f.read()
        start = "& run=$!\n"
        self.assertEqual(text.count(start), 1)
        text = text.replace("${BASH_SOURCE[0]}", f"{SOURCE}/jobs/common.sh")
        script = text.replace(start, "& started=$!; kill -USR1 $$; run=$started\n") + """
mpirun() { trap 'exit 75' USR1; while :; do sleep 0.1; done; }
run_trainer; echo "rc=$rc asked=$asked"
"""
        job = self.start(script)
        try:
            self.assertRegex(job.communicate(timeout=GUARD)[0], r"^(asked to stop while starting\n)?rc=75 asked=1\n$")
        finally:
            self.end(job)

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_a_lost_request_to_stop_is_made_again(self):
        with tempfile.TemporaryDirectory(prefix="trainer_test_") as folder:
            with open(f"{folder}/mpirun", "w") as f:
                f.write(LOSES_ONE)
            os.chmod(f"{folder}/mpirun", 0o755)
            script = f'. {SOURCE}/jobs/common.sh; run_trainer; echo "rc=$rc asked=$asked"'
            job = self.start(script, PATH=f"{folder}:{os.environ['PATH']}")
            try:
                self.assertEqual(job.stdout.readline(), "ready\n")
                job.send_signal(signal.SIGUSR1)
                # Without the second request the job would run forever.
                self.assertEqual(job.communicate(timeout=GUARD)[0], "rc=75 asked=1\n")
            finally:
                self.end(job)

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_a_launcher_that_hangs_is_started_once_more(self):
        with tempfile.TemporaryDirectory(prefix="trainer_test_") as folder:
            for hangs, seen in ((1, "made ended with 0\n"), (2, " ended with 1\n")):
                with open(f"{folder}/mpirun", "w") as f:
                    f.write(f"#!/bin/sh\necho >> {folder}/$hangs\n[ $(wc -l < {folder}/$hangs) -gt $hangs ] || exec sleep 1000\n"
                            'shift 4; exec "$@"\n')
                os.chmod(f"{folder}/mpirun", 0o755)
                # The 300 s become three.
                script = (f'. {SOURCE}/jobs/common.sh; timeout() {{ shift 3; command timeout -k 10 3 "$@"; }}; '
                          f'on_each_node 2 -- printf made; echo " ended with $?"')
                job = self.start(script, PATH=f"{folder}:{os.environ['PATH']}", hangs=str(hangs))
                try:
                    self.assertEqual(job.communicate(timeout=GUARD)[0], seen)
                finally:
                    self.end(job)

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_a_launcher_that_outlives_its_ranks_is_killed(self):
        """A launcher that has lost its ranks has 3 s here. One whose ranks live, or are on other nodes behind a child that only started
        them, has any time. Ranks that were asked to stop lose nothing."""
        rank = "OMPI_COMM_WORLD_RANK=0 sleep"
        stuck = "sleep 0.2; exec {nap}<> <(:); read -u $nap"  # waits without a child
        for mpirun, seen in ((f"#!/bin/bash\n{rank} 1\n{stuck}", "rc=137"),
                             (f"#!/bin/bash\n{rank} 1000 & sleep 1; kill -9 $!; {stuck}", "rc=137"),
                             (f"#!/bin/bash\ntrap : USR1; echo ready; {rank} 2; {stuck}", "rc=75"),
                             (f"#!/bin/bash\n{rank} 6; exit 5", "rc=5"),
                             ("#!/bin/bash\nsleep 1; exec {nap}<> <(:); read -t 6 -u $nap; exit 5", "rc=5")):
            with self.subTest(mpirun), tempfile.TemporaryDirectory(prefix="trainer_test_") as folder:
                with open(f"{folder}/mpirun", "w") as f:
                    f.write(mpirun)
                os.chmod(f"{folder}/mpirun", 0o755)
                job = self.start(f'. {SOURCE}/jobs/common.sh; stuck_s=3; run_trainer 2>&1; echo "rc=$rc"',
                                 PATH=f"{folder}:{os.environ['PATH']}")
                try:
                    if seen == "rc=75":
                        self.assertEqual(job.stdout.readline(), "ready\n")
                        job.send_signal(signal.SIGUSR1)
                    killed = "" if seen == "rc=5" else "mpirun did not end within 3 s after its ranks, and was killed\n"
                    self.assertRegex(job.communicate(timeout=GUARD)[0], f"(?m)^{killed}{seen}\n$")
                finally:
                    self.end(job)

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_a_killed_rank_is_noticed_although_the_launcher_returns_0(self):
        begun, done = "start    step=0 from=random_init", "done     exit=0"
        for lines, code in (([begun, "step=1 loss=3"], 137), ([begun, done], 0), (["plan     2 ranks"], 0), ([begun, "error: x"], 5),
                            ([begun, "done     exit=75"], 75)):
            with self.subTest(lines), tempfile.TemporaryDirectory(prefix="trainer_test_") as folder:
                with open(f"{folder}/mpiexec", "w") as f:
                    f.write("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines) + f"exit {0 if code in (75, 137) else code}\n")
                os.chmod(f"{folder}/mpiexec", 0o755)
                script = f'. {SOURCE}/jobs/common.sh; launcher=(mpiexec) launcher_kind=hydra; run_trainer 2>&1; echo "rc=$rc"; ls $TMPDIR'
                job = self.start(script, PATH=f"{folder}:{os.environ['PATH']}", TMPDIR=folder)
                try:
                    output = job.communicate(timeout=GUARD)[0].splitlines()
                finally:
                    self.end(job)
                said = {137: ["mpiexec returned 0, but the run did not say that it is done: a rank was killed"],
                        75: ["mpiexec returned 0, but the run ended with 75"]}.get(code, [])
                self.assertEqual(output, [*lines, *said, f"rc={code}", "mpiexec"])

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_a_rank_that_the_launcher_lost_track_of(self):
        """Open MPI 4 then returns 1 after a run that is done. Without that word, or with another code, the code stays."""
        lost = "-" * 74 + "\nmpirun has exited due to process rank 0 with PID 0 on\nnode n1 exiting improperly.\n" + "-" * 74
        for done, text, given, code in (("done     exit=0", lost, 1, 0), ("done     exit=0", lost.replace("PID 0", "PID 7"), 1, 1),
                                        ("done     exit=75", lost, 1, 75), ("step=1", lost, 1, 1), ("done     exit=0", lost, 137, 137)):
            with self.subTest((done, given)), tempfile.TemporaryDirectory(prefix="trainer_test_") as folder:
                with open(f"{folder}/mpirun", "w") as f:
                    f.write(f"#!/bin/sh\necho 'start    step=0'; echo '{done}'; echo '{text}' >&2; exit {given}\n")
                os.chmod(f"{folder}/mpirun", 0o755)
                script = f'. {SOURCE}/jobs/common.sh; run_trainer 2>&1; echo "rc=$rc"; ls $TMPDIR'
                job = self.start(script, PATH=f"{folder}:{os.environ['PATH']}", TMPDIR=folder)
                try:
                    output = job.communicate(timeout=GUARD)[0]
                finally:
                    self.end(job)
                self.assertIn(text, output)
                self.assertEqual("mpirun lost track of a rank" in output, given != code, output)
                self.assertTrue(output.endswith(f"rc={code}\nmpirun\n"), output)


class BareTest(unittest.TestCase):
    """tools/bare_test before it makes a root."""

    def bare_test(self, *args, **environment):
        done = subprocess.run(["/bin/bash", f"{SOURCE}/tools/bare_test", *args], env=os.environ | environment, text=True, timeout=GUARD,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    def test_arguments(self):
        code, output = self.bare_test("--help")
        self.assertEqual((code, output.splitlines()[0].split()[:2]), (0, ["usage:", "tools/bare_test"]))
        for args, words in ((("--shrt",), "unknown argument '--shrt'"), (("--short", "runs/x"), "unknown argument 'runs/x'"),
                            (("--system", "buster"), "--system 'buster' is neither bookworm nor trixie"),
                            (("--system",), "--system needs a value"), (("--cache", ""), "--cache needs a value"),
                            (("--ccache", "/nowhere"), "--ccache /nowhere is not a folder"),
                            (("--cold", "--ccache", "/tmp"), "--cold and --ccache exclude each other"),
                            (("--short", "--tests"), "--short and --tests exclude each other"),
                            (("--short", "--", "-R", "x"), "options after -- need --tests")):
            with self.subTest(args):
                code, output = self.bare_test(*args)
                self.assertEqual(code, 2, output)
                self.assertEqual(output, f"error: {words} (see tools/bare_test --help)\n")

    @unittest.skipIf(os.path.exists("/etc/trainer-bare"), "tools/bare_test does nothing in the root that it made")
    def test_where_no_root_can_be_made(self):
        with tempfile.TemporaryDirectory(prefix="trainer_test_") as folder:
            os.mkdir(f"{folder}/few")
            for name in ("bash", "cat", "dirname", "id"):
                os.symlink(shutil.which(name), f"{folder}/few/{name}")
            code, output = self.bare_test("--short", "--cache", f"{folder}/cache", PATH=f"{folder}/few")
            self.assertEqual(code, 77, output)
            self.assertRegex(output, "skipped: no bare Debian here: (mmdebstrap is missing|neither root nor user namespaces)")
            self.assertEqual(os.listdir(folder), ["few"])
            with open(f"{folder}/few/mmdebstrap", "w", encoding="utf-8") as f:
                f.write("#!/bin/sh\necho 'E: the mirror is away' >&2\nexit 25\n")
            os.chmod(f"{folder}/few/mmdebstrap", 0o755)
            code, output = self.bare_test("--short", "--cache", f"{folder}/cache", PATH=f"{folder}/few:{os.environ['PATH']}")
            self.assertEqual(code, 77, output)
            self.assertIn("skipped: no bare Debian here: ", output)
            if os.path.exists(f"{folder}/cache/bookworm/mmdebstrap.log"):
                self.assertIn("mmdebstrap failed: E: the mirror is away (all of it: ", output)
                self.assertEqual(self.bare_test("--clean", "--cache", f"{folder}/cache"), (0, ""))
                self.assertFalse(os.path.exists(f"{folder}/cache"))


@unittest.skipUnless(shutil.which("shellcheck"), "not installed: shellcheck (Debian package shellcheck)")
class Shell(unittest.TestCase):
    def test_all_are_found(self):
        self.assertLessEqual({"jobs/slurm.sh", "jobs/pbs.sh", "jobs/common.sh", "tools/test", "tools/quickstart", ".ci/run"},
                             set(scripts()))

    def test_shellcheck(self):
        for script in scripts():
            with self.subTest(script):
                done = subprocess.run(["shellcheck", "--external-sources", script], cwd=SOURCE, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_syntax(self):
        for script in scripts():
            with self.subTest(script):
                done = subprocess.run(["bash", "-n", script], cwd=SOURCE, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
