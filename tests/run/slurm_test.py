#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests jobs/slurm.sh under a real SLURM on this machine: lead, preemption, requeue, chain,
array, two nodes, spare nodes, and jobs that must not be requeued.

One node is this machine to mpirun, one is for preemption, two simulated ones are for a job on two
nodes, and three for jobs with spare nodes.
"""
import glob
import os
import re
import signal
import socket
import subprocess
import unittest

import harness
import place
import processes
import slurm_cluster
from job_harness import ON_NODES, STEPS, JobTest

# Replaces the program and prints its environment. With EARLY, the first part of a job has no
# handler for signals yet.
PROBE = """#!/bin/sh
if [ -n "$EARLY" ] && [ -z "$SLURM_RESTART_COUNT" ]; then echo "starting" > probing; exec sleep 6000; fi
cores=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
echo "bind=$OMP_PROC_BIND rank=$OMPI_COMM_WORLD_RANK threads=$OMP_NUM_THREADS tmpdir=$TMPDIR cores=$cores"
echo "kept" > "$TMPDIR/rank$OMPI_COMM_WORLD_RANK" && ls -ld "$TMPDIR"
"""


class Slurm(JobTest):
    @classmethod
    def setUpClass(cls):
        host = socket.gethostname().split(".")[0]
        cls.cluster = slurm_cluster.Cluster(
            {host: 32, "localhost": 2, "a0": 8, "a1": 8, "b0": 8, "b1": 8, "b2": 8},
            [f"PartitionName=main Nodes={host} Default=YES MaxTime=60 PreemptMode=OFF",
             "PartitionName=low Nodes=localhost MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime=100",
             "PartitionName=urgent Nodes=localhost MaxTime=60 PriorityTier=10 PreemptMode=OFF",
             "PartitionName=pair Nodes=a0,a1 MaxTime=60 PreemptMode=OFF",
             "PartitionName=three Nodes=b[0-2] MaxTime=60 PreemptMode=OFF OverSubscribe=YES:8"])
        cls.addClassCleanup(cls.cluster.stop)
        cls.make_project(cls.cluster.home)
        cls.write("probe", PROBE)
        # In the job's first part, its second node is bad.
        second = '[ -n "$SLURM_RESTART_COUNT" ] || scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 2p'
        for name, test, run in (("bad_test", "echo b1", "true"), ("bad_run", "true", "echo b0"), ("bad_second", second, "true"),
                                ("bad_always", "true", "echo $SLURMD_NODENAME")):
            cls.write(name, ON_NODES.format(names="SLURMD_NODENAME", test=test, run=run, fault="nomem", ends="metrics.jsonl"))
        for top, folders, files in os.walk(cls.home):
            for name in folders + files:
                os.chown(f"{top}/{name}", cls.cluster.owner["user"], cls.cluster.owner["group"])
        cls.start_plays()

    # Parts of the scenarios

    @classmethod
    def submit(cls, name, *options, directory=None, arguments=(), tasks=2, **environment):
        """Submits a job and returns its number; its log is NAME.log."""
        return cls.cluster.command(
            "sbatch", "--parsable", f"--output={name}.log", "--oversubscribe", "--nodes=1", f"--ntasks-per-node={tasks}",
            "--cpus-per-task=1", "--time=30", *options, "jobs/slurm.sh", "deck.toml", "--dir", directory or f"runs/{name}", *arguments,
            environment={**cls.mpi, "BIND": "none", "LOCAL_DIR": f"{cls.home}/local", **environment})

    @classmethod
    def everything(cls):
        return f"{cls.cluster.command('squeue')}\n{super().everything()}\n{cls.cluster.logs()}"

    @classmethod
    def ends(cls, number):
        """Waits for the end of a job; returns SLURM's fields of it."""
        def ended():
            job = cls.cluster.job(number)
            return job if job["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED") else None
        return cls.wait(f"end of job {number}", ended, pause=0.7)

    @classmethod
    def signal(cls, number):
        cls.cluster.command("scancel", "-b", "-s", "USR1", number)

    # The scenarios

    @classmethod
    def play_straight(cls):
        return cls.ends(cls.submit("straight", UCX_SECRET_KEY="do not print this", OMPI_MCA_test="print this"))

    @classmethod
    def play_lead(cls):
        return cls.ends(cls.submit("lead", "--time=1", "--signal=B:USR1@20", TRAINER="./slow", SLOW_PARTS="unsaved"))

    @classmethod
    def play_wall_time(cls):
        """The trainer itself queries SLURM for its remaining time. SLURM sends no signal here: it may
        send one up to a minute before the lead, and so before the trainer stops."""
        return cls.ends(cls.submit("wall_time", "--time=2", "--signal=B:USR1@0", TRAINER="./slow", SLOW_PARTS="unsaved", arguments=[
            "--set", "limits.wall_time=auto", "--set", "limits.margin_s=75"]))

    @classmethod
    def play_preempted(cls):
        number = cls.submit("preempted", "--partition=low", "--signal=B:USR1@60", TRAINER="./slow", SLOW_PARTS="2")
        urgent = []
        for part in (1, 2):
            cls.trains("preempted", part)
            urgent.append(cls.cluster.command("sbatch", "--parsable", "--partition=urgent", "--ntasks=2", "--output=/dev/null",
                                              "--wrap=sleep 1"))
        return cls.ends(number), [cls.ends(u) for u in urgent]

    @classmethod
    def play_limit(cls):
        """The job gets a signal in each of its two allowed parts, and is then submitted again."""
        number = cls.submit("limit", TRAINER="./slow", SLOW_PARTS="2", MAX_PARTS="2")
        for part in (1, 2):
            cls.trains("limit", part)
            cls.signal(number)
        job = cls.ends(number)
        step = cls.step("limit")
        return job, step, cls.ends(cls.submit("again", directory="runs/limit"))

    @classmethod
    def play_two_nodes(cls):
        number = cls.submit("two_nodes", "--partition=pair", "--nodes=2", tasks=1, TRAINER="./slow", SLOW_PARTS="1", **cls.TCP)
        cls.trains("two_nodes", 1)
        # QUIT only looks: both ranks write stacks, and the job trains on.
        cls.cluster.command("scancel", "-b", "-s", "QUIT", number)
        pattern = f"{cls.home}/runs/two_nodes/logs/stacks/*-quit*-rank0000?.txt"
        stacks = cls.wait("stacks of both ranks", lambda: len(glob.glob(pattern)) >= 2 and sorted(glob.glob(pattern)))
        cls.trains("two_nodes", 1)
        cls.signal(number)
        return cls.ends(number), stacks

    # Two simulated nodes must not share memory: both would use one file.
    TCP = dict(OMPI_MCA_pml="ob1", OMPI_MCA_btl="tcp,self", OMPI_MCA_btl_tcp_if_include="lo", OMPI_MCA_oob_tcp_if_include="lo")

    @classmethod
    def on_three(cls, name, program, *, nodes=3, spares="1", **environment):
        return cls.submit(name, "--partition=three", f"--nodes={nodes}", tasks=1, TRAINER=f"./{program}", SPARE_NODES=spares,
                          SLOW_BELOW="0.01", **cls.TCP, **environment)

    @classmethod
    def play_spare_tested(cls):
        return cls.ends(cls.on_three("spare_tested", "bad_test"))

    @classmethod
    def play_spare_run(cls):
        return cls.ends(cls.on_three("spare_run", "bad_run"))

    @classmethod
    def play_spare_requeue(cls):
        return cls.ends(cls.on_three("spare_requeue", "bad_second", nodes=2, spares="0"))

    @classmethod
    def play_spare_chain(cls):
        first = cls.on_three("spare_chain", "bad_run", nodes=3, spares="0", CONTINUE="chain", MAX_PARTS="2")
        cls.ends(first)
        return cls.cluster.job(first)

    @classmethod
    def play_spare_deck(cls):
        """A failure that comes on every node, which no other node can mend."""
        return cls.ends(cls.on_three("spare_deck", "bad_always"))

    @classmethod
    def chain(cls, name, first):
        cls.trains(name, 1)
        cls.signal(first)
        cls.ends(first)
        second = re.search(r"Submitted batch job (\d+)", cls.log(name)).group(1)
        return cls.cluster.job(first), cls.ends(second)

    @classmethod
    def play_chain(cls):
        return cls.chain("chain", cls.submit("chain", "--no-requeue", CONTINUE="chain", TRAINER="./slow", SLOW_PARTS="1"))

    @classmethod
    def play_chain_of_task(cls):
        number = cls.submit("task-%a", "--no-requeue", "--array=0", directory="runs/task-%a", CONTINUE="chain", TRAINER="./slow",
                            SLOW_PARTS="1")
        return cls.chain("task-0", f"{number}_0")

    @classmethod
    def play_srun(cls):
        """srun starts the ranks, instead of mpirun, and passes signals on to them."""
        if cls.srun_mpi not in cls.cluster.command("srun", "--mpi=list").split():
            return None
        number = cls.submit("srun", LAUNCHER="srun", SRUN_MPI=cls.srun_mpi, TRAINER="./slow", SLOW_PARTS="1")
        cls.trains("srun", 1)
        cls.signal(number)
        return cls.ends(number)

    @classmethod
    def play_no_requeue(cls):
        number = cls.submit("no_requeue", "--no-requeue", TRAINER="./slow", SLOW_PARTS="1")
        cls.trains("no_requeue", 1)
        cls.signal(number)
        return cls.ends(number)

    @classmethod
    def play_killed(cls):
        number = cls.submit("killed", TRAINER="./slow", SLOW_PARTS="1")
        cls.trains("killed", 1)
        for pid in processes.descendants(cls.cluster.guard):
            words = processes.words(pid)
            if words[:1] == ["build/trainer"] and "runs/killed" in words:
                os.kill(pid, signal.SIGKILL)
                break
        return cls.ends(number)

    @classmethod
    def play_budget(cls):
        return cls.ends(cls.submit("budget", TRAINER="./slow", SLOW_PARTS="1", arguments=["--set", "limits.core_hours=0.0005"]))

    @classmethod
    def play_stop_file(cls):
        """Uses a stop file in a job that would be requeued, and in one that would submit
        another."""
        numbers = {c: cls.submit(f"stop_file_{c}", CONTINUE=c, TRAINER="./slow", SLOW_PARTS="1") for c in ("requeue", "chain")}
        for how in numbers:
            cls.trains(f"stop_file_{how}", 1)
            open(f"{cls.home}/runs/stop_file_{how}/stop", "w").close()
        return [cls.ends(n) for n in numbers.values()]

    @classmethod
    def play_numbers(cls):
        return cls.ends(cls.submit("numbers", MAX_PARTS="many"))

    @classmethod
    def play_cancelled(cls):
        number = cls.submit("cancelled", TRAINER="./slow", SLOW_PARTS="1")
        cls.trains("cancelled", 1)
        cls.cluster.command("scancel", number)
        job = cls.ends(number)
        cls.wait("last words of the cancelled job", lambda: " ended with " in cls.log("cancelled"))
        return job

    @classmethod
    def play_array(cls):
        """Asks each task to stop on its own. The job number of the last task is that of the
        whole array."""
        number = cls.submit("array-%a", "--array=0-1", directory="runs/array-%a", arguments=["--set", "run.seed=%a"], TRAINER="./slow",
                            SLOW_PARTS="1")
        for task in (0, 1):
            cls.trains(f"array-{task}", 1)
        for task in (1, 0):
            cls.signal(f"{number}_{task}")
            cls.trains(f"array-{task}", 2)
        return [cls.ends(f"{number}_{task}") for task in (0, 1)]

    @classmethod
    def play_array_of_same(cls):
        number = cls.submit("same-%a", "--array=0-1", directory="runs/same")
        return [cls.ends(f"{number}_{task}") for task in (0, 1)]

    @classmethod
    def play_probe(cls):
        number = cls.submit("probe", TRAINER="./probe", EARLY="1", BIND="core" if len(os.sched_getaffinity(0)) > 1 else "none")
        cls.wait("the probe starts", lambda: os.path.exists(f"{cls.home}/probing"))
        cls.signal(number)
        return number, cls.ends(number)

    @classmethod
    def play_threads(cls):
        return cls.ends(cls.submit("threads", "--cpus-per-task=2", tasks=1, TRAINER="./probe", BIND="core"))

    # Expected results

    def ended(self, job, state, code, restarts=0):
        self.assertEqual((job["JobState"], job["ExitCode"], job["Restarts"]), (state, code, str(restarts)),
                         self.log(os.path.basename(job["StdOut"])[:-4]))

    def same_bits(self, name):
        self.ended(self.result("straight"), "COMPLETED", "0:0")
        self.assert_same_bits(name)

    def test_straight(self):
        self.ended(self.result("straight"), "COMPLETED", "0:0")
        log = self.log("straight")
        for text in ("mpirun    ", "sha256=", "libhdf5", "modules   ", "SLURM_NTASKS=2", "OMPI_MCA_test=print this", " ended with 0 at "):
            self.assertIn(text, log)
        self.assertNotIn("do not print this", log)

    def test_lead(self):
        job = self.result("lead")
        self.ended(job, "COMPLETED", "0:0", job["Restarts"])
        self.assertGreaterEqual(int(job["Restarts"]), 1)
        # On a busy machine the warning may come before the first step, and again in the next part.
        self.assertRegex(self.log("lead"), r"(?s)stopped  step=[1-9].*signal USR1.*part \d+ ended with 75.*"
                                           r"part \d+ on .*from=checkpoint.*ended with 0")
        self.same_bits("lead")

    def test_wall_time(self):
        job = self.result("wall_time")
        self.ended(job, "COMPLETED", "0:0", job["Restarts"])
        self.assertRegex(self.log("wall_time"), r"(?s)stopped  step=[1-9].*wall time: \d+ s left.*part \d+ ended with 75.*part \d+ on ")
        self.same_bits("wall_time")

    def test_preempted_twice(self):
        job, urgent = self.result("preempted")
        self.ended(job, "COMPLETED", "0:0", 2)
        for u in urgent:
            self.ended(u, "COMPLETED", "0:0")
        self.assertRegex(self.log("preempted"), r"(?s)part 1 ended with 75.*part 2 on .*part 2 ended with 75.*part 3 on .*ended with 0")
        self.same_bits("preempted")

    def test_limit_of_parts(self):
        job, step, again = self.result("limit")
        self.ended(job, "FAILED", "75:0", 1)
        self.assertIn("not continued: part 2 of at most 2", self.log("limit"))
        self.assertLess(step, STEPS)
        # The job loses nothing: it continues when it is submitted again.
        self.ended(again, "COMPLETED", "0:0")
        self.assertIn("from=checkpoint", self.log("again"))
        self.same_bits("limit")

    def test_two_nodes(self):
        job, stacks = self.result("two_nodes")
        self.ended(job, "COMPLETED", "0:0", 1)
        self.assertIn(" part 2 on a[0-1] ", self.log("two_nodes"))
        for rank, path in enumerate(stacks):  # in code that oneDNN made at run time, callers are guesses and may end in a kernel
            with open(path, encoding="utf-8") as f:
                self.assertRegex(f.read(), rf"got SIGQUIT\nrank={rank} of 2 .* phase=\w+ step=[1-9]\d*\n(?s:.*)\n +\S.*"
                                           r"(?:Trainer|kernels::)")
        self.same_bits("two_nodes")

    def test_a_bad_node_is_found_before_the_start(self):
        self.ended(self.result("spare_tested"), "COMPLETED", "0:0")
        log = self.log("spare_tested")
        self.assertRegex(log, r"node b1 is bad: locks: host b1 rank 0: no locks: .*No locks available\nstarts on b0:1,b2:1\n")
        self.same_bits("spare_tested")

    def test_a_node_that_goes_bad_is_replaced(self):
        self.ended(self.result("spare_run"), "COMPLETED", "0:0")
        log = self.log("spare_run")
        self.assertRegex(log, r"(?s)starts on b0:1,b1:1\n.*node b0 is bad: rank=0 of 2 host=b0 .* exit=3: .*starts on b1:1,b2:1\n.*"
                              r"part 1 ended with 0 ")
        self.same_bits("spare_run")

    def test_a_job_without_a_spare_node_is_requeued_elsewhere(self):
        job = self.result("spare_requeue")
        self.ended(job, "COMPLETED", "0:0", 1)
        log = self.log("spare_requeue")
        bad = re.search(r"node (b\d) is bad: locks: host \1 rank 0: no locks: ", log).group(1)
        self.assertIn("not started: only 1 good nodes, but the job needs 2", log)
        self.assertIn(f"continues without {bad}\n", log)
        self.assertEqual(job["ExcNodeList"], bad)
        second = log[log.index(" part 2 on "):]
        self.assertNotIn(f"{bad}:1", re.search(r"starts on (\S+)", second).group(1))
        self.same_bits("spare_requeue")

    def test_a_chain_excludes_the_bad_node(self):
        job = self.result("spare_chain")
        self.ended(job, "FAILED", "3:0")
        log = self.log("spare_chain")
        self.assertRegex(log, r"(?s)node b0 is bad: .*not started again: no spare node is left\n.*part 1 ended with 3 ")
        # The successor would need three nodes, and two are left.
        self.assertIn("not continued: SLURM refused", log)

    def test_a_failure_on_every_node_is_not_that_of_a_node(self):
        self.ended(self.result("spare_deck"), "FAILED", "3:0")
        log = self.log("spare_deck")
        self.assertEqual(len(re.findall(r"^starts on ", log, re.M)), 2, log)
        self.assertIn("not started again: the same failure as before", log)
        self.assertNotIn("part 2", log)

    def test_chain(self):
        for name, runs in (("chain", "chain"), ("chain_of_task", "task-0")):
            with self.subTest(name):
                job, successor = self.result(name)
                self.ended(job, "FAILED", "75:0")
                self.ended(successor, "COMPLETED", "0:0")
                self.assertNotEqual(job["JobId"], successor["JobId"])
                self.assertIn(" part 2 on ", self.log(os.path.basename(successor["StdOut"])[:-4]))
                self.same_bits(runs)

    def test_srun(self):
        job = self.result("srun")
        if not job:
            self.skipTest(f"SLURM has no plugin for {self.srun_mpi} here")
        self.ended(job, "COMPLETED", "0:0", 1)
        self.assertRegex(self.log("srun"), r"(?s)stopped  step=[1-9].*signal USR1.*part 1 ended with 75.*from=checkpoint.*"
                                           r"part 2 ended with 0")
        self.same_bits("srun")

    def test_no_requeue(self):
        self.ended(self.result("no_requeue"), "FAILED", "75:0")
        self.assertIn("not continued: SLURM refused", self.log("no_requeue"))
        # The job saved, on a busy machine perhaps once more by plan, and has no second part.
        self.assertGreaterEqual(len(self.checkpoints("no_requeue")), 1)
        self.assertNotIn(" part 2 on ", self.log("no_requeue"))

    def test_killed_is_not_requeued(self):
        self.ended(self.result("killed"), "FAILED", "137:0")
        self.assertIn("part 1 ended with 137", self.log("killed"))

    def test_cancelled_is_not_requeued(self):
        self.assertEqual(self.result("cancelled")["JobState"], "CANCELLED")
        self.assertNotIn("part 2", self.log("cancelled"))

    def test_spent_or_stopped_by_hand_is_not_continued(self):
        self.ended(self.result("budget"), "FAILED", "8:0")
        for job in self.result("stop_file"):
            self.ended(job, "FAILED", "8:0")
        for name in ("budget", "stop_file_requeue", "stop_file_chain"):
            self.assertIn("part 1 ended with 8 ", self.log(name))
            for text in ("part 2", "continued", "Submitted"):
                self.assertNotIn(text, self.log(name))

    def test_numbers_are_checked_first(self):
        self.ended(self.result("numbers"), "FAILED", "2:0")
        self.assertIn("error: MAX_PARTS=many; it is a whole number", self.log("numbers"))

    def test_array(self):
        for job in self.result("array"):
            self.ended(job, "COMPLETED", "0:0", 1)
        self.same_bits("array-0")  # its seed is the deck's
        other, reference = self.tensors("array-1"), self.uninterrupted()
        self.assertTrue(all(other[n] != reference[n] for n in reference if n.startswith("params/") and n.endswith("kernel")))

    def test_array_of_the_same_is_refused(self):
        for job in self.result("array_of_same"):
            self.ended(job, "FAILED", "2:0")
        self.assertIn("%a stands for", self.log("same-0"))

    def test_probe(self):
        number, job = self.result("probe")
        self.ended(job, "COMPLETED", "0:0", 1)
        log = self.log("probe")
        self.assertIn("asked to stop while starting", log)
        ranks = dict(re.findall(rf"rank=(\d) threads=1 tmpdir={self.home}/local/trainer-nobody-{number} cores=(\S+)", log))
        self.assertEqual(sorted(ranks), ["0", "1"], log)
        if len(os.sched_getaffinity(0)) > 1:
            self.assertNotEqual(ranks["0"], ranks["1"], log)
        self.assertRegex(log, r"drwx------ .* nobody ")

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "needs two cores")
    def test_threads_of_a_rank_have_their_cores(self):
        self.ended(self.result("threads"), "COMPLETED", "0:0")
        self.assertRegex(self.log("threads"), r"bind=true rank=0 threads=2 .* cores=\d+[-,]\d+\n")

    def test_zz_no_directory_is_left(self):
        """Runs after all others, because every job must have removed its own directory by then."""
        for name in self.plays:
            self.result(name)
        left = os.listdir(f"{self.home}/local")
        held = subprocess.run(["find", f"{self.home}/local", "-ls"], capture_output=True, text=True, timeout=harness.GUARD).stdout
        logs = [self.log(name[:-4]) for name in os.listdir(self.home) if name.endswith(".log")]
        self.assertEqual(left, [], "\n".join([held, *(log for log in logs if any(f"job {n.rpartition('-')[2]}" in log for n in left))]))


if __name__ == "__main__":
    place.skip(slurm_cluster.missing())
    harness.main()
