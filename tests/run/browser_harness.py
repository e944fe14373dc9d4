# SPDX-License-Identifier: Apache-2.0
"""Opens pages in headless Chromium, at several widths, and looks at them from inside."""
import html
import json
import re
import shutil
import subprocess

from PIL import Image

import harness

BROWSER = shutil.which("chromium")
# Shows the page in frames of these widths, one below the other, and gathers what their probes report.
WIDTHS, HEIGHT = (390, 768, 1280), 1600
AROUND = """<!DOCTYPE html><title>frames</title><link rel="icon" href="data:,">
<style>body {margin: 0} iframe {display: block; border: 0}</style>
%s<pre></pre><script>const all = [];
addEventListener("message", (event) => document.querySelector("pre").textContent = JSON.stringify(all, all.push(event.data)));
for (const frame of document.querySelectorAll("iframe")) frame.src = "probe.html";</script>"""
FRAMES = "".join(f'<iframe style="width:{width}px;height:{HEIGHT}px"></iframe>\n' for width in WIDTHS)


class BrowserTest(harness.RunTest):
    def check_self_contained(self, page):
        self.assertEqual(re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page), [])
        self.assertEqual(re.findall(r"@import|url\((?!data:)", page), [])
        self.assertEqual(page.count("<script"), 2)

    def browse(self, *args, where):
        """Opens a page; returns its document and the messages in the browser's console."""
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={self.folder}/profile",
                   "--enable-logging=stderr", "--virtual-time-budget=10000"]
        done = subprocess.run([BROWSER, *options, *args, f"file://{self.folder}/{where}"], capture_output=True, text=True,
                              timeout=harness.GUARD, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    def measured(self, page, probe):
        """Opens the page in frames; returns {width: what the probe has measured} and {width: picture}."""
        with open(f"{self.folder}/probe.html", "w", encoding="utf-8") as f:
            f.write(page.replace("</body>", probe + "</body>"))
        with open(f"{self.folder}/frame.html", "w", encoding="utf-8") as f:
            f.write(AROUND % FRAMES)
        whole = f"{self.folder}/whole.png"
        document, messages = self.browse(f"--window-size={max(WIDTHS)},{len(WIDTHS) * HEIGHT}", "--dump-dom", f"--screenshot={whole}",
                                         where="frame.html")
        self.assertEqual(messages, [])
        found = json.loads(html.unescape(re.search(r"<pre>(.*?)</pre>", document, re.S)[1]))
        with Image.open(whole) as image:
            pictures = {width: image.crop((0, i * HEIGHT, width, (i + 1) * HEIGHT)).convert("RGB") for i, width in enumerate(WIDTHS)}
        return {one["width"]: one for one in found}, pictures
