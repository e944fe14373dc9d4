# SPDX-License-Identifier: Apache-2.0
"""How a data set of a deck prepares images, in the terms of other libraries: size, crop, mean, deviation. Not a tool itself."""
from captioner_files import arguments, pipeline, pipelines
from console import Failure

# These leave images as they are, or do not belong to the images.
OTHER_OPS = {"tokenize", "choice", "coco_captions", "lower", "keep", "drop", "copy", "class_number", "onehot", "index", "decode"}
FIXED = {"vgg_value_range": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
         "clip_value_range": ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])}
METHODS = ("bilinear", "bicubic", "nearest")
EXAMPLE = "--preprocess 'decode | resize(224) | value_range(-1, 1)'"


def text_of(call):
    """Returns an op as decks and big_vision write it."""
    name, positional, named = call
    values = [repr(value) for value in positional] + [f"{key}={value!r}" for key, value in named.items()]
    return f"{name}({', '.join(values)})" if values else name


def three(value):
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * 3 if len(values) == 1 else values


def square(value):
    """Returns the side of a size that is one number or two equal ones, or None."""
    sides = list(value) if isinstance(value, (list, tuple)) else [value]
    return sides[0] if len(set(sides)) == 1 else None


def scale_of(call):
    """Returns (mean, deviation) with which (byte / 255 - mean) / deviation is what the op computes, or None."""
    if call[0] in FIXED:
        return FIXED[call[0]]
    if call[0] == "normalize":
        given = arguments(call, mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
        return three(given["mean"]), three(given["std"])
    given = arguments(call, vmin=-1, vmax=1, in_min=0, in_max=255, clip_values=False)
    if given["clip_values"] or given["vmax"] == given["vmin"]:
        return None
    width = given["vmax"] - given["vmin"]
    low, high = three(given["in_min"]), three(given["in_max"])
    # byte = low gives vmin, byte = high gives vmax
    deviation = [(h - l) / 255 / width for l, h in zip(low, high)]
    return [l / 255 - given["vmin"] * d for l, d in zip(low, deviation)], deviation


def resizing(calls):
    """Returns {size, shorter, method} of the ops before the scale, or None. `shorter`: the side before the crop; None: the image is
    brought to the size without a crop."""
    names = [name for name, _, _ in calls]
    if names == ["resize"]:
        given = arguments(calls[0], "size", method="bilinear", antialias=False)
        return {"size": square(given["size"]), "shorter": None, "method": given["method"]}
    if names == ["resize_small", "central_crop"]:
        given = arguments(calls[0], "smaller_size", method="area", antialias=False)
        crop = arguments(calls[1], crop_size=None)["crop_size"] or given["smaller_size"]
        return {"size": square(crop), "shorter": given["smaller_size"], "method": given["method"]}
    if names == ["resize_shorter", "center_crop"]:
        crop = arguments(calls[1], "size")["size"]
        return {"size": square(crop), "shorter": arguments(calls[0], "size")["size"], "method": "bilinear"}
    return None


def prepared(calls):
    """Returns what a pipeline does with images, or None if it is not a fixed resize, perhaps a crop, and a scale."""
    mine = [call for call in calls if call[0] not in OTHER_OPS]
    if not mine or mine[-1][0] not in ("value_range", "normalize", *FIXED):
        return None
    size, scale = resizing(mine[:-1]), scale_of(mine[-1])
    if not size or not size["size"] or not scale:
        return None
    # Libraries have no "area". Their bilinear resize of a smaller image is antialiased, which is nearest to it.
    method = size["method"] if size["method"] in METHODS else "bilinear"
    return {"size": size["size"], "shorter": size["shorter"], "interpolation": method, "mean": scale[0], "std": scale[1],
            "text": " | ".join(name for name, _, _ in mine), "ops": "|".join(map(text_of, mine))}


def preparation(deck, size, given=None):
    """Returns how images of `size` pixels (None: any) are prepared: as `given` says, or as the first data set of the deck that has no
    random op."""
    found = [prepared(calls) for calls in ([pipeline(given)] if given else pipelines(deck).values())]
    fitting = [one for one in found if one and size in (None, one["size"])]
    if not fitting:
        sides = f"{size} x {size} pixels" if size else "a size"
        raise Failure(f"{'--preprocess' if given else 'no data set of the deck'} brings images to {sides} by a fixed resize "
                      f"and a scale, which is all that other libraries know; give such ops: {EXAMPLE}")
    return fitting[0]
