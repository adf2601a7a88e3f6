"""Write docs/reference/recipe.md from the recipe's own field texts, and model-families.md from their table.

`python scripts/make_reference.py` writes them, `--check` exits 1 where a file differs.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from anadil.model.family_table import LAYOUTS, families
from anadil.recipe.sections import Recipe
from generate import write_or_check

REFERENCE = Path(__file__).parents[1] / "docs/reference"

HEAD = """# Recipe reference

Every key of a recipe, with its default. Generated from `components/anadil/recipe/sections.py` by
`scripts/make_reference.py`. A key that is left out takes its default; an unknown key is an error.
"""
FAMILIES = """# Model families

The model types (`model_type` of `config.json`) that are trained, the layouts of `pretrain.parallelism` that are tested
for each, and whether `anadil plan` knows its memory. Every type also trains in one process and in copies of it.
Anything else, such as a mixture of experts, is refused by name before anything is loaded. Generated from
`components/anadil/model/families/` by `scripts/make_reference.py`.

| model type | layouts | memory is planned |
|---|---|---|
"""


def _families() -> str:
    rows = []
    for kind, family in sorted(families().items()):
        layouts = ", ".join(f"`{layout}`" for layout in LAYOUTS if layout in family.layouts)
        rows.append(f"| {kind} | {layouts} | {'yes' if family.architecture else ''} |\n")
    return "".join(rows)


def _section(name: str, model: type[BaseModel]) -> list[str]:
    parts = [f"\n## {name}\n\n{(model.__doc__ or '').strip()}\n"] if name else []
    rows, inner = [], []
    for key, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        path = f"{name}.{key}" if name else key
        if isinstance(default, BaseModel):
            inner += _section(path, type(default))
        else:
            rows.append(f"| `{path}` | `{_shown(default)}` | {field.description} |")
    if rows:
        parts += ["\n| key | default | meaning |\n|---|---|---|\n", "\n".join(rows), "\n"]
    return parts + inner


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        value = [item.model_dump() if isinstance(item, BaseModel) else item for item in value]
    return json.dumps(value, ensure_ascii=False).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(
        write_or_check(
            {
                REFERENCE / "recipe.md": lambda: HEAD + "".join(_section("", Recipe)),
                REFERENCE / "model-families.md": lambda: FAMILIES + _families(),
            }
        )
    )
