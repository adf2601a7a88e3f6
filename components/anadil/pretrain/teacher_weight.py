"""Weight of the divergence from the base on sources whose teacher it is: a number, or the least that forgets little enough.

`auto` is a dual ascent. Each validation compares the texts of `evaluate.retained`, and these sources' held-out text, but for the
taught language, with the base's own loss on them. Over the limit of the gate the weight rises, below it falls, by up to a
factor of two at a time.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from anadil.core.errors import IntegrityError, RecipeError
from anadil.pretrain.callback import Callback
from anadil.pretrain.state import SourceLoss, Step
from anadil.pretrain.validation import SCORE
from anadil.recipe.sections import Recipe
from anadil.tokens.probabilities import StoredProbabilities

log = logging.getLogger(__name__)

FIRST, LEAST, MOST = 1.0, 2.0**-10, 2.0**7
"""Weight before the first validation, and bounds of it. Chosen by us: at 128 the loss of the text is noise beside it."""
LEAST_ROOM = 0.01
"""Least distance from no loss to the limit, in logarithms: a limit of 1 leaves none to measure by. Chosen by us."""
KEY = "pretrain.distillation.weight"


class TeacherWeight(Callback):
    """Sets the weight, changes it where it is `auto`, and records the divergence."""

    def __init__(
        self, recipe: Recipe, teachers: Mapping[str, StoredProbabilities], num_bytes: Mapping[str, int]
    ) -> None:
        """Limit the loss of each text in another language than the taught one of which `teachers` have the base's.

        `num_bytes` are those of the texts that validations score. Raises IntegrityError where the base was scored on others.
        """
        self._asked, self._limit = (
            recipe.pretrain.distillation.weight,
            recipe.evaluate.gate.max_retained_ratio,
        )
        scores = {name: score for each in teachers.values() for name, score in each.facts.scores.items()}
        self._base = {
            name: score.bits_per_byte
            for name, score in scores.items()
            if self._asked == "auto" and name not in recipe.target_sources
        }
        if self._asked == "auto" and not self._base:
            raise RecipeError(
                f"{KEY} is auto, and neither the sources that the base teaches nor evaluate.retained have a document for it. Set "
                "a number, or raise clean.heldout_fraction"
            )
        for name, size in num_bytes.items() if self._base else ():
            scored = scores[name].bytes if name in scores else 0
            if name not in recipe.sources and scored != size:
                raise IntegrityError(
                    f"{KEY} is auto, and {name} of evaluate.retained has {size:,} bytes that are scored, of which the stored "
                    f"probabilities know the base's loss on {scored:,}: they were stored with another evaluate.retained or "
                    f"weight; run distill again with this recipe"
                )
        taught = [name for name, each in recipe.sources.items() if each.teacher]
        self._unwatched = sorted({*recipe.sources} - {*recipe.target_sources, *taught})
        self._state: dict[str, Any] = {}
        """The weight, the divergence since the last line, and the last and the nearest score: text, its ratio, step, weight."""

    def pre_train(self) -> None:
        """Go on with the weight of the checkpoint."""
        self.post_rollback()
        begin = f"auto, watches {', '.join(self._base)} and begins with " if self._base else ""
        log.info("%s: %s%.4g", KEY, begin, self._state["weight"])
        if self._base and self._unwatched:
            log.warning(
                "%s does not watch %s, which the gate judges: the base was not scored on a source that it does not teach",
                KEY, ", ".join(self._unwatched),
            )  # fmt: skip

    def post_rollback(self) -> None:
        """Go on with the weight of the state."""
        first = {"weight": FIRST, "since_line": {}, "last": None, "nearest": None}
        fixed = {} if self._asked == "auto" else {"weight": self._asked}
        self._state = {**first, **self.training.state.distillation, **fixed}
        self.training.trainer.net.objective.teacher_weight = self._state["weight"]

    def post_step(self, step: Step) -> None:
        """Record the divergence since the last line, and change the weight where the texts were scored."""
        run = self.training
        since = SourceLoss(**self._state["since_line"]) + step.divergence
        if run.is_log_due:
            run.figures["teacher_weight"] = self._state["weight"]
            if since.tokens:
                run.figures["kl"] = since.nats / since.tokens
            since = SourceLoss()
        scores = {name: run.figures.get(f"{SCORE}/{name}") for name in self._base}
        ratios = {name: score / self._base[name] for name, score in scores.items() if score is not None}
        changed = self._change(ratios) if ratios else {}
        # A table of its own at each step, in the state itself: snapshots in memory have it too.
        self._state = self._state | {"since_line": asdict(since)} | changed
        run.state = replace(run.state, distillation=self._state)

    def post_train(self) -> None:
        """Say where the run ends, and by how much it missed the limit."""
        last, nearest = self._state["last"], self._state["nearest"]
        if not last:
            return
        if last["ratio"] <= self._limit:
            log.info("%s: auto ends with %.4g", KEY, self._state["weight"])
            return
        log.warning(
            "%s: no weight kept %s within %.4g times the base's bits per byte (evaluate.gate.max_retained_ratio): %.4g at the "
            "end; the nearest was %.4g, after step %s with weight %.4g. Give the source a larger share in pretrain.phases[].mix, "
            "lower the learning rate, or raise the limit",
            KEY, last["source"], self._limit, last["ratio"], nearest["ratio"], f"{nearest['step']:,}", nearest["weight"],
        )  # fmt: skip

    @property
    def summary(self) -> dict[str, Any]:
        """Weight at the end, with the limit and the ratios of `auto`, for `training.json`."""
        if self._asked != "auto":
            return {"weight": self._asked}
        return {"limit": self._limit} | {name: self._state[name] for name in ("weight", "last", "nearest")}

    def _change(self, ratios: Mapping[str, float]) -> dict[str, Any]:
        run, before, nearest = self.training, self._state["weight"], self._state["nearest"]
        source = max(ratios, key=ratios.__getitem__)
        last = {"step": run.state.step, "ratio": ratios[source], "source": source, "weight": before}
        room = math.log(self._limit)
        excess = (math.log(ratios[source]) - room) / max(room, LEAST_ROOM)
        weight = min(MOST, max(LEAST, before * 2 ** min(1.0, max(-1.0, excess))))
        run.trainer.net.objective.teacher_weight = weight
        log.info(
            "%s: %.4g -> %.4g after step %s, since %s has %.4g times the base's bits per byte and the limit is %.4g",
            KEY, before, weight, f"{run.state.step:,}", source, ratios[source], self._limit,
        )  # fmt: skip
        if nearest is None or last["ratio"] < nearest["ratio"]:
            nearest = last
        return {"weight": weight, "last": last, "nearest": nearest}
