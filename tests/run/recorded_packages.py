# SPDX-License-Identifier: Apache-2.0
"""Makes stand-ins for wandb, mlflow and clearml that write down each call, as JSON objects a line in $RECORDED. They have what
tools/publish uses, and refuse what the real packages refuse."""
import os

RECORDER = '''
import json
import os
def note(what, *words, **named):
    with open(os.environ["RECORDED"], "a") as f:
        f.write(json.dumps([what, words, named], default=vars) + "\\n")
'''
WANDB = RECORDER + '''
class Settings:
    base_url = "http://127.0.0.1:9"
    def __init__(self, **named):
        pass
class Summary:
    def update(self, values):
        note("summary", values)
class Config:
    def update(self, values, allow_val_change):
        note("config", values)
class Run:
    summary, config = Summary(), Config()
    def define_metric(self, name, step_metric=None):
        note("define_metric", name, step_metric)
    def log(self, values):
        note("log", values)
    def mark_preempting(self):
        note("mark_preempting")
    def finish(self, exit_code):
        note("finish", exit_code)
def init(settings, **named):
    note("init", **named)
    return Run()
'''
MLFLOW_ENTITIES = '''
class Metric:
    def __init__(self, key, value, timestamp, step):
        self.key, self.value, self.timestamp, self.step = key, value, timestamp, step
class Param:
    def __init__(self, key, value):
        self.key, self.value = key, value
RunTag = Param
'''
MLFLOW_TRACKING = RECORDER + '''
import re
class Info:
    run_id = "run 7"
class Run:
    info = Info()
class MlflowClient:
    def __init__(self, tracking_uri):
        note("client", tracking_uri)
    def get_experiment_by_name(self, name):
        return None
    def create_experiment(self, name):
        note("create_experiment", name)
        return "3"
    def create_run(self, experiment, run_name, start_time):
        note("create_run", experiment, run_name, start_time)
        return Run()
    def update_run(self, run, status):
        note("update_run", run, status)
    def set_terminated(self, run, status):
        note("set_terminated", run, status)
    def log_batch(self, run, metrics=(), params=(), tags=()):
        assert len(metrics) <= 1000 and len(params) <= 100 and len(tags) <= 100
        for one in (*metrics, *params, *tags):
            assert re.fullmatch(r"[\\w\\-. /]+", one.key), one.key
        note("log_batch", run, metrics=metrics, params=params, tags=tags)
'''
CLEARML = RECORDER + '''
class Logger:
    def report_scalar(self, title, series, value, iteration):
        note("scalar", title, series, value, iteration)
    def report_single_value(self, name, value):
        note("single", name, value)
    def flush(self, wait):
        pass
class Task:
    id = "offline-1"
    @staticmethod
    def set_offline(on):
        note("set_offline", on)
    @classmethod
    def init(cls, **named):
        note("init", **named)
        return cls()
    def set_initial_iteration(self, step):
        note("set_initial_iteration", step)
    def connect(self, values, name):
        note("connect", name, values)
    def update_parameters(self, values):
        note("update_parameters", values)
    def get_logger(self):
        return Logger()
    def close(self):
        note("close")
'''
FILES = {"wandb.py": WANDB, "mlflow/__init__.py": "", "mlflow/entities.py": MLFLOW_ENTITIES, "mlflow/tracking.py": MLFLOW_TRACKING,
         "clearml.py": CLEARML}


def make(folder):
    """Writes the stand-ins into a folder for PYTHONPATH."""
    for name, text in FILES.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
