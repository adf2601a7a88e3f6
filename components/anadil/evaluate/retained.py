"""What is left of the English that the base knows: a small text of our own, scored by every model.

The text comes with the program, so that the figure can be compared over runs. A model that
learns one language and is shown no other pays with the others; this says how much.
"""

import json

from anadil.artifacts.storage import built_in
from anadil.text.corpus import Document

LANGUAGE = "en"
TEXT = f"builtin:{LANGUAGE}/retained.jsonl"
"""Short documents; no stage trains on them."""


def read_retained() -> tuple[Document, ...]:
    """The documents of the built-in English text."""
    with built_in(TEXT).open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return tuple(Document(id=row["id"], text=row["text"], source=TEXT, url="", lang=LANGUAGE) for row in rows)
