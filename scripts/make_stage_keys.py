"""Write the types of the arguments that stages take from Python, from the sections of the recipe.

`python scripts/make_stage_keys.py` writes them, `--check` exits 1 where the file differs.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anadil.recipe.sections import Recipe
from generate import write_or_check

TARGET = Path(__file__).parents[1] / "components/anadil/release/stage_keys.py"
SECTIONS = ("clean", "tokenizer", "pretrain", "finetune", "evaluate")
LEFT_OUT = ("clean.inputs", "finetune.inputs", "evaluate.tasks", "evaluate.task_shots")
"""Keys that are arguments with a name of their own, or decide another stage."""
HEAD = '''"""Keyword arguments of the functions that run a stage, for editors and type checkers: keys of the recipe's sections.

Generated from `components/anadil/recipe` by `scripts/make_stage_keys.py`. `docs/reference/recipe.md` says what each does.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from anadil.release.stage_process import Options
'''
PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


def stage_keys() -> str:
    """Render the module: a table of optional keys for each section."""
    schema = Recipe.model_json_schema()
    parts = [HEAD]
    for name in SECTIONS:
        section = schema["$defs"][name.capitalize()]["properties"]
        fields = "\n".join(
            f"    {key}: {_type(node)}" for key, node in section.items() if f"{name}.{key}" not in LEFT_OUT
        )
        title = f"class {name.capitalize()}Options(Options, total=False):"
        parts.append(f'\n\n{title}\n    """Keys of the section `{name}`."""\n\n{fields}\n')
    return "".join(parts)


def _type(node: Mapping[str, Any]) -> str:
    """The Python type of a value, as an annotation."""
    if kinds := node.get("anyOf") or node.get("oneOf"):
        return " | ".join(map(_type, kinds))
    if values := node.get("enum") or ([node["const"]] if "const" in node else []):
        listed = ", ".join(f'"{value}"' for value in values)
        return f"Literal[{listed}]"
    if node.get("type") == "array":
        items = node.get("items") or node["prefixItems"][0]
        return f"Sequence[{_type(items)}]"
    # A table is written as in YAML.
    if "$ref" in node:
        return "Mapping[str, Any]"
    if node.get("type") == "object":
        return f"Mapping[str, {_type(node['additionalProperties'])}]"
    return PLAIN[node["type"]]


if __name__ == "__main__":
    sys.exit(write_or_check({TARGET: stage_keys}))
