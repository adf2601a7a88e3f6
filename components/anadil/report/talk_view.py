"""The first picture of a page: a text that somebody gives to the released model, and what comes back."""

from dataclasses import dataclass

from anadil.core.format import counted
from anadil.report.format import clip
from anadil.report.generations_view import SEEN, greedy_texts
from anadil.report.read import Json
from anadil.report.verdict import answering, candidates_of, released_name

MAX_TALK = 280
"""Characters of a text of the picture. Chosen by us: what is read at a glance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A question and its answers, or the beginning of a text and how models go on."""

    prompt: str
    note: str
    """How the question was chosen, and the share of its kind that is answered so; empty if unknown."""
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
    # Sampled texts are left out: they differ from seed to seed.
    others = greedy_texts(candidates.get("base", {}), answers=answers)
    said += [("base", each) for each in others if each.get("prompt") == prompt][:1]
    return Talk(
        prompt=clip(prompt, MAX_TALK),
        note=_note(sample, greedy_texts(candidates[name], answers=answers)),
        said=tuple(
            (who, clip(str(each.get("text") or "").removeprefix(prompt).strip(), MAX_TALK))
            for who, each in said
        ),
        answers=answers,
    )


def sample_of(candidate: Json, *, answers: bool) -> Json | None:
    """Greedy text that shows a model: the first right answer to a question that training had not seen, else the first text."""
    # The pipeline knows whether training saw a question only if the question has a known answer.
    order = {"False": 0, "None": 1}

    def rank(text: Json) -> tuple[int, bool]:
        return order.get(str(text.get("seen")), 2), text.get("exact") is not True

    return min(greedy_texts(candidate, answers=answers), key=rank, default=None)


def _note(sample: Json, texts: list[Json]) -> str:
    """How often such questions are answered word for word, so that nobody takes the sample for all of them."""
    seen = sample.get("seen")
    if not isinstance(seen, bool):
        return ""
    alike = [each for each in texts if each.get("seen") is seen]
    exact = sum(each.get("exact") is True for each in alike)
    return f"{SEEN[seen]}; {exact} of {counted(len(alike), 'such question')} answered word for word"
