#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The campaign of faults: 60 jobs, each with one fault of a kind, at a place, on a rank. A judge reads console, exit code and
files alone, and says whether the job named the rank and the place in time. faults_test.py runs some of them.

  . tools/packages.sh; mpi_environment
  TRAINER=build/trainer INJECT_LIBRARY=build/tests/libinject.so FAULT_LIBRARY=build/tests/libmpi_faults.so \\
    LD_PRELOAD=build/tests/librest.so /usr/bin/python3 tests/run/faults.py --all [--jobs 3] [--only WORD] [--keep FOLDER]
"""
import argparse
import concurrent.futures
import dataclasses
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import harness
import processes

LIMIT = 3  # s: [watch] limit_s of each job
GRACE = 5  # s: how long after the limit the job must have named the fault
LONG = 600000  # ms: "for ever"

QUIET = harness.sets("checkpoint.every_steps=1000000", "eval.val.every_steps=0", "eval.val.at_end=false")
SAVING = harness.sets("eval.val.every_steps=0", "eval.val.at_end=false")
EVALUATING = harness.sets("checkpoint.every_steps=1000000")
COPIES = harness.sets("sharding.parameters=replicated", "sharding.optimizer=replicated")


@dataclasses.dataclass
class Fault:
    """`exchange` and `file` are the orders of tests/inject; `act` does something to the processes of the job after step 4.
    `said` are patterns of the line that names the fault, beside its rank. No pattern: the job must go on, and ends when it
    is asked to."""
    name: str
    ranks: int
    rank: int
    said: tuple = ()
    exit: int = 7
    exchange: str = ""
    file: str = ""
    where: dict = dataclasses.field(default_factory=dict)
    args: tuple = ()
    act: int = 0
    at_start: bool = False
    restored: bool = False
    calm_s: float = LIMIT + 3  # of a job that goes on, until it is asked to end
    suspended: bool = False
    # Of the judge.
    seconds: float = 0.0
    wrong: str = ""
    line: str = ""

    def title(self):
        return f"{self.name}, rank {self.rank} of {self.ranks}"


def at_exchanges():
    """Faults of the exchanges. Each one has its MPI function, its name in the log, and when the job makes it."""
    gather = ("MPI_Iallgather", "all_gather of", QUIET, {})
    scatter = ("MPI_Ireduce_scatter_block", "reduce_scatter of", QUIET, {})
    reduce = ("MPI_Iallreduce", "all_reduce of", [*QUIET, *COPIES], {"FAULT_MESSAGES": "1"})
    agree = ("MPI_Allreduce", "max of world", QUIET, {"FAULT_COUNT": "3"})
    texts = ("MPI_Allgather", "gather_text of", SAVING, {})
    spread = ("MPI_Bcast", "broadcast", QUIET, {})
    meeting = ("MPI_Barrier", "barrier of", QUIET, {"FAULT_COUNT": "1"})
    every = (gather, scatter, reduce, agree, texts, spread, meeting)
    at_start = {"MPI_Bcast": 3, "MPI_Barrier": 0}
    # A rank that waits for an exchange at once cannot make its next one first. These are begun two at a time: those of the units of
    # one block, by their elements on 3 ranks, and gradients and sums of a step. Of a text, the length is swapped with the rest.
    pairs = {"MPI_Iallgather": {"FAULT_COUNT": "160"}, "MPI_Ireduce_scatter_block": {"FAULT_COUNT": "160"},
             "MPI_Iallreduce": {"FAULT_COUNT": "51888"}}
    first_of_text = {"MPI_Bcast": 2}
    for (call, name, args, where), action, ranks, rank in [
            *((e, "hang", n, r) for e in every for n, r in ((2, 1), (4, 2))),
            *((e, "skip", 3, 1) for e in every),
            *((e, "half", 3, 2) for e in every if e is not meeting),
            *((e, "swap", 3, i % 3) for i, e in enumerate(every))]:
        index = at_start.get(call, 5)
        if action == "swap":
            where, index = where | pairs.get(call, {}), first_of_text.get(call, index)
        yield Fault(f"{action} {call[4:]}", ranks, rank, ("error: hang: " if action == "hang" else "error: ", name),
                    7 if action == "hang" else 0, exchange=f"{call}:{index}:{action}", where=where, args=tuple(args),
                    at_start=call in at_start)


def table():
    """Returns all 60."""
    hang = "error: hang: "
    slow = f"slow={LONG}"
    faults = list(at_exchanges())
    for rank in (0, 1):
        faults += [
            Fault("loader hangs", 2, rank, (hang, r"loader \d+: load a sample"), file=f"3:{slow}",
                  where={"CALL": "pread", "ENDS": ".tar"}, args=tuple(QUIET)),
            Fault("decoder hangs", 2, rank, (hang, r"loader \d+: load a sample \d+ > decode a PNG"),
                  exchange="png_create_read_struct:40:hang", args=tuple(QUIET), at_start=True),
            Fault("writer hangs", 3, rank, (hang, "write|commit a checkpoint"), file=f"0:{slow}",
                  where={"CALL": "pwritev", "ENDS": ".h5.tmp"},
                  args=tuple(SAVING)),
            Fault("sync hangs", 2, rank, (hang, "sync a checkpoint"), file=f"0:{slow}",
                  where={"CALL": "fsync", "ENDS": ".h5.tmp"}, args=tuple(SAVING)),
            Fault("evaluation hangs", 2, rank, (hang, "phase evaluate", "load a sample"), file=f"3:{slow}",
                  where={"CALL": "pread", "UNDER": "val"}, args=tuple(EVALUATING)),
            Fault("restore hangs", 3, rank, (hang, "phase restore"), file=f"0:{slow}",
                  where={"UNDER": "run/checkpoints", "ENDS": ".h5"}, args=tuple(QUIET), restored=True, at_start=True),
            Fault("opening data hangs", 3, rank, (hang, "open a shard"), file=f"0:{slow}",
                  where={"CALL": "open", "ENDS": ".tar"}, args=tuple(QUIET), at_start=True),
        ]
    faults += [
        Fault("creating a checkpoint hangs", 2, 0, (hang, "create a checkpoint"), file=f"0:{slow}",
              where={"CALL": "create", "ENDS": ".h5.tmp"}, args=tuple(SAVING)),
        Fault("committing a checkpoint hangs", 2, 0, (hang, "commit a checkpoint"), file=f"0:{slow}",
              where={"CALL": "rename", "ENDS": ".h5"}, args=tuple(SAVING)),
        *(Fault("stopped", n, r, (hang, "is stopped", "phase train"), args=tuple(QUIET), act=signal.SIGSTOP)
          for n, r in ((2, 0), (3, 2), (4, 1))),
        *(Fault("killed", n, r, ("process rank .* on signal 9",), exit=137, args=tuple(QUIET), act=signal.SIGKILL)
          for n, r in ((2, 1), (4, 0))),
        *(Fault("slowed by 300 ms a step", n, r, exit=75, exchange="MPI_Allreduce:0:slow", where={"FAULT_COUNT": "3"},
                args=tuple(QUIET)) for n, r in ((2, 1), (3, 0))),
        Fault("disk full", 2, 1, ("error: ", "checkpoints/.*No space left"), exit=5, file="0:errno=28+",
              where={"CALL": "pwritev", "ENDS": ".h5.tmp"}, args=(*SAVING, "--set", "checkpoint.on_error=stop")),
        Fault("disk slow", 2, 0, exit=75, file="0:slow=1000+", where={"CALL": "fsync", "ENDS": ".h5.tmp"}, args=tuple(SAVING)),
        Fault("memory short", 2, 1, ("error: ", "memory"), exit=3, file="3:nomem",
              where={"CALL": "pread", "ENDS": ".tar"}, args=tuple(QUIET)),
    ]
    return faults


def calm_jobs(seconds):
    """Jobs without a fault, which must raise no alarm for so long."""
    def calm(name, ranks, args, **more):
        return Fault(name, ranks, 0, exit=75, args=tuple(args), calm_s=seconds, **more)
    return [calm("clean", 2, ()), calm("clean", 4, QUIET), calm("suspended and continued", 3, SAVING, suspended=True),
            calm("evaluation of a minute", 2, EVALUATING, file="0:slow=700+", where={"CALL": "pread", "UNDER": "val"})]


def suspend(ranks, end):
    """Stops and continues all ranks again and again."""
    while time.time() < end:
        time.sleep(LIMIT)
        for which in (signal.SIGSTOP, signal.SIGCONT):
            for rank in ranks:
                os.kill(rank, which)
            if which == signal.SIGSTOP:
                time.sleep(LIMIT + 2)


class Campaign:
    """Makes data and a run to restore, and runs faults in `folder`."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("data", "val"):
            os.mkdir(f"{folder}/{name}")
        harness.make_shards(f"{folder}/data")
        harness.make_shards(f"{folder}/val", samples=24, shards=2)
        self.lock = threading.RLock()
        self.saved = ""
        self.homes = 0

    def deck(self, home):
        text = harness.DECK.format(dir=f"{home}/run", data=f"{self.folder}/data", tokenizer=harness.TOKENIZER)
        text = text.replace('kind        = "perplexity"\ndata        = "train"', 'kind        = "perplexity"\ndata        = "val"')
        train = text[text.index("[data.train]"):text.index("[eval.val]")]
        text += "\n" + train.replace("[data.train]", "[data.val]").replace(f"{self.folder}/data", f"{self.folder}/val")
        path = f"{home}/deck.toml"
        with open(path, "w") as f:
            f.write(text)
        return path

    def home_of(self):
        with self.lock:
            self.homes += 1
            home = f"{self.folder}/{self.homes:02}"
        os.mkdir(home)
        return home

    def run_to_restore(self):
        with self.lock:
            if not self.saved:
                home = self.home_of()
                subprocess.run(["mpirun", "-np", "2", harness.TRAINER, self.deck(home), "--set", "train.total_steps=4"], check=True,
                               cwd=home, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
                self.saved = f"{home}/run"
        return self.saved

    def run(self, fault):
        """Runs a job with this fault, and judges it."""
        home = self.home_of()
        if fault.restored:
            shutil.copytree(self.run_to_restore(), f"{home}/run")
        done, after = f"{home}/done", f"{home}/after"
        where = dict(fault.where)
        env = os.environ | {"FAULT_DONE": done, "INJECT_DONE": done}
        if not fault.at_start:
            env |= {"FAULT_AFTER": after, "INJECT_AFTER": after}
        if fault.exchange:
            env |= where | {"FAULT": f"{fault.rank}:{fault.exchange}"}
            env["LD_PRELOAD"] = harness.preload(os.environ["FAULT_LIBRARY"])
        if fault.file:
            under = where.pop("UNDER", "")
            place = f"{self.folder if under == 'val' else home}/{under}" if under else self.folder
            env |= {f"INJECT_{k}": v for k, v in where.items()}
            env |= {"INJECT": f"{fault.rank}:{fault.file}", "INJECT_UNDER": place}
            env["LD_PRELOAD"] = harness.preload(os.environ["INJECT_LIBRARY"])
        job = subprocess.Popen(["mpirun", "-np", str(fault.ranks), harness.TRAINER, self.deck(home), "--set", "train.total_steps=100000",
                                "--set", f"watch.limit_s={LIMIT}", *fault.args],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, cwd=home, env=env)
        guard = threading.Timer(90 + fault.calm_s, job.kill)
        guard.start()
        lines, ask = [], None
        for line in job.stdout:
            lines.append((time.time(), line.rstrip("\n")))
            if "step=4 " in line and not os.path.exists(after):
                with open(after, "w"):
                    pass
                ranks = processes.children(job.pid, "deck.toml")
                if fault.act:
                    with open(done, "w"):
                        pass
                    os.kill(ranks[fault.rank], fault.act)
                if not fault.said:
                    ask = threading.Timer(fault.calm_s, os.kill, (ranks[-1], signal.SIGTERM))
                    ask.start()
                if fault.suspended:
                    threading.Thread(target=suspend, args=(ranks, time.time() + fault.calm_s - 4 * LIMIT)).start()
        code = job.wait()
        guard.cancel()
        if ask:
            ask.cancel()
        with open(f"{home}/console", "w") as f:
            f.write(f"{fault.title()}\n")
            f.writelines(f"{at:.3f} {line}\n" for at, line in lines)
        judge(fault, lines, code, os.path.getmtime(done) if os.path.exists(done) else None, f"{home}/run")
        return fault


# The rank of a verdict, or the one that has failed itself.
BLAMES = (r"\brank (\d+) \([^)]*\)(?:: ranks have called| has left| still waits)", r"hang: rank (\d+) \(",
          r"error: rank (\d+)\b", r"error: .*?\brank (\d+)\b", r"process rank (\d+) ")


def blamed(line):
    """The rank that a line of the console blames; None: no rank."""
    return next((int(found[1]) for pattern in BLAMES if (found := re.search(pattern, line))), None)


def judge(fault, lines, code, begin, run):
    """Sets `wrong` to what the job did wrong; "" if it named the fault in time. No line before may blame another rank."""
    wrong = []
    if begin is None and (fault.exchange or fault.file or fault.act):
        wrong.append("the fault never came")
    told = [(at, line) for at, line in lines if "error: " in line or "process rank" in line]
    if fault.said:
        blames = [(at, line) for at, line in told if blamed(line) is not None]
        named = [(at, line) for at, line in blames if blamed(line) == fault.rank and all(re.search(p, line) for p in fault.said)]
        if not named:
            wrong.append("not named")
        elif others := [rank for at, line in blames if at <= named[0][0] and (rank := blamed(line)) != fault.rank]:
            wrong.append(f"rank {others[0]} blamed first")
        fault.line = (named or told or [(0, "")])[0][1]
        if begin and told:
            fault.seconds = (named or told)[0][0] - begin
            if fault.seconds > LIMIT + GRACE:
                wrong.append(f"late by {fault.seconds - LIMIT - GRACE:.1f} s")
        shown = "stacks of all ranks are on the console" in fault.line or glob.glob(f"{run}/logs/stacks/*-hang1-rank*.txt")
        if code == 7 and not shown:
            wrong.append("no stacks")
    elif alarm := [line for _, line in told if "hang: " in line]:
        wrong.append("false alarm")
        fault.line = alarm[0]
    expected = (fault.exit,) if fault.exit else (1, 3, 7)  # a mismatch is an error of MPI, or of the calls, or a hang
    if code not in expected:
        wrong.append(f"exit {code}")
    fault.wrong = ", ".join(wrong)


def campaign(faults, jobs, folder):
    """Runs faults, some at a time, and yields each one when it has been judged."""
    made = Campaign(folder)
    with concurrent.futures.ThreadPoolExecutor(max_workers=jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(made.run, fault) for fault in faults]):
            yield done.result()


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--all", action="store_true", help="run all faults")
    options.add_argument("--only", default="", help="run those with this pattern in their title")
    options.add_argument("--jobs", type=int, default=3, help="how many at a time")
    options.add_argument("--keep", help="keep the runs in this new folder")
    options.add_argument("--calm", type=float, default=0, metavar="SECONDS", help="run jobs without a fault for so long")
    given = options.parse_args()
    faults = [f for f in table() if given.all or (given.only and re.search(given.only, f.title()))]
    if given.calm:
        faults = calm_jobs(given.calm)
    folder = given.keep or tempfile.mkdtemp(prefix="faults_")
    os.makedirs(folder, exist_ok=True)
    wrong = 0
    try:
        for i, fault in enumerate(campaign(faults, given.jobs, folder)):
            wrong += bool(fault.wrong)
            print(f"{i + 1:2} {'wrong' if fault.wrong else 'right'} {fault.seconds:5.1f} s  {fault.title()}"
                  + (f": {fault.wrong}" if fault.wrong else "") + f"\n     {fault.line[:300]}", flush=True)
    finally:
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(faults) - wrong} of {len(faults)} named right")
    return 0 if wrong <= len(faults) // 30 else 1


if __name__ == "__main__":
    sys.exit(main())
