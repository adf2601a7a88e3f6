"""What the golden files hold, rendered by the program as it is now."""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

from anadil.cli import main
from tests.charts import golden as charts
from tests.kit import results
from tests.launch import golden as launch
from tests.launch.sagemaker import golden as sagemaker
from tests.pipelines import golden as pipelines

FOLDER = Path(__file__).parent
SCHEMA = FOLDER.parents[1] / "recipes" / "schema.json"


def schema() -> str:
    """The JSON Schema of a recipe, as `anadil recipe schema` prints it."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main.main(["recipe", "schema"]) == 0
    return printed.getvalue()


GOLDEN: dict[Path, Callable[[], str]] = {
    SCHEMA: schema,
    **pipelines.GOLDEN,
    **launch.GOLDEN,
    **sagemaker.GOLDEN,
    **charts.GOLDEN,
    results.FILE: results.render,
}
