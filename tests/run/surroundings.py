# SPDX-License-Identifier: Apache-2.0
"""Surroundings of a bundle (bundle_test.py): the C library that it needs, and a place where little is as usual."""
import glob
import os
import re
import subprocess

import harness
import place


def needed_versions(bundle):
    """Returns the highest version of the C and C++ libraries' symbols that the bundle's files need: {"GLIBC": (2, 36), ...}."""
    highest = {}
    for file in glob.glob(f"{bundle}/libexec/*") + glob.glob(f"{bundle}/lib/**/*.so*", recursive=True):
        text = subprocess.run(["readelf", "--version-info", "--wide", file], capture_output=True, text=True, check=True).stdout
        for name, version in re.findall(r"Name: (GLIBC|GLIBCXX)_([\d.]+)", text.partition(".gnu.version_r")[2]):
            number = tuple(map(int, version.split(".")))
            highest[name] = max(highest.get(name, (0,)), number)
    return highest


def stated_versions():
    """Returns what jobs/SITES.md says."""
    with open(f"{harness.SOURCE}/jobs/SITES.md", encoding="utf-8") as f:
        found = re.search(r"glibc (\d+\.\d+) and libstdc\+\+ of GCC 12 \(GLIBCXX_([\d.]+)\)", f.read())
    return {name: tuple(map(int, text.split("."))) for name, text in zip(("GLIBC", "GLIBCXX"), found.groups())}


# In a mount namespace: the bundle's folder is read-only, the home has no room, and there is neither /tmp nor /sys.
ODD_PLACE = """set -e
root=$1; shift
mount --bind "$root/some where" "$root/some where"
mount -o remount,bind,ro "$root/some where"
mkdir -p "$root/home"
mount -t tmpfs -o size=4k tmpfs "$root/home"
dd if=/dev/zero of="$root/home/full" bs=4k count=9 2>/dev/null || true
mv "$root/tmp" "$root/away"
exec chroot "$root" /bin/sh -c 'umask 077; "$@"' sh "$@"
"""


def run_in_odd_place(root, *command):
    """Returns exit code and output of a command in the root, or (None, the reason why there is no such place)."""
    reason = place.no_private_mount()
    if reason:
        return None, reason
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/home", "LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8"}
    try:
        done = subprocess.run(["unshare", "-m", "/bin/sh", "-c", ODD_PLACE, "sh", root, *command], env=environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD)
    finally:
        if os.path.exists(f"{root}/away"):
            os.rename(f"{root}/away", f"{root}/tmp")
    return done.returncode, done.stdout
