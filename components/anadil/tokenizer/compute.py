"""Training cost of a token in the recipe's model: the layers, and the softmax over the vocabulary."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from anadil.core.errors import AnadilError
from anadil.plan.model_shape import Shape, base_shape
from anadil.recipe.sections import Recipe

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCompute:
    """The sizes of the recipe's model, as far as they are known."""

    shape: Shape | None
    """None where the base has no `config.json` that can be planned with: every token then counts alike."""
    context: int
    """Tokens of a training sequence."""

    def flops_per_token(self, rows: int) -> float | None:
        """FLOPs of a training step per token with a vocabulary of `rows`; None where the model is not known."""
        if self.shape is None:
            return None
        return replace(self.shape, vocabulary=rows).flops_per_token(self.context)

    def embedding_parameters(self, rows: int) -> int | None:
        """Parameters of all embedding tables with `rows` each; None where the model is not known."""
        return None if self.shape is None else replace(self.shape, vocabulary=rows).embeddings

    @property
    def text(self) -> str:
        """Model and context of the figures, for people."""
        if self.shape is None:
            return "a model of unknown sizes, so that every token counts alike"
        return f"{self.name} at {self.context:,} tokens of context"

    @property
    def name(self) -> str | None:
        """The model's, without the directory that it lies in; None where it is not known."""
        if self.shape is None:
            return None
        folder = Path(self.shape.name).expanduser()
        return folder.name if folder.is_dir() else self.shape.name


def model_compute(recipe: Recipe) -> ModelCompute:
    """The compute of the recipe's base; a directory that holds nothing but a tokenizer is enough to compare."""
    context = recipe.pretrain.sequence_length
    try:
        return ModelCompute(shape=base_shape(recipe), context=context)
    except AnadilError as error:
        log.warning(
            "the cost of candidates is in tokens only, because the model's sizes are not known: %s", error
        )
        return ModelCompute(shape=None, context=context)
