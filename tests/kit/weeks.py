"""Corpora of weeks, and the tokens that a champion and its retraining have of them."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from anadil.artifacts import artifact
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime.execute import execute
from anadil.runtime.planned_artifact import MadeArtifact
from anadil.text.corpus import Document, write_documents
from anadil.tokens.stored_tokens import StoredTokens, open_tokens
from anadil.tokens.tokens_file import TokensFacts, read_facts
from tests.kit.pretraining_texts import PRETRAINING_TEXTS

WEEKS = (
    PRETRAINING_TEXTS[:3],
    PRETRAINING_TEXTS[3:5],
    PRETRAINING_TEXTS[5:],
    ("Yeni həftənin mətni budur.",),
)


def id_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def make_corpus(
    folder: Path,
    files: Sequence[Sequence[str]],
    heldout: Sequence[str] = ("Bakı.",),
    stats: dict[str, int] | None = None,
) -> Path:
    """A corpus artifact with a file for each group of texts, as `clean.since` makes it."""
    for part, groups in (("train", files), ("heldout", (heldout,))):
        for number, texts in enumerate(groups):
            rows = [Document(id=id_of(t), text=t, source="", url="", lang="az") for t in texts]
            write_documents(folder / "draft", "train", rows)
            target = folder / part / f"part-{number:05}.jsonl.zst"
            target.parent.mkdir(exist_ok=True)
            (folder / "draft/train/part-00000.jsonl.zst").rename(target)
    shutil.rmtree(folder / "draft")
    (folder / "stats.json").write_text(json.dumps(stats or {}), encoding="utf-8")
    artifact.seal(
        folder,
        kind="corpus",
        origin={},
        records={"train": sum(map(len, files)), "heldout": 1},
        varying=["stats.json"],
    )
    return folder


def recipe_of(
    root: str | Path, champion: dict[str, str] | None = None, *, source: bool = False, **keys: Any
) -> Recipe:
    data: dict[str, Any] = {"pretrain": {"sequence_length": 32}, "storage": {"root": str(root)}}
    if source:
        mixes = [{"trains": "all", "steps": 1, "lr": 1e-3, "mix": {"web": 1}}]
        data |= {"sources": {"web": {"inputs": ["w.jsonl"], **keys}}}
        data["pretrain"]["phases"] = mixes
    if champion is not None:
        named = {"name": "anadil-az", "version": "1", "uri": "m", "digest": "d"}
        data["retrain"] = {"champion": {**named, "artifacts": champion}}
    recipe = Recipe.model_validate(data)
    return recipe.of_source("web") if source else recipe


def tokens_made(recipe: Recipe, corpus: Path | str, tokenizer: Path, **inputs: Path) -> MadeArtifact:
    named = {"corpus": str(corpus), "tokenizer": str(tokenizer)} | {k: str(v) for k, v in inputs.items()}
    return execute(STAGES["encode"], recipe, named, (), None)


def facts_of(made: MadeArtifact) -> TokensFacts:
    return read_facts(made.uri, made.manifest)


def opened(made: MadeArtifact) -> StoredTokens:
    return open_tokens(made.uri, made.manifest)


def ids_of(tokens: StoredTokens) -> list[list[int]]:
    """The ids of each document."""
    stream = tokens.packed.stream
    return [stream.ids[a:b].tolist() for a, b in pairwise(stream.first_starts(99).tolist())]


def overlap_of(folder: Path, *texts: str) -> Path:
    rows = [json.dumps({"id": id_of(text), "reason": "duplicate"}) + "\n" for text in texts]
    folder.mkdir()
    (folder / "excluded.jsonl").write_text("".join(rows), encoding="utf-8")
    artifact.seal(folder, kind="overlap", origin={}, recipe={})
    return folder
