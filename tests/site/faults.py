#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one fault per check of checks.py and sees that ReFrame fails that check, and passes it without.

    tests/site/faults.py [CHECK...]           needs reframe in PATH, build/trainer and build/tests/libmachine.so

Prints a table: the check, the fault, what the check says.
"""
import os
import re
import subprocess
import sys
import tempfile

SITE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(SITE))
TRAINER = os.path.abspath(os.environ.get("TRAINER", f"{SOURCE}/build/trainer"))
MACHINE = os.path.join(os.path.dirname(TRAINER), "tests/libmachine.so")

# The program is replaced by a shell script that plants the fault and then starts the program.
RANK = '[ "$OMPI_COMM_WORLD_RANK" = 1 ] && '
FAULTS = {
    "Starts": ("rank 1 lacks a library", RANK + 'echo "error while loading shared libraries: libdnnl.so.2" && exit 127'),
    "Bits": ("rank 1 has another CPU", RANK + "export ONEDNN_MAX_CPU_ISA=AVX"),
    "Checkpoint": ("the disk changes one byte of the file", 'case "$*" in *checkpoint.resume*) printf x | '
                   "dd of=read/checkpoints/0000000004.h5 bs=1 seek=60000 conv=notrunc status=none ;; esac"),
    "Killed": ("the disk loses the checkpoints of a killed job",
               'case "$* $PPID" in *"--dir killed"*) if grep -q "checkpoint step=" killed.log; then rm -rf killed/checkpoints; fi ;; esac'),
    "Products": ("products without vector instructions", "export ONEDNN_MAX_CPU_ISA=SSE41 DNNL_MAX_CPU_ISA=SSE41"),
    "Exchange": ("each step of an exchange takes 30 times as long", f"export LD_PRELOAD={MACHINE} MACHINE=-1:slow=30"),
    "Selftest": ("rank 1 adds wrong sums", f"export LD_PRELOAD={MACHINE} MACHINE=1:sum"),
    "Script": ("mpirun does not pass signals on", ""),
}
MPIRUN = """#!/bin/bash
trap : USR1
{} "$@" &
until wait $!; code=$?; ! kill -0 $! 2>/dev/null; do :; done
exit $code
"""


def run(name, folder, environment):
    """Returns if the check passed, and the line that says why not."""
    done = subprocess.run(["reframe", "-C", f"{SITE}/settings.py", "-c", f"{SITE}/checks.py", "-n", f"^{name}$", "-r", "--prefix", folder,
                           "--keep-stage-files"], cwd=folder, env={**os.environ, **environment}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    output = ""
    for place, _, files in os.walk(folder):
        for file in sorted(files):
            if re.fullmatch(r"rfm_job\.(out|err)", file):
                with open(os.path.join(place, file), encoding="utf-8", errors="replace") as f:
                    output += f.read()
    if "Ran 1/1 test case(s)" not in done.stdout:
        sys.exit(f"error: ReFrame did not run {name}:\n{done.stdout}")
    said = re.findall(r"^(?:failed|error).*", output, re.M)
    # The fault must cost most of what the link has here, whatever that is.
    if link := re.search(r"^exchange ([\d.]+) GB/s", output, re.M):
        os.environ["LINK_GBS"] = link[1]
    return done.returncode == 0, said[-1] if said else output.strip().rpartition("\n")[2]


def main():
    failures = 0
    for name in sys.argv[1:] or FAULTS:
        what, fault = FAULTS[name]
        with tempfile.TemporaryDirectory(prefix="site_faults_") as folder:
            for planted in (False, True):
                os.makedirs(f"{folder}/{planted}/bin")
                program, environment = f"{folder}/{planted}/bin/program", {}
                with open(program, "w", encoding="utf-8") as f:
                    f.write("#!/bin/sh\n" + (fault + "\n" if planted else "") + f'exec {TRAINER} "$@"\n')
                os.chmod(program, 0o755)
                if planted and name == "Script":
                    mpirun = subprocess.run(["which", "mpirun"], capture_output=True, text=True, check=True).stdout.strip()
                    with open(f"{folder}/{planted}/bin/mpirun", "w", encoding="utf-8") as f:
                        f.write(MPIRUN.format(mpirun))
                    os.chmod(f"{folder}/{planted}/bin/mpirun", 0o755)
                    environment["PATH"] = f"{folder}/{planted}/bin:{os.environ['PATH']}"
                passed, said = run(name, f"{folder}/{planted}", {"TRAINER": program, **environment})
                right = passed != planted
                failures += not right
                print(f"{'' if right else 'WRONG '}{name:<12}{what if planted else 'no fault':<52}"
                      f"{'passed' if passed else 'failed':<8}{said[:160]}", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
