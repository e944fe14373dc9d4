#!/usr/bin/python3
"""Every command of README.md and of the pages is checked as its mark says (tests/README.md, "Commands in pages")."""
import functools
import glob
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

BUILD = os.path.dirname(harness.TRAINER)
EMOJI = f"{harness.SOURCE}/data/emoji"
PAGES = ["README.md", *sorted(f"{folder}/README.md" for folder in os.listdir(harness.SOURCE)
                              if folder not in ("build", "data", "runs")
                              and os.path.exists(f"{harness.SOURCE}/{folder}/README.md"))]
SCHEDULERS = {"sbatch": ("jobs/slurm.sh", "slurm_test"), "scancel": ("", "slurm_test"),
              "qsub": ("jobs/pbs.sh", "pbs_test"), "qalter": ("", "pbs_test")}
BUILDERS = ("cmake", "ctest")
MARKS = ("run", "by", "build", "cluster", "printed-by", "drawing")


class Command:
    """A line that a reader may type: its environment, its words without mpirun's, and its program."""

    def __init__(self, line):
        self.line = line
        words = shlex.split(line, comments=True)
        self.environment = []
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0], re.S):
            self.environment.append(words.pop(0).split("=")[0])
        if words and words[0] == "mpirun":
            at = next((i for i, w in enumerate(words) if re.match(r"(build|tools)/", w)), len(words))
            words = words[at:]
        self.words = words
        self.program = words[0] if words else ""

    def options(self):
        return [w.split("=")[0] for w in self.words[1:] if re.match(r"--?[A-Za-z]", w)]


def lines_of(text):
    """Commands of a block of shell lines."""
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def read(page):
    """The page's fenced blocks as (language, mark, value, text), and its inline commands as (run, text), in order."""
    with open(f"{harness.SOURCE}/{page}", encoding="utf-8") as f:
        text = f.read()
    found = []
    run, table = False, False
    for part in re.finditer(r"^```(.*)\n((?s:.*?))^```$|^(.*)\n", text, re.M):
        if part[1] is not None:
            language, _, mark = part[1].partition(" ")
            mark, _, value = mark.partition("=")
            found.append((language, mark, value, part[2]))
            continue
        line = part[3]
        if line == "<!-- run -->":
            run = True
        elif line.startswith("|"):
            table = True
        elif table:
            run, table = False, False
        for code in re.findall(r"`([^`]+)`", line):
            # A placeholder in capitals stands for a word that the reader knows.
            if len(code.split()) > 1 and re.match(r"([A-Z_]+=\S+ )*(tools/|build/|mpirun |trainer |" +
                                                  "|".join((*SCHEDULERS, *BUILDERS)) + ")", code):
                found.append(("inline", "run" if run and table else "", "", code))
    return found


@functools.cache
def help_of(program):
    """The help text of a program of ours; programs of tests have none."""
    path = harness.TRAINER if program in ("build/trainer", "trainer", "build/tests/trainer_on_emulator") else \
        f"{harness.SOURCE}/{program}"
    done = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=harness.GUARD,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{program} --help: {done.stdout}{done.stderr}"
    return done.stdout


@functools.cache
def ctest():
    """The commands and labels of all tests, as CTest lists them. It writes its log outside of the build folder, where
    another CTest may run."""
    with tempfile.TemporaryDirectory(prefix="docs_test_") as folder:
        with open(f"{folder}/CTestTestfile.cmake", "w", encoding="utf-8") as f:
            f.write(f'subdirs("{BUILD}")\n')
        done = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"], capture_output=True, text=True,
                              check=True)
    return json.loads(done.stdout)["tests"]


def labels():
    return {label for t in ctest() for p in t["properties"] if p["name"] == "LABELS" for label in p["value"]}


class Docs(harness.RunTest):
    maxDiff = None

    # ------------------------------------------------------------------------------------------------ a small project

    @classmethod
    def setUpClass(cls):
        """All pages share one project, so that a line that several pages have runs once."""
        cls.folder = tempfile.mkdtemp(prefix="docs_test_")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.output = {}
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
        """The project's folder as a reader of the pages has it; models and the emoji run are small."""
        for folder in ("build", "inputs", "data"):
            os.mkdir(f"{cls.folder}/{folder}")
        os.symlink(harness.TRAINER, f"{cls.folder}/build/trainer")
        for name in ("tools", "jobs", "tests"):
            os.symlink(f"{harness.SOURCE}/{name}", f"{cls.folder}/{name}")
        os.symlink(EMOJI, f"{cls.folder}/data/emoji")
        for path in glob.glob(f"{harness.SOURCE}/inputs/*.toml"):
            with open(path, encoding="utf-8") as f:
                deck = f.read()
            deck = re.sub(r"depth = \d+, width = \d+, mlp = \d+, heads = \d+", "depth = 1, width = 32, mlp = 48, heads = 2",
                          deck)
            deck = re.sub(r"decoder( +)= { depth = \d+", r"decoder\1= { depth = 1", deck)
            deck = deck.replace("total_steps = 700, global_batch = 64, micro_batch = 32",
                                "total_steps = 20, global_batch = 16, micro_batch = 8")
            deck = deck.replace("total_steps = 1000, global_batch = 64", "total_steps = 1000, global_batch = 4")
            cls.write(f"inputs/{os.path.basename(path)}", deck)

    @classmethod
    def make_own_images(cls, samples=60):
        """data/own as inputs/README.md has it: images of every format, a TSV with a header."""
        formats = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP"}
        words = ["a red house", "the small cat", "two birds on a wire", "blue water", "an old tree by the road"]
        rows = ["filepath\ttitle"]
        for i in range(samples):
            extension = sorted(formats)[i % 4]
            rng = np.random.default_rng(i)
            out = io.BytesIO()
            Image.fromarray(rng.integers(0, 255, (20 + i % 7, 24 + i % 5, 3), np.uint8)).save(out, formats[extension])
            cls.write(f"data/own/photos/{i:04}.{extension}", out.getvalue())
            rows += [f"photos/{i:04}.{extension}\t{words[(i + k) % 5]}" for k in range(1 + i % 2)]
        cls.write("data/own/captions.tsv", "\n".join(rows) + "\n")

    # ------------------------------------------------------------------------------------------------ the checks

    def run_line(self, line):
        if line in self.output:
            return
        begin = time.monotonic()
        done = subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=harness.GUARD, cwd=self.folder, stdin=subprocess.DEVNULL,
                              env={**os.environ, "TRAINER": f"{self.folder}/build/trainer"})
        self.assertEqual(done.returncode, 0, f"$ {line}\n{done.stdout}")
        print(f"{time.monotonic() - begin:5.1f} s  {line}", file=sys.stderr)
        self.output[line] = done.stdout

    def run_toml(self, text):
        """Tables of a deck: with the rest of own.toml they make a valid one."""
        with open(f"{self.folder}/inputs/own.toml", encoding="utf-8") as f:
            deck = f.read()
        for name in re.findall(r"^\[data\.(\w+)\]", text, re.M):
            deck = re.sub(rf"^\[data\.{name}\]\n(?s:.*?)(?=^\[)", "", deck, flags=re.M)
        self.write("page.toml", deck + "\n" + text)
        self.run_line("build/trainer page.toml --validate")

    def knows_options(self, command):
        """The program is there, and its help names every option."""
        if command.program.startswith("build/tests/"):
            name = os.path.basename(command.program)
            there = os.path.exists(f"{BUILD}/tests/{name}") or name in self.ninja_targets()
            self.assertTrue(there, f"{command.line}: no program {name} in {BUILD}/tests")
            if name != "trainer_on_emulator":
                return
        elif command.program not in ("build/trainer", "trainer"):
            self.assertTrue(os.access(f"{harness.SOURCE}/{command.program}", os.X_OK), f"{command.line}: no such program")
        for option in command.options():
            self.assertRegex(help_of(command.program), rf"(?<![\w-]){re.escape(option)}(?![\w-])",
                             f"{command.line}: {command.program} --help does not name {option}")

    @staticmethod
    def ninja_targets():
        with open(f"{BUILD}/build.ninja", encoding="utf-8") as f:
            return set(re.findall(r"^build (\S+?):", f.read(), re.M))

    def run_elsewhere(self, command, places):
        """One of the places, scripts of tests/run or files, has the program; for "ctest" a test with these options."""
        name = os.path.basename(command.program)
        if places == "ctest":
            words = {w for w in command.words[1:] if w.startswith("-")}
            found = any(name in map(os.path.basename, t["command"]) and words <= set(t["command"])
                        for t in ctest() if "command" in t)
        else:
            found = any(name in text or name.upper() in text for text in map(self.text_of, places.split(",")))
        self.assertTrue(found, f"{command.line}: {places} does not run this")
        self.knows_options(command)

    @staticmethod
    def text_of(place):
        """The text of a file, of a script with its harness."""
        paths = [f"{harness.SOURCE}/{place}" if "/" in place else f"{harness.SOURCE}/tests/run/{place}.py"]
        out = ""
        for path in paths:
            with open(path, encoding="utf-8") as f:
                out += f.read()
            if len(paths) == 1:
                paths += [f"{harness.SOURCE}/tests/run/{name}.py" for name in re.findall(r"^from (\w+_harness) ", out, re.M)]
        return out

    def can_build(self, line):
        """Presets, targets and labels exist."""
        for part in line.split("&&"):
            words = shlex.split(part, comments=True)
            with open(f"{harness.SOURCE}/CMakePresets.json", encoding="utf-8") as f:
                presets = {p["name"]: p.get("binaryDir", "") for p in json.load(f)["configurePresets"]}
            folders = {"build", *(f"build/{name}" for name in presets)}
            for option, value in zip(words, words[1:]):
                if option == "--preset":
                    self.assertIn(value, presets, line)
                elif option in ("--build", "--test-dir", "--install"):
                    self.assertIn(value, folders, line)
                elif option == "--target":
                    self.assertIn(value, self.ninja_targets(), line)
                elif option == "-L":
                    self.assertIn(value, labels(), line)

    def can_submit(self, command):
        """The script exists, its test uses the options of the scheduler, and the trainer knows those behind the script."""
        script, test = SCHEDULERS[command.program]
        with open(f"{harness.SOURCE}/tests/run/{test}.py", encoding="utf-8") as f:
            text = f.read()
        if script:
            self.assertIn(script, command.words, command.line)
            with open(f"{harness.SOURCE}/{script}", encoding="utf-8") as f:
                text += f.read()
            at = command.words.index(script)
            for option in Command(" ".join(["build/trainer", *map(shlex.quote, command.words[at + 1:])])).options():
                self.assertIn(option, help_of("trainer"), command.line)
            words = command.words[1:at]
        else:
            words = command.words[1:]
            self.assertIn(command.program, text, command.line)
        names = [w.split("=")[0] for w in words if w.startswith("-")]
        for variables in (value for option, value in zip(words, words[1:]) if option == "-v"):
            names += re.findall(r"(?:^|,)([A-Z_]+)(?==|,|$)", variables)
        for name in names + command.environment:
            self.assertRegex(text, rf"(?<![\w-]){re.escape(name)}(?![\w-])", f"{command.line}: {test}.py does not use {name}")

    def check_block(self, page, language, mark, value, text):
        if mark == "run":
            if language == "toml":
                self.run_toml(text)
            elif language == "python":
                self.write("page.py", text)
                self.run_line("/usr/bin/python3 page.py")
            elif language == "sh":
                for line in lines_of(text):
                    self.run_line(line)
            else:
                self.fail(f"{page}: nothing runs a block of {language}")
        elif mark == "by":
            for line in lines_of(text):
                self.run_elsewhere(Command(line), value)
        elif mark == "build":
            for line in lines_of(text):
                self.can_build(line)
        elif mark == "cluster":
            for line in lines_of(text):
                self.can_submit(Command(line))
        elif mark == "printed-by":
            with open(f"{harness.SOURCE}/{value}", encoding="utf-8") as f:
                source = f.read()
            for line in text.splitlines():
                words = re.split(r"\s{2,}", line.strip())
                self.assertIn(words[0], source, f"{page}: {value} does not print this line")
        elif mark == "drawing":
            for line in text.splitlines():
                self.assertNotRegex(line, r"^\s*(\$|tools/|build/|mpirun|sbatch|qsub|cmake|ctest)", f"{page}: a command")
        else:
            self.fail(f"{page}: mark this block of {language or 'text'} with one of {', '.join(MARKS)}:\n{text}")

    def check_inline(self, mark, text):
        command = Command(text)
        if command.program in SCHEDULERS:
            self.can_submit(command)
        elif command.program in BUILDERS:
            self.can_build(text)
        elif mark == "run":
            self.run_line(text)
        elif command.words:
            self.knows_options(command)

    def check_page(self, page):
        """Checks the page from top to bottom; keeps the output of each line that has run."""
        for language, mark, value, text in read(page):
            with self.subTest(page=page, command=text):
                if language == "inline":
                    self.check_inline(mark, text)
                else:
                    self.check_block(page, language, mark, value, text)

    def out(self, part):
        found = [text for line, text in self.output.items() if part in line]
        self.assertEqual(len(found), 1, part)
        return found[0]

    # ------------------------------------------------------------------------------------------------ the pages

    def test_pages_are_found(self):
        self.assertEqual(PAGES, ["README.md", *(f"{f}/README.md" for f in ("inputs", "jobs", "kernels", "src", "tests", "tools"))])
        with open(f"{harness.SOURCE}/README.md", encoding="utf-8") as f:
            self.assertLessEqual(len(f.read().splitlines()), 120)

    def test_links(self):
        """Files that pages link to exist, and so do the headings."""
        def headings(path):
            with open(path, encoding="utf-8") as f:
                text = re.sub(r"^```.*?^```$", "", f.read(), flags=re.S | re.M)
            return {re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)}
        for page in (*PAGES, "CHANGELOG.md"):
            path = f"{harness.SOURCE}/{page}"
            with open(path, encoding="utf-8") as f:
                links = re.findall(r"\]\(([^)]+)\)", f.read())
            for link in links:
                if link.startswith("http"):
                    continue
                file, _, heading = link.partition("#")
                target = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
                with self.subTest(page=page, link=link):
                    self.assertTrue(os.path.exists(target), target)
                    if heading:
                        self.assertIn(heading, headings(target))

    def test_readme(self):
        self.check_page("README.md")

    def test_inputs(self):
        self.check_page("inputs/README.md")
        self.assertGreater(len(self.output), 10)
        self.assertIn("broken     0 of", self.out("index_dataset"))
        self.assertIn("44 of 60 samples of 60 images, 90 captions", self.out("own_trial"))
        self.assertIn("finished", self.out("tools/status"))
        for name in ("batch.png", "runs/own/metrics.png"):
            with Image.open(f"{self.folder}/{name}") as picture:
                self.assertGreater(picture.size[0], 100)
        self.assertIn("step", self.out("inspect_checkpoint"))
        # Longer, then back to 450 and on again: 500 steps once in the curves, and the other past is
        # kept aside.
        rows = self.rows("train", f"{self.folder}/runs/own")
        self.assertEqual([row["step"] for row in rows], list(range(1, 501)))
        self.assertIn("0000000500.h5", os.listdir(f"{self.folder}/runs/own/checkpoints"))
        self.assertTrue(os.path.isdir(f"{self.folder}/runs/own/checkpoints/abandoned"))
        self.assertLess(rows[-1]["loss"], 0.5 * rows[0]["loss"])
        # The packer's last lines make a deck, as the page says.
        self.assertIn('fields = { image = "image", captions = "json:captions" }', self.out("pack_dataset"))

    def test_jobs(self):
        self.check_page("jobs/README.md")

    def test_tools(self):
        self.check_page("tools/README.md")

    def test_tests(self):
        self.check_page("tests/README.md")

    def test_others(self):
        for page in ("kernels/README.md", "src/README.md"):
            self.check_page(page)

    def test_a_wrong_page_is_found(self):
        """The checks fail for commands that do not exist."""
        for call, *words in ((self.can_build, "cmake --preset nothing"), (self.can_build, "ctest --test-dir build -L nothing"),
                             (self.knows_options, Command("tools/status --nothing RUN")),
                             (self.knows_options, Command("build/tests/nothing FILE")),
                             (self.can_submit, Command("sbatch --nothing jobs/slurm.sh inputs/own.toml")),
                             (self.can_submit, Command("qsub -v NOTHING=1 jobs/pbs.sh")),
                             (self.run_elsewhere, Command("build/tests/test_kernels --nothing"), "ctest"),
                             (self.run_elsewhere, Command("tools/status"), "device_test"),
                             (self.check_block, "page", "sh", "", "", "true\n"),
                             (self.check_block, "page", "sh", "run", "", "false\n"),
                             (self.check_block, "page", "text", "printed-by", "tools/quickstart", "loss so far  1\n"),
                             (self.check_block, "page", "text", "drawing", "", "mpirun x\n")):
            with self.subTest(words), self.assertRaises(AssertionError):
                call(*words)


if not os.path.exists(f"{EMOJI}/summary.json"):
    print("skipped: no data/emoji (tools/make_emoji_dataset data/emoji)")
    sys.exit(77)
if __name__ == "__main__":
    harness.main()
