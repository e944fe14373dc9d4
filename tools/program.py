# SPDX-License-Identifier: Apache-2.0
"""Finds the trainer program and starts it for other tools. Not a tool itself."""
import os
import shutil
import subprocess

from console import Failure


def find():
    """Returns $TRAINER, else build/trainer beside tools/, else an installed program."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for path in (os.environ.get("TRAINER"), os.path.join(here, "build", "trainer"), shutil.which("trainer")):
        if path and os.access(path, os.X_OK):
            return path
    raise Failure("no trainer program: build it (cmake --preset release && cmake --build build --target trainer), or set TRAINER")


def run(arguments, quiet=False, leave_out=None):
    """Starts the trainer and returns its exit code. Shows its output without the line `leave_out`; with `quiet`, only if it
    fails."""
    command = [find(), *arguments]
    if not quiet:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as trainer:
            try:
                for line in trainer.stdout:
                    if line.rstrip("\n") != leave_out:
                        print(line, end="", flush=True)
            except BrokenPipeError:
                trainer.terminate()
                raise
        return trainer.returncode
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace")
    if done.returncode:
        raise Failure(f"the trainer stopped with exit {done.returncode}:\n{done.stdout.rstrip()}")
    return 0


def add_deck_arguments(parser):
    parser.add_argument("deck", metavar="DECK", help="TOML deck, as for the trainer")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="replace a key of the deck; repeatable")


def deck_arguments(options):
    return [options.deck] + [word for pair in options.set for word in ("--set", pair)]
