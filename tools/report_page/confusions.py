# SPDX-License-Identifier: Apache-2.0
"""Shows which classes a model takes for others, from the files of the evaluator `scoring`.

RUN/eval/NAME/STEP/confusions.json has `images`, `correct` and `classes`, in order of the classes: `name`, `images`,
`correct`, `predicted` (images that are taken for this class), and `wrong`: pairs [class, images] of the classes that images
of this one are taken for, the most frequent first, at most ten.
"""
import html
import json

LISTED = 12             # most frequent confusions
MOST_IN_MATRIX = 150    # classes of a matrix that is drawn
MOST_CLASSES = 200      # rows of the table of classes, the worst ones
MOST_WRONG = 3          # classes that a row of this table names
MATRIX = 480            # side of a drawn matrix, in its own units


def table_of(path):
    """Returns the object of confusions.json; None if it is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = json.load(file)
        classes = [{"name": str(c["name"]), "images": int(c["images"]), "correct": int(c["correct"]),
                    "predicted": int(c["predicted"]), "wrong": [(int(other), int(n)) for other, n in c["wrong"]]}
                   for c in found["classes"]]
        if any(not 0 <= other < len(classes) for c in classes for other, _ in c["wrong"]):
            return None
        return {"images": int(found["images"]), "correct": int(found["correct"]), "classes": classes}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def matrix(classes):
    """Returns a square with a cell for each pair in the file; the darker, the larger its share of the true class."""
    size = MATRIX / len(classes)
    cells = []
    for true, row in enumerate(classes):
        for taken, images in [(true, row["correct"]), *row["wrong"]]:
            if not images:
                continue
            label = f"{row['name']} taken for {classes[taken]['name']}: {images} of {row['images']}"
            cells.append(f'<rect class="{"hit" if true == taken else "miss"}" x="{taken * size:.2f}" y="{true * size:.2f}" '
                         f'width="{size:.2f}" height="{size:.2f}" fill-opacity="{0.25 + 0.75 * images / row["images"]:.2f}">'
                         f'<title>{html.escape(label)}</title></rect>')
    return (f'<svg class="matrix" viewBox="0 0 {MATRIX} {MATRIX}" role="img" aria-label="confusions: rows are true classes, columns '
            f'the classes that images are taken for">{"".join(cells)}</svg>')


def frequent(classes):
    """Returns a table of the most frequent confusions."""
    pairs = sorted(((-images, true, taken) for true, row in enumerate(classes) for taken, images in row["wrong"]))[:LISTED]
    rows = "".join(f"<tr><td>{html.escape(classes[true]['name'])}</td><td>{html.escape(classes[taken]['name'])}</td>"
                   f"<td>{-images} of {classes[true]['images']}</td></tr>" for images, true, taken in pairs)
    return (f"<div><h5>most frequent confusions</h5><div class=\"scroll\"><table><thead><tr><th>true</th><th>taken for</th>"
            f"<th>images</th></tr></thead><tbody>{rows}</tbody></table></div></div>") if rows else ""


def by_class(classes):
    """Returns a table of the classes, those with the lowest share of correct images first."""
    known = sorted((row for row in classes if row["images"]), key=lambda row: (row["correct"] / row["images"], -row["images"]))
    rows = []
    for row in known[:MOST_CLASSES]:
        wrong = ", ".join(f"{classes[other]['name']} {images}" for other, images in row["wrong"][:MOST_WRONG])
        rows.append(f"<tr><td>{html.escape(row['name'])}</td><td>{row['images']}</td><td>{row['correct']}</td>"
                    f"<td>{100 * row['correct'] / row['images']:.0f} %</td><td>{row['predicted']}</td><td>{html.escape(wrong)}</td></tr>")
    what = f"all {len(known)} classes with images" if len(known) <= MOST_CLASSES else f"{MOST_CLASSES} of {len(known):,} classes"
    return (f'<details><summary>{what}, the worst first</summary><div class="scroll"><table><thead><tr><th>class</th><th>images</th>'
            f'<th>correct</th><th>share</th><th>taken for it</th><th>wrong ones, most often</th></tr></thead>'
            f'<tbody>{"".join(rows)}</tbody></table></div></details>')


def of_evaluator(name, step, found):
    classes, images = found["classes"], max(found["images"], 1)
    drawn = matrix(classes) if len(classes) <= MOST_IN_MATRIX else ""
    note = (" Rows of the square are true classes, columns the classes that images are taken for. Green is correct; the stronger a "
            "colour, the larger the share of the true class.") if drawn else ""
    return (f'<h4>{html.escape(name)}</h4><p class="muted">{found["correct"]:,} of {found["images"]:,} images at step {step:,} are taken '
            f'for their class: {100 * found["correct"] / images:.1f} %. By chance, with {len(classes):,} classes, it would be '
            f'{100 / max(len(classes), 1):.2g} %.{note}</p><div class="confusions">{drawn}{frequent(classes)}</div>{by_class(classes)}')


def confusions(run, until=None):
    """Returns the section of a run; "" without confusions. `until` is the last step that counts; None: the newest one."""
    out = []
    for name, steps in run.written("confusions.json", until).items():
        step, path = steps[-1]
        if (found := table_of(path)) and found["classes"]:
            out.append(of_evaluator(name, step, found))
    return "".join(out)
