"""Cost of a candidate: tokens per word, and compute per token."""

from dataclasses import dataclass

from anadil.tokenizer.compute import ModelCompute


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

    Args:
        tokens_per_word: Of the candidate.
        rows: Of its embedding.
        base: Both of the base.
        compute: Of the model.

    Source: Tao et al. 2024, arXiv:2407.13623, section 3: FLOPs are counted with the vocabulary's own parameters, and
    over characters or words instead of tokens.
    """
    per_token, of_base = compute.flops_per_token(rows), compute.flops_per_token(base[1])
    now, before = compute.embedding_parameters(rows), compute.embedding_parameters(base[1])
    relative = tokens_per_word / base[0] * ((per_token / of_base) if per_token and of_base else 1.0)
    return Cost(
        tokens_per_word=tokens_per_word,
        flops_per_token=per_token,
        flops_per_word=None if per_token is None else round(tokens_per_word * per_token),
        relative=round(relative, 4),
        embedding_parameters_added=None if now is None or before is None else now - before,
    )
