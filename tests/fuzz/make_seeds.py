#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the seeds of the fuzzers: small inputs, valid and nearly valid, in corpus/TARGET/seed_*. Deterministic.

    tests/fuzz/make_seeds.py        (Debian's python3 with numpy and PIL)

Other files of the corpus are inputs that once broke something; they stay.
"""
import io
import json
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

CORPUS = Path(__file__).parent / "corpus"


def write(target, name, content):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed_{name}").write_bytes(content.encode() if isinstance(content, str) else content)


# ---- decks: the text, then overrides behind zero bytes

GOOD = """format = 1
total_steps = 1_000
[tokenizer]
b = { kind = "bytes" }
s = { kind = "sentencepiece", path = "x.model" }
[data.train]
kind = "webdataset"
path = "d/train-{00..03}.tar"
fields = { image = "png", text = "txt", captions = "json:captions" }
preprocess = '''decode | resize(64) | value_range(-1, 1)
  | tokenize("b", max_len=24, eos="sticky") | keep("image", "labels")'''
[data.val]
path = "{a,b}.tar"
fields = { image = "jpg", text = "txt" }
preprocess = "@train"
[loader]
threads = 3
max_bad_sample_fraction = 1e-3
on_bad_sample = "substitute"
"""
MORE = """total_epochs = 2.5
[data]
h = { kind = "hdf5", path = "p.h5", fields = { image = "images: bytes", labels = "l: i32 [2, 4]" } }
f = { kind = "folder", path = "p", captions = "c.tsv" }
s = { kind = "synthetic" }
[schedule.default]
kind = "composite"
warmup_fraction = 0.1
[[schedule.default.part]]
kind = "cosine"
from_steps = 0
[[schedule.default.part]]
kind = "stair"
from_fraction = 0.5
at_steps = [10, 20]
mults = [0.5, 0.1]
[schedule.other]
kind = "polynomial"
power = 2
end = 1e-3
mult = 0.5
[checkpoint]
every_steps = 100
resume = "500"
[init]
dont_load = ["(.*/)?head/(kernel|bias)", "a[b-c]+\\\\d{2,3}"]
map = { "encoder" = "params/img" }
"""
BROKEN = """total_steps = "8"
total_examples = 0x1F
[data.train
path = 'x
[loader]
treads = 1979-05-27T07:32:00Z
threads = -1
prefetch = inf
a.b.c = [1, [2, {c = nan}], \"\"\"x\\u00e9
\"\"\"]
[[loader]]
"""
write("deck", "good", GOOD)
write("deck", "more", MORE)
write("deck", "broken", BROKEN)
write("deck", "valid_overrides", "total_steps = 3\0loader.threads=7\0data.t.kind=synthetic\0checkpoint.resume=\"5\"\0"
      "total_epochs=2\0schedule.default.kind=composite\0schedule.default.part.0.from_steps=0\0init.map={a='b'}")
write("deck", "overrides", "total_steps = 3\0loader.threads=7\0data.t.kind=synthetic\0checkpoint.resume=\"5\"\0"
      "schedule.default.kind=composite\0schedule.default.part.0.from_steps=0\0init.map={a='b'}\0total_steps=\0=x\0a b=1")
write("deck", "list_override", MORE + "\0schedule.default.part.1.mults=[1.0,2]\0schedule.default.part[2].kind=linear\0init.dont_load=[]")

# ---- strings of ops

for i, text in enumerate([
    'decode | resize(8) | value_range(-1, 1) | tokenize("b", max_len=6, eos="sticky") | keep("image", "labels")',
    'decode | resize_small(9, method="area") | central_crop([4, 5]) | flip_lr | clip_value_range',
    'decode(precise=True) | inception_crop(6, area_min=10, area_max=90.5, antialias=True) | vgg_value_range',
    'decode | resize_long(7, method="lanczos5") | random_crop(2) | pad_to_shape([9, 9, 3], 1, "both")',
    'choice(inkey="captions", outkey="text") | lower(key="text") | tokenize("b", 8, prefix="q: ", pad_value="</s>")',
    'coco_captions | onehot(12, key="label", on=0.9, off=-1) | onehot(10, "labels", "many", multi=False)',
    "copy('pixels', 'p') | reshape([12, 5], key='p') | drop('image') | randu('r') | choice(key='labels')",
    'resize((3, 2), "bicubic", inkey="pixels") | resize(5, key="values", method="mitchellcubic")',
    "value_range(0, 1, in_min=[0, 1, 2], in_max=[255.0, 2_55, 9e1], clip_values=True, inkey='pixels', outkey='o')",
    "a || decode | resize(-1,) | 'x' resise((1, [2, (3)]), None) | keep(\"im\\\"age\\n\" | randu(1e999)",
]):
    write("preprocess", f"{i:02}", text)

# ---- tar shards, plain and with a first byte of flags (tar.cpp)


def tar(members, fmt=tarfile.USTAR_FORMAT, prefix=b"", extra=b"", **pax):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=fmt, pax_headers=pax) as t:
        for name, content, *kind in members:
            info = tarfile.TarInfo(name)
            if kind:
                info.type, info.linkname = kind[0], "x"
            info.size = len(content)
            t.addfile(info, io.BytesIO(content))
    data = out.getvalue().rstrip(b"\0")
    data += bytes(-len(data) % 512) + bytes(1024)
    return prefix + data + extra


SHARD = [("a/1.png", b"png"), ("a/1.txt", b"text"), ("2.seg.png", b""), ("d", b"", tarfile.DIRTYPE)]
write("tar", "plain", tar(SHARD))
write("tar", "checked", tar(SHARD, prefix=b"c"))
write("tar", "gnu", tar([("n" * 120 + ".txt", b"x" * 600)], tarfile.GNU_FORMAT, b"c"))
write("tar", "pax", tar([("n" * 120 + "\xe9.txt", b"x")], tarfile.PAX_FORMAT, b"c", comment="y"))
write("tar", "link", tar([("1.png", b"", tarfile.SYMTYPE)], prefix=b"c"))
write("tar", "twice", tar([("1.png", b"1"), ("1.png", b"2")], prefix=b"c"))
write("tar", "path", tar([("../1.png", b"1")], prefix=b"c"))
write("tar", "cut", tar(SHARD)[:900])
write("tar", "after_end", tar(SHARD[:1], prefix=b"c", extra=b"x" * 512))


def text(s):
    return struct.pack("<q", len(s)) + s


write("tar", "index", b"i" + struct.pack("<q", 2) + text(b"a/1") + text(b"2") + struct.pack("<q", 2) + text(b"png") +
      text(b"txt") + struct.pack("<q", 3) + struct.pack("<qqq", 512, 3, 0) + struct.pack("<qqq", 1024, 4, 1) +
      struct.pack("<qqq", 2000, 40, 1 << 32))
write("tar", "index_empty", b"i" + struct.pack("<qqq", 0, 0, 0))
write("tar", "index_large", b"i" + struct.pack("<qq", 1 << 60, -1))

# ---- weights


def npy(array, version=None):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version)
    return out.getvalue()


def npz(members, compression=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as z:
        for name, content in members.items():
            z.writestr(zipfile.ZipInfo(name), content, compression)
    return out.getvalue()


ARRAYS = {
    "params/a/kernel.npy": npy(np.arange(6, dtype="<f4").reshape(2, 3)),
    "b.npy": npy(np.arange(3, dtype="<f8")),
    "c.npy": npy(np.arange(2, dtype="<f2"), (2, 0)),
    "d.npy": npy(np.zeros(2, "V2")),
    "e.npy": npy(np.int64(3)),
}
write("weights", "npz", npz(ARRAYS))
for name, compression in ("deflate", zipfile.ZIP_DEFLATED), ("bzip2", zipfile.ZIP_BZIP2), ("lzma", zipfile.ZIP_LZMA):
    write("weights", f"npz_{name}", npz({"a.npy": ARRAYS["params/a/kernel.npy"]}, compression))
write("weights", "npz_zeros", npz({"z.npy": npy(np.zeros(30_000, "<f4"))}, zipfile.ZIP_DEFLATED))
write("weights", "npz_fortran", npz({"f.npy": npy(np.asfortranarray(np.ones((2, 2), "<f4")))}))
write("weights", "npz_pickle", npz({"o.npy": npy(np.array([None]))}))
write("weights", "npz_other", npz({"readme.txt": b"x"}))
write("weights", "npz_cut", npz(ARRAYS)[:-30])
write("weights", "npy_header", "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }\n")
write("weights", "npy_struct", "{'descr': [('a', '<f4', (2,)), ('b', '|O')], 'fortran_order': True, 'shape': ()}")


def safetensors(entries, data, padding=0):
    header = (entries if isinstance(entries, str) else json.dumps(entries)).encode() + b" " * padding
    return struct.pack("<Q", len(header)) + header + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


GOOD_ST = {"__metadata__": {"format": "np"}, "a/kernel": entry("F32", [2, 3], 0, 24), "b": entry("BF16", [2], 24, 28),
           "c": entry("F16", [], 28, 30), "d": entry("I64", [1], 30, 38), "e": entry("F64", [0, 4], 38, 38)}
write("weights", "st", safetensors(GOOD_ST, bytes(range(38)), 3))
write("weights", "st_overlap", safetensors({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, bytes(6)))
write("weights", "st_outside", safetensors({"a": entry("F32", [1 << 40, 1 << 40], 0, 8)}, bytes(8)))
write("weights", "st_twice", safetensors('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8"}}', b"x"))
write("weights", "st_deep", safetensors('{"a":' + "[" * 40 + "]" * 40 + "}", b""))
write("weights", "st_short", struct.pack("<Q", 1 << 50) + b"{}")
for pattern in ("torch1.13_*", "torch1.0_training*", "torch2.15_marked*"):
    for path in sorted((CORPUS.parent.parent / "data/pth").glob(pattern + ".pth")):
        write("weights", path.stem, path.read_bytes())
write("weights", "pth_hostile", npz({"a/data.pkl": b"\x80\x02cposix\nsystem\n\x8c\x04true\x85R."}))

# ---- images


def picture(mode, size=(11, 9)):
    a = np.random.default_rng(3).integers(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    a[:, :, 0] = np.arange(size[0]) * 20
    return Image.fromarray(a, "RGBA").convert(mode) if mode not in ("CMYK", "I;16") else (
        Image.fromarray(a, "CMYK") if mode == "CMYK" else Image.fromarray(a[:, :, 0].astype(np.uint16) * 257))


def encoded(mode, fmt, size=(11, 9), **options):
    out = io.BytesIO()
    picture(mode, size).save(out, fmt, **options)
    return out.getvalue()


write("image", "jpg", encoded("RGB", "JPEG", quality=60))
write("image", "jpg_progressive", encoded("RGB", "JPEG", (19, 17), quality=30, progressive=True, subsampling=2))
write("image", "jpg_grey", encoded("L", "JPEG", quality=50))
write("image", "jpg_cmyk", encoded("CMYK", "JPEG", quality=50, restart_marker_blocks=1))
write("image", "jpg_cut", encoded("RGB", "JPEG", (30, 30), quality=40)[:-60])
for mode in ("RGB", "RGBA", "L", "LA", "P", "1", "I;16"):
    write("image", "png_" + mode.replace(";", "").lower(), encoded(mode, "PNG"))


def chunk(kind, content):
    import zlib
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width, height, depth, colours, rows, interlaced=0, *more):
    import zlib
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, interlaced)) +
            b"".join(more) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


write("image", "png_interlaced", png(4, 4, 8, 2, bytes(80), 1))
write("image", "png_2bit", png(5, 3, 2, 3, b"\0\x1b\x40" * 3, 0, chunk(b"PLTE", bytes(range(12))), chunk(b"tRNS", b"\0\x80")))
write("image", "png_16bit", png(2, 2, 16, 6, (b"\1" + bytes(16)) * 2))
write("image", "png_bomb", png(60_000, 60_000, 8, 2, bytes(100)))
write("image", "png_crc", encoded("RGB", "PNG", (2, 2))[:-20] + bytes(20))
write("image", "webp", encoded("RGB", "WEBP", quality=40))
write("image", "webp_lossless", encoded("RGBA", "WEBP", lossless=True))
write("image", "webp_alpha", encoded("RGBA", "WEBP", (16, 16), quality=20))
frames = [picture("P", (6 + i, 8 - i)).convert("P", palette=Image.Palette.ADAPTIVE, colors=4) for i in range(3)]
out = io.BytesIO()
frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], transparency=1, duration=10)
write("image", "gif_frames", out.getvalue())
write("image", "gif", encoded("L", "GIF", (5, 5)).replace(b"\0" * 50, b"", 1))
small = bytes.fromhex("47494638396103000200800000102030f0e0d02c000000000300020000020444183028003b")
write("image", "gif_small", small)
write("image", "gif_interlaced", small[:28] + b"\x40" + small[29:])
write("image", "gif_large", small[:24] + b"\xff\xff\xff\xff" + small[28:])
write("image", "bmp", b"BM" + bytes(40))

# ---- captions: the first byte picks the call

CAPTIONS = ["A red fox jumps over 12 dogs.", "", "\u00c9t\u00e9 \u4f60\u597d \U0001f600", "x" * 80, "  spaces\t\n and \r more ",
            "</s><pad><unk>\u2581", b"\xff\xfe\xc3(\xed\xa0\x80\xf4\x90\x80\x80", b"\0\1\x7f", "\u0041\u030a\u200d\ufb01\u00bd"]
for i, caption in enumerate(CAPTIONS):
    for call in (1, 8, 11, 17):
        write("tokenizer", f"{i}_{call:02}", bytes([call]) + (caption if isinstance(caption, bytes) else caption.encode()))
