# SPDX-License-Identifier: Apache-2.0
"""Reads the traces of a run, RUN/logs/trace/stepSTEP.rankRANK.json, and adds them up. Not a tool itself.

src/records/trace_file.hpp describes the files. A job that was killed leaves a file without an end, which is read up to there.
"""
import collections
import glob
import json
import os
import re

from console import Failure

PROCESSES = 1000000                         # number of rank 0's process
MAIN, GPU, EXCHANGES = 1, 90000, 100000     # rows: main thread, device, first row of exchanges
STEP = "whole step"
WAIT_FOR_EXCHANGE = "wait for an exchange"

Span = collections.namedtuple("Span", "row begin end name kind args")  # times in microseconds


class RankTrace:
    """What one rank did in a window."""

    def __init__(self, path):
        self.path = path
        self.events = list(events_of(path))
        heads = [e["args"] for e in self.events if e.get("name") == "trainer_trace"]
        if not heads:
            raise Failure(f"{path} is not a trace of this trainer, or the job was killed before it wrote any event")
        self.head = heads[0]
        self.rank = self.head["rank"]
        self.end = next((e["args"] for e in self.events if e.get("name") == "trainer_trace_end"), None)
        self.rows = {e["tid"]: e["args"]["name"] for e in self.events if e.get("name") == "thread_name"}
        self.spans = sorted(spans_of(self.events), key=lambda s: (s.row, s.begin, -s.end))
        self.steps = [s for s in self.of_row(MAIN) if s.name == STEP]

    def of_row(self, row):
        return [s for s in self.spans if s.row == row]

    def exchanges(self):
        return [s for s in self.spans if s.kind == "exchange"]

    def seconds(self):
        """Returns the time of all steps."""
        return sum(s.end - s.begin for s in self.steps) / 1e6


def events_of(path):
    """Yields the events, one of a line, up to a line that is not whole."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            text = line.strip().lstrip("[,").rstrip(",")
            if text in ("", "]"):
                continue
            try:
                yield json.loads(text)
            except ValueError:
                return


def spans_of(events):
    """Yields the spans. Those that were open when the window began come as a begin and an end."""
    open_spans = collections.defaultdict(list)
    for e in events:
        phase = e["ph"]
        if phase == "X":
            yield Span(e["tid"], e["ts"], e["ts"] + e["dur"], e["name"], e["cat"], e["args"])
        elif phase == "B":
            open_spans[e["tid"]].append(e)
        elif phase == "E" and open_spans[e["tid"]]:
            begun = open_spans[e["tid"]].pop()
            yield Span(e["tid"], begun["ts"], e["ts"], begun["name"], begun["cat"], begun["args"])


def windows_of(run):
    """Returns {first step: paths of its ranks}."""
    found = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(run), "logs", "trace", "step*.rank*.json"))):
        if name := re.fullmatch(r"step(\d{10})\.rank(\d{5,})\.json", os.path.basename(path)):
            found.setdefault(int(name[1]), []).append(path)
    return found


def read_window(run, step=None):
    """Returns the traces of all ranks in the newest window, or in the one with this step."""
    windows = windows_of(run)
    if not windows:
        raise Failure(f"{run} has no trace in logs/trace: the run did not reach a step of profile.steps, or profile.steps is []")
    firsts = [first for first in sorted(windows) if step is None or first <= step]
    traces = [RankTrace(path) for path in windows[firsts[-1]]] if firsts else []
    if not traces or step is not None and step > traces[0].head["last_step"]:
        raise Failure(f"{run} has no trace of step {step}; windows begin at {', '.join(map(str, sorted(windows)))}")
    # A later attempt may have traced fewer ranks.
    newest = max(t.head["attempt"] for t in traces)
    return [t for t in traces if t.head["attempt"] == newest]


# ------------------------------------------------------------------------------------------------------------- adding up

def self_times(spans):
    """Yields (span, its time without the spans in it). The spans are of one row, by begin."""
    stack = []      # [span, time of its children]
    for span in spans:
        while stack and stack[-1][0].end <= span.begin:
            done, inner = stack.pop()
            yield done, done.end - done.begin - inner
        if stack:
            stack[-1][1] += span.end - span.begin
        stack.append([span, 0.0])
    while stack:
        done, inner = stack.pop()
        yield done, done.end - done.begin - inner


class Sum:
    """All spans of one name: how many, and their times in microseconds."""

    def __init__(self, name, kind):
        self.name, self.kind = name, kind
        self.count = 0
        self.total = self.own = self.flops = self.bytes = 0.0

    def add(self, span, own):
        self.count += 1
        self.total += span.end - span.begin
        self.own += own
        self.flops += span.args.get("flops", 0)
        self.bytes += span.args.get("bytes", 0)

    def rates(self):
        """Returns GFLOP/s and GB/s."""
        return (self.flops / self.total / 1e3, self.bytes / self.total / 1e3) if self.total else (0.0, 0.0)


def sums_of(traces, row_of):
    """Returns the sums over the rows that row_of(trace) names, those with the most time of their own first."""
    found = {}
    for trace in traces:
        for row in row_of(trace):
            for span, own in self_times(within_steps(trace, row)):
                found.setdefault((span.name, span.kind), Sum(span.name, span.kind)).add(span, own)
    return sorted(found.values(), key=lambda s: -s.own)


def within_steps(trace, row):
    """Returns the spans of a row, of the main thread only those within steps."""
    spans = trace.of_row(row)
    if row != MAIN or not trace.steps:
        return spans
    return [s for s in spans if any(step.begin <= s.begin and s.end <= step.end for step in trace.steps)]


def main_sums(traces):
    return sums_of(traces, lambda trace: [MAIN])


def device_sums(traces):
    return sums_of(traces, lambda trace: [GPU])


def other_sums(traces):
    """Returns the sums over all other threads."""
    return sums_of(traces, lambda trace: [row for row in trace.rows if row not in (MAIN, GPU) and row < EXCHANGES])


def joined(spans):
    """Returns the time in which at least one of the spans ran."""
    total, end = 0.0, float("-inf")
    for span in sorted(spans, key=lambda s: s.begin):
        total += max(0.0, span.end - max(span.begin, end))
        end = max(end, span.end)
    return total


def waits_of(trace):
    """Returns the milliseconds of a rank's steps in which exchanges ran, the main thread waited for them, and for other things."""
    kinds = {s.name for s in trace.exchanges()} | {WAIT_FOR_EXCHANGE}
    waits = [s for s in within_steps(trace, MAIN) if s.kind == "wait"]
    running = [s for s in trace.exchanges() if any(step.begin <= s.begin < step.end for step in trace.steps)]
    exposed = joined(s for s in waits if s.name in kinds)
    return {"exchanges": joined(running) / 1e3, "exposed": exposed / 1e3,
            "other waits": joined(s for s in waits if s.name not in kinds) / 1e3}


def steps_of(traces):
    """Returns {step: milliseconds of the slowest rank}."""
    found = {}
    for trace in traces:
        for s in trace.steps:
            number = s.args["number"]
            found[number] = max(found.get(number, 0.0), (s.end - s.begin) / 1e3)
    return found


# ------------------------------------------------------------------------------------------------------------- all ranks

def arrows(traces):
    """Returns events that connect each exchange of a group: from the rank that called it first to the one that called last."""
    calls = {}
    for trace in traces:
        for s in trace.exchanges():
            group = s.args["group"]
            key = (group, trace.head["groups"].get(group, 0), s.args["call"], s.name, s.args.get("count"))
            calls.setdefault(key, []).append((s.begin, trace.rank, s.row))
    out = []
    for number, ends in enumerate(calls.values(), 1):
        for i, (begin, rank, row) in enumerate(sorted(ends) if len(ends) > 1 else []):
            phase = "s" if i == 0 else "f" if i == len(ends) - 1 else "t"
            out.append({"ph": phase, "pid": PROCESSES + rank, "tid": row, "ts": round(begin, 3), "id": number, "name": "exchange",
                        "cat": "exchange", **({"bp": "e"} if phase == "f" else {})})
    return out


def merged_path(run, traces):
    return os.path.join(run, "logs", "trace", f"step{traces[0].head['first_step']:010}.json")


def write_merged(path, traces):
    """Writes the events of all ranks into one file, an object, because some viewers open no bare array. Returns their number."""
    events = [e for trace in traces for e in trace.events if e.get("name") != "trainer_trace_end"] + arrows(traces)
    partial = f"{path}.{os.getpid()}.partial"
    try:
        with open(partial, "w", encoding="utf-8") as file:
            file.write('{"traceEvents":[' + "\n,".join(json.dumps(e, separators=(",", ":")) for e in events) + "\n]}\n")
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)
    return len(events)
