"""The callback that plans the order of the sources, and keeps what is past at a resume."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from pydantic import TypeAdapter

from anadil.core.stages import STAGES
from anadil.estimate.schedule import Schedule, SourceSize, schedule_of, standing, usage_of
from anadil.estimate.text_use import new_names
from anadil.pretrain.callback import Callback
from anadil.pretrain.data.order import sizes_of
from anadil.pretrain.state import State
from anadil.recipe.retrain import EARLIER
from anadil.recipe.sections import Recipe
from anadil.runtime.cache_key import recipe_origin, split_shares

log = logging.getLogger(__name__)


class MixtureKeeper(Callback):
    """Plans the order of the sources before the first batch is made, and keeps what is past.

    Other shares, or more epochs, may come with a resume. The order before it stays, and each source goes on from where
    it stands, so that a later start makes the same batches again.
    """

    def __init__(self) -> None:
        self._schedule: Schedule | None = None
        self._sizes: Mapping[str, SourceSize] = {}
        self._origin: dict[str, str] = {}
        self.changes: list[dict[str, Any]] = []
        """Changes of shares so far: the first step with the new ones, and what changed."""
        self.begins: dict[str, int] = {}
        """Position of each part of the text where a retraining began; empty in any other training."""

    def pre_train(self) -> None:
        """Plan the whole run, or resume with the order of the checkpoint; raises as `schedule_of`."""
        run = self.training
        saved = run.state.mixture
        if run.job.recipe.continues_champion and run.is_branching:
            self._begin_week()
        else:
            self.begins = dict(saved.get("begins", {}))
        self._sizes = sizes_of(run.job.recipe, run.trainer.data.sources, self.begins)
        # The first start's shares name the work directory, by which a start with other ones finds it.
        shares = split_shares(recipe_origin(run.job.recipe, STAGES["pretrain"].keys))[1]
        self._origin = saved.get("origin", shares)
        if not saved or self._schedule is not None:
            self._plan_anew()
        else:
            before = TypeAdapter(Schedule).validate_python(saved["schedule"])
            begin = run.trainer.batch_of(run.state.step) * run.job.recipe.pretrain.batch_size
            self._use(before.with_names(tuple(self._sizes), begin))
            changes = differences(saved["shares"], shares_of(run.job.recipe))
            self.changes = list(saved["changes"])
            if changes:
                self.changes.append({"step": run.state.step + 1, "changes": changes})
                log.warning("from step %s on: %s", f"{run.state.step + 1:,}", "; ".join(changes))
            # A run that begins with a checkpoint of another one may have other phases, too.
            if changes or run.is_branching:
                self._plan_anew()
        if run.group.is_first:
            self._log_usage()

    def post_rollback(self) -> None:
        """Plan the order behind the batches that are skipped, so that phases begin with their own shares."""
        self._plan_anew()

    def pre_save(self, state: State) -> State:
        """Add the order, and the shares that it follows from."""
        assert self._schedule is not None
        mixture = {
            "shares": shares_of(self.training.job.recipe),
            "origin": self._origin,
            "schedule": asdict(self._schedule),
            "changes": self.changes,
            **({"begins": self.begins} if self.begins else {}),
        }
        return replace(state, mixture=mixture)

    def _plan_anew(self) -> None:
        run = self.training
        step = run.state.step
        batch = run.trainer.batch_of(step)
        settings = run.job.recipe.pretrain
        self._use(schedule_of(settings, self._sizes, step=step, batch=batch, before=self._schedule))

    def _begin_week(self) -> None:
        """Let earlier text go on where the champion's run stands, and new text begin: another week's had its name."""
        run = self.training
        state, names = run.state, tuple(run.trainer.data.sources)
        number = run.trainer.batch_of(state.step) * run.job.recipe.pretrain.batch_size
        stands = {EARLIER: number}  # of a run without sources, which has no schedule
        if saved := state.mixture.get("schedule"):
            before = TypeAdapter(Schedule).validate_python(saved)
            stands = dict(zip(before.names, before.positions(number), strict=True))
        new = new_names(run.job.recipe)
        self.begins = {name: 0 if name in new else stands.get(name, 0) for name in names}
        self._schedule = standing(names, self.begins, number)
        # Tokens by part are those of this run, as its passes are.
        run.state = replace(state, sources={})

    def _use(self, schedule: Schedule) -> None:
        self._schedule = schedule
        trainer = self.training.trainer
        trainer.data = replace(trainer.data, schedule=schedule)

    def _log_usage(self) -> None:
        recipe = self.training.job.recipe
        settings = recipe.pretrain
        if recipe.continues_champion:
            self._log_week()
            return
        for each in usage_of(settings, self._sizes, self._schedule):
            log.info(
                "%s: %s tokens in %s sequences; the run takes %.2f epochs of it",
                each.name, f"{self._sizes[each.name].targets:,}", f"{self._sizes[each.name].sequences:,}",
                each.epochs,
            )  # fmt: skip
            if each.exhausted_at is not None:
                log.warning(
                    "%s: its share would be %.2f epochs, and sources.%s.max_epochs is %s: from step %s on its share "
                    "goes to the other sources",
                    each.name, each.asked_epochs, each.name, self._sizes[each.name].max_epochs,
                    f"{each.exhausted_at:,}",
                )  # fmt: skip

    def _log_week(self) -> None:
        """Say how many steps the new text makes, and how often each part is read."""
        run, schedule = self.training, self._schedule
        assert schedule is not None
        settings, retrain = run.job.recipe.pretrain, run.job.recipe.retrain
        assert retrain is not None
        begin = run.state.branch.step if run.state.branch else 0
        log.info(
            "retraining: %s steps after step %s, by retrain.epochs %g and retrain.mix.new %g",
            f"{settings.steps - begin:,}", f"{begin:,}", retrain.epochs, retrain.mix.new,
        )  # fmt: skip
        used = schedule.positions(schedule.end)
        for (name, size), position in zip(self._sizes.items(), used, strict=True):
            end = schedule.exhausted.get(name)
            log.info(
                "%s: %s tokens in %s sequences; the run takes %.2f epochs of it%s",
                name, f"{size.targets:,}", f"{size.sequences:,}", (position - size.begin) / size.sequences,
                "" if end is None else f", and from step {end:,} on its share goes to the others",
            )  # fmt: skip


def shares_of(recipe: Recipe) -> dict[str, float]:
    """Everything of the recipe that may change at a resume, by key."""
    mixes = {
        f"pretrain.phases.{number}.{key}": mix
        for number, phase in enumerate(recipe.pretrain.phases)
        for key, mix in (("mix", phase.mix), ("anneal", phase.anneal))
        if mix
    }
    return {
        **{f"{key}.{name}": share for key, mix in mixes.items() for name, share in mix.items() if share},
        **{f"sources.{name}.max_epochs": source.max_epochs for name, source in recipe.sources.items()},
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Shares that differ, as `key old -> new`."""
    return [
        f"{name} {before.get(name, 0):g} -> {now.get(name, 0):g}"
        for name in dict.fromkeys([*before, *now])
        if before.get(name, 0) != now.get(name, 0)
    ]
