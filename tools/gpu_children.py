# SPDX-License-Identifier: Apache-2.0
"""Starts the programs of gpu_check, and ends whatever they leave, even after the check itself was killed. Not a tool itself.

Each program has a session and a process group of its own, and a mark in its environment that all its descendants inherit. Open MPI
and compilers put processes into groups and sessions of their own, so the mark finds those that signals to the group do not reach.
A guard, a process of this file, ends all marked ones when the check has ended in whatever way: its standard input then closes."""
import os
import signal
import subprocess
import sys
import time

MARK = "TRAINER_GPU_CHECK"
POLL_S = 0.02


class Job:
    """A program to run: its arguments, its limit in seconds, the file for its output, and what it adds to the environment."""

    def __init__(self, command, limit_s, log, environment=None):
        self.command, self.limit_s, self.log, self.environment = command, limit_s, log, environment or {}
        self.code, self.output, self.seconds = None, "", 0.0
        self.process, self.mark, self.begin = None, "", 0.0


def marked(mark):
    """Returns the running processes whose mark begins so."""
    found, wanted = [], f"{MARK}={mark}".encode()
    if not os.path.isdir("/proc/self"):
        return found
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as f:
                if any(word.startswith(wanted) for word in f.read().split(b"\0")):
                    found.append(int(name))
        except OSError:  # it has ended, or is another user's
            pass
    return found


def end_marked(mark):
    """Kills all processes with this mark. One that is being started may show after others have ended, so it looks repeatedly."""
    quiet = 0
    while quiet < 3:
        found = marked(mark)
        quiet = 0 if found else quiet + 1
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)


class Children:
    def __init__(self, environment, end):
        """`end`: the moment (time.monotonic) at which the whole check is over."""
        self.environment, self.end = environment, end
        self.mark, self.started = f"{os.getpid()}-{int(time.time() * 1e6)}.", 0
        self.guard = subprocess.Popen([sys.executable, os.path.abspath(__file__), self.mark], stdin=subprocess.PIPE,
                                      start_new_session=True)

    def close(self):
        """Ends all that runs, and the guard."""
        self.guard.stdin.close()
        self.guard.wait()

    def quick(self, command, limit_s):
        """Returns the output of a short program, "" if it fails or is missing."""
        try:
            done = subprocess.run(command, env={**self.environment, MARK: self.mark + "quick"}, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=limit_s, check=False, start_new_session=True)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""

    def run(self, jobs, at_once=1, watch=None):
        """Yields each job when it has ended, with code, output and seconds; 124: out of time. Calls `watch` meanwhile."""
        waiting, running = list(jobs), []
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    running.append(self._start(waiting.pop(0)))
                if watch:
                    watch()
                for job in [job for job in running if self._has_ended(job)]:
                    running.remove(job)
                    yield job
                if running:
                    time.sleep(POLL_S)
        finally:
            for job in running:
                self._end(job)

    def _start(self, job):
        self.started += 1
        job.mark, job.begin = f"{self.mark}{self.started}.", time.monotonic()
        left_s = self.end - job.begin
        if left_s < 2:
            job.code, job.output = 124, "not started: the time of the whole check is over; --limit and --only change that"
            return job
        job.limit_s = min(job.limit_s, left_s)
        with open(job.log, "wb") as log:
            try:
                job.process = subprocess.Popen(job.command, env={**self.environment, **job.environment, MARK: job.mark}, stdout=log,
                                               stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
            except OSError as error:
                job.code, job.output = 127, f"{job.command[0]}: {error}"
        return job

    def _has_ended(self, job):
        if not job.process:
            return True
        job.seconds = time.monotonic() - job.begin
        job.code = job.process.poll()
        if job.code is None and job.seconds < job.limit_s:
            return False
        why = "" if job.code is not None else f"\ntook more than {job.limit_s:.0f} s"
        self._end(job)
        if why:
            job.code = 124
        with open(job.log, "rb") as f:
            job.output = f.read().decode(errors="replace") + why
        return True

    def _end(self, job):
        """Ends the job's group, after a second in which mpirun may tidy up, and all that it has left."""
        if job.process and job.process.poll() is None:
            try:
                os.killpg(job.process.pid, signal.SIGTERM)
                job.process.wait(timeout=1)
            except ProcessLookupError:
                pass
            except subprocess.TimeoutExpired:
                os.killpg(job.process.pid, signal.SIGKILL)
        end_marked(job.mark)
        if job.process:
            job.process.wait()


def guard(mark):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()  # ends when the check does
    end_marked(mark)


if __name__ == "__main__":
    guard(sys.argv[1])
