"""The data card of a corpus: sources, licences, dropped documents and replaced personal data.

Markdown with front matter for a dataset on the Hugging Face hub.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from anadil import __version__
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.storage import BUILT_IN
from anadil.core.format import DASH, human_bytes, human_count, human_figure, human_percent, number
from anadil.core.stages import STAGES
from anadil.core.table import Table
from anadil.page.format import ratio, words_of
from anadil.page.licence import UNKNOWN, hub_licence, licence_of
from anadil.page.render import front_matter, render_template
from anadil.page.values import Json, field, last_part, list_of, named_tables, table_of
from anadil.recipe.filter_rules import NO_RULES
from anadil.report.read import CorpusFacts, NamedLanguage, recipe_language
from anadil.text.parallel import languages_of

FOLDER = Path(__file__).parent
MAX_ROWS = 50
"""Most rows of a table; the rest is summed in one row."""
SOURCE_COLUMNS = ("documents read", "documents kept", "words", "share of words")
SIZES = (
    (1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"),
    (10**7, "1M<n<10M"), (10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B"),
)  # fmt: skip
"""Documents -> the hub's word. Source: huggingface/hub-docs, datasetcard.md."""
NOT_STATED = "not stated"
AS_IS = "The corpus was clean already (clean.as_is): texts are as they came. Empty documents and copies were dropped."
NO_RULE_JUDGED = "No rule judged the documents (clean.rules: none). Empty ones and duplicates were dropped."
PAIRS_JUDGED = (
    "Pairs were judged by their two sides: missing, equal, of very different length, swapped, in another language. {} sides were "
    "too short to tell their language, and stayed."
)


def card_of_corpus(manifest: Manifest, stats: Json, recipe: Json | None = None) -> str:
    """The card of a corpus, as Markdown with front matter."""
    return render_template(FOLDER / "data_card.md.j2", _view(manifest, stats, recipe or manifest.recipe))


def _view(manifest: Manifest, stats: Json, recipe: Json) -> dict[str, object]:
    language = recipe_language(recipe)
    hosts = _ranked(stats.get("hosts"), stats, ("in",))
    note = "The hosts with most documents; the others are not listed." if len(hosts) >= MAX_ROWS else ""
    origin = manifest.origin.items()
    files = [(last_part(name.removeprefix("file ")), digest) for name, digest in origin if name.startswith("file ")]  # fmt: skip
    of_files = (
        "SHA-256; for objects in S3 ETag and size, for files of the hub the id of the content and its size."
    )
    if (more := len(files) - MAX_ROWS) > 0:
        of_files = f"And {more:,} more: anadil trace lists them all."
    return {
        "source": "",
        "front": front_matter(_fields(manifest, stats, language, recipe)),
        "language": language,
        "key": manifest.key,
        "digest": manifest.digest,
        "version": manifest.program.get("version") or __version__,
        "facts": corpus_facts(manifest, stats),
        "sources": sources_table(stats),
        "base_text": base_text_note(_base_text(stats)),
        "hosts": Table("Domains", ("host", *SOURCE_COLUMNS), hosts, note=note),
        "licences": licences_by_words(recipe, stats),
        "data_sets": data_sets_table(stats),
        "dropped": _dropped_table(stats),
        "rules_note": rules_note(stats),
        "personal": personal_data(recipe, stats),
        "processing": processing(recipe),
        "files": Table("Files", ("file", "digest"), files[:MAX_ROWS], words=(1,), note=of_files),
        "earlier": manifest.origin.get("input clean.since", ""),
    }


def card_of_corpora(corpora: Sequence[CorpusFacts], training: Json) -> str:
    """The card of the text of a model: of its corpus, or of those of all sources, one after another."""
    if len(corpora) == 1 and not corpora[0].source:
        return card_of_corpus(corpora[0].manifest, corpora[0].stats, corpora[0].recipe)
    views = [(each, _view(each.manifest, each.stats, each.recipe)) for each in corpora]
    fields = [
        _fields(each.manifest, each.stats, recipe_language(each.recipe), each.recipe) for each in corpora
    ]
    num_kept = sum(number(each.stats.get("kept")) or 0 for each in corpora)
    front = {
        "language": list(dict.fromkeys(code for each in fields for code in list_of(each["language"]))),
        "license": list(
            dict.fromkeys(name for each in fields for name in list_of(each["license"]) or [each["license"]])
        ),
        "license_name": "see the tables of licences",
        "pretty_name": "Mixture of " + ", ".join(each.source for each in corpora),
        "size_categories": _size_categories(num_kept),
        "task_categories": ["text-generation"],
        "tags": ["anadil", "continued-pretraining"],
    }
    head = {"front": front_matter(front), "corpora": corpora_table(corpora, training)}
    cards = [
        render_template(FOLDER / "data_card.md.j2", view | {"front": "", "source": each.source})
        for each, view in views
    ]
    return "\n".join([render_template(FOLDER / "mixture_card.md.j2", head), *cards])


def hub_language_codes(code: str) -> list[str]:
    """The code for front matter, where it is one of two or three letters as the hub wants it."""
    plain = code.split("_", maxsplit=1)[0]
    return [plain] if plain.isascii() and plain.isalpha() and len(plain) in (2, 3) else []


def corpus_facts(manifest: Manifest, stats: Json) -> list[tuple[str, str]]:
    """Names and values of the corpus in numbers."""
    records = table_of(stats.get("records")) or {**manifest.records}
    share = ratio(stats.get("in"), stats.get("kept"))
    template = " / ".join(str(field(stats, "pairs.template")).splitlines())
    sibling = f"text in {stats.get('sibling')} (CLD2's code): the pack was learnt without any of it"
    return [
        *([("kept as well", sibling)] if stats.get("sibling") else []),
        *([("each pair", f"two documents, one a direction, as {template}")] if "pairs" in stats else []),
        ("documents read", _figure(stats, "in")),
        (
            "documents kept",
            f"{_figure(stats, 'kept')}{'' if share is None else f' ({human_percent(share)})'}",
        ),
        ("for training", _figure(records, "train")),
        ("held out for scores", _figure(records, "heldout")),
        ("words", human_figure(number(stats.get("words_out")))),
        ("text", human_bytes(number(stats.get("bytes_out")))),
    ]


def _base_text(stats: Json) -> Json:
    """Record of the base that wrote the text; empty where people did."""
    return next((table_of(stats[kind]) for kind in STAGES["clean"].words if kind in stats), {})


def base_text_note(about: Json) -> str:
    """Return a sentence of who wrote the text and how, where the base did; else nothing."""
    if not about:
        return ""
    revision = f", revision {about['revision']}" if about.get("revision") else ""
    sampling = ", ".join(
        f"{part}s at temperature {each.get('temperature')} and top-p {each.get('top_p')}"
        for part, each in named_tables(about.get("sampling"))
    )
    dropped = sum(number(each) or 0 for each in table_of(about.get("dropped")).values())
    return (
        f"No person wrote this text. The base model {about.get('base')}{revision} did, as replay: "
        f"{_figure(about, 'written')} documents of {_figure(about, 'tokens')} tokens, with seed {about.get('seed')}: "
        f"{sampling}. {human_figure(int(dropped))} of them were dropped at once "
        f"(empty, loops, chats without an end), and {_figure(about, 'chats')} of the others are chats in its own template."
    )


def sources_table(stats: Json) -> Table:
    """Input files, by words."""
    records = [number(count) for count in table_of(stats.get("records")).values()]
    # The documents of an earlier corpus are counted in its own card.
    all_counted = sum(filter(None, records)) / directions_of(stats) == number(stats.get("kept"))
    note = "Of the corpus that this one adds to, see its own card." if records and not all_counted else ""
    rows = _ranked(stats.get("by_source"), stats, ("in",))
    return Table("Sources", ("file", *SOURCE_COLUMNS), rows, note=note)


def licences_by_words(recipe: Json, stats: Json) -> Table:
    """Licences by words: those of the records, and the recipe's for records that name none."""
    stated = stated_licence(recipe, "text")
    unnamed = f"{stated} (stated by the recipe for all of the text)" if stated else NOT_STATED
    if base := _base_text(stats).get("base"):
        unnamed = f"{stated or NOT_STATED} (that of the base, {base}, which wrote the text)"
    by_licence = {name or unnamed: entry for name, entry in table_of(stats.get("by_licence")).items()}
    by_licence = by_licence or {unnamed: {"kept": stats.get("kept"), "words": stats.get("words_out")}}
    columns, note = (
        ("licence", "documents", "words", "share of words"),
        "As the records state it (license); not checked.",
    )
    return Table("Licences", columns, _ranked(by_licence, stats, ()), note=note)


def data_sets_table(stats: Json) -> Table:
    """Data sets of the hub among the inputs, with the licence that the card of each states."""
    rows = [
        (str(each.get("name")), str(each.get("commit")), str(each.get("licence") or NOT_STATED))
        for each in map(table_of, list_of(stats.get("data_sets")))
    ]
    note = "As its page on the Hugging Face hub states it; not checked." if rows else ""
    return Table("Data sets", ("data set", "commit", "licence"), rows, words=(1, 2), note=note)


def _dropped_table(stats: Json) -> Table:
    counts = {
        rule: n for rule, count in table_of(stats.get("dropped")).items() if (n := number(count)) is not None
    }
    rows = [
        (words_of(rule), human_figure(int(n)), human_percent(ratio(stats.get("in"), n)), "drops")
        for rule, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    rows += [
        (words_of(rule), human_figure(number(table.get("marginal"))), DASH, "only counted")
        for rule, table in named_tables(stats.get("rules"))
        if table.get("mode") == "report"
    ]
    return Table("Dropped", ("rule", "documents", "of all", ""), rows)


def personal_data(recipe: Json, stats: Json) -> list[str]:
    """Sentences about the treatment of personal data."""
    if field(recipe, "clean.pii") is not True:
        return [
            "Personal data was not searched for (clean.pii is off): the text holds what its sources hold."
        ]
    counts = {kind: n for kind, count in table_of(stats.get("personal_data")).items() if (n := number(count))}
    listed = ", ".join(f"{kind} {int(count):,}" for kind, count in sorted(counts.items()))
    replaced = (
        "Placeholders replace personal data (clean.pii): e-mail and IP addresses, and numbers that match the language's "
        "patterns. Each pattern needs a check sum, a prefix or a word that names it."
    )
    telephones = (
        "Only telephone numbers with a country code, or after a word such as tel., were searched for."
    )
    return [
        replaced,
        *([telephones] if stats.get("national_telephones") is False else []),
        f"Placeholders written: {listed or 'none'}.",
        "Names and statements about people are not searched for.",
    ]


def processing(recipe: Json) -> list[tuple[str, str]]:
    """The settings that decide what is in the text."""
    clean = table_of(recipe.get("clean"))
    bands, rows, shingle = (clean.get(f"minhash_{key}") for key in ("bands", "rows", "shingle"))

    near = f"MinHash, {bands} bands of {rows} rows, shingles of {shingle}"

    def switch(key: str) -> str:
        return "yes" if clean.get(key) is True else "no"

    def files(key: str) -> str:
        value = clean.get(key)
        places = [value] if isinstance(value, str) else list_of(value)
        return ", ".join(last_part(str(place)) for place in places) or "none"

    return [
        ("extraction of pages", str(clean.get("extract") or DASH)),
        *([("texts stay as they came", "yes")] if clean.get("as_is") is True else []),
        *([("rules that judge documents", "none")] if clean.get("rules") == NO_RULES else []),
        ("lines in another language are removed", switch("line_language")),
        ("near duplicates", "stay" if clean.get("as_is") is True else near),
        ("documents that hold evaluation text are dropped", switch("decontaminate")),
        ("addresses that are skipped", files("url_lists")),
        ("words that drop a document", files("ng_words")),
        ("quality model", files("quality_model")),
        ("filters in Python", files("filters")),
    ]


def _fields(manifest: Manifest, stats: Json, language: NamedLanguage, recipe: Json) -> Mapping[str, object]:
    # The records' licences, the recipe's, then those of data sets, in the hub's words.
    on_hub = [
        name
        for each in map(table_of, list_of(stats.get("data_sets")))
        for name in str(each.get("licence") or "").split(", ")
    ]
    licences = filter(None, [*table_of(stats.get("by_licence")), stated_licence(recipe, "text"), *on_hub])
    named = list(dict.fromkeys(hub_licence(name) or "other" for name in licences)) or [UNKNOWN]
    return {
        "language": [
            code
            for each in languages_of(str(recipe.get("language")))
            for code in hub_language_codes(recipe_language({"language": each}).code)
        ],
        "license": named if len(named) > 1 else named[0],
        "license_name": "see the table of licences" if "other" in named else "",
        "pretty_name": f"{language.name} corpus {manifest.key}",
        "size_categories": _size_categories(number(stats.get("kept"))),
        "task_categories": ["text-generation"],
        "tags": ["anadil", "continued-pretraining"],
    }


def _size_categories(num_kept: float | None) -> list[str]:
    return [word for most, word in SIZES if num_kept is not None and num_kept < most][:1]


def _ranked(tables: object, stats: Json, more: Sequence[str]) -> list[tuple[str, ...]]:
    """Rows of named counts, those with most words first, the last ones as a sum; `more` are columns after the name."""
    entries = [(name, table_of(entry)) for name, entry in table_of(tables).items()]
    entries.sort(key=lambda item: (-_count(item[1], "words"), -_count(item[1], "kept"), item[0]))
    if len(entries) > MAX_ROWS:
        rest = [entry for _, entry in entries[MAX_ROWS - 1 :]]
        sums: Json = {key: sum(_count(entry, key) for entry in rest) for key in ("in", "kept", "words")}
        entries = [*entries[: MAX_ROWS - 1], (f"{len(rest):,} others", sums)]
    total = number(stats.get("words_out"))
    return [
        (
            name,
            *(_figure(entry, key) for key in (*more, "kept", "words")),
            human_percent(_count(entry, "words") / total if total and "words" in entry else None),
        )
        for name, entry in entries
    ]


def _count(entry: Json, key: str) -> float:
    return float(number(entry.get(key)) or 0)


def _figure(entry: Json, key: str) -> str:
    return human_count(number(entry.get(key)))


def directions_of(stats: Json) -> int:
    """Documents that each record of a corpus became: two of parallel text."""
    return int(number(field(stats, "pairs.directions")) or 1)


def stated_licence(recipe: Json, of: str) -> str:
    """Licence of `base`, `text` or `chats`: from the recipe, or of data that comes with the program.

    That of the text of a source has the source's name, else it is that of all text. What the base wrote has the base's.
    """
    licences = table_of(field(recipe, "report.licences"))
    sources = table_of(recipe.get("sources")) if of == "text" else {}
    of = "base" if any(table_of(each).get("written_by") for each in sources.values()) else of
    names = [*(sources if len(sources) == 1 else []), of]
    if stated := next((licences[name] for name in names if licences.get(name)), ""):
        return str(stated)
    if of == "base":
        return licence_of(str(field(recipe, "base.model"))).name
    places = list_of(field(recipe, {"text": "clean.inputs", "chats": "finetune.inputs"}.get(of, of)))
    built_in = bool(places) and all(str(place).startswith(BUILT_IN) for place in places)
    return "Apache-2.0" if built_in else ""


def rules_note(stats: Json) -> str:
    """Return a sentence where a corpus was made without rules, else nothing."""
    if pairs := table_of(stats.get("pairs")):
        unjudged = sum(
            int(number(table_of(side).get("unjudged")) or 0) for side in table_of(pairs.get("sides")).values()
        )
        return PAIRS_JUDGED.format(human_figure(unjudged))
    if stats.get("as_is"):
        return AS_IS
    return NO_RULE_JUDGED if stats.get("limits") == NO_RULES else ""


def corpora_table(corpora: Sequence[CorpusFacts], training: Json) -> Table:
    """A row for each source, with its share of the tokens that were trained on; none without sources."""
    named = [each for each in corpora if each.source]
    tokens = {each.source: number(field(training, f"sources.{each.source}.tokens")) for each in named}
    total = sum(count or 0 for count in tokens.values())
    rows = [
        (
            each.source, each.language, *(human_count(number(each.stats.get(key))) for key in ("in", "kept", "words_out")),
            human_bytes(number(each.stats.get("bytes_out"))), human_percent(ratio(total, tokens[each.source])),
            stated_licence(each.recipe, "text") or _licences(each.stats),
        )
        for each in named
    ]  # fmt: skip
    columns = (
        "source", "language", "documents read", "documents kept", "words", "text", "share of training", "licence",
    )  # fmt: skip
    note = "Share of training: of all tokens that the model was trained on." if total else ""
    return Table("Sources of the mixture", columns, rows, words=(1, 7), note=note)


def _licences(stats: Json) -> str:
    names = [name or NOT_STATED for name in table_of(stats.get("by_licence"))]
    return ", ".join([*names[:3], *(["others"] if len(names) > 3 else [])]) or NOT_STATED
