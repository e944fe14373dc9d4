#!/usr/bin/python3
"""All scripts for bash: shellcheck finds nothing (Debian's version), and bash can read them."""
import os
import shutil
import subprocess
import sys
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def scripts():
    """Everything in jobs/, tools/ and .ci/ that says it is for bash or sh."""
    found = []
    for folder in ("jobs", "tools", ".ci"):
        for name in sorted(os.listdir(f"{SOURCE}/{folder}")):
            path = f"{SOURCE}/{folder}/{name}"
            if os.path.isfile(path):
                with open(path, "rb") as f:
                    first = f.readline()
                if first.startswith((b"#!/usr/bin/env bash", b"#!/bin/bash", b"#!/bin/sh", b"# shellcheck shell=")):
                    found.append(f"{folder}/{name}")
    return found


class Shell(unittest.TestCase):
    def test_all_are_found(self):
        self.assertLessEqual({"jobs/slurm.sh", "jobs/pbs.sh", "jobs/common.sh", "tools/test", "tools/quickstart", ".ci/run"},
                             set(scripts()))

    def test_shellcheck(self):
        for script in scripts():
            with self.subTest(script):
                done = subprocess.run(["shellcheck", "--external-sources", script], cwd=SOURCE, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_syntax(self):
        for script in scripts():
            with self.subTest(script):
                done = subprocess.run(["bash", "-n", script], cwd=SOURCE, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    if not shutil.which("shellcheck"):
        print("skipped: not installed: shellcheck (Debian package shellcheck)")
        sys.exit(77)
    unittest.main(verbosity=2)
