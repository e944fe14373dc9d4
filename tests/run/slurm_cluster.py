# SPDX-License-Identifier: Apache-2.0
"""Runs a SLURM cluster on this machine for tests: munged, slurmctld and one slurmd per node, all
in one folder, on the loopback only.

Needs root and Debian's slurm-wlm and munge; leaves /etc, /run and /var alone, so a SLURM of this
machine is not disturbed.
"""
import ctypes
import os
import pwd
import random
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import place
from processes import descendants

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "mpirun")
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
USER = "nobody"  # owner of the jobs: an ordinary user, as on a cluster

CONFIG = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
TmpFS={folder}/tmp-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MessageTimeout=100
BatchStartTimeout=300
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
ReturnToService=2
KillWait={kill_wait}
MinJobAge=3600
"""

# slurmd ends without cgroups even if it confines nothing by them, and most containers have none.
# This plugin looks at the folder only when it confines something, which never happens here.
CGROUPS = """CgroupPlugin=cgroup/v1
CgroupMountpoint={folder}/cgroup
CgroupAutomount=no
"""

ANSWER_S = 0.5  # age of an answer about jobs that the next question may use
START_S = 300  # time for the daemons to find each other, on a busy machine


def missing():
    """Returns why no cluster can be started here, or ""."""
    if os.geteuid() != 0:
        return "needs root: slurmd starts jobs under another user"
    absent = [p for p in PROGRAMS if not shutil.which(p, path=PATH)]
    if absent:
        return f"not installed: {' '.join(absent)} (Debian packages slurm-wlm, munge, openmpi-bin)"
    return (place.no_processes() or place.no_other_user(USER) or
            place.attempt(["getent", "hosts", socket.gethostname()], f"needs a machine that finds its own name, {socket.gethostname()}"))


def free_ports(count):
    """Returns ports below the range that the system could give to others before the daemons
    start."""
    ports = []
    while len(ports) < count:
        port = random.randrange(10000, 32000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


def kill_descendants():
    """Ends everything below this process; repeats, because a parent may start another child
    before it dies."""
    for _ in range(100):
        below = descendants(os.getpid())
        if not below:
            return
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.05)


def fields(line):
    """Returns {name: value} of a line that describes a job."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


class Cluster:
    """`nodes`: name -> CPUs (the name of this machine makes a node whose mpirun starts ranks itself, without srun).
    `partitions`: lines of slurm.conf. The folder is `folder`, owned by the user of the jobs; `stop` removes it."""

    def __init__(self, nodes, partitions, kill_wait=60):
        self.asking, self.asked, self.answers = threading.Lock(), -ANSWER_S, {}
        # The path is short, because names of sockets below it may have 107 characters.
        self.folder = tempfile.mkdtemp(prefix="slurm_test_", dir="/tmp")
        try:
            self._configure(nodes, partitions, kill_wait)
            self._start(nodes)
            self._wait_ready(len(nodes))
        except BaseException:
            self.stop()
            raise

    def _configure(self, nodes, partitions, kill_wait):
        self.config = f"{self.folder}/slurm.conf"
        self.environment = {"PATH": PATH, "SLURM_CONF": self.config, "LANG": "C.UTF-8"}
        self.guard = self.pipe = None
        owner = pwd.getpwnam(USER)
        self.owner = dict(user=owner.pw_uid, group=owner.pw_gid, extra_groups=[])
        os.chmod(self.folder, 0o755)
        # munged insists on folders that no other user may write to.
        for name, mode in (("munge", 0o755), ("state", 0o755), *((f"tmp-{n}", 0o1777) for n in nodes), ("home", 0o755)):
            os.mkdir(f"{self.folder}/{name}")
            os.chmod(f"{self.folder}/{name}", mode)
        self.home = f"{self.folder}/home"
        os.chown(self.home, owner.pw_uid, owner.pw_gid)
        with open(f"{self.folder}/munge/key", "wb", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(os.urandom(128))
        with open(f"{self.folder}/cgroup.conf", "w") as f:
            f.write(CGROUPS.format(folder=self.folder))
        host = socket.gethostname().split(".")[0]
        ports = free_ports(1 + len(nodes))
        with open(self.config, "w") as f:
            f.write(CONFIG.format(host=host, port=ports[0], folder=self.folder, kill_wait=kill_wait))
            for (name, cpus), port in zip(nodes.items(), ports[1:]):
                f.write(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} State=UNKNOWN\n")
            f.write("\n".join(partitions) + "\n")

    def _start(self, nodes):
        """Starts the daemons below a guard process. The guard ends all of them as soon as one ends, or when this process ends or is
        killed and its end of the pipe closes. In the latter case the guard removes the folder."""
        munge = f"{self.folder}/munge"
        commands = [["munged", "--foreground", "--num-threads=2", f"--socket={munge}/socket", f"--key-file={munge}/key",
                     f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"],
                    ["slurmctld", "-D", "-c", "-f", self.config]]
        commands += [["slurmd", "-D", "-c", "-N", name, "-f", self.config] for name in nodes]
        read, self.pipe = os.pipe()
        self.guard = os.fork()
        if self.guard:
            os.close(read)
            return
        os.close(self.pipe)
        daemons, ended = [], []
        try:
            os.setsid()  # no Ctrl-C of the terminal
            for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(ignored, signal.SIG_IGN)
            # Processes without a parent (slurmstepd, ranks) become children of the guard.
            if ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0):  # PR_SET_CHILD_SUBREAPER
                raise OSError(ctypes.get_errno(), "prctl")
            with open(f"{self.folder}/daemons.log", "ab") as log:
                for command in commands:
                    daemons.append(subprocess.Popen(
                        command, env={"PATH": PATH, "LANG": "C.UTF-8"}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                        preexec_fn=lambda: [signal.signal(s, signal.SIG_DFL) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]))
                    if command[0] == "munged":
                        while not os.path.exists(f"{munge}/socket") and daemons[0].poll() is None:
                            time.sleep(0.05)
            while not (ended := [d.args[0] for d in daemons if d.poll() is not None]):
                if select.select([read], [], [], 0.5)[0]:
                    break
        finally:
            kill_descendants()
            if not ended:
                shutil.rmtree(self.folder, ignore_errors=True)
            os._exit(1 if ended else 0)

    def _wait_ready(self, count):
        end, states = time.monotonic() + START_S, ""
        while time.monotonic() < end:
            if os.waitpid(self.guard, os.WNOHANG)[0]:
                os.close(self.pipe)
                self.pipe = None
                raise RuntimeError(f"a daemon ended at once\n{self.logs()}")
            try:
                states = subprocess.run(["sinfo", "-h", "-N", "-o", "%N %t"], env=self.environment, capture_output=True, text=True,
                                        timeout=5).stdout
            except subprocess.TimeoutExpired:
                continue
            if len([line for line in set(states.splitlines()) if line.endswith(" idle")]) == count:
                return
            time.sleep(0.1)
        raise RuntimeError(f"the nodes were not ready after {START_S} s: {states}\n{self.logs()}")

    def logs(self):
        out = []
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(".log"):
                with open(f"{self.folder}/{name}", errors="replace") as f:
                    out.append(f"--- {name}\n" + "".join(f.readlines()[-15:]))
        return "\n".join(out)

    def command(self, *words, environment=None, timeout=600):
        """Runs a command of SLURM as the user of the jobs, in their folder `home`; returns its output, which includes errors."""
        done = subprocess.run(words, env={**self.environment, **(environment or {})}, cwd=self.home, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, **self.owner)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: exit {done.returncode}: {done.stdout}")
        return done.stdout.strip()

    def job(self, number):
        """Returns SLURM's fields of a job: JobState, ExitCode, Restarts, ... They are up to ANSWER_S old."""
        with self.asking:  # each query starts a program, and a dozen scenarios query at the same time
            if time.monotonic() > self.asked + ANSWER_S:
                self.asked, self.answers = time.monotonic(), {}
                for job in map(fields, self.command("scontrol", "show", "job", "-o").splitlines()):
                    task = f"{job.get('ArrayJobId')}_{job.get('ArrayTaskId')}"
                    self.answers.update({job.get("JobId"): job, task: job})
            found = self.answers.get(str(number))
        return found or fields(self.command("scontrol", "show", "job", "-o", str(number)).splitlines()[0])

    def stop(self):
        """Ends all processes and removes the folder."""
        if self.pipe is not None:
            os.close(self.pipe)
            os.waitpid(self.guard, 0)
            self.pipe = None
        shutil.rmtree(self.folder, ignore_errors=True)
