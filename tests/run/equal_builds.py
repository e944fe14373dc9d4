#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two builds of the program to the last bit: a small deck for each kind of model, trained on 1, 2 and 4 ranks by both, then
evaluated, captioned or extracted by both, and continued by the second build from the first one's run directory.

  . tools/packages.sh; mpi_environment
  LD_PRELOAD=build/tests/librest.so /usr/bin/python3 tests/run/equal_builds.py BEFORE/trainer AFTER/trainer [case ...] [--ranks 1,2]
    [--list] [--keep FOLDER]

Compared are tensors of checkpoints, measures of steps, evaluations, and files of caption and extract. Times and memory may differ.
A case that the first build refuses is reported as such, and makes the script fail.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

import h5py

STEPS, MORE = 6, 8  # steps of both builds, and where the continued run ends
MEASURES = re.compile(r"^(step|l2_.*|clip.*|schedule.*|.*loss.*|.*_top1|accuracy|.*nats.*|epoch_mean.*)$")
APART = re.compile(r"^(eval_s|.*_ms|ms|from|time|attempt|kind)$")  # times, and places of files
VIT = 'trunk = { kind = "vit", patch = 4, depth = 2, width = 32, mlp = 48, heads = 2, pool = "POOL" }\n'
CONVNEXT = 'trunk = { kind = "convnext", depths = [1, 2], widths = [8, 12], drop_path = 0.2 }\n'
CLASSIFIER = 'kind = "classifier"\nimage_size = 16\nnum_classes = 5\n'
# A linear probe reads the output of the trunk. A ViT has other taps than a ResNet.
PROBE = 'kind = "linear_probe"\nimage_size = 16\nnum_classes = 5\n'
CLASSES = ["a cat", "red", "two", "water", "tree"]
CAPTION_EVALUATORS = f"""
[eval.greedy]
kind = "captioning"
data = "train"
every_steps = 3
[eval.beam]
kind = "captioning"
data = "train"
method = "beam"
beams = 3
every_steps = 0
[eval.pairs]
kind = "retrieval"
data = "train"
subtract_prior = true
every_steps = 0
[eval.zero]
kind = "scoring"
data = "labelled"
classes = {json.dumps(CLASSES)}
every_steps = 0
"""
PAIRS = """kind = "siglip"
image_size = 16
vocab_size = 400
seq_len = 12
trunk = {{ kind = "vit", patch = 8, depth = 1, width = 32, mlp = 48, heads = 2, pool = "map" }}
text = {{ depth = 2, width = 24, mlp = 40, heads = 2, pool = "map" }}
loss = {{ temperature_init = 5, bias_init = -2 }}

"""
FEATURE_EVALUATORS = """
[eval.near]
kind = "knn"
data = "plain"
train_data = "plain"
k = [1, 5]
every_steps = 3
[eval.few]
kind = "fewshot"
data = "plain"
train_data = "plain"
shots = [2]
every_steps = 0
[eval.low]
kind = "low_shot"
data = "plain"
train_data = "plain"
every_steps = 0
[eval.svm]
kind = "svm_low_shot"
data = "plain"
train_data = "plain"
shots = [2]
every_steps = 0
"""


def cases(harness, ssl):
    """Returns the decks by name. `{dir}`, `{data}` of each are for format."""
    out = {}

    def captioner(name, *changes, before="[optimizer]"):
        text = harness.DECK.replace("{tokenizer}", harness.TOKENIZER).replace("total_steps = 12", f"total_steps = {STEPS}")
        for old, new in changes:
            assert text.count(old) == 1, (name, old)
            text = text.replace(old, new)
        out[name] = text + """
[data.labelled]
kind       = "webdataset"
path       = "{data}/images.tar"
fields     = {{ image = "png", text = "txt", label = "cls" }}
preprocess = '''decode | resize(16) | value_range(-1, 1)
              | tokenize("words", max_len=12, eos="sticky", inkey="text", outkey="labels") | keep("image", "labels", "label")'''
""" + CAPTION_EVALUATORS

    mesh = ("[model]\n", '[determinism]\nlevel = "mesh"\nslices = 4\n\n[model]\n')
    eight = ("global_batch = 12, micro_batch = 6", "global_batch = 8, micro_batch = 2")
    captioner("cappa")
    captioner("cappa_mesh", mesh, eight)
    captioner("cappa_deep", ("depth = 1, width", "depth = 3, width"),
              ("decoder          = {{ depth = 1 }}", "decoder          = {{ depth = 2 }}"), eight)
    captioner("cappa_copies", ('parameters = "sharded", optimizer = "sharded"', 'parameters = "replicated", optimizer = "sharded"'))
    captioner("cappa_bf16", ("threads = 1 }}", "threads = 1 }}\nmemory = {{ recompute = \"block\" }}"), ("[optimizer]\n",
              '[precision]\ncompute = "bf16"\n\n[optimizer]\n'))

    captioner("siglip", mesh, eight)
    text = out["siglip"]
    for begin, end, new in (('kind             = "cappa"', "[optimizer]", PAIRS), ("[eval.val]", "[checkpoint]", ""),
                            ("[eval.greedy]", "[eval.pairs]", "")):
        assert text.count(begin) == 1 and text.count(end) == 1, begin
        text = text[:text.index(begin)] + new + text[text.index(end):]
    out["siglip"] = text + """
[data.plain]
kind       = "webdataset"
path       = "{data}/images.tar"
fields     = {{ image = "png" }}
preprocess = 'decode | resize(16) | value_range(-1, 1) | keep("image")'
"""

    def images(name, model, ops, evaluators=""):
        text = ssl.DECK.replace("{model}", model.replace("{", "{{").replace("}", "}}"))
        text = text.replace("{ops}", ops.replace("{", "{{").replace("}", "}}"))
        out[name] = text.replace("total_steps = 16", f"total_steps = {STEPS}") + f"""
[data.plain]
kind       = "webdataset"
path       = "{{data}}/images.tar"
fields     = {{{{ image = "png", label = "cls" }}}}
preprocess = 'decode | {ssl.ONE.replace("16", "8" if "jigsaw" in name else "16")}'
""" + evaluators

    for pool in ("gap", "map", "tok"):
        images(f"classifier_vit_{pool}", CLASSIFIER + VIT.replace("POOL", pool), ssl.ONE,
               '[eval.kinds]\nkind = "classification"\ndata = "plain"\nk = [1, 3]\nmean_ap = true\nevery_steps = 3\n' + FEATURE_EVALUATORS)
    images("classifier_resnet", CLASSIFIER + ssl.TRUNK, ssl.ONE,
           '[eval.kinds]\nkind = "classification"\ndata = "plain"\nk = [1, 3]\nevery_steps = 3\n' + FEATURE_EVALUATORS)
    images("classifier_convnext", CLASSIFIER + CONVNEXT, ssl.ONE,
           '[eval.kinds]\nkind = "classification"\ndata = "plain"\nk = [1, 3]\nevery_steps = 3\n' + FEATURE_EVALUATORS)
    images("classifier_unknown", CLASSIFIER + VIT.replace("POOL", "gap") + 'label_smoothing = 0.1\nunknown = "ignore"\n'
           + 'mixup = { p = 0.3 }\n', ssl.ONE, '[eval.kinds]\nkind = "classification"\ndata = "plain"\nk = [1]\nevery_steps = 3\n')
    out["classifier_unknown"] = out["classifier_unknown"].replace("micro_batch = 2", "micro_batch = 0")
    images("classifier_sigmoid", CLASSIFIER + VIT.replace("POOL", "gap") + 'loss = "sigmoid"\n', ssl.ONE,
           '[eval.kinds]\nkind = "classification"\ndata = "plain"\nk = [1]\nevery_steps = 3\n')
    for name, (model, ops) in ssl.KINDS.items():
        probes = name == "linear_probe"
        images(name if name == "mae" else f"{name}_resnet", model, ops,
               '[eval.val]\nkind = "probes"\ndata = "plain"\nprobes = ["res4", "flatten"]\nevery_steps = 3\n'
               if probes else FEATURE_EVALUATORS)
    # A ViT has positions for one size of images, or for several with a class token.
    for name in ("simclr", "moco", "barlow_twins", "dino", "swav", "npid", "rotnet", "deepcluster_v2"):
        model, ops = ssl.KINDS[name]
        pool = "tok" if "16, 8" in model else "map" if name == "moco" else "gap"
        images(f"{name}_vit", model.replace(ssl.TRUNK, VIT.replace("POOL", pool)), ops, FEATURE_EVALUATORS)
    images("linear_probe_vit", PROBE + VIT.replace("POOL", "gap")
           + '[[model.probe]]\ntap = "pre_logits"\nhead = { kind = "mlp", layers = [5] }\n', ssl.ONE,
           '[eval.val]\nkind = "probes"\ndata = "plain"\nprobes = ["pre_logits"]\nevery_steps = 3\n')
    return out


class Refused(Exception):
    pass


def run(program, ranks, args, folder):
    """program: a path, or a list of words."""
    command = ["mpirun", "-np", str(ranks), *([program] if isinstance(program, str) else program), *args]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, stdin=subprocess.DEVNULL,
                          timeout=900)
    if done.returncode:
        errors = [line for line in done.stdout.splitlines() if "rror" in line][:3]
        raise Refused(f"exit {done.returncode} of {' '.join(command)}\n" + "\n".join(errors))
    return done.stdout


def datasets(path):
    """Returns the bytes of every dataset by name."""
    out = {}
    with h5py.File(path) as f:
        f.visititems(lambda name, d: out.__setitem__(name, str(d[()].tolist()) if d.dtype.hasobject else d[()].tobytes())
                     if isinstance(d, h5py.Dataset) else None)
    return out


def tensors(path):
    roots = ("params/", "optimizer/", "ema/", "teacher/", "states/", "statistics/")
    return {name: value for name, value in datasets(path).items() if name.startswith(roots)}


def rows(folder):
    """Returns what a run has measured, without times."""
    out = []
    with open(f"{folder}/metrics.jsonl") as f:
        for row in map(json.loads, f):
            if row["kind"] in ("train", "epoch"):
                out.append({name: value for name, value in row.items() if MEASURES.match(name)})
            elif row["kind"] == "eval":
                out.append({name: value for name, value in row.items()
                            if not APART.match(name)})
    return out


def outcome(program, ranks, deck, folder, pictures):
    """Trains, evaluates, and captions `pictures`, a folder, or extracts if it is None. Returns the values by name."""
    run(program, ranks, [deck, "--dir", folder], folder + "/..")
    out = {f"tensor {name}": value for name, value in tensors(f"{folder}/checkpoints/{STEPS:010}.h5").items()}
    out.update({f"row {i}": str(row) for i, row in enumerate(rows(folder))})
    text = run(program, ranks, [deck, "--dir", folder, "--mode", "eval"], folder + "/..")
    for row in json.loads(text.splitlines()[-1])["evaluations"]:
        out[f"evaluation {row['eval']}"] = str({k: v for k, v in row.items() if not APART.match(k)})
    if pictures:
        text = run(program, ranks, [deck, pictures, "--dir", folder, "--mode", "caption"], folder + "/..")
        out["captions"] = "\n".join(line for line in text.splitlines() if line.startswith("file="))
    else:
        run(program, ranks, [deck, "--dir", folder, "--mode", "extract", "--set", "extract.data=plain"], folder + "/..")
        out.update({f"feature {k}": v for k, v in datasets(f"{folder}/extract/plain.h5").items()})
    return out


def compare(one, other):
    """Returns the names whose values differ, or that one side lacks."""
    return sorted({name for name in one.keys() | other.keys() if one.get(name) != other.get(name)})


def check(name, text, ranks, builds, folder, harness):
    data = os.path.join(os.path.dirname(folder), "data")
    runs = []
    for build in ("before", "after"):
        os.makedirs(f"{folder}/{build}")
        with open(f"{folder}/{build}.toml", "w") as f:
            f.write(text.format(dir=f"{folder}/{build}", data=data))
        runs.append(outcome(builds[build], ranks, f"{folder}/{build}.toml", f"{folder}/{build}",
                            f"{data}/pictures" if "cappa" in name else None))
    wrong = compare(*runs)
    # Both continue the run directory of the build before.
    ends = []
    for build in ("before", "after"):
        again = f"{folder}/continued_{build}"
        shutil.copytree(f"{folder}/before", again, symlinks=True)
        run(builds[build], ranks, [f"{folder}/before.toml", "--dir", again, "--set", f"train.total_steps={MORE}"], folder)
        ends.append(tensors(f"{again}/checkpoints/{MORE:010}.h5"))
        ends[-1].update({f"row {i}": str(row) for i, row in enumerate(rows(again))})
    wrong += [f"continued {name}" for name in compare(*ends)]
    if not runs[0] or not ends[0]:
        wrong.append("nothing was compared")
    return wrong, len(runs[0]) + len(ends[0])


def make_data(folder, harness):
    """Makes the shards and the pictures that all decks read."""
    os.makedirs(f"{folder}/pictures", exist_ok=True)
    harness.make_shards(folder)
    with tarfile.open(f"{folder}/images.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for i in range(40):
            harness.add_member(tar, f"{i:03}.png", harness.png(i))
            harness.add_member(tar, f"{i:03}.cls", str(i % 5).encode())
            harness.add_member(tar, f"{i:03}.txt", CLASSES[i % len(CLASSES)].encode())
    for i in range(5):
        with open(f"{folder}/pictures/{i}.png", "wb") as f:
            f.write(harness.png(i))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="trainer of the build before a change")
    parser.add_argument("after", help="trainer of the build after it")
    parser.add_argument("cases", nargs="*", help="names or parts of names; all if none")
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks, separated by commas")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--keep", help="work in this folder and leave it")
    args = parser.parse_args()
    os.environ["TRAINER"] = args.after
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import harness
    import ssl_harness

    decks = cases(harness, ssl_harness)
    chosen = [name for name in decks if not args.cases or any(word in name for word in args.cases)]
    if args.list or not chosen:
        print("\n".join(decks))
        sys.exit(0 if args.list else f"no case has a name with {' or '.join(args.cases)}")
    folder = args.keep or tempfile.mkdtemp(prefix="equal_builds_")
    make_data(f"{folder}/data", harness)
    builds = {"before": os.path.abspath(args.before), "after": os.path.abspath(args.after)}
    faults = 0
    try:
        for name in chosen:
            for ranks in map(int, args.ranks.split(",")):
                place = f"{folder}/{name}_{ranks}"
                shutil.rmtree(place, ignore_errors=True)
                try:
                    wrong, count = check(name, decks[name], ranks, builds, place, harness)
                except Refused as e:
                    wrong, count = [str(e)], 0
                faults += bool(wrong)
                print(f"{name:24} {ranks} ranks  " + (f"{count} values equal" if not wrong else
                                                      f"{len(wrong)} DIFFER: " + "; ".join(wrong[:4])), flush=True)
                if not args.keep:
                    shutil.rmtree(place, ignore_errors=True)
    finally:
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(chosen)} cases, {faults} of their runs differ or failed")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
