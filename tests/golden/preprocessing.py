# SPDX-License-Identifier: Apache-2.0
"""Published preprocessing of made-up pictures and captions."""
import os

from published import OUT  # before JAX

import h5py
import numpy as np

from golden_files import LIBVER, put
from made_inputs import photo, sentences

PP = {  # name: (input file, preprocessing string)
    "decode_jpeg420": ("a_420_61x47.jpg", "decode"), "decode_jpeg420_precise": ("a_420_61x47.jpg", "decode(precise=True)"),
    "decode_jpeg444": ("b_444_40x56.jpg", "decode"), "decode_jpeg444_precise": ("b_444_40x56.jpg", "decode(precise=True)"),
    "decode_jpeg_gray": ("c_gray_33x29.jpg", "decode"), "decode_jpeg_progressive": ("d_progressive_50x50.jpg", "decode"),
    "decode_png": ("e_rgb_37x53.png", "decode"), "decode_png_gray": ("f_gray_21x34.png", "decode"),
    "decode_png_rgba": ("g_rgba_24x24.png", "decode"), "decode_png_palette": ("h_palette_26x31.png", "decode"),
    "decode_gif": ("i_two_frames_20x30.gif", "decode"),
    "resize_down": ("e_rgb_37x53.png", "decode|resize(24)"), "resize_up": ("e_rgb_37x53.png", "decode|resize(64)"),
    "resize_rect": ("e_rgb_37x53.png", "decode|resize([24,16])"), "resize_same": ("g_rgba_24x24.png", "decode|resize(24)"),
    "resize_one_axis": ("e_rgb_37x53.png", "decode|resize((37,20))"), "resize_tiny": ("e_rgb_37x53.png", "decode|resize(1)"),
    "resize_antialias": ("e_rgb_37x53.png", "decode|resize(17, antialias=True)"),
    "resize_antialias_up": ("e_rgb_37x53.png", "decode|resize(60, antialias=True)"),
    "resize_nearest": ("e_rgb_37x53.png", 'decode|resize(20, method="nearest")'),
    "resize_area": ("e_rgb_37x53.png", 'decode|resize(20, method="area")'),
    "resize_bicubic": ("e_rgb_37x53.png", 'decode|resize(20, method="bicubic")'),
    "resize_float": ("e_rgb_37x53.png", "decode|value_range(0,1)|resize(24)"),
    "resize_small": ("e_rgb_37x53.png", "decode|resize_small(16)"),
    "resize_small_up": ("f_gray_21x34.png", "decode|resize_small(30)"),
    "resize_small_bilinear": ("e_rgb_37x53.png", 'decode|resize_small(16, method="bilinear")'),
    "resize_small_antialias": ("e_rgb_37x53.png", 'decode|resize_small(16, method="bilinear", antialias=True)'),
    "resize_long": ("e_rgb_37x53.png", "decode|resize_long(20)"),
    "central_crop": ("e_rgb_37x53.png", "decode|central_crop(20)"),
    "central_crop_rect": ("e_rgb_37x53.png", "decode|central_crop((30,11))"),
    "central_crop_largest": ("e_rgb_37x53.png", "decode|central_crop"),
    "value_range": ("e_rgb_37x53.png", "decode|value_range(-1,1)"), "value_range_01": ("e_rgb_37x53.png", "decode|value_range(0,1)"),
    "value_range_clip": ("e_rgb_37x53.png", "decode|value_range(-1, 1, 50, 200, clip_values=True)"),
    "value_range_channels": ("e_rgb_37x53.png", "decode|value_range(0, 2, [10,20,30], [200,210,250])"),
    "vgg_value_range": ("f_gray_21x34.png", "decode|vgg_value_range"), "clip_value_range": ("f_gray_21x34.png", "decode|clip_value_range"),
    "pretrain_image": ("a_420_61x47.jpg", "decode|resize(32)|value_range(-1,1)"),
    "fewshot_image": ("b_444_40x56.jpg", "decode|resize(36)|central_crop(32)|value_range(-1,1)"),
    "keep_copy_drop": ("g_rgba_24x24.png", 'decode|copy("image","b")|resize(6, key="b")|drop("image")|copy("b","image")|keep("image")'),
    "pad_to_shape": ("g_rgba_24x24.png", 'decode|resize(5)|pad_to_shape((8,6,3), pad_value=7, where="both")'),
    "reshape_flatten": ("g_rgba_24x24.png", "decode|resize(4)|reshape((16,3))"),
}


def run_pp(out, table):
  import tensorflow as tf
  from big_vision.pp import builder, ops_general, ops_image, ops_text  # registers the ops
  with h5py.File(os.path.join(OUT, out), "w", libver=LIBVER) as f:
    for k, (file, pp) in table.items():
      with open(os.path.join(OUT, "images", file), "rb") as g:
        data = g.read()
      x = builder.get_preprocess_fn(pp, log_data=False)({"image": tf.constant(data)})["image"].numpy()
      tol = 0.0 if x.dtype == np.uint8 else 2e-6 * max(1.0, float(np.abs(x).max()))
      if "resize" in pp and "float" not in k:
        # truncation to uint8: a value next to an integer may fall on the other side, so one level
        # of 255
        tol = 1.0 if x.dtype == np.uint8 else 2 / 255 + 1e-6
      put(f, k, x, file=file, pp=pp, tol=tol)
  print(out, len(table))


def preprocess():
  from PIL import Image
  d = os.path.join(OUT, "images")
  os.makedirs(d, exist_ok=True)
  save = lambda a, n, **kw: Image.fromarray(a).save(os.path.join(d, n), **kw)
  save(photo(1, 61, 47), "a_420_61x47.jpg", quality=88, subsampling=2)
  save(photo(2, 40, 56), "b_444_40x56.jpg", quality=92, subsampling=0)
  save(photo(3, 33, 29, 1)[..., 0], "c_gray_33x29.jpg", quality=85)
  save(photo(4, 50, 50), "d_progressive_50x50.jpg", quality=80, subsampling=2, progressive=True)
  save(photo(5, 37, 53), "e_rgb_37x53.png", optimize=True)
  save(photo(6, 21, 34, 1)[..., 0], "f_gray_21x34.png")
  save(photo(7, 24, 24, 4), "g_rgba_24x24.png")
  Image.fromarray(photo(8, 26, 31)).quantize(32).save(os.path.join(d, "h_palette_26x31.png"))
  two = [Image.fromarray(photo(s, 20, 30)).quantize(64) for s in (9, 10)]
  two[0].save(os.path.join(d, "i_two_frames_20x30.gif"), save_all=True, append_images=two[1:])
  run_pp("preprocess.h5", PP)


def held_resize():
  from PIL import Image
  d = os.path.join(OUT, "images")
  os.makedirs(d, exist_ok=True)
  Image.fromarray(photo(101, 71, 44)).save(os.path.join(d, "held_71x44.png"))
  Image.fromarray(photo(102, 19, 83)).save(os.path.join(d, "held_19x83.jpg"), quality=90, subsampling=2)
  run_pp("held_resize.h5", {
      f"{n}_{i}": (file, pp) for n, file in (("png", "held_71x44.png"), ("jpg", "held_19x83.jpg")) for i, pp in enumerate((
          "decode", "decode|resize(32)", "decode|resize((13,90))", "decode|resize(23, antialias=True)", "decode|resize_small(18)",
          "decode|resize_small(25, method='bilinear')", "decode|resize(33)|central_crop(21)|value_range(-1,1)"))})


def tokenizer():
  import sentencepiece as spm
  import tensorflow as tf
  from big_vision.pp import builder, ops_general, ops_image, ops_text
  d = os.path.join(OUT, "tokenizer")
  os.makedirs(d, exist_ok=True)
  os.chdir(OUT)
  text = sentences()
  with open("tokenizer/sentences.txt", "w") as f:
    f.write("\n".join(text) + "\n")
  for stem, kind, rule, size in (("unigram", "unigram", "nmt_nfkc", 168), ("bpe", "bpe", "identity", 240)):
    spm.SentencePieceTrainer.train(
        input="tokenizer/sentences.txt", model_prefix=f"tokenizer/{stem}", vocab_size=size, model_type=kind, normalization_rule_name=rule,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, pad_piece="<pad>", eos_piece="</s>", unk_piece="<unk>", character_coverage=0.995,
        num_threads=1, minloglevel=2)
    os.remove(f"tokenizer/{stem}.vocab")
  probe = text[:30] + text[190:] + ["", " ", "two  spaces", " lead and trail ", "UPPER Case", "ΑΒΓ unknown ☃", "ﬁne ligature", "Ｆｕｌｌ width",
                                    "word " * 40, "x", "tab\tand\nnewline", "İstanbul É"]
  ops = [dict(max_len=12, eos="sticky"), dict(max_len=12, eos="yes"), dict(max_len=12, eos="none"), dict(max_len=5, eos="sticky"),
         dict(max_len=12, eos="sticky", lower=False), dict(max_len=12, eos="sticky", pad_value=1), dict(max_len=64, eos="sticky"),
         dict(max_len=1, eos="sticky"), dict(max_len=16, eos="yes", model="bpe")]
  with h5py.File("tokenizer.h5", "w", libver=LIBVER) as f:
    f.create_dataset("text", data=np.array([t.encode() for t in probe], dtype=h5py.string_dtype()), track_times=False)
    for i, o in enumerate(ops):
      o = {"model": "unigram", **o}
      o["model"] = f"tokenizer/{o['model']}.model"
      arg = ", ".join(f"{k}={v!r}" for k, v in o.items())
      pp = f'tokenize({arg}, inkey="text", outkey="labels")'
      fn = builder.get_preprocess_fn(pp, log_data=False)
      put(f, f"op{i}", np.stack([fn({"text": tf.constant(t)})["labels"].numpy() for t in probe]), pp=pp)
  print("tokenizer.h5", len(probe), "texts")
