#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the metrics of a run with many rows, with the columns and files that the program writes (src/records/metrics.hpp).

    tests/bench/long_metrics.py FOLDER ROWS              metrics.jsonl and metrics.h5
    tests/bench/long_metrics.py FOLDER ROWS --chunked    with the chunked columns of older versions
    tests/bench/long_metrics.py FOLDER ROWS --behind N   metrics.h5 lacks the last N rows, as after a kill
    tests/bench/long_metrics.py FOLDER ROWS --bench build/tests/metrics_bench    with hashes, so that the program can continue

A row of training has 30 numbers, as on CPUs, and every hundredth one says which rank was slow. Three attempts trained the run;
they began at 0, 4/10 and 9/10 of the steps. There are 100 to 200 evaluations. ROWS is a multiple of 1,000.
"""
import argparse
import functools
import os
import re
import subprocess

import h5py
import numpy as np

RECORD = 100            # rows that are made together: the last one is about slow ranks
PART = 200              # records that are written together
FIXED = ("l2_grads", "skipped", "skipped_updates", "l2_params", "l2_updates", "clip", "schedule", "examples_s", "examples_s_core",
         "core_hours", "host_mib", "host_anon_mib", "host_file_mib", "host_shared_mib", "core_hours[cpu]", "host_available_mib",
         "data_ms", "comm_ms", "compute_ms", "mfu", "hfu", "examples_seen", "epoch", "bad_samples", "goodput")
ZERO = ("skipped", "skipped_updates", "bad_samples")
SLOW = {"data_mean_ms": 1.5, "data_max_ms": 2.5, "slow_rank": 3.0, "slow_ms": 4.5, "slow_phase": 2.0, "slow_chronic": 0.0}
ATTEMPTS = (0.0, 0.4, 0.9)      # begins, as shares of all steps
# Numbers that change from row to row: digits behind the text that goes before them, and their unit.
CHANGING = {"loss": (12, "0.", 1e12), "ms": (6, "10.", 1e6), "progress": (9, "0.", 1e9), "uptime_s": (9, "1", 1e4)}


class Maker:
    """Makes texts and columns of the same rows."""

    def __init__(self, rows):
        self.rows = rows
        self.rest = np.random.default_rng(7).integers(10**14, 9 * 10**14, (RECORD, len(FIXED)))
        self.rest[:, [FIXED.index(name) for name in ZERO]] = 0
        self.begins = [int(share * rows) // RECORD * RECORD for share in ATTEMPTS]
        self.every = max(rows // 100 // RECORD, 1) * RECORD

    def numbers(self, step):
        """Returns {column: integers} of what changes from row to row, in units of the last digit."""
        begin = np.array(self.begins)[np.searchsorted(self.begins, step) - 1]
        return {"loss": 100_000_000_000 + step * 7919 * 104729 % 300_000_000_000 + 500_000_000_000 * (self.rows - step) // self.rows,
                "ms": step * 7919 % 1_000_000, "progress": step * (10**9 - 1) // self.rows, "uptime_s": (step - begin) * 125}

    def columns(self, first, last):
        """Returns {name: array} of the steps first to last."""
        step = np.arange(first, last + 1)
        found, begin = {"step": step}, {"loss": 0, "ms": 10 * 10**6, "progress": 0, "uptime_s": 10**9}
        found |= {name: (begin[name] + value) / CHANGING[name][2] for name, value in self.numbers(step).items()}
        found |= {name: self.rest[(step - 1) % RECORD, i] / 1e15 for i, name in enumerate(FIXED)}
        return found | {name: np.where(step % RECORD == 0, value, np.nan) for name, value in SLOW.items()}

    @functools.lru_cache(maxsize=None)
    def texts(self, digits):
        """Returns the text of a record with zeros for what changes, and {column: places of its first digit in each row}."""
        text, places = "", {name: [] for name in ("step", *CHANGING)}
        for row in range(RECORD):
            text += '{"kind":"train","step":'
            places["step"].append(len(text))
            text += "0" * digits
            for name, (count, before, _) in CHANGING.items():
                text += f',"{name}":{before}'
                places[name].append(len(text))
                text += "0" * count if name != "uptime_s" else "0" * 5 + "." + "0" * 4
            text += "".join(f',"{name}":0.{value:015}' for name, value in zip(FIXED, self.rest[row].tolist()))
            text += "".join(f',"{name}":{value}' for name, value in SLOW.items()) if row == RECORD - 1 else ""
            text += "}\n"
        return np.frombuffer(text.encode(), np.uint8), {name: np.array(found) for name, found in places.items()}

    def records(self, first, count, digits):
        """Returns the bytes of records from a step on, whose steps have so many digits."""
        text, places = self.texts(digits)
        step = np.arange(first, first + count * RECORD)
        out = np.repeat(text[None], count, axis=0)
        for name, value in {"step": step, **self.numbers(step)}.items():
            width = digits if name == "step" else CHANGING[name][0]
            value = value.reshape(count, RECORD).copy()
            for digit in range(width - 1, -1, -1):
                point = name == "uptime_s" and digit >= 5
                out[:, places[name] + digit + point] = value % 10 + ord("0")
                value //= 10
        return out.tobytes()

    def mixed(self, first):
        """Returns the bytes of a record whose steps have different numbers of digits."""
        lines = []
        for step in range(first, first + RECORD):
            one = self.records((step - 1) // RECORD * RECORD + 1, 1, len(str(step))).split(b"\n")
            lines.append(one[(step - 1) % RECORD] + b"\n")
        return b"".join(lines)

    def between(self, step):
        """Returns the lines behind a step: of an evaluation and of a start."""
        text = ""
        if step and step % self.every == 0:
            text = f'{{"kind":"eval","eval":"val","step":{step},"perplexity":{3 + 1e6 / step!r},"eval_s":0.5}}\n'
        return (text + self.start(step)).encode()

    def start(self, step):
        index = self.begins.index(step) if step in self.begins else None
        return "" if index is None else f'{{"kind":"start","step":{step},"attempt":{index + 1}.0,"time":{1.7e9 + index},"killed":0.0}}\n'


def write_jsonl(maker, path):
    stops = sorted({*maker.begins, *range(maker.every, maker.rows + 1, maker.every), maker.rows} - {0})
    with open(path, "wb") as file:
        file.write(maker.between(0))
        step = 1
        for stop in stops:
            while step <= stop:
                count = min(PART, (stop - step + 1) // RECORD)
                digits = len(str(step))
                count = min(count, (10**digits - step) // RECORD)
                file.write(maker.records(step, count, digits) if count else maker.mixed(step))
                step += max(count, 1) * RECORD
            file.write(maker.between(stop))


def write_h5(maker, rows, path, chunked):
    how = {"chunks": (1 << 14,), "maxshape": (None,)} if chunked else {}
    part = 1 << 18
    with h5py.File(path, "w", libver=("earliest", "v108")) as file:
        file.attrs["format"] = 1
        file.attrs["attempts"] = len(ATTEMPTS)
        names = maker.columns(1, 1)
        sets = {name: file.create_dataset("train/" + name, (rows,), "i8" if name == "step" else "f8", **how) for name in names}
        for name, one in sets.items():
            if name != "step":
                one.attrs["unit"], one.attrs["doc"] = "1", "a number"
        for first in range(1, rows + 1, part):
            for name, values in maker.columns(first, min(rows, first + part - 1)).items():
                sets[name][first - 1:first - 1 + len(values)] = values
        steps = np.arange(maker.every, rows + 1, maker.every)
        begins = [begin for begin in maker.begins if begin <= rows]
        for group, columns in (("eval/val", {"step": steps, "perplexity": 3 + 1e6 / steps, "eval_s": np.full(len(steps), 0.5)}),
                               ("start", {"step": np.array(begins), "attempt": np.arange(1.0, len(begins) + 1),
                                          "time": 1.7e9 + np.arange(len(begins)), "killed": np.zeros(len(begins))})):
            for name, values in columns.items():
                file.create_dataset(f"{group}/{name}", data=values, chunks=(64,), maxshape=(None,))


def make(folder, rows, chunked=False, behind=0):
    os.makedirs(folder, exist_ok=True)
    maker = Maker(rows)
    write_jsonl(maker, os.path.join(folder, "metrics.jsonl"))
    write_h5(maker, rows - behind, os.path.join(folder, "metrics.h5"), chunked)


def add_hashes(folder, last, bench):
    """Adds what metrics.h5 says of the lines whose rows it has: those up to the row of a step, which lie before the next one."""
    path = os.path.join(folder, "metrics.jsonl")
    with open(path, "rb") as file:
        low, high = 0, os.path.getsize(path)
        while high - low > 1 << 16:
            file.seek((low + high) // 2)
            found = re.search(rb'\n\{"kind":"train","step":(\d+),', file.read(1 << 14))
            low, high = ((low + high) // 2, high) if int(found[1]) <= last else (low, (low + high) // 2)
        file.seek(low)
        at = low + re.search(rb'\n\{"kind":"train","step":%d,' % (last + 1), file.read(1 << 18)).start() + 1
    text = subprocess.run([bench, "check", path, str(at)], check=True, capture_output=True, text=True).stdout.strip()
    with h5py.File(os.path.join(folder, "metrics.h5"), "r+") as file:
        file.attrs["jsonl_check"] = np.bytes_(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("rows", type=int)
    parser.add_argument("--chunked", action="store_true")
    parser.add_argument("--behind", type=int, default=0, metavar="N")
    parser.add_argument("--bench", metavar="PROGRAM")
    options = parser.parse_args()
    make(options.folder, options.rows, options.chunked, options.behind)
    if options.bench:
        add_hashes(options.folder, options.rows - options.behind, options.bench)


if __name__ == "__main__":
    main()
