#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests own data: shards of img2dataset, missing images, and tables of captions. The trainer and
the packer must read the same samples.

The deck's tables of inputs/README.md are used; docs_test.py runs that page's commands.
"""
import csv
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import unittest

import h5py
import numpy as np
from PIL import Image

import harness

WORDS = ["a red house", "the small cat", "two birds on a wire", "blue water", "an old tree by the road"]
FORMATS = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP"}


def image(seed, extension):
    """Returns an image of some size in the format of the extension."""
    rng = np.random.default_rng(seed)
    size = (20 + seed % 7, 24 + seed % 5)
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (*size, 3), np.uint8)).save(out, FORMATS[extension])
    return out.getvalue()


def shards_of_the_page():
    """Returns the deck's tables for shards of img2dataset from inputs/README.md."""
    with open(f"{harness.SOURCE}/inputs/README.md", encoding="utf-8") as f:
        section = re.search(r"^## 5\..*?(?=^## 6\.)", f.read(), re.S | re.M)[0]
    return re.search(r"^```toml run\n(.*?)^```", section, re.S | re.M)[1]


class OwnData(harness.RunTest):
    def write(self, name, data):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())

    def own_folder(self, samples=60):
        """Makes data/own as the page has it: images of every format, a TSV with a header."""
        rows = ["filepath\ttitle"]
        for i in range(samples):
            extension = sorted(FORMATS)[i % 4]
            self.write(f"data/own/photos/{i:04}.{extension}", image(i, extension))
            rows += [f"photos/{i:04}.{extension}\t{WORDS[(i + k) % 5]}" for k in range(1 + i % 2)]
        self.write("data/own/captions.tsv", "\n".join(rows) + "\n")

    def project(self):
        """Makes the project's folder for the page's commands, and its deck with a model of a few parameters."""
        os.makedirs(f"{self.folder}/build")
        os.makedirs(f"{self.folder}/inputs")
        os.symlink(harness.TRAINER, f"{self.folder}/build/trainer")
        os.symlink(f"{harness.SOURCE}/tools", f"{self.folder}/tools")
        with open(f"{harness.SOURCE}/inputs/own.toml", encoding="utf-8") as f:
            deck = f.read()
        for old, new in (("depth = 4, width = 128, mlp = 512, heads = 4", "depth = 1, width = 32, mlp = 48, heads = 2"),
                         ("depth = 2, bias", "depth = 1, bias")):
            self.assertEqual(deck.count(old), 1, old)
            deck = deck.replace(old, new)
        self.write("inputs/own.toml", deck)
        return deck

    def command(self, line):
        done = subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD,
                              cwd=self.folder, stdin=subprocess.DEVNULL, env={**os.environ, "TRAINER": f"{self.folder}/build/trainer"})
        self.assertEqual(done.returncode, 0, f"$ {line}\n{done.stdout}")
        return done.stdout

    def test_shards_of_img2dataset(self):
        deck = self.project()
        for shard in range(3):
            os.makedirs(f"{self.folder}/data/shards", exist_ok=True)
            with tarfile.open(f"{self.folder}/data/shards/{shard:05}.tar", "w") as tar:
                for i in range(20 * shard, 20 * shard + 20):
                    extension = sorted(FORMATS)[i % 4]
                    for member, data in ((extension, image(i, extension)), ("json", b'{"status": "success"}'),
                                         ("txt", WORDS[i % 5].encode())):
                        harness.add_member(tar, f"{i:09}.{member}", data)
            self.write(f"data/shards/{shard:05}_stats.json", "{}")
        deck = re.sub(r"\[data\.train\].*?(?=\n\[eval\])", lambda _: shards_of_the_page(), deck, flags=re.S)
        self.write("inputs/own.toml", deck)
        for attempt in range(2):  # the second time, the shards have indexes
            self.command("mpirun -np 2 build/trainer inputs/own.toml --set train.total_steps=3")
        self.assertIn("44 of 60 samples of 3 tars", self.command("tools/index_dataset inputs/own.toml train"))
        # One extension for all images is refused before the first step, with a correct line.
        self.expect(4, "field 'image': 45 of 60 samples have no member '.jpg'", 'image = "jpg;jpeg;png;webp"', args=[
            "inputs/own.toml", "--set", 'data.train.fields={image="jpg", text="txt"}', "--dir", "runs/refused"])
        self.expect(4, "no file matches 'data/shards/*.tra'", args=[
            "inputs/own.toml", "--set", "data.train.path=data/shards/*.tra", "--dir", "runs/refused"])
        # A new shard makes another data set, so the run does not continue without permission.
        self.command("cp data/shards/00000.tar data/shards/00003.tar")
        self.expect(2, "train.data", args=["inputs/own.toml", "--set", "train.total_steps=4"])

    def test_missing_images(self):
        self.own_folder()
        self.project()
        for i in (3, 7):
            os.remove(f"{self.folder}/data/own/photos/{i:04}.webp")
        self.expect(4, "no such file for 2 of 60 images: photos/0003.webp, photos/0007.webp", "substitute", ranks=2,
                    args=["inputs/own.toml"])
        self.assertNotIn("step=1 ", self.output)
        self.expect(0, "no such file for 2 of 60 images: photos/0003.webp, photos/0007.webp (bad samples)", ranks=2, args=[
            "inputs/own.toml", "--set", "train.total_steps=5", "--set", "loader.on_bad_sample=substitute",
            "--set", "loader.max_bad_sample_fraction=0.1"])

    # ------------------------------------------------------------------------------------------------ the same rules twice

    SHOW = """decode | resize(16) | value_range(-1, 1) | {choose}
              | tokenize("b", max_len=40, eos="sticky", inkey="text", outkey="labels") | keep("image", "labels")"""

    def shown(self, name, table, choose):
        """Returns key, caption and pixels of every sample in order, as the trainer reads
        [data.train]."""
        text = self.good.replace("vocab_size       = 400", "vocab_size       = 259").replace("seq_len          = 12", "seq_len = 40")
        data = f"[data.train]\n{table}\npreprocess = '''{self.SHOW.format(choose=choose)}'''\n"
        text = re.sub(r"\[data\.train\].*?(?=\n\[eval)", lambda _: data, text, flags=re.S) + '\n[tokenizer.b]\nkind = "bytes"\n'
        self.expect(0, args=[self.deck(text, f"{name}.toml"), "--mode", "show", "--dir", f"{self.folder}/{name}",
                             "--set", "show.data=train", "--set", "show.examples=6"])
        with h5py.File(f"{self.folder}/{name}/show.h5") as f:
            examples = json.loads(f["examples"][()])
            return [e["caption"] for e in examples], f["model/image"][()], [e["key"] for e in examples]

    def packed(self, *args):
        """Returns the table that the packer prints, and the op that makes its captions one text."""
        done = subprocess.run([f"{harness.SOURCE}/tools/pack_dataset", *args], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        table = re.search(r'^kind.*?^fields[^\n]*', done.stdout, re.S | re.M)[0].replace('"out', f'"{self.folder}/out')
        return table, 'choice(inkey="captions", outkey="text")' if "captions" in table else 'copy("text", "unused")'

    def test_trainer_and_packer_read_the_same(self):
        quoted = io.StringIO(newline="")
        writer = csv.writer(quoted)
        writer.writerows([("note", "Title", "File_Name"), ("", "a, b", "2.png"), ("x", 'says "hi"\nand more', "0.png"),
                          ("", "", "sub/5.png"), ('"', " spaces ", "3.png"), ("", "t\tab", "1.png"), ("", "last", "4.png")])
        names = [f"{i}.png" for i in range(5)] + ["sub/5.png"]
        for i, name in enumerate(names):
            self.write(f"in/{name}", harness.png(i))
        written = io.StringIO(newline="")
        csv.writer(written, dialect="excel-tab").writerows(
            [(name, text) for name, text in zip(names, ('a 12" record', "two\r\nlines\n", "t\tab", "plain", '"all"', "a\u2028break"))])
        lines = [{"file_name": name, "text": f"of\n{name}", "score": float("nan")} for name in names]
        lines[2]["text"] = 7.0
        several = "".join(f"{name}\t{word} {name}\n" for word in ("one", "two") for name in reversed(names))
        tables = {
            "plain.tsv": "".join(f'{name}\tsays "{name}"\n' for name in reversed(names)),
            "tabs.tsv": "".join(f"{name}\ta\ttab \r\n" for name in reversed(names)) + "\n",
            "empty.tsv": "".join(f"{name}\t{'' if name[0] in '24' else name}\n" for name in names),
            "header.tsv": "title\turl\tpath\n" + "".join(f"of {name}\thttp://x\t{name}\n" for name in reversed(names)),
            "several.tsv": several,
            "bom.csv": "\ufeffimage,caption\r\n" + "".join(f"{name},of {name}\r\n" for name in reversed(names)),
            "written.tsv": written.getvalue(),
            "open.tsv": "".join(f'{name}\t"open" {name}\rand "shut"\n' for name in names[:4])
                        + f'{names[4]}\t"says ""hi"""\n{names[5]}\t"all"\n',
            "lines.jsonl": "\ufeff" + "\n".join(json.dumps(line) for line in lines),
            "quoted.csv": quoted.getvalue(),
            "keys.csv": "pic,blurb,text\n" + "".join(f"{name},of {name},no\n" for name in reversed(names)),
            "COCO.JSON": json.dumps({"images": [{"id": f"{i}" if i else 0.0, "file_name": n, "score": float("inf")}
                                                for i, n in enumerate([*names, "9.png"])],
                                     "annotations": [{"image_id": i, "caption": f" of\n\r{i}\n"} for i in (4, 2, 0, 5, 1, 3, 2)]}),
        }
        captions = {}
        for name, text in tables.items():
            with self.subTest(name):
                self.write(f"in/{name}", text)
                keys = {"image_column": "pic", "caption_column": "blurb"} if name == "keys.csv" else {}
                table = f'kind = "folder"\ncaptions = "{self.folder}/in/{name}"\n'
                table += "".join(f'{key} = "{value}"\n' for key, value in keys.items())
                options = [word for key, value in keys.items() for word in ("--" + key.replace("_", "-"), value)]
                want = self.shown("read", table, 'choice(inkey="captions", outkey="text")')
                captions[name] = want[0]
                places = [["in/" + name]]
                # also with the images in another, named folder
                if name in ("plain.tsv", "quoted.csv", "COCO.JSON"):
                    self.write(f"elsewhere/{name}", text)
                    places.append(["in", "--captions", "elsewhere/" + name])
                    moved = table.replace("/in/", "/elsewhere/") + f'path = "{self.folder}/in"\n'
                    again = self.shown("moved", moved, 'choice(inkey="captions", outkey="text")')
                    self.assertEqual((again[0], again[2]), (want[0], want[2]))
                for source, *more in places:
                    got = self.shown("pack", *self.packed(source, "out", *more, *options))
                    self.assertEqual(got[0], want[0])
                    np.testing.assert_array_equal(got[1], want[1])
                    shutil.rmtree(f"{self.folder}/out")
        self.assertEqual(captions["quoted.csv"], ["a, b", 'says "hi" and more', "", " spaces ", "t\tab", "last"])
        self.assertEqual(captions["tabs.tsv"], ["a\ttab "] * 6)
        self.assertEqual(captions["written.tsv"], ['a 12" record', "two lines", "t\tab", "plain", '"all"', "a break"])
        self.assertEqual(captions["open.tsv"][3:], ['"open" 3.png and "shut"', 'says "hi"', '"all"'])
        self.assertEqual(captions["lines.jsonl"], ["of 0.png", "of 1.png", "7", "of 3.png", "of 4.png", "of sub/5.png"])
        self.assertEqual(captions["COCO.JSON"], [" of 4", " of 2", " of 0", " of 5", " of 1", " of 3"])
        self.assertEqual(captions["keys.csv"][0], "of sub/5.png")
        self.assertEqual([c[:3] for c in captions["several.tsv"]].count("one"), 6 - [c[:3] for c in captions["several.tsv"]].count("two"))

    def test_tables_that_both_refuse(self):
        self.write("in/a.png", harness.png(1))
        for name, text, words in (("a.csv", "image,title,text\na.png,x,y\n", "could both be meant"),
                                  ("b.csv", "image,caption\na.png,\"x\n", ":"),
                                  ("c.csv", "a.png,x,y\n", "3 c"),
                                  ("d.tsv", "caption\tpath\nx\n", "1 c"),
                                  ("e.tsv", "../in/a.png\tx\n", "leads out"),
                                  ("f.tsv", f"{self.folder}/in/a.png\tx\n", "absolute"),
                                  ("g.tsv", "none.png\tx\n", "none.png"),
                                  ("h.tsv", "pic\tblurb\na.png\tx\n", "pic")):
            with self.subTest(name):
                self.write(f"in/{name}", text)
                done = subprocess.run([f"{harness.SOURCE}/tools/pack_dataset", f"in/{name}", "out"], cwd=self.folder, capture_output=True,
                                      text=True)
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertIn(words, done.stderr)
                data = f'[data.own]\nkind = "folder"\ncaptions = "{self.folder}/in/{name}"\n'
                data += 'preprocess = \'\'\'decode | resize(16) | value_range(-1, 1) | choice(inkey="captions", outkey="text")\n' \
                        '| tokenize("words", max_len=12, eos="sticky") | keep("image", "labels")\'\'\'\n'
                self.expect(4, words, args=[self.deck(self.good + data), "--set", "train.data=own", "--dir", f"{self.folder}/no"])


harness.main()
