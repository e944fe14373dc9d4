# SPDX-License-Identifier: Apache-2.0
"""Keeps the results of gpu_check on disk: a JSON file and a page, both complete after each result. Not a tool itself."""
import datetime
import glob
import json
import os
import re

import gpu_output
import gpu_plan

VERDICTS = {0: "passed", 77: "skipped"}


def write_whole(path, text):
    """Replaces the file, so that a reader sees the old or the new text whenever the check is killed."""
    with open(path + ".tmp", "w") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".tmp", path)


class Results:
    def __init__(self, out, name, **head):
        """`name` ends the files' name, after the date. `head`: what the JSON file begins with."""
        self.date = datetime.date.today().isoformat()
        self.base = os.path.join(out, f"{self.date}-{name}")
        self.logs = self.base + ".logs"
        os.makedirs(self.logs, exist_ok=True)
        self.head, self.running, self.complete = head, "", False
        self.steps = {}
        self.earlier = []  # rows of another file, for comparisons
        self.write()

    def log(self, step, what):
        """Returns the path of a program's output, which is on disk as it is printed."""
        count = sum(map(len, self.steps.values()))
        return os.path.join(self.logs, f"{count:02}-{step}-{re.sub(r'[^A-Za-z0-9]+', '-', what)}.txt")

    def add(self, step, what, code, seconds, output="", why="", **data):
        """Records one result: passed, skipped (77) or failed, with the end of its output. Then it prints it."""
        verdict = VERDICTS.get(code, f"failed (exit {code})")
        last = gpu_output.last_lines(output) if code else []
        reason = why or (last[-1] if last else "")
        self.steps.setdefault(step, []).append({"what": what, "verdict": verdict, "seconds": round(seconds, 1), "why": reason,
                                                "output": last, **data})
        self.write()
        lines = [f"{step:<9} {what:<34} {verdict} in {seconds:.1f} s" + (f": {why}" if why and code else ""), *last]
        print("\n          ".join(lines), flush=True)

    def read_earlier(self, pattern):
        """Reads the rows of the newest file of this pattern."""
        files = sorted(path for path in glob.glob(pattern) if path != self.base + ".json")
        if files:
            with open(files[-1]) as f:
                self.earlier = [row for row in json.load(f)["steps"].get("training", []) if "ms" in row]

    def failed(self):
        return any(r["verdict"].startswith("failed") for results in self.steps.values() for r in results)

    def write(self):
        head = {"date": self.date, **self.head, "running": self.running, "complete": self.complete}
        write_whole(self.base + ".json", json.dumps({**head, "steps": self.steps}, indent=1) + "\n")
        write_whole(self.base + ".md", "\n".join(self.page()) + "\n")

    # ------------------------------------------------------------ the page

    def page(self):
        state = "complete" if self.complete else f"not complete; running: {self.running or 'nothing'}"
        out = [f"# {self.date}: {self.head['device']}", "", f"`tools/gpu_check` of {self.head['version']}; {state}.", ""]
        out += [f"{key}: {value}  " for key, value in self.head.get("node", {}).items()]
        out += ["", "| step | | | s |", "| --- | --- | --- | --: |"]
        for step, results in self.steps.items():
            for r in results:
                why = f": {r['why']}".replace("|", "/") if r["why"] and r["verdict"] != "passed" else ""
                out.append(f"| {step} | {r['what']} | {r['verdict']}{why} | {r['seconds']} |")
        return out + self.libraries() + self.warnings() + self.speeds() + self.gpu_ops() + self.tables()

    def libraries(self):
        rows = [line for r in self.steps.get("libraries", []) for line in r.get("libraries", [])]
        if not rows:
            return []
        head = ["", "## Libraries", "", "| library | version | loaded from |", "| --- | --- | --- |"]
        return head + [f"| {r['name']} | {r['version']} | {r['path']} |" for r in rows]

    def warnings(self):
        found = {}
        for results in self.steps.values():
            for r in results:
                for warning in r.get("warnings", []):
                    found.setdefault(warning, r["what"])
        if not found:
            return []
        return ["", "## Warnings of the programs", ""] + [f"* {what}: {warning}" for warning, what in found.items()]

    def speeds(self):
        rows = self.earlier + [r for step in ("training", "peers") for r in self.steps.get(step, []) if "ms" in r]
        if not rows:
            return []
        out = ["", "## Training steps", "", "MFU: of the dense peak of the row's precision. Clock and power: medians under load.", "",
               "| model | who | precision | batch | steps | ms | least | examples/s | TFLOP/s | MFU | SM MHz | W | data ms | peak memory "
               "| planned |", "| --- " * 3 + "| --: " * 12 + "|"]
        peaks = {r["precision"]: r["peak_gflops"] / 1e3 for r in rows if r.get("peak_gflops")}
        for r in sorted(rows, key=lambda r: (r["model"], -r["examples_per_s"])):
            peak = peaks.get(r["precision"])
            def shown(key, form="{:.1f}", scale=1.0, r=r):
                return form.format(r[key] * scale) if r.get(key) is not None else ""
            cells = [r["model"], r["who"], r["precision"], r["batch"], r.get("steps", ""), shown("ms"), shown("ms_min"),
                     shown("examples_per_s", "{:.0f}"), shown("tflops", "{:.0f}"),
                     f"{100 * r['tflops'] / peak:.1f} %" if peak else "", shown("sm_mhz", "{:.0f}"), shown("power_w", "{:.0f}"),
                     shown("data_ms"), shown("peak_memory_gib", "{:.1f} GiB"), shown("planned_mib", "{:.1f} GiB", 1 / 1024)]
            out.append("| " + " | ".join(map(str, cells)) + " |")
        return out + self.ratios(rows)

    def ratios(self, rows):
        """Compares with the peers, and precisions with each other, by examples per second."""
        def best(model, precision, ours):
            return max((r["examples_per_s"] for r in rows if (r["model"], r["precision"]) == (model, precision)
                        and r["who"].startswith("this program") == ours), default=0)
        out = []
        for model in gpu_plan.MODELS:
            for precision in ("bf16", "tf32"):
                ours, peer = best(model, precision, True), best(model, precision, False)
                if ours and peer:
                    out += ["", f"{model}: {ours / peer:.2f} times the faster {precision} peer."]
            for one, other in (("fp16", "bf16"), ("tf32", "f32")):
                if best(model, one, True) and best(model, other, True):
                    ratio = best(model, one, True) / best(model, other, True)
                    out += ["", f"{model}: {one} is {ratio:.2f} times as fast as {other}."]
        return out

    def gpu_ops(self):
        out = []
        for r in self.steps.get("training", []):
            if not r.get("gpu_ops"):
                continue
            out += ["", f"## Ops within steps: {r['what']}", "",
                    f"{r['gpu_ops_ms']:.2f} ms in ops, {r['gpu_span_ms']:.2f} ms from the first op to the last.", "",
                    "| op | GFLOP each | MB each | calls | ms per step | TFLOP/s | GB/s |", "| --- |" + " --: |" * 6]
            for o in sorted(r["gpu_ops"], key=lambda o: -o["ms"]):
                if o["ms"] < 0.002 * r["gpu_ops_ms"]:
                    break
                speeds = [f"{o['calls'] * o[key] / o['ms']:.0f}" if o["ms"] else "" for key in ("gflop", "mb")]
                out.append(f"| {o['op']} | {o['gflop']:.2f} | {o['mb']:.1f} | {o['calls']:g} | {o['ms']:.3f} | {speeds[0]} | {speeds[1]} |")
        return out

    def tables(self):
        texts = [r["markdown"] for r in self.steps.get("table", []) if r.get("markdown")]
        return ["", "## Kernels", ""] + texts if texts else []
