"""Candidates of a release: which artifact each is, what it is judged for, and its colour on every page.

This is the only list. Evaluation, gate, report, model card, registry, export and chat read it. It imports nothing.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass

CONTINUES = "continuing text"
"""Use of a model that was trained on running text."""
ANSWERS = "answering"
"""Use of a model that learnt to answer."""
ANSWERS_FIGURE = "answers"
"""Figure of a merged model's manifest: 1 where a model that answers was added, and its chat template came along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model of a run that may be released."""

    name: str
    """Name in the scores."""
    kind: str
    """Artifact that it is."""
    folder: str = ""
    """Directory of the artifact that holds the whole model; empty: the artifact itself."""
    use: str
    """Use that it is trained and judged for."""
    colour: int
    """Number of its colour in charts."""


CANDIDATES = (
    Candidate(name="adapted", kind="model", use=CONTINUES, colour=1),
    Candidate(name="merged", kind="merged", use=CONTINUES, colour=4),
    Candidate(name="finetuned", kind="adapter", folder="merged", use=ANSWERS, colour=2),
)
"""In the order in which they are made: of those that pass the gate, the last one is released."""
BY_NAME = {each.name: each for each in CANDIDATES}
BY_KIND = {each.kind: each for each in CANDIDATES}
"""Kind of artifact -> the candidate that it is."""
COLOURS = {"base": 0, **{each.name: each.colour for each in CANDIDATES}, "champion": 3}
"""Everything that is scored, in the order of tables -> its colour."""


def answers(kind: str, figures: Mapping[str, object]) -> bool:
    """Return True if an artifact, by its kind and its manifest's figures, is a model that is asked through its chat template."""
    # Only what was merged into it tells whether a merged model answers.
    return kind in BY_KIND and (BY_KIND[kind].use == ANSWERS or figures.get(ANSWERS_FIGURE) == 1)


def before_finetuning(names: Container[str]) -> str:
    """Return the candidate that finetuning began with, among those of a run."""
    trained = [each.name for each in CANDIDATES if each.use == CONTINUES]
    return next((name for name in reversed(trained) if name in names), trained[0])
