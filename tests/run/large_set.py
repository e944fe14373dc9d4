#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes sets of many shards that take little disk, and measures how runs start on them.

    TRAINER=build/trainer python3 tests/run/large_set.py FOLDER --shards 100000 --samples 10000     a set of 1e9 samples

All shards are names of a few files, and so are their indexes. The program sees as many files, and as many samples, as if
each shard were a file of its own.
"""
import argparse
import collections
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import time

import harness

LINKS = 60_000  # names of one file; ext4 has room for 65,000
SET = '''[data.train]
kind       = "webdataset"
path       = "{folder}/s-{{000000..{last:06}}}.tar"
fields     = {{ image = "png", text = "txt", label = "cls" }}
preprocess = \'\'\'decode | resize(16) | value_range(-1, 1)
              | tokenize("words", max_len=12, eos="sticky", inkey="text", outkey="labels") | keep("image", "labels")\'\'\'
'''


def deck(folder, last, run, steps=3):
    """Returns the deck of a small model on the shards up to the number `last`."""
    text = harness.DECK.format(dir=run, tokenizer=harness.TOKENIZER, data=folder)
    text = text[:text.index("[eval.val]")].replace("total_steps = 12", f"total_steps = {steps}")
    begin, end = text.index("[data.train]"), len(text)
    return text[:begin] + SET.format(folder=folder, last=last) + text[end:]


def run(folder, last, name, *pairs, steps=3, ranks=0, trace=""):
    """Runs the deck. Returns seconds, the largest memory of a process in MiB, and the output."""
    path = f"{folder}/{name}.toml"
    with open(path, "w") as f:
        f.write(deck(folder, last, f"{folder}/run_{name}", steps))
    command = [harness.TRAINER, path, *harness.sets("log.samples=true", *pairs)]
    if ranks:
        command = ["mpirun", "-n", str(ranks), *command]
    if trace:
        command = ["strace", "-f", "-qq", "-e", "trace=file,getdents64", "-o", trace, *command]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begin
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, done.stdout


def make(folder, shards, samples):
    """Makes the shards and their indexes, but no list of them."""
    os.makedirs(folder, exist_ok=True)
    name = "{}/s-{:06}.tar".format
    images = [harness.png(i, 16) for i in range(40)]
    groups = range(0, shards, LINKS)
    for first in groups:
        if first == 0:
            with tarfile.open(name(folder, 0), "w", format=tarfile.USTAR_FORMAT) as tar:
                for i in range(samples):
                    harness.add_member(tar, f"{i:06}.png", images[i % 40])
                    harness.add_member(tar, f"{i:06}.txt", b"a red house")
                    harness.add_member(tar, f"{i:06}.cls", b"%d" % (i % 100))
        else:
            shutil.copyfile(name(folder, 0), name(folder, first))
        for s in range(first + 1, min(first + LINKS, shards)):
            os.link(name(folder, first), name(folder, s))
    # An index knows the shard's last change, so it is made after the links.
    for first in groups:
        path = f"{folder}/one.toml"
        with open(path, "w") as f:
            f.write(deck(folder, 0, f"{folder}/run_one", 3).replace("{000000..000000}", f"{first:06}"))
        subprocess.run([harness.TRAINER, path], capture_output=True, check=True, stdin=subprocess.DEVNULL)
        shutil.rmtree(f"{folder}/run_one")
        for s in range(first + 1, min(first + LINKS, shards)):
            os.link(name(folder, first) + ".index", name(folder, s) + ".index")


def calls(trace, folder):
    """Returns how often each system call named a file of the set."""
    counts = collections.Counter()
    with open(trace, errors="replace") as f:
        for line in f:
            found = re.match(r"\d+ (?:<\.\.\. )?(\w+)\(.*\"" + re.escape(folder) + r"/[.s]", line)
            if found:
                counts[found[1]] += 1
    return dict(counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=10_000, help="in each shard")
    options = parser.parse_args()
    folder, last = os.path.abspath(options.folder), options.shards - 1
    begin = time.monotonic()
    if not os.path.exists(f"{folder}/s-000000.tar.index"):
        make(folder, options.shards, options.samples)
    print(f"set of {options.shards:,} shards, {options.shards * options.samples:,} samples: {time.monotonic() - begin:.1f} s")
    for name, pairs, ranks in (
            ("first_start_lists", [], 0), ("start", [], 0), ("start_of_blocks", ["train.shuffle=blocks"], 0),
            ("start_of_4_ranks", [], 4), ("tenth", ["data.train.fraction=0.1"], 0), ("tenth_again", ["data.train.fraction=0.1"], 0)):
        shutil.rmtree(f"{folder}/run_{name}", ignore_errors=True)
        seconds, mib, text = run(folder, last, name, *pairs, ranks=ranks)
        first = re.search(r"^data .*", text, re.M)
        print(f"{name:20} {seconds:6.1f} s for three steps   largest memory of a process so far {mib:7.0f} MiB   {first and first[0]}")
        sys.stdout.flush()
    if shutil.which("strace"):
        shutil.rmtree(f"{folder}/run_traced", ignore_errors=True)
        run(folder, last, "traced", trace=f"{folder}/trace")
        print(f"calls that name a file of the set: {calls(f'{folder}/trace', folder)}")


if __name__ == "__main__":
    main()
