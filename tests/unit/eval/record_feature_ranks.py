#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Records RankMe and LiDAR of made features, computed by NumPy in double.

    record_feature_ranks.py > FILE        writes a new tests/data/feature_ranks.jsonl

Each line: features x [views, images, features] times 512, delta, RankMe of the first view and LiDAR of all views as their papers
define them (arXiv 2210.02885, 2312.04000; covariances without bias), and the eigenvalues of x' x of the first view.
"""
import json

import numpy as np

CASES = [(6, 3, 4), (5, 2, 8), (2, 2, 1), (40, 4, 12), (12, 10, 3), (3, 2, 40), (40, 3, 33), (20, 2, 45)]  # images, views, features


def effective_rank(values):
    p = values / values.sum() + 1e-7
    return float(np.exp(-(p * np.log(p)).sum()))


def lidar(x, delta):
    """x: [views, images, features]."""
    views, images, width = x.shape
    of_image = x.mean(0)
    means, rest = of_image - of_image.mean(0), (x - of_image).reshape(-1, width)
    between = means.T @ means / (images - 1)
    within = rest.T @ rest / (images * (views - 1)) + delta * np.eye(width)
    values, vectors = np.linalg.eigh(within)
    root = vectors @ np.diag(values ** -0.5) @ vectors.T
    return effective_rank(np.maximum(np.linalg.eigvalsh(root @ between @ root), 0))


def main():
    for number, (images, views, width) in enumerate(CASES):
        rng = np.random.default_rng(number)
        used = max(1, width // 2) if number % 4 == 3 else width  # the others are sums of these
        clean = rng.integers(-99, 100, (images, used)) @ rng.integers(-3, 4, (used, width)) if used < width else \
            rng.integers(-99, 100, (images, width)) * (1 + np.arange(width) % 5)
        x = (clean + rng.integers(-20, 21, (views, images, width)) * (used == width)) / 64
        if used < width:
            x = np.stack([x[0] * (1 + view / 8) for view in range(views)])
        x = x.astype(np.float32).astype(np.float64)
        delta = [1e-4, 0.5][number % 2]
        print(json.dumps({"images": images, "views": views, "features": width, "delta": delta,
                          "x512": (x.ravel() * 512).astype(int).tolist(),
                          "rankme": effective_rank(np.linalg.svd(x[0], compute_uv=False)), "lidar": lidar(x, delta),
                          "eigenvalues": np.linalg.eigvalsh(x[0].T @ x[0]).tolist()}))


if __name__ == "__main__":
    main()
