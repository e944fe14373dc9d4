# SPDX-License-Identifier: Apache-2.0
"""Folders that other libraries open: weights, settings, how images are prepared, and a card of the model. Not a tool itself."""
import hashlib
import json
import os

import image_preparation
import run_dir
from console import Failure
from vit_names import Transformers, timm, transformers

RESAMPLE = {"nearest": 0, "bilinear": 2, "bicubic": 3}  # Pillow's numbers


def timm_settings(vit, images):
    """Returns {file: what timm.create_model("local-dir:FOLDER", pretrained=True) reads}."""
    f = vit.facts
    if f["epsilon"] != vit.EPSILON:
        raise Failure(f"timm's folders have norms with an epsilon of {vit.EPSILON:g} alone, and this ViT has {f['epsilon']:g}: take "
                      "--names timm, whose last line makes the model, or --as transformers")
    squash = images["shorter"] is None
    cfg = {"input_size": [3, f["size"], f["size"]], "fixed_input_size": True, "interpolation": images["interpolation"],
           "crop_pct": 1.0 if squash else images["size"] / images["shorter"], "crop_mode": "squash" if squash else "center",
           "mean": images["mean"], "std": images["std"], "num_classes": f["classes"], "pool_size": None,
           "first_conv": "patch_embed.proj", "classifier": "head"}
    given = vit.arguments()
    return {"config.json": {"architecture": vit.began_as(), "num_classes": f["classes"], "num_features": f["width"],
                            "global_pool": given.get("global_pool", "token"), "model_args": given, "pretrained_cfg": cfg}}


def transformers_settings(vit, images):
    """Returns {file: what from_pretrained(FOLDER) reads}."""
    config = {"model_type": vit.TYPE, "architectures": [vit.architecture()], "num_channels": 3, "qkv_bias": True, "torch_dtype": "float32",
              **{key: value for key, value in vit.settings().items() if key != "num_labels"}}
    if labels := [f"LABEL_{i}" for i in range(vit.facts["classes"])]:
        config |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    shared = {"do_resize": True, "resample": RESAMPLE[images["interpolation"]], "do_rescale": True, "rescale_factor": 1 / 255,
              "do_normalize": True, "image_mean": images["mean"], "image_std": images["std"]}
    sides = {"height": images["size"], "width": images["size"]}
    if images["shorter"] is None:
        images = {"image_processor_type": "ViTImageProcessor", "size": sides}
    else:
        images = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": images["shorter"]}, "do_center_crop": True,
                  "crop_size": sides}
    return {"config.json": config, "preprocessor_config.json": {**images, **shared}}


# How a folder is opened; {folder} is its path.
OPENED = {
    "timm": "import timm\nmodel = timm.create_model('local-dir:{folder}', pretrained=True).eval()\n"
            "images = timm.data.create_transform(**timm.data.resolve_model_data_config(model))",
    "transformers": "import transformers\nmodel = transformers.{architecture}.from_pretrained('{folder}'{more})\n"
                    "images = transformers.AutoImageProcessor.from_pretrained('{folder}')",
}
FOLDERS = {"timm": (timm, timm_settings), "transformers": (transformers, transformers_settings)}


def opened(vit, folder):
    """Returns the lines of Python that open the folder."""
    architecture = vit.architecture() if isinstance(vit, Transformers) else ""
    return OPENED[vit.program].format(folder=folder, architecture=architecture,
                                      more=", add_pooling_layer=False" if architecture == "ViTModel" else "")


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def results_of(run, step):
    """Returns [(name of the evaluation's number, step, value)]: the newest of each up to a step."""
    newest = {}
    for row in run_dir.rows(run):
        if row.get("kind") == "eval" and isinstance(row.get("step"), int) and row["step"] <= step:
            for name, value in row.items():
                if isinstance(value, (int, float)) and name not in ("step", "attempt") and not isinstance(value, bool):
                    newest[f"{row.get('eval')}/{name}"] = (row["step"], value)
    return [(name, at, value) for name, (at, value) in sorted(newest.items())]


def data_of(deck):
    """Returns lines about the data sets that the run trained on."""
    names = [deck["train"].get("data", ""), *deck["train"].get("mixture", {})]
    tables = {name: deck.get("data", {}).get(name) for name in names}
    return [f"* `{name}`: {table.get('kind', '')} `{table.get('path', '')}`, prepared by `{' '.join(table.get('preprocess', '').split())}`"
            for name, table in tables.items() if table]


def card(vit, run, deck, images, folder, license_name):
    """Returns README.md of the folder: what the model is, how it was made, what it reaches, and what the files hash to."""
    f = vit.facts
    lines = ["---", f"library_name: {vit.program}", f"license: {license_name}",
             f"pipeline_tag: {'image-classification' if f['classes'] else 'image-feature-extraction'}", "---", "",
             f"# {deck.get('run', {}).get('name') or 'model'}", "",
             f"A ViT of depth {f['depth']}, width {f['width']}, {f['heads']} heads, patches of {f['patch']} pixels, for images of "
             f"{f['size']} x {f['size']}" + (f", with {f['classes']} classes." if f["classes"] else ", without a head."), "",
             "```python", opened(vit, "FOLDER"), "```", "", "## Images", "",
             f"Prepared by `{images['text']}`: mean {images['mean']}, deviation {images['std']} of values in 0 to 1. The trainer's own "
             "resize has no antialiasing unless its deck asks for it; libraries that use Pillow always have it.", "",
             "## Training", "", f"Step {vit.step:,}, weights `{vit.name}`, model kind `{deck.get('model', {}).get('kind', '')}`. "
             "`deck.toml` is the whole deck, with all defaults.", "", *data_of(deck)]
    if results := results_of(run, vit.step) if run else []:
        lines += ["", "## Results", "", "| number | step | value |", "| --- | --- | --- |"]
        lines += [f"| {name} | {at:,} | {value:.6g} |" for name, at, value in results]
    lines += ["", "## Files", "", "| file | SHA-256 |", "| --- | --- |"]
    lines += [f"| `{name}` | `{digest(os.path.join(folder, name))}` |" for name in sorted(os.listdir(folder))]
    return "\n".join(lines) + "\n"


def run_of(checkpoint):
    """Returns the run directory that a checkpoint lies in, or ""."""
    run = os.path.dirname(os.path.dirname(os.path.abspath(checkpoint)))
    return "" if run_dir.problem_of(run) else run


def write(weights, folder, options, write_weights):
    """Makes the folder. Returns the view of the weights that was written. `write_weights`(weights, path) writes .safetensors."""
    view, settings_of = FOLDERS[options.program]
    vit, deck = view(weights), weights.deck()
    images = image_preparation.preparation(deck, vit.facts["size"], options.preprocess)
    files = settings_of(vit, images)
    os.mkdir(folder)
    write_weights(vit, os.path.join(folder, "model.safetensors"))
    for name, content in files.items():
        with open(os.path.join(folder, name), "x", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
            file.write("\n")
    with open(os.path.join(folder, "deck.toml"), "xb") as file:
        file.write(weights.file["/deck"][()])
    text = card(vit, run_of(weights.path), deck, images, folder, options.license or "unknown")
    with open(os.path.join(folder, "README.md"), "x", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    return vit
