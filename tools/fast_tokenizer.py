# SPDX-License-Identifier: Apache-2.0
"""Writes the tokenizer of a run's texts as transformers' fast tokenizers read it: the same ids for the same texts. Not a tool itself."""
import base64
import os
import string
import struct

from captioner_files import BYTE, CONTROL, UNKNOWN, arguments, pipelines, protobuf
from console import Failure
from lacking import Lacking

NORMAL, UNIGRAM, BPE = 1, 1, 2
SPACE = "\u2581"  # stands for a space within pieces


class Model:
    """A SentencePiece model: pieces with scores and types, and how texts become normal."""

    def __init__(self, path):
        try:
            with open(path, "rb") as file:
                parts = [(number, dict(protobuf(value))) for number, value in protobuf(file.read()) if number in (1, 2, 3)]
            pieces = [part for number, part in parts if number == 1]
            training, normal = ({k: v for number, part in parts if number == of for k, v in part.items()} for of in (2, 3))
            self.pieces = [piece[1].decode() for piece in pieces]
            self.scores = [struct.unpack("<f", piece.get(2, bytes(4)))[0] for piece in pieces]
            self.types = [piece.get(3, NORMAL) for piece in pieces]
            self.kind, self.charsmap = training.get(3, UNIGRAM), normal.get(2, b"")
            self.prefixed, self.trimmed = normal.get(3, 1), normal.get(4, 1)
            self.end = self.control(training.get(47, b"</s>").decode())
            self.pad = self.control(training.get(48, b"<pad>").decode())
            self.unknown = self.types.index(UNKNOWN)
        except (OSError, ValueError, IndexError, KeyError, TypeError, AttributeError, struct.error):
            raise Failure(f"{path} is not a SentencePiece model") from None
        if self.kind not in (UNIGRAM, BPE):
            raise Lacking(f"{path} splits texts into words or letters, for which transformers has no fast tokenizer")

    def control(self, piece):
        """Returns the id of a control piece, or None."""
        return next((i for i, one in enumerate(self.pieces) if one == piece and self.types[i] == CONTROL), None)

    def merges(self):
        """Returns the pairs that become one piece, the best first."""
        ids, found = {piece: i for i, piece in enumerate(self.pieces)}, []
        for i, piece in enumerate(self.pieces):
            if self.types[i] == NORMAL:
                pairs = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
                found += [(self.scores[i], left, right) for left, right in pairs if left in ids and right in ids]
        found.sort(key=lambda row: -row[0])
        return [f"{left} {right}" for _, left, right in found]

    def network(self):
        """Returns the part of tokenizer.json that finds pieces."""
        bytewise = BYTE in self.types
        if self.kind == UNIGRAM:
            vocabulary = [[piece, score] for piece, score in zip(self.pieces, self.scores)]
            return {"type": "Unigram", "unk_id": self.unknown, "vocab": vocabulary, "byte_fallback": bytewise}
        return {"type": "BPE", "dropout": None, "unk_token": self.pieces[self.unknown], "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": bytewise,
                "vocab": {piece: i for i, piece in enumerate(self.pieces)}, "merges": self.merges()}

    def normalizers(self, lower):
        """Returns the steps that come before the search. Lower-casing leaves letters outside ASCII alone, as the trainer's does."""
        replaced = lambda pattern, content: {"type": "Replace", "pattern": pattern, "content": content}
        steps = [replaced({"String": letter}, letter.lower()) for letter in string.ascii_uppercase] if lower else []
        if self.charsmap:
            steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(self.charsmap).decode()})
        if self.trimmed:
            steps += [{"type": "Strip", "strip_left": True, "strip_right": True}, replaced({"Regex": " {2,}"}, " ")]
        return {"type": "Sequence", "normalizers": steps}


def call_of(deck):
    """Returns the arguments of the deck's op tokenize; refuses what ends or begins texts in a way that other programs lack."""
    calls = [op for ops in pipelines(deck).values() for op in ops if op[0] == "tokenize"]
    if not calls:
        raise Failure("no data set of the deck has texts (an op tokenize)")
    call = arguments(calls[0], "model", "max_len", eos="none", lower=True, pad_value=None, prefix=None)
    if call["eos"] == "yes" or call["prefix"]:
        what = f'prefix = "{call["prefix"]}"' if call["prefix"] else 'eos = "yes", whose end may be cut off'
        raise Lacking(f"tokenize has {what}: transformers' tokenizers end each text or none, and begin none")
    return call


def files(deck, given=None):
    """Returns {file: what transformers.AutoTokenizer reads}. given: the file of the SentencePiece model, if it has moved."""
    call = call_of(deck)
    table = deck["tokenizer"][call["model"]]
    if table["kind"] != "sentencepiece":
        raise Lacking(f"the texts' tokenizer is of kind \"{table['kind']}\", and transformers has those of SentencePiece alone")
    path = given or table["path"]
    if not os.path.isfile(path):
        raise Failure(f"{path}: no such file; name the run's tokenizer with --tokenizer FILE")
    model = Model(path)
    pad = call["pad_value"]
    if pad is None or isinstance(pad, str):
        pad = model.pad if pad is None else model.pieces.index(pad) if pad in model.pieces else None
    if pad is None or not 0 <= pad < len(model.pieces):
        raise Failure(f"{path} has no piece to pad with (pad_value): it is not the run's tokenizer")
    ends = call["eos"] == "sticky"
    if ends and model.end is None:
        raise Failure(f"{path} has no end piece: it is not the run's tokenizer")
    names = {"unk_token": model.unknown, "pad_token": pad, **({"eos_token": model.end} if ends else {})}
    names = {key: (i, model.pieces[i]) for key, i in names.items()}
    added = [{"id": i, "content": piece, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, piece in sorted(set(names.values()))]
    space = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always" if model.prefixed else "never",
             "split": not any(SPACE in piece.lstrip(SPACE) for piece in model.pieces)}
    after = None
    if ends:
        end, text = model.pieces[model.end], {"Sequence": {"id": "A", "type_id": 0}}
        special = {"SpecialToken": {"id": end, "type_id": 0}}
        after = {"type": "TemplateProcessing", "single": [text, special], "pair": [text, special],
                 "special_tokens": {end: {"id": end, "ids": [model.end], "tokens": [end]}}}
    return {"tokenizer.json": {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
                               "normalizer": model.normalizers(call["lower"]), "pre_tokenizer": space, "post_processor": after,
                               "decoder": space, "model": model.network()},
            "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": call["max_len"],
                                      "padding_side": "right", "truncation_side": "right", "clean_up_tokenization_spaces": False,
                                      **{key: piece for key, (_, piece) in names.items()}}}
