# SPDX-License-Identifier: Apache-2.0
"""Reads which rank made the others wait, from rows of metrics and the log of a run. Not a tool itself.

Rows of older runs have no such columns; nobody was slow in them.
"""
import re

import run_dir

# The values of the metric slow_phase, in the order of src/records/slow_rank.hpp.
PHASES = ("none", "input", "computing", "exchange", "saving", "machine")


def hosts_of(run):
    """Returns [(first rank, last rank, host)] of the newest attempt, from the lines of its mesh in rank 0's log."""
    found, listed = [], False
    try:
        with open(run_dir.log_of(run), encoding="utf-8", errors="replace") as file:
            for line in file:
                text = line.rstrip("\n").partition(" ")[2]
                if text.startswith("trainer "):
                    found = []
                if not text.startswith(" " * 11):
                    listed = text.startswith("mesh ")
                elif listed and (row := re.match(r" +(\d+)(?:-(\d+))? +(\S+)", text)):
                    found.append((int(row[1]), int(row[2] or row[1]), row[3]))
    except OSError:
        pass
    return found


def host_of(hosts, rank):
    """Returns the host of a rank; "" if it is not known."""
    return next((host for first, last, host in hosts if first <= rank <= last), "")


def phase_of(value):
    """Returns the name of a value of slow_phase."""
    return PHASES[int(value)] if 0 <= value < len(PHASES) else f"phase {value:g}"


def who(hosts, rank):
    """Returns the rank with its host, or what stands for all ranks."""
    host = host_of(hosts, rank)
    return "all ranks alike" if rank < 0 else f"rank {rank}" + (f" on {host}" if host else "")


class Windows:
    """What the rows of one attempt say about slow ranks. Add all rows in order."""

    def __init__(self):
        self.newest = {}    # newest row with these columns
        self.ms = None      # time of a step in the newest rows
        self.count = 0
        self.slow = {}      # (rank, phase): [windows, first step, last step, sum of slow_ms, 1 if ever chronic]

    def add(self, row):
        numbers = all(isinstance(row.get(key), (int, float)) for key in ("slow_rank", "slow_phase", "slow_ms"))
        if not numbers or row["slow_rank"] != row["slow_rank"]:
            return
        self.newest = row
        self.count += 1
        if row["slow_phase"] == 0:
            return
        found = self.slow.setdefault((int(row["slow_rank"]), phase_of(row["slow_phase"])), [0, row["step"], 0, 0.0, 0])
        found[0] += 1
        found[2] = row["step"]
        found[3] += row["slow_ms"]
        found[4] = max(found[4], int(row.get("slow_chronic", 0)))

    def text(self, hosts):
        """Returns who was slow in the newest window; "" for nobody."""
        row = self.newest
        if not row or row["slow_phase"] == 0:
            return ""
        often = "in most steps" if row.get("slow_chronic") else "once"
        return (f"{who(hosts, int(row['slow_rank']))}: {phase_of(row['slow_phase'])}, {often}; "
                f"costs {row['slow_ms']:.0f} ms per step (up to step {row['step']:,})")
