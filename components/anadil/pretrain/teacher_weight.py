"""Weight of the divergence from the base on sources whose teacher it is: a number, or the least that forgets little enough.

`auto` is a dual ascent. Each validation compares these sources' held-out text, but for the taught language, with the base's own
loss on it. Over the limit of the gate the weight rises, below it falls, by up to a factor of two at a time.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from anadil.core.errors import RecipeError
from anadil.pretrain.callback import Callback
from anadil.pretrain.state import SourceLoss, Step
from anadil.pretrain.validation import SCORE
from anadil.recipe.sections import Recipe
from anadil.text.metrics import bits_per_byte
from anadil.tokens.probabilities import StoredProbabilities

log = logging.getLogger(__name__)

FIRST, LEAST, MOST = 1.0, 2.0**-10, 2.0**7
"""Weight before the first validation, and bounds of it. Chosen by us: at 128 the loss of the text is noise beside it."""
LEAST_ROOM = 0.01
"""Least distance from no loss to the limit, in logarithms: a limit of 1 leaves none to measure by. Chosen by us."""
KEY = "pretrain.distillation.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedScore:
    """A validation, and the weight until then."""

    step: int
    ratio: float
    """Largest ratio of bits per byte to the base's."""
    source: str
    weight: float


class TeacherWeight(Callback):
    """Sets the weight, changes it where it is `auto`, and records the divergence."""

    def __init__(self, recipe: Recipe, teachers: Mapping[str, StoredProbabilities]) -> None:
        """Limit the loss of each source in another language than the taught one. `teachers` have the base's."""
        asked = recipe.pretrain.distillation.weight
        self.is_auto, self.weight = asked == "auto", FIRST if asked == "auto" else float(asked)
        self.limit = recipe.evaluate.gate.max_retained_ratio
        self.nearest: RetainedScore | None = None
        self.last: RetainedScore | None = None
        self._since = SourceLoss()
        others = {name: each.facts for name, each in teachers.items() if name not in recipe.target_sources}
        if empty := [name for name, facts in others.items() if self.is_auto and not facts.heldout_documents]:
            raise RecipeError(
                f"{KEY} is auto, and the corpus of sources.{empty[0]} holds nothing out; set a number, or raise "
                "clean.heldout_fraction"
            )
        self._base = {
            name: bits_per_byte(facts.heldout_nats, facts.heldout_bytes)
            for name, facts in others.items()
            if self.is_auto
        }

    def pre_train(self) -> None:
        """Go on with the weight of the checkpoint."""
        self.post_rollback()
        log.info("%s: %s%.4g", KEY, "auto, begins with " if self.is_auto else "", self.weight)

    def post_rollback(self) -> None:
        """Go on with the weight of the state."""
        saved = self.training.state.distillation
        if self.is_auto:
            self.weight = saved.get("weight", FIRST)
        self._since = SourceLoss(**saved.get("since_line", {}))
        self.nearest, self.last = (
            RetainedScore(**saved[name]) if saved.get(name) else None for name in ("nearest", "last")
        )
        self.training.trainer.net.objective.teacher_weight = self.weight

    def post_step(self, step: Step) -> None:
        """Record the divergence since the last line, and change the weight where the sources were scored."""
        run = self.training
        self._since += step.divergence
        if run.is_log_due:
            run.figures["teacher_weight"] = self.weight
            if self._since.tokens:
                run.figures["kl"] = self._since.nats / self._since.tokens
            self._since = SourceLoss()
        ratios = {
            name: run.figures[f"{SCORE}/{name}"] / base
            for name, base in self._base.items()
            if f"{SCORE}/{name}" in run.figures
        }
        if ratios:
            self._change(ratios)
        # In the state itself, so that snapshots in memory have it too.
        scores = {
            name: each and asdict(each) for name, each in (("nearest", self.nearest), ("last", self.last))
        }
        saved = {"weight": self.weight, "since_line": asdict(self._since), **scores}
        run.state = replace(run.state, distillation=saved)

    def post_train(self) -> None:
        """Say where the run ends, and by how much it missed the limit."""
        if not (self.last and self.nearest):
            return
        if self.last.ratio <= self.limit:
            log.info("%s: auto ends with %.4g", KEY, self.weight)
            return
        log.warning(
            "%s: no weight kept %s within %.4g times the base's bits per byte (evaluate.gate.max_retained_ratio): %.4g at the "
            "end; the nearest was %.4g, after step %s with weight %.4g. Give the source a larger share in pretrain.phases[].mix, "
            "lower the learning rate, or raise the limit",
            KEY, self.last.source, self.limit, self.last.ratio, self.nearest.ratio, f"{self.nearest.step:,}",
            self.nearest.weight,
        )  # fmt: skip

    @property
    def summary(self) -> dict[str, Any]:
        """Weight at the end, with the limit and the ratios of `auto`, for `training.json`."""
        if not self.is_auto:
            return {"weight": self.weight}
        scores = {"last": self.last, "nearest": self.nearest}
        return {"weight": self.weight, "limit": self.limit} | {
            name: each and asdict(each) for name, each in scores.items()
        }

    def _change(self, ratios: Mapping[str, float]) -> None:
        run, before = self.training, self.weight
        source = max(ratios, key=ratios.__getitem__)
        self.last = RetainedScore(step=run.state.step, ratio=ratios[source], source=source, weight=before)
        if self.nearest is None or self.last.ratio < self.nearest.ratio:
            self.nearest = self.last
        room = math.log(self.limit)
        excess = (math.log(ratios[source]) - room) / max(room, LEAST_ROOM)
        self.weight = min(MOST, max(LEAST, before * 2 ** min(1.0, max(-1.0, excess))))
        run.trainer.net.objective.teacher_weight = self.weight
        log.info(
            "%s: %.4g -> %.4g after step %s, since %s has %.4g times the base's bits per byte and the limit is %.4g",
            KEY, before, self.weight, f"{run.state.step:,}", source, ratios[source], self.limit,
        )  # fmt: skip
