"""Write docs/reference/recipe.md from the recipe's own field texts.

`python scripts/make_reference.py` writes it, `--check` exits 1 where the file differs.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from anadil.recipe.sections import Recipe

TARGET = Path(__file__).parents[1] / "docs/reference/recipe.md"

HEAD = """# Recipe reference

Every key of a recipe, with its default. Generated from `components/anadil/recipe/sections.py` by
`scripts/make_reference.py`. A key that is left out takes its default; an unknown key is an error.
"""


def main() -> int:
    """Write or check the file."""
    text = HEAD + "".join(_section("", Recipe))
    if "--check" in sys.argv[1:]:
        if TARGET.read_text(encoding="utf-8") == text:
            return 0
        print(f"{TARGET}: differs from the recipe's field texts; run make golden", file=sys.stderr)
        return 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


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
    sys.exit(main())
