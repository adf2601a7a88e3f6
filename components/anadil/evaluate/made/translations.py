"""Items of parallel text: the right translation among near ones."""

import logging
import random
from collections.abc import Sequence

from anadil.evaluate.made.items import NUM_CHOICES, Item
from anadil.evaluate.measures import Asked

log = logging.getLogger(__name__)

TRANSLATION = "translation"
MAX_PAIRS = 2_000
"""Pairs among which near ones are sought."""
NEAR = 50
"""Pairs of about the same length whose words are compared."""


def translation_items(asked: Asked, most: int) -> dict[str, tuple[Item, ...]]:
    """Return the items of the held-out pairs. No entry without sources of pairs."""
    sources = [name for name, source in asked.recipe.sources.items() if source.pairs]
    if not sources:
        return {}
    texts = {
        document.text
        for document in asked.retained
        # The text of a source is called so where a language has its name.
        if document.lang.removesuffix("_source") in sources
    }
    end = f"\n{asked.language.name}: "
    pairs = sorted(tuple(text.split(end, 1)) for text in texts if end in text)
    if len(pairs) < NUM_CHOICES:
        log.warning(
            "made items: no translations, since %s hold out %d pairs; raise clean.heldout_fraction of these sources",
            ", ".join(sources), len(pairs),
        )  # fmt: skip
        return {TRANSLATION: ()}
    random.Random(asked.recipe.seed).shuffle(pairs)  # noqa: S311  no secret
    pairs = pairs[:MAX_PAIRS]
    items = []
    for source, right in pairs[:most]:
        near = _near(right, [text for _, text in pairs if text != right], asked)
        if len(near) == NUM_CHOICES - 1:
            items.append(
                Item(
                    contexts=(source + end.rstrip(),),
                    choices=tuple(f" {text}" for text in (right, *near)),
                    document=source,
                )
            )
    return {TRANSLATION: tuple(items)}


def _near(right: str, others: Sequence[str], asked: Asked) -> list[str]:
    """Translations of about the same length that share most words with the right one."""
    words = asked.language.shingle_units
    right_words = set(words(right))
    alike = sorted(dict.fromkeys(others), key=lambda text: (abs(len(text) - len(right)), text))[:NEAR]
    return sorted(
        alike, key=lambda text: (-len(right_words & {*words(text)}) / len(right_words | {*words(text)}), text)
    )[: NUM_CHOICES - 1]
