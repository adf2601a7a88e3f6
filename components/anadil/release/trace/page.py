"""A trace as a page in the report's style, and as the lines of a terminal.

The page names files and digests but no place of a machine, so that it can be passed on; the terminal has the places.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from anadil import __version__
from anadil.core.format import DASH, human_bytes, human_figure, human_percent, one_line
from anadil.release.trace.chain import DIGITS, SourceFile
from anadil.release.trace.corpus_rows import CorpusSums, FileSums
from anadil.release.trace.traced_model import TracedModel
from anadil.report.data_card import NOT_STATED, recipe_language, stated_licence
from anadil.report.elements import TextTable
from anadil.report.format import words_of
from anadil.report.licence import UNKNOWN
from anadil.report.model_card import model_name
from anadil.report.read import base_name, last_part
from anadil.report.render import render_template

MAX_ROWS = 200
"""Most rows of a table; `-o json` has all."""
SECTIONS = (
    ("chain", "Chain"),
    ("files", "Source files"),
    ("licences", "Licences"),
    ("rules", "Rules"),
    ("domains", "Domains"),
    ("documents", "Documents"),
)
DIGEST = f"SHA-256, first {DIGITS} digits"
SAID = {"verified": "verified", "changed": "CHANGED", "missing": "not there", "unknown": "not checked"}
"""State of a file or artifact -> its words."""


def trace_page(traced: TracedModel) -> str:
    """The page."""
    language = recipe_language(traced.manifest.recipe)
    name = model_name(traced.base.model, language.code, traced.base.licence, traced.kind)
    view: dict[str, object] = {
        "title": f"What {name} was made of",
        "sections": SECTIONS,
        "eyebrow": f"{language.name} taught to {base_name(traced.base.model)}",
        "answer": answer(traced),
        "is_whole": not traced.breaks and not traced.gaps,
        "problems": [_public(traced, text) for text in (*traced.breaks, *traced.gaps)],
        "headlines": _headlines(traced),
        "chain": chain_table(traced),
        "base": base_sentence(traced),
        "files": files_table(traced),
        "licences": licences_table(traced),
        "rules": rules_table(traced),
        "domains": domains_table(traced),
        "documents": documents_table(traced),
        "version": __version__,
    }
    return render_template("trace.html.j2", view)


def trace_lines(traced: TracedModel) -> Iterator[str]:
    """Lines for a terminal, with the places of everything."""
    yield answer(traced)
    yield ""
    for link in traced.links:
        yield f"{SAID[link.state]:<13}  {link.word:<9}  {link.digest[:DIGITS]}  {link.uri or DASH}"
    yield f"{SAID[traced.base.state]:<13}  {'base':<9}  {traced.base.digest[:DIGITS] or DASH:<16}  {one_line(traced.base.model)}"  # fmt: skip
    yield ""
    sums = {each.name: each for corpus in traced.corpora for each in corpus.files}
    for file in traced.files:
        own = sums.get(file.name) if file.key == "clean.inputs" else None
        words = (
            f"{own.documents:,} documents, {own.words:,} words, {_licence(traced, own)}" if own else file.key
        )
        yield f"{SAID[file.state]:<13}  {file.digest[:DIGITS]:<16}  {one_line(file.uri)}: {one_line(words)}"
    if traced.documents:
        yield ""
    for document in traced.documents:
        more = ", ".join(filter(None, (document.id, document.source, document.url, _why(document.reason, document.duplicate_of))))  # fmt: skip
        yield f"{document.state:<13}  {one_line(document.question)}: {one_line(more)}"


def answer(traced: TracedModel) -> str:
    """One sentence: whether the chain holds."""
    states = Counter(each.state for each in traced.files)
    if traced.breaks:
        return f"The chain is broken: {len(traced.breaks)} of its artifacts and files are not what they were."
    if traced.gaps:
        return f"The chain ends early: {len(traced.gaps)} of its artifacts were not traced."
    gone = states["missing"] + states["unknown"]
    rest = f"; {gone:,} source files are not there any more, and known by their digests alone" if gone else ""
    return f"The chain holds: {len(traced.links):,} artifacts and {len(traced.files) - gone:,} source files have the digests that they had{rest}."  # fmt: skip


def base_sentence(traced: TracedModel) -> str:
    """The base, whether its files are those that were taught, and its licence."""
    base = traced.base
    licence = f"{base.licence.name} ({base.licence.told_by})" if base.licence.id != UNKNOWN else UNKNOWN
    return f"Base: {base_name(base.model)}, files {SAID[base.state]}; licence: {licence}. What it was trained on before is not known here."  # fmt: skip


def chain_table(traced: TracedModel) -> TextTable:
    """A row for each artifact."""
    rows = tuple(
        (
            f"{link.word}{'/' if link.key else ''}{link.key}", SAID[link.state], link.needed_by or DASH,
            f"{link.files:,}" if link.key else DASH, human_bytes(link.num_bytes) if link.key else DASH, link.digest[:DIGITS],
        )
        for link in traced.links
    )  # fmt: skip
    columns = ("artifact", "", "made into", "files", "size", DIGEST)
    return TextTable(caption="Artifacts, the model first", columns=columns, rows=rows, words=(1, 2, 5))


def files_table(traced: TracedModel, keys: tuple[str, ...] = ("",)) -> TextTable:
    """A row for each source file.

    Args:
        traced: The trace.
        keys: Beginnings of the recipe keys whose files are listed; left out, all.
    """
    sums = {each.name: each for corpus in traced.corpora for each in corpus.files}
    listed = [file for file in traced.files if file.key.startswith(keys)]
    ranked = sorted(listed, key=lambda file: -_words(file, sums))
    rows = []
    for file in ranked[:MAX_ROWS]:
        own = sums.get(file.name) if file.key == "clean.inputs" else None
        counts = (f"{own.documents:,}", f"{own.words:,}", _licence(traced, own)) if own else (DASH, DASH, _of_key(traced, file))  # fmt: skip
        rows.append((file.name, SAID[file.state], file.key, *counts, file.digest[:DIGITS]))
    columns = ("file", "", "named by", "documents", "words", "licence", DIGEST)
    return TextTable(
        caption="Files that no stage made", columns=columns, rows=tuple(rows), words=(1, 2, 5, 6),
        note=_rest(len(ranked)),
    )  # fmt: skip


def licences_table(traced: TracedModel) -> TextTable:
    """Words of the text by licence."""
    words: Counter[str] = Counter()
    for corpus in traced.corpora:
        words.update(corpus.words_by_licence)
    total = words.total()
    stated = stated_licence(traced.manifest.recipe, "text")
    unnamed = f"{stated} (stated by the recipe)" if stated else NOT_STATED
    rows = tuple(
        (name or unnamed, f"{count:,}", human_percent(count / total if total else None))
        for name, count in words.most_common(MAX_ROWS)
    )
    note = "As the records of the sources name them; nobody has checked it."
    return TextTable(caption="Licences", columns=("licence", "words", "share"), rows=rows, note=note)


def rules_table(traced: TracedModel) -> TextTable:
    """Documents that rules have dropped, all files together."""
    dropped: Counter[str] = Counter()
    num_kept = 0
    for file in _all_files(traced.corpora):
        dropped.update(file.dropped)
        num_kept += file.documents
    total = dropped.total() + num_kept
    rows = [
        ("kept", f"{num_kept:,}", human_percent(num_kept / total if total else None)),
        *(
            (words_of(rule), f"{count:,}", human_percent(count / total))
            for rule, count in dropped.most_common()
        ),
    ]
    return TextTable(
        caption="What became of the documents", columns=("rule", "documents", "share"), rows=tuple(rows)
    )


def domains_table(traced: TracedModel) -> TextTable:
    """Hosts with most text."""
    hosts = [host for corpus in traced.corpora for host in corpus.hosts]
    count = sum(corpus.num_hosts for corpus in traced.corpora)
    ranked = sorted(hosts, key=lambda host: (-host.num_bytes, host.host))[:MAX_ROWS]
    rows = tuple((each.host, f"{each.documents:,}", f"{each.words:,}", human_bytes(each.num_bytes)) for each in ranked)  # fmt: skip
    columns = ("host", "documents", "words", "text")
    return TextTable(
        caption="Hosts of documents with an address", columns=columns, rows=rows, note=_rest(count)
    )


def documents_table(traced: TracedModel) -> TextTable:
    """The answers to what was asked for."""
    rows = tuple(
        (
            one_line(each.question, 200), each.state, each.id or DASH, one_line(each.source, 200),
            _why(each.reason, each.duplicate_of) or DASH,
        )
        for each in traced.documents[:MAX_ROWS]
    )  # fmt: skip
    columns = ("asked", "", "id", "source", "why")
    return TextTable(
        caption="Documents that were asked for", columns=columns, rows=rows, words=(1, 2, 3, 4),
        note=_rest(len(traced.documents)),
    )  # fmt: skip


def _headlines(traced: TracedModel) -> list[tuple[str, str, str, str]]:
    files = list(_all_files(traced.corpora))
    named = sum(count for file in files for licence, count in file.licences.items() if licence)
    num_kept = sum(file.documents for file in files)
    return [
        ("Artifacts", "in the chain", f"{len(traced.links):,}", "each traced by its digest"),
        ("Source files", "that no stage made", f"{len(traced.files):,}", f"{sum(file.state == 'verified' for file in traced.files):,} compared with their bytes"),
        ("Documents", "kept", human_figure(num_kept), f"{human_figure(named)} of them name a licence"),
        ("Words", "of text", human_figure(sum(file.words for file in files)), human_bytes(sum(file.num_bytes for file in files))),
    ]  # fmt: skip


def _all_files(corpora: Sequence[CorpusSums]) -> Iterator[FileSums]:
    return (file for corpus in corpora for file in corpus.files)


def _licence(traced: TracedModel, file: FileSums) -> str:
    """The licences that the kept records of a file name, most first."""
    stated = stated_licence(traced.manifest.recipe, "text")
    unnamed = f"{stated} (stated)" if stated else NOT_STATED
    named = [name or unnamed for name in file.licences]
    return f"{', '.join(named[:3])}{f' and {len(named) - 3} more' if len(named) > 3 else ''}" or DASH


def _of_key(traced: TracedModel, file: SourceFile) -> str:
    """Licence that the recipe states for chats."""
    if file.key != "finetune.inputs":
        return DASH
    return stated_licence(traced.manifest.recipe, "chats") or NOT_STATED


def _words(file: SourceFile, sums: dict[str, FileSums]) -> int:
    own = sums.get(file.name) if file.key == "clean.inputs" else None
    return own.words if own else 0


def _why(reason: str, duplicate_of: str) -> str:
    return f"{words_of(reason)}{f' of {duplicate_of}' if duplicate_of else ''}"


def _rest(count: int) -> str:
    return f"The first {MAX_ROWS:,} of {count:,}; -o json has them all." if count > MAX_ROWS else ""


def _public(traced: TracedModel, text: str) -> str:
    """A sentence without the places of a machine."""
    places = [*(link.uri for link in traced.links), *(file.uri for file in traced.files), traced.base.model]
    for place in sorted(filter(None, places), key=len, reverse=True):
        text = text.replace(place, last_part(place))
    return text
