#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests numbers of a run that are shown in another form than in its files: medians on the console."""
import re
import statistics

import harness


class Console(harness.RunTest):
    def losses_on_console(self):
        return {int(step): float(loss) for step, loss in re.findall(r"step=(\d+) loss=([\d.]+)", self.output)}

    def test_medians(self):
        self.expect(0, args=[self.deck()])
        raw, rows = self.losses_on_console(), [row["loss"] for row in self.rows()]
        self.assertEqual(len(raw), 12)
        for window in (3, 4, 100):
            folder = f"{self.folder}/{window}"
            self.expect(0, args=[self.deck(), "--dir", folder, "--set", f"log.console_window={window}"])
            self.assertEqual([row["loss"] for row in self.rows(folder=folder)], rows)
            shown = self.losses_on_console()
            self.assertEqual(shown.keys(), raw.keys())
            for step, loss in shown.items():
                self.assertAlmostEqual(loss, statistics.median(rows[max(0, step - window):step]), delta=6e-4, msg=(window, step))
            self.assertNotEqual(shown, raw)
        self.expect(2, "log.console_window", args=[self.deck(), "--validate", "--set", "log.console_window=0"])


if __name__ == "__main__":
    harness.main()
