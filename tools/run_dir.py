# SPDX-License-Identifier: Apache-2.0
"""Reads the files of a run directory: lock, deck, checkpoints, and the end of the newest attempt. Not a tool itself.

Reading takes no lock and needs neither mpirun nor the trainer program.
"""
import fcntl
import glob
import os
import re
import struct
import tomllib

import metric_lines
import tail


def lock_of(run):
    """Returns (true if a job holds the lock, the lock's lines: owner and activity). Does not take the lock. A killed job
    leaves its lines."""
    try:
        with open(os.path.join(run, "lock"), "rb") as file:
            ask = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, ask)[:struct.calcsize("hhqqi")])
            held = kind != fcntl.F_UNLCK
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
            return held, lines or [f"process {pid}"] * held
    except OSError:
        return False, []


def metrics_of(run):
    return os.path.join(run, "metrics.jsonl")


def rows(run):
    """Yields whole rows of metrics.jsonl, oldest first."""
    return metric_lines.rows(metrics_of(run))


def problem_of(run):
    """Returns why this is no run directory; "" if it is one."""
    if not os.path.isdir(run):
        return "no such directory" if not os.path.exists(run) else "no directory"
    if not any(os.path.exists(os.path.join(run, name)) for name in ("lock", "metrics.jsonl")):
        return "no run directory (no lock, no metrics.jsonl)"
    return ""


def deck_of(run):
    """Returns (the resolved deck, ""), or ({}, why it cannot be read)."""
    try:
        with open(os.path.join(run, "deck.resolved.toml"), encoding="utf-8", errors="surrogateescape") as file:
            return tomllib.loads(file.read()), ""
    except OSError as error:
        return {}, f"deck.resolved.toml: {error.strerror}"
    except ValueError as error:
        return {}, f"deck.resolved.toml: {error}"


def checkpoints(run):
    """Returns the run's checkpoint files, oldest step first."""
    files = glob.glob(os.path.join(glob.escape(run), "checkpoints", "*.h5"))
    return sorted((f for f in files if os.path.basename(f)[:-3].isdigit()), key=step_of)


def unfinished(run):
    """Returns names of checkpoints that are being written, or that a killed job left unfinished."""
    return [os.path.basename(f)[:-4] for f in glob.glob(os.path.join(glob.escape(run), "checkpoints", "[0-9]*.h5.tmp"))]


def step_of(checkpoint):
    return int(os.path.basename(checkpoint)[:-3])


def log_of(run):
    return os.path.join(run, "logs", "rank00000.log")


def end_of_log(run):
    """Yields the lines of rank 0's log without their time, newest first."""
    try:
        for line in tail.backwards(log_of(run)):
            yield line.decode(errors="replace").split(" ", 1)[-1]
    except OSError:
        return


def decks_of(run):
    """Returns the short hashes of the resolved decks of all attempts."""
    return {found[1] for text in end_of_log(run) if (found := re.match(r"deck .* sha256=([0-9a-f]+) ", text))}


def digest_of(run):
    """Returns (losses, weights), the digests at the end of the newest attempt that finished the run, or None."""
    for text in end_of_log(run):
        if text.startswith("trainer "):
            return None     # another attempt began
        if found := re.match(r"digest +losses=([0-9a-f]+) weights=([0-9a-f]+)$", text):
            return found.groups()
    return None


def last_words(run):
    """Returns the exit code that the newest attempt wrote to its log, or None."""
    for text in end_of_log(run):
        if text.startswith("trainer "):
            return None     # another attempt began
        if done := re.match(r"done .*exit=(\d+)", text):
            return int(done[1])
    return None


def report_of(run):
    """Returns the first line of report.txt, which names the failure; "" without a failure."""
    try:
        with open(os.path.join(run, "report.txt"), encoding="utf-8", errors="replace") as file:
            return file.readline().strip() or "it could not write why; the console of the job says it"
    except OSError:
        return ""


def state_of(run):
    """Returns (word, sentence): running, failed, killed, finished, stopped or unknown, and the end of the newest attempt."""
    held, lock = lock_of(run)
    files = checkpoints(run)
    newest = f"; newest checkpoint: step {step_of(files[-1]):,}" if files else "; no checkpoint yet"
    if held:
        return "running", f"running: {lock[0]}"
    if report := report_of(run):
        return "failed", f"failed: {report}"
    if lock:
        return "killed", f"not running; its last job ({', '.join(lock)}) was killed{newest}; the same command continues"
    code = last_words(run)
    if code == 0:
        return "finished", "finished"
    if code is not None:
        saved = f"with a checkpoint at step {step_of(files[-1]):,}" if files else "without a checkpoint"
        return "stopped", f"stopped (exit={code}) {saved}; start the same command to continue"
    return "unknown", f"not running; it ended without a message{newest}; the same command continues"
