"""Write docs/reference/stages.md from the table of stages.

`python scripts/make_stages.py` writes it, `--check` exits 1 where the file differs.
"""

import sys
from pathlib import Path

from anadil.core.stage import Stage
from anadil.core.stages import FLOW
from generate import write_or_check

TARGET = Path(__file__).parents[1] / "docs/reference/stages.md"
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


def _row(stage: Stage) -> str:
    files = [f"files of `{stage.files.key}`"] if stage.files.key else []
    reads = [f"(`{word}`)" if stage.may_lack(word) else f"`{word}`" for word in stage.words] + files
    keys = ", ".join(f"`{key}`" for key in stage.keys)
    retries = "`cluster.restarts`" if stage.pod.retries is None else stage.pod.retries
    cells = (
        stage.name, stage.summary, ", ".join(reads), f"`{stage.writes}`", keys, f"`{stage.pod.image}`", stage.pod.cpu, stage.pod.memory, retries,
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |\n"


if __name__ == "__main__":
    sys.exit(write_or_check({TARGET: lambda: HEAD + "".join(map(_row, FLOW)) + TAIL}))
