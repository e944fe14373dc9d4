#!/usr/bin/python3
"""jobs/pbs.sh under an IMITATION of PBS: its documented environment, qstat and qsub, a login shell in a session of its own with the script
as its child, TERM and then KILL to the whole session at the end of the walltime. No PBS server runs here (Debian has none), so this
does not replace a run on a site.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import harness
import slurm_cluster
from job_harness import JobTest

KILL_DELAY = 11  # s from TERM to KILL, as seen with OpenPBS

QSTAT = """#!/bin/sh
[ "$*" = "-f $PBS_JOBID" ] || exit 1
echo "Job Id: $PBS_JOBID"
printf '    Job_Name = trainer\\n    Resource_List.select = 1:ncpus=2:mpiprocs=2:\\n\\tompthreads=1\\n'
echo "    Resource_List.walltime = $IMITATED_WALLTIME"
echo "    run_count = 1"
"""

# Notes how it was called; the imitation of the server below starts the job after the one that it was called from.
QSUB = """#!/usr/bin/python3
import json, os, sys
if os.environ.get("IMITATED_REFUSAL"):
    sys.exit("qsub: Job violates queue and/or server resource limits")
with open("qsub." + os.environ["PBS_JOBID"], "w") as f:
    json.dump(sys.argv[1:], f)
print("1000.imitation")
"""

# ssh to another node; the login shell there knows nothing of the job's environment, and /tmp is the node's own.
AGENT = """#!/bin/sh
mkdir -p "$HOME/tmp.$1"
exec env -i PATH="$PATH" HOME="$HOME" TMPDIR="$HOME/tmp.$1" \\
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 sh -c 'shift; eval "$*"' sh "$@"
"""

PROBE = """#!/bin/sh
seen=probing.$(echo "$*" | tr -dc 0-9).$OMPI_COMM_WORLD_RANK  # a rank on another node has no PART
[ -e $seen ] || { touch $seen; exec sleep 60; }
echo "rank=$OMPI_COMM_WORLD_RANK threads=$OMP_NUM_THREADS tmpdir=$TMPDIR mesh=$TRAINER_MESH_SELECTOR words=$*"
"""


class Pbs(JobTest):
    FIRST = "lead"

    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp(prefix="pbs_test_", dir="/tmp")
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        cls.make_project(folder)
        os.mkdir(f"{cls.home}/bin")
        os.symlink("deck.toml", f"{cls.home}/deck-3.toml")
        for name, text in (("bin/qstat", QSTAT), ("bin/qsub", QSUB), ("bin/agent", AGENT), ("probe", PROBE),
                           (".profile", f"PATH={cls.home}/bin:$PATH\n")):
            cls.write(name, text)
        cls.numbers = iter(range(12, 1000))
        cls.start_plays()

    # The imitation

    @classmethod
    def start(cls, name, script="jobs/pbs.sh", walltime="00:10:00", hosts=("localhost", "localhost"), index=None, tmpdir=True,
              refuse=False, **variables):
        """Starts a job as PBS does; returns (its id, the process). Its log is NAME.log."""
        number = next(cls.numbers)
        job = f"{number}.imitation" if index is None else f"{number}[{index}].imitation"
        nodefile = f"{cls.home}/nodes.{number}"
        with open(nodefile, "w") as f:
            f.write("".join(f"{h}\n" for h in hosts))
        environment = {**cls.mpi, "HOME": cls.home, "USER": "me", "LOGNAME": "me", "SHELL": "/bin/bash", "LANG": "C.UTF-8",
                       "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PATH": slurm_cluster.PATH,
                       "PBS_JOBID": job, "PBS_JOBNAME": "trainer", "PBS_QUEUE": "workq", "PBS_NODEFILE": nodefile, "PBS_JOBDIR": cls.home,
                       "PBS_ENVIRONMENT": "PBS_BATCH", "ENVIRONMENT": "BATCH", "PBS_TASKNUM": "1", "PBS_NODENUM": "0",
                       "PBS_MOMPORT": "15003", "PBS_JOBCOOKIE": "do not print this", "PBS_O_WORKDIR": cls.home,
                       "PBS_O_HOST": "login", "PBS_O_HOME": cls.home,
                       "PBS_O_LOGNAME": "me", "PBS_O_PATH": "/login/bin", "PBS_O_SHELL": "/bin/bash", "PBS_O_LANG": "C.UTF-8",
                       "PBS_O_QUEUE": "workq", "PBS_O_SYSTEM": "Linux", "NCPUS": "1", "OMP_NUM_THREADS": "1",
                       "LOCAL_DIR": f"{cls.home}/local", "BIND": "none", "IMITATED_WALLTIME": walltime, **variables}
        if index is not None:
            environment.update(PBS_ARRAY_ID=f"{number}[].imitation", PBS_ARRAY_INDEX=str(index))
        if tmpdir:  # private, removed at the end
            environment["TMPDIR"] = f"{cls.home}/pbs.{job}"
            os.makedirs(environment["TMPDIR"])
        if refuse:
            environment["IMITATED_REFUSAL"] = "1"
        # PBS runs a copy of the script, from the home directory.
        copy = f"{cls.home}/spool.{number}.SC"
        shutil.copy(f"{cls.home}/{script}", copy)
        with open(f"{cls.home}/{name}.log", "a") as log:
            process = subprocess.Popen(["bash", "-l", "-c", f"bash {copy}; exit $?"], env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                       stderr=log, cwd="/", start_new_session=True)
        hours, minutes, seconds = map(int, walltime.split(":"))
        over = threading.Timer(hours * 3600 + minutes * 60 + seconds, cls.end_session, [process])
        over.daemon = True
        over.start()
        return job, process

    @classmethod
    def session(cls, process):
        """All processes of the job's session, whichever process group they are in."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.getsid(int(pid)) == process.pid:
                    found.append(int(pid))
            except ProcessLookupError:
                pass
        return found

    @classmethod
    def end_session(cls, process):
        """TERM to every process at once, KILL to what is left after the kill delay."""
        for number, pause in ((signal.SIGTERM, KILL_DELAY), (signal.SIGKILL, 0)):
            for pid in cls.session(process):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            for _ in range(pause * 10):
                if not cls.session(process):
                    return
                time.sleep(0.1)

    @classmethod
    def whole(cls, name, **more):
        """A job to its end: (its id, the exit code, the words of its successor's qsub or None)."""
        job, process = cls.start(name, **more)
        try:
            code = process.wait(timeout=240)
        finally:
            cls.end_session(process)
        return (job, code, cls.successor(job))

    @classmethod
    def successor(cls, job):
        try:
            with open(f"{cls.home}/qsub.{job}") as f:
                return json.load(f)
        except FileNotFoundError:
            return None

    @classmethod
    def run_successor(cls, name, words, **more):
        """What the server does with a qsub: -v becomes the environment."""
        variables = dict(v.split("=", 1) for v in words[words.index("-v") + 1].split(","))
        return cls.whole(name, script=words[-1], **variables, **more)

    # The scenarios

    @classmethod
    def play_straight(cls):
        return cls.whole("straight", DECK="deck.toml", OPTIONS="--dir runs/straight")

    @classmethod
    def play_lead(cls):
        first = cls.whole("lead", DECK="deck.toml", OPTIONS="--dir runs/lead", TRAINER="./slow", SLOW_PARTS="1", walltime="00:01:30",
                        LEAD="70", MAX_PARTS="5")
        return first, cls.run_successor("lead", first[2], SLOW_PARTS="1")

    @classmethod
    def play_array(cls):
        """A task of an array, told to stop by its own timer."""
        first = cls.whole("array", DECK="deck-%a.toml", OPTIONS="--dir runs/array-%a --set run.seed=%a", TRAINER="./slow",
                        SLOW_PARTS="1", index=3, walltime="00:01:30", LEAD="75")
        return first, cls.run_successor("array", first[2], SLOW_PARTS="1")

    @classmethod
    def play_walltime(cls):
        """Without a lead the job is simply ended."""
        return cls.whole("walltime", DECK="deck.toml", OPTIONS="--dir runs/walltime", TRAINER="./slow", SLOW_PARTS="1", walltime="00:00:20",
                       tmpdir=False)

    @classmethod
    def play_killed(cls):
        job, process = cls.start("killed", DECK="deck.toml", OPTIONS="--dir runs/killed", TRAINER="./slow", SLOW_PARTS="1")
        try:
            cls.trains("killed", 1)
            for pid in slurm_cluster.descendants(process.pid):
                with open(f"/proc/{pid}/cmdline") as f:
                    if f.read().startswith("build/trainer\0"):
                        os.kill(pid, signal.SIGKILL)
                        break
            return process.wait(timeout=60), cls.successor(job)
        finally:
            cls.end_session(process)

    @classmethod
    def play_limit(cls):
        return cls.whole("limit", DECK="deck.toml", OPTIONS="--set run.seed=8", TRAINER="./probe", PART="1", MAX_PARTS="1",
                         walltime="00:01:00", LEAD="55")

    @classmethod
    def play_refused(cls):
        return cls.whole("refused", DECK="deck.toml", OPTIONS="--set run.seed=9", TRAINER="./probe", walltime="00:01:00", LEAD="55",
                         refuse=True)

    @classmethod
    def play_probe(cls):
        """Two nodes; told to stop before the program listens."""
        more = dict(hosts=("node0", "node1"), tmpdir=False, OMPI_MCA_plm_rsh_agent=f"{cls.home}/bin/agent", OMPI_MCA_pml="ob1",
                    OMPI_MCA_btl="tcp,self", OMPI_MCA_oob_tcp_if_include="lo", OMPI_MCA_btl_tcp_if_include="lo")
        first = cls.whole("probe", DECK="deck.toml", OPTIONS="--set run.seed=7", TRAINER="./probe", walltime="00:01:00", LEAD="50",
                        LD_LIBRARY_PATH="/nowhere", TRAINER_MESH_SELECTOR="pair", **more)
        return first, cls.run_successor("probe", first[2], **more)

    # What must have come of them

    def test_straight(self):
        _, code, successor = self.result("straight")
        log = self.log("straight")
        self.assertEqual((code, successor), (0, None), log)
        for text in ("mpirun    ", "sha256=", "PBS_QUEUE=workq", " ended with 0 at "):
            self.assertIn(text, log)
        self.assertNotIn("do not print this", log)

    def test_lead(self):
        (job, code, words), (_, second, none) = self.result("lead")
        self.assertEqual((code, second, none), (75, 0, None), self.log("lead"))
        self.assertEqual(words, ["-l", "walltime=00:01:30", "-l", "select=1:ncpus=2:mpiprocs=2:ompthreads=1",
                                 "-W", f"depend=afterany:{job}", "-v",
                                 "DECK=deck.toml,PART=2,MAX_PARTS=5,LEAD=70,BIND=none,TRAINER=./slow,SCRIPT=jobs/pbs.sh,"
                                 f"OPTIONS=--dir runs/lead,LOCAL_DIR={self.home}/local", "jobs/pbs.sh"])
        self.assertRegex(self.log("lead"), r"(?s)stopped  step=[1-9].*signal USR1.*part 1 ended with 75.*continued by 1000.*"
                                           r"part 2 on .*from=checkpoint")
        self.assert_same_bits("lead")

    def test_array(self):
        (_, code, words), (_, second, none) = self.result("array")
        self.assertEqual((code, second, none), (75, 0, None), self.log("array"))
        self.assertIn("INDEX=3", words[words.index("-v") + 1].split(","))
        self.assertNotIn("-W", words)
        self.assertEqual(len(self.checkpoints("array-3")), 3)
        self.assertNotEqual(self.tensors("array-3"), self.tensors("straight"))

    def test_walltime_over(self):
        _, code, successor = self.result("walltime")
        log = self.log("walltime")
        self.assertIn("shorter than LEAD", log)
        self.assertIn("part 1 ended with 1 ", log)  # mpirun's code after a TERM
        self.assertIsNone(successor)

    def test_killed(self):
        self.assertEqual(self.result("killed"), (137, None), self.log("killed"))

    def test_limit_of_parts(self):
        _, code, successor = self.result("limit")
        self.assertEqual((code, successor), (75, None), self.log("limit"))
        self.assertIn("part 1 of at most 1", self.log("limit"))

    def test_refused(self):
        self.assertEqual(self.result("refused")[1], 75, self.log("refused"))
        self.assertIn("not continued: qsub refused", self.log("refused"))

    def test_probe_on_two_nodes(self):
        (first, code, _), (second, second_code, none) = self.result("probe")
        log = self.log("probe")
        self.assertEqual((code, second_code, none), (75, 0, None), log)
        self.assertIn("told to stop while starting", log)
        # What the other node's shell does not know is passed on; the directory is the job's own.
        ranks = re.findall(rf"rank=(\d) threads=1 tmpdir={self.home}/local/trainer-\S+-{second} mesh=pair "
                           "words=deck.toml --set run.seed=7", log)
        self.assertEqual(sorted(ranks), ["0", "1"], log)

    def test_zz_no_directory_is_left(self):
        for name in self.plays:
            self.result(name)
        self.assertEqual(os.listdir(f"{self.home}/local"), [])


if __name__ == "__main__":
    harness.main()
