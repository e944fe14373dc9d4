"""A SLURM cluster on this machine for tests: munged, slurmctld and one slurmd per node, all in one folder, on the loopback only.

Needs root and Debian's slurm-wlm and munge; leaves /etc, /run and /var alone, so a SLURM that is already here is not disturbed.
"""
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import place
from processes import descendants

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "mpirun")
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
USER = "nobody"  # who owns the jobs: an ordinary user, as on a cluster

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
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
ReturnToService=2
KillWait={kill_wait}
MinJobAge=3600
"""


def missing():
    """Why no cluster can be started here, or None."""
    if os.geteuid() != 0:
        return "needs root: slurmd starts jobs under another user"
    absent = [p for p in PROGRAMS if not shutil.which(p, path=PATH)]
    if absent:
        return f"not installed: {' '.join(absent)} (Debian packages slurm-wlm, munge, openmpi-bin)"
    return None


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def kill_descendants():
    """Ends everything below this process; repeated, because a parent may start another child before it dies."""
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


class Cluster:
    """`nodes`: name -> CPUs (the name of this machine makes a node whose mpirun starts ranks itself, without srun).
    `partitions`: lines of slurm.conf. The folder is `folder`, owned by the user of the jobs; `stop` removes it."""

    def __init__(self, nodes, partitions, kill_wait=10):
        # Short: names of sockets below it may have 107 characters.
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
        # munged insists on folders that nobody else may write to.
        for name, mode in (("munge", 0o755), ("state", 0o755), *((f"tmp-{n}", 0o1777) for n in nodes), ("home", 0o755)):
            os.mkdir(f"{self.folder}/{name}")
            os.chmod(f"{self.folder}/{name}", mode)
        self.home = f"{self.folder}/home"
        os.chown(self.home, owner.pw_uid, owner.pw_gid)
        with open(f"{self.folder}/munge/key", "wb", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(os.urandom(128))
        host = socket.gethostname().split(".")[0]
        ports = free_ports(1 + len(nodes))
        with open(self.config, "w") as f:
            f.write(CONFIG.format(host=host, port=ports[0], folder=self.folder, kill_wait=kill_wait))
            for (name, cpus), port in zip(nodes.items(), ports[1:]):
                f.write(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} State=UNKNOWN\n")
            f.write("\n".join(partitions) + "\n")

    def _start(self, nodes):
        """The daemons run below a guard, a process of its own, which ends everything and removes the folder as soon as nobody holds
        the other end of its pipe: also when this process is killed."""
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
        try:
            os.setsid()  # no Ctrl-C of the terminal
            for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(ignored, signal.SIG_IGN)
            # What loses its parent (slurmstepd, ranks) becomes a child of the guard.
            if ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0):  # PR_SET_CHILD_SUBREAPER
                raise OSError(ctypes.get_errno(), "prctl")
            daemons = []
            with open(f"{self.folder}/daemons.log", "ab") as log:
                for command in commands:
                    daemons.append(subprocess.Popen(
                        command, env={"PATH": PATH, "LANG": "C.UTF-8"}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                        preexec_fn=lambda: [signal.signal(s, signal.SIG_DFL) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]))
                    if command[0] == "munged":
                        for _ in range(200):
                            if os.path.exists(f"{munge}/socket"):
                                break
                            time.sleep(0.05)
            os.read(read, 1)
        finally:
            kill_descendants()
            shutil.rmtree(self.folder, ignore_errors=True)
            os._exit(0)

    def _wait_ready(self, count):
        for _ in range(300):
            states = subprocess.run(["sinfo", "-h", "-N", "-o", "%N %t"], env=self.environment, capture_output=True, text=True).stdout
            if len([line for line in set(states.splitlines()) if line.endswith(" idle")]) == count:
                return
            time.sleep(0.1)
        raise RuntimeError(f"the nodes were not ready after 30 s: {states}\n{self.logs()}")

    def logs(self):
        out = []
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(".log"):
                with open(f"{self.folder}/{name}", errors="replace") as f:
                    out.append(f"--- {name}\n" + "".join(f.readlines()[-60:]))
        return "\n".join(out)

    def command(self, *words, environment=None, timeout=60):
        """Runs a command of SLURM as the user of the jobs, in their folder `home`; returns its output, which includes errors."""
        done = subprocess.run(words, env={**self.environment, **(environment or {})}, cwd=self.home, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, **self.owner)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: exit {done.returncode}: {done.stdout}")
        return done.stdout.strip()

    def job(self, number):
        """What SLURM knows about a job: JobState, ExitCode, Restarts, ..."""
        text = self.command("scontrol", "show", "job", "-o", str(number)).splitlines()[0]
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def stop(self):
        """Ends all processes and removes the folder."""
        if self.pipe is not None:
            os.close(self.pipe)
            os.waitpid(self.guard, 0)
            self.pipe = None
        shutil.rmtree(self.folder, ignore_errors=True)
