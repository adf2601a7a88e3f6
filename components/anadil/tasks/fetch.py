"""`python -m anadil.tasks.fetch RECIPE`: the data of a recipe's tasks into the cache, for machines without network.

The cache is that of Hugging Face: `HF_HOME`, which the stage is given too.
"""

import sys
import tempfile
from pathlib import Path

from anadil.core.errors import AnadilError
from anadil.core.format import visible_lines
from anadil.core.stages import STAGES
from anadil.recipe.load import load_recipe
from anadil.runtime.job import external_side_files
from anadil.tasks.harness import KEY, find_tasks
from anadil.tasks.run import task_names


def main(arguments: list[str]) -> int:
    """Fetch the data, and say of which tasks; return the exit code."""
    try:
        recipe = load_recipe(arguments[0], arguments[1:])
        with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
            uris = external_side_files(STAGES["tasks"], recipe).get(KEY, ())
            names = task_names(recipe, uris, Path(folder))
            find_tasks(names, Path(folder))
    except AnadilError as error:
        sys.stderr.write(f"{visible_lines(str(error))}\n")
        return error.exit_code
    sys.stdout.write(f"in the cache: {', '.join(names) or 'no tasks'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
