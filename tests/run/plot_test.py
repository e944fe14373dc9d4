#!/usr/bin/python3
"""tools/plot_metrics on real runs: one, several, one that has been cut, and folders that are none."""
import os
import shutil
import subprocess

from PIL import Image

import harness

PLOT = os.path.join(harness.SOURCE, "tools", "plot_metrics")


class Plot(harness.RunTest):
    def plot(self, *args):
        done = subprocess.run(["/usr/bin/python3", PLOT, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
                              cwd=self.folder)
        self.output = done.stdout
        return done.returncode

    def picture(self, path):
        with Image.open(path) as image:
            image.load()
            self.assertEqual(image.format, "PNG")
            self.assertFalse({"Title", "Software", "Source"} & set(image.info), image.info)
            self.assertGreater(min(image.size), 300)
            # Not blank: paper, and ink of several colours.
            self.assertGreater(len(image.convert("RGB").getcolors(1 << 24)), 20)
            return image.size

    def test_curves(self):
        self.expect(0, args=[self.deck()])
        self.expect(0, args=[self.deck(), "--dir", f"{self.folder}/second", "--set", "run.seed=5"])
        self.assertEqual(self.plot(self.dir), 0, self.output)
        self.assertEqual(self.output.strip(), f"{self.dir}/metrics.png")
        one = self.picture(f"{self.dir}/metrics.png")
        self.assertEqual(self.plot(self.dir, f"{self.folder}/second", "-o", "both.png", "--line", "chance=4.4"), 0, self.output)
        self.picture(f"{self.folder}/both.png")
        # The title is the run's name, not where it lies: the same run elsewhere gives the same picture.
        shutil.copytree(self.dir, f"{self.folder}/elsewhere/deep/run")
        self.assertEqual(self.plot(f"{self.folder}/elsewhere/deep/run"), 0, self.output)
        with open(f"{self.dir}/metrics.png", "rb") as a, open(f"{self.folder}/elsewhere/deep/run/metrics.png", "rb") as b:
            self.assertEqual(a.read(), b.read())

        # Without metrics.h5 (a job that was killed early), and with half a last line.
        os.remove(f"{self.dir}/metrics.h5")
        with open(f"{self.dir}/metrics.jsonl", "a") as f:
            f.write('{"kind":"train","step":13,"lo')
        self.assertEqual(self.plot(self.dir, "-o", "jsonl.png"), 0, self.output)
        self.assertEqual(self.picture(f"{self.folder}/jsonl.png"), one)

    def test_folders_that_are_no_runs(self):
        self.assertEqual(self.plot(self.data), 2, self.output)
        self.assertIn("is it a run directory", self.output)
        self.assertEqual(self.plot("nowhere"), 2, self.output)
        self.assertIn("nowhere is not a folder", self.output)
        self.assertNotIn("Traceback", self.output)


harness.main()
