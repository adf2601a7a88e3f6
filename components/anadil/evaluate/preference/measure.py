"""Preference of judges, out of the files of `evaluate.votes`.

Votes are about texts, not about names: a vote counts as long as both candidates write the texts that the judge saw.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anadil.evaluate.measures import Asked, CheckValue, Evaluator, Tables
from anadil.evaluate.preference.votes import (
    AGAIN,
    KEY,
    Key,
    KeyPair,
    preference,
    read_votes,
    text_digest,
    written_text,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Votes(Evaluator):
    """Files of opened votes, and pairs that do not count."""

    files: tuple[Key, ...]
    counts: Counter[str] = field(default_factory=Counter)

    def earlier_scores(self) -> list[str]:
        """Return the scores whose texts were judged: evaluation takes their measurements again."""
        return [each.scores for each in self.files]

    def compare(self, tables: Tables) -> None:
        """Add to the first candidate of each comparison how often its texts are preferred."""
        written = {
            name: {(one["prompt"], text_digest(written_text(one))) for one in table.get("generations") or ()}
            for name, table in tables.items()
        }
        pairs: dict[tuple[str, str], list[KeyPair]] = {}
        for file in self.files:
            judged = [each for each in file.pairs if each.votes]
            first, second = (written.get(name, set()) for name in file.between)
            same = [
                each
                for each in judged
                if (each.prompt, each.texts[0]) in first and (each.prompt, each.texts[1]) in second
            ]
            pairs.setdefault(file.between, []).extend(same)
            self.counts["pairs"] += len(same)
            if changed := len(judged) - len(same):
                log.warning(
                    "%s: %d of %d judged pairs do not count: %s do not write these texts in this run. %s",
                    KEY, changed, len(judged), " and ".join(file.between), AGAIN,
                )  # fmt: skip
                self.counts["changed"] += changed
        for (name, other), listed in pairs.items():
            if listed:
                figures = tables[name].setdefault("preference", {})[other] = preference(listed)
                log.info("%s preferred to %s: %d of %d votes", name, other, figures["wins"], figures["votes"])

    def facts(self) -> dict[str, Any]:
        """Entry of `scores.json` over all candidates: pairs that count, and pairs whose texts are other ones now."""
        return {name: self.counts[name] for name in ("pairs", "changed")}


def prepare(asked: Asked) -> Votes | None:
    """Return the opened votes, or None without files."""
    files = read_votes(asked.side_files.get(KEY, ()))
    return Votes(files=files) if files else None


def check_value(table: Mapping[str, Any]) -> CheckValue | None:
    """Return the least preferred comparison of a candidate."""
    listed = [each for each in table.get("preference", {}).values() if each["share"] is not None]
    if not listed:
        return None
    worst = min(listed, key=lambda each: float(each["share"]))
    return CheckValue(value=worst["share"], interval=tuple(worst["interval"]), num=worst["pairs"])
