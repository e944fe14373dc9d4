#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Clang 14 or 19 reads the sources of this build's product without a warning.

It reads the sources of one folder together, because shared headers take most of the time, and one by one if they clash.
It generates code only for files whose errors need that. To choose object files by hand, those of the tests as well:
    TRAINER=build/trainer tests/run/clang_test.py REGEX      ("." reads all)
"""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

CLANGS = "clang++-14", "clang++-19"  # those of Debian 12 and 13
CLANG = next(filter(shutil.which, CLANGS), CLANGS[0])
# Two groups are left out. Preset fuzz compiles the first folders with the same Clang, with warnings
# as errors (test fuzz_build). The GPU's sources with their emulator would take a quarter of the
# time.
LEFT_OUT = ("trainer_base", "trainer_device", "trainer_config", "trainer_io", "trainer_data", "cuda_on_cpu", "nccl_on_cpu")
GCC_ONLY = ("-Wno-restrict", "-Winvalid-pch")
# Headers that most sources include, so that Clang reads them once. Reading is most of what this test does.
COMMON = ("algorithm", "array", "atomic", "bit", "cmath", "condition_variable", "cstdint", "cstring", "filesystem", "functional", "limits",
          "map", "memory", "mutex", "numeric", "optional", "regex", "set", "span", "string", "thread", "unordered_map", "variant", "vector",
          "fmt/format.h", "fmt/ranges.h", "fmt/chrono.h")
TOGETHER = 12  # sources that are read at once
# These files use instructions that a pragma allows. Forbidden ones are found where code is generated, before it is optimised.
GENERATED = ("vector_avx2.cpp", "vector_avx512.cpp", "vector_avx512_bf16.cpp")
GENERATE = ["-O0", "-emit-llvm", "-Xclang", "-disable-llvm-passes", "-o", "/dev/null"]


def commands(path):
    """Returns {source or batch: (folder, arguments)} of a compile_commands.json, without nvcc's files."""
    with open(path, encoding="utf-8") as f:
        entries = json.load(f)
    found = {}
    for entry in entries:
        words = shlex.split(entry["command"])
        object_file = words[words.index("-o") + 1]
        # In front of the compiler are ccache and its settings.
        start = next(i for i, word in enumerate(words) if "=" not in word and os.path.basename(word) not in ("env", "ccache")) + 1
        if "nvcc" in words[start - 1] or any(f"{name}.dir/" in object_file for name in LEFT_OUT):
            continue
        arguments = [w for w in words[start:] if w not in ("-o", object_file, *GCC_ONLY) and not w.startswith("-O")]
        if "-include" in arguments:  # headers that GCC has compiled; Clang has its own (compiled_headers)
            at = arguments.index("-include")
            del arguments[at:at + 2]
        generate = os.path.basename(entry["file"]) in GENERATED
        found[object_file] = (entry["directory"], arguments + (GENERATE if generate else ["-fsyntax-only"]))
    return found


def groups_of(found):
    """Lists of names whose sources can be read together: sources of one library that GCC compiles alone."""
    libraries, groups = {}, []
    for name, (_, arguments) in found.items():
        if "-fsyntax-only" in arguments and "Unity/" not in name:
            libraries.setdefault(name.split(".dir/")[0], []).append(name)
        else:
            groups.append([name])
    for names in libraries.values():
        groups += [names[i:i + TOGETHER] for i in range(0, len(names), TOGETHER)]
    return groups


def joined(found, names, scratch):
    """The run that reads the sources of all names as one."""
    folder, arguments = found[names[0]]
    if len(names) == 1:
        return folder, arguments
    path = f"{scratch}/joined.cpp"
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(f'#include "{found[name][1][found[name][1].index("-c") + 1]}"\n' for name in names)
    source = arguments[arguments.index("-c") + 1]
    return folder, [path if word == source else word for word in arguments]


def clang(arguments, folder):
    return subprocess.run([CLANG, *arguments, "-Wall", "-Wextra", "-Wshadow", "-Werror"], cwd=folder, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)


def compiled_headers(scratch, arguments):
    """The path of COMMON, compiled with the options of one of the sources."""
    with open(f"{scratch}/common.hpp", "w", encoding="utf-8") as f:
        f.writelines(f"#include <{name}>\n" for name in COMMON)
    options = [w for i, w in enumerate(arguments) if w not in ("-c", "-fsyntax-only") and arguments[i - 1] != "-c"]
    done = clang([*options, "-x", "c++-header", f"{scratch}/common.hpp", "-o", f"{scratch}/common.pch"], scratch)
    if done.returncode:
        raise SystemExit(f"{CLANG} cannot compile common headers:\n{done.stdout}")
    return f"{scratch}/common.pch"


def works():
    """Returns why this test cannot run here, or nothing."""
    if not shutil.which(CLANG):
        return f"no {CLANG} in PATH"
    done = subprocess.run([CLANG, "-fopenmp", "-fsyntax-only", "-xc++", "-"], input="#include <omp.h>\n", text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    return f"{CLANG} has no omp.h (Debian package libomp-{CLANG[-2:]}-dev)" if done.returncode else ""


def main():
    reason = works()
    if reason:
        print(f"skipped: {reason}")
        return 77
    found = commands(os.path.dirname(os.environ["TRAINER"]) + "/compile_commands.json")
    wanted = sys.argv[1] if len(sys.argv) > 1 else "^(?!tests/)"  # the tests' own sources would take most of the time
    found = {name: run for name, run in found.items() if re.search(wanted, name)}
    bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        common = compiled_headers(scratch, next(iter(found.values()))[1]) if found else ""

        def problems_of(names):
            """Returns what Clang reports about the sources. Names of two sources may clash, so halves are read again."""
            folder, arguments = joined(found, names, scratch)
            headers = ["-include-pch", common] if "-fsyntax-only" in arguments else []
            done = clang([*headers, *arguments], folder)
            if not done.returncode and not done.stdout:
                return []
            if len(names) == 1:
                return [f"{names[0]}\n{done.stdout}"]
            half = len(names) // 2
            return problems_of(names[:half]) + problems_of(names[half:])

        for names in groups_of(found):
            problems = problems_of(names)
            bad += len(problems)
            print("".join(problems), end="")
    times = os.times()
    print(f"{len(found)} sources and batches read by {CLANG} in {times.children_user + times.children_system:.0f} s of CPU,",
          f"{bad} with warnings or errors")
    return int(bad > 0 or not found)


if __name__ == "__main__":
    sys.exit(main())
