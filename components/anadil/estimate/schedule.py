"""The order of a training on several sources, as a pure function of recipe, sizes and step.

Sequences of a run are numbered over all steps: sequence i of a step's batch is `batch * batch_size + i`. Each number has
a source and a position in it. All arithmetic is in whole numbers, so machines and layouts agree.

Shares are of tokens. Each is divided by its source's mean tokens per sequence and rounded to ten-thousandths of the
sequences. 1,000 consecutive sequences under one mix hold `floor` or `ceil` of 1,000 times these, wherever they begin:
less than 0.1 % of the sequences is wrong. A period of 10,000 is exact, also for shares such as 1/3, within 0.01 %.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import inf
from sys import maxsize

from anadil.core.errors import RecipeError
from anadil.recipe.pretrain import Pretrain, scaled_phases

WINDOW = 1_000
"""Consecutive sequences that hold the shares, wherever they begin."""
BLOCKS = 10
"""Windows of a period. They differ by one sequence of each source at most."""
PERIOD = BLOCKS * WINDOW
SPREAD = 10**9
"""Resolution of the places in a window; twice as many sequences as a window has are far from it."""

Positions = tuple[int, ...]
"""Sequences of each source that are used up, in the order of the sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSize:
    """Packed text of one source."""

    sequences: int
    targets: int
    """Predicted tokens of one epoch."""
    max_epochs: float
    """Most passes over it."""
    begin: int = 0
    """Its sequences that runs before this one have used, which count for no limit."""

    @property
    def most_sequences(self) -> int:
        """Position at which it is used up: sequences of all passes together, and at least one."""
        if self.max_epochs == inf:
            return maxsize
        return self.begin + max(1, round(self.max_epochs * self.sequences))


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive sequences of a run whose sources have the same shares."""

    begin: int
    """Number of its first sequence."""
    positions: Positions
    """Where each source stands at its begin."""
    parts: tuple[int, ...]
    """Ten-thousandths of the sequences, by source; all together `PERIOD`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Segments of a whole run, from its first sequence to its last."""

    names: tuple[str, ...]
    segments: tuple[Segment, ...]
    end: int
    """Sequences of the run. Later ones continue the last segment."""
    exhausted: Mapping[str, int]
    """Source whose text ends -> optimizer step (from 1) in which its share goes to the others."""

    def place_of(self, number: int) -> tuple[int, int]:
        """Source of a sequence of the run, by its place in `names`, and how many of that source come before."""
        segment = self._segment_of(number)
        order = order_of(segment.parts)
        source = order.sources[(number - segment.begin) % PERIOD]
        return source, segment.positions[source] + order.count(source, number - segment.begin)

    def positions(self, number: int) -> Positions:
        """Sequences of each source before a sequence of the run."""
        return positions_in(self._segment_of(number), number)

    def with_names(self, names: tuple[str, ...], number: int) -> "Schedule":
        """The same from a sequence on for other sources: those that stay go on where they stand, others begin."""
        if names == self.names:
            return self
        stands = dict(zip(self.names, self.positions(number), strict=True))
        exhausted = {name: step for name, step in self.exhausted.items() if name in names}
        return replace(standing(names, stands, number), end=self.end, exhausted=exhausted)

    def _segment_of(self, number: int) -> Segment:
        return self.segments[bisect_right(self.segments, number, key=lambda each: each.begin) - 1]


def standing(names: tuple[str, ...], stands: Mapping[str, int], number: int) -> Schedule:
    """A schedule that ends before a sequence of the run, where each source stands; one that is not named there begins."""
    position = tuple(stands.get(name, 0) for name in names)
    # Its parts are never used: what follows is planned anew, and nobody asks for what is before.
    segment = Segment(begin=number, positions=position, parts=(PERIOD, *[0] * (len(names) - 1)))
    return Schedule(names=names, segments=(segment,), end=number, exhausted={})


class Order:
    """Order of the sources in a period under some parts."""

    def __init__(self, parts: Sequence[int]) -> None:
        """Spread the sources evenly.

        A window has fixed places, and free ones for what does not divide by `BLOCKS`. A free place has one owner in each
        block of a period. Owners are laid along the blocks one after another, so that a source has one free place
        of a block at most, and a window that begins amid a block has as many as one of the two blocks.
        """
        owners = [source for source, part in enumerate(parts) for _ in range(part % BLOCKS)]
        free = len(parts)
        counts = [*(part // BLOCKS for part in parts), len(owners) // BLOCKS]
        template = [
            source
            for _, source in sorted(
                ((2 * number + 1) * SPREAD // count, source)
                for source, count in enumerate(counts)
                for number in range(count)
            )
        ]
        self.sources = array("H")
        for block in range(BLOCKS):
            rows = iter(range(counts[free]))
            self.sources.extend(
                owners[BLOCKS * next(rows) + block] if source == free else source for source in template
            )
        self._places = [array("H") for _ in parts]
        for place, source in enumerate(self.sources):
            self._places[source].append(place)
        self._parts = tuple(parts)

    def count(self, source: int, number: int) -> int:
        """Sequences of a source among the first `number`."""
        periods, within = divmod(number, PERIOD)
        return periods * self._parts[source] + bisect_left(self._places[source], within)

    def place(self, source: int, number: int) -> int:
        """Where sequence `number` of a source (from 0) stands."""
        periods, within = divmod(number, self._parts[source])
        return periods * PERIOD + self._places[source][within]


@lru_cache(maxsize=64)
def order_of(parts: tuple[int, ...]) -> Order:
    """The order of a period, made once."""
    return Order(parts)


def positions_in(segment: Segment, number: int) -> Positions:
    """Sequences of each source before a sequence of the run that lies in a segment."""
    order, within = order_of(segment.parts), number - segment.begin
    return tuple(before + order.count(source, within) for source, before in enumerate(segment.positions))


def schedule_of(
    settings: Pretrain,
    sizes: Mapping[str, SourceSize],
    *,
    step: int = 0,
    batch: int = 0,
    before: Schedule | None = None,
) -> Schedule:
    """Plan the sequences of all phases.

    Args:
        settings: Phases with `mix`, and `anneal` for the decay of WSD.
        sizes: Packed text by source.
        step: First optimizer step (from 0) that is planned anew.
        batch: Batch that this step takes; more than `step` where batches were skipped.
        before: Schedule up to this batch.
    """
    names = tuple(sizes)
    begin = batch * settings.batch_size
    position = before.positions(begin) if before is not None else (0,) * len(names)
    segments = [each for each in before.segments if each.begin < begin] if before is not None else []
    exhausted = {} if before is None else {name: at for name, at in before.exhausted.items() if at <= step}
    for span in _spans(settings):
        first, end = (
            (each - step + batch) * settings.batch_size for each in (max(span.begin, step), span.end)
        )
        at = first
        while at < end:
            mix = {name: share for name, share in span.mix.items() if share > 0}
            live = {name for name in mix if position[names.index(name)] < sizes[name].most_sequences}
            steps = at // settings.batch_size - batch + step
            if not live:
                raise _all_exhausted(settings, sizes, span, steps)
            exhausted |= dict.fromkeys(mix.keys() - live - exhausted.keys(), steps + 1)
            parts = parts_of({name: mix[name] for name in live}, sizes)
            if not segments or segments[-1].parts != parts:
                segments.append(Segment(begin=at, positions=position, parts=parts))
            at = min(end, _exhaustion(segments[-1], sizes))
            position = positions_in(segments[-1], at)
    end = (settings.steps - step + batch) * settings.batch_size
    return Schedule(names=names, segments=tuple(segments), end=end, exhausted=exhausted)


def parts_of(mix: Mapping[str, float], sizes: Mapping[str, SourceSize]) -> tuple[int, ...]:
    """Ten-thousandths of the sequences by source, whose tokens have the shares of `mix`; at least 1 where a share is above 0."""
    # As the decimal that was written: .1 is a tenth.
    weights = [
        Fraction(str(mix.get(name, 0))) * size.sequences / size.targets for name, size in sizes.items()
    ]
    total = sum(weights)
    exact = [weight * PERIOD / total for weight in weights]
    parts = [max(int(part), int(part > 0)) for part in exact]
    # Largest remainder; of equal ones the first source.
    by_lack = sorted(range(len(parts)), key=lambda each: (parts[each] - exact[each], each))
    missing = PERIOD - sum(parts)
    for each in by_lack[: max(0, missing)]:
        parts[each] += 1
    if missing < 0:
        parts[parts.index(max(parts))] += missing
    return tuple(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Use of one source in a run."""

    name: str
    sequences: int
    """Sequences of the run that are its own, repeated ones included."""
    tokens: int
    """Their predicted tokens, by the source's mean."""
    epochs: float
    """Passes over it."""
    asked_epochs: float
    """Passes that the mix asks for; more than `epochs` where `max_epochs` ends them."""
    exhausted_at: int | None = None
    """Optimizer step (from 1) in which its share goes to the others; None where it lasts."""


def usage_of(
    settings: Pretrain, sizes: Mapping[str, SourceSize], schedule: Schedule | None = None
) -> list[Usage]:
    """Epochs of each source, for log, plan and doctor; raises as `schedule_of`."""
    schedule = schedule or schedule_of(settings, sizes)
    # No run has so many sequences that it needs a source as often.
    unlimited = {name: replace(size, max_epochs=schedule.end) for name, size in sizes.items()}
    asked = schedule_of(settings, unlimited)
    used, asked_for = (each.positions(each.end) for each in (schedule, asked))
    return [
        Usage(
            name=name,
            sequences=used[source],
            tokens=used[source] * size.targets // size.sequences,
            epochs=used[source] / size.sequences,
            asked_epochs=asked_for[source] / size.sequences,
            exhausted_at=schedule.exhausted.get(name),
        )
        for source, (name, size) in enumerate(sizes.items())
    ]


def within_epochs(settings: Pretrain, sizes: Mapping[str, SourceSize], targets: Collection[str]) -> Pretrain:
    """Shorten the phases to at most `pretrain.max_epochs` passes over the sources in the taught language, `targets`."""
    if settings.max_epochs is None:
        return settings
    most = settings.max_epochs * sum(sizes[name].sequences for name in targets)
    # Searched, not divided: where replay runs out, its share is read from the targets.
    steps = bisect_right(
        range(1, settings.steps + 1),
        most,
        key=lambda count: _drawn(_of_steps(settings, count), sizes, targets),
    )
    return settings if steps == settings.steps else _of_steps(settings, max(1, steps))


def _of_steps(settings: Pretrain, steps: int) -> Pretrain:
    return settings.model_copy(update={"phases": scaled_phases(settings.phases, steps)})


def _drawn(settings: Pretrain, sizes: Mapping[str, SourceSize], targets: Collection[str]) -> int:
    """Sequences that a run reads of the sources `targets`, however often it has to."""
    end = settings.steps * settings.batch_size
    endless = {name: replace(size, max_epochs=end) for name, size in sizes.items()}
    try:
        schedule = schedule_of(settings, {**sizes, **{name: endless[name] for name in targets}})
    except RecipeError:
        # A phase of other sources alone outlasts them, which is for the caller to say.
        schedule = schedule_of(settings, endless)
    used = zip(sizes, schedule.positions(end), strict=True)
    return sum(count for name, count in used if name in targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Steps of one mix."""

    begin: int
    end: int
    mix: Mapping[str, float]
    key: str
    """Where the recipe says it."""


def _spans(settings: Pretrain) -> list[_Span]:
    spans, begin = [], 0
    for number, phase in enumerate(settings.phases):
        assert phase.mix is not None
        end = begin + phase.steps
        decay = end - settings.decay_steps(phase) if phase.anneal else end
        key = f"pretrain.phases.{number}"
        spans += [
            _Span(begin=begin, end=decay, mix=phase.mix, key=f"{key}.mix"),
            _Span(begin=decay, end=end, mix=phase.anneal or {}, key=f"{key}.anneal"),
        ]
        begin = end
    return spans


def _exhaustion(segment: Segment, sizes: Mapping[str, SourceSize]) -> int:
    """First sequence of a segment that a source of it has no text for."""
    order = order_of(segment.parts)
    return min(
        segment.begin + order.place(source, size.most_sequences - segment.positions[source])
        for source, size in enumerate(sizes.values())
        if segment.parts[source]
    )


def _all_exhausted(
    settings: Pretrain, sizes: Mapping[str, SourceSize], span: _Span, steps: int
) -> RecipeError:
    sources = ", ".join(
        f"{name} ({size.max_epochs:g} passes over {size.sequences:,} sequences)"
        for name, size in sizes.items()
        if span.mix.get(name, 0) > 0
    )
    return RecipeError(
        f"{span.key}: all its sources are used up after {steps:,} of {settings.steps:,} steps of "
        f"{settings.batch_size:,} sequences: {sources}; make the phases {steps:,} steps, raise "
        "sources.<name>.max_epochs, or give more text"
    )
