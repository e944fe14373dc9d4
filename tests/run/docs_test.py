#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Checks every command of README.md and of the pages as its mark requires.

See tests/README.md, "Commands in pages", for the marks.
"""
import functools
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np
from PIL import Image

import harness
from pages import (BUILDERS, MARKS, SCHEDULERS, SPECIFICATIONS, Command, Piece, citations, cited, pages, read, sections,
                   text_of)

BUILD = os.path.dirname(harness.TRAINER)
EMOJI = f"{harness.SOURCE}/data/emoji"
TRAINERS = ("build/trainer", "trainer", "build/tests/trainer_on_emulator")
FORMATS = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP"}
CAPTIONS = ("a red house", "the small cat", "two birds on a wire", "blue water",
            "an old tree by the road")
# Models of a few parameters and runs of a few steps, in the project that the pages see.
SMALLER = ((r"depth = \d+, width = \d+, mlp = \d+, heads = \d+",
            "depth = 1, width = 32, mlp = 48, heads = 2"),
           (r"decoder( +)= { depth = \d+", r"decoder\1= { depth = 1"),
           ("total_steps = 700, global_batch = 64, micro_batch = 32",
            "total_steps = 20, global_batch = 16, micro_batch = 8"),
           ("total_steps = 400, global_batch = 64, micro_batch = 32",
            "total_steps = 20, global_batch = 16, micro_batch = 8"),
           ("total_steps = (400|2000), global_batch = 64, micro_batch = 64",
            "total_steps = 4, global_batch = 16, micro_batch = 16"),
           ('"resnet", depth = 18, width = 16', '"resnet", depth = 18, width = 4'),
           ("channels = 64, layers", "channels = 16, layers"),
           ("channels = 128, layers", "channels = 32, layers"),
           ("total_steps = 1000, global_batch = 64", "total_steps = 1000, global_batch = 4"))


@functools.cache
def help_of(program):
    """Returns the help text of the trainer or of a tool."""
    path = harness.TRAINER if program in TRAINERS else f"{harness.SOURCE}/{program}"
    done = subprocess.run([path, "--help"], capture_output=True, text=True,
                          timeout=harness.GUARD, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{program} --help: {done.stdout}{done.stderr}"
    return done.stdout


@functools.cache
def ctest():
    """Returns all tests with commands and properties, as CTest lists them.

    This CTest writes its log outside of the build folder, where another one may run.
    """
    with tempfile.TemporaryDirectory(prefix="docs_test_") as folder:
        with open(f"{folder}/CTestTestfile.cmake", "w", encoding="utf-8") as f:
            f.write(f'subdirs("{BUILD}")\n')
        done = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"],
                              capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["tests"]


def labels():
    """Returns the labels of all tests."""
    return {label for test in ctest() for p in test["properties"] if p["name"] == "LABELS"
            for label in p["value"]}


def targets():
    """Returns the names that Ninja can build."""
    with open(f"{BUILD}/build.ninja", encoding="utf-8") as f:
        return set(re.findall(r"^build (\S+?):", f.read(), re.M))


def headings(page):
    """Returns the anchors of a page's headings."""
    text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.S | re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", text, re.M)}


class Docs(harness.RunTest):
    @classmethod
    def setUpClass(cls):
        """Makes one project for all pages, so that a line of several pages runs once."""
        cls.folder = tempfile.mkdtemp(prefix="docs_test_")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.output = {}  # by line that has run
        cls.make_project()
        cls.make_own_images()

    def setUp(self):
        pass

    @classmethod
    def write(cls, name, data):
        path = os.path.join(cls.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())

    @classmethod
    def make_project(cls):
        """Makes the project's folder as a reader of the pages has it, with small decks."""
        for folder in ("build", "inputs", "data"):
            os.mkdir(f"{cls.folder}/{folder}")
        os.symlink(harness.TRAINER, f"{cls.folder}/build/trainer")
        for name in ("tools", "jobs", "tests"):
            os.symlink(f"{harness.SOURCE}/{name}", f"{cls.folder}/{name}")
        os.symlink(EMOJI, f"{cls.folder}/data/emoji")
        for name in os.listdir(f"{harness.SOURCE}/inputs"):
            if name.endswith(".toml"):
                deck = text_of(f"inputs/{name}")
                for pattern, smaller in SMALLER:
                    deck = re.sub(pattern, smaller, deck)
                cls.write(f"inputs/{name}", deck)

    @classmethod
    def make_own_images(cls):
        """Makes data/own as inputs/README.md has it: images of every format, and a TSV."""
        rows = ["filepath\ttitle"]
        for i in range(60):
            extension = sorted(FORMATS)[i % 4]
            size = (20 + i % 7, 24 + i % 5, 3)
            pixels = np.random.default_rng(i).integers(0, 255, size, np.uint8)
            out = io.BytesIO()
            Image.fromarray(pixels).save(out, FORMATS[extension])
            cls.write(f"data/own/photos/{i:04}.{extension}", out.getvalue())
            rows += [f"photos/{i:04}.{extension}\t{CAPTIONS[(i + k) % 5]}"
                     for k in range(1 + i % 2)]
        cls.write("data/own/captions.tsv", "\n".join(rows) + "\n")

    # --------------------------------------------------------------------------- checks by mark

    def run_line(self, line):
        """Runs a line in the project, unless a page before has run it."""
        if line in self.output:
            return
        begin = time.monotonic()
        done = subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=harness.GUARD,
                              cwd=self.folder, stdin=subprocess.DEVNULL,
                              env={**os.environ, "TRAINER": f"{self.folder}/build/trainer"})
        self.assertEqual(done.returncode, 0, f"$ {line}\n{done.stdout}")
        print(f"{time.monotonic() - begin:5.1f} s  {line}", file=sys.stderr)
        self.output[line] = done.stdout

    def run_toml(self, text):
        """Validates tables of a deck together with the rest of own.toml."""
        with open(f"{self.folder}/inputs/own.toml", encoding="utf-8") as f:
            deck = f.read()
        for name in re.findall(r"^\[([\w.]+)\]", text, re.M):
            for table in (name, name.rpartition(".")[0]):
                deck = re.sub(rf"^\[{re.escape(table)}\]\n(?s:.*?)(?=^\[)", "", deck, flags=re.M)
        name = f"page_{len(self.output)}.toml"
        self.write(name, deck + "\n" + text)
        self.run_line(f"build/trainer {name} --validate")

    def run_block(self, piece):
        if piece.language == "toml":
            self.run_toml(piece.text)
        elif piece.language == "python":
            name = f"page_{len(self.output)}.py"
            self.write(name, piece.text)
            self.run_line(f"/usr/bin/python3 {name}")
        else:
            self.assertEqual(piece.language, "sh", "no check runs this language")
            for line in piece.lines():
                self.run_line(line)

    def knows_options(self, command):
        """Checks that the program exists, and that its help names every option."""
        if command.program.startswith("build/tests/"):
            name = os.path.basename(command.program)
            there = os.path.exists(f"{BUILD}/tests/{name}") or name in targets()
            self.assertTrue(there, f"{command.line}: no program {name} in {BUILD}/tests")
        elif command.program not in TRAINERS:
            self.assertTrue(os.access(f"{harness.SOURCE}/{command.program}", os.X_OK),
                            f"{command.line}: no such program")
        if command.program.startswith("build/tests/") and command.program not in TRAINERS:
            return  # these have no help
        for option in command.options():
            self.assertRegex(help_of(command.program), rf"(?<![\w-]){re.escape(option)}(?![\w-])",
                             f"{command.line}: {command.program} --help does not name {option}")

    def runs_elsewhere(self, command, places):
        """Checks that CTest, or one of the places (scripts of tests/run, or files), runs the
        program."""
        name = os.path.basename(command.program)
        if places == "ctest":
            options = {w for w in command.words[1:] if w.startswith("-")}
            found = any(name in map(os.path.basename, t["command"]) and options <= set(t["command"])
                        for t in ctest() if "command" in t)
        else:
            found = any(name in text or name.upper() in text
                        for text in map(self.text_with_harness, places.split(",")))
        self.assertTrue(found, f"{command.line}: {places} does not run this")
        self.knows_options(command)

    @staticmethod
    def text_with_harness(place):
        """Returns the text of a file, or of a script of tests/run with its harness."""
        if "/" in place:
            return text_of(place)
        text = text_of(f"tests/run/{place}.py")
        used = re.findall(r"^from (\w+_harness) ", text, re.M)
        return text + "".join(text_of(f"tests/run/{name}.py") for name in used)

    def can_build(self, line):
        """Checks that presets, targets and labels exist."""
        presets = {p["name"] for p in json.loads(text_of("CMakePresets.json"))["configurePresets"]}
        known = {"--preset": lambda: presets, "--target": targets, "-L": labels,
                 **dict.fromkeys(("--build", "--test-dir", "--install"),
                                 lambda: {"build", *(f"build/{name}" for name in presets)})}
        for part in line.split("&&"):
            words = shlex.split(part, comments=True)
            for option, value in zip(words, words[1:]):
                if option in known:
                    self.assertIn(value, known[option](), line)

    def can_submit(self, command):
        """Checks that the script exists, that its test uses the scheduler's options, and that
        the trainer knows the options after the script."""
        script, test = SCHEDULERS[command.program]
        text = text_of(f"tests/run/{test}.py")
        words = command.words[1:]
        if script:
            self.assertIn(script, words, command.line)
            text += text_of(script)
            at = words.index(script)
            self.knows_options(Command(shlex.join(["build/trainer", *words[at + 1:]])))
            words = words[:at]
        else:
            self.assertIn(command.program, text, command.line)
        names = [w.split("=")[0] for w in words if w.startswith("-")] + command.variables
        for option, value in zip(words, words[1:]):
            if option == "-v":
                names += re.findall(r"(?:^|,)([A-Z_]+)(?==|,|$)", value)
        for name in names:
            self.assertRegex(text, rf"(?<![\w-]){re.escape(name)}(?![\w-])",
                             f"{command.line}: {test}.py does not use {name}")

    def is_printed(self, text, file):
        """Checks that the file contains the words of each line, up to two blanks."""
        for line in text.splitlines():
            self.assertIn(re.split(r"\s{2,}", line.strip())[0], text_of(file))

    def is_drawing(self, text):
        self.assertNotRegex(text, r"(?m)^\s*(\$|tools/|build/|mpirun|sbatch|qsub|cmake|ctest)")

    def check_block(self, piece):
        if piece.mark == "run":
            return self.run_block(piece)
        if piece.mark == "printed-by":
            return self.is_printed(piece.text, piece.value)
        if piece.mark == "drawing":
            return self.is_drawing(piece.text)
        self.assertIn(piece.mark, MARKS, f"a block without a known mark:\n{piece.text}")
        for line in piece.lines():
            if piece.mark == "by":
                self.runs_elsewhere(Command(line), piece.value)
            elif piece.mark == "build":
                self.can_build(line)
            else:
                self.can_submit(Command(line))
        return None

    def check_inline(self, piece):
        command = Command(piece.text)
        if command.program in SCHEDULERS:
            self.can_submit(command)
        elif command.program in BUILDERS:
            self.can_build(piece.text)
        elif piece.mark == "run":
            self.run_line(piece.text)
        elif command.words:
            self.knows_options(command)

    def check_page(self, page):
        """Checks the page from top to bottom."""
        for piece in read(page):
            with self.subTest(page=page, command=piece.text):
                if piece.language == "inline":
                    self.check_inline(piece)
                else:
                    self.check_block(piece)

    def out(self, part):
        """Returns the output of the only line that contains `part`."""
        found = [text for line, text in self.output.items() if part in line]
        self.assertEqual(len(found), 1, part)
        return found[0]

    # --------------------------------------------------------------------------- the pages

    def test_pages_are_found(self):
        folders = ("inputs", "jobs", "kernels", "src", "tests", "tools")
        self.assertEqual(pages(), ["README.md", *(f"{folder}/README.md" for folder in folders), "inputs/keys.md", "inputs/evaluation.md"])
        self.assertLessEqual(len(text_of("README.md").splitlines()), 120)

    def test_links(self):
        """Linked files and headings exist."""
        for page in (*pages(), "jobs/SITES.md", "CHANGELOG.md", *SPECIFICATIONS.values()):
            for link in re.findall(r"\]\(([^)]+)\)", text_of(page)):
                if link.startswith("http"):
                    continue
                file, _, heading = link.partition("#")
                target = os.path.join(os.path.dirname(page), file) if file else page
                target = os.path.normpath(target)
                with self.subTest(page=page, link=link):
                    self.assertTrue(os.path.exists(f"{harness.SOURCE}/{target}"), target)
                    if heading:
                        self.assertIn(heading, headings(target))

    def test_citations(self):
        """Comments cite sections that exist."""
        known = {word: sections(page) for word, page in SPECIFICATIONS.items()}
        found = cited()
        self.assertGreater(len(found), 50)
        self.assertEqual({word for word, _ in found}, set(known))
        self.assertEqual([f"{file}: {word} {number}" for (word, number), file in sorted(found.items())
                          if number not in known[word]], [])
        word = "ssl.md"  # apart from its numbers, so that this line cites nothing
        broken = f"// as published ({word}\n//   6.2, 99.1 to 99.3)\n# {word} 2, and 12 things\n"
        self.assertEqual(list(citations(broken)), [(word, n) for n in ("6.2", "99.1", "99.3", "2")])
        self.assertNotIn("99.1", known[word])

    def test_inputs(self):
        for page in ("README", "keys", "evaluation"):  # the later ones use the run of the first
            self.check_page(f"inputs/{page}.md")
        self.assertGreater(len(self.output), 10)
        self.assertIn("broken     0 of", self.out("tools/index_dataset inputs/own.toml"))
        self.assertIn("44 of 60 samples of 60 images, 90 captions", self.out("own_trial"))
        self.assertIn("finished", self.out("tools/status runs/own"))
        for name in ("batch.png", "runs/own/metrics.png"):
            with Image.open(f"{self.folder}/{name}") as picture:
                self.assertGreater(picture.size[0], 100)
        self.assertIn("step", self.out("0000000450.h5"))
        # A longer run went back to step 450 and continued. The curves have each step once, and the
        # abandoned checkpoints are kept aside.
        rows = self.rows("train", f"{self.folder}/runs/own")
        self.assertEqual([row["step"] for row in rows], list(range(1, 501)))
        self.assertIn("0000000500.h5", os.listdir(f"{self.folder}/runs/own/checkpoints"))
        self.assertTrue(os.path.isdir(f"{self.folder}/runs/own/checkpoints/abandoned"))
        self.assertLess(rows[-1]["loss"], 0.5 * rows[0]["loss"])
        # The packer's last lines make a deck.
        self.assertIn('fields = { image = "image", captions = "json:captions" }',
                      self.out("data/own_shards"))

    def test_jobs(self):
        self.check_page("jobs/README.md")
        modes = re.findall(r"ROW\((\w+)\)", text_of("src/modes/registry.cpp"))
        page = text_of("jobs/README.md")
        self.assertEqual(re.search(r"--mode ([\w|]+)", page)[1].split("|"), modes)
        self.assertEqual(re.findall(r"^\| `(\w+)` \|", page.partition("## Modes\n")[2].partition("\n## ")[0], re.M), modes)

    def test_sites(self):
        self.check_page("jobs/SITES.md")

    def test_kernels(self):
        self.check_page("kernels/README.md")

    def test_readme(self):
        self.check_page("README.md")

    def test_src(self):
        self.check_page("src/README.md")

    def test_tests(self):
        self.check_page("tests/README.md")

    def test_tools(self):
        self.check_page("tools/README.md")

    def test_a_wrong_page_is_found(self):
        """The checks fail for commands that do not exist."""
        wrong = (
            (self.can_build, "cmake --preset nothing"),
            (self.can_build, "ctest --test-dir build -L nothing"),
            (self.knows_options, Command("tools/status --nothing RUN")),
            (self.knows_options, Command("build/tests/nothing FILE")),
            (self.can_submit, Command("sbatch --nothing jobs/slurm.sh inputs/own.toml")),
            (self.can_submit, Command("sbatch jobs/slurm.sh inputs/own.toml --nothing")),
            (self.can_submit, Command("qsub -v NOTHING=1 jobs/pbs.sh")),
            (self.runs_elsewhere, Command("build/tests/test_kernels --nothing"), "ctest"),
            (self.runs_elsewhere, Command("tools/status"), "device_test"),
            (self.check_block, Piece("sh", "", "true\n")),
            (self.check_block, Piece("sh", "run", "false\n")),
            (self.check_block, Piece("text", "printed-by=tools/quickstart", "loss so far  1\n")),
            (self.check_block, Piece("text", "drawing", "mpirun x\n")))
        for call, *words in wrong:
            with self.subTest(words), self.assertRaises(AssertionError):
                call(*words)


if not os.path.exists(f"{EMOJI}/summary.json"):
    print("skipped: no data/emoji (tools/make_emoji_dataset data/emoji)")
    sys.exit(77)
if __name__ == "__main__":
    harness.main()
