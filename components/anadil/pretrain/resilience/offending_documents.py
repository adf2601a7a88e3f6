"""The documents of a step that went wrong, in a file for whoever looks for the offending text."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anadil.artifacts.base_model import read_tokenizer
from anadil.pretrain.data.packing import Packed
from anadil.pretrain.data.tokens import Places
from anadil.pretrain.resilience.loss_spikes import Verdict

MOST_CHARS = 200
"""Characters shown of each document."""
MOST_TOKENS = 256
"""Tokens decoded for them: no tokenizer in use has tokens of less than one character on average."""

Decode = Callable[[Sequence[int]], str]


def decoder(tokenizer: Path) -> Decode:
    """What turns ids into text, special tokens shown.

    Raises:
        DataError: The directory holds no tokenizer.
    """
    opened = read_tokenizer(tokenizer)
    return lambda ids: str(opened.decode(list(ids), skip_special_tokens=False))


def write_documents_of_step(
    folder: Path, verdict: Verdict, packed: Packed, sequences: Places, decode: Decode | None = None
) -> Path:
    """Write `anomaly-step-N.json`: each sequence of the step with its documents and how they begin.

    Args:
        folder: The work directory.
        verdict: On the step.
        packed: The sequences of the corpus.
        sequences: Those of the step, over all processes.
        decode: Turns ids into text; without it there are only numbers.
    """
    path = folder / f"anomaly-step-{verdict.step}.json"
    content = {
        "step": verdict.step,
        "loss": str(verdict.loss),  # JSON has no NaN
        "grad_norm": str(verdict.norm),
        "reason": verdict.reason,
        "finding": verdict.finding.value,
        "sequences": [
            {"sequence": int(sequence), "documents": _documents(packed, int(sequence), decode)}
            for sequence in sequences
        ],
    }
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return path


def _documents(packed: Packed, sequence: int, decode: Decode | None) -> list[dict[str, Any]]:
    """The pieces of a sequence: `document` counts the corpus' training documents from 0."""
    stream = packed.stream
    found: list[dict[str, Any]] = []
    for start, num in packed.pieces[packed.rows[sequence] : packed.rows[sequence + 1]]:
        document = int(np.searchsorted(stream.starts, start, side="right")) - 1
        entry: dict[str, Any] = {
            "document": document,
            "first_token": int(start - stream.starts[document]),
            "tokens": int(num),
        }
        if decode is not None:
            ids = stream.ids[start : start + min(int(num) + 1, MOST_TOKENS)].tolist()
            entry["text"] = decode(ids)[:MOST_CHARS]
        found.append(entry)
    return found
