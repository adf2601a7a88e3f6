"""CPU time and disk of `encode`, for the planner."""

from dataclasses import dataclass
from math import ceil
from typing import Any

from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import read_table
from anadil.core.format import human_hours, stored_bytes
from anadil.estimate.budget import ID_BYTES
from anadil.estimate.stage_memory import NeedRequest, Needs
from anadil.estimate.text_use import DOCUMENT_BYTES, Basis, TextSize

BASIS = Basis(phrase="counted by encode", short="encode", counted=True)
ENCODE_BYTES_PER_S = 33e6
"""Text that `encode` takes in a CPU second. Source: `benchmarks/encode/README.md`."""
BYTES_PER_DOCUMENT = 12
"""Where it starts and how long it is, in an artifact of tokens."""
BYTES_PER_PIECE, BYTES_PER_SEQUENCE = 24, 8
"""A piece of a document in a packed sequence, and where the sequence begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeNeed:
    """Needs of the stage `encode`, all sources together."""

    text_bytes: int
    cpu_hours: float
    disk_bytes: int
    """Ids, places of the documents, and packed sequences."""

    @property
    def memory(self) -> None:
        """The stage loads no model."""

    def pairs(self) -> list[tuple[str, str]]:
        """Names and values for people."""
        return [
            ("text", stored_bytes(self.text_bytes)),
            ("CPU time", human_hours(self.cpu_hours)),
            ("disk", stored_bytes(self.disk_bytes)),
        ]


def need(request: NeedRequest) -> EncodeNeed | None:
    """CPU time and disk of the stage; None where the bytes of a text are not known."""
    text, sequence_length = request.text.encoded, request.recipe.pretrain.sequence_length
    text_bytes = [each.text_bytes for each in text.values()]
    if not text or None in text_bytes:
        return None
    disk = 0
    for each in text.values():
        documents = each.documents or ceil((each.text_bytes or 0) / DOCUMENT_BYTES)
        sequences = each.sequences or ceil(each.tokens / sequence_length)
        disk += ID_BYTES * each.tokens + BYTES_PER_DOCUMENT * documents
        # A document has a piece, and each border of a sequence may cut one.
        disk += BYTES_PER_PIECE * (documents + sequences) + BYTES_PER_SEQUENCE * sequences
    total = sum(filter(None, text_bytes))
    return EncodeNeed(text_bytes=total, cpu_hours=total / ENCODE_BYTES_PER_S / 3_600, disk_bytes=disk)


def text_size(uri: str, manifest: Manifest, *, only_new: bool = False) -> TextSize:
    """Text of an artifact of tokens; its new part alone with `only_new`."""
    # Not by the reader of tokens, which needs NumPy.
    table: Any = read_table(uri, manifest, "tokens.json")
    earlier = table.get("earlier") if only_new else None
    targets, size, documents, sequences = (
        int(table[key]) - int((earlier or {}).get(key, 0))
        for key in ("targets", "bytes", "documents", "sequences")
    )
    return TextSize(basis="tokens", tokens=targets, text_bytes=size, documents=documents, sequences=sequences)


NEEDS = Needs(need=need, title="Encoding the text, on CPUs")
