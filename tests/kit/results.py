"""Results of stages on small fixed inputs, and defaults of the recipe, by which `result_version` is guarded.

Only what is the same on every machine: texts, token ids and settings by digest. Other kinds of CPU add in
another order: of floats a few digits count (see `model_results`).
"""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from anadil.core.stages import FLOW, STAGES
from anadil.recipe.load import parse_recipe
from anadil.recipe.pretrain import Phase
from anadil.recipe.sections import Recipe
from anadil.runtime import execute
from anadil.runtime.cache_key import recipe_keys
from anadil.runtime.planned_artifact import MadeArtifact
from anadil.text.corpus import read_documents
from tests.kit.compact_yaml import compact

FILE = Path(__file__).parents[1] / "golden" / "results.yaml"
INPUTS = ("prose.jsonl", "page.html", "pages.warc.gz", "english.jsonl", "turkish.jsonl", "junk.jsonl")
DEFAULTS = "defaults"
Entry = dict[str, object]


def digest(content: object) -> str:
    """Sixteen digits that stand for JSON content."""
    return hashlib.sha256(json.dumps(content, ensure_ascii=False, sort_keys=True).encode()).hexdigest()[:16]


def entries(with_models: bool = True) -> dict[str, Entry]:
    """Stage -> its `result_version` and those before it, digests of its results; and `defaults` of all keys.

    Without models, which take half a minute, the stages that compute with one have no results.
    """
    with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
        found = _results(Path(folder))
        if with_models:
            from tests.kit.model_results import model_results  # loads torch

            made = model_results(Path(folder) / "models")
            found |= {name: {"results": results} for name, results in made.items()}
    defaults: Entry = {key: text for stage in FLOW for key, text in default_keys(stage.name).items()}
    return {DEFAULTS: {key: defaults[key] for key in sorted(defaults)}} | {
        stage.name: {"versions": _versions(stage.name), **found.get(stage.name, {})} for stage in FLOW
    }


def _versions(name: str) -> dict[str, int]:
    before = [stage for stage in FLOW if stage.writes in STAGES[name].words]
    return {each: v for stage in before for each, v in _versions(stage.name).items()} | {
        name: STAGES[name].result_version
    }


def default_keys(name: str) -> dict[str, str]:
    """Recipe keys that decide a stage's result, with their defaults, also in the items of lists."""
    keys = recipe_keys(Recipe(), STAGES[name].keys)
    phase = Phase(trains="all", steps=1, lr=1.0).model_dump(exclude={"trains", "steps", "lr"})
    items = {f"pretrain.phases.{key}": json.dumps(value) for key, value in phase.items()}
    # A key that an item leaves out has a line of its own: a new one changes no default.
    items["pretrain.phases"] = json.dumps(
        [each.model_dump(exclude_defaults=True) for each in Recipe().pretrain.phases]
    )
    return keys | (items if "pretrain.phases" in keys else {})


def _results(folder: Path) -> dict[str, Entry]:
    data = {
        "base": {"model": "tiny"},
        "clean": {"inputs": [f"builtin:az/{name}" for name in INPUTS], "heldout_fraction": 0.2},
        "tokenizer": {"vocab_sizes": [600]},
        "storage": {"root": str(folder)},
    }
    recipe = parse_recipe(json.dumps(data), "recipe")
    corpus = execute.execute(STAGES["clean"], recipe, {}, (), None)
    tokenizer = execute.execute(STAGES["tokenizer"], recipe, {"corpus": corpus.uri}, (), None)
    return {
        "clean": {"results": _corpus(corpus)},
        "tokenizer": {"results": _files(tokenizer, "replace-600")},
    }


def _corpus(corpus: MadeArtifact) -> dict[str, str]:
    texts = {
        part: [document.text for document in read_documents(Path(corpus.uri), part)]
        for part in ("train", "heldout")
    }
    stats = json.loads((Path(corpus.uri) / "stats.json").read_text(encoding="utf-8"))
    return {
        **{part: digest(found) for part, found in texts.items()},
        "dropped": json.dumps(stats["dropped"]),
    }


def _files(tokenizer: MadeArtifact, candidate: str) -> dict[str, str]:
    folder = Path(tokenizer.uri) / "candidates" / candidate
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    return {"vocabulary": digest(model["vocab"]), "merges": digest(model["merges"])}


def changes(old: dict[str, Entry], new: dict[str, Entry]) -> list[str]:
    """Faults: results and defaults that changed under versions that did not."""
    faults = []
    for name in STAGES:
        before, entry = old.get(name), new.get(name)
        if before is None or entry is None or before["versions"] != entry["versions"]:
            continue
        under = f"under result_version {STAGES[name].result_version}"
        remedy = f"raise result_version of the stage {name} in core/stages.py and run make golden"
        if other := _differing(_table(before, "results"), _table(entry, "results"), newly_gone=True):
            faults.append(f"{name}: results changed {under} ({', '.join(other)}): repair them, or {remedy}")
        defaults = (_table(each, DEFAULTS) for each in (old, new))
        own = default_keys(name)
        if other := [key for key in _differing(*defaults, newly_gone=False) if key in own]:
            faults.append(
                f"{name}: defaults changed {under} ({', '.join(other)}), and an artifact's key names no "
                f"default: restore them, or {remedy}"
            )
    return faults


def _differing(before: dict[str, object], now: dict[str, object], *, newly_gone: bool) -> list[str]:
    """Names of what differs; a new one, of what was not guarded or not as well, does not."""
    return [name for name in before if before[name] != now.get(name) and (newly_gone or name in now)]


def _table(entry: Mapping[str, object], name: str) -> dict[str, object]:
    table = entry.get(name, {})
    assert isinstance(table, dict)
    return table


def render() -> str:
    """The golden file; refused where results changed and no version was raised."""
    old = yaml.safe_load(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    new = entries()
    if told := changes(old, new):
        raise SystemExit("\n".join(told) + f"\n(before a first release: remove {FILE} and run make golden)")
    return compact(new)
