"""Models that are compared, the held-out text in the tokens of each, and how each is loaded and fed."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from anadil.artifacts import artifact
from anadil.artifacts.base_model import model_config
from anadil.core.candidates import BY_KIND, answers
from anadil.core.errors import DataError, PreflightError
from anadil.core.progress import track
from anadil.evaluate.bits_per_byte import Ids, score
from anadil.model.family_table import refuse_mixture
from anadil.model.load import document_ids, encode_texts, load_tokenizer, window_bos
from anadil.model.placement import load_placed
from anadil.plan.evaluating import evaluate_parts
from anadil.plan.memory_limit import FITS
from anadil.plan.model_shape import shape_from
from anadil.recipe.sections import Recipe
from anadil.text import metrics
from anadil.text.corpus import Document

log = logging.getLogger(__name__)

BATCH_TOKENS = {"cpu": 4_096, "cuda": 32_768}
"""Tokens of a padded batch by device: enough to keep it busy; more brings nothing but memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredModel:
    """A model of the comparison; only its tokenizer is loaded."""

    name: str
    path: Path
    tokenizer: PreTrainedTokenizerFast
    prefix: int
    """Token before each document: BOS, else the end of text, as in training."""
    bos: int | None = None
    """Token before each later window of a document; None for none."""
    answers: bool = False
    """It learnt to answer, and is asked through its chat template."""


def open_model(name: str, path: Path, *, answers: bool = False) -> ScoredModel:
    """Load a candidate's tokenizer.

    Raises:
        DataError: It has no end token.
    """
    tokenizer = load_tokenizer(path)
    prefix, _ = document_ids(tokenizer, f"{path}, {name}")
    return ScoredModel(
        name=name, path=path, tokenizer=tokenizer, prefix=prefix, bos=window_bos(tokenizer), answers=answers
    )


def open_artifact(name: str, folder: Path) -> ScoredModel:
    """Load the tokenizer of an artifact; what it is, and its manifest, say whether it answers.

    Raises:
        DataError: It has no end token.
    """
    manifest = artifact.read_manifest(str(folder))
    inside = folder / BY_KIND["adapter"].folder
    kind = "adapter" if inside.is_dir() else manifest.kind if manifest else "model"
    figures = manifest.figures if manifest else {}
    return open_model(name, inside if kind == "adapter" else folder, answers=answers(kind, figures))


def load_for_scoring(path: Path, name: str) -> Any:
    """Load a model on the fewest GPUs of this machine that hold it with a batch; see `load_placed`.

    Raises:
        PreflightError: The GPUs of this machine together do not hold it.
    """
    return load_placed(
        path, name, lambda count: evaluate_parts(shape_from(model_config(path), name), count, on_gpu=True), FITS
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedDocuments:
    """The documents that every candidate's tokenizer gives back unchanged, in its tokens."""

    documents: tuple[Document, ...]
    ids: dict[str, list[NDArray[np.int32]]]
    """By candidate, a document each; no special tokens."""
    altered: tuple[str, ...]
    """Ids of the documents that were skipped for all candidates."""

    @property
    def num_bytes(self) -> NDArray[np.int64]:
        """UTF-8 bytes of each document."""
        return np.array([len(document.text.encode()) for document in self.documents], dtype=np.int64)


def encode_for_all(candidates: Sequence[ScoredModel], documents: Sequence[Document]) -> EncodedDocuments:
    """Encode the documents once for each candidate.

    A tokenizer that normalizes does not score the text whose bytes we count. Such a document
    is skipped for all candidates, so that all are scored on the same text.

    Raises:
        DataError: A tokenizer alters more than 1 % of the documents; names the first.
    """
    ids: dict[str, list[NDArray[np.int32]]] = {}
    altered: set[int] = set()
    texts = [document.text for document in documents]
    for candidate in candidates:
        encoded = encode_texts(candidate.tokenizer, texts)
        ids[candidate.name] = [np.array(each, dtype=np.int32) for each in encoded]
        decode = partial(
            candidate.tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        pairs = track(zip(texts, encoded, strict=True), f"decode {candidate.name}", len(texts))
        changed = [index for index, (text, each) in enumerate(pairs) if decode(each) != text]
        if metrics.scores_other_text(len(changed), len(documents)):
            raise DataError(
                f"document {documents[changed[0]].id}: the tokenizer of {candidate.name} ({candidate.path}) does "
                f"not give it back unchanged, nor {len(changed) - 1} more of {len(documents)}, so bits per byte "
                "would count other text than was scored; use a tokenizer that does not normalize"
            )
        altered.update(changed)
    skipped = tuple(documents[index].id for index in sorted(altered))
    if altered:
        log.warning(
            "held-out: a tokenizer alters %d documents, skipped: %s", len(altered), ", ".join(skipped)
        )
    unaltered = [index for index in range(len(documents)) if index not in altered]
    return EncodedDocuments(
        documents=tuple(documents[index] for index in unaltered),
        ids={name: [listed[index] for index in unaltered] for name, listed in ids.items()},
        altered=skipped,
    )


def encode_with_champion(
    candidates: Sequence[ScoredModel], folder: Path | None, documents: Sequence[Document]
) -> tuple[list[ScoredModel], EncodedDocuments]:
    """Add the champion to the candidates where it can be scored, and encode the documents for all of them.

    Raises:
        DataError: See `encode_for_all`, for the candidates of this run.
    """
    if folder:
        try:
            champion = open_artifact("champion", folder)
            refuse_mixture(model_config(champion.path), f"champion ({champion.path})")
            everybody = [*candidates, champion]
            return everybody, encode_for_all(everybody, documents)
        except (DataError, PreflightError) as error:
            log.warning("champion: %s; candidates are not compared with it", error)
    return list(candidates), encode_for_all(candidates, documents)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A candidate in memory, and how it is fed."""

    candidate: ScoredModel
    model: Any
    context: int
    """Tokens that it sees at a time."""
    stride: int
    """Tokens that each window scores."""
    batch_tokens: int

    def nats(self, encoded: Sequence[NDArray[np.int32]]) -> NDArray[np.float64]:
        """Nats of each document; see `score`."""
        return self._score([((self.candidate.prefix,), ids) for ids in encoded], self.candidate.name)

    def answer_nats(self, questions: Sequence[Ids], answers: Sequence[Ids]) -> NDArray[np.float64]:
        """Nats of each answer, given its question; see `score`."""
        return self._score(list(zip(questions, answers, strict=True)), f"{self.candidate.name}, answers")

    def _score(self, pairs: Sequence[tuple[Ids, Ids]], name: str) -> NDArray[np.float64]:
        return score(
            self.model, pairs, bos=self.candidate.bos, context=self.context, stride=self.stride,
            batch_tokens=self.batch_tokens, name=name,
        )  # fmt: skip


def load_candidate(candidate: ScoredModel, recipe: Recipe) -> LoadedModel:
    """Load a candidate, to be fed as the recipe says.

    Raises:
        PreflightError: The GPUs of this machine together do not hold it.
    """
    model = load_for_scoring(candidate.path, candidate.name)
    longest = getattr(model.config, "max_position_embeddings", None) or recipe.context
    context = min(recipe.context, longest)
    if context < recipe.context:
        log.warning(
            "%s: holds %d tokens, fewer than the context of %d", candidate.name, context, recipe.context
        )
    return LoadedModel(
        candidate=candidate, model=model, context=context, stride=min(recipe.evaluate.stride or context, context),
        batch_tokens=BATCH_TOKENS[model.device.type],
    )  # fmt: skip
