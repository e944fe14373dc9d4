# SPDX-License-Identifier: Apache-2.0
"""Reads processes from /proc (see place.no_processes)."""
import os
import re
import time


def _read(pid, name):
    """Returns a file of a process; "" if the process is gone."""
    try:
        with open(f"/proc/{pid}/{name}", errors="replace") as f:
            return f.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def _all():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def words(pid):
    """Returns the words of a process's command line."""
    return _read(pid, "cmdline").split("\0")[:-1]


def ended(pid):
    """True if a process is gone, or waits for its parent to collect it."""
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return not fields or fields[0] in "ZX"


def catches(pid, number):
    """True if a process has a handler for the signal."""
    caught = re.search(r"SigCgt:\s*(\w+)", _read(pid, "status"))
    return bool(caught and int(caught.group(1), 16) >> (number - 1) & 1)


def children(pid, word=""):
    """Returns the children of a process that have `word` in their command line, in the order in
    which they started."""
    return sorted(p for p in _tree().get(pid, []) if word in " ".join(words(p)))


def descendants(pid):
    """Returns all processes below `pid`."""
    tree = _tree()
    found, todo = [], [pid]
    while todo:
        below = tree.get(todo.pop(), [])
        found += below
        todo += below
    return found


def wait_for_launcher(job, limit_s, stuck_s=60):
    """Waits for the end of a launcher whose ranks were killed. Open MPI 4's mpirun may hang at its own end when a rank dies
    within MPI_Init (openpmix issue 1233), so it is killed when it has been without ranks for `stuck_s`."""
    alone = None
    end = time.monotonic() + limit_s
    while job.poll() is None:
        now = time.monotonic()
        if now > end:
            raise TimeoutError(f"{job.args} did not end within {limit_s} s")
        if not all(ended(pid) for pid in descendants(job.pid)):
            alone = None
        elif alone is None:
            alone = now
        elif now > alone + stuck_s:
            job.kill()
        time.sleep(0.02)


def with_word(word):
    """Returns all processes that have a word in their command line."""
    return [pid for pid in _all() if any(word in w for w in words(pid))]


def _tree():
    found = {}
    for pid in _all():
        fields = _read(pid, "stat").rpartition(")")[2].split()
        if fields:  # not gone since the listing
            found.setdefault(int(fields[1]), []).append(pid)
    return found
