"""Tokens as the data set of Megatron-LM and what reads its files: `NAME.bin` and `NAME.idx`.

Each document is a sequence, with the tokens round it that training sees. Held-out documents are a data set of their own.
Source: `megatron/core/datasets/indexed_dataset.py` of megatron-core 0.16, `_IndexWriter` and `DType`.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from anadil.artifacts import artifact, local_directory
from anadil.core.progress import track
from anadil.encode.stored_tokens import Documents, open_tokens
from anadil.release.export.export_model import Exported, draft_of

MAGIC, VERSION = b"MMIDIDX\x00\x00", 1
CODES = {"uint16": 8, "int32": 4}
"""Type of ids -> its number in the index."""
MAX_UINT16_VOCABULARY = 65_500
"""Below it ids take two bytes. Source: `DType.optimal_dtype`."""


def export_tokens(uri: str, out: Path) -> Exported:
    """Write the training and the held-out documents of an artifact of tokens below `out`, whole or not at all."""
    local_directory.refuse_occupied(str(out))
    tokens = open_tokens(uri, artifact.finished_manifest(uri, "tokens"))
    dtype = np.dtype("uint16" if tokens.facts.vocabulary < MAX_UINT16_VOCABULARY else "int32")
    with draft_of(out) as draft:
        _write(draft / "train", dtype, tokens.documents("train"), len(tokens.facts.train))
        _write(draft / "heldout", dtype, tokens.documents("heldout"), len(tokens.facts.heldout))
        local_directory.flush_directory(draft)
        files = sorted(draft.iterdir())
        num_bytes = sum(file.stat().st_size for file in files)
        draft.rename(out)
    return Exported(folder=out, names=tuple(file.name for file in files), path=out, num_bytes=num_bytes)


def _write(path: Path, dtype: np.dtype[Any], shards: Iterator[Documents], num: int) -> None:
    sizes = []
    with path.with_suffix(".bin").open("wb") as file:
        for starts, ids in track(shards, f"exporting {path.name}, shards", num):
            file.write(ids.astype(dtype).tobytes())
            sizes.append(np.diff(starts))
    lengths = np.concatenate([np.empty(0, dtype=np.int64), *sizes])
    with path.with_suffix(".idx").open("wb") as file:
        documents = len(lengths)
        file.write(MAGIC + struct.pack("<QB", VERSION, CODES[dtype.name]))
        # A border more than documents: the place of the first, and behind each.
        file.write(struct.pack("<QQ", documents, documents + 1))
        file.write(lengths.astype(np.int32).tobytes())
        file.write(((np.cumsum(lengths) - lengths) * dtype.itemsize).tobytes())
        file.write(np.arange(documents + 1, dtype=np.int64).tobytes())
