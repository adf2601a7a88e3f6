"""A trace as a page in the report's style, and as the lines of a terminal.

The page names files and digests but no place of a machine, so that it can be passed on; the terminal has the places.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from anadil import __version__
from anadil.core.format import DASH, counted, human_bytes, human_figure, human_percent, one_line
from anadil.release.trace.chain import DIGITS, BaseFiles
from anadil.release.trace.corpus_rows import DocumentTrace, FileSums, HostSums
from anadil.release.trace.traced_model import TracedModel
from anadil.release.trace.weeks import Week
from anadil.report.corpora import NOT_STATED, stated_licence
from anadil.report.data_card import recipe_language
from anadil.report.elements import TextTable
from anadil.report.format import ratio, words_of
from anadil.report.licence import UNKNOWN
from anadil.report.model_card import model_name
from anadil.report.read import base_name, last_part
from anadil.report.render import render_template

MAX_ROWS = 200
"""Most rows of a table; `-o json` has all."""
WEEKS = ("weeks", "Trainings")
SECTIONS = (
    ("chain", "Chain"), ("files", "Source files"), ("licences", "Licences"), ("rules", "Rules"),
    ("domains", "Domains"), ("documents", "Documents"),
)  # fmt: skip
DIGEST = f"SHA-256, first {DIGITS} digits"
SAID = {"verified": "verified", "changed": "CHANGED", "missing": "not there", "unknown": "not checked"}


def trace_page(traced: TracedModel) -> str:
    """The page."""
    language = recipe_language(traced.manifest.recipe)
    name = model_name(traced.base.model, language.code, traced.base.licence, answers=traced.answers)
    hosts = [host for corpus in traced.corpora for host in corpus.hosts]
    num_hosts = sum(corpus.num_hosts for corpus in traced.corpora)
    ranked = sorted(hosts, key=lambda host: (-host.num_bytes, host.host))
    domains = hosts_table("Hosts of documents with an address", "host", ranked[:MAX_ROWS], _rest(num_hosts))
    view: dict[str, object] = {
        "title": f"What {name} was made of",
        "sections": ((WEEKS,) if len(traced.weeks) > 1 else ()) + SECTIONS,
        "eyebrow": f"{language.name} taught to {base_name(traced.base.model)}",
        "answer": answer(traced),
        "is_whole": not traced.breaks and not traced.gaps,
        "problems": [_public(traced, text) for text in (*traced.breaks, *traced.gaps)],
        "headlines": _headlines(traced),
        "weeks": _weeks_table(traced) if len(traced.weeks) > 1 else None,
        "chain": _chain_table(traced),
        "base": " ".join(
            map(_model_sentence, (("Base", traced.base), *(("Merged", each) for each in traced.added)))
        ),
        "files": files_table(traced),
        "licences": licences_table(traced),
        "rules": rules_table(traced),
        "domains": domains,
        "documents": _documents_table(traced),
        "version": __version__,
    }
    return render_template("trace.html.j2", view)


def trace_lines(traced: TracedModel) -> Iterator[str]:
    """Lines for a terminal, with the places of everything."""
    yield answer(traced)
    yield ""
    for link in traced.links:
        yield f"{SAID[link.state]:<13}  {link.word:<9}  {link.digest[:DIGITS]}  {link.uri or DASH}"
    for word, model in (("base", traced.base), *(("added", each) for each in traced.added)):
        yield f"{SAID[model.state]:<13}  {word:<9}  {model.digest[:DIGITS] or DASH:<16}  {one_line(model.model)}"
    for place, week in enumerate(traced.weeks if len(traced.weeks) > 1 else (), start=1):
        yield f"training {place:<4}  model/{week.key}: {_week_words(week)}"
    yield ""
    by_file = _sums(traced)
    for file in traced.files:
        words = file.key
        if sums := by_file.get((file.reader, file.name)) if file.is_text else None:
            words = f"{sums.documents:,} documents, {sums.words:,} words, {_licences(traced, sums)}"
        yield f"{SAID[file.state]:<13}  {file.digest[:DIGITS]:<16}  {one_line(file.uri)}: {one_line(words)}"
    if traced.documents:
        yield ""
    for each in traced.documents:
        more = ", ".join(filter(None, (each.id, each.source, each.url, _why(each))))
        yield f"{each.state:<13}  {one_line(each.question)}: {one_line(more)}"


def answer(traced: TracedModel) -> str:
    """One sentence about the whole chain."""
    states = Counter(each.state for each in traced.files)
    if traced.breaks:
        return f"The chain is broken: {len(traced.breaks)} of its artifacts and files have changed."
    if traced.gaps:
        return f"The chain ends early: {len(traced.gaps)} of its artifacts were not traced."
    gone = states["missing"] + states["unknown"]
    rest = f"; {gone:,} source files are gone, and only their digests are known" if gone else ""
    return f"The chain holds: {len(traced.links):,} artifacts and {len(traced.files) - gone:,} source files have their recorded digests{rest}."  # fmt: skip


def _model_sentence(part: tuple[str, BaseFiles]) -> str:
    """State of the files of a model of others, and its licence."""
    word, base = part
    licence = f"{base.licence.name} ({base.licence.told_by})" if base.licence.id != UNKNOWN else UNKNOWN
    return f"{word}: {base_name(base.model)}, files {SAID[base.state]}; licence: {licence}. Its own training data is unknown here."  # fmt: skip


def _week_words(week: Week) -> str:
    """Start and new text of one of several trainings, as a clause."""
    begun = f"began with {week.champion}" if week.champion else "began with the base"
    return f"{begun}; {counted(week.files, 'new file')}, {week.documents:,} documents, {week.words:,} words"


def _weeks_table(traced: TracedModel) -> TextTable:
    """A row for each training, the first of all first."""
    rows = [
        (
            str(place), f"model/{week.key}", week.champion or "the base", f"{week.files:,}", f"{week.documents:,}",
            f"{week.words:,}", DASH if week.tokens is None else f"{week.tokens:,}", week.digest[:DIGITS],
        )
        for place, week in enumerate(traced.weeks, start=1)
    ]  # fmt: skip
    columns = ("training", "model", "began with", "new files", "documents", "words", "tokens trained", DIGEST)
    return TextTable("Trainings, the first of all first", columns, rows, words=(1, 2, 7))


def _chain_table(traced: TracedModel) -> TextTable:
    """A row for each artifact."""
    rows = [
        (
            f"{link.word}{'/' if link.key else ''}{link.key}", SAID[link.state], link.needed_by or DASH,
            f"{link.files:,}" if link.key else DASH, human_bytes(link.num_bytes) if link.key else DASH, link.digest[:DIGITS],
        )
        for link in traced.links
    ]  # fmt: skip
    columns = ("artifact", "", "made into", "files", "size", DIGEST)
    return TextTable("Artifacts, the model first", columns, rows, words=(1, 2, 5))


def files_table(traced: TracedModel, keys: tuple[str, ...] = ("",)) -> TextTable:
    """A row for each source file whose recipe key begins with one of `keys`."""
    by_file = _sums(traced)
    listed = [
        (each, by_file.get((each.reader, each.name)) if each.is_text else None)
        for each in traced.files
        if each.key.startswith(keys)
    ]
    listed.sort(key=lambda pair: -pair[1].words if pair[1] else 0)
    rows = []
    for file, sums in listed[:MAX_ROWS]:
        counts = (DASH, DASH, DASH)
        if sums:
            counts = (f"{sums.documents:,}", f"{sums.words:,}", _licences(traced, sums))
        elif file.key == "finetune.inputs":
            counts = (DASH, DASH, stated_licence(traced.manifest.recipe, "chats") or NOT_STATED)
        rows.append((file.name, SAID[file.state], file.key, *counts, file.digest[:DIGITS]))
    columns = ("file", "", "named by", "documents", "words", "licence", DIGEST)
    return TextTable("Source files", columns, rows, words=(1, 2, 5, 6), note=_rest(len(listed)))


def licences_table(traced: TracedModel) -> TextTable:
    """Words of the text by licence."""
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
    return TextTable("Licences", ("licence", "words", "share"), rows, note=note)


def rules_table(traced: TracedModel) -> TextTable:
    """Documents by the rule that dropped them, all files together."""
    dropped: Counter[str] = Counter()
    for file in _all_files(traced):
        dropped.update(file.dropped)
    num_kept = sum(file.documents for file in _all_files(traced))
    counts = [("kept", num_kept), *((words_of(rule), count) for rule, count in dropped.most_common())]
    total = dropped.total() + num_kept
    rows = [(name, f"{count:,}", human_percent(ratio(total, count))) for name, count in counts]
    return TextTable("Documents by rule", ("rule", "documents", "share"), rows)


def hosts_table(caption: str, column: str, hosts: Sequence[HostSums], note: str = "") -> TextTable:
    """A row for each host."""
    rows = [
        (each.host, f"{each.documents:,}", f"{each.words:,}", human_bytes(each.num_bytes)) for each in hosts
    ]
    return TextTable(caption, (column, "documents", "words", "text"), rows, note=note)


def _documents_table(traced: TracedModel) -> TextTable:
    """The answers to the questions about documents."""
    rows = [
        (one_line(each.question, 200), each.state, each.id or DASH, one_line(each.source, 200), _why(each) or DASH)
        for each in traced.documents[:MAX_ROWS]
    ]  # fmt: skip
    columns, note = ("asked", "", "id", "source", "why"), _rest(len(traced.documents))
    return TextTable("Requested documents", columns, rows, words=(1, 2, 3, 4), note=note)


def _headlines(traced: TracedModel) -> list[tuple[str, str, str, str]]:
    files = _all_files(traced)
    named = sum(count for file in files for licence, count in file.licences.items() if licence)
    num_verified = sum(file.state == "verified" for file in traced.files)
    num_kept, words, size = (
        sum(getattr(file, key) for file in files) for key in ("documents", "words", "num_bytes")
    )
    return [
        ("Artifacts", "in the chain", f"{len(traced.links):,}", "each traced by its digest"),
        (
            "Source files",
            "that no stage made",
            f"{len(traced.files):,}",
            f"{num_verified:,} compared with their bytes",
        ),
        ("Documents", "kept", human_figure(num_kept), f"{human_figure(named)} of them name a licence"),
        ("Words", "of text", human_figure(words), human_bytes(size)),
    ]


def _all_files(traced: TracedModel) -> list[FileSums]:
    return [file for corpus in traced.corpora for file in corpus.files]


def _sums(traced: TracedModel) -> dict[tuple[str, str], FileSums]:
    """(digest of the corpus, name) of each file of text -> its documents."""
    return {(corpus.digest, each.name): each for corpus in traced.corpora for each in corpus.files}


def _licences(traced: TracedModel, file: FileSums) -> str:
    """The licences that the kept records of a file name, most first."""
    stated = stated_licence(traced.manifest.recipe, "text")
    unnamed = f"{stated} (stated)" if stated else NOT_STATED
    named = [name or unnamed for name in file.licences]
    return f"{', '.join(named[:3])}{f' and {len(named) - 3} more' if len(named) > 3 else ''}" or DASH


def _why(document: DocumentTrace) -> str:
    of = f" of {document.duplicate_of}" if document.duplicate_of else ""
    return f"{words_of(document.reason)}{of}"


def _rest(count: int) -> str:
    return f"The first {MAX_ROWS:,} of {count:,}; -o json has them all." if count > MAX_ROWS else ""


def _public(traced: TracedModel, text: str) -> str:
    """A sentence without the places of a machine."""
    places = [
        *(link.uri for link in traced.links),
        *(file.uri for file in traced.files),
        traced.base.model,
        *(each.model for each in traced.added),
    ]
    for place in sorted(filter(None, places), key=len, reverse=True):
        text = text.replace(place, last_part(place))
    return text
