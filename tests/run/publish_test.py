#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/publish: what it hands to wandb, mlflow and clearml, over resumes that leave rows out. Stand-ins write the calls down.
$PUBLISH_PYTHON, a Python that has the real packages, adds a run through each of them."""
import json
import os
import shutil
import signal
import subprocess
import unittest

import harness
import recorded_packages

PUBLISH = os.path.join(harness.SOURCE, "tools", "publish")
WITH_PACKAGES = os.environ.get("PUBLISH_PYTHON", "")
BY_NAME = ("WANDB_", "MLFLOW_", "CLEARML_")     # variables of a person who uses these packages
LOSSES = ["train/loss", "train/uptime_s", "train/examples_seen"]


class Publish(harness.RunTest):
    def setUp(self):
        super().setUp()
        recorded_packages.make(f"{self.folder}/packages")
        self.record = f"{self.folder}/calls"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(BY_NAME)}
        self.environment = {**kept, "PYTHONPATH": f"{self.folder}/packages", "RECORDED": self.record, "HOME": self.folder}

    def publish(self, *args, code=0, python="/usr/bin/python3"):
        """Runs the tool; returns its output."""
        done = subprocess.run([python, PUBLISH, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=harness.GUARD, cwd=self.folder, stdin=subprocess.DEVNULL, env=self.environment)
        self.assertEqual(done.returncode, code, done.stdout)
        self.assertNotIn("Traceback", done.stdout)
        return done.stdout

    def calls(self):
        """Returns the calls since the last time, as {name: [[positional, named], ...]}, in their order."""
        found = {}
        with open(self.record, encoding="utf-8") as f:
            for what, words, named in map(json.loads, f):
                found.setdefault(what, []).append([words, named])
        os.remove(self.record)
        return found

    def words(self, calls, what):
        return [words[0] for words, _ in calls.get(what, [])]

    def train(self, steps, *more, code=0):
        self.expect(code, args=[self.deck(), "--set", f"train.total_steps={steps}", *more])

    def go_back(self, step):
        """Removes the checkpoints after a step, so that the next attempt begins there."""
        for name in self.checkpoints():
            if int(name[:10]) > step:
                os.remove(f"{self.dir}/checkpoints/{name}")

    # ---------------------------------------------------------------- each package

    def test_wandb_gets_every_row_once(self):
        self.train(12)
        self.assertIn("wandb offline: project trainer, id ", self.publish("wandb", "run"))
        calls = self.calls()
        (_, init), = calls["init"]
        self.assertEqual((init["project"], init["name"], init["mode"], init["resume"]), ("trainer", "run", "offline", "allow"))
        self.assertEqual(init["config"]["optimizer.learning_rate"], 0.01)
        self.assertEqual(init["config"]["optimizer.rule[0].match"], ".*/kernel")
        self.assertEqual(calls["define_metric"], [[["step", None], {}], [["*", "step"], {}]])
        logged = self.words(calls, "log")
        rows = self.rows()
        self.assertEqual([(row["step"], *(row[name] for name in LOSSES)) for row in logged if "train/loss" in row],
                         [(row["step"], *(row[name.partition("/")[2]] for name in LOSSES)) for row in rows])
        self.assertEqual([(row["step"], row["eval/val/perplexity"]) for row in logged if "eval/val/perplexity" in row],
                         [(row["step"], row["perplexity"]) for row in self.rows("eval")])
        summary, = self.words(calls, "summary")
        best = min(self.rows("eval"), key=lambda row: row["perplexity_per_token"])
        self.assertEqual([summary[name] for name in ("state", "summary/step", "summary/best", "summary/best_step", "best_measure")],
                         ["finished", 12, best["perplexity_per_token"], best["step"], "val/perplexity_per_token"])
        self.assertTrue(0 < summary["summary/goodput"] < 1)
        self.assertEqual(self.words(calls, "finish"), [0])
        # Nothing is new: nothing is opened. Two steps more: these alone, in the same published run.
        self.assertEqual(self.publish("wandb", "run"), "sent 0 rows; the run is finished\n")
        self.assertFalse(os.path.exists(self.record))
        self.train(14)
        self.assertIn("sent 3 rows", self.publish("wandb", "run"))
        calls = self.calls()
        self.assertEqual(calls["init"][0][1]["id"], init["id"])
        self.assertEqual([row["step"] for row in self.words(calls, "log")], [13, 14, 14])
        self.assertEqual(self.words(calls, "config")[0]["train.total_steps"], 14)

    def test_mlflow_gets_every_row_once(self):
        self.train(12)
        self.publish("mlflow", "run", "--project", "mine", "--name", "first")
        calls = self.calls()
        self.assertRegex(self.words(calls, "client")[0], r"(file|sqlite)://.*/run/publish/mlflow/")
        start = self.rows("start")[0]
        self.assertEqual(calls["create_run"][0][0], ["3", "first", int(1000 * start["time"])])
        batches = [named for _, named in calls["log_batch"]]
        params = {one["key"]: one["value"] for named in batches for one in named["params"]}
        self.assertEqual(params["optimizer.rule_0_.match"], '".*/kernel"')
        metrics = [(one["key"], one["step"], one["value"], one["timestamp"]) for named in batches for one in named["metrics"]]
        self.assertEqual([row for row in metrics if row[0] == "train/loss"],
                         [("train/loss", row["step"], row["loss"], int(1000 * (start["time"] + row["uptime_s"]))) for row in self.rows()])
        self.assertEqual([row[:3] for row in metrics if row[0] == "eval/val/perplexity"],
                         [("eval/val/perplexity", row["step"], row["perplexity"]) for row in self.rows("eval")])
        self.assertIn(("summary/step", 12, 12), [row[:3] for row in metrics])
        tags = {one["key"]: one["value"] for named in batches for one in named["tags"]}
        self.assertEqual(tags, {"state": "finished", "best_measure": "val/perplexity_per_token"})
        self.assertEqual(calls["set_terminated"][0][0], ["run 7", "FINISHED"])
        self.train(14)
        self.publish("mlflow", "run")
        calls = self.calls()
        self.assertNotIn("create_run", calls)
        self.assertEqual(calls["update_run"][0][0], ["run 7", "RUNNING"])
        batches = [named for _, named in calls["log_batch"]]
        self.assertEqual([one["step"] for named in batches for one in named["metrics"] if one["key"] == "train/loss"], [13, 14])
        self.assertIn({"key": "train.total_steps from step 12", "value": "14"}, [one for named in batches for one in named["params"]])

    def test_clearml_gets_every_row_once(self):
        self.train(12)
        self.assertIn("import_offline_session", self.publish("clearml", "run"))
        calls = self.calls()
        self.assertEqual(self.words(calls, "set_offline"), [True])
        self.assertEqual((calls["init"][0][1]["project_name"], calls["init"][0][1]["task_name"]), ("trainer", "run"))
        self.assertEqual(calls["connect"][0][0][1]["optimizer.learning_rate"], 0.01)
        scalars = [words for words, _ in calls["scalar"]]
        self.assertEqual([row for row in scalars if row[0] == "loss"], [["loss", "train", row["loss"], row["step"]] for row in self.rows()])
        self.assertEqual([row for row in scalars if row[0] == "perplexity"],
                         [["perplexity", "val", row["perplexity"], row["step"]] for row in self.rows("eval")])
        self.assertIn(["summary/step", 12], [words for words, _ in calls["single"]])
        self.assertEqual(self.words(calls, "update_parameters")[0]["summary/state"], "finished")
        self.assertEqual(len(calls["close"]), 1)

    # ---------------------------------------------------------------- resumes

    def test_steps_that_were_done_again(self):
        """A resume does steps 9 to 12 again. With the same losses only later rows are sent."""
        self.good = self.changed(('kind         = "cosine"', 'kind         = "constant"'))     # the same for any length
        self.train(12)
        self.publish("wandb", "run")
        first = self.calls()["init"][0][1]["id"]
        self.go_back(8)
        self.train(13)
        self.assertEqual([row["step"] for row in self.rows()], list(range(1, 14)))
        self.publish("wandb", "run")
        calls = self.calls()
        self.assertEqual(calls["init"][0][1]["id"], first)
        self.assertEqual([row["step"] for row in self.words(calls, "log")], [13, 13])

    def test_another_way(self):
        """A resume with another learning rate does steps 9 to 12 again: a published run never has one half of each."""
        self.good = self.changed(('kind         = "cosine"', 'kind         = "constant"'))     # the same for any length
        self.train(12)
        self.publish("wandb", "run")
        first = self.calls()["init"][0][1]["id"]
        self.go_back(8)
        changed = ["--set", "optimizer.learning_rate=0.5", "--allow-change", "optimizer.learning_rate"]
        self.train(12, *changed)
        text = self.publish("wandb", "run")
        self.assertRegex(text, r"attempt 2 went back to step 8, and the loss of step \d+ is now .* published as another run")
        calls = self.calls()
        second = calls["init"][-1][1]
        self.assertNotEqual(second["id"], first)
        self.assertEqual((second["name"], second["config"]["optimizer.learning_rate"]), ("run (other way from step 8)", 0.5))
        logged = [row for row in self.words(calls, "log") if "train/loss" in row]
        self.assertEqual([(row["step"], row["train/loss"]) for row in logged], [(row["step"], row["loss"]) for row in self.rows()])
        # The same holds for a run that now ends earlier.
        self.go_back(4)
        self.train(6)
        self.assertIn("the run ends at step 6, and steps up to 12 were published", self.publish("wandb", "run"))
        self.assertEqual([row["step"] for row in self.words(self.calls(), "log") if "train/loss" in row], list(range(1, 7)))

    def test_follow(self):
        """A running job is followed to its end; the state is that of the run."""
        job = subprocess.Popen([harness.TRAINER, self.deck(), "--set", "train.total_steps=100000", "--set", "checkpoint.every_steps=50"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder)
        self.addCleanup(job.kill)
        self.wait("the first rows", lambda: os.path.exists(f"{self.dir}/metrics.jsonl") and len(self.rows()) > 3)
        tool = subprocess.Popen(["/usr/bin/python3", PUBLISH, "wandb", "run", "--follow", "--every", "0.05"], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, cwd=self.folder, env=self.environment)
        self.addCleanup(tool.kill)
        self.wait("rows that were sent", lambda: os.path.exists(self.record) and open(self.record).read().count('"log"') > 20)
        self.assertIn("another tools/publish wandb is at work", self.publish("wandb", "run", code=2))
        job.send_signal(signal.SIGUSR1)
        self.assertIn("the run is stopped", tool.communicate(timeout=harness.GUARD)[0])
        calls = self.calls()
        logged = [row["step"] for row in self.words(calls, "log") if "train/loss" in row]
        self.assertEqual(logged, [row["step"] for row in self.rows()])
        self.assertEqual(len(calls["mark_preempting"]), 1)
        self.assertEqual(self.words(calls, "finish"), [1])
        self.assertEqual(self.words(calls, "summary")[-1]["state"], "stopped")

    # ---------------------------------------------------------------- refusals

    def test_refusals(self):
        os.mkdir(f"{self.folder}/empty")
        self.assertIn("empty: no run directory", self.publish("wandb", "empty", code=2))
        self.assertIn("invalid choice: 'tensorboard'", self.publish("tensorboard", "empty", code=2))
        os.mkdir(self.dir)
        with open(f"{self.dir}/metrics.jsonl", "w") as f:
            f.write('{"kind": "train", "step": 1, "loss": 1.0}\n')
        self.environment["PYTHONPATH"] = ""
        self.assertRegex(self.publish("wandb", "run", code=2), r"needs the PyPI package wandb(.*\n)+.*publish-env/bin/pip install wandb")
        self.environment["PYTHONPATH"] = f"{self.folder}/packages"
        self.environment["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:9"
        self.assertIn("nothing answers at MLFLOW_TRACKING_URI", self.publish("mlflow", "run", code=2))
        self.publish("mlflow", "run", "--offline")
        with open(f"{self.dir}/publish/mlflow.json", "w") as f:
            f.write("{")
        self.assertRegex(self.publish("mlflow", "run", code=2), "mlflow.json cannot be read .* Remove it")

    # ---------------------------------------------------------------- the real packages

    @unittest.skipUnless(WITH_PACKAGES, "no PUBLISH_PYTHON names a Python with wandb, mlflow and clearml")
    def test_the_real_packages(self):
        self.environment["PYTHONPATH"] = ""
        self.train(12)
        for package in ("wandb", "mlflow", "clearml"):
            with self.subTest(package):
                self.publish(package, "run", python=WITH_PACKAGES)
        self.train(14)
        for package, check in (("wandb", self.check_wandb), ("mlflow", self.check_mlflow), ("clearml", self.check_clearml)):
            with self.subTest(package):
                self.publish(package, "run", python=WITH_PACKAGES)
                check()

    def read_back(self, code):
        """Returns what a piece of Python prints as JSON."""
        done = subprocess.run([WITH_PACKAGES, "-c", code], capture_output=True, text=True, timeout=harness.GUARD, cwd=self.dir,
                              env=self.environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    def check_wandb(self):
        """Reads the records of the offline files: blocks of 32 KiB with parts of records, each behind seven bytes."""
        losses = self.read_back("""
import glob, json, struct
from wandb.proto import wandb_internal_pb2 as pb
found = []
for path in sorted(glob.glob("publish/wandb/offline-run-*/*.wandb")):
    data, at, record = open(path, "rb").read(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack("<HB", data[at + 4:at + 7])
        record += data[at + 7:at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            one = pb.Record.FromString(record)
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in one.history.item}
            if "train/loss" in row:
                found.append([row["step"], row["train/loss"]])
            record = b""
print(json.dumps(found))
""")
        self.assertEqual(losses, [[row["step"], row["loss"]] for row in self.rows()])

    def check_mlflow(self):
        found = self.read_back("""
import glob, json, os
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
from mlflow.tracking import MlflowClient
here = os.path.abspath("publish/mlflow")
client = MlflowClient(f"sqlite:///{here}/mlflow.db" if os.path.exists(here + "/mlflow.db") else f"file://{here}/mlruns")
run, = client.search_runs([client.get_experiment_by_name("trainer").experiment_id])
losses = [[m.step, m.value] for m in client.get_metric_history(run.info.run_id, "train/loss")]
print(json.dumps([run.info.status, run.data.params["optimizer.learning_rate"], run.data.tags["state"], sorted(losses)]))
""")
        self.assertEqual(found, ["FINISHED", "0.01", "finished", [[row["step"], row["loss"]] for row in self.rows()]])

    def check_clearml(self):
        sessions = sorted((f"{self.dir}/publish/clearml/offline/{name}" for name in os.listdir(f"{self.dir}/publish/clearml/offline")
                           if name.endswith(".zip")), key=os.path.getmtime)
        self.assertEqual(len(sessions), 2)
        losses = []
        for session in sessions:
            shutil.unpack_archive(session, f"{session}.folder")
            with open(f"{session}.folder/metrics.jsonl", encoding="utf-8") as f:
                losses += [(event["iter"], event["value"]) for line in f for event in json.loads(line)
                           if (event.get("metric"), event.get("variant")) == ("loss", "train")]
        self.assertEqual(sorted(losses), [(row["step"], row["loss"]) for row in self.rows()])


harness.main()
