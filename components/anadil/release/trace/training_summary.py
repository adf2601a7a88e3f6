"""The public summary of a model's training content, by the template of the EU's AI Office.

It fills in what the chain proves. Everything else is marked for a person, and nothing is guessed.

Source: European Commission, "Template for the Public Summary of Training Content for general-purpose AI models required
by Article 53(1)(d) of Regulation (EU) 2024/1689", July 2025. Its headings are kept, so that the two can be laid side by side.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from anadil import __version__
from anadil.core.format import DASH, human_bytes, human_figure, human_percent, number
from anadil.core.table import Table
from anadil.page.format import ratio, words_of
from anadil.page.licence import UNKNOWN
from anadil.page.render import render_template
from anadil.page.values import base_name, field, list_of, table_of
from anadil.recipe.filter_rules import NO_RULES
from anadil.release.trace.chain import DIGITS, SAID, Trace, TrainedText
from anadil.release.trace.corpus_rows import HostSums
from anadil.report.data_card import NOT_STATED, personal_data, processing, stated_licence
from anadil.report.model_card import model_name
from anadil.report.read import recipe_language
from anadil.text.language_data import NO_LANGUAGE

FOLDER = Path(__file__).parent

SHARE, SME_SHARE, SME_MOST = 0.10, 0.05, 1_000
"""Share of the domains with most content that must be listed; fewer for small and medium enterprises."""
SIZES = ((1e9, "less than 1 billion tokens"), (1e13, "1 billion to 10 trillion tokens"))
LARGEST = "more than 10 trillion tokens"
TRAINED_KEYS = ("clean.inputs", "sources.", "finetune.")
"""Beginnings of the recipe keys whose files a model is trained on; others only say what is left out."""
MAX_ROWS = 200
"""Most rows of a table; `-o json` has all."""
DIGEST = f"SHA-256, first {DIGITS} digits"
CRAWLED = (".warc", ".warc.gz", ".warc.wet", ".warc.wet.gz", ".html", ".htm")
"""Kinds of files that hold web pages."""


def training_summary(traced: Trace, *, is_sme: bool = False) -> str:
    """The summary, as Markdown."""
    recipe = traced.manifest.recipe
    # Each source has rules of its own, and what the recipe says for all may hold for none.
    texts = traced.texts or (TrainedText(source="", recipe=recipe, stats=traced.stats),)
    language, licence = recipe_language(recipe), traced.base.licence
    pages = [file.name for file in traced.files if file.is_text and file.name.lower().endswith(CRAWLED)]  # fmt: skip
    hosts, num_hosts, share = listed_domains(traced, is_sme=is_sme)
    rows = [
        (each.host, f"{each.documents:,}", f"{each.words:,}", human_bytes(each.num_bytes)) for each in hosts
    ]
    view: dict[str, object] = {
        "name": f"{model_name(traced.base.model, language.code, licence, answers=traced.answers)} ({traced.digest[:16]})",
        "languages": ", ".join(
            dict.fromkeys(
                f"{each.name} ({each.code})" for each in (recipe_language(text.recipe) for text in texts)
            )
        ),
        "has_unidentified": any(map(is_unidentified, [recipe, *table_of(recipe.get("sources")).values()])),
        "base": base_name(traced.base.model),
        "licence": licence.name if licence.id != UNKNOWN else UNKNOWN,
        "size": text_size(traced),
        "extent": _extent(traced),
        "files": _files_table(traced, TRAINED_KEYS),
        "licences": _licences_table(traced),
        "pages": pages,
        "num_hosts": num_hosts,
        "share": human_percent(share),
        "domains": Table("Domains", ("domain", "documents", "words", "text"), rows),
        "rule": f"{SME_SHARE:.0%} or {SME_MOST:,}, whichever is fewer" if is_sme else f"{SHARE:.0%}",
        "has_chats": any(file.key == "finetune.inputs" for file in traced.files),
        "rules": _rules_table(traced),
        "personal": _joined({text.source: personal_data(text.recipe, text.stats) for text in texts}),
        "processing": _processing(texts),
        "url_lists": _given("clean.url_lists", texts),
        "ng_words": _given("clean.ng_words", texts),
        "answer": traced.answer(),
        "version": __version__,
    }
    return render_template(FOLDER / "training_summary.md.j2", view)


def _joined(statements: Mapping[str, list[str]]) -> list[str]:
    """Statements on all sources where they are the same, else one on each by its name."""
    first = next(iter(statements.values()))
    if all(each == first for each in statements.values()):
        return first
    return [f"{source}: {' '.join(each)}" for source, each in statements.items()]


def _processing(texts: Sequence[TrainedText]) -> list[tuple[str, str]]:
    tables = {text.source: dict(processing(text.recipe)) for text in texts}
    labels = dict.fromkeys(label for table in tables.values() for label in table)
    return [
        (label, "; ".join(_joined({source: [table.get(label, DASH)] for source, table in tables.items()})))
        for label in labels
    ]


def _given(key: str, texts: Sequence[TrainedText]) -> str:
    """A key and the sources that have it; the key alone if all have it, nothing if none has."""
    having = [text.source for text in texts if list_of(field(text.recipe, key))]
    return key if len(having) == len(texts) else f"{key} of {', '.join(having)}" if having else ""


def is_unidentified(source: object) -> bool:
    """Return True for a recipe or source whose documents are kept in whatever language they are."""
    return (
        field(source, "clean.rules") == NO_RULES
        or str(field(source, "language") or "").lower() == NO_LANGUAGE
    )


def listed_domains(traced: Trace, *, is_sme: bool = False) -> tuple[list[HostSums], int, float]:
    """The domains that have to be listed, those with most text; the number of all; the listed share of the text."""
    sums: dict[str, HostSums] = {}
    for host in (host for corpus in traced.corpora for host in corpus.hosts):
        one = sums.get(host.host, replace(host, documents=0, words=0, num_bytes=0))
        sums[host.host] = replace(
            one, documents=one.documents + host.documents, words=one.words + host.words, num_bytes=one.num_bytes + host.num_bytes
        )  # fmt: skip
    num_hosts = max(len(sums), *(corpus.num_hosts for corpus in traced.corpora), 0)
    most = -(-num_hosts * int((SME_SHARE if is_sme else SHARE) * 100) // 100)  # at least one of any
    ranked = sorted(sums.values(), key=lambda host: (-host.num_bytes, host.host))
    listed = ranked[: min(most, SME_MOST) if is_sme else most]
    share = ratio(sum(host.num_bytes for host in ranked), sum(host.num_bytes for host in listed))
    return listed, num_hosts, share or 0.0


def text_size(traced: Trace) -> str:
    """The template's word for the size of the training text in tokens; empty where the tokens are not known."""
    tokens = number(traced.training.get("tokens_per_epoch"))
    if tokens is None:
        return ""
    word = next((word for most, word in SIZES if tokens < most), LARGEST)
    return f"{word} ({human_figure(tokens)} tokens)"


def _extent(traced: Trace) -> str:
    words, size = (number(traced.stats.get(key)) for key in ("words_out", "bytes_out"))
    train = number(field(traced.stats, "records.train"))
    if words is None and train is None:
        return ""
    return f"{human_figure(train)} documents for training; {human_figure(words)} words, {human_bytes(size)}, with those held out"


def _files_table(traced: Trace, keys: tuple[str, ...]) -> Table:
    listed = [pair for pair in traced.files_with_sums() if pair[0].key.startswith(keys)]
    listed.sort(key=lambda pair: -pair[1].words if pair[1] else 0)
    rows = []
    for file, sums in listed[:MAX_ROWS]:
        counts = (DASH, DASH, DASH)
        if sums:
            counts = (f"{sums.documents:,}", f"{sums.words:,}", traced.licences_of(sums))
        elif file.key == "finetune.inputs":
            counts = (DASH, DASH, stated_licence(traced.manifest.recipe, "chats") or NOT_STATED)
        rows.append((file.name, SAID[file.state], file.key, *counts, file.digest[:DIGITS]))
    rest = (
        f"The first {MAX_ROWS:,} of {len(listed):,}; -o json has them all." if len(listed) > MAX_ROWS else ""
    )
    columns = ("file", "", "named by", "documents", "words", "licence", DIGEST)
    return Table("Source files", columns, rows, words=(1, 2, 5, 6), note=rest)


def _licences_table(traced: Trace) -> Table:
    words: Counter[str] = Counter()
    for corpus in traced.corpora:
        words.update(corpus.words_by_licence)
    stated = stated_licence(traced.manifest.recipe, "text")
    unnamed = f"{stated} (stated by the recipe)" if stated else NOT_STATED
    rows = [
        (name or unnamed, f"{count:,}", human_percent(ratio(words.total(), count)))
        for name, count in words.most_common(MAX_ROWS)
    ]
    note = "As the records of the sources name them; nobody has checked it."
    return Table("Licences", ("licence", "words", "share"), rows, note=note)


def _rules_table(traced: Trace) -> Table:
    dropped: Counter[str] = Counter()
    files = [file for corpus in traced.corpora for file in corpus.files]
    for file in files:
        dropped.update(file.dropped)
    num_kept = sum(file.documents for file in files)
    counts = [("kept", num_kept), *((words_of(rule), count) for rule, count in dropped.most_common())]
    total = dropped.total() + num_kept
    rows = [(name, f"{count:,}", human_percent(ratio(total, count))) for name, count in counts]
    return Table("Documents by rule", ("rule", "documents", "share"), rows)
