#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Records results of the published COCO scorer. Needs the package pycocoevalcap, version 1.2.

    record_caption_scores.py > scores            writes a new tests/data/caption_scores.jsonl
    record_caption_scores.py FILE > tokens       writes a new tests/data/caption_tokens.jsonl from the old FILE (needs Java)

Scores: the first line describes the file. Line k + 2 belongs to set k: six numbers of the set, then six of its example
k % size, each time BLEU-1..4, ROUGE-L, CIDEr-D. The sets are functions of k; caption_metrics_test.cpp makes the same.
Tokens: each line holds a caption and its tokens by the published scorer; then ours, where they differ on purpose.
"""
import json
import sys

from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

SETS = 1000
SIZES = [1, 2, 3, 5, 7, 40, 402]  # of the first sets
WORDS = ["a", "the", "cat", "dog", "on", "red", "of", "with", "Cat", "it's", "black-and-white", "2", "été", "e\u0301t\u00e9",
         "猫", "🐱", "👩‍🚀", "Straße", "n't", "&", "ключ", "فيل", "x", "in"]
SEPARATORS = [" ", "  ", "\t", "\u00a0", "\u3000", "\u2028", "\x1c", " \n"]


class Draws:
    """Numbers of a linear congruential generator modulo 2^64."""

    def __init__(self, k):
        self.state = k

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n


def caption(draws, vocabulary, odd):
    """Returns words and the separator that joins them."""
    kind = draws.below(16) if odd else 15
    if kind == 0:
        return [], " "
    if kind == 1:
        return [WORDS[draws.below(vocabulary)]], " "
    if kind == 2:
        word = WORDS[draws.below(vocabulary)]
        return [word] * (1 + draws.below(8)), " "
    separator = SEPARATORS[draws.below(len(SEPARATORS))] if kind == 3 else " "
    length = 2 + draws.below(14)
    return [WORDS[draws.below(vocabulary)] for _ in range(length)], separator


def made_set(k):
    """Returns candidates and lists of references."""
    draws = Draws(k)
    for _ in range(4):
        draws.below(2)
    size = SIZES[k] if k < len(SIZES) else 1 + draws.below(6)
    vocabulary = [1, 2, 6, 12, 24, 24][draws.below(6)]
    candidates, references = [], []
    for i in range(size):
        made = []
        for j in range(1 + draws.below(5)):
            made.append(caption(draws, vocabulary, i + j > 0))  # the scorer refuses sets without any word
        words, separator = caption(draws, vocabulary, True)
        if draws.below(2) and made[0][0]:
            words, separator = list(made[0][0]), " "
            word = WORDS[draws.below(vocabulary)]
            words[draws.below(len(words))] = word
        candidates.append(separator.join(words))
        references.append([s.join(w) for w, s in made])
    return candidates, references


def scores(candidates, references):
    """Returns the six numbers of the set, and those of its examples."""
    result = {i: [c] for i, c in enumerate(candidates)}
    truth = dict(enumerate(references))
    bleu, bleus = Bleu(4).compute_score(truth, result, verbose=0)
    rouge, rouges = Rouge().compute_score(truth, result)
    cider, ciders = Cider().compute_score(truth, result)
    return [*bleu, rouge, cider], list(zip(*bleus, rouges, ciders))


def tokens(captions):
    """Returns the published tokens of each caption."""
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer
    tokenized = PTBTokenizer().tokenize({i: [{"caption": c}] for i, c in enumerate(captions)})
    return [tokenized[i][0] for i in range(len(captions))]


def text(numbers):
    return ",".join(f"{n:.10g}" for n in numbers)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with open(sys.argv[1], encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        for row, published in zip(rows, tokens([row[0] for row in rows])):
            print(json.dumps([row[0], published, *row[2:]], ensure_ascii=False))
        sys.exit()
    print(json.dumps({"scorer": "pycocoevalcap 1.2", "by": "tests/unit/eval/record_caption_scores.py", "sets": SETS,
                      "line": "six numbers of the set, six of example k % size: BLEU-1..4, ROUGE-L, CIDEr-D"}))
    for k in range(SETS):
        of_set, of_examples = scores(*made_set(k))
        print(f"[{text(of_set)},{text(of_examples[k % len(of_examples)])}]")
