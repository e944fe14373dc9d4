# SPDX-License-Identifier: Apache-2.0
"""Digests of runs at determinism.level "anywhere" that tests/recorded holds, and the programs and instruction sets that must reproduce
them. TRAINER_RECORD=1 writes the digests anew."""
import hashlib
import os
import shlex

import harness

# The command of another processor's or compiler's program, if it must reproduce the digests too (tools/test_arch).
OTHER = shlex.split(os.environ.get("OTHER_TRAINER", ""))


def instruction_sets():
    """Returns the values of run.cpu that this CPU can run."""
    with open("/proc/cpuinfo") as f:
        flags = f.read()
    here = os.uname().machine == "x86_64"
    return ["generic"] + ["avx2"] * here + ["avx512"] * (here and all(f"avx512{x}" in flags for x in ("f", "bw", "vl", "dq")))


def jobs():
    """Returns (command, run.cpu, ranks) of the runs that must agree: the widest instructions on two ranks, the others on one."""
    here = [harness.TRAINER]
    return [(here, cpu, 1) for cpu in instruction_sets()[:-1]] + [(here, "auto", 2)] + [(OTHER, "auto", 2)] * bool(OTHER)


def digest(*parts):
    made = hashlib.sha256()
    for part in parts:
        made.update(part if isinstance(part, bytes) else str(part).encode())
    return made.hexdigest()


class Record:
    """A file of digests. Each line has a name, and the digests of its parts in order: `part=digest`."""

    def __init__(self, name):
        self.path = os.path.join(harness.SOURCE, "tests/recorded", name)
        with open(self.path) as f:
            self.lines = {line.split()[0]: line.split()[1:] for line in f}

    def check(self, test, name, made):
        """made: {job: {part: digest}}. All jobs must have the recorded digests. The first part that differs is named."""
        if os.environ.get("TRAINER_RECORD"):
            self.lines[name] = [f"{part}={value}" for part, value in next(iter(made.values())).items()]
            with open(self.path, "w") as f:
                f.writelines(" ".join([key, *self.lines[key]]) + "\n" for key in sorted(self.lines))
        want = self.lines.get(name, [])
        for job, parts in made.items():
            have = [f"{part}={value}" for part, value in parts.items()]
            first = next((part for part in have if part not in want), None)
            test.assertEqual(have, want, f"{name}, {job}: the first digest that differs from {self.path} is {first}")
