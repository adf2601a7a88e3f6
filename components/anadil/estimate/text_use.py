"""Text of a run by source: how much there is, and how often training passes over it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import ceil, inf

from anadil.core.errors import DataError, RecipeError
from anadil.core.format import short_count
from anadil.core.stages import WRITERS, brought
from anadil.estimate.schedule import Schedule, SourceSize, schedule_of, usage_of, within_epochs
from anadil.recipe.pretrain import Phase, Pretrain
from anadil.recipe.retrain import NEW, part_name
from anadil.recipe.sections import Recipe
from anadil.recipe.sources import MAX_EPOCHS


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """Words for the source of a number of tokens."""

    phrase: str
    short: str
    counted: bool = False
    """True if no assumption is behind the tokens."""


BASES = {
    "corpus": Basis(phrase="by the size of its corpus", short="corpus size"),
    "files": Basis(phrase="by the sizes of its files, before cleaning", short="file sizes"),
    "given": Basis(phrase="as given", short="--tokens", counted=True),
}
"""By name. A stage may bring another in `need.py`, as `BASIS`."""
BYTES_PER_TOKEN = 3.0
"""Text of a token. Chosen by us: the adapted vocabulary of the recipe `smoke` has 4.9 on Azerbaijani, bases have fewer."""
DOCUMENT_BYTES = 2_000
"""Text of a document where their number is not known. Assumption."""
LEAST_STEPS = 2
"""Fewest steps of a week, however little text it has: one at the peak of the rate, which a next week can begin behind, and one
of its fall. Chosen by us."""


def basis_of(name: str) -> Basis:
    """Words of `TextSize.basis`."""
    basis: Basis = BASES[name] if name in BASES else brought(WRITERS[name], "need").BASIS
    return basis


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSize:
    """Text of one source, counted or estimated."""

    basis: str
    """One of `BASES`, or an artifact."""
    tokens: int
    """Predicted tokens of one epoch."""
    text_bytes: int | None = None
    """UTF-8 bytes; None where only the tokens are known."""
    words: int | None = None
    documents: int | None = None
    sequences: int | None = None
    """Packed sequences of one epoch, where they were counted."""

    @property
    def counted(self) -> bool:
        """True if no assumption is behind the tokens."""
        return basis_of(self.basis).counted


@dataclass(frozen=True, slots=True, kw_only=True)
class TextUse:
    """Use of one source in a run."""

    source: str
    """Name in the recipe's `sources`; empty where it has none."""
    basis: str
    """Source of `tokens`: a finished or planned artifact; `files`, their sizes; `given`, an option."""
    tokens: int
    """Tokens of one epoch."""
    words: int | None
    """Words of it; None where no corpus says them."""
    shares: tuple[float, ...]
    """Shares of the tokens that the phases ask for, in order, that of `anneal` behind its phase's."""
    steps: int
    """Optimizer steps of the run."""
    recipe_steps: int
    """Those that the recipe names; more than `steps` where `pretrain.max_epochs` ends them."""
    epochs: float
    """Passes over it that the run makes."""
    asked_epochs: float
    """Passes that the phases ask for."""
    max_epochs: float | None
    """Most passes: `sources.<name>.max_epochs`, or without sources `pretrain.max_epochs`."""
    exhausted_at: int | None = None
    """Optimizer step (from 1) from which on its share goes to `heirs`; None where it lasts."""
    heirs: tuple[str, ...] = ()
    """Sources that get its share."""

    @property
    def name(self) -> str:
        """Name for people."""
        return self.source or "text"

    def shares_text(self) -> str:
        """Shares in the order of training; phases that follow each other with the same one count as one."""
        return ", then ".join(share for share, _ in groupby(f"{each:.3g}" for each in self.shares))

    def line(self) -> str:
        """Text and epochs in one sentence."""
        basis = basis_of(self.basis)
        about = "" if basis.counted else "about "
        words = "" if self.words is None else f"{short_count(self.words)} words, "
        size = f"{self.name}: {words}{about}{short_count(self.tokens)} tokens ({basis.phrase})"
        of = "" if self.steps == self.recipe_steps else f" of {self.recipe_steps:,}"
        share = f" at share {self.shares_text()}" if self.shares else ""
        line = f"{size}{share} for {self.steps:,}{of} steps is {human_epochs(self.asked_epochs)} epochs"
        if self.steps < self.recipe_steps:
            line += " (pretrain.max_epochs)"
        if self.exhausted_at is not None:
            line += f"; after {self.max_epochs:g} (max_epochs)"
            others = " and ".join(filter(None, (", ".join(self.heirs[:-1]), *self.heirs[-1:])))
            line += f", from step {self.exhausted_at:,} on, its share goes to {others}"
        return line

    def remedy(self) -> str:
        """Advice where text is repeated too often; else empty."""
        if self.exhausted_at is not None:
            return f"lower its share, raise sources.{self.source}.max_epochs, or give more text"
        if self.source or self.max_epochs is not None or self.epochs <= MAX_EPOCHS:
            return ""
        # As `Pretrain.within_epochs` would round them.
        steps = max(1, round(self.steps * MAX_EPOCHS / self.epochs))
        return (
            f"more than {MAX_EPOCHS} add little: set pretrain.max_epochs: {MAX_EPOCHS}, which leaves about {steps:,} steps, "
            "or give more text"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedText:
    """Text of a run."""

    uses: tuple[TextUse, ...] = ()
    """None where the size of the text is not known."""
    encoded: Mapping[str, TextSize] = field(default_factory=dict)
    """Text that is encoded, by source; empty if not known."""
    fault: str = ""
    """Reason to expect that training is refused for lack of text, by estimates."""

    @property
    def epoch_tokens(self) -> int | None:
        """Tokens of one epoch of all sources together; None if not known."""
        return sum(each.tokens for each in self.uses) or None


def human_epochs(epochs: float) -> str:
    """Passes with as many digits as say something."""
    return f"{epochs:.2f}" if epochs < 10 else f"{epochs:,.0f}"


NO_TEXT = PlannedText()
"""Text whose size is not known."""


def plan_text(recipe: Recipe, text: Mapping[str, TextSize] | None) -> tuple[Recipe, PlannedText]:
    """Shorten the phases by `pretrain.max_epochs`, and count epochs by source. Text that is not known shortens none.

    In a retraining `text` is by part, and the phases are the steps that the new text makes.
    """
    if recipe.continues_champion:
        return _plan_week(recipe, text or {})
    if not text:
        return recipe, NO_TEXT
    context, asked = recipe.pretrain.sequence_length, recipe.pretrain
    if recipe.sources:
        settings, uses, fault = _by_source(recipe, text)
    else:
        (size,) = text.values()
        # A last sequence that is not full would make small texts seem larger than they are.
        sequences = size.sequences or size.tokens / context
        settings, fault = asked.within_epochs(sequences), ""
        epochs = settings.steps * settings.batch_size / sequences
        uses = (
            TextUse(
                source="", basis=size.basis, tokens=size.tokens, words=size.words, shares=(), steps=settings.steps,
                recipe_steps=asked.steps, epochs=epochs, asked_epochs=epochs, max_epochs=asked.max_epochs,
            ),
        )  # fmt: skip
    recipe = recipe.model_copy(update={"pretrain": settings})
    return recipe, PlannedText(uses=uses, encoded=text, fault=fault)


def _plan_week(recipe: Recipe, text: Mapping[str, TextSize]) -> tuple[Recipe, PlannedText]:
    """Phases and text of a retraining; where the text is not known, all steps of the last phase."""
    context, last = recipe.pretrain.sequence_length, recipe.pretrain.phases[-1]
    text = {name: each for name, each in text.items() if each.tokens}
    parts = [
        part_of(name, recipe, each.sequences or ceil(each.tokens / context), each.tokens)
        for name, each in text.items()
    ]
    settings = week_settings(recipe, parts) if parts else trajectory(recipe.pretrain, last, last.steps, None)
    # Steps of this run alone, whatever it begins with.
    alone = recipe.model_copy(update={"pretrain": settings.model_copy(update={"start_from": None})})
    if not parts:
        return alone, NO_TEXT
    new = {name: each for name, each in text.items() if name in new_names(recipe)}
    sizes = part_sizes(recipe, settings, parts)
    uses = _uses_of_parts(recipe, settings, text, sizes)
    return alone, PlannedText(uses=uses, encoded=new)


def _uses_of_parts(
    recipe: Recipe, settings: Pretrain, text: Mapping[str, TextSize], sizes: Mapping[str, SourceSize]
) -> tuple[TextUse, ...]:
    schedule = schedule_of(settings, sizes)
    used = dict(zip(sizes, schedule.positions(schedule.end), strict=True))
    mixes = [mix for phase in settings.phases for mix in (phase.mix, phase.anneal) if mix]
    # New text ends where it was read as often as the recipe says, which is no lack.
    ends = {name: step for name, step in schedule.exhausted.items() if name in recipe.sources}
    return tuple(
        TextUse(
            source=name, basis=each.basis, tokens=each.tokens, words=each.words,
            shares=tuple(mix[name] for mix in mixes), steps=settings.steps, recipe_steps=settings.steps,
            epochs=used[name] / sizes[name].sequences, asked_epochs=used[name] / sizes[name].sequences,
            max_epochs=sizes[name].max_epochs, exhausted_at=ends.get(name),
            heirs=_heirs(recipe, schedule, ends.get(name)),
        )
        for name, each in text.items()
    )  # fmt: skip


def _by_source(recipe: Recipe, text: Mapping[str, TextSize]) -> tuple[Pretrain, tuple[TextUse, ...], str]:
    """Phases that the text leaves, use of each source, and why training may be refused."""
    sizes, fault = _sizes(recipe, text), ""
    settings = within_epochs(recipe.pretrain, sizes, recipe.target_sources)
    try:
        schedule = schedule_of(settings, sizes)
    except RecipeError as error:
        fault = f"{error} (tokens {', '.join(dict.fromkeys(basis_of(each.basis).phrase for each in text.values()))})"
        _refuse_if_certain(recipe, text, fault)
        # No run needs a source more often, so this one can be planned: it says what the shares ask for.
        end = settings.steps * settings.batch_size
        endless = {name: replace(size, max_epochs=end) for name, size in sizes.items()}
        schedule = schedule_of(settings, endless)
    return settings, _uses(recipe, settings, text, sizes, schedule), fault


def _sizes(recipe: Recipe, text: Mapping[str, TextSize]) -> dict[str, SourceSize]:
    """Sizes in the order that training has them in."""
    return {
        name: SourceSize(
            sequences=text[name].sequences or ceil(text[name].tokens / recipe.pretrain.sequence_length),
            targets=text[name].tokens,
            max_epochs=recipe.sources[name].max_epochs,
        )
        # Not in the recipe's order, which decides nothing: of two equal remainders the first source gets a sequence.
        for name in sorted(text)
    }


def _refuse_if_certain(recipe: Recipe, text: Mapping[str, TextSize], fault: str) -> None:
    """Refuse a mixture whose sources run out even with a token for each byte; estimates alone refuse nothing."""
    # Byte-level tokens have a byte at least, so no tokenizer makes more of a text.
    most = {
        name: each if each.counted else replace(each, tokens=max(each.tokens, each.text_bytes or 0))
        for name, each in text.items()
    }
    sizes = _sizes(recipe, most)
    try:
        schedule_of(within_epochs(recipe.pretrain, sizes, recipe.target_sources), sizes)
    except RecipeError:
        raise RecipeError(fault) from None


def _uses(
    recipe: Recipe,
    settings: Pretrain,
    text: Mapping[str, TextSize],
    sizes: Mapping[str, SourceSize],
    schedule: Schedule,
) -> tuple[TextUse, ...]:
    mixes = [mix for phase in settings.phases for mix in (phase.mix, phase.anneal) if mix]
    used = {each.name: each for each in usage_of(settings, sizes, schedule)}
    return tuple(
        TextUse(
            source=name, basis=text[name].basis, tokens=text[name].tokens, words=text[name].words,
            shares=tuple(mix.get(name, 0) / sum(mix.values()) for mix in mixes), steps=settings.steps,
            recipe_steps=recipe.pretrain.steps, epochs=min(used[name].epochs, source.max_epochs), asked_epochs=used[name].asked_epochs,
            max_epochs=source.max_epochs, exhausted_at=used[name].exhausted_at,
            heirs=_heirs(recipe, schedule, used[name].exhausted_at),
        )
        for name, source in recipe.sources.items()
    )  # fmt: skip


def _heirs(recipe: Recipe, schedule: Schedule, exhausted_at: int | None) -> tuple[str, ...]:
    """Sources at the end of the batch in which another one ends, in the recipe's order."""
    if exhausted_at is None:
        return ()
    # A source may end amid a batch: the batch's last sequence has the new shares.
    last = min(exhausted_at * recipe.pretrain.batch_size, schedule.end) - 1
    segment = [each for each in schedule.segments if each.begin <= last][-1]
    parts = dict(zip(schedule.names, segment.parts, strict=True))
    return tuple(name for name in (recipe.sources or schedule.names) if parts.get(name))


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
