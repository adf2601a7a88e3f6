"""Choose one candidate by its figures, and say which of them decided."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from anadil.core.errors import AnadilError
from anadil.core.json_text import write_indented
from anadil.estimate.model_shape import Shape, base_shape
from anadil.recipe.sections import Recipe, Strategy
from anadil.recipe.sections import Tokenizer as Settings
from anadil.tokenizer.candidate import TokenizerCandidate
from anadil.tokenizer.fertility import Fertility, HeldoutSample
from anadil.tokenizer.surgery import LostScript, lost_text
from anadil.tokenizer.usage import MIN_SHARE

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


TIE = 0.02  # Costs so much apart are taken for equal, and the fewest tokens to learn win. Assumption.
MAX_KEEP_RATIO = 1.05
"""Most tokens per word of a text of `tokenizer.keep`, over the base's, for what keeps the base's vocabulary. Assumption."""
KEEPS_BASE: frozenset[Strategy] = frozenset({"base", "extend", "surgery"})
"""Strategies that keep the base's tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCandidate:
    """A candidate, what it does to the text, and what that costs."""

    candidate: TokenizerCandidate
    fertility: Fertility
    cost: Cost
    unchanged: Mapping[str, float] = field(default_factory=dict)
    """Text of `tokenizer.keep` -> share of its unseen documents that are cut as the base cuts them."""
    unseen: Mapping[str, int] = field(default_factory=dict)
    """Text of `tokenizer.keep` -> documents of that share; 0 where it is too short to leave some out, and all count."""
    lost: Mapping[str, LostScript] = field(default_factory=dict)
    """Script -> what was given up of it."""

    def as_json(self) -> dict[str, object]:
        """Its entry in `fertility.json` and `choice.json`."""
        candidate = self.candidate
        return {
            **{name: getattr(candidate, name) for name in ("strategy", "asked", "got", "vocab_size")},
            **(asdict(candidate.usage) if candidate.usage else {}),
            **self.fertility.as_json(),
            "unchanged": dict(self.unchanged),
            "unchanged_documents": dict(self.unseen),
            "lost_scripts": {name: asdict(each) for name, each in self.lost.items()},
            "cost": asdict(self.cost),
        }

    @property
    def warning(self) -> str:
        """Warning of tokens that the corpus hardly uses; empty if it uses them enough."""
        candidate, usage = self.candidate, self.candidate.usage
        if usage is None or usage.is_enough:
            return ""
        return (
            f"{candidate.name}: {usage.own_tokens_seen:,} of its own {usage.own_tokens:,} tokens "
            f"({usage.own_tokens_seen / usage.own_tokens:.0%}) were seen {usage.min_uses} times in the training text, "
            f"and the others will be learnt badly; this corpus supports {candidate.strategy} {usage.supported_size:,}: "
            "lower tokenizer.vocab_sizes, or give more text"
        )

    @property
    def lost_warning(self) -> str:
        """Warning if it is chosen; empty if nothing of the base's is lost that should be kept."""
        if not self.lost or self.candidate.strategy not in KEEPS_BASE:
            return ""
        return (
            f"{self.candidate.name} gives up tokens of the base: {lost_text(self.lost)}; if the model is to go on reading "
            "such a script, name a text of each of its languages in tokenizer.keep and run again, or leave "
            f"{'surgery out of tokenizer.strategies' if self.candidate.strategy == 'surgery' else 'tokenizer.prune out'}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The candidate that is chosen, and why."""

    best: MeasuredCandidate
    reason: str
    """One sentence, with the numbers that decided."""
    why_not: dict[str, str]
    """Name of each other candidate -> what spoke against it."""


def rule_text(settings: Settings, model: str) -> str:
    """The rule of `tokenizer.choice: auto`, for people."""
    return (
        "The lowest cost wins: tokens per word, as the mean over the domains of the held-out text, x compute per token "
        f"of {model}; within {TIE:.0%} of it, the fewest own tokens, which are to be learnt. A candidate is eligible only if {MIN_SHARE:.0%} of "
        f"its own tokens are seen {settings.min_uses} times in the training text, and if, where it keeps the base's "
        f"vocabulary, no text of tokenizer.keep costs more than {MAX_KEEP_RATIO:g} times the base's tokens. Where no "
        "candidate but the base has enough such tokens, those that keep the base's vocabulary are compared, because "
        "most of their tokens are learnt already; without one, all are."
    )


def choose_candidate(
    measured: Sequence[MeasuredCandidate], base: MeasuredCandidate, settings: Settings
) -> Choice:
    """The candidate that `rule_text` chooses; `base` is the base's tokenizer, whose cost of `tokenizer.keep` is the unit."""
    choice = settings.choice
    rivals = [item for item in measured if choice in ("auto", item.candidate.strategy)]
    against = {item.candidate.name: _against(item, base, settings.min_uses) for item in rivals}
    pool, relaxed = _pool(rivals, against)
    cheapest = min(pool, key=_cost)
    # Costs so near are noise, and a model learns fewer new rows sooner.
    near = [item for item in pool if item.cost.relative <= (1 + TIE) * cheapest.cost.relative]
    best = min(near, key=lambda item: (_own_tokens(item), *_cost(item)))
    why_not = {
        item.candidate.name: _why_not(
            item, best, against.get(item.candidate.name), choice, compared=item in pool, relaxed=bool(relaxed)
        )
        for item in measured
        if item is not best
    }
    reason = _reason(best, cheapest, len(rivals), len(pool), choice)
    if left_out := [item for item in rivals if item not in pool and _cost(item) < _cost(best)]:
        least = min(left_out, key=_cost)
        reason += (
            f"; {least.candidate.name} would cost {least.cost.relative:.3f}: {why_not[least.candidate.name]}"
        )
    return Choice(best=best, reason=reason + (f"; {relaxed}" if relaxed else ""), why_not=why_not)


def _cost(item: MeasuredCandidate) -> tuple[float, int]:
    return item.cost.relative, item.candidate.vocab_size


def _own_tokens(item: MeasuredCandidate) -> int:
    """Tokens that the model does not know yet; all of the vocabulary where that was not counted."""
    usage = item.candidate.usage
    if item.candidate.strategy == "base":
        return 0
    return usage.own_tokens if usage else item.candidate.vocab_size


def _pool(
    rivals: Sequence[MeasuredCandidate], against: dict[str, dict[str, str]]
) -> tuple[list[MeasuredCandidate], str]:
    """Candidates that are compared by cost, and a sentence for the reason if none has enough uses."""

    def without(*faults: str) -> list[MeasuredCandidate]:
        return [
            item for item in rivals if not any(against[item.candidate.name].get(fault) for fault in faults)
        ]

    sound = without("uses", "keep")
    if any(item.candidate.strategy != "base" for item in sound):
        return sound, ""
    readable = without("keep")
    if all(item.candidate.strategy == "base" for item in readable):
        # Nothing but the base, or what the recipe's own choice left over.
        return (readable or list(rivals)), ""
    keeping = [item for item in readable if item.candidate.strategy in KEEPS_BASE]
    if all(item.candidate.strategy == "base" for item in keeping):
        keeping = readable
    # The largest candidate of a strategy tells most of the size that the corpus supports.
    sizes: dict[Strategy, int] = {}
    for item in readable:
        if item.candidate.usage and item.candidate.strategy != "base":
            size = item.candidate.usage.supported_size
            sizes[item.candidate.strategy] = max(size, sizes.get(item.candidate.strategy, 0))
    return keeping, (
        f"no candidate has {MIN_SHARE:.0%} of its own tokens seen often enough: this corpus supports "
        + ", ".join(f"{strategy} {size:,}" for strategy, size in sizes.items())
    )


def _against(item: MeasuredCandidate, base: MeasuredCandidate, min_uses: int) -> dict[str, str]:
    """Faults of a candidate by the rule, whatever it costs: `uses` and `keep`."""
    faults: dict[str, str] = {}
    usage = item.candidate.usage
    if usage and not usage.is_enough:
        share = usage.own_tokens_seen / usage.own_tokens
        # Down, so that 89.6 % does not read as 90 %.
        faults["uses"] = (
            f"{math.floor(100 * share)}% of its own tokens are seen {min_uses} times, and {MIN_SHARE:.0%} should be"
        )
    if item.candidate.strategy in KEEPS_BASE:
        ratios = {
            name: fertility.fertility / base.fertility.keep[name].fertility
            for name, fertility in item.fertility.keep.items()
            if base.fertility.keep[name].fertility
        }
        # One text that gets too expensive is enough: a mean would hide it.
        worst = max(ratios, key=lambda name: ratios[name], default="")
        if worst and ratios[worst] > MAX_KEEP_RATIO:
            faults["keep"] = (
                f"{worst} costs {ratios[worst]:.3f} of the base's tokens, and {MAX_KEEP_RATIO:g} is the most"
            )
    return faults


def _reason(
    best: MeasuredCandidate, cheapest: MeasuredCandidate, num_rivals: int, num_compared: int, choice: str
) -> str:
    why = f"tokenizer.choice is {choice}"
    if num_rivals == 1:
        return why
    of = f"{num_rivals} candidates" if choice == "auto" else f"its {num_rivals} sizes"
    left = "" if num_compared == num_rivals else f", of which {num_compared} could be compared,"
    why += f"; of {of}{left} {cheapest.candidate.name} costs least, {_figures(cheapest)}"
    if best is not cheapest:
        why += f", and within {TIE:.0%} of it {best.candidate.name} has the fewest tokens to learn, {_figures(best)}"
    return why


def _figures(item: MeasuredCandidate) -> str:
    return (
        f"{item.cost.relative:.3f} of the base's compute per word ({item.cost.tokens_per_word:.3f} tokens per word, "
        f"{item.candidate.vocab_size:,} rows)"
    )


def _why_not(
    item: MeasuredCandidate, best: MeasuredCandidate, faults: dict[str, str] | None, choice: str, *,
    compared: bool, relaxed: bool,
) -> str:  # fmt: skip
    if faults is None:
        return f"tokenizer.choice is {choice}"
    if not compared:
        keeps_base = item.candidate.strategy in KEEPS_BASE
        # Where none has enough learnt tokens, that does not tell this one from the chosen one.
        also = ["others keep the base's vocabulary"] if relaxed and not keeps_base else []
        return "; ".join([*faults.values(), *also])
    if item.cost.relative <= (1 + TIE) * best.cost.relative and _own_tokens(item) >= _own_tokens(best):
        return (
            f"{_figures(item)}: within {TIE:.0%} of {best.candidate.name}, and no fewer tokens to learn "
            f"({_own_tokens(item):,} instead of {_own_tokens(best):,})"
        )
    return (
        f"{_figures(item)}: {item.cost.relative / best.cost.relative - 1:.1%} more than {best.candidate.name}"
    )


SPEED = "speed.json"
"""Tokens per CPU-second of each candidate, which vary from run to run."""
TABLES = ("fertility.json", "choice.json", SPEED)
EncoderCheck = dict[str, bool | int | str]


def write_tables(
    out: Path, base: MeasuredCandidate, measured: Sequence[MeasuredCandidate], choice: Choice,
    heldout: HeldoutSample, language: str, encoder: EncoderCheck | None,
) -> None:  # fmt: skip
    """Write `fertility.json` and `speed.json`, with the base in any case: the others are compared with it."""
    warnings = _warnings(measured, choice)
    if encoder and encoder["difference"]:
        warnings.append(str(encoder["difference"]))
    every = {item.candidate.name: item for item in (base, *measured)}
    summary = {
        "language": language, "chosen": choice.best.candidate.name, "num_words": heldout.num_words,
        "num_bytes": heldout.num_bytes, "candidates": {name: item.as_json() for name, item in every.items()},
        "encoder": encoder, "warnings": warnings,
    }  # fmt: skip
    write_indented(out / "fertility.json", summary)
    speeds = {
        name: {"tokens_per_cpu_s": round(item.fertility.tokens_per_cpu_s)} for name, item in every.items()
    }
    write_indented(out / SPEED, speeds)


def write_choice(
    out: Path, measured: Sequence[MeasuredCandidate], choice: Choice, settings: Settings,
    compute: ModelCompute,
) -> None:  # fmt: skip
    """Write `choice.json` where there was a choice: the rule, each candidate's figures, and why not each other one."""
    if len(measured) == 1:
        return
    entries = []
    for item in measured:
        name = item.candidate.name
        entry = {"name": name, **item.as_json(), "why_not": choice.why_not.get(name)}
        # They are for people, and fertility.json holds them.
        del entry["samples"]
        entries.append(entry)
    rule = {
        "text": rule_text(settings, compute.text), "model": compute.name, "context": compute.context,
        "min_uses": settings.min_uses, "min_share": MIN_SHARE, "max_keep_ratio": MAX_KEEP_RATIO, "tie": TIE,
    }  # fmt: skip
    table = {
        "chosen": choice.best.candidate.name,
        "reason": choice.reason,
        "rule": rule,
        "candidates": entries,
        "warnings": _warnings(measured, choice),
    }
    write_indented(out / "choice.json", table)
    log.info("%s", rule["text"])
    for name, text in choice.why_not.items():
        log.info("not %s: %s", name, text)
    log.info("chose %s: %s", table["chosen"], choice.reason)


def _warnings(measured: Sequence[MeasuredCandidate], choice: Choice) -> list[str]:
    return [*filter(None, [choice.best.lost_warning, *(item.warning for item in measured)])]
