# SPDX-License-Identifier: Apache-2.0
"""Ends the tools with the right exit code, and formats numbers and times. Not a tool itself."""
import argparse
import codecs
import contextlib
import math
import os
import re
import signal
import sys


class Failure(Exception):
    """A message for the user; no traceback."""


def escaped(error):
    """Shows what a text file or a terminal cannot hold: bytes of a file name that is not UTF-8 as \\xe9, as the trainer does, and
    characters that the encoding lacks as \\u2026."""
    def one(c):
        return f"\\x{ord(c) - 0xDC00:02x}" if 0xDC80 <= ord(c) <= 0xDCFF else c.encode("ascii", "backslashreplace").decode()
    return "".join(map(one, error.object[error.start:error.end])), error.end


codecs.register_error("escaped", escaped)


def shown(name):
    """Returns a file name for pictures and pages: bytes that are not UTF-8 as \\xe9."""
    return name.encode(errors="escaped").decode()


def run(main, failed=1):
    """Runs a tool's main() and ends the process with the exit code that it returns (None: 0).

    A Failure or an OSError becomes one line on stderr and exit code `failed`. A closed pipe (`tool | head`) and Ctrl-C end
    the tool without a message, after all `with` and `finally` blocks, with the exit codes of these signals.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="escaped")
    try:
        try:
            code = main() or 0
        except SystemExit as end:  # argparse raises it, for example after --help
            code = end.code
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes stdout once more at its end; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except (Failure, OSError, UnicodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        code = failed
    sys.exit(code)


def path(text):
    """Checks a path of the command line, as argparse's `type`: what only a shell replaces would become the name of a folder,
    and an address leads to no file."""
    if re.match(r"~|\$[A-Za-z_{]", text):
        raise argparse.ArgumentTypeError(
            f"'{text}' begins with what only a shell replaces: write the path itself, or './{text}' for this name")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
        raise argparse.ArgumentTypeError(f"'{text}' is an address, and the tools read and write files: write a path")
    return text


@contextlib.contextmanager
def replacing(path):
    """Gives the name of a file to write, which takes the place of `path` once it is whole. After an error nothing is left."""
    partial = f"{path}.{os.getpid()}.partial"
    try:
        yield partial
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def write(path, text):
    """Writes a text file at once or not at all."""
    with replacing(path) as partial, open(partial, "w", encoding="utf-8", errors="escaped") as file:
        file.write(text)


def span(seconds):
    """Returns a time rounded down to its unit: "59s", "8m", "1h6m", "2d7h33m"."""
    seconds = max(0, int(seconds))
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if seconds < 60:
        return f"{seconds}s"
    return (f"{days}d" if days else "") + (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes or seconds < 3600 else "")


def number(value):
    """Returns a float with six digits; the files have all digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def short(value):
    """Returns a number for people, with four digits."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def duration(seconds):
    """Returns a time for people: 0.35 s, 12.1 s, 4 min 20 s, 3 h 5 min."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes = int(seconds + 0.5) // 60
    if minutes < 60:
        return f"{minutes} min {int(seconds + 0.5) % 60} s"
    return f"{minutes // 60:,} h {minutes % 60} min"
