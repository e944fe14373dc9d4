# SPDX-License-Identifier: Apache-2.0
"""Reads text files from their end. Not a tool itself."""
import os

BLOCK = 1 << 16     # bytes that are read together


def backwards(path):
    """Yields the lines of a file as bytes, newest first. Reads no more of a long file than is asked for; raises OSError."""
    with open(path, "rb") as file:
        at, rest = file.seek(0, os.SEEK_END), b""
        while at > 0:
            begin = max(0, at - BLOCK)
            file.seek(begin)
            rest, *whole = (file.read(at - begin) + rest).split(b"\n")
            yield from reversed(whole)
            at = begin
        yield rest
