"""Chats of a run as training reads them, with what of them is learnt."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anadil.artifacts import artifact, storage
from anadil.artifacts.chat_files import read_chats
from anadil.artifacts.find import read_table
from anadil.recipe.load import parse_recipe
from anadil.text.chats import Chat, DroppedChats

SIZE = 25
"""Chats of a page."""
BUDGET_S = 3.0
TRAINED = re.compile("\u27e6(.*?)\u27e7", re.DOTALL)
"""Span of a sample of the audit that is trained; `finetune.audit` writes the brackets."""
FINETUNE = "finetune.inputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownChats:
    """A page of chats."""

    chats: tuple[Chat, ...]
    next: int | None
    """Number of the first chat of the next page."""
    is_over_time: bool
    """Reading took longer than a page may: the page is not full."""


def audit_of(adapter: str) -> Mapping[str, Any]:
    """Return `mask_audit.json` of an adapter."""
    return read_table(adapter, artifact.finished_manifest(adapter, "adapter"), "mask_audit.json")


def marked_spans(sample: str) -> list[tuple[str, bool]]:
    """Return a sample of the audit in spans: (text, True if it is trained)."""
    # The pattern has one group: odd parts are what it matched.
    return [(text, bool(place % 2)) for place, text in enumerate(TRAINED.split(sample)) if text]


def chats_of(
    adapter: str, start: int, *, words: str = "", size: int = SIZE, budget_s: float = BUDGET_S
) -> ShownChats:
    """Return the good chats of an adapter's recipe from a number on, in the order of its files.

    Args:
        adapter: Directory or URI.
        start: Number of the first chat, from 0.
        words: Only chats that hold these words, in whatever case.
        size: Most chats.
        budget_s: Seconds after which the page ends.
    """
    manifest = artifact.finished_manifest(adapter, "adapter")
    settings = parse_recipe(json.dumps(manifest.recipe), f"recipe of {adapter}").finetune
    uris, until = storage.expand(settings.inputs, FINETUNE), time.monotonic() + budget_s
    chats = list[Chat]()
    further, is_over_time = None, False
    for place, chat in enumerate(read_chats(uris, DroppedChats(), columns=settings.columns)):
        if place < start:
            continue
        # Files of chats have no index, so that a later page reads what is before it.
        if len(chats) == size or (place > start and time.monotonic() > until):
            further, is_over_time = place, len(chats) < size
            break
        if not words or any(words.casefold() in each.content.casefold() for each in chat.messages):
            chats.append(chat.with_system(settings.system_text))
    return ShownChats(chats=tuple(chats), next=further, is_over_time=is_over_time)
