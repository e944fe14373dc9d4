# SPDX-License-Identifier: Apache-2.0
"""Gives the rows of a run that are not published yet.

An attempt may go back to a checkpoint and do steps again whose rows were sent. These rows are not sent a second time: usually they
say the same. If their loss is another one, for example because the deck was changed, the trainer's run took another way, and a
published run must not show half of each: it begins anew.
"""
import collections
import os

import metric_lines
import run_dir

SAME = 0.01     # largest relative difference of a loss that is the same but for rounding on another mesh or GPU

Row = collections.namedtuple("Row", "group attempt step values time")     # group: "train" or "eval/NAME"; time: since 1970, in s


class OtherWay(Exception):
    """What was sent after `step` is not what the run is now."""

    def __init__(self, step, why):
        super().__init__(why)
        self.step = step


class Feed:
    def __init__(self, run, place):
        self.run, self.place = run, place
        self.follower = metric_lines.Follower(run_dir.metrics_of(run))
        self.begin()

    def begin(self):
        self.attempt, self.begun, self.time, self.start, self.last = 1, 0.0, 0.0, 0, 0

    def new(self):
        """Returns the rows that are new since the last call, oldest first."""
        rows, anew = self.follower.new()
        if anew:
            self.begin()
        found, again = [], {}
        for row in rows:
            one = self.of(row)
            if not one:
                continue
            if one.step > self.place.sent.get(one.group, -1):
                found.append(one)
            elif one.group == "train" and self.place.attempt_of(one.step) not in (None, one.attempt):
                again[one.step] = one.values.get("loss")
        self.compare(again)
        return found

    def of(self, row):
        """Returns a row of training or of an evaluator, or None; follows the starts."""
        step, kind, values = row.get("step"), row.get("kind"), metric_lines.values(row)
        if not isinstance(step, int):
            return None
        if kind == "start":
            attempt = metric_lines.number(row.get("attempt"))
            self.attempt = int(attempt) if attempt >= 1 else self.attempt + 1
            self.begun = self.time = values.get("time", self.time)
            self.start = self.last = step
        elif kind == "train":
            self.time = max(self.time, self.begun + values.get("uptime_s", 0))
            self.last = step
            return Row("train", self.attempt, step, values, self.time)
        elif kind == "eval" and isinstance(row.get("eval"), str):
            return Row(f"eval/{row['eval']}", self.attempt, step, values, self.time)
        return None

    def compare(self, again):
        """Raises OtherWay if steps that were done again have another loss than the rows that were sent."""
        if not again:
            return
        sent = {}
        for row in metric_lines.rows(os.path.join(self.run, "metrics.abandoned.jsonl")):
            step, attempt = row.get("step"), metric_lines.number(row.get("attempt", 1))
            if row.get("kind") == "train" and step in again and self.place.attempt_of(step) == attempt:
                sent[step] = metric_lines.number(row.get("loss"))
        for step, loss in sorted(again.items()):
            was = sent.get(step)
            if loss is not None and was is not None and abs(loss - was) > SAME * max(abs(loss), abs(was)):
                raise OtherWay(self.start, f"attempt {self.attempt} went back to step {self.start}, and the loss of step {step} is now "
                                           f"{loss:.6g}, not {was:.6g} as it was published")

    def check_end(self):
        """Raises OtherWay if the run has finished before the last step that was sent."""
        if self.last < self.place.sent.get("train", 0):
            raise OtherWay(self.last, f"the run ends at step {self.last}, and steps up to {self.place.sent['train']} were published")
