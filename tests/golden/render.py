"""What the golden files hold, rendered by the program as it is now."""

import contextlib
import io
import tempfile
from collections.abc import Callable
from pathlib import Path

from anadil import cli

FOLDER = Path(__file__).parent
SCHEMA = FOLDER.parents[1] / "recipes" / "schema.json"
PIPELINE = FOLDER / "smoke.pipeline.yaml"


def schema() -> str:
    """The JSON Schema of a recipe, as `anadil recipe schema` prints it."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert cli.main(["recipe", "schema"]) == 0
    return printed.getvalue()


def pipeline() -> str:
    """The compiled pipeline of the recipe `smoke`."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "pipeline.yaml"
        assert cli.main(["compile", "smoke", "-f", str(path)]) == 0
        return path.read_text(encoding="utf-8")


GOLDEN: dict[Path, Callable[[], str]] = {SCHEMA: schema, PIPELINE: pipeline}
