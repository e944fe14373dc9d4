# SPDX-License-Identifier: Apache-2.0
"""An IMITATION of PBS for tests: its documented environment, a server with each job's attributes, qstat, qsub and pbsdsh.

A job is a login shell in its own session with the script as its child. The whole session gets TERM and then KILL at its end.

The imitation keeps the habits of OpenPBS that have troubled jobs:
  * resources_used.walltime does not change between two refreshes.
  * Without ompthreads, OMP_NUM_THREADS is all cpus of a chunk.
  * A successor has only the arguments of qsub and the attributes of its script.
  * Values of -v end at commas, but values that qsub reads from the environment by name do not.
"""
import json
import os
import shutil
import signal
import subprocess
import time

import harness
import slurm_cluster
from job_harness import JobTest

KILL_DELAY = 11  # s from TERM to KILL, as seen with OpenPBS

# server/JOB holds the attributes of a job, one a line, with long lines folded. server/JOB.time
# holds the moment of its start and the seconds between refreshes.
QSTAT = """#!/bin/bash
[ "$*" = "-f $PBS_JOBID" ] || exit 1
read -r start refresh < "$HOME/server/$PBS_JOBID.time"
used=$(( ($(date +%s) - start) / refresh * refresh ))
echo "Job Id: $PBS_JOBID"
if [ $used -gt 0 ]; then printf '    resources_used.walltime = %02d:%02d:%02d\\n' $((used / 3600)) $((used / 60 % 60)) $((used % 60)); fi
sed -e 's/^/    /' -e 's/^\\(.\\{40\\}.*[:=,]\\)/\\1\\n\\t/' "$HOME/server/$PBS_JOBID"
echo "    stime = $(LC_ALL=C date -d "@$start" '+%a %b %e %H:%M:%S %Y')"
"""

# Records the words and the values of -v; a test decides if the job starts.
QSUB = """#!/usr/bin/python3
import json, os, re, sys
words = sys.argv[1:]
queue = words[words.index("-q") + 1] if "-q" in words else "workq"
if queue in os.environ.get("IMITATED_REFUSAL", "").split():
    sys.exit(f"qsub: Access to queue is denied MSG=from_route_only {queue}")
variables = {}
for entry in re.split(r"(?<!\\\\\\\\),", words[words.index("-v") + 1]):
    name, given, value = entry.partition("=")
    if not given and name not in os.environ:
        sys.exit("qsub: cannot send environment with the job")
    variables[name] = value if given else os.environ[name]
with open("qsub." + os.environ["PBS_JOBID"], "w") as f:
    json.dump([words, variables], f)
print("1000.imitation")
"""

# The test controls the timer of the job script: a long sleep ends on request, and its length is
# recorded.
SLEEP = """#!/bin/bash
case $1 in
  [1-9][0-9]*)
    echo "$1" > "$HOME/sleep.$PBS_JOBID"
    until [ -e "$HOME/wake.$PBS_JOBID" ]; do /bin/sleep 0.1; done ;;
  *) exec /bin/sleep "$@" ;;
esac
"""

# Runs a command on a node, by the number of its line in the node file. The shell there knows
# nothing of the job but PBS's variables.
PBSDSH = """#!/bin/sh
[ "$1 $3" = "-n --" ] || exit 1
node=$(sed -n "$(($2 + 1))p" "$PBS_NODEFILE")
echo "pbsdsh $2 $node" >> "$HOME/pbsdsh.$PBS_JOBID"
shift 3
mkdir -p "$HOME/tmp.$node"
exec env -i PATH=/usr/bin:/bin HOME="$HOME" TMPDIR="$HOME/tmp.$node" PBS_JOBID="$PBS_JOBID" \\
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 IMITATED_NODE="$node" "$@"
"""

# Options of qsub become these attributes, as qstat shows them.
ATTRIBUTES = {"-N": "Job_Name", "-q": "queue", "-A": "Account_Name", "-P": "project", "-j": "Join_Path", "-k": "Keep_Files"}


class PbsTest(JobTest):
    @classmethod
    def make_server(cls, home):
        cls.make_project(home)
        for folder in ("bin", "server"):
            os.mkdir(f"{home}/{folder}")
        for name, text in (("bin/qstat", QSTAT), ("bin/qsub", QSUB), ("bin/sleep", SLEEP), ("bin/pbsdsh", PBSDSH),
                           (".profile", f"PATH={home}/bin:$PATH\n")):
            cls.write(name, text)
        cls.numbers = iter(range(12, 1000))

    @classmethod
    def attributes(cls, script, words):
        """Returns qstat's attributes of a job, from the script's lines for PBS and from the
        command line, which precedes."""
        with open(f"{cls.home}/{script}") as f:
            given = [w for line in f if line.startswith("#PBS ") for w in line.split()[1:]] + list(words)
        found = {"Job_Name": "pbs.sh", "queue": "workq", "project": "_pbs_project_default", "Keep_Files": "n", "Join_Path": "n"}
        for option, value in zip(given[::2], given[1::2]):
            if option == "-l":
                name, _, value = value.partition("=")
                found[f"Resource_List.{name}"] = value
            elif option == "-W":
                if value.startswith("umask="):
                    found["umask"] = str(int(value[len("umask="):]))
            else:
                found[ATTRIBUTES[option]] = value
        return found

    @classmethod
    def tell(cls, job, attributes):
        """Replaces the attributes that the server shows for a job."""
        with open(f"{cls.home}/server/{job}.new", "w") as f:
            f.writelines(f"{name} = {value}\n" for name, value in attributes.items())
        os.rename(f"{cls.home}/server/{job}.new", f"{cls.home}/server/{job}")

    @classmethod
    def start(cls, name, *words, script="jobs/pbs.sh", hosts=("localhost", "localhost"), index=None, tmpdir=True, tells_walltime=True,
              started_s_ago=0, **variables):
        """Submits these words and starts the job as PBS does; returns (its id, the process). Its
        log is NAME.log."""
        number = next(cls.numbers)
        job = f"{number}.imitation" if index is None else f"{number}[{index}].imitation"
        nodefile = f"{cls.home}/nodes.{number}"
        with open(nodefile, "w") as f:
            f.write("".join(f"{h}\n" for h in hosts))
        attributes = cls.attributes(script, ["-l", "select=1:ncpus=2:mpiprocs=2:ompthreads=1", "-l", "place=free", "-l",
                                             "walltime=00:10:00", *words])
        if not tells_walltime:
            attributes.pop("Resource_List.walltime")
        cls.tell(job, attributes)
        with open(f"{cls.home}/server/{job}.time", "w") as f:
            f.write(f"{int(time.time()) - started_s_ago} 120\n")
        chunk = dict(part.split("=") for part in attributes["Resource_List.select"].split("+")[0].split(":")[1:])
        threads = chunk.get("ompthreads", chunk.get("ncpus", "1"))
        environment = {**cls.mpi, "HOME": cls.home, "USER": "me", "LOGNAME": "me", "SHELL": "/bin/bash", "LANG": "C.UTF-8",
                       "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PATH": slurm_cluster.PATH,
                       "PBS_JOBID": job, "PBS_JOBNAME": attributes["Job_Name"], "PBS_QUEUE": attributes["queue"], "PBS_NODEFILE": nodefile,
                       "PBS_JOBDIR": cls.home, "PBS_ENVIRONMENT": "PBS_BATCH", "ENVIRONMENT": "BATCH", "PBS_TASKNUM": "1",
                       "PBS_NODENUM": "0", "PBS_MOMPORT": "15003", "PBS_JOBCOOKIE": "do not print this", "PBS_O_WORKDIR": cls.home,
                       "PBS_O_HOST": "login", "PBS_O_HOME": cls.home,
                       "PBS_O_LOGNAME": "me", "PBS_O_PATH": "/login/bin", "PBS_O_SHELL": "/bin/bash", "PBS_O_LANG": "C.UTF-8",
                       "PBS_O_QUEUE": "workq", "PBS_O_SYSTEM": "Linux", "NCPUS": threads, "OMP_NUM_THREADS": threads,
                       "LOCAL_DIR": f"{cls.home}/local", "BIND": "none", **variables}
        if index is not None:
            environment.update(PBS_ARRAY_ID=f"{number}[].imitation", PBS_ARRAY_INDEX=str(index))
        if tmpdir:  # private, removed at the end
            environment["TMPDIR"] = f"{cls.home}/pbs.{job}"
            os.makedirs(environment["TMPDIR"])
        # PBS runs a copy of the script, from the home directory.
        copy = f"{cls.home}/spool.{number}.SC"
        shutil.copy(f"{cls.home}/{script}", copy)
        with open(f"{cls.home}/{name}.log", "a") as log:
            # The whole job would ignore a signal that this process ignores.
            process = subprocess.Popen(["env", "--default-signal", "bash", "-l", "-c", f"bash {copy}; exit $?"], env=environment,
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True)
        return job, process

    @classmethod
    def wake(cls, job):
        """Ends the sleep of the script's timer; returns its length in seconds."""
        cls.wait(f"timer of {job}", lambda: os.path.exists(f"{cls.home}/sleep.{job}"))
        open(f"{cls.home}/wake.{job}", "w").close()
        with open(f"{cls.home}/sleep.{job}") as f:
            return int(f.read())

    @classmethod
    def session(cls, process):
        """Returns all processes of the job's session, in any process group."""
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
        """Sends TERM to all processes at once, and KILL to the remaining ones after the kill delay."""
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
    def end(cls, job, process):
        """Waits for a job's end; returns (its id, the exit code, [words, variables] of its successor's qsub or None)."""
        try:
            code = process.wait(timeout=harness.GUARD)
        finally:
            cls.end_session(process)
        return job, code, cls.successor(job)

    @classmethod
    def whole(cls, name, *words, **more):
        return cls.end(*cls.start(name, *words, **more))

    @classmethod
    def stopped(cls, name, *words, **more):
        """Runs a job and ends its timer while it trains; returns end()'s result and the seconds
        of the timer."""
        job, process = cls.start(name, *words, **more)
        try:
            cls.trains(name, 1)
            seconds = cls.wake(job)
        except BaseException:
            cls.end_session(process)
            raise
        return *cls.end(job, process), seconds

    @classmethod
    def successor(cls, job):
        try:
            with open(f"{cls.home}/qsub.{job}") as f:
                return json.load(f)
        except FileNotFoundError:
            return None

    @classmethod
    def run_successor(cls, name, successor, **more):
        """Does the server's part of a qsub."""
        words, variables = successor
        at = words.index("-v")
        return cls.whole(name, *words[:at], *words[at + 2:-1], script=words[-1], **variables, **more)

    @classmethod
    def shell(cls, commands):
        """Returns output and exit code of bash commands that follow jobs/common.sh."""
        done = subprocess.run(["bash", "-c", f". jobs/common.sh\n{commands}"], cwd=cls.home, capture_output=True, text=True,
                              timeout=harness.GUARD, env={"PATH": slurm_cluster.PATH})
        return done.stdout + done.stderr, done.returncode
