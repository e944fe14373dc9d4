# SPDX-License-Identifier: Apache-2.0
"""Files of captions: tables (TSV, CSV, JSONL) and COCO captions JSON. Not a tool itself.

The rules are those of src/data/sources/caption_table.hpp.
"""
import csv
import glob
import io
import json
import os
import re
import stat

from console import Failure

IMAGE_NAMES = ("image", "images", "image_path", "image_file", "img", "img_path", "filepath", "file_path", "filename", "file_name", "file",
               "path")
CAPTION_NAMES = ("caption", "captions", "title", "text", "description", "sentence")


MOST_CAPTION = 1 << 20      # bytes
BREAKS = re.compile("[\n\v\f\r\x85\u2028\u2029]+")
MARK_WITHIN = re.compile("(?<=[\r\n])\ufeff+")     # at the start of a file that was joined to another
CELL_END = re.compile("[\t\n]|\\Z")
QUOTED = re.compile('"((?:[^"]|"")*)"')    # a cell as writers of CSV put it

# Byte order marks; that of UTF-32 may begin with that of UTF-16. Without one, the zero bytes of the first letters tell.
WIDE_TEXT = (("UTF-32", re.compile(rb"\xff\xfe\0\0|\0\0\xfe\xff|[^\0]\0\0\0|\0\0\0[^\0]")),
             ("UTF-16", re.compile(rb"\xff\xfe|\xfe\xff|[^\0]\0[^\0]\0|\0[^\0]\0[^\0]")))
POINTERS = ((b"version https://git-lfs.github.com/spec/", "Git LFS", "git lfs pull"), (b"/annex/objects/", "git-annex", "git annex get"))


def reason(error):
    """Returns why a file cannot be read."""
    return "a link that leads nowhere" if os.path.islink(error.filename) and not os.path.exists(error.filename) else error.strerror


def missing(path):
    """Returns what is at a path where os.path.exists() finds nothing."""
    return "a link that leads nowhere" if os.path.islink(path) else "there is no such file or folder"


def read_text(path, errors="strict"):
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):     # a pipe would wait for its writer
            raise Failure(f"{path}: not a regular file")
        with open(path, "rb") as f:
            data = f.read()
    except OSError as error:
        raise Failure(f"{path}: {reason(error)}") from None
    for head, name, command in POINTERS:
        if data.startswith(head):
            raise Failure(f"{path}: this is a pointer of {name}, not the file itself: get the file with {command}")
    for name, begin in WIDE_TEXT:
        if begin.match(data):
            raise Failure(f"{path} is {name} text: save it as UTF-8")
    try:
        return data.decode(errors=errors).lstrip("\ufeff")
    except UnicodeDecodeError as error:
        raise Failure(f"{path}: not UTF-8 text (byte {error.start})") from None


def on_one_line(text):
    """Returns a caption without line breaks at its ends; each other run of them becomes one space."""
    return BREAKS.sub(" ", text.strip("\n\v\f\r\x85\u2028\u2029"))


def caption_problem(text):
    """Returns why the trainer refuses a caption, or ""."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:      # read with surrogateescape, or half of a surrogate pair in JSON
        return "is not UTF-8"
    if "\0" in text:
        return "holds a zero byte"
    return f"has {size} bytes; at most {MOST_CAPTION} are read" if size > MOST_CAPTION else ""


def unsafe_name(name):
    """Returns why the trainer refuses such a name, or ""."""
    if not name:
        return "is empty"
    if name.startswith("/"):
        return "is an absolute path; names are relative to the folder of the images"
    if any(ord(c) < 0x20 or ord(c) == 0x7F for c in name):
        return "holds a control character"
    return "leads out of its folder" if ".." in name.split("/") else ""


def files_of(pattern):
    """Returns the files of a deck's pattern, as part-{00..12}.csv or *.tsv; no other text has a file that matches."""
    if os.path.exists(pattern):
        return [pattern]
    names = [""]
    for piece in re.split(r"(\{[^{}]*\})", pattern):
        texts = piece[1:-1].split(",") if piece.startswith("{") else [piece]
        if span := re.fullmatch(r"\{([0-9]+)\.\.([0-9]+)\}", piece):
            padded = any(len(number) > 1 and number[0] == "0" for number in span.groups())
            width = max(map(len, span.groups())) if padded else 1
            texts = [f"{number:0{width}}" for number in range(int(span[1]), int(span[2]) + 1)]
        names = [name + text for name in names for text in texts]
    found = [sorted(glob.glob(name), key=os.fsencode) for name in names]
    for name, files in zip(names, found):
        if not files:
            raise Failure(f"{name}: {missing(name)}")
    return [file for files in found for file in files]


class Row:
    def __init__(self, line, image, caption, label=None):
        self.line, self.image, self.caption, self.label = line, image, caption, label


def csv_rows(path, text):
    csv.field_size_limit(1 << 30)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:  # an open quote would swallow the rows after it
        raise Failure(f"{path}:{reader.line_num}: {error}") from None


def quoted_tsv_rows(text):
    """Yields (line, cells) of a TSV whose quotes a writer of CSV has put (src/data/sources/tsv_quotes.hpp); None if one is not
    such a quote."""
    line, cells, at, begin = 1, [], 0, 0
    while at < len(text):
        cell = QUOTED.match(text, at)
        end = CELL_END.search(text, cell.end() if cell else at)
        raw = text[at:end.start()].removesuffix("\r")
        if cell and (cell[0] != raw or {"\n", "\t"} <= set(raw)) or not cell and '"' in raw:
            yield None
            return
        cells.append(cell[1].replace('""', '"') if cell else raw)
        at = end.end()
        if end[0] != "\t" or at == len(text):
            cells += [""] * (end[0] == "\t")
            if cells != [""] or cell:
                yield line, cells
            line, cells, begin = line + text.count("\n", begin, at), [], at


def unquoted(cell):
    """Returns the content of a cell that can only be a writer's: with doubled quotes between its quotes."""
    found = QUOTED.fullmatch(cell)
    return found[1].replace('""', '"') if found and '""' in found[1] else cell


def tsv_rows(text):
    """Yields (line, cells, true if the cells may still have a writer's quotes)."""
    lone = "\n" not in text and "\r" in text
    if '"' in text and not lone and None not in (rows := list(quoted_tsv_rows(text))):
        yield from ((line, cells, False) for line, cells in rows)
        return
    for number, line in enumerate(text.split("\r" if lone else "\n"), 1):
        line = line.removesuffix("\r")
        if line:
            yield number, line.split("\t"), True


def text_of(value):
    """Returns a text of JSON, or a whole number as text, also if it is written as 7.0; None for other values."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) <= 1 << 53 or isinstance(value, int):
        return str(int(value))
    return None


def json_rows(path, image, caption, label):
    """Returns (rows, problems) of a table with a JSON object per line."""
    rows, problems = [], []
    for number, line in enumerate(MARK_WITHIN.sub("", read_text(path)).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            why = "" if isinstance(row, dict) else f": a {type(row).__name__}"
        except ValueError as error:
            why = f": {error}"
        if why and line.lstrip().startswith("["):
            why = ": a list; write each row as an object on a line of its own"
        if why:
            problems.append(f"{path}:{number}: is not a JSON object{why}")
            continue
        columns = Columns(path, number, list(row), image, caption, label, header=True)
        values = list(row.values())
        name, words = text_of(values[columns.image]), text_of(values[columns.caption])
        if name is None or words is None:
            problems.append(f"{path}:{number}: image and caption are texts or whole numbers")
            continue
        rows.append(Row(number, name, on_one_line(words), None if columns.label is None else values[columns.label]))
    return rows, problems


class Columns:
    """Positions of image, caption and label in a row."""

    def __init__(self, path, line, cells, image, caption, label, header=False):
        self.header = header or bool(image or caption)
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


def read_captions(path, image="", caption="", label=""):
    """Returns (rows of a table or of COCO's JSON, problems of its other lines). image, caption, label: column names; "" means
    the usual names."""
    if path.lower().endswith(".json"):
        return read_coco(path), []
    if not path.lower().endswith((".tsv", ".csv", ".jsonl")):
        raise Failure(f"{path}: neither .tsv, .csv or .jsonl (columns image, caption) nor .json (COCO captions)")
    if path.lower().endswith(".jsonl"):
        return json_rows(path, image, caption, label)
    text = MARK_WITHIN.sub("", read_text(path, errors="surrogateescape"))   # a row that is not UTF-8 does not spoil the others
    tsv = not path.lower().endswith(".csv")
    lines = tsv_rows(text) if tsv else ((line, cells, False) for line, cells in csv_rows(path, text))
    rows, problems, columns = [], [], None
    for line, cells, raw in lines:
        if columns is None:
            columns = Columns(path, line, cells, image, caption, label)
            if columns.header:
                continue
        if tsv and columns.caption == columns.cells - 1 and len(cells) > columns.cells:
            cells = "\t".join(cells).split("\t", columns.cells - 1)
        if len(cells) != columns.cells:
            problems.append(f"{path}:{line}: {len(cells)} columns instead of {columns.cells}"
                            + ("" if columns.header else " (image, caption: the first line names no columns)"))
            continue
        if tsv and re.search("\r.*\t", cells[-1]):
            problems.append(f"{path}:{line}: a carriage return with a tab after it: end every line with \\n or \\r\\n")
            continue
        cells = [unquoted(cell) for cell in cells] if raw else cells
        words = on_one_line(cells[columns.caption])
        rows.append(Row(line, cells[columns.image], words, None if columns.label is None else cells[columns.label]))
    return rows, problems


def coco_object(pairs):
    """Returns an object of JSON. Two lists of one name would lose the first, which the trainer refuses."""
    out = dict(pairs)
    for key in ("images", "annotations"):
        if len(out) < len(pairs) and sum(name == key and isinstance(value, list) for name, value in pairs) > 1:
            raise ValueError(f'two lists "{key}": join them')
    return out


def read_coco(path):
    """Returns the rows of a COCO captions JSON, in the order of its annotations."""
    try:
        coco = json.loads(read_text(path), object_pairs_hook=coco_object)
        if isinstance(coco, list):
            raise Failure(f"{path}: a list; a .json file is an object of COCO captions (images with id, file_name; annotations with "
                          "image_id, caption). Write rows to a .jsonl file, one object a line, with an image and a caption")
        names = {}
        for image in coco["images"]:
            if (key := text_of(image["id"])) in names:
                raise ValueError(f"two images have the id {key}")
            names[key] = image["file_name"]
        rows = [Row(f"annotations[{i}]", names[text_of(entry["image_id"])], entry["caption"])
                for i, entry in enumerate(coco["annotations"])]
        if None in names or not all(isinstance(word, str) for row in rows for word in (row.image, row.caption)):
            raise TypeError("ids are texts or whole numbers; file_name and caption are texts")
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(f"{path}: not COCO captions JSON (images with id, file_name; annotations with image_id, caption): "
                      f"{error!r}") from None
    for row in rows:
        row.caption = on_one_line(row.caption)
    return rows
