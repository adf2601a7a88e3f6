"""Choices of made items that a model takes, by how much, and the kinds of items that tell anything in this run."""

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anadil.evaluate.bootstrap import paired_difference
from anadil.evaluate.made.items import SAMPLE_BYTES, Item, Vocabulary, make_items, translation_items
from anadil.evaluate.measures import Asked, CheckValue, Evaluator, Tables
from anadil.evaluate.models import CandidateModel
from anadil.model.load import encode_texts
from anadil.text.metrics import SURE_DOCUMENTS, share_interval

log = logging.getLogger(__name__)

ALL = "all"
"""Entry of the kinds that decide, together."""
CHAMPION = "champion"
NEARLY_ALL = 0.95
"""Share right from which on a kind does not tell good models apart. Chosen by us."""
Margins = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made(Evaluator):
    """Items by kind, and what the candidates made of them."""

    kinds: Mapping[str, Sequence[Item]]
    seed: int
    margins: dict[str, dict[str, Margins]] = field(default_factory=dict)
    """By candidate and kind: bits per byte by which the right choice is likelier than the likeliest other, an item each."""

    def measure(self, loaded: CandidateModel, _: Mapping[str, Any], /) -> dict[str, Any]:
        """Let a candidate choose, and return by kind the share that is right."""
        margins = self.margins[loaded.candidate.name] = margins_of(loaded, self.kinds)
        return {kind: _entry(self.kinds[kind], margins[kind]) for kind in self.kinds}

    def compare(self, tables: Tables) -> None:
        """Add to each kind whether it decides, and what candidates differ by, with intervals over documents."""
        reasons = {kind: _reason(kind, items, tables) for kind, items in self.kinds.items()}
        deciding = [kind for kind, reason in reasons.items() if not reason]
        pooled = deciding or list(self.kinds)
        listed = {**self.kinds, ALL: [item for kind in pooled for item in self.kinds[kind]]}
        reasons[ALL] = "" if deciding else "no kind decides"
        margins = {
            name: {**by_kind, ALL: np.concatenate([by_kind[kind] for kind in pooled])}
            for name, by_kind in self.margins.items()
        }
        for name, by_kind in margins.items():
            entries = tables[name]["made"]
            entries[ALL] = _entry(listed[ALL], by_kind[ALL])
            before = [] if name == CHAMPION else [*itertools.takewhile(name.__ne__, margins)]
            compared = dict.fromkeys([*before, *({CHAMPION} & margins.keys() - {name})])
            for kind, entry in entries.items():
                entry |= {"decides": not reasons[kind], "reason": reasons[kind]}
                if listed[kind]:
                    entry["differences"] = {
                        other: differences(listed[kind], by_kind[kind], margins[other][kind], self.seed)
                        for other in compared
                    }


def prepare(asked: Asked) -> Made | None:
    """Make the items of the held-out text. None if the recipe wants none, or the text allows none."""
    most = asked.recipe.evaluate.made_items
    if not most:
        return None
    texts = (each.text for each in asked.train() if each.lang == asked.language.code)
    vocabulary = Vocabulary.of(texts, asked.language)
    # How much there is in all languages, the same log says when all of it was read.
    part = "the first" if vocabulary.num_bytes >= SAMPLE_BYTES else "all"
    log.info(
        "made items: words are counted in %s %s bytes of training text in %s",
        part, f"{vocabulary.num_bytes:,}", asked.language.name,
    )  # fmt: skip
    kinds = make_items(asked.heldout, vocabulary, most, asked.recipe.seed)
    kinds |= translation_items(asked, most)
    if not any(kinds.values()):
        log.warning("made items: the held-out text has no sentences that items can be made of")
        return None
    log.info("made items: %s", ", ".join(f"{len(items)} {kind}" for kind, items in kinds.items()))
    return Made(kinds=kinds, seed=asked.recipe.seed)


def margins_of(loaded: CandidateModel, kinds: Mapping[str, Sequence[Item]]) -> dict[str, Margins]:
    """Return by kind the margin of each item: bits per byte of the likeliest other choice less the right one's."""
    items = [item for listed in kinds.values() for item in listed]
    choices = [choice for item in items for choice in item.choices]
    contexts = [
        context
        for item in items
        for _, context in itertools.zip_longest(item.choices, item.contexts, fillvalue=item.contexts[0])
    ]
    tokenizer, prefix = loaded.candidate.tokenizer, loaded.candidate.prefix
    prompts = [(prefix, *ids) for ids in encode_texts(tokenizer, contexts)]
    nats = loaded.answer_nats(prompts, encode_texts(tokenizer, choices))
    # For each byte: else a model would seem to prefer whatever is short.
    bits = nats / math.log(2) / np.array([len(choice.encode()) for choice in choices])
    ends = np.cumsum([0, *(len(item.choices) for item in items)])
    margins = np.array([bits[a + 1 : b].min() - bits[a] for a, b in itertools.pairwise(ends)])
    cuts = np.cumsum([len(listed) for listed in kinds.values()])[:-1]
    return dict(zip(kinds, np.split(margins, cuts), strict=True))


def check_value(table: Mapping[str, Any]) -> CheckValue | None:
    """Mean margin of a candidate less the base's, over all kinds that decide."""
    entry = table.get("made", {}).get(ALL, {})
    if not entry.get("decides"):
        return None
    change = entry["differences"]["base"]["margin"]
    return CheckValue(value=change["value"], interval=(change["low"], change["high"]), num=entry["num"])


def _entry(items: Sequence[Item], margins: Margins) -> dict[str, Any]:
    share = float((margins > 0).mean()) if len(items) else None
    return {
        "num": len(items),
        "num_documents": len({item.document for item in items}),
        "accuracy": share,
        "interval": share_interval(share, len(items)),
        "chance": fmean(1 / len(item.choices) for item in items) if items else None,
        "margin": float(margins.mean()) if len(items) else None,
    }


def _reason(kind: str, items: Sequence[Item], tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Reason why a kind decides nothing in this run. Empty if it decides."""
    # FineTasks asks the same of a benchmark: above chance, little noise. That it ranks models as bits per byte do is
    # measured once, in `benchmarks/evaluate`.
    entries = [table["made"][kind] for table in tables.values()]
    num_documents = len({item.document for item in items})
    if num_documents < SURE_DOCUMENTS:
        return f"{num_documents} documents; needs {SURE_DOCUMENTS}"
    if all(entry["interval"][0] <= entry["chance"] for entry in entries):
        return "no model is above chance"
    if all(entry["accuracy"] > NEARLY_ALL for entry in entries):
        return f"every model has more than {NEARLY_ALL:.0%} right"
    return ""


def differences(items: Sequence[Item], new: Margins, old: Margins, seed: int) -> dict[str, Any]:
    """Return the difference of two models in share right and in margin, with 95 % intervals over documents."""
    # Items of a document are alike, so that documents are drawn, as for bits per byte. That takes sums of nats.
    _, places = np.unique([item.document for item in items], return_inverse=True)
    sizes = np.bincount(places)

    def difference(one: NDArray[Any], other: NDArray[Any]) -> dict[str, Any]:
        nats, others = (np.bincount(places, each).astype(np.float64) * math.log(2) for each in (one, other))
        return asdict(paired_difference(nats, others, sizes, seed))

    return {"accuracy": difference(new > 0, old > 0), "margin": difference(new, old)}
