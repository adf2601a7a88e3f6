"""Questions with choices: the one that a model thinks likeliest for each of its bytes is its answer.

Without the division by bytes a model would seem to prefer whatever is short.
"""

from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter
from statistics import fmean
from typing import Any

from anadil.evaluate.bits_per_byte import Ids
from anadil.evaluate.models import LoadedModel
from anadil.evaluate.questions import Questions
from anadil.model.load import encode_texts
from anadil.text.metrics import SURE_DOCUMENTS, share_interval


def choice_figures(
    loaded: LoadedModel, questions: Questions, prompts: Sequence[Ids]
) -> dict[str, dict[str, Any]]:
    """By source the share of held-out questions for which the right choice is the likeliest.

    Source: `acc_norm` of lm-evaluation-harness, with bytes in place of characters.
    """
    places = [place for place, one in enumerate(questions.listed) if one.chat.choices and not one.seen]
    texts = [(place, text) for place in places for text in questions.listed[place].chat.choices]
    encoded = encode_texts(loaded.candidate.tokenizer, [text for _, text in texts])
    nats = loaded.answer_nats([prompts[place] for place, _ in texts], encoded)
    rates: dict[int, list[float]] = defaultdict(list)
    for (place, text), own in zip(texts, nats.tolist(), strict=True):
        rates[place].append(own / len(text.encode()))
    by_source: dict[str, list[int]] = defaultdict(list)
    for place in places:
        by_source[questions.listed[place].chat.source].append(place)
    return {source: _accuracy(questions, own, rates) for source, own in sorted(by_source.items())}


def _accuracy(questions: Questions, places: Sequence[int], rates: dict[int, list[float]]) -> dict[str, Any]:
    listed = [questions.listed[place] for place in places]
    picked = [
        min(zip(rates[place], one.chat.choices, strict=True), key=itemgetter(0))[1]
        for place, one in zip(places, listed, strict=True)
    ]
    share = fmean(text == one.reference for text, one in zip(picked, listed, strict=True))
    return {
        "num": len(places),
        "accuracy": share,
        "interval": share_interval(share, len(places)),
        "chance": fmean(1 / len(one.chat.choices) for one in listed),
        "unsure": len(places) < SURE_DOCUMENTS,
    }
