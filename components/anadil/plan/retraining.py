"""Training of a retraining, as a pure function of recipe and text: parts, shares and steps.

The text of each source has two parts: what the champion was trained on, and what came since. A mix of the recipe becomes
one of these parts, and the number of steps follows from the new text.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import ceil, inf

from anadil.core.errors import DataError
from anadil.plan.mixture import SourceSize, schedule_of
from anadil.recipe.pretrain import Phase, Pretrain
from anadil.recipe.retrain import NEW, part_name
from anadil.recipe.sections import Recipe

LEAST_STEPS = 2
"""Fewest steps of a week, however little text it has: one at the peak of the rate, which a next week can begin behind, and one
of its fall. Chosen by us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """Text of one source on one side of the border."""

    source: str
    """Name in the recipe's `sources`; empty without them."""
    is_new: bool
    """It came since the champion."""
    sequences: int
    targets: int
    """Predicted tokens of one epoch."""

    @property
    def name(self) -> str:
        """Name among the sources of the training."""
        return part_name(self.source, is_new=self.is_new)


def part_of(name: str, recipe: Recipe, sequences: int, targets: int) -> TextPart:
    """The part that a name of `TextPart.name` stands for."""
    is_new = name in new_names(recipe)
    source = name.removeprefix(f"{NEW}_") if is_new else name
    return TextPart(
        source=source if recipe.sources else "", is_new=is_new, sequences=sequences, targets=targets
    )


def new_names(recipe: Recipe) -> frozenset[str]:
    """Names that the new part of each source would have."""
    return frozenset(part_name(source, is_new=True) for source in recipe.sources or ("",))


def week_settings(
    recipe: Recipe, parts: Collection[TextPart], begin: tuple[Pretrain, int] | None = None
) -> Pretrain:
    """The section `pretrain` of a retraining: the trajectory whose last steps the new text makes, with mixes of the parts.

    Args:
        recipe: It has the section `retrain`.
        parts: All text, without empty parts.
        begin: Settings of the run whose checkpoint training begins with, and its step; None for weights alone.
    """
    last = recipe.pretrain.phases[-1]
    phase = last.model_copy(
        update={
            "mix": split_mix(recipe, last.mix, parts),
            "anneal": split_mix(recipe, last.anneal, parts) if last.anneal else None,
        }
    )
    steps = _steps(recipe, phase, parts)
    settings = trajectory(recipe.pretrain, phase, steps, begin)
    number = recipe.pretrain.average_last
    # A week is short: without more checkpoints there would be none to average.
    every = min(settings.checkpoint_every, max(1, steps // number)) if number else settings.checkpoint_every
    return settings.model_copy(update={"checkpoint_every": every})


def trajectory(settings: Pretrain, phase: Phase, steps: int, begin: tuple[Pretrain, int] | None) -> Pretrain:
    """Phases up to the checkpoint that training begins with, and so many steps of `phase` behind it.

    From weights these steps are a phase of their own, whose rate rises and falls again. From a plateau, only the decay of
    these steps falls, and the plateau ends where it begins.

    Source: a rate that rises and falls again: Ibrahim et al. 2024, arXiv:2403.08763. Branches of a plateau: Hu et al. 2024,
    arXiv:2404.06395, section 4.
    """
    if begin is None:
        return settings.model_copy(update={"phases": (phase.model_copy(update={"steps": steps}),)})
    theirs, left = begin
    done: list[Phase] = []
    for each in theirs.phases:
        if left <= each.steps:
            break
        # Their mixes are of other parts, and nobody asks for what is done.
        done.append(each.model_copy(update={"mix": phase.mix, "anneal": None}))
        left -= each.steps
    whole = phase.model_copy(update={"steps": left + steps})
    update = {"phases": (*done, whole)}
    if settings.schedule != "wsd" or not settings.decay_steps(whole):
        return settings.model_copy(update=update)
    decay = max(1, min(ceil(settings.decay_fraction * steps), steps - 1))
    # Half a step less, or rounding would make it one more.
    return settings.model_copy(update={**update, "decay_fraction": (decay - 0.5) / whole.steps})


def split_mix(
    recipe: Recipe, mix: Mapping[str, float] | None, parts: Collection[TextPart]
) -> dict[str, float]:
    """Shares of the parts: `retrain.mix.new` is of new text, shared by the phase's mix, and the rest is of earlier text.

    A source without new text keeps its share of the whole, or it would be forgotten: with a half of it, English of a fifth
    was 4 % worse after four weeks than after one run on all text. Earlier text of the other sources has what is left, and at
    least half of its part in the phase's mix. Where one side has no text, the other has all.
    """
    assert recipe.retrain is not None
    given = mix or dict.fromkeys(recipe.sources or ("",), 1.0)
    total = sum(given.get(source, 0.0) for source in {each.source for each in parts}) or 1.0
    shares = {each.name: given.get(each.source, 0.0) / total for each in parts}
    new, earlier = (
        {each.name: shares[each.name] for each in parts if each.is_new is side} for side in (True, False)
    )
    if not sum(new.values()) or not sum(earlier.values()):
        return {**earlier, **new}
    growing = {each.source for each in parts if each.is_new}
    still = {each.name for each in parts if not each.is_new and each.source not in growing}
    room = 1 - recipe.retrain.mix.new
    rest = sum(share for name, share in earlier.items() if name not in still)
    # All of the room is theirs where no other source has earlier text.
    least = room * rest / 2 if rest else 0.0
    standing = min(sum(earlier[name] for name in still), room - least) if rest else room
    return {
        **_scaled({name: earlier[name] for name in still}, standing),
        **_scaled({name: share for name, share in earlier.items() if name not in still}, room - standing),
        **_scaled(new, recipe.retrain.mix.new),
    }


def _scaled(shares: Mapping[str, float], total: float) -> dict[str, float]:
    """The same shares, of another total."""
    before = sum(shares.values()) or 1.0
    return {name: total * share / before for name, share in shares.items()}


def part_sizes(
    recipe: Recipe, settings: Pretrain, parts: Collection[TextPart], stands: Mapping[str, int] | None = None
) -> dict[str, SourceSize]:
    """Sizes that the order of training follows from, by name.

    Args:
        recipe: It has the section `retrain`.
        settings: Those of `week_settings`.
        parts: As there.
        stands: Position of each part at the begin of the run: what earlier runs read uses up nothing.
    """
    end, stands = settings.steps * settings.batch_size, stands or {}
    # A text that ends before the last step would end the run, so new text is then read more often.
    suffices = _available(recipe, parts, settings.phases[-1].mix or {}) >= end
    return {
        each.name: SourceSize(
            sequences=each.sequences,
            targets=each.targets,
            max_epochs=_most_epochs(recipe, each) if suffices or not each.is_new else end,
            begin=stands.get(each.name, 0),
        )
        for each in sorted(parts, key=lambda each: each.name)
    }


def _steps(recipe: Recipe, phase: Phase, parts: Collection[TextPart]) -> int:
    """Steps in which new text is read `retrain.epochs` times at its share; fewer where all text together ends before."""
    assert recipe.retrain is not None
    assert phase.mix is not None
    new = [each for each in parts if each.is_new and phase.mix[each.name]]
    if not new:
        raise DataError(_nothing_new([each.source for each in parts if each.is_new]))
    tokens = recipe.retrain.epochs * sum(each.targets for each in new)
    tokens /= sum(phase.mix[each.name] for each in new)
    sequences = sum(phase.mix[each.name] * tokens * each.sequences / each.targets for each in parts)
    batch = recipe.pretrain.batch_size
    steps = max(
        LEAST_STEPS, int(min(round(sequences / batch), _available(recipe, parts, phase.mix) // batch))
    )
    # Where earlier text runs out, new text has its share and ends sooner; what is left would be the rest of earlier text.
    alone = trajectory(recipe.pretrain, phase, steps, None)
    ends = schedule_of(alone, part_sizes(recipe, alone, parts)).exhausted
    last = max(ends.get(each.name, steps) for each in new)
    return max(LEAST_STEPS, min(steps, last))


def _nothing_new(sources: Collection[str]) -> str:
    if not sources:
        return "retrain: no text came since the champion, so there is nothing to learn; give files that it was not trained on"
    return (
        f"pretrain.phases: the last one's mix has no share of {', '.join(sources)}, and only there text came since the "
        "champion; give it a share"
    )


def _available(recipe: Recipe, parts: Collection[TextPart], mix: Mapping[str, float]) -> float:
    """Sequences of all passes that a run may make over the parts of a mix."""
    return sum(_most_epochs(recipe, each) * each.sequences for each in parts if mix.get(each.name))


def _most_epochs(recipe: Recipe, part: TextPart) -> float:
    """Passes that one run may make over a part."""
    assert recipe.retrain is not None
    if part.is_new:
        return recipe.retrain.epochs
    return recipe.sources[part.source].max_epochs if recipe.sources else recipe.pretrain.max_epochs or inf
