"""Results of stages on small fixed inputs, by which `result_version` is guarded.

Only what is the same on every machine: texts, token ids and settings by digest. Other kinds of CPU add in
another order: of floats a few digits count (see `model_results`).
"""

import hashlib
import json
import tempfile
from pathlib import Path

import yaml

from anadil.core.stages import FLOW, STAGES
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime import execute
from anadil.runtime.cache_key import recipe_origin
from anadil.runtime.execute import MadeArtifact
from anadil.text.corpus import read_documents
from tests.kit.compact_yaml import compact

FILE = Path(__file__).parents[1] / "golden" / "results.yaml"
INPUTS = ("prose.jsonl", "page.html", "pages.warc.gz", "english.jsonl", "turkish.jsonl", "junk.jsonl")
Entry = dict[str, object]


def digest(content: object) -> str:
    """Sixteen digits that stand for JSON content."""
    return hashlib.sha256(json.dumps(content, ensure_ascii=False, sort_keys=True).encode()).hexdigest()[:16]


def entries(with_models: bool = True) -> dict[str, Entry]:
    """Stage -> its `result_version` and those before it, the recipe keys in its key, digests of its results.

    Without models, which take half a minute, the stages that compute with one have no results.
    """
    with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
        found = _results(Path(folder))
        if with_models:
            from tests.kit.model_results import model_results  # loads torch

            made = model_results(Path(folder) / "models")
            found |= {name: {"results": results} for name, results in made.items()}
    return {
        stage.name: {
            "versions": _versions(stage.name),
            "keys": _keys(stage.name),
            **found.get(stage.name, {}),
        }
        for stage in FLOW
    }


def _versions(name: str) -> dict[str, int]:
    before = [stage for stage in FLOW if stage.writes in STAGES[name].reads]
    return {each: v for stage in before for each, v in _versions(stage.name).items()} | {
        name: STAGES[name].result_version
    }


def _keys(name: str) -> list[str]:
    origin = recipe_origin(Recipe(), STAGES[name].sections)
    items = {
        f"{key}.{field}"
        for key, text in origin.items()
        for item in (json.loads(text) if text.startswith("[{") else [])
        for field in item
    }
    return sorted(key.removeprefix("recipe ") for key in origin.keys() | items)


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
    # A new vocabulary alone: the base's own differs with the text that each release of Python carries.
    folder = Path(tokenizer.uri) / "candidates" / candidate
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    return {"vocabulary": digest(model["vocab"]), "merges": digest(model["merges"])}


def changes(old: dict[str, Entry], new: dict[str, Entry]) -> list[str]:
    """What is wrong with results that changed under versions that did not."""
    told = []
    for name, entry in new.items():
        before = old.get(name)
        if before is None or before["versions"] != entry["versions"]:
            continue
        if other := _differing(before, entry):
            told.append(
                f"{name}: results changed under result_version {STAGES[name].result_version} ({', '.join(other)}): "
                f"repair them, or raise result_version of the stage {name} in core/stages.py and run make golden"
            )
        if before["keys"] != entry["keys"]:
            other = sorted(set(map(str, before["keys"])) ^ set(map(str, entry["keys"])))  # type: ignore[call-overload]  # lists
            told.append(
                f"{name}: recipe keys in its artifact's key changed ({', '.join(other)}), so that old artifacts are "
                f"made again: give a new one to NEW_KEYS in core/stages.py, or raise result_version of {name}, and run make golden"
            )
    return told


def _differing(before: Entry, now: Entry) -> list[str]:
    """Names of results that differ; one that is new, of a stage that was not guarded or not as well, does not."""
    old, new = (entry.get("results", {}) for entry in (before, now))
    assert isinstance(old, dict)
    assert isinstance(new, dict)
    return [name for name in old if old[name] != new.get(name)]


def render() -> str:
    """The golden file; refused where results changed and no version was raised.

    Raises:
        SystemExit: With what to raise.
    """
    old = yaml.safe_load(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    new = entries()
    if told := changes(old, new):
        raise SystemExit("\n".join(told) + f"\n(before a first release: remove {FILE} and run make golden)")
    return compact(new)
