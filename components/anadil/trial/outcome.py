"""The winner of the finalists, with intervals, and `trial.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anadil.evaluate.bootstrap import Difference, paired_difference
from anadil.evaluate.heldout import digest_of
from anadil.pretrain.short_run import Budget, ShortRun
from anadil.text.metrics import bits_per_byte, fertility, words_in_context
from anadil.tokenizer.select import ModelCompute
from anadil.trial.finalists import TARGET, Finalist, TrialTexts

DIGITS = 6
"""Decimals of bits per byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalistResult(ShortRun):
    """Result of a finalist's training. The nats of `ShortRun` are by `target` and names of `tokenizer.keep`."""

    name: str
    strategy: str

    def nats_of(self, kind: str) -> NDArray[np.float64]:
        """The nats of one kind of text."""
        return np.array(self.nats[kind], dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The winning finalist."""

    name: str
    reason: str
    why_not: Mapping[str, str]
    differences: Mapping[str, Difference]
    """Each other finalist's bits per byte minus those of the one with the fewest."""


def choose_winner(results: Sequence[FinalistResult], texts: TrialTexts, seed: int) -> Winner:
    """Choose the fewest bits per byte on the held-out text; among equals the smallest vocabulary."""
    num_bytes = texts.num_bytes(TARGET)
    score = {each.name: bits_per_byte(sum(each.nats[TARGET]), int(num_bytes.sum())) for each in results}
    ranked = sorted(results, key=lambda each: (score[each.name], each.rows))
    best = ranked[0]
    differences = {
        each.name: paired_difference(each.nats_of(TARGET), best.nats_of(TARGET), num_bytes, seed)
        for each in ranked[1:]
    }
    near = [best, *(each for each in ranked[1:] if not differences[each.name].significant)]
    # The smallest vocabulary costs the fewest embedding parameters.
    winner = min(near, key=lambda each: (each.rows, score[each.name]))
    reason = f"{score[winner.name]:.4f} bits per byte"
    if winner is not best:
        reason += (
            f", not told apart from {best.name} ({_shown(differences[winner.name])}), and of "
            f"{len(near)} such it has the smallest vocabulary, {winner.rows:,} rows"
        )
    elif len(near) > 1:
        reason += f", the fewest, and the smallest vocabulary of {len(near)} that are not told apart"
    elif len(results) > 1:
        reason += f", the fewest; {ranked[1].name} has {_shown(differences[ranked[1].name])}"
    why_not = {
        each.name: f"{_shown(differences[each.name])}: not told apart, and {each.rows:,} rows"
        if each in near
        else f"{_shown(differences[each.name])} than {best.name}"
        for each in results
        if each.name not in {winner.name, best.name}
    }
    if winner is not best:
        why_not[best.name] = f"not told apart from {winner.name}, which has the smaller vocabulary"
    return Winner(name=winner.name, reason=reason, why_not=why_not, differences=differences)


def outcome_table(
    finalists: Sequence[Finalist], results: Sequence[FinalistResult], texts: TrialTexts, budget: Budget,
    winner: Winner, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Content of `trial.json`."""
    by_name = {each.name: each for each in finalists}
    return {
        "winner": winner.name,
        "reason": winner.reason,
        "steps": budget.steps,
        "flops": budget.flops,
        "model": ModelCompute(shape=budget.shape, context=budget.context).name,
        "context": budget.context,
        "heldout": {
            "documents": len(texts.kinds[TARGET].documents),
            "bytes": int(texts.num_bytes(TARGET).sum()),
            "sha256": digest_of(texts.kinds[TARGET].documents),
        },
        "finalists": [
            _entry(by_name[each.name], each, texts, budget, seed) | {"why_not": winner.why_not.get(each.name)}
            for each in results
        ],
        "differences": {
            name: asdict(one) | {"significant": one.significant} for name, one in winner.differences.items()
        },
    }


def _entry(
    finalist: Finalist, result: FinalistResult, texts: TrialTexts, budget: Budget, seed: int
) -> dict[str, Any]:
    num_tokens = texts.num_tokens(TARGET, result.name)
    tokens_per_word = fertility(num_tokens, texts.num_words)
    bytes_per_token = int(texts.num_bytes(TARGET).sum()) / num_tokens
    figures = {"name": result.name, "strategy": result.strategy} | asdict(result)  # first, as readers expect
    del figures["nats"]
    return figures | {
        "chosen_because": finalist.reason,
        # Estimated by the held-out text's bytes per token.
        "bytes": round(result.tokens * bytes_per_token),
        "fertility": round(tokens_per_word, 4),
        "words_in_context": words_in_context(budget.context, tokens_per_word),
        **_scored(result, texts, TARGET, seed),
        "keep": {kind: _scored(result, texts, kind, seed) for kind in texts.kinds if kind != TARGET},
    }


def _scored(result: FinalistResult, texts: TrialTexts, kind: str, seed: int) -> dict[str, Any]:
    nats, num_bytes = result.nats_of(kind), texts.num_bytes(kind)
    alone = paired_difference(nats, np.zeros_like(nats), num_bytes, seed)
    return {
        "bits_per_byte": round(alone.value, DIGITS),
        "interval": [round(alone.low, DIGITS), round(alone.high, DIGITS)],
    }


def _shown(difference: Difference) -> str:
    return f"{difference.value:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}] bits per byte"
