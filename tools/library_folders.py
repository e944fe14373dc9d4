# SPDX-License-Identifier: Apache-2.0
"""Folders that other libraries open: weights, settings, how images are prepared, and a card of the model. Not a tool itself."""
import hashlib
import json
import os
from dataclasses import dataclass
from typing import Callable

import fast_tokenizer
import image_preparation
import run_dir
from big_vision_names import BigVision
from console import Failure
from lacking import Lacking
from onnx_trunks import Onnx
from open_clip_names import OpenClip
from torchvision_names import Torchvision
from vit_names import Transformers, timm, transformers

RESAMPLE = {"nearest": 0, "bilinear": 2, "bicubic": 3}  # Pillow's numbers


def timm_settings(vit, images, _):
    """Returns {file: what timm.create_model("local-dir:FOLDER", pretrained=True) reads}."""
    f = vit.facts
    if f["epsilon"] != vit.EPSILON:
        raise Lacking(f"{vit.path}: timm's folders have norms with an epsilon of {vit.EPSILON:g} alone, and this ViT has "
                      f"{f['epsilon']:g}", ", or --names timm, whose last line makes the model")
    squash = images["shorter"] is None
    cfg = {"input_size": [3, f["size"], f["size"]], "fixed_input_size": True, "interpolation": images["interpolation"],
           "crop_pct": 1.0 if squash else images["size"] / images["shorter"], "crop_mode": "squash" if squash else "center",
           "mean": images["mean"], "std": images["std"], "num_classes": f["classes"], "pool_size": None,
           "first_conv": "patch_embed.proj", "classifier": "head"}
    given = vit.arguments()
    return {"config.json": {"architecture": vit.began_as(), "num_classes": f["classes"], "num_features": f["width"],
                            "global_pool": given.get("global_pool", "token"), "model_args": given, "pretrained_cfg": cfg}}


def preprocessor(images):
    """Returns preprocessor_config.json, which transformers and programs for its ONNX models read."""
    shared = {"do_resize": True, "resample": RESAMPLE[images["interpolation"]], "do_rescale": True, "rescale_factor": 1 / 255,
              "do_normalize": True, "image_mean": images["mean"], "image_std": images["std"]}
    sides = {"height": images["size"], "width": images["size"]}
    if images["shorter"] is None:
        return {"image_processor_type": "ViTImageProcessor", "size": sides, **shared}
    return {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": images["shorter"]}, "do_center_crop": True,
            "crop_size": sides, **shared}


def transformers_settings(vit, images, _):
    """Returns {file: what from_pretrained(FOLDER) reads}."""
    config = {"model_type": vit.TYPE, "architectures": [vit.architecture()], "num_channels": 3, "qkv_bias": True, "torch_dtype": "float32",
              **{key: value for key, value in vit.settings().items() if key != "num_labels"}}
    if labels := [f"LABEL_{i}" for i in range(vit.classes)]:
        config |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    return {"config.json": config, "preprocessor_config.json": preprocessor(images)}


def torchvision_settings(trunk, images, _):
    """Returns {model.py: the calls that make the model and the preparation of images}."""
    squash = images["shorter"] is None
    method = f"torchvision.transforms.InterpolationMode.{images['interpolation'].upper()}"
    ops = [f"Resize({(images['size'],) * 2 if squash else images['shorter']}, {method}, antialias=True)",
           *([] if squash else [f"CenterCrop({images['size']})"]), "ToTensor()", f"Normalize({images['mean']}, {images['std']})"]
    last = trunk.head.split(".")
    place = f"made.{last[0]}" + (f"[{last[1]}]" if len(last) > 1 else "")
    lines = [f'"""{trunk.description}, for torchvision: model() and images()."""', "import os", "", "import torch",
             "import torchvision", "from safetensors.torch import load_file",
             "from torchvision.models.convnext import CNBlockConfig" if trunk.head != "fc" else
             "from torchvision.models.resnet import BasicBlock, Bottleneck", "", "", "def model():",
             f"    made = {trunk.call()}", *([] if trunk.classes else [f"    {place} = torch.nn.Identity()"]),
             "    made.load_state_dict(load_file(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'model.safetensors')))",
             "    return made.eval()", "", "", "def images():", "    t = torchvision.transforms",
             f"    return t.Compose([{', '.join('t.' + op for op in ops)}])", ""]
    return {"model.py": "\n".join(lines)}


def onnx_settings(_, images, __):
    return {"preprocessor_config.json": preprocessor(images)}


def big_vision_settings(model, images, _):
    return {"config.py": model.config("decode|" + images["ops"])}


def open_clip_settings(pair, images, options):
    """Returns {file: what open_clip.create_model("local-dir:FOLDER") and get_tokenizer read}."""
    if images["interpolation"] == "nearest" or images["shorter"] not in (None, images["size"]):
        raise Failure(f"open_clip brings images, or their shorter side, to the size by a bilinear or bicubic resize; this deck has "
                      f"{images['text']}, shorter side {images['shorter']}, {images['interpolation']}: give {image_preparation.EXAMPLE}")
    files = fast_tokenizer.files(pair.weights.deck(), options.tokenizer)
    tower = "" if pair.own else pair.tower.name
    if pair.folder():
        # A relative path would be that of the reader's working directory.
        tower = f"local-dir:{os.path.abspath(options.out)}/image_tower"
        files["image_tower/config.json"] = timm_settings(pair.folder(), images, options)["config.json"]
    config = pair.config(tower)
    config["text_cfg"] |= {"hf_tokenizer_name": os.path.basename(os.path.abspath(options.out)), "tokenizer_kwargs": {"clean": "whitespace"}}
    squash = "squash" if images["shorter"] is None else "shortest"
    return {"open_clip_config.json": {"model_cfg": config, "preprocess_cfg": {
        "mean": images["mean"], "std": images["std"], "interpolation": images["interpolation"], "resize_mode": squash}}, **files}


@dataclass
class Library:
    view: Callable      # makes of weights those under the library's names
    weights: str        # file of the weights
    settings: Callable  # (view, images, options of the command) -> {file: a text, or what is written as JSON}
    opened: str         # lines of Python that open {folder}


LIBRARIES = {
    "timm": Library(timm, "model.safetensors", timm_settings,
                    "import timm\nmodel = timm.create_model('local-dir:{folder}', pretrained=True).eval()\n"
                    "images = timm.data.create_transform(**timm.data.resolve_model_data_config(model))"),
    "transformers": Library(transformers, "model.safetensors", transformers_settings,
                            "import transformers\nmodel = transformers.{architecture}.from_pretrained('{folder}'{more})\n"
                            "images = transformers.AutoImageProcessor.from_pretrained('{folder}')"),
    "torchvision": Library(Torchvision, "model.safetensors", torchvision_settings,
                           "import sys\nsys.path.insert(0, '{folder}')\nimport model as made\nmodel, images = made.model(), made.images()"),
    "onnx": Library(Onnx, "model.onnx", onnx_settings,
                    "import onnxruntime\nmodel = onnxruntime.InferenceSession('{folder}/model.onnx')\n"
                    "features, = model.run(['{last}'], {{'images': images}})  # f32 [images, 3, height, width]"),
    "big_vision": Library(BigVision, "weights.npz", big_vision_settings,
                          "import sys\nsys.path.insert(0, '{folder}')\nimport config, {module}\nfrom big_vision import utils\n"
                          "model = {module}.Model(**config.get_config().model)\nparams = utils.load_params('{folder}/weights.npz')"),
    "open_clip": Library(OpenClip, "open_clip_model.safetensors", open_clip_settings,
                         "import open_clip\nmodel, _, images = open_clip.create_model_and_transforms('local-dir:{folder}')\n"
                         "model, tokenizer = model.eval(), open_clip.get_tokenizer('local-dir:{folder}')"),
}


def takes(library, weights, options):
    """Returns True if the library can express the model of some weights, whatever else may hinder an export of it here."""
    try:
        # How images are prepared is a question of its own, so any preparation does.
        images = image_preparation.preparation({}, None, "decode | resize(1) | value_range(-1, 1)")
        library.settings(library.view(weights), images, options)
    except Lacking:
        return False
    except (Failure, ValueError):
        pass
    return True


def way_out(weights, options):
    """Returns what to do about weights that a library cannot express, for a message."""
    names = [name for name, library in LIBRARIES.items() if name != options.program and takes(library, weights, options)]
    if not names:
        return "export to .npz or .safetensors under the paths of the checkpoint (without --as and --names)"
    listed = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    # These two write all of such a model, and the others its encoder alone.
    whole = options.program in ("open_clip", "big_vision") and weights.deck().get("model", {}).get("kind") in ("siglip", "cappa")
    return f"take --as {listed}" + (" for the encoder of images" if whole else "")


def opened(view, folder):
    """Returns the lines of Python that open the folder."""
    architecture = view.architecture() if isinstance(view, Transformers) else ""
    return LIBRARIES[view.program].opened.format(
        folder=folder, architecture=architecture, more=", add_pooling_layer=False" if architecture == "ViTModel" else "",
        last=view.outputs()[-1] if isinstance(view, Onnx) else "", module=view.module() if isinstance(view, BigVision) else "")


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


def task_of(view):
    if isinstance(view, OpenClip):
        return "zero-shot-image-classification"
    return "image-classification" if view.classes else "image-feature-extraction"


def view_notes(view):
    """Returns lines of the card about texts, and about what ties the folder to its place."""
    if not isinstance(view, OpenClip):
        return []
    place = ["", "`open_clip_config.json` names the folder `image_tower` by its whole path (`timm_model_name`): change it there if the "
             "folder moves."] if view.folder() else []
    return ["## Texts", "", "The tokenizer gives the ids of the trainer, and needs transformers. Before it, open_clip repairs texts with "
            "ftfy and replaces escapes of HTML, which the trainer does not.", *place, ""]


def card(view, run, deck, images, folder, license_name):
    """Returns README.md of the folder: what the model is, how it was made, what it reaches, and what the files hash to."""
    lines = ["---", f"library_name: {view.program}", f"license: {license_name}",
             f"pipeline_tag: {task_of(view)}", "---", "", f"# {deck.get('run', {}).get('name') or 'model'}", "",
             view.description + (f", with {view.classes} classes." if view.classes else "." if isinstance(view, OpenClip) else
                                 ", without a head."), "",
             "```python", opened(view, "FOLDER"), "```", "", "## Images", "",
             f"Prepared by `{images['text']}`: {images['size']} x {images['size']} pixels, mean {images['mean']}, deviation "
             f"{images['std']} of values in 0 to 1. The trainer's own resize has no antialiasing unless its deck asks for it; libraries "
             "that use Pillow always have it.", "", *view_notes(view),
             "## Training", "", f"Step {view.step:,}, weights `{view.name}`, model kind `{deck.get('model', {}).get('kind', '')}`. "
             "`deck.toml` is the whole deck, with all defaults.", "", *data_of(deck)]
    if results := results_of(run, view.step) if run else []:
        lines += ["", "## Results", "", "| number | step | value |", "| --- | --- | --- |"]
        lines += [f"| {name} | {at:,} | {value:.6g} |" for name, at, value in results]
    lines += ["", "## Files", "", "| file | SHA-256 |", "| --- | --- |"]
    names = [os.path.relpath(os.path.join(place, name), folder) for place, _, names in os.walk(folder) for name in names]
    lines += [f"| `{name}` | `{digest(os.path.join(folder, name))}` |" for name in sorted(names)]
    return "\n".join(lines) + "\n"


def run_of(checkpoint):
    """Returns the run directory that a checkpoint lies in, or ""."""
    run = os.path.dirname(os.path.dirname(os.path.abspath(checkpoint)))
    return "" if run_dir.problem_of(run) else run


def write(weights, folder, options, writers):
    """Makes the folder. Returns the view of the weights that was written. writers: {ending: writes (view, path)}."""
    library = LIBRARIES[options.program]
    view, deck = library.view(weights), weights.deck()
    images = image_preparation.preparation(deck, view.size, options.preprocess)
    files = library.settings(view, images, options)
    os.mkdir(folder)
    writers[os.path.splitext(library.weights)[1]](view, os.path.join(folder, library.weights))
    for name, content in files.items():
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        with open(os.path.join(folder, name), "x", encoding="utf-8") as file:
            file.write(content if isinstance(content, str) else json.dumps(content, indent=2) + "\n")
    with open(os.path.join(folder, "deck.toml"), "xb") as file:
        file.write(weights.file["/deck"][()])
    text = card(view, run_of(weights.path), deck, images, folder, options.license or "unknown")
    with open(os.path.join(folder, "README.md"), "x", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    return view
