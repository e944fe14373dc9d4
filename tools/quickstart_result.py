# SPDX-License-Identifier: Apache-2.0
"""Prints what the quickstart's run has learned, beside the ranges of other runs, and whether it has README's bits. tools/quickstart
starts it:

    python3 tools/quickstart_result.py RUN DATA TOTAL_SECONDS TRAINING_SECONDS [OPTION OF THE TRAINER]...
"""
import json
import os
import sys

import run_dir

LOG = "tests/bench/results/2026-11-27-ranges.md"
# The bits of README's run, and the data that it was trained on. run_readme_test writes the file.
RECORDED = os.path.join(os.path.dirname(__file__), "../tests/recorded/emoji.json")
# Smallest and largest value over other seeds, and over other roundings at level "run", which move values as another seed does. The
# log has every run; README.md and inputs/emoji.toml state the same ranges.
RANGES = {
    "validation loss per token": (1.938, 2.080),
    "the same, images shuffled": (2.810, 2.931),
    "loss / unigram entropy": (0.437, 0.469),
    "worth of the image": (0.796, 0.924),
    "zero-shot accuracy": (0.080, 0.144),
}
WANTED = {"val": "perplexity_per_token", "val_shuffled": "perplexity_per_token", "zero_shot": "top1", "captions": "cider_d"}
GOALS = {"loss / unigram entropy": ("at most", 0.62), "worth of the image": ("at least", 0.5)}


def same_experiment(options, free=("run.dir", "run.cpu", "run.seed")):
    """Returns whether the trainer's options change nothing but these keys, which do not change the experiment."""
    words = iter(options)
    for word in words:
        name, equals, value = word.partition("=")
        value = value if equals else next(words, "")
        if name == "--allow-change" or name == "--set" and value.partition("=")[0].strip() not in free:
            return False
    return True


def far_outside(name, value):
    """Returns whether the value is beyond its range by more than half of the range's width."""
    low, high = RANGES[name]
    return not low - (high - low) / 2 <= value <= high + (high - low) / 2


def verdict(name, value):
    """Returns "" or whether the value has reached its goal."""
    if name not in GOALS:
        return ""
    word, goal = GOALS[name]
    return "reached" if (value <= goal if word == "at most" else value >= goal) else "MISSED"


def lines_of(values, compare):
    """Returns the printed lines of values {name: (value, unit, note)}, with ranges if they may be compared."""
    out = []
    for name, (value, unit, note) in values.items():
        if name in GOALS:
            note = f"goal: {GOALS[name][0]} {GOALS[name][1]}   {verdict(name, value)}"
        between = ""
        if compare:
            low, high = RANGES.get(name, (None, None))
            between = f"{'' if low is None else f'other runs: {low:.3f} to {high:.3f}':<30}"
            if low is not None and far_outside(name, value):
                note = "FAR OUTSIDE   " + note
        out.append(f"  {name:<32}{value:.3f} {unit:<7}{between}{note}")
    return out


def bits(run, files, options):
    """Returns a sentence about the run's bits, and whether they should be README's and are not. files: hashes of the data's files."""
    try:
        with open(RECORDED, encoding="utf-8") as file:
            recorded = json.load(file)
    except OSError:
        return "", False
    digest = run_dir.digest_of(run)
    # An attempt of another deck may have made some of the steps.
    if digest is None or len(run_dir.decks_of(run)) > 1 or not same_experiment(options, ("run.dir", "run.cpu")):
        return "", False
    if any(files.get(name) != sha for name, sha in recorded["data"].items()):
        return "The images or captions of this system's packages differ from those of README.md, so the values differ, too.", False
    if list(digest) == [recorded["losses"], recorded["weights"]]:
        return "All losses and weights are those of README.md's run, to the last bit.", False
    return "The deck and the data are those of README.md, but losses and weights are not: a fault worth reporting.", True


def last_rows(run):
    """Returns the newest row of each evaluator."""
    last = {}
    for row in run_dir.rows(run):
        if row.get("kind") == "eval" and row["step"] >= last.get(row["eval"], row)["step"]:
            last[row["eval"]] = row
    missing = [name for name, measure in WANTED.items() if measure not in last.get(name, {})]
    if missing:
        sys.exit(f"error: {run}/metrics.jsonl has no row of evaluator {', '.join(missing)}: was the deck changed?")
    return last


def files_of(run, last):
    """Returns the number of classes, and the first captions of the validation images."""
    files = {name: os.path.join(run, "eval", name, f"{last[name]['step']:010}") for name in ("zero_shot", "captions")}
    try:
        with open(os.path.join(files["zero_shot"], "confusions.json"), encoding="utf-8") as file:
            classes = len(json.load(file)["classes"])
        with open(os.path.join(files["captions"], "captions.jsonl"), encoding="utf-8") as file:
            return classes, [json.loads(line) for line, _ in zip(file, range(8))]
    except OSError as error:
        sys.exit(f"error: {error}: a file of an evaluator is missing; tools/quickstart with another --dir makes it again")


def main(run, data, total, trained, *options):
    last, compare = last_rows(run), same_experiment(options)
    with open(os.path.join(data, "summary.json"), encoding="utf-8") as file:
        summary = json.load(file)
    entropy = summary["unigram_entropy_nats"]
    classes, captions = files_of(run, last)
    val, shuffled = (last[name]["perplexity_per_token"] for name in ("val", "val_shuffled"))
    values = {
        "validation loss per token": (val, "nats", "captions of emoji the model has never seen"),
        "the same, images shuffled": (shuffled, "nats", "each caption beside another image"),
        "unigram entropy of captions": (entropy, "nats", "the best that a model without context could reach"),
        "loss / unigram entropy": (val / entropy, "", ""),
        "worth of the image": (shuffled - val, "nats", ""),
        "zero-shot accuracy": (last["zero_shot"]["top1"], "", f"{classes} classes by their names alone; chance {1 / classes:.3f}"),
    }
    print(f"Result after {last['val']['step']} steps ({total} s in total, {trained} s of training):")
    print("\n".join(lines_of(values, compare)))
    sentence, wrong = bits(run, summary.get("files", {}), options)
    if sentence and not wrong:
        print(sentence)
    print("Captions of validation images, generated and true:")
    width = max(len(row["caption"]) for row in captions)
    for row in captions:
        print(f"  {row['caption']:<{width}}  |  {' / '.join(row['references'])}")
    print("Files:")
    checkpoints = run_dir.checkpoints(run)
    for what, path in (("metrics", os.path.join(run, "metrics.h5")), ("metrics", os.path.join(run, "metrics.jsonl")),
                       ("checkpoint", checkpoints[-1] if checkpoints else ""), ("curves", os.path.join(run, "metrics.png")),
                       ("settings", os.path.join(run, "deck.resolved.toml")), ("report", os.path.join(run, "report.html"))):
        if path and os.path.exists(path):
            print(f"  {what:<12}{path}")
    if not checkpoints:
        sys.exit(f"error: no checkpoint in {run}/checkpoints")
    if not compare:
        return
    sys.stdout.flush()
    if wrong:
        print(f"warning: {sentence}", file=sys.stderr)
    for name in RANGES:
        if far_outside(name, values[name][0]):
            print(f"warning: '{name}' is far outside what other runs gave; {LOG} lists their runs",
                  file=sys.stderr)
    if "MISSED" in [verdict(name, value) for name, (value, *_) in values.items()]:
        sys.exit("error: the run finished but missed a goal (above); with an unchanged deck this is a bug worth reporting")


if __name__ == "__main__":
    main(*sys.argv[1:])
