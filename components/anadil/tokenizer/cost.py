"""Cost of a candidate: tokens per word, and compute per token in the recipe's model."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from anadil.core.errors import AnadilError
from anadil.plan.model_shape import Shape, base_shape
from anadil.recipe.sections import Recipe

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCompute:
    """Sizes of the recipe's model, as far as they are known."""

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
        """The model's name, without the directory that it lies in; None where it is not known."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of training the recipe's model on a word of the held-out text with a candidate."""

    tokens_per_word: float
    """Mean over the domains of the held-out text."""
    flops_per_token: float | None
    """FLOPs of a training step, the softmax over all rows included; None if the model is not known."""
    flops_per_word: float | None
    relative: float
    """Over the base's; from this the choice is made. Without a known model: the ratio of the tokens per word."""
    embedding_parameters_added: int | None
    """Parameters of all embedding tables that the base does not have; negative where they are fewer."""


def cost_of(tokens_per_word: float, rows: int, base: tuple[float, int], compute: ModelCompute) -> Cost:
    """Tokens per word x FLOPs per token.

    Source: Tao et al. 2024, arXiv:2407.13623, section 3: FLOPs are counted with the vocabulary's own parameters, and
    over characters or words instead of tokens.
    """
    per_token, of_base = compute.flops_per_token(rows), compute.flops_per_token(base[1])
    now, before = compute.embedding_parameters(rows), compute.embedding_parameters(base[1])
    # Without the sizes of the model every token counts alike.
    relative = tokens_per_word / base[0] * ((per_token / of_base) if per_token and of_base else 1.0)
    return Cost(
        tokens_per_word=tokens_per_word,
        flops_per_token=per_token,
        flops_per_word=None if per_token is None else round(tokens_per_word * per_token),
        relative=round(relative, 4),
        embedding_parameters_added=None if now is None or before is None else now - before,
    )
