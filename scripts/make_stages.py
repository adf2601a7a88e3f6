"""Write from the table of stages docs/reference/stages.md, and the lists of stages in README and the guides.

`python scripts/make_stages.py` writes them, `--check` exits 1 where a file differs.
"""

import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import yaml

from anadil.core.stage import Stage
from anadil.core.stages import FLOW
from generate import write_or_check

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs/reference/stages.md"
HEAD = """# Stages

Generated from the table of stages by `scripts/make_stages.py`. CPU and memory are what the pod of a step asks for, unless
the recipe says otherwise (`cluster.resources`) or names a machine with GPUs.

| stage | does | reads | writes | recipe keys that decide the result | image | CPU | memory | retries |
|---|---|---|---|---|---|---:|---:|---|
"""
TAIL = """
An input in brackets is optional. A stage starts in three ways:

- `anadil STAGE`
- `python -m anadil.STAGE` (the entry point of its image)
- `python -m anadil.STAGE --executor-input JSON` (from Kubeflow Pipelines)

Stages whose retries are `cluster.restarts` can be jobs of their own: `anadil launch STAGE`.
"""
NAMES = "All stages, in the order of a run: "
STEPS = "| step | image | asks for | retries |\n|---|---|---|---|\n"
LAUNCHER = "`tools`, a launcher | 0.1 CPU, 512 MiB | 3"
IMAGES = "| image | stages | holds | MB at most |\n|---|---|---|---|\n"
HOLDS = {
    "clean": "text extraction, language identification, filters",
    "clean-ray": "the same with Ray and the code that starts pods",
    "tokenizer": "tokenizers",
    "pretrain": "torch, transformers",
    "finetune": "torch, transformers, peft, trl",
    "tasks": "torch, transformers, lm-evaluation-harness",
    "evaluate": "torch, transformers",
    "tools": "plan, launch, checks, report",
    "pipelines": "kfp: compile, submit, schedule",
    "mlflow": "the tracking server with login, Postgres, S3 and `/metrics`",
    "laptop": "every stage and the local runner, for a person with docker alone",
}


def _row(stage: Stage) -> str:
    files = [f"files of `{stage.files.key}`"] if stage.files.key else []
    reads = [f"(`{word}`)" if stage.may_lack(word) else f"`{word}`" for word in stage.words] + files
    keys = ", ".join(f"`{key}`" for key in stage.keys)
    retries = "`cluster.restarts`" if stage.pod.retries is None else stage.pod.retries
    cells = (
        stage.name, stage.summary, ", ".join(reads), f"`{stage.writes}`", keys, f"`{stage.pod.image}`", stage.pod.cpu, stage.pod.memory, retries,
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |\n"


def _names() -> Iterator[str]:
    listed = ", ".join(f"`{stage.name}`" for stage in FLOW)
    text = f"{NAMES}{listed}. [Their table](docs/reference/stages.md) has what each reads and writes.\n"
    yield "\n".join(textwrap.wrap(text, 120)).removeprefix(NAMES) + "\n"


def _steps() -> Iterator[str]:
    """Rows of the guide's table, of which stages that ask for the same share one."""
    for asks in dict.fromkeys(map(_asks, FLOW)):
        yield f"| {', '.join(stage.name for stage in FLOW if _asks(stage) == asks)} | {asks} |\n"


def _asks(stage: Stage) -> str:
    pod = stage.pod
    if stage.training:
        return LAUNCHER
    cpu = f"{pod.cpu} CPUs" if pod.cpu.isdecimal() else f"{int(pod.cpu.removesuffix('m')) / 1000} CPU"
    needs = f"{cpu}, {pod.memory[:-2]} {pod.memory[-2:]}B"
    if stage.pod.uses_model:
        gpus = "the fewest GPUs that hold the model" if "need" in stage.brings else "1 GPU"
        needs = f"{gpus}, or without GPUs {needs}"
    return f"`{pod.image}` | {needs} | {pod.retries}"


def _images() -> Iterator[str]:
    sizes = yaml.safe_load((ROOT / "images/budget.yaml").read_text(encoding="utf-8"))["megabytes"]
    for name, size in sizes.items():
        stages = ", ".join(stage.name for stage in FLOW if name in (stage.pod.image, f"{stage.name}-ray"))
        yield f"| `{name}` | {stages} | {HOLDS[name]} | {size:,} |\n"


def _rewritten(path: Path, head: str, lines: Iterable[str]) -> str:
    """The text of a page with other lines behind a head, up to the next blank line."""
    before, there, after = path.read_text(encoding="utf-8").partition(head)
    assert there, f"{path}: {head!r} is gone"
    return before + head + "".join(lines) + re.sub(r"\A(?:.+\n)*", "", after)


if __name__ == "__main__":
    lists = {
        ROOT / "README.md": (NAMES, _names()),
        ROOT / "docs/guides/cluster-run.md": (STEPS, _steps()),
        ROOT / "docs/guides/cluster.md": (IMAGES, _images()),
    }
    files = {path: partial(_rewritten, path, *each) for path, each in lists.items()}
    sys.exit(write_or_check({TARGET: lambda: HEAD + "".join(map(_row, FLOW)) + TAIL, **files}))
