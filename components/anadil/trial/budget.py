"""Equal compute: the steps and the recipe of each finalist."""

from dataclasses import dataclass, replace
from pathlib import Path

from anadil.plan.model_shape import Shape, base_shape
from anadil.pretrain.embedding_init import vocabulary_rows
from anadil.recipe.pretrain import Copies, scaled_phases
from anadil.recipe.sections import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Compute of a trial: the FLOPs of `tokenizer.trial.steps` with the base's vocabulary."""

    shape: Shape
    context: int
    tokens_per_step: int
    """Tokens of a batch, padding included."""
    steps: int
    """Steps with the base's vocabulary."""

    @property
    def flops(self) -> float:
        """FLOPs of each finalist's training, up to rounding to whole steps."""
        return self.steps * self.flops_per_step(self.shape.vocabulary)

    def flops_per_step(self, rows: int) -> float:
        """FLOPs of an optimizer step with so many embedding rows; see `Shape.flops_per_token`."""
        return self.tokens_per_step * replace(self.shape, vocabulary=rows).flops_per_token(self.context)

    def steps_of(self, rows: int) -> int:
        """Optimizer steps that cost as much with so many embedding rows, at least 1."""
        return max(1, round(self.flops / self.flops_per_step(rows)))

    def rows_of(self, tokenizer: Path) -> int:
        """Embedding rows of the model under a tokenizer."""
        rows = vocabulary_rows(tokenizer, self.shape.vocabulary)
        return self.shape.vocabulary if rows is None else len(rows)


TRIAL_EPOCHS = 10**6
"""Passes over a source that no trial makes."""


def budget_of(recipe: Recipe, steps: int) -> Budget:
    """Make the budget of a recipe's trial; `AnadilError` where the model's sizes are not known."""
    settings = recipe.pretrain
    return Budget(
        shape=base_shape(recipe),
        context=settings.sequence_length,
        tokens_per_step=settings.batch_size * settings.sequence_length,
        steps=steps,
    )


def trial_recipe(recipe: Recipe, steps: int) -> Recipe:
    """Make the recipe of a finalist: pretrain's, shorter, and without settings that only a long run needs."""
    settings = recipe.pretrain
    faults = settings.faults.model_copy(update={"budget_hours": None, "budget_usd": None, "burn_in": "never"})
    phases = scaled_phases(settings.phases, steps)
    # Its few steps read the text in the taught language alone, as often as they need.
    targets = {
        name: recipe.sources[name].model_copy(update={"max_epochs": TRIAL_EPOCHS})
        for name in recipe.target_sources
    }
    if targets:
        mix = dict.fromkeys(targets, 1.0)
        phases = tuple(phase.model_copy(update={"mix": mix, "anneal": None}) for phase in phases)
    changed = {
        "phases": phases,
        "start_from": None,
        "average_last": None,
        "max_epochs": None,
        "copies": Copies(),
        "faults": faults,
        "validate_every": 0,
        "profile_steps": 0,
    }
    return recipe.model_copy(
        update={"pretrain": settings.model_copy(update=changed), "sources": targets, "merge": None}
    )
