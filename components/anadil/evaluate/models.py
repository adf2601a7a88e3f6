"""Models that are compared, the held-out text in the tokens of each, and how each is loaded and fed."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from anadil.artifacts import artifact
from anadil.artifacts.base_model import model_config
from anadil.core.candidates import BY_KIND, answers
from anadil.core.errors import DataError, IntegrityError, PreflightError
from anadil.core.files import write_atomic
from anadil.core.json_text import read_json
from anadil.core.progress import track
from anadil.estimate.fit import FITS
from anadil.estimate.model_shape import shape_from
from anadil.estimate.stage_memory import scoring_parts
from anadil.evaluate.bits_per_byte import Ids, score
from anadil.model import load as loading
from anadil.model.architecture import read_config
from anadil.model.decoding import Continuation, open_decoder
from anadil.model.family_table import refuse_mixture
from anadil.recipe.sections import Recipe
from anadil.text import metrics
from anadil.text.corpus import Document

log = logging.getLogger(__name__)

FILE = "measurements.json"
"""File of an artifact `scores`."""
KEY_BYTES = 16
Rows = list[Continuation]


@dataclass(slots=True, kw_only=True)
class Measurements:
    """Numbers and texts of one model on one kind of device, by one version of the libraries."""

    of: Mapping[str, str | int] = field(default_factory=dict)
    """All that the numbers depend on beside texts; see `identity`. Empty: unknown, and neither kept nor used again."""
    parameters: int = 0
    """Number of the model's parameters; 0 until it was loaded."""
    texts: dict[str, float] = field(default_factory=dict)
    """Digest of a text's tokens -> its nats."""
    written: dict[str, list[tuple[list[int], bool]]] = field(default_factory=dict)
    """Digest of a prompt and how it is continued -> new tokens of each continuation, and whether it ended."""


def identity(
    digest: str, *, device: str, dtype: str, context: int, stride: int, bos: int | None = None
) -> dict[str, str | int]:
    """Return what a model's numbers depend on beside texts: equal in two runs, one may take those of the other."""
    if not digest:
        return {}
    return {
        "model": digest,
        "device": device,
        "dtype": dtype,
        "context": context,
        "stride": stride,
        "window_bos": str(bos),
        # Their kernels and defaults may change with a release. An older one's numbers are measured again.
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def write_measurements(folder: Path, measured: Iterable[Measurements]) -> None:
    """Write the file of an artifact; models whose identity is unknown are left out."""
    # A model without a manifest may change under its name.
    tables = [asdict(each) for each in measured if each.of]
    text = json.dumps(tables, ensure_ascii=False, allow_nan=False)
    # `anadil bases` keeps it in a folder in which another process may read, or end.
    write_atomic(folder / FILE, text + "\n")


def read_measurements(folder: Path | None) -> list[Measurements]:
    """Read the file of an artifact; empty where there is none, as in scores of an earlier version."""
    if folder is None or not (folder / FILE).is_file():
        return []
    try:
        return [Measurements(**each) for each in read_json(folder / FILE)]
    except (ValueError, TypeError) as error:
        raise IntegrityError(f"{folder / FILE}: damaged ({error}); restore the artifact") from None


@dataclass(slots=True, kw_only=True)
class Memory:
    """Measurements of a model: those of an earlier run, and those that this one asks for."""

    earlier: Measurements = field(default_factory=Measurements)
    now: Measurements = field(default_factory=Measurements)
    """Only what this run asked for, so that the file does not grow from week to week."""
    taken: int = 0
    """Texts and prompts of the earlier run that were used."""

    @classmethod
    def of(cls, known: Iterable[Measurements], model: Mapping[str, str | int]) -> "Memory":
        """Open the memory of a model, with what an earlier run knows of it."""
        earlier = next((each for each in known if model and each.of == model), Measurements())
        return cls(earlier=earlier, now=Measurements(of=model, parameters=earlier.parameters))

    def nats(
        self,
        pairs: Sequence[tuple[Ids, Ids]],
        measure: Callable[[list[tuple[Ids, Ids]]], NDArray[np.float64]],
    ) -> NDArray[np.float64]:
        """Return the nats of each text, given the tokens before it. Those that are not known are measured."""
        keys = [_key(before, ids) for before, ids in pairs]
        nats = np.array([self.earlier.texts.get(key, np.nan) for key in keys], dtype=np.float64)
        unknown = np.flatnonzero(np.isnan(nats)).tolist()
        self.taken += len(keys) - len(unknown)
        if unknown:
            nats[unknown] = measure([pairs[place] for place in unknown])
        self.now.texts.update(zip(keys, nats.tolist(), strict=True))
        return nats

    def known_rows(self, key: str) -> Rows | None:
        """Return the continuations of a prompt; None if they are unknown."""
        if (rows := self.earlier.written.get(key)) is None:
            return None
        self.taken += 1
        self.now.written[key] = rows
        return [Continuation(tokens=tuple(tokens), ended=ended) for tokens, ended in rows]


def _key(first: Ids, second: Ids | bytes) -> str:
    rest = second if isinstance(second, bytes) else np.asarray(second, dtype=np.int64).tobytes()
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    # The number of tokens before parts them from the text.
    digest.update(len(first).to_bytes(8, "little"))
    digest.update(np.asarray(first, dtype=np.int64).tobytes())
    digest.update(rest)
    return digest.hexdigest()


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
    digest: str = ""
    """Digest of its files; empty where that is unknown."""


def open_model(
    name: str, path: Path, *, answers: bool = False, digest: str = "", like: ScoredModel | None = None
) -> ScoredModel:
    """Load a candidate's tokenizer; a base's windows begin like a candidate's."""
    tokenizer = loading.load_tokenizer(path)
    prefix, _ = loading.document_ids(tokenizer, f"{path}, {name}")
    # The tokenizer that is shipped sets BOS before a text also where the base's sets none.
    bos = prefix if like and like.bos is not None else loading.window_bos(tokenizer)
    return ScoredModel(
        name=name, path=path, tokenizer=tokenizer, prefix=prefix, bos=bos, answers=answers, digest=digest
    )


def open_artifact(name: str, folder: Path) -> ScoredModel:
    """Load the tokenizer of an artifact; what it is, and its manifest, say whether it answers."""
    manifest = artifact.read_manifest(str(folder))
    inside = folder / BY_KIND["adapter"].folder
    kind = "adapter" if inside.is_dir() else manifest.kind if manifest else "model"
    figures = manifest.figures if manifest else {}
    return open_model(
        name, inside if kind == "adapter" else folder, answers=answers(kind, figures),
        digest=manifest.digest if manifest else "",
    )  # fmt: skip


def load_for_scoring(path: Path, name: str) -> Any:
    """Load a model on the fewest GPUs of this machine that hold it with a batch; see `load_placed`."""
    return loading.load_placed(
        path, name, lambda count: scoring_parts(shape_from(model_config(path), name), count, on_gpu=True), FITS
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
    """
    ids: dict[str, list[NDArray[np.int32]]] = {}
    altered: set[int] = set()
    texts = [document.text for document in documents]
    for candidate in candidates:
        encoded = loading.encode_texts(candidate.tokenizer, texts)
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
    """Add the champion to the candidates where it can be scored, and encode the documents for all of them."""
    if folder:
        try:
            champion = open_artifact("champion", folder)
            refuse_mixture(model_config(champion.path), f"champion ({champion.path})")
            everybody = [*candidates, champion]
            return everybody, encode_for_all(everybody, documents)
        except (DataError, PreflightError) as error:
            log.warning("champion: %s; candidates are not compared with it", error)
    return list(candidates), encode_for_all(candidates, documents)


@dataclass(slots=True, kw_only=True)
class CandidateModel:
    """A candidate, how it is fed, and what is known of it; its weights are loaded when something is not known."""

    candidate: ScoredModel
    load: Callable[[], Any]
    context: int
    """Tokens that it sees at a time."""
    stride: int
    """Tokens that each window scores."""
    batch_tokens: int
    device: str = "cpu"
    """Type of the device that it runs on."""
    dtype: str = "float32"
    """Precision of its weights in memory."""
    memory: Memory = field(default_factory=Memory)
    _model: Any = None

    @property
    def model(self) -> Any:
        """The model in memory."""
        if self._model is None:
            self._model = self.load()
        return self._model

    @property
    def is_loaded(self) -> bool:
        """Return whether something was not known."""
        return self._model is not None

    @property
    def parameters(self) -> int:
        """Number of its parameters."""
        now = self.memory.now
        now.parameters = now.parameters or int(self.model.num_parameters())
        return now.parameters

    def free(self) -> None:
        """Give back its memory."""
        self._model = None
        loading.free_memory()

    def nats(self, encoded: Sequence[NDArray[np.int32]]) -> NDArray[np.float64]:
        """Nats of each document; see `score`."""
        return self._score([((self.candidate.prefix,), ids) for ids in encoded], self.candidate.name)

    def answer_nats(self, questions: Sequence[Ids], answers: Sequence[Ids]) -> NDArray[np.float64]:
        """Nats of each answer, given its question; see `score`."""
        return self._score(list(zip(questions, answers, strict=True)), f"{self.candidate.name}, answers")

    def decoder(
        self, tokenizer: PreTrainedTokenizerFast | None = None, ends: Sequence[int] | None = None
    ) -> "CandidateDecoder":
        """Return its decoder, which knows what the candidate wrote in an earlier run; see `open_decoder`."""
        return CandidateDecoder(self, tokenizer or self.candidate.tokenizer, ends)

    def _score(self, pairs: Sequence[tuple[Ids, Ids]], name: str) -> NDArray[np.float64]:
        # A model of 70 billion parameters takes minutes to load, and a week may bring it no new text.
        def measure(unknown: list[tuple[Ids, Ids]]) -> NDArray[np.float64]:
            return score(
                self.model, unknown, bos=self.candidate.bos, context=self.context, stride=self.stride,
                batch_tokens=self.batch_tokens, name=name,
            )  # fmt: skip

        return self.memory.nats(pairs, measure)


@dataclass(frozen=True, slots=True)
class CandidateDecoder:
    """Decoder of a candidate that writes only what is not known."""

    candidate: CandidateModel
    tokenizer: PreTrainedTokenizerFast
    ends: Sequence[int] | None

    def batches(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int | None]], *, max_new_tokens: int
    ) -> Iterator[tuple[int, list[Continuation]]]:
        """Yield each prompt's place and its continuations; see `Decoder.batches`."""
        memory = self.candidate.memory
        keys = [
            _key(prompt, repr((list(each), max_new_tokens, self.ends)).encode())
            for prompt, each in zip(prompts, seeds, strict=True)
        ]
        unknown = []
        for place, key in enumerate(keys):
            if rows := memory.known_rows(key):
                yield place, rows
            else:
                unknown.append(place)
        if not unknown:
            return
        decoder = open_decoder(self.candidate.model, self.tokenizer, self.ends)
        for number, rows in decoder.batches(
            [prompts[place] for place in unknown],
            [seeds[place] for place in unknown],
            max_new_tokens=max_new_tokens,
        ):
            memory.now.written[keys[unknown[number]]] = [(list(row.tokens), row.ended) for row in rows]
            yield unknown[number], rows


def open_candidate(
    candidate: ScoredModel, recipe: Recipe, known: Iterable[Measurements] = ()
) -> CandidateModel:
    """Open a candidate, to be fed as the recipe says; `known` was measured in an earlier run.

    Its weights are loaded at the first use, where PreflightError says that the GPUs of this machine together do not hold it.
    """
    longest = getattr(read_config(candidate.path), "max_position_embeddings", None) or recipe.context
    context = min(recipe.context, longest)
    if context < recipe.context:
        log.warning(
            "%s: holds %d tokens, fewer than the context of %d", candidate.name, context, recipe.context
        )
    stride = min(recipe.evaluate.stride or context, context)
    device = loading.pick_device()
    dtype = str(loading.pick_dtype(device)).removeprefix("torch.")
    of = identity(
        candidate.digest, device=device.type, dtype=dtype, context=context, stride=stride, bos=candidate.bos
    )
    return CandidateModel(
        candidate=candidate, load=lambda: load_for_scoring(candidate.path, candidate.name), context=context, stride=stride,
        batch_tokens=BATCH_TOKENS[device.type], device=device.type, dtype=dtype, memory=Memory.of(known, of),
    )  # fmt: skip
