"""What is left of the English that the base knows: a small text of our own, scored by every model.

The text comes with the program, so that the figure can be compared over runs. A model that
learns one language and is shown no other pays with the others; this says how much.
"""

import json

from anadil.corpus import Document
from anadil.storage import built_in

RETAINED_LANGUAGE = "en"
RETAINED_TEXT = f"builtin:{RETAINED_LANGUAGE}/retained.jsonl"
"""Short documents; no stage trains on them."""


def read_retained() -> tuple[Document, ...]:
    """The documents of the built-in English text."""
    with built_in(RETAINED_TEXT).open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return tuple(
        Document(id=row["id"], text=row["text"], source=RETAINED_TEXT, url="", lang=RETAINED_LANGUAGE)
        for row in rows
    )
