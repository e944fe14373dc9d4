# SPDX-License-Identifier: Apache-2.0
"""Probes the place of the tests: root, a container, a bare chroot and an ordinary
user each lack other abilities.

Each function tries one thing, in seconds, and returns why it is impossible, or "".
"""
import functools
import os
import subprocess
import sys
import tempfile


def attempt(command, what):
    """Returns the command's own message if it fails here, or ""."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    except OSError as error:
        return f"{what}: {error}"
    except subprocess.TimeoutExpired:
        return f"{what}: '{' '.join(command)}' hangs"
    said = done.stdout.strip().splitlines() or [f"exit {done.returncode}"]
    return "" if done.returncode == 0 else f"{what}: {said[-1]}"


@functools.cache
def no_processes():
    """Tries to find processes and to look at them."""
    return "" if os.path.exists(f"/proc/{os.getpid()}/stat") else "needs /proc, which is not mounted here"


@functools.cache
def no_small_disk():
    """Tries to mount a file system of a few MiB."""
    with tempfile.TemporaryDirectory(prefix="trainer_place_") as folder:
        why = attempt(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], "needs a small file system of its own")
        return why or attempt(["umount", folder], "needs to unmount a file system")


@functools.cache
def no_private_mount():
    """Tries to give a process a mount of its own."""
    with tempfile.TemporaryDirectory(prefix="trainer_place_") as folder:
        return attempt(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", folder], "needs a mount of its own")


@functools.cache
def new_root():
    """Returns (the words before a command to run it in another root directory, "") or ([], the
    reason why that is impossible)."""
    reason = ""
    for words in (["chroot"], ["unshare", "--user", "--map-root-user", "chroot"]):
        reason = attempt([*words, "/", "/bin/sh", "-c", "true"], "needs to change the root directory")
        if not reason:
            return words, ""
    return [], reason


@functools.cache
def no_other_user(name):
    """Tries to start programs as another user, who can own files."""
    if os.geteuid() != 0:
        return f"needs root, to start programs as the user {name}"
    script = ("import os, pwd, sys; u = pwd.getpwnam(sys.argv[1]); os.chown(sys.argv[2], u.pw_uid, u.pw_gid); os.setgroups([]); "
              "os.setgid(u.pw_gid); os.setuid(u.pw_uid)")
    with tempfile.NamedTemporaryFile() as file:
        return attempt([sys.executable, "-c", script, name, file.name], f"needs to start programs as the user {name}")


def skip(*reasons):
    """Ends a test program that cannot run here with CTest's exit code for that, 77."""
    for reason in filter(None, reasons):
        print(f"skipped: {reason}")
        sys.exit(77)
