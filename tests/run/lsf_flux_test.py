#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""jobs/lsf.sh and jobs/flux.sh under an IMITATION of LSF and Flux: their documented variables and commands as small scripts.

Neither has run under the real one. This test does not replace a run on a site.
"""
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import place

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GUARD = 600  # s: ends hung tests

# Starts nothing: prints its words, waits for USR1 in the parts that WAITS names, and ends as the trainer does.
MPIRUN = """#!/bin/bash
[ "$1" != --version ] || exit 0
echo "started<$*> threads=$OMP_NUM_THREADS"
case " $WAITS " in *" ${PART:-$(cat .trainer-* 2>/dev/null || echo none)} "*) ;; *) exit "${ENDS:-0}" ;; esac
trap 'exit 75' USR1
echo waiting
while :; do sleep 0.05; done
"""

# Flux starts the words after the options of flux run, and knows the last job's process.
FLUX = """#!/bin/bash
case "$1 $2" in
  "--version "*) echo "flux 0" ;;
  "getattr jobid") [ -n "$IN_FLUX" ] && echo f7 ;;
  "resource list") case $* in *ncores*) echo 8 ;; *) echo n1,n2 ;; esac ;;
  "job timeleft") echo "${TIMELEFT:-3600.5}" ;;
  "job last") echo f9 ;;
  "job kill") [ "$3 $4" = "--signal=USR1 f9" ] && kill -USR1 "$(cat rank)" ;;
  "--parent batch") echo "batch<${*:3}> PART=$PART" >>"$HOME/successor" ;;
  "run -n") echo $$ >rank; exec mpirun "$@" ;;
  *) echo "flux: unknown $*" >&2; exit 1 ;;
esac
"""


class Jobs(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.mkdtemp(prefix="lsf_flux_test_")
        self.addCleanup(shutil.rmtree, self.home)
        os.symlink(f"{SOURCE}/jobs", f"{self.home}/jobs")
        os.mkdir(f"{self.home}/build")
        os.mkdir(f"{self.home}/bin")
        for name, text in (("build/trainer", "#!/bin/sh\n"), ("bin/mpirun", MPIRUN), ("bin/flux", FLUX), ("bin/ompi_info", "#!/bin/sh\n")):
            with open(f"{self.home}/{name}", "w", encoding="utf-8") as f:
                f.write(text)
            os.chmod(f"{self.home}/{name}", 0o755)

    def start(self, script, *words, **variables):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP", "PART", "TRAINER", "LAUNCH"))}
        return subprocess.Popen(["env", "--default-signal", "bash", f"{SOURCE}/jobs/{script}", *words], cwd=self.home, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                                env={**clean, "HOME": self.home, "PATH": f"{self.home}/bin:{os.environ['PATH']}", **variables})

    def end(self, job, asked=False):
        """Returns exit code and output. Asks the job to stop once it trains, if `asked`."""
        try:
            seen = ""
            if asked:
                for line in job.stdout:
                    seen += line
                    if line == "waiting\n":
                        job.send_signal(signal.SIGUSR1)
                        break
            seen += job.communicate(timeout=GUARD)[0]
            return job.returncode, seen
        finally:
            try:
                os.killpg(job.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def lsf(self, asked=False, **variables):
        given = dict(LSB_JOBID="7", LS_SUBCWD=self.home, LSB_MCPU_HOSTS="n1 2 n2 3", LSB_JOBINDEX="0", DECK="deck.toml")
        return self.end(self.start("lsf.sh", **{**given, **variables}), asked)

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_lsf(self):
        options = dict(WAITS="1 2", MAX_PARTS="3", OPTIONS="--set 'run.notes=a b'")
        for part in ("1", "2"):
            code, output = self.lsf(asked=True, **options)
            self.assertEqual(code, 75, output)
            self.assertIn("started<--host n1:2,n2:3 -np 5 --mca plm_rsh_agent blaunch --mca plm_rsh_no_tree_spawn 1 "
                          "--map-by slot:PE=4 --bind-to core -x OMP_NUM_THREADS", output)
            self.assertIn("build/trainer deck.toml --set run.notes=a b> threads=4", output)
            self.assertIn(f"job 7 part {part} ended with 75", output)
        # The last part is not queued again, and the next job of this number counts from 1.
        code, output = self.lsf(ENDS="75", **options)
        self.assertEqual(code, 8, output)
        self.assertIn("not continued: part 3 of at most 3", output)
        code, output = self.lsf(BIND="none", THREADS="2")
        self.assertEqual(code, 0, output)
        self.assertIn("part 1 ended with 0", output)
        self.assertIn("--bind-to none", output)
        self.assertEqual([name for name in os.listdir(self.home) if "part" in name], [])

    def test_lsf_arrays_and_mistakes(self):
        code, output = self.lsf(LSB_JOBINDEX="3", OPTIONS="--dir runs/seed-%a")
        self.assertIn("deck.toml --dir runs/seed-3>", output)
        self.assertEqual(self.lsf(LSB_JOBINDEX="3")[0], 2)
        for name, words in (("LSB_JOBID", "submit it with DECK="), ("DECK", "which deck?"), ("LSB_MCPU_HOSTS", "LSB_MCPU_HOSTS is not set"),
                            ("LS_SUBCWD", "there is no folder")):
            code, output = self.lsf(**{name: ""})
            self.assertEqual(code, 2, output)
            self.assertIn(words, output)

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_flux(self):
        given = dict(IN_FLUX="1", FLUX_OPTIONS="-N 2 -t 1h")
        code, output = self.end(self.start("flux.sh", "deck.toml", "--dir", "runs/a b", WAITS="1", PART="1", **given), asked=True)
        self.assertEqual(code, 75, output)
        self.assertIn("started<run -n 2 -c 4 -o cpu-affinity=per-task build/trainer deck.toml --dir runs/a b> threads=4", output)
        self.assertIn("job f7 part 1 on n1,n2", output)
        with open(f"{self.home}/successor", encoding="utf-8") as f:
            self.assertEqual(f.read(), "batch<--dependency=afterany:f7 -N 2 -t 1h jobs/flux.sh deck.toml --dir runs/a b> PART=2\n")
        code, output = self.end(self.start("flux.sh", "deck.toml", PART="2", ENDS="75", MAX_PARTS="2", **given))
        self.assertEqual(code, 75, output)
        self.assertIn("not continued: part 2 of at most 2", output)
        code, output = self.end(self.start("flux.sh", "deck.toml", ENDS="4", TIMELEFT="inf", RANKS="3", THREADS="1", **given))
        self.assertEqual(code, 4, output)
        self.assertIn("flux job timeleft gives no time", output)
        self.assertIn("started<run -n 3 -c 1", output)
        self.assertIn("submit it with flux batch", self.end(self.start("flux.sh", "deck.toml"))[1])

    @unittest.skipIf(place.no_processes(), place.no_processes())
    def test_flux_timer(self):
        """The job asks itself to stop before its time ends."""
        begin = time.monotonic()
        code, output = self.end(self.start("flux.sh", "deck.toml", IN_FLUX="1", WAITS="1", PART="1", TIMELEFT="1"))
        self.assertEqual(code, 75, output)
        self.assertLess(time.monotonic() - begin, 60)


if __name__ == "__main__":
    unittest.main(verbosity=2)
