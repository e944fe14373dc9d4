#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Records numbers of made scores of classes, computed by NumPy.

    record_class_scores.py > FILE        writes a new tests/data/class_scores.jsonl

Each line is a set: scores [images, classes], many of them equal; labels, some of them -1; masks; targets, some of them
negative (not known); numbers K; and the values of the evaluator `classification` for labels and for targets.
"""
import json

import numpy as np

SIZES = [(1, 2), (2, 3), (3, 2), (5, 6), (7, 4), (40, 5), (40, 11), (90, 3)]  # images, classes


def average_precision(scores, targets):
    """The mean over shown images of the largest precision at their score or a smaller one; None if there is none."""
    known = targets >= 0
    scores, shown = scores[known], targets[known] > 0
    if not shown.any():
        return None
    thresholds = np.unique(scores)
    precision = np.array([shown[scores >= t].mean() for t in thresholds])
    return np.mean([precision[thresholds <= s].max() for s in scores[shown]])


def values(scores, targets, numbers):
    """targets: [images, classes]; a row of negative ones is an image that does not count."""
    counted = (targets >= 0).any(1)
    hits, predictions, shown = {k: [] for k in numbers}, {k: 0 for k in numbers}, 0
    for s, t in zip(scores[counted], targets[counted]):
        classes = np.flatnonzero(t >= 0)
        order = classes[np.lexsort((classes, -s[classes]))]
        shown += (t > 0).sum()
        for k in numbers:
            hits[k].append((t[order[:k]] > 0).sum())
            predictions[k] += len(order[:k])
    found = {}
    if counted.any():
        found.update({f"top{k}": np.mean(np.array(hits[k]) > 0) for k in numbers})
        found.update({f"precision_at_{k}": sum(hits[k]) / predictions[k] for k in numbers})
    of_class = [ap for ap in map(average_precision, scores.T, targets.T) if ap is not None]
    if of_class:
        found["mean_ap"] = np.mean(of_class)
    if shown:
        found.update({f"recall_at_{k}": sum(hits[k]) / shown for k in numbers})
    return {name: float(value) for name, value in found.items()}


def main():
    for number, (images, classes) in enumerate(SIZES * 2):
        rng = np.random.default_rng(number)
        if number % 4 == 3:
            scores = rng.standard_normal((images, classes)).astype(np.float32)
        else:
            scores = rng.integers(-3, 4, (images, classes)).astype(np.float32) / 8
        labels = rng.integers(-1, classes, images)
        masks = rng.integers(0, 4, images) > 0
        targets = rng.choice([-1.0, 0.0, 0.0, 1.0], (images, classes))
        numbers = sorted({1, min(3, classes), classes})
        onehot = np.eye(classes)[labels]
        onehot[labels == -1] = -1
        of_targets = np.where(masks[:, None], targets, -1.0)
        # An image that counts may have unknown targets only. It has no prediction, and counts for topK as a miss.
        unknown = masks & (targets < 0).all(1)
        by_target = values(scores, of_targets, numbers)
        for k in numbers:
            if unknown.any():
                by_target[f"top{k}"] = by_target.get(f"top{k}", 0.0) * (masks.sum() - unknown.sum()) / masks.sum()
        print(json.dumps({"images": images, "classes": classes, "k": numbers, "scores": scores.ravel().tolist(),
                          "labels": labels.tolist(), "masks": masks.astype(int).tolist(), "targets": targets.ravel().tolist(),
                          "by_label": values(scores, onehot, numbers), "by_target": by_target}))


if __name__ == "__main__":
    main()
