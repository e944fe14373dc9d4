# SPDX-License-Identifier: Apache-2.0
"""Remembers in RUN/publish/PACKAGE.json what was published of a run, so that a later call sends only what is new."""
import fcntl
import json
import os
import uuid

import console

FORMAT = 1


class Place:
    """`runs`: id and name of each published run, the newest one last; further ones began when the trainer's run went back and took
    another way. `sent`: the last step of each group ("train", "eval/NAME") in the newest one. `spans`: which attempt's rows of
    training these are, as [attempt, first step, last step]. `settings`: the deck that was sent; `state`: that of the last call."""

    def __init__(self, run, package):
        self.shown = os.path.join(run, "publish", package)
        self.folder = os.path.abspath(self.shown)
        self.file = self.folder + ".json"
        os.makedirs(self.folder, exist_ok=True)
        self.lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise console.Failure(f"another tools/publish {package} is at work on {run}") from None
        self.runs, self.sent, self.spans, self.settings, self.state = [], {}, [], {}, ""
        self.read()

    def read(self):
        try:
            with open(self.file, encoding="utf-8") as file:
                found = json.load(file)
            if found["format"] != FORMAT:
                raise ValueError(f"format {found['format']}")
            self.runs, self.sent, self.spans = found["runs"], found["sent"], found["spans"]
            self.settings, self.state = found["settings"], found["state"]
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            raise console.Failure(f"{self.file} cannot be read ({error}); it says what was published before. Remove it to publish the "
                                  "whole run once more, under a new id") from None

    def save(self):
        console.write(self.file, json.dumps({"format": FORMAT, "runs": self.runs, "sent": self.sent, "spans": self.spans,
                                             "settings": self.settings, "state": self.state}, indent=1) + "\n")

    def begin(self, name, step):
        """Begins another published run; nothing of it is sent yet. The trainer's run took another way after this step."""
        self.runs.append({"id": uuid.uuid4().hex[:12], "name": name + (f" (other way from step {step})" if self.runs else "")})
        self.sent, self.spans, self.settings, self.state = {}, [], {}, ""

    def current(self):
        return self.runs[-1]

    def note(self, group, step, attempt):
        """Notes that a row was sent."""
        self.sent[group] = step
        if group != "train":
            return
        if self.spans and self.spans[-1][0] == attempt:
            self.spans[-1][2] = step
        else:
            self.spans.append([attempt, step, step])

    def attempt_of(self, step):
        """Returns the attempt whose row of training was sent for this step; None if there was no row."""
        return next((attempt for attempt, first, last in self.spans if first <= step <= last), None)
