"""Advice on what a model has forgotten: keys and values for this run's recipe, with the figure that each moves.

Published figures are of English to German, the shift that is nearest to teaching a language.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from anadil.artifacts.base_model import TINY
from anadil.artifacts.storage import BUILT_IN, built_in
from anadil.core.format import number
from anadil.recipe.finetune import Finetune
from anadil.recipe.pretrain import Phase
from anadil.recipe.sections import Recipe
from anadil.recipe.sources import MAX_EPOCHS
from anadil.report.format import figure, ratio
from anadil.report.read import Facts, Json, field, portable, table_of
from anadil.report.retained import FORGETS, Change, forgotten, name_of_text, source_of_text
from anadil.report.verdict import before, subjects_of
from anadil.text.language import load_language
from anadil.text.language_data import Language, UnknownLanguageError

OLD_LOSS = {0.0: 3.56, 0.01: 2.83, 0.05: 2.57, 0.1: 2.46, 0.25: 2.33}
"""Share of replay -> loss on the old text, in nats per token, after English to German at 405 million parameters.
Source: Ibrahim et al. 2024, arXiv:2403.08763, the table of replay."""
NEW_LOSS = {0.0: 1.11, 0.01: 1.12, 0.05: 1.12, 0.1: 1.13, 0.25: 1.16}
"""The same of the new text."""
OLD_LOSS_BEFORE = 2.17
"""Loss on the old text before. Source: the same."""
LEAST_WRITTEN = 50_000
"""Least tokens that the page asks a base to write. Cleaning drops much of it: of 14 texts of the demo's base, 9,085 tokens, it
kept one."""
MAX_INPUTS = 20
"""Most files that a snippet lists; a crawl has thousands."""
SLOWER = 0.5
"""Factor of the rates that the page proposes. Chosen by us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing that can be done, as keys of the recipe."""

    action: str
    why: str
    """The figure that it moves, with the source."""
    snippet: str
    """Keys of the recipe that change, as YAML."""


def advice_on_forgetting(facts: Facts) -> tuple[Advice, ...]:
    """Advice on the text that the released model has forgotten most; none where it has forgotten nothing."""
    for name in reversed(subjects_of(facts.scores)):
        if changes := forgotten(facts.scores, name):
            return tuple(_advice(facts, name, changes[0]))
    return ()


def _advice(facts: Facts, name: str, change: Change) -> Iterator[Advice]:
    # Each stage has a remedy of its own, and only that of the stage that lost the text helps.
    base, adapted, trained, model = (
        field(facts.scores, f"candidates.{each}.retained.{change.text}")
        for each in ("base", "adapted", before(facts.scores), name)
    )
    in_training = (ratio(base, adapted) or 1) - 1
    if in_training > FORGETS:
        yield from _replay(facts, change, in_training)
        yield _slower_training(facts.recipe, _name(facts, change))
    if name == "finetuned" and (ratio(trained, model) or 1) - 1 > FORGETS:
        yield _gentler_finetuning(facts.recipe, _name(facts, change))


def _replay(facts: Facts, change: Change, rise: float) -> Iterator[Advice]:
    """Raise the share of the sources in the text's language, or add one."""
    recipe = facts.recipe
    text, language = _name(facts, change), _language_of(facts, change)
    replayed = _sources_in(facts, change, language)
    now = _share_trained(replayed, facts.training_summary)
    share = _share_needed(rise, now)
    if share <= now:
        return
    left, cost = rise * _left(share) / _left(now), NEW_LOSS[share] / NEW_LOSS[0.0] - 1
    why = (
        f"It moves bits per byte on {text}: {_percent(share)} of replay took back {_percent(1 - _left(share))} of such a rise, for "
        f"{_percent(cost)} more loss on the new text (arXiv:2403.08763, English to German). By that the rise of {_percent(rise)} "
        f"here would be about {_percent(left)}."
    )
    if replayed:
        keys = " and ".join(f"mix.{name}" for name in replayed)
        yield Advice(
            action=f"Replay: raise {keys} in pretrain.phases to {figure(share)}, from {figure(now, 2)}.",
            why=why,
            snippet=_yaml({"pretrain": {"phases": _phases(recipe, dict.fromkeys(replayed, 1), share)}}),
        )
    elif language:
        yield from _new_source(facts, language, share, why)


def _new_source(facts: Facts, language: Language, share: float, why: str) -> Iterator[Advice]:
    """Add a source in a language: files, or text that the base writes."""
    recipe, code = facts.recipe, language.code.partition("-")[0].lower()
    # The base that is made on the spot learned from text that comes with the program; that of others is not public.
    place = f"{BUILT_IN}{code}/prose.jsonl"
    known = recipe.base.model == TINY and built_in(place).is_file()
    files: Json = {"inputs": [place if known else f"text/{code}/*.jsonl"], "language": language.code}
    yield Advice(
        action=f"Replay: give {_percent(share)} of the tokens to a source in {language.name} (sources, mix in pretrain.phases).",
        why=why,
        snippet=_with_source(recipe, f"{code}_text" if code in recipe.sources else code, files, share),
    )
    if known:
        # So small a base writes too little of use: 5 of 118 texts were kept, and English rose as without them.
        return
    trained = int(number(facts.training_summary.get("tokens")) or 0)
    tokens = max(LEAST_WRITTEN, math.ceil(share * trained))
    written: Json = {"written_by": "base", "tokens": tokens, "language": language.code}
    yield Advice(
        action=f"Without text in {language.name}: let the base write it (sources.<name>.written_by).",
        why=f"It moves the same figure: text that the base writes itself replays what it knows (arXiv:2605.26097). Cleaning drops a "
        f"part of the {tokens:,} tokens, and the rest is read {MAX_EPOCHS} times at most.",
        snippet=_with_source(recipe, "self", written, share),
    )


def _slower_training(recipe: Recipe, text: str) -> Advice:
    phases = [
        _written(phase) | ({"lr": phase.lr * SLOWER} if phase.trains == "all" else {})
        for phase in recipe.pretrain.phases
    ]
    return Advice(
        action="Lower rate: halve lr of the phases that train all weights (pretrain.phases[].lr).",
        why=f"It moves bits per byte on {text} and on held-out text: a lower rate forgets less and learns less in as many steps "
        "(arXiv:2403.08763).",
        snippet=_yaml({"pretrain": {"phases": phases}}),
    )


def _gentler_finetuning(recipe: Recipe, text: str) -> Advice:
    if recipe.finetune.trains == "all":
        return Advice(
            action="LoRA: finetune an adapter, not all weights (finetune.trains).",
            why=f"It moves bits per byte on {text} and of the answers: LoRA forgets less and learns less (arXiv:2405.09673).",
            snippet=_yaml({"finetune": {"trains": "adapter", "lr": Finetune().lr}}),
        )
    return Advice(
        action="Lower rate: halve finetune.lr.",
        why=f"It moves bits per byte on {text} and of the answers: a lower rate forgets less and learns less in as many steps.",
        snippet=_yaml({"finetune": {"lr": recipe.finetune.lr * SLOWER}}),
    )


def _name(facts: Facts, change: Change) -> str:
    return name_of_text(change.text, _texts(facts), facts.recipe.sources)


def _source(facts: Facts, change: Change) -> str:
    return source_of_text(change.text, _texts(facts), facts.recipe.sources)


def _texts(facts: Facts) -> Json:
    return table_of(field(facts.scores, "candidates.base.retained"))


def _language_of(facts: Facts, change: Change) -> Language | None:
    """Language of a retained text; None where its name is of no known language, or it is that of a source in none."""
    source = _source(facts, change)
    try:
        language = load_language(facts.recipe.of_source(source).language if source else change.text)
    except UnknownLanguageError:
        return None
    return None if language.is_none else language


def _sources_in(facts: Facts, change: Change, language: Language | None) -> tuple[str, ...]:
    """The sources that replay a text: the one that it is of, else those in its language."""
    if source := _source(facts, change):
        return (source,)
    codes = {name: load_language(facts.recipe.of_source(name).language).code for name in facts.recipe.sources}
    return tuple(name for name, code in codes.items() if language and code == language.code)


def _share_trained(names: tuple[str, ...], summary: Json) -> float:
    """Share of some sources of the tokens that were trained on."""
    counts = {name: number(field(summary, f"sources.{name}.tokens")) or 0 for name in names}
    return float(sum(counts.values())) / (number(summary.get("tokens")) or 1)


def _share_needed(rise: float, now: float) -> float:
    """The least published share of replay by which a rise would be none to warn of, or the largest."""
    enough = (share for share in OLD_LOSS if share > now and rise * _left(share) / _left(now) <= FORGETS)
    return next(enough, max(OLD_LOSS))


def _left(share: float) -> float:
    """Part of the published rise that a share of replay left."""
    known = max(each for each in OLD_LOSS if each <= share)
    return (OLD_LOSS[known] - OLD_LOSS_BEFORE) / (OLD_LOSS[0.0] - OLD_LOSS_BEFORE)


def _with_source(recipe: Recipe, name: str, source: Json, share: float) -> str:
    """Keys of a recipe with one source more."""
    if recipe.sources:
        return _yaml({"sources": {name: source}, "pretrain": {"phases": _phases(recipe, {name: 1}, share)}})
    inputs = [portable(place) for place in recipe.clean.inputs]
    sources: Json = {"text": {"inputs": inputs[:MAX_INPUTS]}, name: source}
    phases = [_written(phase) | {"mix": {"text": 1 - share, name: share}} for phase in recipe.pretrain.phases]
    keys = _yaml({"clean": {"inputs": []}, "sources": sources, "pretrain": {"phases": phases}})
    more = len(inputs) - MAX_INPUTS
    return f"{keys}# text.inputs: {more:,} more of clean.inputs\n" if more > 0 else keys


def _phases(recipe: Recipe, replayed: Mapping[str, float], share: float) -> list[Json]:
    """The phases with another share of some sources; the others keep their relations."""
    return [
        _written(phase)
        | {
            key: _with_share(mix, replayed, share)
            for key, mix in (("mix", phase.mix), ("anneal", phase.anneal))
            if mix
        }
        for phase in recipe.pretrain.phases
    ]


def _with_share(mix: Mapping[str, float], replayed: Mapping[str, float], share: float) -> dict[str, float]:
    before = {name: mix.get(name, 0) for name in replayed}
    # Where none of them had a share, they get equal ones.
    parts = before if sum(before.values()) else replayed
    rest = {name: value for name, value in mix.items() if name not in replayed}
    sums = sum(rest.values()) or 1, sum(parts.values())
    scaled = {name: round(value / sums[0] * (1 - share), 4) for name, value in rest.items()}
    return scaled | {name: round(value / sums[1] * share, 4) for name, value in parts.items()}


def _written(phase: Phase) -> Json:
    return phase.model_dump(mode="json", exclude_defaults=True)


def _yaml(keys: Json) -> str:
    return yaml.safe_dump(keys, allow_unicode=True, sort_keys=False, width=100, default_flow_style=None)


def _percent(share: float) -> str:
    return f"{figure(share * 100, 2)} %"
