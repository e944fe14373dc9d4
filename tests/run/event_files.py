# SPDX-License-Identifier: Apache-2.0
"""Reads event files of TensorBoard as its loader does: checksums, torn ends, sessions that replace later steps."""
import glob
import os
import struct

TABLE = []
for byte in range(256):
    crc = byte
    for _ in range(8):
        crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    TABLE.append(crc)


def masked(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    """Returns (records of a file, true if a torn one follows). A wrong checksum is an error, a missing end is none."""
    with open(path, "rb") as f:
        data = f.read()
    found, at = [], 0
    while at < len(data):
        if at + 12 > len(data):
            return found, True
        length, check = struct.unpack_from("<QI", data, at)
        assert check == masked(data[at:at + 8]), f"{path}: wrong length at {at}"
        if at + 16 + length > len(data):
            return found, True
        text = data[at + 12:at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(text), f"{path}: wrong record at {at}"
        found.append(text)
        at += 16 + length
    return found, False


def varint(data, at):
    value, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def message(data):
    """Returns {field: values} of an encoded message."""
    out, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif key & 7 == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            assert key & 7 == 2, key
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        out.setdefault(key >> 3, []).append(value)
    return out


def reals(data):
    return list(struct.unpack(f"<{len(data) // 8}d", data))


def value_of(fields):
    """Returns (kind, value) of a Summary.Value."""
    if 2 in fields:
        return "scalar", fields[2][0]
    if 4 in fields:
        image = message(fields[4][0])
        return "image", (image[1][0], image[2][0], image[3][0], image[4][0])
    if 5 in fields:
        histogram = message(fields[5][0])
        return "histogram", {"min": histogram[1][0], "max": histogram[2][0], "num": histogram[3][0], "sum": histogram[4][0],
                             "limits": reals(histogram[6][0]), "counts": reals(histogram[7][0])}
    tensor = message(fields[8][0])
    assert message(message(fields[9][0])[1][0])[1] == [b"text"], fields
    assert tensor[1] == [7] and message(message(tensor[2][0])[2][0])[1] == [1], tensor
    return "text", tensor[8][0].decode()


def files(run):
    return sorted(glob.glob(os.path.join(glob.escape(run), "tensorboard", "*tfevents*")))


def events(run):
    """Returns {tag: [(step, kind, value)]} of what counts after all sessions."""
    found = []
    for path in files(run):
        texts, _ = records(path)
        assert message(texts[0])[3] == [b"brain.Event:2"], path
        for text in texts[1:]:
            event = message(text)
            step = event[2][0]
            if 7 in event:      # a session starts
                assert message(event[7][0])[1] == [1], event
                found = [one for one in found if one[1] < step]
                continue
            for value in message(event[5][0])[1]:
                fields = message(value)
                found.append((fields[1][0].decode(), step, *value_of(fields)))
    out = {}
    for tag, *rest in found:
        out.setdefault(tag, []).append(tuple(rest))
    return out
