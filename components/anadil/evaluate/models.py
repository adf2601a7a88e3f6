"""The models that are compared, and the held-out text in the tokens of each."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from anadil.core.errors import DataError
from anadil.core.progress import track
from anadil.evaluate.bits_per_byte import Ids, score
from anadil.model.load import document_ids, encode_texts, load_tokenizer, window_bos
from anadil.text import metrics
from anadil.text.corpus import Document

log = logging.getLogger(__name__)


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

    @property
    def answers(self) -> bool:
        """True if it was taught to answer, and is asked through its chat template."""
        return self.name == "finetuned" or (self.name == "champion" and self.path.name == "merged")


def open_model(name: str, path: Path) -> ScoredModel:
    """Load a candidate's tokenizer.

    Raises:
        DataError: It has no end token.
    """
    tokenizer = load_tokenizer(path)
    prefix, _ = document_ids(tokenizer, f"{path}, {name}")
    return ScoredModel(name=name, path=path, tokenizer=tokenizer, prefix=prefix, bos=window_bos(tokenizer))


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedDocuments:
    """The documents that every candidate's tokenizer gives back unchanged, in its tokens."""

    documents: tuple[Document, ...]
    ids: dict[str, list[NDArray[np.int32]]]
    """By candidate, a document each; no special tokens."""
    altered: tuple[str, ...]
    """Ids of the documents that were left out for all candidates."""

    @property
    def num_bytes(self) -> NDArray[np.int64]:
        """UTF-8 bytes of each document."""
        return np.array([len(document.text.encode()) for document in self.documents], dtype=np.int64)


def encode_for_all(candidates: Sequence[ScoredModel], documents: Sequence[Document]) -> EncodedDocuments:
    """Encode the documents once for each candidate.

    A tokenizer that normalizes does not score the text whose bytes we count. Such a document
    is left out for all candidates, so that all are scored on the same text.

    Raises:
        DataError: A tokenizer alters more than 1 % of the documents; names the first.
    """
    ids: dict[str, list[NDArray[np.int32]]] = {}
    altered: dict[int, None] = {}
    texts = [document.text for document in documents]
    for candidate in candidates:
        encoded = encode_texts(candidate.tokenizer, texts)
        ids[candidate.name] = [np.array(own_ids, dtype=np.int32) for own_ids in encoded]
        pairs = zip(texts, encoded, strict=True)
        own = [
            index
            for index, (text, own_ids) in enumerate(track(pairs, f"decode {candidate.name}", len(texts)))
            if _decoded(candidate, own_ids) != text
        ]
        if metrics.scores_other_text(len(own), len(documents)):
            raise DataError(
                f"document {documents[own[0]].id}: the tokenizer of {candidate.name} ({candidate.path}) does "
                f"not give it back unchanged, nor {len(own) - 1} more of {len(documents)}, so bits per byte "
                "would count other text than was scored; use a tokenizer that does not normalize"
            )
        altered.update(dict.fromkeys(own))
    if altered:
        left_out = ", ".join(documents[index].id for index in sorted(altered))
        log.warning("held-out: a tokenizer alters %d documents, skipped: %s", len(altered), left_out)
    unaltered = [index for index in range(len(documents)) if index not in altered]
    return EncodedDocuments(
        documents=tuple(documents[index] for index in unaltered),
        ids={name: [listed[index] for index in unaltered] for name, listed in ids.items()},
        altered=tuple(documents[index].id for index in sorted(altered)),
    )


def _decoded(candidate: ScoredModel, ids: Sequence[int]) -> str:
    tokenizer: Any = candidate.tokenizer
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A candidate in memory, and how it is fed."""

    candidate: ScoredModel
    model: Any
    context: int
    stride: int
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
