# SPDX-License-Identifier: Apache-2.0
"""Reads what the programs of gpu_check print. Not a tool itself."""
import json
import os
import re

import gpu_plan

LAST_LINES = 12


def last_lines(output):
    return [line for line in output.strip().splitlines() if line.strip()][-LAST_LINES:]


def warnings(output):
    """Returns the warnings of a program, each once."""
    return list(dict.fromkeys(re.findall(r"level=warning (?:step=\d+ )?(.+)", output)))


def refusals(output):
    """Returns what a library refused: a slower way then ran, which a passed step would hide."""
    return [warning for warning in warnings(output) if warning.startswith("fallback ")]


def read_tests(job, _):
    """Names the cases of GoogleTest that failed, and an error of CUDA, which spoils all cases after it."""
    data = {}
    failed = list(dict.fromkeys(re.findall(r"^\[  FAILED  \] ([\w/.]+)", job.output, re.M)))
    if failed:
        data["failed_cases"] = failed
    error = re.search(r"CUDA: .*?\((cuda\w+)\)", job.output)
    if job.code and error:
        data["cuda_error"] = error.group(1)
    why = f"{len(failed)} cases failed, first {failed[0]}" if failed else ""
    return job.code, "; ".join(filter(None, [why, data.get("cuda_error")])), data


def read_libraries(job, _):
    lines = re.findall(r"^library (\S+) (\S+) (.+)$", job.output, re.M)
    return job.code, "", {"libraries": [dict(zip(("name", "version", "path"), line)) for line in lines]}


def read_table(job, task):
    """Takes over the files that the program has written."""
    data, refused = {}, refusals(job.output)
    for end, path in task.row.items():
        try:
            with open(path) as f:
                data["markdown" if end == "md" else "table"] = f.read() if end == "md" else json.load(f)
            os.remove(path)
        except (OSError, ValueError):  # the program has not written it
            pass
    return (job.code or 1, refused[0], data) if refused else (job.code, "", data)


def read_bench(job, task):
    """Takes over the last JSON line: ms_per_step, and what else the program knows."""
    lines = [line for line in job.output.splitlines() if line.startswith("{")]
    if job.code or not lines:
        return job.code or 1, "" if job.code else "no JSON object in its output", dict(task.row)
    line, row = json.loads(lines[-1]), task.row
    slow = [f"{line[key]} {key} per step" for key in ("attention_own", "fallbacks") if line.get(key)]
    why = "; ".join(refusals(job.output) + slow)
    ms, batch = line["ms_per_step"], row["batch"]
    kept = ("ms_min", "ms_max", "steps", "loss", "data_ms", "peak_memory_gib", "peak_gflops", "planned_mib", "versions", "gpu_ops",
            "gpu_ops_ms", "gpu_span_ms", "attention_cudnn", "attention_products", "waits")
    data = {**row, "ms": ms, "examples_per_s": batch / ms * 1e3,
            "tflops": batch * gpu_plan.gflop_per_example(gpu_plan.MODELS[row["model"]]) / ms,
            **{key: line[key] for key in kept if key in line}}
    return (1 if why else 0), why, data


READERS = {"tests": read_tests, "libraries": read_libraries, "table": read_table, "bench": read_bench}


def read(job, task):
    """Returns exit code, reason of a failure and data of a job that has ended."""
    code, why, data = READERS[task.kind](job, task)
    found = warnings(job.output)
    if found:
        data["warnings"] = found
    return code, why, data
