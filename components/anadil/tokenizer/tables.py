"""Files beside the chosen tokenizer: the figures of all candidates, and the choice."""

import logging
from collections.abc import Sequence
from pathlib import Path

from anadil.core.json_text import write_indented
from anadil.recipe.sections import Tokenizer as Settings
from anadil.tokenizer.cost import ModelCompute
from anadil.tokenizer.samples import HeldoutSample
from anadil.tokenizer.select import MAX_KEEP_RATIO, TIE, Choice, MeasuredCandidate, rule_text
from anadil.tokenizer.usage import MIN_SHARE

log = logging.getLogger(__name__)

SPEED = "speed.json"
"""Tokens per CPU-second of each candidate, which vary from run to run."""
TABLES = ("fertility.json", "choice.json", SPEED)
EncoderCheck = dict[str, bool | int | str]


def write_tables(
    out: Path,
    base: MeasuredCandidate,
    measured: Sequence[MeasuredCandidate],
    choice: Choice,
    heldout: HeldoutSample,
    language: str,
    encoder: EncoderCheck | None,
) -> None:
    """Write `fertility.json` and `speed.json`, with the base in any case: the others are compared with it."""
    warnings = _warnings(measured, choice)
    if encoder and encoder["difference"]:
        warnings.append(str(encoder["difference"]))
    every = {item.candidate.name: item for item in (base, *measured)}
    summary = {
        "language": language,
        "chosen": choice.best.candidate.name,
        "num_words": heldout.num_words,
        "num_bytes": heldout.num_bytes,
        "candidates": {name: item.as_json() for name, item in every.items()},
        "encoder": encoder,
        "warnings": warnings,
    }
    write_indented(out / "fertility.json", summary)
    speeds = {
        name: {"tokens_per_cpu_s": round(item.fertility.tokens_per_cpu_s)} for name, item in every.items()
    }
    write_indented(out / SPEED, speeds)


def write_choice(
    out: Path,
    measured: Sequence[MeasuredCandidate],
    choice: Choice,
    settings: Settings,
    compute: ModelCompute,
) -> None:
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
        "text": rule_text(settings, compute.text),
        "model": compute.name,
        "context": compute.context,
        "min_uses": settings.min_uses,
        "min_share": MIN_SHARE,
        "max_keep_ratio": MAX_KEEP_RATIO,
        "tie": TIE,
    }
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
