# SPDX-License-Identifier: Apache-2.0
"""Publishes through the package wandb. Every row has the member "step", which is the axis of all charts: rows of evaluators come
after the row of training of their step, also in a later call."""
import glob
import netrc
import os

from publishing import receiver

EXIT_CODES = {"finished": 0, "running": 0}     # of the other states: 1


def has_key():
    """Returns true if a key of an account is at hand."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return bool(netrc.netrc().hosts)
    except (OSError, netrc.NetrcParseError):
        return False


class Receiver(receiver.Receiver):
    NAME = "wandb"

    def __init__(self, *words):
        super().__init__(*words)
        self.wandb = receiver.package("wandb", "wandb")
        self.run = None

    def mode(self):
        if mode := os.environ.get("WANDB_MODE"):
            return mode
        online = not self.offline and has_key() and receiver.reachable(self.wandb.Settings().base_url)
        return "online" if online else "offline"

    def open(self, settings):
        mode = self.mode()
        current = self.place.current()
        quiet = self.wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True)
        self.run = self.wandb.init(project=self.project, id=current["id"], name=current["name"], mode=mode, resume="allow",
                                   dir=os.path.dirname(self.place.folder), config=settings, allow_val_change=True, settings=quiet)
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")
        return f"wandb {mode}: project {self.project}, id {current['id']}"

    def change(self, changed, step):
        self.run.config.update(changed, allow_val_change=True)

    def send(self, rows):
        for row in rows:
            self.run.log({"step": row.step, **receiver.names_of(row)})

    def close(self, state, numbers, texts):
        self.run.summary.update({**numbers, **texts, "state": state})
        if state == "stopped":
            self.run.mark_preempting()
        self.run.finish(exit_code=EXIT_CODES.get(state, 1))
        kept = glob.glob(os.path.join(glob.escape(self.place.folder), f"offline-run-*-{self.place.current()['id']}"))
        return f"where there is a network: wandb sync {self.place.shown}/offline-run-*" if kept else ""
