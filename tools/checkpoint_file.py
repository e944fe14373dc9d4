# SPDX-License-Identifier: Apache-2.0
"""Reads checkpoints of the trainer and checks their checksums. Not a tool itself."""
import os
import struct
import sys

import console
import run_dir

os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")  # reading must not hold a lock against the run

try:
    import h5py
    import numpy as np
    import xxhash
except ImportError as missing:
    package = {"h5py": "python3-h5py", "numpy": "python3-numpy", "xxhash": "python3-xxhash"}.get(missing.name, missing.name)
    sys.exit(f"error: {missing}; install it with: apt-get install {package}")

BLOCK = 1 << 20    # bytes that share a checksum
HEADER = 4096      # text before the HDF5 file begins
TITLE = b"trainer checkpoint"


class Refused(Exception):
    """A damaged checkpoint; the message names the damage."""


def checkpoint_of(path):
    """Returns the file itself, or the newest checkpoint of a run directory or of its folder checkpoints/."""
    if os.path.isfile(path):
        return path
    if not os.path.isdir(path):
        raise console.Failure(f"{path}: no such file")
    run = os.path.dirname(os.path.abspath(path)) if os.path.basename(os.path.abspath(path)) == "checkpoints" else path
    files = run_dir.checkpoints(run)
    if not files:
        raise console.Failure(f"{path} is a folder without checkpoints: name a checkpoint, or a run directory that has some")
    print(f"file                     {files[-1]}", file=sys.stderr)
    return files[-1]


def xxh3(data):
    return xxhash.xxh3_64_intdigest(data)


def hash_of(hashes):
    return xxh3(struct.pack(f"<{len(hashes)}Q", *hashes))


def read_header(path):
    """Reads and checks the text at the start of the file; see src/checkpoint/header.hpp."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        text = file.read(HEADER)
        if len(text) < HEADER:
            raise Refused(f"it is cut: {size} bytes, shorter than its header")
        if not text.strip(b"\0"):
            raise Refused("it was never finished (no header)")
        if not text.startswith(TITLE):
            raise Refused("it does not begin as a checkpoint of this program")
        own = text.find(b"header_xxh3=")
        lines = dict(line.split("=", 1) for line in text[:own].decode("utf-8", "replace").splitlines() if "=" in line)
        if own < 0 or text[own + 12:own + 28].decode("ascii", "replace") != f"{xxh3(text[:own]):016x}":
            raise Refused("its header is damaged (checksum)")
        if size != int(lines["file_bytes"]):
            raise Refused(f"it has {size} bytes, {lines['file_bytes']} were written")
        hashes = []
        for piece in lines["structure"].split():
            begin, length = map(int, piece.split("+"))
            file.seek(begin)
            hashes.append(xxh3(file.read(length)))
        if f"{hash_of(hashes):016x}" != lines["structure_xxh3"]:
            raise Refused("its HDF5 structure is damaged (checksum of groups, headers and attributes)")
        begin, length = map(int, lines["index"].split("+"))
        file.seek(begin)
        if f"{xxh3(file.read(length)):016x}" != lines["index_xxh3"]:
            raise Refused("/checksums/index is damaged (checksum)")
    return lines


def datasets(file):
    """Returns the paths of all datasets with data of the run, in the order of the checksums."""
    names = []
    file.visititems(lambda name, item: names.append("/" + name) if isinstance(item, h5py.Dataset) else None)
    return sorted((n for n in names if not n.startswith("/checksums/")), key=lambda n: n.encode())


def text_of(value):
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value


def kind(dataset):
    if dataset.dtype.kind == "S":
        return "text"
    names = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16"}
    name = dataset.attrs.get("dtype", names.get(dataset.dtype.name, dataset.dtype.name))
    return str(text_of(name))


def values(dataset):
    """Returns the values as float64; bf16 and f16 are stored as their bits."""
    raw = dataset[()]
    if kind(dataset) == "bf16":
        return (np.asarray(raw, np.uint32) << 16).view(np.float32).astype(np.float64)
    if kind(dataset) == "f16":
        return np.asarray(raw, np.uint16).view(np.float16).astype(np.float64)
    return np.asarray(raw, np.float64)


class Checksums:
    """The checksums of an open checkpoint; the list itself has been checked."""

    def __init__(self, file):
        self.names = datasets(file)
        tensors, self.blocks = file["/checksums/tensors"][()], file["/checksums/blocks"][()]
        if len(tensors) != len(self.names):
            raise Refused("its checksums do not belong to its datasets")
        if hash_of(tensors) != file["/checksums/file"][0]:
            raise Refused("its list of tensor checksums is damaged")
        self.places, at = {}, 0  # name: its first block, the number of its blocks, the checksum of their checksums
        for name, wanted in zip(self.names, tensors):
            count = -(-file[name].id.get_storage_size() // BLOCK)
            self.places[name] = (at, count, wanted)
            at += count
        self.total = at  # blocks

    def check(self, data, raw):
        """Compares the bytes of a dataset with their checksums. `raw` is the open file."""
        first, count, wanted = self.places[data.name]
        size, offset = data.id.get_storage_size(), data.id.get_offset()
        sums = self.blocks[first:first + count]
        if hash_of(sums) != wanted:
            raise Refused(f"the block checksums of {data.name} are damaged")
        for i in range(count):
            raw.seek(offset + i * BLOCK)
            if xxh3(raw.read(min(BLOCK, size - i * BLOCK))) != sums[i]:
                raise Refused(f"{data.name} is damaged (checksum of bytes {offset + i * BLOCK} and following of the file)")
