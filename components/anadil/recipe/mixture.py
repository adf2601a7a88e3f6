"""Shares of sources in the phases of training: one mix, and all of them beside the recipe's other keys."""

from collections.abc import Collection, Iterator
import fractions
from typing import TYPE_CHECKING

from pydantic import NonNegativeFloat
from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from anadil.recipe.fields import did_you_mean

if TYPE_CHECKING:
    from anadil.recipe.pretrain import Pretrain

Mix = dict[str, NonNegativeFloat]
"""Source -> share of the tokens, relative to the others."""
LEAST_SHARE = fractions.Fraction(1, 10_000)
"""Least share of a source that a mix names. The order of training counts in ten-thousandths."""

Mistake = tuple[tuple[str | int, ...], str]
"""Path of a key, and the reason with the remedy."""


def with_shares(mix: Mix | None) -> Mix | None:
    """Return a mix as it is; `ValueError` where no source has a share, or one has a share that is too small."""
    if mix is None:
        return None
    # As the decimal that was written: .1 is a tenth.
    shares = {name: fractions.Fraction(str(share)) for name, share in mix.items()}
    total = sum(shares.values())
    if not total:
        raise ValueError("all shares are 0; give a source a share above 0")
    if small := [name for name, share in shares.items() if 0 < share < LEAST_SHARE * total]:
        raise ValueError(
            f"the share of {', '.join(small)} is below 1/{LEAST_SHARE.denominator:,} of all; raise it or set it to 0"
        )
    return mix


def refuse_mix_mistakes(pretrain: "Pretrain", sources: Collection[str]) -> None:
    """Raise a `ValidationError` with all `mix_mistakes`, each at its own key."""
    if mistakes := mix_mistakes(pretrain, sources):
        details = [
            InitErrorDetails(
                type=PydanticCustomError("mix", "{reason}", {"reason": reason}), loc=place, input=None
            )
            for place, reason in mistakes
        ]
        raise ValidationError.from_exception_data("recipe", details)


def mix_mistakes(pretrain: "Pretrain", sources: Collection[str]) -> list[Mistake]:
    """All mistakes of the phases' mixes beside the table `sources` and the schedule."""
    mistakes = list(_of_phases(pretrain, sources))
    mixes = [mix for phase in pretrain.phases for mix in (phase.mix, phase.anneal) if mix]
    if not sources or any(phase.mix is None for phase in pretrain.phases):
        return mistakes
    for name in sources:
        if not any(mix.get(name) for mix in mixes):
            reason = "no phase uses the source; give it a share in pretrain.phases[].mix, or remove it"
            mistakes.append((("sources", name), reason))
    return mistakes


def _of_phases(pretrain: "Pretrain", sources: Collection[str]) -> Iterator[Mistake]:
    for number, phase in enumerate(pretrain.phases):
        place = ("pretrain", "phases", number)
        if sources and phase.mix is None:
            shares = ", ".join(f"{name}: {share}" for name, share in _example(sources).items())
            yield (
                place,
                f"has no mix, and the recipe has sources; write the shares, such as mix: {{{shares}}}",
            )
        for key, mix in (("mix", phase.mix), ("anneal", phase.anneal)):
            if mix is not None and not sources:
                yield (*place, key), "needs sources, and the recipe has none; name them or remove the key"
                continue
            for name in (mix or {}).keys() - set(sources):
                names = ", ".join(sources)
                yield (*place, key, name), f"is not in sources ({names}){did_you_mean(name, list(sources))}"
        if phase.anneal is not None and pretrain.schedule != "wsd":
            reason = f"is the mix of the decay of wsd, and pretrain.schedule is {pretrain.schedule}"
            yield (*place, "anneal"), f"{reason}; set schedule to wsd, or remove anneal"
        elif phase.anneal is not None and not pretrain.decay_steps(phase):
            yield (
                (*place, "anneal"),
                "no step decays; raise pretrain.decay_fraction and leave pretrain.average_last out, or remove anneal",
            )


def _example(sources: Collection[str]) -> dict[str, float]:
    """Shares to show: most of the text is the first source's."""
    first, *others = sources
    return {first: 0.8 if others else 1} | dict.fromkeys(others, round(0.2 / max(1, len(others)), 3))
