# SPDX-License-Identifier: Apache-2.0
"""Reads flight files, RUN/logs/flight/RANK: what each rank of a run does, or did last (src/base/flight_page.hpp)."""
import glob
import os
import struct
import time

BYTES, MAGIC = 64 << 10, b"FLIGHT1\0"
THREADS, DEPTH, EXCHANGES, SPANS = 32, 12, 96, 480
HEAD, THREAD, EXCHANGE, SPAN = 1024, 640, 128, 64
NO_NUMBER = -1 << 63
WAIT = 1  # base::SpanKind
TYPES = ("f32", "bf16", "f16", "f64", "i32", "i64", "u8")


def text(raw):
    return raw.split(b"\0")[0].decode("utf-8", "replace")


def span_text(name, number):
    return text(name[:31]) + ("" if number == NO_NUMBER else f" {number}")


class Rank:
    """One flight file. `threads` maps names of threads to open spans, `last` are the newest spans that have ended, and
    `exchanges` the newest calls; the oldest comes first. Seconds count from the start of the process."""

    def __init__(self, path):
        with open(path, "rb") as file:
            page = file.read(BYTES)
        if len(page) < HEAD or page[:8] != MAGIC:
            raise ValueError(f"{path}: not a flight file of this program")
        _, self.pid, self.rank, self.ranks, self.step = struct.unpack_from("<8s4q", page)
        self.phase = text(page[40:71])
        self.start_ns, self.unix_offset_ns, self.alive_ns, self.spans, calls = struct.unpack_from("<5q", page, 72)
        self.host = text(page[120:184])
        # Seconds by kind (attempts.SPENT), and when they were counted last; 0: never.
        *spent, self.counted_ns, resident_kib = struct.unpack_from("<10q", page, 192)
        self.spent, self.resident = [ns / 1e9 for ns in spent], resident_kib << 10
        at = HEAD
        self.threads = {}
        for _ in range(THREADS):
            tid, name, depth = struct.unpack_from("<q16sq", page, at)
            if tid:
                spans = []
                for i in range(min(depth, DEPTH)):
                    span, number, begin = struct.unpack_from("<32sqq", page, at + 64 + 48 * i)
                    spans.append((span_text(span, number), span[31] == WAIT, begin))
                self.threads[text(name)] = spans
            at += THREAD
        self.exchanges = []
        for _ in range(EXCHANGES):
            call, begin, ns, count, kind, what, group, site = struct.unpack_from("<5q16s16s32s", page, at)
            if call:
                size = f", {TYPES[kind]} x {count}" if count and kind < len(TYPES) else ""
                where = f", in {text(site[:31])}" if text(site[:31]) else ""
                self.exchanges.append((call, f"{text(what)} of {text(group)}{size}{where}", begin, ns))
            at += EXCHANGE
        self.exchanges = [e for e in sorted(self.exchanges) if e[0] <= calls]
        self.last = []
        for _ in range(SPANS):
            place, begin, ns, number, name = struct.unpack_from("<4q32s", page, at)
            if place:
                self.last.append((place >> 8, span_text(name, number), begin, ns))
            at += SPAN
        self.last.sort()

    def last_sign(self):
        """Returns the newest time in the page: what the rank did last, in seconds since 1970."""
        begun = [begin for spans in self.threads.values() for _, _, begin in spans]
        ended = [begin + ns for _, _, begin, ns in self.exchanges + self.last]
        return (max([self.alive_ns, self.counted_ns, *begun, *ended]) + self.unix_offset_ns) / 1e9

    def alive(self):
        """True if the process still exists on this node."""
        return self.host == os.uname().nodename and os.path.exists(f"/proc/{self.pid}")

    def since_s(self, begin_ns):
        """Seconds since a moment on the rank's clock, or until the rank's last sign of life."""
        now = time.time_ns() - self.unix_offset_ns if self.alive() else max([self.alive_ns, *(b + n for _, _, b, n in self.last)])
        return max(0.0, (now - begin_ns) / 1e9)

    def activity(self):
        """What the rank does: "loader 0: load a sample 3", or what its main thread waits for."""
        for name, spans in self.threads.items():
            if name != "watchdog" and spans and not spans[-1][1]:
                return ("" if name == "main" else name + ": ") + " > ".join(s[0] for s in spans)
        spans = self.threads.get("main", [])
        open_calls = [e for e in self.exchanges if e[3] == 0]
        return " > ".join(s[0] for s in spans) + (f" ({open_calls[-1][1]})" if open_calls else "")

    def line(self):
        spans = self.threads.get("main", [])
        since = f" since {self.since_s(spans[-1][2]):.1f} s" if spans and spans[-1][2] else ""
        return f"rank {self.rank} {self.host} pid {self.pid}  {self.phase} step={self.step}  {self.activity() or 'between spans'}{since}"


def ranks_of(run):
    """The readable flight files of a run, by rank."""
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(run), "logs", "flight", "[0-9]" * 5))):
        try:
            found.append(Rank(path))
        except (OSError, ValueError, struct.error):
            continue
    return found
