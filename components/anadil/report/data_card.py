"""The data card of a corpus: where its text comes from, under which licences, what was dropped and what was replaced.

Markdown with the front matter that the Hugging Face hub reads of a dataset.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anadil import __version__
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.storage import BUILT_IN
from anadil.core.format import DASH, human_bytes, human_figure, human_percent, integer_if_whole, number
from anadil.report.elements import TextTable
from anadil.report.format import words_of
from anadil.report.licence import UNKNOWN, hub_licence
from anadil.report.read import Json, field, last_part, list_of, named_tables, table_of
from anadil.report.render import front_matter, render_template
from anadil.text.language import load_language
from anadil.text.language_data import UnknownLanguageError

MAX_ROWS = 50
"""Most rows of a table; the rest is summed in one row."""
NOT_STATED = "not stated"
SIZES = (
    (1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"),
    (10**7, "1M<n<10M"), (10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B"),
)  # fmt: skip
"""Documents -> the hub's word. Source: huggingface/hub-docs, datasetcard.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedLanguage:
    """The language of a corpus or model."""

    code: str
    name: str
    word_note: str = ""
    """Meaning of "word" in scripts without spaces."""


def card_of_corpus(manifest: Manifest, stats: Json, recipe: Json | None = None) -> str:
    """The card of a corpus whose files are at hand."""
    recipe = recipe or manifest.recipe
    language = recipe_language(recipe)
    licences = licences_of(recipe, stats)
    view: dict[str, Any] = {
        "front": front_matter(_fields(manifest, stats, language, licences)),
        "language": language,
        "key": manifest.key,
        "digest": manifest.digest,
        "version": manifest.program.get("version") or __version__,
        "facts": corpus_facts(manifest, stats),
        "sources": sources_table(stats),
        "hosts": hosts_table(stats),
        "licences": licences_by_words(recipe, stats),
        "dropped": dropped_table(stats),
        "personal": personal_data(recipe, stats),
        "processing": processing(recipe),
        "files": inputs_table(manifest),
        "earlier": manifest.origin.get("input clean.since", ""),
    }
    return render_template("data_card.md.j2", view)


def recipe_language(recipe: Json) -> NamedLanguage:
    """The language of a recipe as a manifest holds it; of a pack that is gone, what its file is called."""
    named = str(recipe.get("language") or "")
    try:
        language = load_language(named)
    except UnknownLanguageError:
        name = last_part(named).removesuffix(".yaml") or DASH
        return NamedLanguage(code=name, name=name)
    return NamedLanguage(code=language.code, name=language.name, word_note=language.word_note)


def hub_language_codes(code: str) -> list[str]:
    """The code for front matter, where it is one of two or three letters as the hub wants it."""
    plain = code.split("_", maxsplit=1)[0]
    return [plain] if plain.isascii() and plain.isalpha() and len(plain) in (2, 3) else []


def licences_of(recipe: Json, stats: Json) -> list[str]:
    """Licences that records name, then the one that the recipe states."""
    named = [name for name in table_of(stats.get("by_licence")) if name]
    if stated := stated_licence(recipe, "text"):
        named.append(stated)
    return named


def stated_licence(recipe: Json, of: str) -> str:
    """Licence of `base`, `text` or `chats`: from the recipe, or of data that comes with the program."""
    if stated := table_of(field(recipe, "report.licences")).get(of):
        return str(stated)
    places = list_of(field(recipe, {"text": "clean.inputs", "chats": "finetune.inputs"}.get(of, of)))
    is_own = bool(places) and all(str(place).startswith(BUILT_IN) for place in places)
    return "Apache-2.0" if is_own else ""


def corpus_facts(manifest: Manifest, stats: Json) -> list[tuple[str, str]]:
    """Names and values of what the corpus is in numbers."""
    records = table_of(stats.get("records")) or {**manifest.records}
    num_read, num_kept = number(stats.get("in")), number(stats.get("kept"))
    share = f" ({human_percent(num_kept / num_read)})" if num_read and num_kept is not None else ""
    sibling = f"text in {stats.get('sibling')} (CLD2's code): the pack was learnt without any of it"
    return [
        *([("kept as well", sibling)] if stats.get("sibling") else []),
        ("documents read", human_figure(num_read)),
        ("documents kept", f"{human_figure(num_kept)}{share}"),
        ("for training", human_figure(number(records.get("train")))),
        ("held out for scores", human_figure(number(records.get("heldout")))),
        ("words", human_figure(number(stats.get("words_out")))),
        ("text", human_bytes(number(stats.get("bytes_out")))),
    ]


def sources_table(stats: Json) -> TextTable:
    """Input files, by words."""
    rows = _ranked(stats.get("by_source"), stats, lambda name, entry: (name, _figure(entry, "in")))
    note = "Of the corpus that this one adds to, see its own card." if stats.get("records") else ""
    return TextTable(
        caption="Sources",
        columns=("file", "documents read", "documents kept", "words", "share of words"),
        rows=rows,
        note="" if _all_counted(stats) else note,
    )


def hosts_table(stats: Json) -> TextTable:
    """Hosts of the documents that have an address, by words."""
    rows = _ranked(stats.get("hosts"), stats, lambda name, entry: (name, _figure(entry, "in")))
    columns = ("host", "documents read", "documents kept", "words", "share of words")
    note = "The hosts with most documents; the others are not listed." if len(rows) >= MAX_ROWS else ""
    return TextTable(caption="Domains", columns=columns, rows=rows, note=note)


def licences_by_words(recipe: Json, stats: Json) -> TextTable:
    """Licences by words: what records name, and what the recipe states of those that name none."""
    stated = stated_licence(recipe, "text")
    unnamed = f"{stated} (stated by the recipe for all of the text)" if stated else NOT_STATED
    by_licence = {name or unnamed: entry for name, entry in table_of(stats.get("by_licence")).items()}
    if not by_licence:
        by_licence = {unnamed: {"kept": stats.get("kept"), "words": stats.get("words_out")}}
    rows = _ranked(by_licence, stats, lambda name, _: (name,))
    note = "As the records state it (license); not checked."
    return TextTable(
        caption="Licences", columns=("licence", "documents", "words", "share of words"), rows=rows, note=note
    )


def dropped_table(stats: Json) -> TextTable:
    """Rules, by the documents that each dropped as the first reason."""
    came = number(stats.get("in"))
    counts = {
        rule: documents
        for rule, count in table_of(stats.get("dropped")).items()
        if (documents := number(count)) is not None
    }
    rules = dict(named_tables(stats.get("rules")))
    rows = [
        (words_of(rule), human_figure(int(count)), human_percent(count / came if came else None), "drops")
        for rule, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    rows += [
        (words_of(rule), human_figure(number(table.get("marginal"))), DASH, "only counted")
        for rule, table in rules.items()
        if table.get("mode") == "report"
    ]
    return TextTable(caption="Dropped", columns=("rule", "documents", "of all", ""), rows=tuple(rows))


def personal_data(recipe: Json, stats: Json) -> list[str]:
    """Sentences about the treatment of personal data."""
    if field(recipe, "clean.pii") is not True:
        return [
            "Personal data was not searched for (clean.pii is off): the text holds what its sources hold."
        ]
    counts = {
        kind: int(replaced_count)
        for kind, count in table_of(stats.get("personal_data")).items()
        if (replaced_count := number(count))
    }
    listed = ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()))
    replaced = (
        "Placeholders replace personal data (clean.pii): e-mail and IP addresses, and numbers that match the language's "
        "patterns. Each pattern needs a check sum, a prefix or a word that names it."
    )
    telephones = (
        ["Only telephone numbers with a country code, or after a word such as tel., were searched for."]
        if stats.get("national_telephones") is False
        else []
    )
    return [
        replaced,
        *telephones,
        f"Placeholders written: {listed or 'none'}.",
        "Names and statements about people are not searched for.",
    ]


def processing(recipe: Json) -> list[tuple[str, str]]:
    """The settings that decide what is in the text."""
    clean = table_of(recipe.get("clean"))
    lists = (
        ("addresses that are skipped", "url_lists"), ("words that drop a document", "ng_words"),
        ("quality model", "quality_model"),
    )  # fmt: skip
    named = {label: _last_parts(clean.get(key)) for label, key in lists}
    bands, rows, shingle = (clean.get(f"minhash_{key}") for key in ("bands", "rows", "shingle"))
    return [
        ("extraction of pages", str(clean.get("extract") or DASH)),
        ("lines in another language are removed", _yes(clean.get("line_language"))),
        ("near duplicates", f"MinHash, {bands} bands of {rows} rows, shingles of {shingle}"),
        ("documents that hold evaluation text are dropped", _yes(clean.get("decontaminate"))),
        *named.items(),
    ]


def inputs_table(manifest: Manifest) -> TextTable:
    """The inputs with their digests, by which anybody can tell whether a file is the one that was read."""
    files = {name.removeprefix("file "): digest for name, digest in manifest.origin.items() if name.startswith("file ")}  # fmt: skip
    rows = [(last_part(uri), digest) for uri, digest in files.items()]
    more = len(rows) - MAX_ROWS
    note = (
        f"And {more:,} more: anadil trace lists them all."
        if more > 0
        else "SHA-256; for objects in S3 ETag and size."
    )
    return TextTable(
        caption="Files", columns=("file", "digest"), rows=tuple(rows[:MAX_ROWS]), words=(1,), note=note
    )


def hub_licences(licences: list[str]) -> list[str]:
    """Licences for front matter: the hub's names, `other` if it has none, or `unknown`."""
    return list(dict.fromkeys(hub_licence(name) or "other" for name in licences)) or [UNKNOWN]


def _fields(
    manifest: Manifest, stats: Json, language: NamedLanguage, licences: list[str]
) -> Mapping[str, object]:
    num_kept = number(stats.get("kept"))
    size = next((word for most, word in SIZES if num_kept is not None and num_kept < most), "")
    named = hub_licences(licences)
    return {
        "language": hub_language_codes(language.code),
        "license": named if len(named) > 1 else named[0],
        "license_name": "see the table of licences" if "other" in named else "",
        "pretty_name": f"{language.name} corpus {manifest.key}",
        "size_categories": [size] if size else [],
        "task_categories": ["text-generation"],
        "tags": ["anadil", "continued-pretraining"],
    }


def _ranked(tables: object, stats: Json, head: Any) -> tuple[tuple[str, ...], ...]:
    """Rows of named counts, those with most words first, the last ones as a sum."""
    entries = [(name, table_of(entry)) for name, entry in table_of(tables).items()]
    entries.sort(key=lambda item: (-_count(item[1], "words"), -_count(item[1], "kept"), item[0]))
    own, rest = (
        (entries, []) if len(entries) <= MAX_ROWS else (entries[: MAX_ROWS - 1], entries[MAX_ROWS - 1 :])
    )
    if rest:
        keys = ("in", "kept", "words")
        own.append((f"{len(rest):,} others", {key: sum(_count(entry, key) for _, entry in rest) for key in keys}))  # fmt: skip
    total = number(stats.get("words_out"))
    return tuple(
        (
            *head(name, entry), _figure(entry, "kept"), _figure(entry, "words"),
            human_percent(_count(entry, "words") / total if total and "words" in entry else None),
        )
        for name, entry in own
    )  # fmt: skip


def _all_counted(stats: Json) -> bool:
    """True if the counts cover all documents; those of an earlier corpus are counted there."""
    records = [number(count) for count in table_of(stats.get("records")).values()]
    return sum(filter(None, records)) == number(stats.get("kept"))


def _count(entry: Json, key: str) -> float:
    return float(number(entry.get(key)) or 0)


def _figure(entry: Json, key: str) -> str:
    count = number(entry.get(key))
    return human_figure(None if count is None else integer_if_whole(count))


def _last_parts(value: object) -> str:
    places = [value] if isinstance(value, str) else list_of(value)
    return ", ".join(last_part(str(place)) for place in places) or "none"


def _yes(value: object) -> str:
    return "yes" if value is True else "no"
