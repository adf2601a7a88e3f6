"""Items of parallel text: the right translation among near ones."""

import logging

from anadil.core.format import counted
from anadil.evaluate.made.items import NUM_CHOICES, Item, digest
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
            "made items: no translations, since %s hold out %s; raise clean.heldout_fraction of these sources",
            ", ".join(sources), counted(len(pairs), "pair"),
        )  # fmt: skip
        return {TRANSLATION: ()}
    # The pair itself decides, so that a pair more or less moves no other item.
    pairs = sorted(pairs, key=lambda pair: digest(f"{asked.recipe.seed} {pair}"))[:MAX_PAIRS]
    words = {text: {*asked.language.shingle_units(text)} for _, text in pairs}
    items = []
    for source, right in pairs[:most]:
        others = sorted(words.keys() - {right}, key=lambda text: (abs(len(text) - len(right)), text))[:NEAR]
        others.sort(
            key=lambda text: -len(words[right] & words[text]) / max(1, len(words[right] | words[text]))
        )
        if len(others) >= NUM_CHOICES - 1:
            choices = tuple(f" {text}" for text in (right, *others[: NUM_CHOICES - 1]))
            items.append(Item(contexts=(source + end.rstrip(),), choices=choices, document=source))
    return {TRANSLATION: tuple(items)}
