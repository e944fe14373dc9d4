# SPDX-License-Identifier: Apache-2.0
"""Publishes through the package mlflow (mlflow-skinny does, too). MLFLOW_TRACKING_URI names the server or the store. Without it the
run goes into a store in its own directory: an SQLite file, or plain files where the packages for that are not installed."""
import importlib.util
import os
import re
import time

import console
from publishing import receiver
from report_page.deck import written

MOST_METRICS, MOST_PARAMS, MOST_TEXT = 1000, 100, 6000      # of a call; letters of a parameter
STATES = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "killed": "KILLED", "running": "RUNNING"}


def allowed(name):
    """Returns a name with "_" for what mlflow does not take: examples_seen[D] becomes examples_seen_D_."""
    return re.sub(r"[^\w\-. /]", "_", name)


def distinct(names):
    """Returns {name: allowed name}, with a number behind those that would be alike."""
    found, used = {}, set()
    for name in names:
        short, count = allowed(name), 2
        while short in used:
            short, count = f"{allowed(name)}_{count}", count + 1
        used.add(short)
        found[name] = short
    return found


class Receiver(receiver.Receiver):
    NAME = "mlflow"

    def __init__(self, *words):
        super().__init__(*words)
        receiver.package("mlflow", "mlflow")
        from mlflow import entities, tracking   # pylint: disable=import-outside-toplevel
        self.entities, self.tracking = entities, tracking
        self.client = self.id = None

    def address(self):
        given = "" if self.offline else os.environ.get("MLFLOW_TRACKING_URI", "")
        if given.startswith("http") and not receiver.reachable(given):
            raise console.Failure(f"nothing answers at MLFLOW_TRACKING_URI = {given}; --offline writes into the run directory")
        if given:
            return given
        if all(importlib.util.find_spec(name) for name in ("sqlalchemy", "alembic")):
            return f"sqlite:///{self.place.folder}/mlflow.db"
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        return f"file://{self.place.folder}/mlruns"

    def experiment(self):
        found = self.client.get_experiment_by_name(self.project)
        return found.experiment_id if found else self.client.create_experiment(self.project)

    def open(self, settings):
        address = self.address()
        self.client = self.tracking.MlflowClient(tracking_uri=address)
        current = self.place.current()
        self.id = current.get("mlflow")
        if self.id:
            self.client.update_run(self.id, status="RUNNING")
        else:
            begun = int(1000 * current.get("begun", time.time()))
            run = self.client.create_run(self.experiment(), run_name=current["name"], start_time=begun)
            self.id = current["mlflow"] = run.info.run_id
            self.params({name: written(value) for name, value in settings.items()})
        return f"mlflow: {address}, experiment {self.project}, run {self.id}"

    def params(self, texts):
        names = distinct(texts)
        params = [self.entities.Param(names[name], text[:MOST_TEXT]) for name, text in texts.items()]
        for begin in range(0, len(params), MOST_PARAMS):
            self.client.log_batch(self.id, params=params[begin:begin + MOST_PARAMS])

    def change(self, changed, step):
        """Parameters of mlflow stay as they are: a later value is another parameter."""
        self.params({f"{name} from step {step}": written(value) for name, value in changed.items()})

    def send(self, rows):
        found = [self.entities.Metric(allowed(name), value, int(1000 * row.time), row.step)
                 for row in rows for name, value in receiver.names_of(row).items()]
        for begin in range(0, len(found), MOST_METRICS):
            self.client.log_batch(self.id, metrics=found[begin:begin + MOST_METRICS])

    def close(self, state, numbers, texts):
        now, step = int(1000 * time.time()), max(self.place.sent.values(), default=0)
        metrics = [self.entities.Metric(allowed(name), value, now, step) for name, value in numbers.items()]
        tags = [self.entities.RunTag(allowed(name), text[:MOST_TEXT]) for name, text in {**texts, "state": state}.items()]
        self.client.log_batch(self.id, metrics=metrics, tags=tags)
        status = STATES.get(state, "KILLED")
        if status == "RUNNING":
            self.client.update_run(self.id, status=status)
        else:
            self.client.set_terminated(self.id, status)
        return ""
