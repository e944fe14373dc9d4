#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes sets of many shards that take little disk, and measures how runs start on them.

    TRAINER=build/trainer python3 tests/run/large_set.py FOLDER --shards 100000 --samples 10000     a set of 1e9 samples

All shards are names of a few files, and so are their indexes. The program sees as many files, and as many samples, as if
each shard were a file of its own.
"""
import argparse
import collections
import ctypes
import glob
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import tarfile
import time

import numpy as np

import harness

LINKS = 60_000  # names of one file; ext4 has room for 65,000
BY_CLASS = ["train.shuffle=classes", "data.train.class_field=label"]
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


def node_mib(pid):
    """Returns the memory of a process and its children in MiB: their own, and all with a share of what several of them map."""
    own = shared = 0
    for found in (pid, *children(pid)):
        try:
            with open(f"/proc/{found}/smaps_rollup") as f:
                kib = {name: int(number) for name, number in re.findall(r"^(\w+): +(\d+) kB", f.read(), re.M)}
        except OSError:
            continue
        own += kib["Pss_Anon"] + kib["Pss_Shmem"]
        shared += kib["Pss"]
    return own / 1024, shared / 1024


def children(pid):
    """Returns all processes below one."""
    out = []
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        try:
            with open(path) as f:
                for child in f.read().split():
                    out += [child, *children(child)]
        except OSError:
            pass
    return out


Found = collections.namedtuple("Found", "seconds first_s cpu_s own_mib node_mib text")


def cpu_s():
    """Returns the processor seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(folder, last, name, *pairs, steps=3, ranks=0, trace=""):
    """Runs the deck. Returns seconds, seconds until the first step ended, processor seconds, the most memory of all its processes,
    and the output."""
    path = f"{folder}/{name}.toml"
    with open(path, "w") as f:
        f.write(deck(folder, last, f"{folder}/run_{name}", steps))
    command = [harness.TRAINER, path, *harness.sets("log.samples=true", *pairs)]
    if ranks:
        command = ["mpirun", "-n", str(ranks), *command]
    if trace:
        command = ["strace", "-f", "-qq", "-e", "trace=file,getdents64", "-o", trace, *command]
    begin, cpu, own, all_of_it = time.monotonic(), cpu_s(), 0, 0
    with open(f"{folder}/output_{name}", "w+") as output:
        with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
            while process.poll() is None:
                now = node_mib(process.pid)
                own, all_of_it = max(own, now[0]), max(all_of_it, now[1])
                time.sleep(0.1)
        seconds = time.monotonic() - begin
        output.seek(0)
        text = output.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: {process.returncode}\n{text}")
    with open(f"{folder}/run_{name}/metrics.jsonl") as f:
        rows = [json.loads(line) for line in f]
    begins = max(i for i, row in enumerate(rows) if row["kind"] == "start")
    first = next(row["uptime_s"] for row in rows[begins:] if row["kind"] == "train")
    return Found(seconds, first, cpu_s() - cpu, own, all_of_it, text)


def move(path, position, batch):
    """Changes the position of the training data that a checkpoint holds, and the checksums that cover it."""
    with open(path, "rb") as f:
        data = bytearray(f.read())
    text = data[:4096].rstrip(b"\0").decode()
    step = int(re.search(r"^step=(\d+)$", text, re.M)[1])
    begin, length = map(int, re.search(r"^index=(\d+)\+(\d+)$", text, re.M).groups())
    index = bytes(data[begin:begin + length])
    bits = struct.pack(">d", position - step * batch).hex().encode()
    moved = re.sub(rb"(\x6dstream_offset\x70)[0-9a-f]{16}", lambda found: found[1] + bits, index)
    assert moved != index
    data[begin:begin + length] = moved
    pieces = re.search(r"^structure=(.*)$", text, re.M)[1].split()
    hashes = b"".join(struct.pack("<Q", xxh3(data[int(b):int(b) + int(n)])) for b, n in (piece.split("+") for piece in pieces))
    text = re.sub(r"^structure_xxh3=.*$", f"structure_xxh3={xxh3(hashes):016x}", text, flags=re.M)
    text = re.sub(r"^index_xxh3=.*$", f"index_xxh3={xxh3(moved):016x}", text, flags=re.M)
    head = text[:text.index("header_xxh3=")]
    data[:4096] = (head + f"header_xxh3={xxh3(head.encode()):016x}\n").encode().ljust(4096, b"\0")
    with open(path, "wb") as f:
        f.write(data)


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


def xxh3(data):
    lib = ctypes.CDLL("libxxhash.so.0")
    lib.XXH3_64bits.restype = ctypes.c_uint64
    return lib.XXH3_64bits(bytes(data), ctypes.c_size_t(len(data)))


def class_file(state, begin, end):
    """Returns the file of the classes of samples [begin, end), as the program writes it after it has read their labels."""
    def small(number):
        return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + small(number >> 7)

    names = sorted(str(c) for c in range(100))
    numbers = np.argsort([int(name) for name in names]).astype(np.uint8)[np.arange(begin, end) % 100]
    sizes = np.bincount(numbers, minlength=100)
    out = b"trainer classes 1\n" + struct.pack("<Qqq", state, begin, end) + small(100)
    out += b"".join(small(len(name)) + name.encode() + small(int(size)) for name, size in zip(names, sizes))
    out += bytes(-len(out) % 8)
    for shift in range(6, -1, -1):
        bits = numbers >> shift & 1
        blocks = np.pad(bits, (0, -len(bits) % 512)).reshape(-1, 512)
        before = np.concatenate([[0], np.cumsum(blocks.sum(axis=1, dtype=np.int64))])
        out += np.packbits(blocks, bitorder="little").tobytes() + before.tobytes()
        numbers = np.concatenate([numbers[bits == 0], numbers[bits == 1]])
    return out + struct.pack("<Q", xxh3(out))


def make_classes(folder, last, samples):
    """Makes the files of classes of all samples, once the program has made the first one."""
    path = f"{folder}/classes_begin.toml"
    with open(path, "w") as f:
        f.write(deck(folder, last, f"{folder}/run_classes_begin"))
    pattern = f"{folder}/.*.000000.classes"
    with subprocess.Popen([harness.TRAINER, path, *harness.sets("loader.threads=1", *BY_CLASS)], stdout=subprocess.DEVNULL) as process:
        while not glob.glob(pattern) and process.poll() is None:
            time.sleep(0.1)
        process.kill()
    first = glob.glob(pattern)[0]
    with open(first, "rb") as f:
        data = f.read()
    state, begin, each = struct.unpack_from("<Qqq", data, len(b"trainer classes 1\n"))
    if class_file(state, begin, each) != data:
        raise SystemExit(f"{first} is not what it should be")
    for piece in range(1, -(-samples // each)):
        with open(first.replace(".000000.", f".{piece:06}."), "wb") as f:
            f.write(class_file(state, piece * each, min(samples, (piece + 1) * each)))


def calls(trace, folder):
    """Returns how often each system call named a file of the set."""
    counts = collections.Counter()
    with open(trace, errors="replace") as f:
        for line in f:
            found = re.match(r"\d+ +(?:<\.\.\. )?(\w+)\(.*\"" + re.escape(folder) + r"/[.s]", line)
            if found:
                counts[found[1]] += 1
    return dict(counts)


def tell(name, found):
    data = re.search(r"^data .*", found.text, re.M)
    print(f"{name:30} {found.seconds:7.1f} s for three steps, {found.first_s:7.2f} s until the first one ended, "
          f"{found.cpu_s:7.1f} s of processors, "
          f"{found.own_mib:6.0f} MiB of the processes, {found.node_mib:6.0f} with mapped files   {data and data[0]}")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=10_000, help="in each shard")
    parser.add_argument("--make-classes", action="store_true", help="do not let the program read all labels")
    parser.add_argument("--only", nargs="*", help="names of runs")
    options = parser.parse_args()
    folder, last = os.path.abspath(options.folder), options.shards - 1
    begin = time.monotonic()
    if not os.path.exists(f"{folder}/s-000000.tar.index"):
        make(folder, options.shards, options.samples)
    print(f"set of {options.shards:,} shards, {options.shards * options.samples:,} samples: {time.monotonic() - begin:.1f} s")
    if options.make_classes:
        make_classes(folder, last, options.shards * options.samples)
    for name, pairs, ranks in (
            ("first_start_lists", [], 0), ("start", [], 0), ("start_of_blocks", ["train.shuffle=blocks"], 0),
            ("start_of_4_ranks", [], 4), ("tenth", ["data.train.fraction=0.1"], 0), ("tenth_again", ["data.train.fraction=0.1"], 0),
            ("tenth_of_4_ranks", ["data.train.fraction=0.1"], 4), ("classes", BY_CLASS, 0), ("classes_again", BY_CLASS, 0),
            ("classes_of_4_ranks", BY_CLASS, 4)):
        if options.only and name not in options.only:
            continue
        shutil.rmtree(f"{folder}/run_{name}", ignore_errors=True)
        tell(name, run(folder, last, name, *pairs, ranks=ranks))
        if name in ("start", "start_of_4_ranks", "classes_again"):
            position = options.shards * options.samples // 10 * 9
            move(f"{folder}/run_{name}/checkpoints/0000000003.h5", position, 12)
            tell(f"{name}, resumed", run(folder, last, name, *pairs, steps=6, ranks=ranks))
            sampled = sorted(glob.glob(f"{folder}/run_{name}/logs/samples/from0000000003*"))
            with open(sampled[0]) as f:
                print("    " + "\n    ".join(f.read().splitlines()[:3]))
    if shutil.which("strace"):
        shutil.rmtree(f"{folder}/run_traced", ignore_errors=True)
        run(folder, last, "traced", trace=f"{folder}/trace")
        print(f"calls that name a file of the set: {calls(f'{folder}/trace', folder)}")


if __name__ == "__main__":
    main()
