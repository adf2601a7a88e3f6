"""Measurements of models, kept beside the scores of one run for the next.

A retraining meets the same base and the same champion on text that is mostly the same. What the champion's run measured
of them counts again, and a model is loaded only for what is new to it. Entries are by content: a text's tokens stand for
its score, a prompt's tokens, its seeds and its length for what was written.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from anadil.core.errors import IntegrityError
from anadil.evaluate.bits_per_byte import Ids
from anadil.model.decoding import Continuation

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

    def table(self) -> dict[str, Any]:
        """Entry of the file."""
        return {
            "of": dict(self.of),
            "parameters": self.parameters,
            "texts": self.texts,
            "written": self.written,
        }


def identity(digest: str, *, device: str, dtype: str, context: int, stride: int) -> dict[str, str | int]:
    """Return what a model's numbers depend on beside texts: equal in two runs, one may take those of the other.

    Args:
        digest: Of its files; empty where it is unknown, and then nothing is taken.
        device: Type of the device; two types round differently.
        dtype: Precision of its weights in memory.
        context: Tokens that it sees at a time.
        stride: Tokens that each window scores.
    """
    if not digest:
        return {}
    return {
        "model": digest,
        "device": device,
        "dtype": dtype,
        "context": context,
        "stride": stride,
        # Their kernels and defaults may change with a release. An older one's numbers are measured again.
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def write_measurements(folder: Path, measured: Iterable[Measurements]) -> None:
    """Write the file of an artifact; models whose identity is unknown are left out."""
    # A model without a manifest may change under its name.
    tables = [each.table() for each in measured if each.of]
    text = json.dumps(tables, ensure_ascii=False, allow_nan=False)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def read_measurements(folder: Path | None) -> list[Measurements]:
    """Read the file of an artifact; empty where there is none, as in scores of an earlier version."""
    if folder is None or not (folder / FILE).is_file():
        return []
    try:
        return [Measurements(**each) for each in json.loads((folder / FILE).read_text(encoding="utf-8"))]
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

    def known_nats(self, pairs: Sequence[tuple[Ids, Ids]]) -> tuple[list[str], NDArray[np.float64]]:
        """Return the key of each text given the tokens before it, and its nats; NaN where they are unknown."""
        keys = [_key(before, ids) for before, ids in pairs]
        nats = np.array([self.earlier.texts.get(key, np.nan) for key in keys], dtype=np.float64)
        self.taken += int(np.isfinite(nats).sum())
        return keys, nats

    def keep_nats(self, keys: Sequence[str], nats: NDArray[np.float64]) -> None:
        """Remember the nats of texts."""
        self.now.texts.update(zip(keys, nats.tolist(), strict=True))

    def known_rows(self, key: str) -> Rows | None:
        """Return the continuations of a prompt; None if they are unknown."""
        if (rows := self.earlier.written.get(key)) is None:
            return None
        self.taken += 1
        self.now.written[key] = rows
        return [Continuation(tokens=tuple(tokens), ended=ended) for tokens, ended in rows]

    def keep_rows(self, key: str, rows: Rows) -> None:
        """Remember the continuations of a prompt."""
        self.now.written[key] = [(list(row.tokens), row.ended) for row in rows]


def prompt_key(
    prompt: Sequence[int], seeds: Sequence[int | None], max_new_tokens: int, ends: Sequence[int] | None
) -> str:
    """Return the key of a prompt's continuations."""
    return _key(prompt, repr((list(seeds), max_new_tokens, ends)).encode())


def _key(first: Ids, second: Ids | bytes) -> str:
    rest = second if isinstance(second, bytes) else np.asarray(second, dtype=np.int64).tobytes()
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    # The number of tokens before parts them from the text.
    digest.update(len(first).to_bytes(8, "little"))
    digest.update(np.asarray(first, dtype=np.int64).tobytes())
    digest.update(rest)
    return digest.hexdigest()
