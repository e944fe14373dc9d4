# SPDX-License-Identifier: Apache-2.0
"""Files of captions: tables (TSV, CSV) and COCO captions JSON. Not a tool itself.

The rules are those of src/data/sources/caption_table.hpp.
"""
import csv
import io
import json
import re

from console import Failure

IMAGE_NAMES = ("image", "images", "image_path", "image_file", "img", "img_path", "filepath", "file_path", "filename", "file_name", "file",
               "path")
CAPTION_NAMES = ("caption", "captions", "title", "text", "description", "sentence")


def read_text(path):
    try:
        with open(path, encoding="utf-8-sig", newline="") as f:
            return f.read()
    except UnicodeDecodeError as error:
        raise Failure(f"{path}: not UTF-8 text (byte {error.start})") from None


def unsafe_name(name):
    """Returns why the trainer refuses such a name, or ""."""
    if not name:
        return "is empty"
    if name.startswith("/"):
        return "is an absolute path; names are relative to the folder of the images"
    if any(ord(c) < 0x20 or ord(c) == 0x7F for c in name):
        return "holds a control character"
    return "leads out of its folder" if ".." in name.split("/") else ""


class Row:
    def __init__(self, line, image, caption, label=None):
        self.line, self.image, self.caption, self.label = line, image, caption, label


def is_table(path):
    return path.lower().endswith((".tsv", ".csv"))


def csv_rows(path, text):
    csv.field_size_limit(1 << 30)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:  # an open quote would swallow the rows after it
        raise Failure(f"{path}:{reader.line_num}: {error}") from None


def tsv_rows(text):
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if line:
            yield number, line.split("\t")


class Columns:
    """Positions of image, caption and label in a row."""

    def __init__(self, path, line, cells, image, caption, label):
        self.header = bool(image or caption)
        found = [self.candidates(cells, image, IMAGE_NAMES), self.candidates(cells, caption, CAPTION_NAMES)]
        self.header = self.header or all(found)
        self.cells, self.label = 2, None
        if not self.header:
            self.image, self.caption = 0, 1
            return
        self.cells = len(cells)
        self.image = self.only(path, line, cells, found[0], image, "--image-column", IMAGE_NAMES)
        self.caption = self.only(path, line, cells, found[1], caption, "--caption-column", CAPTION_NAMES)
        if self.image == self.caption:
            raise Failure(f"{path}:{line}: --image-column and --caption-column are both '{cells[self.image]}'")
        labels = self.candidates(cells, label, ())
        self.label = labels[0] if label and labels else None

    @staticmethod
    def candidates(cells, name, usual):
        cells = [cell.strip() for cell in cells]
        return [i for i, cell in enumerate(cells) if (cell == name if name else cell.lower() in usual)]

    @staticmethod
    def only(path, line, cells, found, name, option, usual):
        if not found:
            missing = f"no column '{name}'" if name else f"no column is called {', '.join(usual)}"
            raise Failure(f"{path}:{line}: {missing}; there are: {', '.join(cells)}. Choose with {option}")
        if len(found) > 1:
            raise Failure(f"{path}:{line}: columns '{cells[found[0]]}' and '{cells[found[1]]}' could both be meant. Choose with {option}")
        return found[0]


def read_table(path, image="", caption="", label=""):
    """Returns (rows of a table, problems of its other lines). image, caption, label: column names; "" means the usual names."""
    text = read_text(path)
    tsv = not path.lower().endswith(".csv")
    lines = tsv_rows(text) if tsv else csv_rows(path, text)
    rows, problems, columns = [], [], None
    for line, cells in lines:
        if columns is None:
            columns = Columns(path, line, cells, image, caption, label)
            if columns.header:
                continue
        if tsv and columns.caption == columns.cells - 1:
            cells = "\t".join(cells).split("\t", columns.cells - 1)
        if len(cells) != columns.cells:
            problems.append(f"{path}:{line}: {len(cells)} columns instead of {columns.cells}"
                            + ("" if columns.header else " (image, caption: the first line names no columns)"))
            continue
        words = cells[columns.caption] if tsv else re.sub(r"[\r\n]+", " ", cells[columns.caption])
        rows.append(Row(line, cells[columns.image], words, None if columns.label is None else cells[columns.label]))
    return rows, problems


def read_coco(path):
    """Returns the rows of a COCO captions JSON, in the order of its annotations."""
    try:
        coco = json.loads(read_text(path))
        names = {image["id"]: image["file_name"] for image in coco["images"]}
        rows = [Row(f"annotations[{i}]", names[entry["image_id"]], entry["caption"]) for i, entry in enumerate(coco["annotations"])]
        if not all(isinstance(word, str) for row in rows for word in (row.image, row.caption)):
            raise TypeError("file_name and caption are texts")
        return rows
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(f"{path}: not COCO captions JSON (images with id, file_name; annotations with image_id, caption): "
                      f"{error!r}") from None
