"""Everything that only a GPU shows, in steps of their own: tests, trainers side by side, memory, speed, finetuning.

    python -m benchmarks.gpu.measure [--only STEP ...] [--minutes 30] [--device cpu]

Each step is a process with a limit of its own. What it says is in `benchmarks/gpu/<card>.json` as soon as it ends, and in a
page beside it. So a machine that is lost loses one step. A finished step of the same commit and packages is not repeated.
With `--device cpu` every step runs at sizes of a minute, which shows that it runs and nothing else.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anadil.core.format import GIB

ROOT = Path(__file__).parents[2]
PACKAGES = ("torch", "triton", "transformers", "liger-kernel", "trl", "peft", "torchao", "torchtitan")
TAIL = 4_000
"""Characters of the output that are kept of a step."""
LEFT = 30
"""Seconds below which no step is begun."""
TRAIN_ON_CPU = ("--vocabulary", "2000", "--hidden", "64", "--intermediate", "128", "--layers", "2", "--batch", "1",
                "--length", "64", "--warmup", "1", "--steps", "1", "--repeat", "1")  # fmt: skip
FINETUNE_ON_CPU = ("--vocabulary", "2000", "--hidden", "64", "--layers", "2", "--chats", "16", "--rank", "4")
Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command."""

    shows: str
    minutes: float
    on_gpu: Sequence[str]
    on_cpu: Sequence[str]
    gib: float = 0
    """Memory that a device has to have."""


def trainers(*names: str, model: str | None = None) -> Sequence[str]:
    """The comparison of trainers, with its figures as JSON."""
    size = ("--model", model) if model else ()
    return ("benchmarks/train/compare.py", "-o", "json", *size, "--trainers", *names)


CUDA = ("--device", "cuda", "--repeat", "1")
STEPS: Mapping[str, Step] = {
    "tests": Step(
        shows="kernels, packing, attention, loss, low precision, generation, NCCL where there are two devices",
        minutes=6,
        on_gpu=("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"),
        on_cpu=("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests/model/test_loss.py"),
    ),
    "train": Step(
        shows="trainers beside anadil, 1B, without torchtitan, whose 0.3.0 ends after one step with torch 2.13.0",
        minutes=5,
        on_gpu=(*trainers("anadil", "transformers", "transformers-liger", "trl"), *CUDA),
        on_cpu=(*trainers("anadil", "transformers"), *TRAIN_ON_CPU),
        gib=50,
    ),
    "compile": Step(
        shows="the same compiled, and in FP8",
        minutes=5,
        on_gpu=(*trainers("anadil", "anadil-compile", "anadil-fp8"), *CUDA),
        on_cpu=(*trainers("anadil", "anadil-compile"), *TRAIN_ON_CPU),
        gib=40,
    ),
    "memory": Step(
        shows="the planner's memory beside the device's, 1B",
        minutes=4,
        on_gpu=("-m", "benchmarks.plan.gpu"),
        on_cpu=("-m", "benchmarks.plan.gpu", "--device", "cpu"),
        gib=40,
    ),
    "finetune": Step(
        shows="the finetune stage beside TRL",
        minutes=4,
        on_gpu=("benchmarks/finetune/compare.py", "--device", "cuda"),
        on_cpu=("benchmarks/finetune/compare.py", *FINETUNE_ON_CPU),
        gib=24,
    ),
    "run": Step(
        shows="the pipeline on built-in data: checkpoints, encode beside training, generation, finetuning",
        minutes=8,
        on_gpu=("-m", "anadil", "run", "smoke", "--work", "{folder}/work"),
        on_cpu=("-m", "anadil", "run", "smoke", "--work", "{folder}/work", "--set", "finetune.epochs=1",
                "--set", "pretrain.phases=[{trains: all, steps: 6, lr: 1e-3}]"),
    ),
    "train-8b": Step(
        shows="trainers beside anadil, 8B",
        minutes=5,
        on_gpu=(*trainers("anadil", "transformers-liger", model="meta-llama/Llama-3.1-8B"), *CUDA, "--batch", "1"),
        on_cpu=(*trainers("anadil", model="meta-llama/Llama-3.1-8B"), *TRAIN_ON_CPU),
        # Weights, gradients and moments in FP32 are 16 bytes a parameter.
        gib=134,
    ),
}  # fmt: skip


def environment(device: str) -> Record:
    """The machine and its packages, with the commit that is measured."""
    import torch

    packages = {name: version for name in PACKAGES if (version := version_of(name))}
    record: Record = {
        "python": platform.python_version(),
        "packages": packages,
        "pinned": pinned(),
        "commit": said("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"),
        "compiler": next((name for name in ("gcc", "cc", "clang") if shutil.which(name)), None),
    }
    if device == "cpu":
        return record | {"card": "CPU", "devices": 0, "memory_gib": 0.0}
    facts = torch.cuda.get_device_properties(0)
    driver = said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0]
    return record | {
        "card": facts.name,
        "devices": torch.cuda.device_count(),
        "memory_gib": round(facts.total_memory / GIB, 1),
        "driver": driver,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]  # torch leaves it untyped
    }


def version_of(name: str) -> str | None:
    """Version of an installed package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def pinned() -> str:
    """The torch that the project pins."""
    match = re.search(r'"torch==([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert match
    return match[1]


def said(*command: str) -> str:
    """Output of a command; empty where it is not there or fails."""
    if not shutil.which(command[0]):
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def run(step: Step, device: str, seconds: float) -> Record:
    """Run a step, for so many seconds at most, and return what it left."""
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        chosen = step.on_gpu if device == "cuda" else step.on_cpu
        command = [sys.executable, *(part.replace("{folder}", folder) for part in chosen)]
        if "pytest" in command:
            command.append(f"--junitxml={junit}")
        said_to, begun = Path(folder) / "said", time.monotonic()
        with said_to.open("w+b") as output, (Path(folder) / "errors").open("w+b") as errors:
            # A group of its own: a trainer that hangs has children that hold the device.
            child = subprocess.Popen(
                command, stdout=output, stderr=errors, cwd=ROOT, start_new_session=True,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )  # fmt: skip
            try:
                code: int | None = child.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                code = None
            output.seek(0)
            errors.seek(0)
            text, wrong = (each.read().decode(errors="replace") for each in (output, errors))
        record = {
            "command": shlex.join(["python", *(part.replace("{folder}/", "") for part in chosen)]),
            "seconds": round(time.monotonic() - begun, 1),
            "exit_code": code,
            "finished": code == 0,
            "output": text[-TAIL:],
            "errors": "" if code == 0 else wrong[-TAIL:],
        }
        return record | (tests_of(junit) if junit.exists() else figures_of(text))


def tests_of(junit: Path) -> Record:
    """Counts of a test run, and the tests that failed."""
    suite = ET.parse(junit).getroot()[0]  # noqa: S314  pytest wrote it
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return {"tests": counts, "failed": failed}


def figures_of(text: str) -> Record:
    """The JSON in the last line of an output, where there is any."""
    last = text.strip().rpartition("\n")[2]
    return {"figures": json.loads(last)} if last.startswith("{") else {}


def page(record: Record) -> str:
    """The record as a page."""
    machine = record["environment"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    lines = [
        f"# {machine['card']}",
        "",
        (f"{machine['devices']} of {machine['memory_gib']} GiB, driver {machine.get('driver', 'none')}, CUDA "
        f"{machine.get('cuda', 'none')}, NCCL {machine.get('nccl', 'none')}, Python {machine['python']}, {packages}. "
        f"Commit {machine['commit'] or 'unknown'}. Made by `make gpu`; do not edit."),
        "",
    ]  # fmt: skip
    if (installed := machine["packages"]["torch"].partition("+")[0]) != machine["pinned"]:
        lines += [f"**torch {installed} ran, and the project pins {machine['pinned']}.**", ""]
    for name, step in STEPS.items():
        lines += [f"## {name}", "", f"Shows {step.shows}.", "", *section(record["steps"].get(name)), ""]
    return "\n".join(lines).rstrip() + "\n"


def section(done: Record | None) -> list[str]:
    """Lines of one step."""
    if done is None:
        return ["Not run."]
    if "left_out" in done:
        return [f"Left out: {done['left_out']}."]
    lines = ["```bash", done["command"], "```", ""]
    ended = "ran out of time" if done["exit_code"] is None else f"ended with exit code {done['exit_code']}"
    lines += [
        f"{done['date']}, {done['seconds']} s" + ("." if done["finished"] else f". **It {ended}.**"),
        "",
    ]
    if "tests" in done:
        counts = done["tests"]
        passed = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
        lines += [
            f"{passed} passed, {counts['failures'] + counts['errors']} failed, {counts['skipped']} skipped."
        ]
        lines += ["", *(f"- `{name}`" for name in done["failed"])] if done["failed"] else []
    elif "figures" in done:
        lines += rates(done["figures"])
    elif done["finished"]:
        said = done["output"].strip().splitlines()
        lines += [line for line in said if line.startswith("|")] or ["```text", *said[-12:], "```"]
    if not done["finished"]:
        lines += ["", "```text", (done["errors"] or done["output"])[-1_500:].strip(), "```"]
    return lines


def rates(figures: Mapping[str, Any]) -> list[str]:
    """A table of trainers beside what the planner expects."""
    lines = [
        "| trainer | tokens/s | planned | peak GiB | planned | graphs |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, runs in figures.items():
        each = runs[0]
        peak = (each["gpu_peak_mib"] or each["peak_mib"]) / 1_024
        planned = each["planned"] if each["gpu_peak_mib"] else None
        cells = [
            f"{each['tokens_per_s']:,.0f}", f"{planned['tokens_per_s']:,.0f}" if planned else "",
            f"{peak:.2f}", f"{planned['peak_gib']:.2f}" if planned else "", str(each["graphs"] or ""),
        ]  # fmt: skip
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def reason_to_leave_out(step: Step, machine: Record, seconds: float) -> str | None:
    """Return the reason why a step cannot run here, or None."""
    if machine["card"] != "CPU" and machine["memory_gib"] < step.gib:
        return f"it takes a device of {step.gib:.0f} GiB, and this one has {machine['memory_gib']} GiB"
    if seconds < LEFT:
        return "no time was left; call again for this step alone"
    return None


def main(arguments: Sequence[str] | None = None, clock: Callable[[], float] = time.monotonic) -> int:
    """Run the steps, and return the exit code: 1 if one failed, 2 without a device."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--only", nargs="+", choices=tuple(STEPS), default=tuple(STEPS), metavar="STEP")
    asked.add_argument("--minutes", type=float, default=30, help="for all steps; default: %(default)s")
    asked.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    asked.add_argument("--out", type=Path, default=Path(__file__).parent, help="default: benchmarks/gpu")
    asked.add_argument("--again", action="store_true", help="repeat finished steps")
    options = asked.parse_args(arguments)
    end = clock() + 60 * options.minutes

    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            f"torch {torch.__version__} sees no CUDA device for {', '.join(options.only)}; run this on a machine that has one (nvidia-smi lists it), or "
            "with --device cpu, which runs every step at sizes of a minute",
            file=sys.stderr,
        )
        return 2
    machine = environment(options.device)
    file = options.out / f"{re.sub(r'[^a-z0-9]+', '-', machine['card'].lower()).strip('-')}.json"
    record: Record = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if record.get("environment") != machine:
        record = {"environment": machine, "steps": {}}
    for name in options.only:
        step, done = STEPS[name], record["steps"].get(name, {})
        if done.get("finished") and not options.again:
            print(f"{name}: done on {done['date']}; --again repeats it", flush=True)
            continue
        if reason := reason_to_leave_out(step, machine, end - clock()):
            done = {"left_out": reason}
        else:
            print(f"{name}: {step.shows}", flush=True)
            limit = min(60 * step.minutes, end - clock())
            done = {"date": f"{datetime.now(UTC):%Y-%m-%d}", **run(step, options.device, limit)}
        record["steps"][name] = done
        options.out.mkdir(parents=True, exist_ok=True)
        for path, text in (
            (file, json.dumps(record, indent=1) + "\n"),
            (file.with_suffix(".md"), page(record)),
        ):
            partial = path.with_name(f"{path.name}.partial")
            partial.write_text(text, encoding="utf-8")
            partial.rename(path)
        print(
            f"{name}: " + (done.get("left_out") or f"exit code {done['exit_code']}, {done['seconds']} s"),
            flush=True,
        )
    print(f"{file.with_suffix('.md')}")
    return int(any(not each.get("finished", True) for each in record["steps"].values()))


if __name__ == "__main__":
    sys.exit(main())
