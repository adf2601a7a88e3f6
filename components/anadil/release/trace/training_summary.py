"""The public summary of a model's training content, by the template of the EU's AI Office.

What the chain tells is filled in; everything else is marked for a person to fill in, and nothing is guessed.

Source: European Commission, "Template for the Public Summary of Training Content for general-purpose AI models required
by Article 53(1)(d) of Regulation (EU) 2024/1689", July 2025. Its headings are kept, so that the two can be laid side by side.
"""

from dataclasses import dataclass
from itertools import islice
from typing import Any

from anadil import __version__
from anadil.core.format import human_bytes, human_figure, human_percent, number
from anadil.release.trace.lineage import Trace
from anadil.release.trace.page import answer, files_table, licences_table, rules_table
from anadil.release.trace.rows import HostSums
from anadil.report.data_card import personal_data, processing, recipe_language
from anadil.report.elements import TextTable
from anadil.report.licence import UNKNOWN
from anadil.report.model_card import model_name
from anadil.report.read import base_name, field, list_of
from anadil.report.render import render_template

SHARE, SME_SHARE, SME_MOST = 0.10, 0.05, 1_000
"""Of the domains, those with most content, which have to be listed; small and medium enterprises list fewer."""
SIZES = ((1e9, "less than 1 billion tokens"), (1e13, "1 billion to 10 trillion tokens"))
LARGEST = "more than 10 trillion tokens"
TRAINED_KEYS = ("clean.inputs", "finetune.")
"""Beginnings of the recipe keys whose files a model is trained on; others only say what is left out."""
CRAWLED = (".warc", ".warc.gz", ".warc.wet", ".warc.wet.gz", ".html", ".htm")
"""Kinds of files that hold web pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The domains that have to be listed."""

    hosts: tuple[HostSums, ...]
    num_hosts: int
    """All of them."""
    share: float
    """Of the text of documents with an address, that is of the listed ones."""


def training_summary(found: Trace, *, is_sme: bool = False) -> str:
    """The summary, as Markdown.

    Args:
        found: The trace of the model.
        is_sme: The provider is a small or medium enterprise.
    """
    recipe = found.manifest.recipe
    language, licence = recipe_language(recipe), found.base.licence
    pages = [file.name for file in found.files if file.key == "clean.inputs" and file.name.lower().endswith(CRAWLED)]  # fmt: skip
    listed = listed_domains(found, is_sme=is_sme)
    view: dict[str, Any] = {
        "name": f"{model_name(found.base.model, language.code, licence, found.kind)} ({found.digest[:16]})",
        "language": language,
        "base": base_name(found.base.model),
        "licence": licence.name if licence.id != UNKNOWN else UNKNOWN,
        "size": text_size(found),
        "extent": _extent(found),
        "files": files_table(found, TRAINED_KEYS),
        "licences": licences_table(found),
        "pages": pages,
        "listed": listed,
        "share": human_percent(listed.share),
        "domains": _domains_table(listed),
        "rule": f"{SME_SHARE:.0%} or {SME_MOST:,}, whichever is fewer" if is_sme else f"{SHARE:.0%}",
        "has_chats": any(file.key == "finetune.inputs" for file in found.files),
        "rules": rules_table(found),
        "personal": personal_data(recipe, found.stats),
        "processing": processing(recipe),
        "url_lists": bool(list_of(field(recipe, "clean.url_lists"))),
        "ng_words": bool(list_of(field(recipe, "clean.ng_words"))),
        "answer": answer(found),
        "version": __version__,
    }
    return render_template("training_summary.md.j2", view)


def listed_domains(found: Trace, *, is_sme: bool = False) -> Listed:
    """The share of all domains that has to be listed, those with most text."""
    sums: dict[str, HostSums] = {}
    for corpus in found.corpora:
        for host in corpus.hosts:
            known = sums.get(host.host)
            sums[host.host] = host if known is None else _added(known, host)
    count = max(len(sums), *(corpus.num_hosts for corpus in found.corpora), 0)
    most = -(-count * int((SME_SHARE if is_sme else SHARE) * 100) // 100)  # at least one of any
    most = min(most, SME_MOST) if is_sme else most
    ranked = sorted(sums.values(), key=lambda host: (-host.num_bytes, host.host))
    total = sum(host.num_bytes for host in ranked)
    chosen = tuple(islice(ranked, most))
    share = sum(host.num_bytes for host in chosen) / total if total else 0.0
    return Listed(hosts=chosen, num_hosts=count, share=share)


def text_size(found: Trace) -> str:
    """The template's word for the size of the training text in tokens; empty where the tokens are not known."""
    tokens = number(found.training.get("tokens_per_epoch"))
    if tokens is None:
        return ""
    word = next((word for most, word in SIZES if tokens < most), LARGEST)
    return f"{word} ({human_figure(tokens)} tokens)"


def _extent(found: Trace) -> str:
    words, size = (number(found.stats.get(key)) for key in ("words_out", "bytes_out"))
    train = number(field(found.stats, "records.train"))
    if words is None and train is None:
        return ""
    return f"{human_figure(train)} documents for training; {human_figure(words)} words, {human_bytes(size)}, with those held out"


def _added(first: HostSums, second: HostSums) -> HostSums:
    return HostSums(
        host=first.host, documents=first.documents + second.documents, words=first.words + second.words,
        num_bytes=first.num_bytes + second.num_bytes,
    )  # fmt: skip


def _domains_table(listed: Listed) -> TextTable:
    rows = tuple(
        (host.host, f"{host.documents:,}", f"{host.words:,}", human_bytes(host.num_bytes)) for host in listed.hosts
    )  # fmt: skip
    return TextTable(caption="Domains", columns=("domain", "documents", "words", "text"), rows=rows)
