"""Files of a recipe, here and in a bucket, and what is said of them before a run starts."""

import json
from pathlib import Path

from anadil.artifacts import s3
from anadil.core.stages import STAGES
from anadil.preflight.inputs import inspect_files
from anadil.recipe.sections import Recipe
from anadil.runtime.check import CheckResult
from tests.kit.harness import again

SMALL = 256 * 1024  # Bytes of a file that are looked at, in tests.


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def put(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


def look(recipe: Recipe, stage: str, *files: str, here: bool = True) -> CheckResult:
    named = again(recipe, f"{STAGES[stage].files.key}={json.dumps(files)}")
    return inspect_files(STAGES[stage], named, here=here)


def upload(bucket: str, name: str, content: bytes) -> str:
    s3.S3().write(f"{bucket}/{name}", content)
    return f"{bucket}/{name}"
