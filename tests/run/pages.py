# SPDX-License-Identifier: Apache-2.0
"""Reads the commands of README.md and of the pages (tests/README.md, "Commands in pages")."""
import os
import re
import shlex

import harness

# Programs of a scheduler: the script that must be submitted, and the test that runs it.
SCHEDULERS = {"sbatch": ("jobs/slurm.sh", "slurm_test"), "scancel": ("", "slurm_test"),
              "qsub": ("jobs/pbs.sh", "pbs_test"), "qalter": ("", "pbs_test"),
              "bsub": ("jobs/lsf.sh", "lsf_flux_test"), "flux": ("jobs/flux.sh", "lsf_flux_test")}
BUILDERS = ("cmake", "ctest")
OTHERS = "|".join((*SCHEDULERS, *BUILDERS))
# A command in a sentence begins like this. A name alone, without arguments, is no command.
INLINE = rf"([A-Z_]+=\S+ )*(tools/|build/|mpirun |trainer |{OTHERS})"
MARKS = ("run", "by", "build", "cluster", "printed-by", "drawing")
# The page behind each word that comments cite, and a citation: the word, then numbers of sections.
SPECIFICATIONS = {"cappa.md": "src/models/captions/cappa.md", "ssl.md": "src/models/embeddings/ssl.md",
                  "siglip.md": "src/models/pairs/siglip.md", "mae.md": "src/models/masked/mae.md",
                  "design": "src/decisions.md"}
NUMBER = r"\d+(?:\.\d+)*"
CITATION = re.compile(rf"\b(cappa\.md|ssl\.md|siglip\.md|mae\.md|design) ({NUMBER}(?:(?:, | to | and ){NUMBER})*)(?![\w-])")


def pages():
    """Returns README.md, the page of each folder, and the further pages of inputs in the order in which they are read."""
    folders = [f for f in sorted(os.listdir(harness.SOURCE)) if f not in ("build", "data", "runs")]
    found = (f"{folder}/README.md" for folder in folders)
    return ["README.md", *(p for p in found if os.path.exists(f"{harness.SOURCE}/{p}")), "inputs/keys.md", "inputs/evaluation.md"]


def text_of(path):
    """Returns the text of a file of the project."""
    with open(f"{harness.SOURCE}/{path}", encoding="utf-8") as f:
        return f.read()


def sections(page):
    """Returns the numbers of a page's headings."""
    return set(re.findall(rf"^#+ ({NUMBER})\.? ", text_of(page), re.M))


def citations(text):
    """Yields (word, section) of all citations in a text, also of those that lines of a comment break."""
    text = re.sub(r"\n[ \t]*(?://|#)?[ \t]*", " ", text)
    for word, numbers in CITATION.findall(text):
        for number in re.findall(NUMBER, numbers):
            yield word, number


def cited():
    """Returns {(word, section): a file that cites it} of the tree."""
    found = {}
    for folder in ("src", "kernels", "tests", "tools", "inputs", "jobs"):
        for path, _, names in os.walk(f"{harness.SOURCE}/{folder}"):
            for name in names:
                if name.endswith((".hpp", ".cpp", ".cu", ".cuh", ".def", ".py", ".sh", ".md", ".toml", ".txt")):
                    file = os.path.relpath(f"{path}/{name}", harness.SOURCE)
                    found.update((citation, file) for citation in citations(text_of(file)))
    return found


class Command:
    """A line that a reader may type: its variables, and its words without mpirun's."""

    def __init__(self, line):
        self.line = line
        words = shlex.split(line, comments=True)
        self.variables = []
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0], re.S):
            self.variables.append(words.pop(0).split("=")[0])
        if words and words[0] == "mpirun":
            while words and not words[0].startswith(("build/", "tools/")):
                words.pop(0)
        self.words = words
        self.program = words[0] if words else ""

    def options(self):
        return [w.split("=")[0] for w in self.words[1:] if re.match(r"--?[A-Za-z]", w)]


class Piece:
    """A fenced block with its language and mark ("by=NAME": mark "by", value "NAME"), or an inline
    command, whose language is "inline" and whose mark is "run" or ""."""

    def __init__(self, language, mark, text):
        self.language, self.text = language, text
        self.mark, _, self.value = mark.partition("=")

    def lines(self):
        """Returns the commands of a block."""
        return [line for line in self.text.splitlines() if line.strip() and line[0] != "#"]


def read(page):
    """Returns the pieces of a page in their order."""
    found = []
    run, table = False, False  # after the comment <!-- run -->; within the table below it
    for part in re.finditer(r"^```(.*)\n((?s:.*?))^```$|^(.*)\n", text_of(page), re.M):
        if part[1] is not None:
            language, _, mark = part[1].partition(" ")
            found.append(Piece(language, mark, part[2]))
            continue
        line = part[3]
        if line == "<!-- run -->":
            run = True
        elif line.startswith("|"):
            table = True
        elif table:
            run, table = False, False
        found += [Piece("inline", "run" if run and table else "", code)
                  for code in re.findall(r"`([^`]+)`", line)
                  if len(code.split()) > 1 and re.match(INLINE, code)]
    return found
