# SPDX-License-Identifier: Apache-2.0
"""What the receivers of all packages have in common: the package itself, and whether its server can be reached."""
import importlib
import os
import socket
import sys
import urllib.parse

import console

WAIT_S = 3      # for a server to take a connection


def package(module, name):
    """Returns the imported package, or fails with how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise console.Failure(
            f"this needs the PyPI package {name}, which {sys.executable} does not have ({error}). Make an environment with the package:\n"
            f"  python3 -m venv publish-env && publish-env/bin/pip install {name}\n"
            f"  publish-env/bin/python3 {' '.join(sys.argv)}") from None


def reachable(address):
    """Returns true if something takes connections at the address of a server, or a proxy may know the way."""
    url = urllib.parse.urlsplit(address)
    if any(os.environ.get(name) for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY")):
        return True
    try:
        socket.create_connection((url.hostname, url.port or (80 if url.scheme == "http" else 443)), WAIT_S).close()
        return True
    except (OSError, TypeError, ValueError):
        return False


class Receiver:
    """Takes the rows of one published run. Subclasses speak to a package."""

    def __init__(self, place, project, offline):
        self.place, self.project, self.offline = place, project, offline

    def open(self, settings):
        """Makes or continues the published run, with the deck as its configuration; returns a line about where it is."""
        raise NotImplementedError

    def change(self, changed, step):
        """Takes keys of the deck that an attempt changed, which began at this step."""
        raise NotImplementedError

    def send(self, rows):
        """Takes rows of the feed."""
        raise NotImplementedError

    def close(self, state, numbers, texts):
        """Ends the published run in the state of the trainer's, with its summary; returns a line that says what to do next, or ""."""
        raise NotImplementedError


def names_of(row):
    """Returns {name: value} of a row as it is published: train/loss, eval/val/perplexity."""
    return {f"{row.group}/{name}": value for name, value in row.values.items()}
