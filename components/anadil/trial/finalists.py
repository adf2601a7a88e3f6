"""The finalists of a trial: the best size of each strategy, by the rule of the tokenizer stage."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anadil.artifacts import artifact
from anadil.artifacts.base_model import read_tokenizer
from anadil.core.errors import DataError
from anadil.recipe.sections import Strategy
from anadil.recipe.sections import Tokenizer as Settings
from anadil.tokenizer.candidate import TokenizerCandidate
from anadil.tokenizer.cost import Cost
from anadil.tokenizer.fertility import Fertility, TextFertility
from anadil.tokenizer.select import MeasuredCandidate, choose_candidate
from anadil.tokenizer.usage import usage_in

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """The candidate that stands for a strategy."""

    strategy: Strategy
    name: str
    """Name in `fertility.json`."""
    folder: Path
    """Its directory in the tokenizer artifact."""
    reason: str
    """Reason for this one of the strategy's sizes."""


def find_finalists(artifact_folder: Path, settings: Settings) -> tuple[Finalist, ...]:
    """Find the best candidate of each strategy, in the order of the recipe."""
    table = json.loads((artifact_folder / "fertility.json").read_text(encoding="utf-8"))["candidates"]
    try:
        measured = {
            name: _measured(entry, artifact_folder / "candidates" / name) for name, entry in table.items()
        }
        # A recipe that does not compare the base stores its figures alone, and nothing else is needed.
        base = measured["base"] or _measured(table["base"], artifact_folder)
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{artifact_folder}/fertility.json: lacks figures that the trial compares ({error}), as those of an older "
            "release do; make the tokenizer again"
        ) from None
    chosen = []
    for strategy in dict.fromkeys(settings.strategies):
        sizes = [each for each in measured.values() if each and each.candidate.strategy == strategy]
        if not sizes or base is None:
            raise DataError(
                f"{artifact_folder}: holds no candidate of the strategy {strategy}; take it out of tokenizer.strategies, "
                "or make the tokenizer again with this recipe"
            )
        rule = settings.model_copy(update={"choice": strategy, "trial": None})
        choice = choose_candidate(sizes, base, rule)
        name = choice.best.candidate.name
        folder = artifact_folder / "candidates" / name
        chosen.append(Finalist(strategy=strategy, name=name, folder=folder, reason=choice.reason))
    return tuple(chosen)


def sealed_copy(finalist: Finalist, target: Path) -> Path:
    """Copy its tokenizer into an artifact of its own, for pretrain."""
    if artifact.read_manifest(str(target)) is None:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(finalist.folder, target)
        artifact.seal(target, kind="tokenizer", origin={"candidate": finalist.name})
    return target


def _measured(entry: Mapping[str, Any], folder: Path) -> MeasuredCandidate | None:
    """Read a candidate with its figures; None where its tokenizer is not stored."""
    if not (folder / "tokenizer.json").is_file():
        return None
    tokenizer: Tokenizer = read_tokenizer(folder)
    candidate = TokenizerCandidate(
        strategy=entry["strategy"],
        asked=entry["asked"],
        got=entry["got"],
        tokenizer=tokenizer,
        usage=usage_in(entry),
    )
    kinds = {
        kind: {name: TextFertility(**text_figures) for name, text_figures in entry[kind].items()}
        for kind in ("domains", "keep")
    }
    figures = {each.name: entry[each.name] for each in fields(Fertility) if each.name in entry}
    # `fertility.json` leaves these out, and the choice ignores them.
    fertility = Fertility(**figures | kinds | {"changed_documents": (), "tokens_per_cpu_s": 0.0})
    return MeasuredCandidate(candidate=candidate, fertility=fertility, cost=Cost(**entry["cost"]))
