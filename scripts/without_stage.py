"""Copy the project without one stage: without its folder, its rows and the recipes' keys of it.

`python scripts/without_stage.py NAME DIR` writes the copy, in which everything else has to run.
"""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from anadil.core.stages import STAGES

ROOT = Path(__file__).parents[1]
COPIED = ("components", "pipelines", "recipes", "docs", "charts", "README.md", "LICENSE", "pyproject.toml")


def copy_without(name: str, copy: Path) -> None:
    """Write the copy; raises KeyError for a name that the table lacks."""
    stage = STAGES[name]
    copy.mkdir(parents=True)
    for each in COPIED:
        source = ROOT / each
        if source.is_dir():
            shutil.copytree(source, copy / each)
        else:
            shutil.copy(source, copy)
    shutil.rmtree(copy / "components/anadil" / name)
    _remove(copy / "components/anadil/core/stages.py", rf'^    "{name}",\n')
    # Import contracts name it as a layer of its own, or beside others.
    _remove(copy / "pyproject.toml", rf'^    "{name}",\n| \| {name}\b|\b{name} \| ')
    for recipe in (copy / "recipes").glob("*.yaml"):
        keys: dict[str, Any] = yaml.safe_load(recipe.read_text(encoding="utf-8"))
        sources = keys.get("sources", {})
        if stage.per_source and stage.per_source.key:
            keys["sources"] = {each: of for each, of in sources.items() if stage.per_source.key not in of}
        *parents, last = stage.only_if.split(".")
        section: Any = keys
        for parent in parents:
            section = section.get(parent, {})
        section.pop(last, None)
        recipe.write_text(yaml.safe_dump(keys, allow_unicode=True, sort_keys=False), encoding="utf-8")


def _remove(path: Path, pattern: str) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(pattern, "", text, count=1, flags=re.MULTILINE), encoding="utf-8")


if __name__ == "__main__":
    copy_without(sys.argv[1], Path(sys.argv[2]))
