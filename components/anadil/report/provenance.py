"""How to make the run again: recipe, artifacts and program, without the paths of a machine."""

import yaml

from anadil import __version__
from anadil.core.format import DASH
from anadil.core.stages import STAGES
from anadil.report.elements import TextTable
from anadil.report.format import clip
from anadil.report.read import Facts, last_part

MAX_RECIPE = 40_000
MAX_VALUE = 2_000
LOCAL_PREFIXES = ("/", "~", "./", "../", "\\")


def provenance_view(facts: Facts) -> dict[str, object]:
    """Build the section on how to reproduce the run, by the names of the template."""
    rows = [
        (
            f"{word}/{manifest.key}",
            f"sha256:{manifest.digest}",
            clip(manifest.program.get("version") or DASH, 40),
            clip(manifest.program.get("image") or DASH, 120),
        )
        for word, manifest in facts.manifests.items()
    ]
    columns = ("artifact", "digest", "program", "image")
    table = TextTable("Artifacts that this page was made from", columns, rows, words=(1, 2, 3))
    return {"version": __version__, "recipe": recipe_text(facts), "artifacts": table}


def recipe_text(facts: Facts) -> str:
    """The resolved recipe as YAML, without storage, tracking and cluster."""
    # Those three change no number, and they hold the addresses, perhaps the passwords, of a machine.
    known = facts.recipe.model_dump(mode="json")
    sections = {section: _portable(known[section]) for section in STAGES["report"].sections}
    return clip(yaml.safe_dump(sections, allow_unicode=True, sort_keys=False, width=100), MAX_RECIPE)


def _portable(node: object) -> object:
    if isinstance(node, dict):
        return {key: _portable(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_portable(value) for value in node]
    if not isinstance(node, str):
        return node
    if node.startswith(LOCAL_PREFIXES) or "://" in node:
        return f"\N{HORIZONTAL ELLIPSIS}/{last_part(node)}"
    return clip(node, MAX_VALUE)
