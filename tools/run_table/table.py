# SPDX-License-Identifier: Apache-2.0
"""Sorts the rows of many runs, finds what differs in their decks, and prints them as text or JSON."""
import fnmatch
import json
import math
import sys

from console import Failure, short, span
from report_page.deck import written
from run_table.gather import natural

MOST_KEYS, MOST_TEXT = 6, 28    # keys of decks in the text, and letters of a value there
STATES = ("running", "finished", "stopped", "killed", "failed", "unknown", "")      # in this order when sorted
NUMBERS = ("step", "loss", "best", "hours", "core_hours", "goodput", "starts", "failures", "begun", "last")
SORTS = ("run", "state", *NUMBERS)


# ------------------------------------------------------------------------------------------------------------- decks

def differing(rows):
    """Returns {place: number of different values} of the keys that are not alike in all decks. A deck without the key counts."""
    decks = [row["deck"] for row in rows if row.get("deck")]
    places = dict.fromkeys(place for found in decks for place in found)
    counts = {place: len({written(found[place]) if place in found else None for found in decks}) for place in places}
    return {place: count for place, count in counts.items() if count > 1}


def shown_keys(rows, wanted, most):
    """Returns (keys of decks to show, number of keys that differ and are not shown). `wanted`: patterns, or nothing for those keys
    that split the runs in most ways."""
    found = differing(rows)
    if wanted:
        places = dict.fromkeys(place for row in rows for place in row.get("deck", {}))
        chosen = [place for pattern in wanted for place in places if fnmatch.fnmatchcase(place, pattern)]
        if not chosen:
            raise Failure(f"--keys: no deck has a key {' or '.join(wanted)}")
        return list(dict.fromkeys(chosen)), 0
    ranked = sorted(found, key=lambda place: -found[place])[:most]
    return [place for place in found if place in ranked], len(found) - len(ranked)


def short_names(places):
    """Returns {place: its shortest end that no other place has}."""
    names = {}
    for place in places:
        parts = place.split(".")
        ends = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        names[place] = next((end for end in ends if sum(other == end or other.endswith("." + end) for other in places) == 1), place)
    return names


# ------------------------------------------------------------------------------------------------------------- order

def key_of(row, by):
    """Returns what a row is sorted by; rows without a value come last."""
    if by == "run":
        return (0, natural(row["run"]))
    if by == "state":
        return (0, STATES.index(row["state"]))
    if by == "best":
        best = row.get("best")
        return (1, 0) if not best else (0, -best["value"] if best["end"] == "max" else best["value"])
    if by in NUMBERS:
        return (1, 0) if row.get(by) is None else (0, row[by])
    value = row.get("deck", {}).get(by)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return (2, "") if value is None else (0, value) if number else (1, written(value))


def ordered(rows, by, reverse, last):
    """Returns the rows in the order of a column or a key of the deck, best values first; of the `last` newest runs if given."""
    if by not in SORTS and not any(by in row.get("deck", {}) for row in rows):
        raise Failure(f"--sort: no column and no key of a deck is called '{by}'; columns are {', '.join(SORTS)}")
    if last is not None:
        newest = sorted(rows, key=lambda row: row.get("last") or 0, reverse=True)[:last]
        rows = [row for row in rows if any(row is kept for kept in newest)]
    there = sorted((row for row in rows if key_of(row, by)[0] == 0), key=lambda row: key_of(row, by), reverse=reverse)
    rest = sorted((row for row in rows if key_of(row, by)[0] != 0), key=lambda row: key_of(row, by), reverse=reverse)
    return there + rest


# ------------------------------------------------------------------------------------------------------------- text

def cells(row, keys):
    """Returns the texts of a row. "~": estimated from a part of the metrics."""
    best, guess = row.get("best"), "" if row.get("whole", True) else "~"
    total = row.get("total_steps")
    return [row["run"], row["state"] or "–",
            "" if row.get("step") is None else f"{row['step']:,}" + (f" of {total:,}" if total else ""),
            "" if row.get("loss") is None else short(row["loss"]),
            f"{guess}{short(best['value'])} {best['measure']} @{best['step']:,}" if best else "",
            "" if row.get("hours") is None else guess + span(3600 * row["hours"]),
            "" if row.get("core_hours") is None else short(row["core_hours"]),
            "" if row.get("goodput") is None else f"{guess}{100 * row['goodput']:.1f} %",
            "" if row.get("starts") is None else str(row["starts"]),
            f"{row['failures']} ({span(3600 * row['failures_hours'])})" if row.get("failures") else "",
            *(cut(written(row["deck"][key])) if key in row.get("deck", {}) else "" for key in keys)]


def cut(text):
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT - 1] + "…"


def text_of(rows, wanted):
    """Returns the table for a terminal, with a line for whatever is missing or broken in a directory."""
    keys, left = shown_keys(rows, wanted, MOST_KEYS)
    names = short_names(keys)
    head = ["run", "state", "step", "loss", "best", "time", "core hours", "goodput", "starts", "failures", *(names[key] for key in keys)]
    body = [cells(row, keys) for row in rows if row["state"]]
    filled = [i for i, title in enumerate(head) if i == 0 or any(line[i] for line in body)]
    widths = [max(len(line[i]) for line in [head, *body]) for i in filled]
    out = ["  ".join(line[i].ljust(width) for i, width in zip(filled, widths)).rstrip() for line in [head, *body]] if body else []
    out += [f"{row['run']}: {row['problem']}" for row in rows if row["problem"]]
    if left:
        out.append(f"{left} more keys differ between the decks: --keys PATTERN, --json and --html show them")
    if not all(row.get("whole", True) for row in rows):
        out.append("~: estimated from parts of long metrics; --whole reads all of them")
    return "\n".join(out)


# ------------------------------------------------------------------------------------------------------------- JSON

def plain(value):
    """Returns a value for JSON, which has no infinity: those are texts, as in metrics.jsonl."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def json_of(rows, wanted):
    """Returns a list of objects, a line each, with the keys of the decks that differ or are wanted."""
    keys, _ = shown_keys(rows, wanted, sys.maxsize)
    lines = []
    for row in rows:
        one = {name: plain(value) for name, value in row.items() if name not in ("train", "evals", "deck")}
        if row.get("best"):
            one["best"] = {name: plain(value) for name, value in row["best"].items()}
        one["deck"] = {key: row["deck"][key] for key in keys if key in row.get("deck", {})}
        lines.append(json.dumps(one, default=str))
    return "[\n" + ",\n".join(lines) + "\n]"
