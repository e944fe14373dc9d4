# SPDX-License-Identifier: Apache-2.0
"""What gpu_check knows of its node: Pythons, CUDA's libraries, the GPU's clocks and power. Not a tool itself."""
import os
import shutil
import subprocess
import sys
import time

SAMPLE_S = 0.4  # between two looks at clocks and power
QUERY = "clocks.sm,power.draw"


def pythons(given):
    """Returns the interpreters in which libraries and peers are looked for: those that were given first."""
    found = [*given, shutil.which("python3"), sys.executable, "/usr/bin/python3"]
    return list(dict.fromkeys(path for path in found if path and shutil.which(path)))


def environment_with_libraries(interpreters):
    """Returns the environment with CUDA's libraries from wheels and from the toolkit."""
    where = "import nvidia, os; print(':'.join(os.path.join(p, d, 'lib') for p in nvidia.__path__ for d in os.listdir(p)))"
    paths = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for python in interpreters:
        try:
            done = subprocess.run([python, "-c", where], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            paths += done.stdout.decode().strip().split(":")
    paths.append("/usr/local/cuda/lib64")
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(dict.fromkeys(p for p in paths if p)), "OMP_WAIT_POLICY": "passive",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def sanitizer():
    """Returns compute-sanitizer, or None."""
    folders = [os.environ.get("PATH", ""), os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")]
    return shutil.which("compute-sanitizer", path=":".join(folders))


def version(root):
    """Returns which state of the project this is."""
    try:
        with open(os.path.join(root, "version")) as f:  # a bundle has no repository
            return f.read().strip()
    except OSError:
        pass
    try:
        done = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, timeout=20, check=False)
        return done.stdout.decode().strip() or "an unknown state"
    except (OSError, subprocess.TimeoutExpired):
        return "an unknown state (no git here)"


class Gpu:
    """Looks at the first GPU that programs see. All is empty where nvidia-smi is missing."""

    def __init__(self, children):
        self.children = children
        self.number = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
        self.smi = shutil.which("nvidia-smi")
        self.samples, self.next = [], 0.0

    def _ask(self, query):
        if not self.smi:
            return []
        command = [self.smi, f"--query-gpu={query}", "--format=csv,noheader,nounits", "-i", self.number]
        return [word.strip() for word in self.children.quick(command, 5).split(",")]

    def about(self):
        """Returns name, driver and limits of the GPU."""
        names = ("name", "driver_version", "memory.total", "clocks.max.sm", "power.limit")
        return dict(zip(names, self._ask(",".join(names)))) or {"nvidia-smi": "not on this node"}

    def begin(self):
        self.samples, self.next = [], 0.0

    def watch(self):
        """Takes a sample if it is time for one."""
        if not self.smi or time.monotonic() < self.next:
            return
        try:
            clock, power = map(float, self._ask(QUERY))
            self.samples.append((power, clock))
        except ValueError:  # "[N/A]", or nothing
            pass
        self.next = time.monotonic() + SAMPLE_S

    def under_load(self):
        """Returns median SM clock and power of the samples near the highest power, and their number."""
        busy = [s for s in self.samples if s[0] >= 0.8 * max(self.samples)[0]]
        if not busy:
            return {}
        middle = len(busy) // 2
        return {"sm_mhz": sorted(clock for _, clock in busy)[middle], "power_w": sorted(power for power, _ in busy)[middle],
                "samples": len(busy)}
