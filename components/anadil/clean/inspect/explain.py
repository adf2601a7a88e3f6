"""Explain every step that clean takes with one record: values, limits and decisions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anadil.clean.extract import extract
from anadil.clean.filters.judge_record import (
    Settings,
    judge_record,
    opened,
    plain_text,
    prepare_record,
    read_page,
)
from anadil.clean.kernels.columns import COLUMN
from anadil.clean.read.input_kinds import check_suffixes
from anadil.clean.read.read_stats import ReadStats, is_fault_of_document
from anadil.clean.read.readers import RawRecord
from anadil.clean.shards.map_shard import read_range
from anadil.clean.shards.shards import InputRange, by_short_name, names
from anadil.clean.write.row_files import find_rows
from anadil.core.errors import DataError
from anadil.core.format import counted
from anadil.core.stages import STAGES
from anadil.runtime.job import files_key
from anadil.text.filter_rules import RULES
from anadil.text.language_id import identify_language
from anadil.text.profile_checks import profile_checks

WHOLE = (".txt", ".html", ".htm")
HEAD_CHARS = 300
BAD = "{source}: is bad and skipped: {why}"
Json = dict[str, Any]


@dataclass(slots=True)
class _OneBad(ReadStats):
    place: str = ""
    why: str = ""

    def refuse(self, place: str, why: str) -> None:
        if place == self.place:
            self.why = why


def find_record(uris: Sequence[str], source: str, settings: Settings) -> RawRecord:
    """Find the record that a row, a sample or a document of the corpus names as its source.

    Args:
        uris: The inputs, all of them: names of files follow from the folders that their paths share.
        source: File and place, such as `news.jsonl:17`; the file by its short name, its path or its URI. Without a place
            its first record.
    """
    is_pairs = bool(settings.language.sides)
    check_suffixes(uris, files_key(STAGES["clean"], settings.recipe), is_pairs=is_pairs)
    named = dict(zip(names(uris), uris, strict=True))
    short = by_short_name(source, named)
    # A name may be the beginning of another one.
    for name in sorted((name for name in named if short.startswith(name)), key=len, reverse=True):
        part = InputRange(uri=named[name], name=name, size=0, version="")
        stats = _OneBad(place=short)
        for raw in read_range(part, settings.recipe, stats):
            # A source may go on with what the record says of its own. A file without a place: its first record.
            if raw.source == short or raw.source.startswith(f"{short} ") or short == name:
                return raw
        if stats.why:
            raise DataError(BAD.format(source=source, why=stats.why))
    first = next(iter(named), "news.jsonl")
    example = first if first.lower().endswith(WHOLE) else f"{first}:1"
    raise DataError(
        f"{source}: no such record in the {counted(len(uris), 'input')}; give it as `source` stands in rejected/ and stats/, "
        f"such as {example}"
    )


def explain_record(raw: RawRecord, settings: Settings) -> Json:
    """Return the steps, in order, by name."""
    read = {"kind": "text", **_text(raw.text)}
    if raw.html is not None:
        read = {"kind": "web page", "bytes": len(raw.html), "declared_charset": raw.charset}
    steps: Json = {"source": raw.source, "url": raw.url, "read": read}
    try:
        judged = judge_record(raw, settings)
    except BaseException as error:
        if not is_fault_of_document(error):
            raise
        raise DataError(BAD.format(source=raw.source, why=f"{type(error).__name__}: {error}")) from error
    if settings.lists.urls:
        steps["url_lists"] = {"is_blocked": settings.lists.urls.is_blocked(raw.url)}
    raw, formats = opened(raw, settings)
    if formats:
        steps["formats"] = {**formats, **_text(raw.text)}
    text, prepared = plain_text(raw.text, settings).text, judged.extracted
    if raw.html is not None and judged.reason != "blocked":
        page, is_recoded, reason, excess = read_page(raw, settings)
        steps["page"] = {
            "characters": len(page), "was_utf_8": not is_recoded, "dropped": reason, **excess,
        }  # fmt: skip
        if reason is None:
            extracted = extract.extract_page(page, settings.language, settings.extraction)
            text = extracted.text
            steps["extract"] = {
                "mode": settings.extraction.mode, "by": extracted.extractor, **_text(text),
                "restored": extracted.restored, "lost": extracted.lost,
            }  # fmt: skip
    if raw.sides:
        steps["pair"] = {"text": prepared.document.text, "languages": dict(prepared.sides), **judged.sample}
    elif judged.statistics is not None:
        normalized = settings.language.normalize(text)
        steps["normalize"] = {"changed": "normalized" in prepared.marks, **_text(normalized)}
        identified = identify_language(normalized, settings.language)
        steps["identify"] = {
            "is_language": identified.is_language, "cld2": identified.code, "is_reliable": identified.is_reliable,
        }  # fmt: skip
        steps["rules"] = [*_profile_rows(normalized, settings), *_rule_rows(judged.statistics, settings)]
        if settings.lists.items:
            steps["decontaminate"] = {"items": settings.lists.items.matches(normalized)}
        if settings.personal_data:
            steps["personal_data"] = dict(prepared.personal_data)
    if judged.is_filtered:
        steps["filters"] = {"reason": judged.error or judged.reason, **judged.sample}
    steps["id"] = prepared.document.id
    steps["fails"] = list(judged.failed)
    best = f" or not of the best ({settings.recipe.clean.quality})" if settings.recipe.clean.quality else ""
    steps["verdict"] = judged.error or judged.reason or f"kept, unless it is a duplicate{best}"
    return steps


def step_texts(raw: RawRecord, settings: Settings) -> dict[str, str]:
    """Return the whole text after each step that changes it, by the step's name, in order.

    `read` is the page or text as it came. A record that is dropped before a step has no text of it.
    """
    prepared = prepare_record(raw, settings)
    texts = {"read": raw.text}
    raw, formats = opened(raw, settings)
    if raw.html is not None:
        page, _, _, _ = read_page(raw, settings)
        texts["read"] = page
    if not raw.sides and prepared.identified is not None:
        text = plain_text(raw.text, settings).text
        texts |= {"formats": raw.text} if formats else {}
        if raw.html is not None:
            text = extract.extract_page(texts["read"], settings.language, settings.extraction).text
        texts |= {
            "extract": text,
            "normalize": settings.language.normalize(text),
            "line_language": prepared.text,
        }
    if prepared.reason is None:
        texts["written"] = prepared.document.text
    return texts


def _profile_rows(text: str, settings: Settings) -> list[Json]:
    """List the checks that decide whether a text is in a learnt language, as rows of `_rule_rows`."""
    profile = settings.language.profile
    if profile is None:
        return []
    is_enforced = "language" not in settings.reported
    return [
        _row("language", check.name, check.value, check.limit, check.is_least, not check.passes, is_enforced)
        for check in profile_checks(text, profile)
        if not math.isnan(check.value)
    ]


def _rule_rows(statistics: Any, settings: Settings) -> list[Json]:
    """List every limit that is in force and could be measured, with the value."""
    table = []
    for rule, limit in zip(RULES, settings.judge.limits.tolist(), strict=True):
        value = float(statistics[COLUMN[rule.measure]])
        if math.isnan(limit) or math.isnan(value):  # none, or nothing that could be measured
            continue
        breaks = value < limit if rule.is_least else value > limit
        is_enforced = rule.name not in settings.reported
        table.append(_row(rule.name, rule.measure, value, limit, rule.is_least, breaks, is_enforced))
    return table


def _row(
    rule: str, statistic: str, value: float, limit: float, is_least: bool, breaks: bool, is_enforced: bool
) -> Json:
    return {
        "rule": rule, "statistic": statistic, "value": round(value, 4), "at": "least" if is_least else "most",
        "limit": limit, "verdict": ("drops" if is_enforced else "reported") if breaks else "passes",
    }  # fmt: skip


def in_corpus(corpus: Path, source: str) -> list[Json]:
    """Return the rows of a document in a corpus: reason, what it duplicates, and how many are alike."""
    keys = ("source", "id", "reason", "duplicate_of", "cluster_size")
    return [{key: row[key] for key in keys} for row in find_rows(corpus, source)]


def _text(text: str) -> Json:
    return {"characters": len(text), "begins": text[:HEAD_CHARS]}
