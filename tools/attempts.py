# SPDX-License-Identifier: Apache-2.0
"""Reads RUN/attempts.jsonl (src/job/attempt_log.hpp): every start of the program on a run, how it ended, what its time was spent
on, and what it ran with. Not a tool itself."""
import json
import os
import time

import flight
import run_dir

SPENT = ("setup", "training", "evaluation", "checkpoint", "redone", "data", "exchange")  # job::Spent
PARTS = SPENT[:5]   # they add up; waits for data and exchanges are parts of the training
LABELS = {"training": "training", "evaluation": "evaluation", "checkpoint": "checkpoints", "setup": "start-up",
          "redone": "redone after a restart"}
PHASES = {"train": "training", "evaluate": "evaluation", "save": "checkpoint", "rewind": "redone"}  # others: setup


def plus(sum_, more, sign=1):
    return {kind: max(0.0, sum_.get(kind, 0.0) + sign * more.get(kind, 0.0)) for kind in SPENT}


class Start:
    """One start of the program. `spent`: seconds by kind. `lost`: what of it later starts did again."""

    def __init__(self, line):
        self.number, self.begin, self.host = line["start"], line["time"], line.get("host", "")
        self.pid, self.ranks = line.get("pid"), line.get("ranks")
        self.end, self.how, self.exit, self.reason = None, "", -1, ""
        self.spent, self.lost, self.lost_steps = {}, {}, 0
        self.first_step = self.last_step = None
        self.attempts, self.source, self.facts = [], "", {}

    def take(self, line):
        kind = line["kind"]
        if kind == "facts":
            self.facts = line.get("facts", {})
        elif kind in ("continues", "back"):
            self.attempts.append(line.get("attempt"))
            if self.first_step is None:
                self.first_step, self.source = line.get("step"), line.get("from", "")
        elif kind == "end":
            self.end, self.how, self.exit = line["time"], line.get("how", ""), line.get("exit", -1)
            self.reason, self.last_step, self.spent = line.get("reason", ""), line.get("step"), line.get("seconds", {})

    def kept(self):
        """Returns the seconds by kind that count, and all others as `redone`."""
        kept = plus(self.spent, self.lost, -1)
        kept["redone"] = self.spent.get("redone", 0.0) + self.lost_s()
        return kept

    def seconds(self):
        return sum(self.spent.get(kind, 0.0) for kind in PARTS)

    def lost_s(self):
        return sum(self.lost.get(kind, 0.0) for kind in PARTS)

    def failed(self):
        return self.how in ("failed", "killed")


def lines_of(run):
    """Yields the whole lines of attempts.jsonl."""
    try:
        with open(os.path.join(run, "attempts.jsonl"), encoding="utf-8", errors="replace") as file:
            for text in file:
                try:
                    line = json.loads(text)
                except ValueError:
                    continue    # it is being written, or was cut by a crash
                if isinstance(line, dict) and "start" in line:
                    yield line
    except OSError:
        return


def starts_of(run):
    """Returns the starts of a run, oldest first; none for a run of an older program. The newest one may have no end in the file:
    it goes on, or did not end by itself. Its flight file tells what it has spent."""
    starts = {}
    for line in lines_of(run):
        if line.get("kind") == "begin":
            starts[line["start"]] = Start(line)
        elif line["start"] in starts:
            starts[line["start"]].take(line)
            for lost in line.get("redone", []):
                if again := starts.get(lost.get("start")):
                    again.lost = plus(again.lost, lost.get("seconds", {}))
                    again.lost_steps += lost.get("steps", 0)
    found = [starts[number] for number in sorted(starts)]
    if found and not found[-1].how:
        complete(run, found[-1])
    return found


def complete(run, start):
    """Fills in what is known of a start without an end."""
    word, sentence = run_dir.state_of(run)
    rank = next((r for r in flight.ranks_of(run) if r.rank == 0 and r.pid == start.pid), None)
    running = word == "running"
    now = time.time()
    if rank:
        start.spent = dict(zip(SPENT, rank.spent))
        start.last_step = rank.step
    start.end = now if running else rank.last_sign() if rank else start.begin
    kind = PHASES.get(rank.phase if rank else "", "setup")
    start.spent[kind] = start.spent.get(kind, 0.0) + max(0.0, start.end - start.begin - start.seconds())
    if not running:
        start.how, start.reason = ("killed" if word == "killed" else "failed" if word == "failed" else "stopped"), sentence


def totals(starts):
    """Returns seconds: those of the parts that count, `job` for all processes, `idle` between them, `data` and `exchange`; and
    (failures, what they cost in redone time, and in start-up after them)."""
    sums = dict.fromkeys(SPENT + ("job", "idle"), 0.0)
    failures, redone, setup = 0, 0.0, 0.0
    for index, start in enumerate(starts):
        for kind, seconds in start.kept().items():
            sums[kind] += seconds
        sums["job"] += start.seconds()
        if index:
            sums["idle"] += idle(starts, index)
        if start.failed():
            failures += 1
            redone += start.lost_s()
            setup += starts[index + 1].kept()["setup"] if index + 1 < len(starts) else 0.0
    return sums, (failures, redone, setup)


def idle(starts, index):
    """Returns the seconds between the end of the start before and the begin of this one."""
    return max(0.0, starts[index].begin - (starts[index - 1].end or starts[index].begin)) if index else 0.0


def changes(before, now):
    """Returns [(fact, text then, text now)] of what differs between two starts; "absent" for a fact that one of them lacks."""
    return [(name, before.get(name, "absent"), now.get(name, "absent")) for name in sorted(set(before) | set(now))
            if before.get(name) != now.get(name)]
