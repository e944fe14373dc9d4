# SPDX-License-Identifier: Apache-2.0
"""Publishes through the package clearml. A chart is a measure (its title), and a line in it is "train" or an evaluator (its series).

Offline each call leaves a session of its own, a zip file in the run directory; together they make one task.
"""
import os

from publishing import receiver


def has_credentials():
    file = os.path.expanduser(os.environ.get("CLEARML_CONFIG_FILE", "~/clearml.conf"))
    return bool(os.environ.get("CLEARML_API_ACCESS_KEY")) or os.path.exists(file)


class Receiver(receiver.Receiver):
    NAME = "clearml"

    def __init__(self, *words):
        super().__init__(*words)
        os.environ.setdefault("CLEARML_LOG_LEVEL", "WARNING")
        if self.offline or not has_credentials():
            self.offline = True
            os.environ.setdefault("CLEARML_CACHE_DIR", self.place.folder)   # read when the package is imported
        self.clearml = receiver.package("clearml", "clearml")
        self.task = None

    def open(self, settings):
        if not self.offline and not receiver.reachable(self.clearml.backend_api.Session.get_api_server_host()):
            self.offline = True
        current = self.place.current()
        before = "" if self.offline else current.get("clearml", "")
        if self.offline:
            self.clearml.Task.set_offline(True)
        self.task = self.clearml.Task.init(
            project_name=self.project, task_name=current["name"], reuse_last_task_id=False, continue_last_task=before or False,
            auto_connect_frameworks=False, auto_connect_arg_parser=False, auto_connect_streams=False, auto_resource_monitoring=False)
        self.task.set_initial_iteration(0)      # rows have steps of the whole run
        if not self.offline:
            current["clearml"] = self.task.id
        self.task.connect(dict(settings), name="deck")
        return f"clearml {'offline' if self.offline else 'online'}: project {self.project}, task {self.task.id}"

    def change(self, changed, step):
        self.task.update_parameters({f"deck from step {step}/{name}": value for name, value in changed.items()})

    def send(self, rows):
        logger = self.task.get_logger()
        for row in rows:
            series = row.group.removeprefix("eval/")
            for name, value in row.values.items():
                logger.report_scalar(name, series, value, row.step)

    def close(self, state, numbers, texts):
        logger = self.task.get_logger()
        for name, value in numbers.items():
            logger.report_single_value(name, value)
        self.task.update_parameters({f"summary/{name}": text for name, text in {**texts, "state": state}.items()})
        logger.flush(wait=True)
        if not self.offline and state == "failed":
            self.task.mark_failed(status_reason=texts.get("problem", ""), force=True)
        elif not self.offline and state in ("stopped", "killed"):
            self.task.mark_stopped(force=True)
        self.task.close()
        if not self.offline:
            return ""
        return (f"where there is a network: clearml.Task.import_offline_session(FILE) for each file of {self.place.shown}/offline, oldest "
                "first, with previous_task_id=ID of the first one's task for the others")
