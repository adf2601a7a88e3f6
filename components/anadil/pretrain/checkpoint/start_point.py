"""Checkpoint of another run that a training begins with, and what of the recipe has to fit it.

`phases` describe the whole trajectory, and the checkpoint is a place in it. So training goes on as if it had not stopped
there: the steps before are past, and only what comes after follows the recipe. This module loads no torch.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath

from pydantic import ValidationError

from anadil.artifacts import artifact, storage
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import read_table, read_verified
from anadil.artifacts.prefetch import copy_to_cache
from anadil.artifacts.uri import MANIFEST, join
from anadil.core.errors import DataError, RecipeError
from anadil.core.format import with_article
from anadil.core.stages import last_form
from anadil.estimate.text_use import trajectory
from anadil.pretrain.checkpoint import directory
from anadil.pretrain.lr_schedule import ends_phase, phase_of, rate_factor
from anadil.pretrain.state import Branch, State
from anadil.recipe.pretrain import Phase, Pretrain
from anadil.recipe.sections import Base, Recipe
from anadil.runtime.cache_key import BASE_FILES, INPUT, RESULT_VERSION, nested_keys

log = logging.getLogger(__name__)

KEY = "pretrain.start_from"
POINTS = "branch_points"
"""Key of `training.json`: checkpoints that a run has kept to branch off from."""
WORK = ".work"
"""Ends the name of the work directory that lies beside an artifact."""


@dataclass(frozen=True, kw_only=True)
class StartPoint:
    """A checkpoint of another run, without its tensors."""

    place: str
    manifest: Manifest
    state: State

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self.state.step

    @cached_property
    def settings(self) -> Pretrain:
        """Section `pretrain` of its run, as far as it decides losses; phases have no mixes."""
        try:
            return Pretrain.model_validate(nested_keys(self.manifest.origin).get("pretrain", {}))
        except ValidationError as error:
            key = ".".join(map(str, error.errors()[0]["loc"]))
            raise RecipeError(
                f"{KEY}: {self.place} is of a run whose pretrain.{key} this program does not know; branch off with the "
                "program that wrote it"
            ) from None

    @property
    def has_moments(self) -> bool:
        """True unless its step ends a phase, where moments are not kept."""
        return not ends_phase(self.step, self.settings.phases) or self.step in self.settings.plateau_ends

    @property
    def run(self) -> str:
        """Artifact that its run makes; empty where nothing says it."""
        parents = PurePath(self.place).parents
        beside = next((str(each) for each in parents if each.name.endswith(WORK)), "")
        return self.state.run or beside.removesuffix(WORK)

    def warmup(self, settings: Pretrain) -> int | None:
        """Steps of the warm-up of the phase that is under way, where the recipe's would set the rate back.

        A longer phase has a longer warm-up. Where the rate had its peak already, what is done is not planned anew.
        """
        phase, within = self._phase(settings)
        planned, done = settings.warmup_steps(phase), self._own_warmup()
        return within if within and planned > within >= done else None

    def state_here(self, settings: Pretrain) -> State:
        """Return the state with which a run by these settings begins."""
        branch = Branch(
            place=self.place,
            digest=self.manifest.digest,
            step=self.step,
            run=self.run,
            warmup=self.warmup(settings),
        )
        # The first shares of a run name its work directory: those of the other one would name another.
        mixture = {name: value for name, value in self.state.mixture.items() if name != "origin"}
        return replace(self.state, branch=branch, mixture=mixture, run="")

    def rate(self, settings: Pretrain) -> float:
        """Learning rate of the next step here."""
        phase, within = self._phase(settings)
        return phase.lr * rate_factor(within, phase, settings, self.warmup(settings))

    @property
    def own_rates(self) -> tuple[float, float]:
        """Learning rates of the last step and of the next one of its own run; twice the last where a phase ends."""
        number, last = phase_of(self.step - 1, self.settings.phases)
        phase = self.settings.phases[number]
        first, second = (
            phase.lr * rate_factor(place, phase, self.settings, self._own_warmup())
            for place in (last, min(last + 1, phase.steps - 1))
        )
        return first, second

    def _phase(self, settings: Pretrain) -> tuple[Phase, int]:
        number, within = phase_of(self.step, settings.phases)
        return settings.phases[number], within

    def _own_warmup(self) -> int:
        """Steps of the warm-up that its own run made of the phase under way, or of the one that ends there."""
        number, _ = phase_of(self.step - 1, self.settings.phases)
        branch = self.state.branch
        planned = self.settings.warmup_steps(self.settings.phases[number])
        same = branch and phase_of(branch.step, self.settings.phases)[0] == number
        return branch.warmup if same and branch and branch.warmup is not None else planned


def read_start_point(place: str) -> StartPoint:
    """Read manifest and state of a checkpoint."""
    _refuse_absent(place)
    manifest = directory.manifest_of(place)
    where = join(place, directory.STATE)
    content = read_verified(place, manifest, directory.STATE)
    return StartPoint(place=place, manifest=manifest, state=State.from_json(content, where))


def check_start_point(start: StartPoint, recipe: Recipe, origin: Mapping[str, str]) -> list[str]:
    """Compare a checkpoint with the recipe of the run that is to begin with it; return what is to be said.

    `origin` is that of the run's own checkpoints, as far as it is known.
    """
    for reason in (*_strange(start, recipe, origin), *_misplaced(start, recipe.pretrain)):
        raise RecipeError(f"{KEY}: {start.place} {reason}")
    return [
        f"{KEY}: {reason}"
        for reason in (*_changed_order(start, recipe), *_changed_rate(start, recipe, origin))
    ]


def _refuse_absent(place: str) -> None:
    """Raise `DataError` where no finished checkpoint is, with what is there instead."""
    manifest = artifact.read_manifest(place)
    if manifest is not None and manifest.kind == directory.KIND:
        return
    remedy = "give a directory step-N, such as the log of a run with schedule wsd names at its end"
    if manifest is not None:
        raise DataError(
            f"{KEY}: {place} holds {with_article(manifest.kind)}, neither a checkpoint nor a model; {remedy}"
        )
    half = place.rstrip("/") + directory.PARTIAL
    if "://" not in place and Path(half).is_dir():
        raise DataError(
            f"{KEY}: {place} is being written; wait until {half} has its name, or name an earlier step"
        )
    finished = storage.store(place).directories(place)
    below = sorted(
        step for uri in finished if (step := directory.step_in_name(PurePath(uri).name)) is not None
    )
    if below:
        remedy = (
            f"name one of its steps {directory.listed(below)}, such as {directory.path_of(Path(), below[-1])}"
        )
    raise DataError(f"{KEY}: {place}: no finished checkpoint there (no {MANIFEST}); {remedy}")


def other_model(theirs: Mapping[str, str], recipe: Recipe, origin: Mapping[str, str]) -> Iterator[str]:
    """Reasons why weights whose origin is `theirs` are not those of this run's model; see `check_start_point`."""
    base = Base.model_validate(nested_keys(theirs).get("base", {}))
    known = [each.get(BASE_FILES) for each in (theirs, origin)]
    same = known[0] == known[1] if all(known) else base == recipe.base
    if not same:
        yield (
            f"was trained from the base {base.model}{f' at {base.revision}' if base.revision else ''}, and base.model is "
            f"{recipe.base.model}{' with other files' if base == recipe.base else ''}; set it to that base"
        )
    for name, words in (
        (
            "input tokenizer",
            "another tokenizer; give that one as --tokenizer, or make it from the same text and keys",
        ),
        ("model shapes", "a model of other shapes; use the tokenizer and base that it was made with"),
    ):
        if name in origin and theirs.get(name) != origin[name]:
            yield f"was trained with {words}"


def _strange(start: StartPoint, recipe: Recipe, origin: Mapping[str, str]) -> Iterator[str]:
    """Reasons why the tensors of a checkpoint are not those of this run's model."""
    yield from other_model(start.manifest.origin, recipe, origin)
    settings = start.settings
    if settings.optimizer != recipe.pretrain.optimizer:
        yield f"has the moments of {settings.optimizer}, and the optimizer is {recipe.pretrain.optimizer}; use that one"
    if settings.state != recipe.pretrain.state:
        yield (
            f"has weights and moments in {settings.state}, and pretrain.state is {recipe.pretrain.state}; set it to "
            f"{settings.state}"
        )


def _misplaced(start: StartPoint, settings: Pretrain) -> Iterator[str]:
    """Reasons why a checkpoint is no place in the trajectory of some phases."""
    theirs, step = start.settings, start.step
    if step >= settings.steps:
        yield (
            f"stands at step {step:,}, and pretrain.phases end at step {settings.steps:,}; phases describe the whole "
            "training, with the steps that are done: give them more steps"
        )
        return
    number, within = phase_of(step, settings.phases)
    if not within:
        return  # A phase begins with an optimizer of its own, so nothing of the one before has to fit.
    last, before = phase_of(step - 1, theirs.phases)
    if before + 1 != within or theirs.phases[last].trains != settings.phases[number].trains:
        yield (
            f"stands at step {before + 1:,} of a phase that trains {theirs.phases[last].trains}, and by pretrain.phases "
            f"step {step:,} is step {within:,} of one that trains {settings.phases[number].trains}; begin phases "
            f"with {', '.join(f'{{trains: {each.trains}, steps: {each.steps}}}' for each in theirs.phases[:last])}"
            f"{' and ' if last else ''}one that trains {theirs.phases[last].trains}"
        )
    elif not start.has_moments:
        ends = [each for each in theirs.plateau_ends if each < step]
        yield (
            f"ends a phase, so it has no moments of AdamW, and by pretrain.phases that phase goes on; let a phase "
            f"begin after step {step:,}, or name an earlier step"
            f"{f', such as {ends[-1]:,}, the last one before the rate fell' if ends else ''}"
        )


def _changed_order(start: StartPoint, recipe: Recipe) -> Iterator[str]:
    """Say what other keys do to the place in the text, which is a function of seed, step and batch."""
    theirs, ours, step = start.settings, recipe.pretrain, start.step
    seed = int(nested_keys(start.manifest.origin).get("seed", 0))
    again = "text of the pass under way may come again, and some of it not at all"
    if seed != recipe.seed:
        yield f"seed {seed} -> {recipe.seed}: the text has another order from step {step + 1:,} on; {again}"
    if theirs.sequence_length != ours.sequence_length:
        yield (
            f"pretrain.sequence_length {theirs.sequence_length:,} -> {ours.sequence_length:,}: the text is packed into "
            f"other sequences, in another order; {again}"
        )
    if theirs.batch_size != ours.batch_size:
        read, begin = step * theirs.batch_size, step * ours.batch_size
        follows = "are skipped" if begin > read else "come again"
        yield (
            f"pretrain.batch_size {theirs.batch_size:,} -> {ours.batch_size:,}: that run read {read:,} sequences, and "
            f"step {step + 1:,} begins with sequence {begin + 1:,} here, so {abs(begin - read):,} {follows}"
        )


def _changed_rate(start: StartPoint, recipe: Recipe, origin: Mapping[str, str]) -> Iterator[str]:
    """Say where the learning rate jumps, where moments go unused, and that another program goes on."""
    settings, step = recipe.pretrain, start.step
    number, within = phase_of(step, settings.phases)
    phase, rate, rates = settings.phases[number], start.rate(settings), start.own_rates
    falls = settings.schedule == "wsd" and within >= phase.steps - settings.decay_steps(phase)
    if within and (rate > max(rates) or (rate < min(rates) and not falls)):
        yield (
            f"the learning rate jumps from {rates[0]:.3g} to {rate:.3g} after step {step:,}; in the flat part of schedule "
            "wsd it goes on as it was"
        )
    if not within and start.has_moments:
        yield f"by pretrain.phases a phase begins after step {step:,}, so the moments of that run are not used"
    version = start.manifest.origin.get(RESULT_VERSION, "")
    if RESULT_VERSION in origin and version != origin[RESULT_VERSION]:
        yield (
            f"written by a program with result version {version} of pretrain, and this one has "
            f"{origin[RESULT_VERSION]}: losses are not those of one run without a break"
        )


MODEL = "model"
"""Kind of the artifact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWeights:
    """A finished model, by its manifest."""

    place: str
    manifest: Manifest

    @property
    def state(self) -> State:
        """State with which a run begins: nothing is done, and the model's digest stands in its checkpoints."""
        branch = Branch(place=self.place, digest=self.manifest.digest, step=0, run=self.place)
        return State(step=0, tokens=0, seconds=0.0, branch=branch)

    @property
    def tokenizer(self) -> str:
        """Digest of the tokenizer that it was trained with: that of the trial, where one chose."""
        origin = self.manifest.origin
        return origin.get(last_form("tokenizer", origin, INPUT), "")

    def folder(self, *, verify: bool = True) -> Path:
        """Return a local directory with its files, every byte compared with the manifest unless another process does."""
        if "://" in self.place:
            return copy_to_cache(self.place, self.manifest)
        if verify:
            artifact.verify_files(Path(self.place), self.manifest, self.place)
        return Path(self.place)


Start = StartPoint | StartWeights


def read_start(place: str) -> Start:
    """Read the manifest of what a run begins with; raises as `read_start_point`."""
    manifest = artifact.read_manifest(place)
    if manifest is not None and manifest.kind == MODEL:
        return StartWeights(place=place, manifest=manifest)
    return read_start_point(place)


def check_start(start: Start, recipe: Recipe, origin: Mapping[str, str]) -> list[str]:
    """Compare it with the recipe of the run that is to begin with it; return what is to be said."""
    if isinstance(start, StartPoint):
        if recipe.continues_champion:
            # How many steps the new text makes is not known yet, and decides nothing here.
            last = recipe.pretrain.phases[-1]
            settings = trajectory(recipe.pretrain, last, last.steps, (start.settings, start.step))
            recipe = recipe.model_copy(update={"pretrain": settings})
        return check_start_point(start, recipe, origin)
    theirs = {**start.manifest.origin, f"{INPUT}tokenizer": start.tokenizer}
    for reason in other_model(theirs, recipe, origin):
        raise RecipeError(f"{KEY}: {start.place} {reason}")
    points = read_table(start.place, start.manifest, "training.json").get(POINTS)
    if not isinstance(points, list) or not points:
        return []
    places = " and ".join(str(each["place"]) for each in points)
    return [f"{KEY}: only the weights of {start.place} are taken; with moments its run kept {places}"]
