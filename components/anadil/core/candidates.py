"""Candidates of a release: which artifact each is, what it is judged for, and its colour on every page.

Evaluation, gate, report, model card, registry, export and chat read them. The record of the stage that makes one has it.
"""

from collections.abc import Container, Mapping
from dataclasses import replace

from anadil.core.stage import ANSWERS, CONTINUES
from anadil.core.stages import FLOW

ANSWERS_FIGURE = "answers"
"""Figure of a merged model's manifest: 1 where a model that answers was added, and its chat template came along."""
CANDIDATES = tuple(replace(stage.candidate, kind=stage.writes) for stage in FLOW if stage.candidate)
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
