# SPDX-License-Identifier: Apache-2.0
"""Tells which measures say how good a model is, and which end of them is better. Not a tool itself."""

# Columns of an evaluator that describe its work, not its result.
BOOKKEEPING = {"step", "eval_s", "captions", "images", "classes", "seeds", "tokens", "examples", "count", "s", "ms", "best"}
LOWER = ("loss", "perplexity", "nats", "error", "rank")     # words of measures whose lowest value is the best
HIGHER = ("accuracy", "top", "precision", "recall", "map", "bleu", "rouge", "cider", "r@", "r1", "r5", "auc", "score", "shot",
          "likelihood")
FIRST = ("perplexity_per_token", "cider_d", "top1")     # measures that come before others


def best_end(column):
    """Returns the better end of a measure by its name: "min", "max", or "" if the name does not say."""
    words = column.lower()
    if any(word in words for word in LOWER):
        return "min"
    return "max" if any(word in words for word in HIGHER) else ""


def main_of(columns):
    """Returns the main measure of an evaluator; None if it has none."""
    return next((column for column in (*FIRST, *sorted(set(columns) - BOOKKEEPING)) if column in columns), None)
