"""A trace as a page in the report's style, and as the lines of a terminal.

The page names files and digests but no place of a machine, so that it can be passed on; the terminal has the places.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from anadil import __version__
from anadil.core.format import DASH, human_bytes, human_figure, human_percent, one_line
from anadil.release.trace.chain import DIGITS, SourceFile
from anadil.release.trace.lineage import Trace
from anadil.release.trace.rows import CorpusSums, FileSums
from anadil.report.data_card import NOT_STATED, recipe_language, stated_licence
from anadil.report.elements import TextTable
from anadil.report.format import words_of
from anadil.report.licence import UNKNOWN
from anadil.report.model_card import model_name
from anadil.report.plan_page import PlanHeadline
from anadil.report.read import base_name, last_part
from anadil.report.render import render_template

MAX_ROWS = 200
"""Of a table of the page; `-o json` has all."""
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
"""What is said of a file or artifact by its state."""


def trace_page(found: Trace) -> str:
    """The page."""
    language = recipe_language(found.manifest.recipe)
    name = model_name(found.base.model, language.code, found.base.licence, found.kind)
    view: dict[str, object] = {
        "title": f"What {name} was made of",
        "sections": SECTIONS,
        "eyebrow": f"{language.name} taught to {base_name(found.base.model)}",
        "answer": answer(found),
        "is_whole": not found.breaks and not found.gaps,
        "problems": [_public(found, text) for text in (*found.breaks, *found.gaps)],
        "headlines": _headlines(found),
        "chain": chain_table(found),
        "base": base_sentence(found),
        "files": files_table(found),
        "licences": licences_table(found),
        "rules": rules_table(found),
        "domains": domains_table(found),
        "documents": documents_table(found),
        "version": __version__,
    }
    return render_template("trace.html.j2", view)


def trace_lines(found: Trace) -> Iterator[str]:
    """Lines for a terminal, with the places of everything."""
    yield answer(found)
    yield ""
    for link in found.links:
        yield f"{SAID[link.state]:<13}  {link.word:<9}  {link.digest[:DIGITS]}  {link.uri or DASH}"
    yield f"{SAID[found.base.state]:<13}  {'base':<9}  {found.base.digest[:DIGITS] or DASH:<16}  {one_line(found.base.model)}"  # fmt: skip
    yield ""
    sums = {each.name: each for corpus in found.corpora for each in corpus.files}
    for file in found.files:
        own = sums.get(file.name) if file.key == "clean.inputs" else None
        told = (
            f"{own.documents:,} documents, {own.words:,} words, {_licence(found, own)}" if own else file.key
        )
        yield f"{SAID[file.state]:<13}  {file.digest[:DIGITS]:<16}  {one_line(file.uri)}: {one_line(told)}"
    if found.documents:
        yield ""
    for document in found.documents:
        more = ", ".join(filter(None, (document.id, document.source, document.url, _why(document.reason, document.duplicate_of))))  # fmt: skip
        yield f"{document.state:<13}  {one_line(document.question)}: {one_line(more)}"


def answer(found: Trace) -> str:
    """One sentence: whether the chain holds."""
    states = Counter(each.state for each in found.files)
    if found.breaks:
        return f"The chain is broken: {len(found.breaks)} of its artifacts and files are not what they were."
    if found.gaps:
        return f"The chain ends early: {len(found.gaps)} of its artifacts were not found."
    gone = states["missing"] + states["unknown"]
    rest = f"; {gone:,} source files are not there any more, and known by their digests alone" if gone else ""
    return f"The chain holds: {len(found.links):,} artifacts and {len(found.files) - gone:,} source files have the digests that they had{rest}."  # fmt: skip


def base_sentence(found: Trace) -> str:
    """The base, whether its files are those that were taught, and its licence."""
    base = found.base
    licence = f"{base.licence.name} ({base.licence.told_by})" if base.licence.id != UNKNOWN else UNKNOWN
    return f"Base: {base_name(base.model)}, files {SAID[base.state]}; licence: {licence}. What it was trained on before is not known here."  # fmt: skip


def chain_table(found: Trace) -> TextTable:
    """A row for each artifact."""
    rows = tuple(
        (
            f"{link.word}{'/' if link.key else ''}{link.key}", SAID[link.state], link.needed_by or DASH,
            f"{link.files:,}" if link.key else DASH, human_bytes(link.num_bytes) if link.key else DASH, link.digest[:DIGITS],
        )
        for link in found.links
    )  # fmt: skip
    columns = ("artifact", "", "made into", "files", "size", DIGEST)
    return TextTable(caption="Artifacts, the model first", columns=columns, rows=rows, words=(1, 2, 5))


def files_table(found: Trace, keys: tuple[str, ...] = ("",)) -> TextTable:
    """A row for each source file.

    Args:
        found: The trace.
        keys: Beginnings of the recipe keys whose files are listed; left out, all.
    """
    sums = {each.name: each for corpus in found.corpora for each in corpus.files}
    listed = [file for file in found.files if file.key.startswith(keys)]
    ranked = sorted(listed, key=lambda file: -_words(file, sums))
    rows = []
    for file in ranked[:MAX_ROWS]:
        own = sums.get(file.name) if file.key == "clean.inputs" else None
        counts = (f"{own.documents:,}", f"{own.words:,}", _licence(found, own)) if own else (DASH, DASH, _of_key(found, file))  # fmt: skip
        rows.append((file.name, SAID[file.state], file.key, *counts, file.digest[:DIGITS]))
    columns = ("file", "", "named by", "documents", "words", "licence", DIGEST)
    return TextTable(
        caption="Files that no stage made", columns=columns, rows=tuple(rows), words=(1, 2, 5, 6),
        note=_rest(len(ranked)),
    )  # fmt: skip


def licences_table(found: Trace) -> TextTable:
    """Words of the text by licence."""
    words: Counter[str] = Counter()
    for corpus in found.corpora:
        words.update(corpus.words_by_licence)
    total = words.total()
    stated = stated_licence(found.manifest.recipe, "text")
    unnamed = f"{stated} (stated by the recipe)" if stated else NOT_STATED
    rows = tuple(
        (name or unnamed, f"{count:,}", human_percent(count / total if total else None))
        for name, count in words.most_common(MAX_ROWS)
    )
    note = "As the records of the sources name them; nobody has checked it."
    return TextTable(caption="Licences", columns=("licence", "words", "share"), rows=rows, note=note)


def rules_table(found: Trace) -> TextTable:
    """Documents that rules have dropped, all files together."""
    dropped: Counter[str] = Counter()
    kept = 0
    for file in _all_files(found.corpora):
        dropped.update(file.dropped)
        kept += file.documents
    total = dropped.total() + kept
    rows = [
        ("kept", f"{kept:,}", human_percent(kept / total if total else None)),
        *(
            (words_of(rule), f"{count:,}", human_percent(count / total))
            for rule, count in dropped.most_common()
        ),
    ]
    return TextTable(
        caption="What became of the documents", columns=("rule", "documents", "share"), rows=tuple(rows)
    )


def domains_table(found: Trace) -> TextTable:
    """Hosts with most text."""
    hosts = [host for corpus in found.corpora for host in corpus.hosts]
    count = sum(corpus.num_hosts for corpus in found.corpora)
    ranked = sorted(hosts, key=lambda host: (-host.num_bytes, host.host))[:MAX_ROWS]
    rows = tuple((each.host, f"{each.documents:,}", f"{each.words:,}", human_bytes(each.num_bytes)) for each in ranked)  # fmt: skip
    columns = ("host", "documents", "words", "text")
    return TextTable(
        caption="Hosts of documents with an address", columns=columns, rows=rows, note=_rest(count)
    )


def documents_table(found: Trace) -> TextTable:
    """The answers to what was asked for."""
    rows = tuple(
        (
            one_line(each.question, 200), each.state, each.id or DASH, one_line(each.source, 200),
            _why(each.reason, each.duplicate_of) or DASH,
        )
        for each in found.documents[:MAX_ROWS]
    )  # fmt: skip
    columns = ("asked", "", "id", "source", "why")
    return TextTable(
        caption="Documents that were asked for", columns=columns, rows=rows, words=(1, 2, 3, 4),
        note=_rest(len(found.documents)),
    )  # fmt: skip


def _headlines(found: Trace) -> list[PlanHeadline]:
    files = list(_all_files(found.corpora))
    named = sum(count for file in files for licence, count in file.licences.items() if licence)
    kept = sum(file.documents for file in files)
    return [
        PlanHeadline(name="Artifacts", unit="in the chain", value=f"{len(found.links):,}", beside="each found by its digest"),
        PlanHeadline(name="Source files", unit="that no stage made", value=f"{len(found.files):,}", beside=f"{sum(file.state == 'verified' for file in found.files):,} compared with their bytes"),
        PlanHeadline(name="Documents", unit="kept", value=human_figure(kept), beside=f"{human_figure(named)} of them name a licence"),
        PlanHeadline(name="Words", unit="of text", value=human_figure(sum(file.words for file in files)), beside=human_bytes(sum(file.num_bytes for file in files))),
    ]  # fmt: skip


def _all_files(corpora: Sequence[CorpusSums]) -> Iterator[FileSums]:
    return (file for corpus in corpora for file in corpus.files)


def _licence(found: Trace, file: FileSums) -> str:
    """The licences that the kept records of a file name, most first."""
    stated = stated_licence(found.manifest.recipe, "text")
    unnamed = f"{stated} (stated)" if stated else NOT_STATED
    named = [name or unnamed for name in file.licences]
    return f"{', '.join(named[:3])}{f' and {len(named) - 3} more' if len(named) > 3 else ''}" or DASH


def _of_key(found: Trace, file: SourceFile) -> str:
    """What the recipe states of chats."""
    if file.key != "finetune.inputs":
        return DASH
    return stated_licence(found.manifest.recipe, "chats") or NOT_STATED


def _words(file: SourceFile, sums: dict[str, FileSums]) -> int:
    own = sums.get(file.name) if file.key == "clean.inputs" else None
    return own.words if own else 0


def _why(reason: str, duplicate_of: str) -> str:
    return f"{words_of(reason)}{f' of {duplicate_of}' if duplicate_of else ''}"


def _rest(count: int) -> str:
    return f"The first {MAX_ROWS:,} of {count:,}; -o json has them all." if count > MAX_ROWS else ""


def _public(found: Trace, text: str) -> str:
    """A sentence without the places of a machine."""
    places = [*(link.uri for link in found.links), *(file.uri for file in found.files), found.base.model]
    for place in sorted(filter(None, places), key=len, reverse=True):
        text = text.replace(place, last_part(place))
    return text
