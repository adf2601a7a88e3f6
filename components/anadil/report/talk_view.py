"""The first picture of a page: a text that somebody gives to the released model, and what comes back."""

from dataclasses import dataclass

from anadil.report.format import clip
from anadil.report.generations_view import SEEN, is_greedy
from anadil.report.read import Json, list_of, table_of
from anadil.report.verdict import answering, candidates_of, released_name

MAX_TALK = 280
"""Characters of a text of the picture. Chosen by us: what is read at a glance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A question and its answers, or the beginning of a text and how models go on."""

    prompt: str
    note: str
    """`seen in training`, or not; empty if unknown."""
    said: tuple[tuple[str, str], ...]
    """Name of a model and its text: the released model, then the base."""
    answers: bool
    """True for a question."""


def talk_view(scores: Json) -> Talk | None:
    """Build the picture of the released model's sample; None if none is released or nothing was asked."""
    name, candidates = released_name(scores), candidates_of(scores)
    answers = name in answering(scores)
    sample = sample_of(candidates.get(name, {}), answers=answers)
    if sample is None:
        return None
    prompt = str(sample.get("prompt") or "")
    said = [(name, sample)]
    # The base on the same text shows what training gave.
    others = [each for each in _greedy(candidates.get("base", {}), answers) if each.get("prompt") == prompt]
    said += [("base", each) for each in others[:1]]
    seen = sample.get("seen")
    return Talk(
        prompt=clip(prompt, MAX_TALK),
        note=SEEN[seen] if isinstance(seen, bool) else "",
        said=tuple(
            (who, clip(str(each.get("text") or "").removeprefix(prompt).strip(), MAX_TALK))
            for who, each in said
        ),
        answers=answers,
    )


def sample_of(candidate: Json, *, answers: bool) -> Json | None:
    """Greedy text that shows a model: that for the first question which training had not seen, else the first one.

    The rule looks at no answer, so the sample is not a chosen one.
    """
    # The pipeline knows whether training saw a question only if the question has a known answer.
    order = {"False": 0, "None": 1}
    return min(
        _greedy(candidate, answers), key=lambda each: order.get(str(each.get("seen")), 2), default=None
    )


def _greedy(candidate: Json, answers: bool) -> list[Json]:
    texts = [table_of(each) for each in list_of(candidate.get("generations"))]
    return [each for each in texts if (each.get("kind") == "answer") == answers and is_greedy(each)]
