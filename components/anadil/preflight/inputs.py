"""Read the beginnings of all files of a run before it starts, with the readers of its stages.

So chats without a chat or a wrong `clean.text_field` end a run in its first second, not after its pre-training.
"""

import gzip
import io
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import zstandard

from anadil.artifacts import storage
from anadil.artifacts.json_values import PACKED_JSON
from anadil.artifacts.line_reader import MAX_LINE_BYTES, MAX_ZSTD_WINDOW_BYTES, PACKED_LINES, PLAIN_LINES
from anadil.artifacts.separated_file import PACKED_TABLES
from anadil.artifacts.text_files import BYTE_ORDER_MARKS, SEPARATED
from anadil.artifacts.workbook import WORKBOOK
from anadil.core.errors import AnadilError, DataError, PreflightError, RecipeError, RetryableError
from anadil.core.format import MIB, counted, human_bytes, human_hours
from anadil.core.json_text import parse_json
from anadil.core.stage import Stage
from anadil.core.stages import STAGES
from anadil.estimate.stage_memory import written_tokens
from anadil.preflight.text_size import clean_cost, clean_memory_bytes, sizes_of_inputs
from anadil.recipe.sections import Recipe
from anadil.runtime.check import CheckResult, claim_of, claims_of, inspect_where_visible, passed, unseen
from anadil.runtime.job import external_files, files_key, named_files, named_side_files, side_files
from anadil.text.chat_columns import REASONINGS
from anadil.text.chats import Chat, DroppedChats
from anadil.text.language import load_language
from anadil.text.language_data import Language

PIECE_BYTES = 4 * MIB  # Fetched at a time; between two pieces the clock is read.
# Bytes of `.txt` and `.html`, which are one document each; readers refuse more than 16 MiB.
ONE_DOCUMENT_BYTES = 17 * MIB
MAX_FOOTER_BYTES = 64 * MIB
# Length of the footer (4 bytes) and the letters PAR1. Source: parquet-format, README, File format.
PARQUET_TAIL_BYTES = 8
GZIP_MEMBER = b"\x1f\x8b\x08"
NEXT_WARC_RECORD = b"\r\n\r\nWARC/1."
# Bytes of each file. Chats and held-out text, of which one bad line ends the stage, are read whole as a rule.
FIRST_BYTES = {"clean.inputs": 4 * MIB, "finetune.inputs": 64 * MIB, "evaluate.heldout": 64 * MIB}
PATIENCE_S = 10.0  # For the files of one key; those that were not reached are said to be unread.
MAX_FILES = 64  # Files of `clean.inputs` that are read first and furthest, spread over all of them.
# Texts whose language is looked at: so many, of so many characters, and the fewest that say something.
MAX_IDENTIFIED, MIN_IDENTIFIED_CHARS, MAX_IDENTIFIED_CHARS, MIN_IDENTIFIED = 50, 60, 2_000, 3
# Records of one such file, and of each other file as long as there is time.
MAX_RECORDS, HEAD_RECORDS = 10_000, 100
MAX_OTHERS = 64  # Chats beside the longest on which a base's template is tried.
OUT_OF_MEMORY = "processes may be killed: set clean.workers lower, or give it more memory (on a cluster cluster.resources.clean.memory)"
T = TypeVar("T")


class NoWholeRecordError(Exception):
    """The first record of a file is longer than what is read."""


class InputSample:
    """Copies of no more than the first bytes of files, for a limited time."""

    def __init__(self, num_bytes: int, seconds: float) -> None:
        self.num_bytes = num_bytes  # Bytes of each file.
        self.whole = True
        """True if all that was given out was all that there is; a reader that stops early unsets it."""
        self.looked: set[str] = set()  # Files of which something was given out.
        self._deadline = time.monotonic() + seconds

    def over(self) -> bool:
        """Return whether the time is up."""
        return time.monotonic() > self._deadline

    @contextmanager
    def copy(self, uri: str) -> Iterator[Path]:
        """Yield a local path with the beginning of a file, in place of `storage.local_copy`."""
        self.looked.add(uri)
        name = uri.lower()
        if name.endswith((".parquet", ".arrow")) and "://" not in uri:
            storage.input_store(uri).part(
                uri, 0, 1
            )  # whether it can be read; its reader takes a piece at a time
            with storage.local_copy(uri) as path:
                yield path
            return
        with tempfile.TemporaryDirectory(prefix="anadil-") as folder:
            path = Path(folder) / Path(uri).name
            if name.endswith(".parquet"):
                self._write_remote_parquet(uri, path)
            else:
                data, whole = self._first_bytes(uri, name)
                if not whole:
                    self.whole = False
                    data = cut_at_record(data, name, self.num_bytes)
                    if not data:
                        raise NoWholeRecordError
                path.write_bytes(data)
            yield path

    def _first_bytes(self, uri: str, name: str) -> tuple[bytes, bool]:
        limit = ONE_DOCUMENT_BYTES if name.endswith((".txt", ".html", ".htm")) else self.num_bytes
        there = storage.input_store(uri)
        data, size = there.part(uri, 0, min(limit, PIECE_BYTES))
        while len(data) < min(limit, size) and not self.over():
            piece, _ = there.part(uri, len(data), min(limit - len(data), PIECE_BYTES))
            if not piece:
                break
            data += piece
        return data, len(data) >= size

    def _write_remote_parquet(self, uri: str, path: Path) -> None:
        """Write a table without rows that has the columns of the remote one, from its footer."""
        import pyarrow as pa
        from pyarrow import parquet

        there = storage.input_store(uri)
        tail, size = there.part(uri, -PARQUET_TAIL_BYTES, PARQUET_TAIL_BYTES)
        length = int.from_bytes(tail[:4], "little") + PARQUET_TAIL_BYTES
        if not tail.endswith(b"PAR1") or length > min(size, MAX_FOOTER_BYTES):
            path.write_bytes(tail)  # its reader says that this is no Parquet
            return
        footer, _ = there.part(uri, -length, length)
        try:
            parquet.write_table(parquet.read_schema(io.BytesIO(footer)).empty_table(), path)
        except (pa.ArrowException, OSError):
            path.write_bytes(footer)
        self.whole = False


def cut_at_record(data: bytes, name: str, limit: int) -> bytes:
    """Cut the first bytes of a file, of this name in lower case, where their last whole record ends.

    Compressed data is unpacked to `limit` bytes at most.
    """
    # Bytes that are not of the kind that the name says stay as they are, so that the reader reports it.
    plain = ((PLAIN_LINES, _cut_lines), (SEPARATED, _cut_table), (".json", _cut_json), (".txt", _cut_text))
    for suffixes, cut in plain:
        if name.endswith(suffixes):
            return cut(data)
    if name.endswith((".arrow", WORKBOOK)):
        return b""  # a part of them cannot be read
    if name.endswith((*PACKED_LINES, *PACKED_TABLES, *PACKED_JSON)):
        return _cut_packed(data, name, limit)
    if name.endswith((".warc.gz", ".warc.wet.gz")):
        return data[: max(0, data.rfind(GZIP_MEMBER))] if data.startswith(GZIP_MEMBER) else data
    if name.endswith((".warc", ".warc.wet")):
        end = data.rfind(NEXT_WARC_RECORD)
        return data[: end + 4 if end > 0 else 0] if data.startswith(b"WARC/") else data
    return data


def _cut_lines(data: bytes) -> bytes:
    end = data.rfind(b"\n") + 1
    # A line that is too long for every reader is seen as such before its end.
    return data[:end] if len(data) - end <= MAX_LINE_BYTES else data


def _cut_json(data: bytes) -> bytes:
    """Return the whole lines of a file of JSON lines; nothing of a list or of objects over several lines."""
    first, _, rest = data.partition(b"\n")
    try:
        return _cut_lines(data) if rest and isinstance(parse_json(first), dict) else b""
    except ValueError:
        return b""


def _cut_table(data: bytes) -> bytes:
    """Cut at the last end of a line outside a cell; return nothing of UTF-16, whose line ends are other bytes."""
    if data.startswith(tuple(BYTE_ORDER_MARKS)):
        return b""
    end, quotes = data.rfind(b"\n") + 1, data.count(b'"')
    quotes -= data.count(b'"', end)
    while end and quotes % 2:
        before = data.rfind(b"\n", 0, end - 1) + 1
        quotes -= data.count(b'"', before, end)
        end = before
    return data[:end]


def _cut_packed(data: bytes, name: str, limit: int) -> bytes:
    stream: Any
    if name.endswith(".gz"):
        stream = gzip.GzipFile(fileobj=io.BytesIO(data))
    else:
        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)
        stream = decompressor.stream_reader(data, read_across_frames=True)
    text = b""
    try:
        with suppress(EOFError):  # the end of what was fetched, which is not the end of the file
            # Not `read`, which loses what stands before an end that comes too early.
            while len(text) < limit and (piece := stream.read1(MIB)):
                text += piece
    except (OSError, zlib.error, zstandard.ZstdError):
        return data
    kinds = ((PACKED_JSON, _cut_json), (PACKED_TABLES, _cut_table))
    cut = next((each for suffixes, each in kinds if name.endswith(suffixes)), _cut_lines)
    lines = cut(text)
    if not lines:
        return b""
    return gzip.compress(lines, 1) if name.endswith(".gz") else zstandard.compress(lines, 1)


def _cut_text(data: bytes) -> bytes:
    """Remove the first bytes of a letter at the end, if the text is UTF-8."""
    for end in range(len(data), max(len(data) - 4, 0), -1):
        with suppress(UnicodeDecodeError):
            data[:end].decode()
            return data[:end]
    return data


def inspect_files(
    stage: Stage, recipe: Recipe, given: Sequence[str] = (), *, here: bool = True
) -> CheckResult:
    """Read the beginning of the outside files of a stage: those given, else those of the recipe.

    What cannot be seen from here is a mistake only if the stage will run `here`.
    """
    patterns, key = tuple(given) or named_files(stage, recipe), files_key(stage, recipe)
    hidden = claims_of(patterns, recipe, here=here)
    visible = [pattern for pattern in patterns if pattern not in hidden]
    if hidden and not visible:
        return unseen(key, hidden)

    def inspect() -> CheckResult:
        files = external_files(stage, recipe, visible)
        if written := written_tokens(recipe):
            return passed(key, f"the base writes {written:,} tokens")
        sample = InputSample(FIRST_BYTES[stage.files.key], PATIENCE_S)
        detail, remedy = "the corpus's own held-out part is used", ""
        if files:
            detail, remedy = INSPECTORS[stage.files.key](files, recipe, sample)
            detail = f"{counted(len(files), 'file')}, {detail}"
        if 0 < len(sample.looked) < len(files):
            detail += f", {len(sample.looked):,} of {len(files):,} files looked into"
        if not sample.whole:
            detail += f" in what was checked (the first {human_bytes(sample.num_bytes)} of a file)"
        for side_key, beside in _side_files(stage, recipe, here=here).items():
            detail += f"; {side_key}: {counted(len(beside), 'file')}"
            if side_key in SIDE_INSPECTORS and beside:
                sample = InputSample(FIRST_BYTES[stage.files.key], PATIENCE_S)
                more, hint = SIDE_INSPECTORS[side_key](beside, recipe, sample)
                detail, remedy = f"{detail}, {more}", "; ".join(filter(None, (remedy, hint)))
        if hidden:
            detail += f"; not checked: {unseen(key, hidden).detail}"
        return passed(key, detail, remedy)

    return inspect_where_visible(key, inspect, visible, recipe, here=here)


def refuse_shared_files(stage: Stage, recipes: Sequence[Recipe], *, here: bool) -> None:
    """Refuse a file that two sources read, perhaps by patterns of other spelling."""
    readers: dict[str, str] = {}
    for recipe in recipes:
        key = files_key(stage, recipe)
        visible = [each for each in named_files(stage, recipe) if here or not claim_of(each, recipe)]
        try:
            files = storage.expand(visible, key)
        except (PreflightError, RetryableError):
            if here:
                raise
            continue
        for file in files:
            if (other := readers.setdefault(file, key)) != key:
                raise RecipeError(f"{other} and {key} both read {file}; leave it out of one of them")


def _side_files(stage: Stage, recipe: Recipe, *, here: bool) -> dict[str, list[str]]:
    # Those with a reader, and functions, have a check of their own.
    kinds = {each.key: each for each in stage.side_files if not (each.reader or each.functions)}
    named = [(key, names) for key, names in named_side_files(stage, recipe).items() if key in kinds]
    seen = {key: [name for name in names if here or not claim_of(name, recipe)] for key, names in named}
    return {
        key: [uri for name in names for uri in side_files(name, kinds[key])] for key, names in seen.items()
    }


def inspect_clean_cost(recipe: Recipe, memory_bytes: int, cpus: int, *, here: bool = True) -> CheckResult:
    """Estimate what `clean` needs of memory, disk and CPU time, beside the memory and CPUs that it would have."""
    key, patterns = "cost of clean", named_files(STAGES["clean"], recipe)

    def inspect() -> CheckResult:
        cost = clean_cost(sizes_of_inputs(recipe), recipe.clean, cpus)
        in_here = cost.workers if recipe.clean.engine == "processes" else 0
        need = clean_memory_bytes(in_here)
        detail = (
            f"{human_bytes(cost.input_bytes)} of files in about {counted(cost.shards, 'shard')}: {human_bytes(need)} of memory "
            f"for {counted(in_here, 'process')} (it has {human_bytes(memory_bytes)}), up to {human_bytes(cost.disk_bytes)} of disk and "
            f"{human_hours(cost.cpu_hours)} of CPU time"
        )
        return passed(key, detail, "" if need <= memory_bytes else OUT_OF_MEMORY)

    return inspect_where_visible(key, inspect, patterns, recipe, here=here)


def _taken(
    files: Sequence[str], sample: InputSample, read: Callable[[str], Iterator[T]]
) -> Iterator[tuple[str, T]]:
    """Yield each record and its file, for as long as there is time."""
    for uri in files:
        if sample.over():
            sample.whole = False
            return
        try:
            for record in read(uri):
                yield uri, record
                if sample.over():
                    sample.whole = False
                    return
        except NoWholeRecordError:
            continue


def _inspect_raw(files: Sequence[str], recipe: Recipe, sample: InputSample) -> tuple[str, str]:
    from anadil.clean.read import readers as read
    from anadil.clean.read.input_kinds import check_suffixes
    from anadil.clean.read.read_stats import ReadStats
    from anadil.clean.read.text_cut import txt_document_of

    settings, key = recipe.clean, files_key(STAGES["clean"], recipe)
    language = load_language(recipe.language)
    check_suffixes(files, key, is_pairs=bool(language.sides))
    read_stats, sampled = ReadStats(), _Sampled(language)
    first = {files[index * len(files) // MAX_FILES] for index in range(MAX_FILES)}
    unreadable: list[str] = []

    def some(uri: str) -> Iterator[read.RawRecord]:
        field, code, sides = settings.text_field, language.code, language.sides
        records = read.read_records(
            uri, uri, field, read_stats, sample.copy, language=code, sides=sides,
            txt_document=txt_document_of(recipe),
        )  # fmt: skip
        most = MAX_RECORDS if uri in first else HEAD_RECORDS
        bad, good = read_stats.bad, read_stats.records + read_stats.skipped
        with closing(records):  # type: ignore[type-var]  # they come from a generator
            for number, record in enumerate(records, 1):
                yield record
                if number == most:
                    sample.whole = False
                    return
        if read_stats.bad > bad and read_stats.records + read_stats.skipped == good:
            unreadable.append(uri)

    # Those that are spread over all come first: time may end before the others.
    for _, record in _taken(sorted(files, key=lambda uri: uri not in first), sample, some):
        sampled.add(record.text)
    total = read_stats.records + read_stats.bad
    if read_stats.bad and (sample.whole or not read_stats.records + read_stats.skipped):
        read_stats.check_bad_share(settings.max_bad_records)
    if sample.whole and not read_stats.records:
        raise DataError(f"{key}: the files hold no documents; check the paths")
    remedy = ""
    if unreadable or read_stats.bad > settings.max_bad_records * total:
        remedy = f"{read_stats.bad:,} of {total:,} records could not be read, such as {read_stats.places[0]}"
    if unreadable:
        remedy += f"; {counted(len(unreadable), 'file')} without a readable record, such as {unreadable[0]}"
    remedy = "; ".join(filter(None, (remedy, sampled.remedy())))
    return counted(read_stats.records, "document"), remedy


class _Sampled:
    """Count of the texts of a sample that are in the recipe's language, and of the languages of the others."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._counts: Counter[str] = Counter()
        self._num_siblings = 0

    def add(self, text: str) -> None:
        """Identify a text that is long enough, of the first ones."""
        from anadil.text.language_id import identify_language

        if len(text) < MIN_IDENTIFIED_CHARS or self._counts.total() >= MAX_IDENTIFIED or self._language.sides:
            return
        identified = identify_language(self._language.normalize(text[:MAX_IDENTIFIED_CHARS]), self._language)
        if identified.is_language or identified.is_reliable:
            self._counts["" if identified.is_language else identified.code] += 1
            self._num_siblings += bool(identified.sibling) and not identified.is_language

    def remedy(self) -> str:
        """Advice where most texts are in other languages, or some are taken for a sibling's; else empty."""
        total, num_own = self._counts.total(), self._counts[""]
        if total < MIN_IDENTIFIED:
            return ""
        if num_own >= total / 2:
            if not self._num_siblings:
                return ""
            return (
                f"{self._num_siblings:,} of {counted(total, 'text')} would be dropped as {self._language.name}'s siblings: neither CLD2 "
                "nor py3langid tells them from it; if they are in it, learn a pack (`anadil language learn`)"
            )
        del self._counts[""]
        other = self._counts.most_common(1)[0][0]
        return (
            f"{total - num_own:,} of {counted(total, 'text')} are in another language than {self._language.name}, mostly in "
            f"{other} (CLD2's code); correct language or the files"
        )


def _inspect_rows(
    kind: Literal["chats", "pairs", "questions"], files: Sequence[str], recipe: Recipe, sample: InputSample
) -> tuple[str, str]:
    from anadil.artifacts import chat_files
    from anadil.text.letters import letters_of

    dropped = DroppedChats()
    read: Callable[..., Iterator[object]] = (
        chat_files.read_pairs if kind == "pairs" else chat_files.read_chats
    )
    columns, letters = recipe.finetune.columns, letters_of(recipe.language_code)
    files = chat_files.check_chat_files(files)
    result = _taken(files, sample, lambda uri: read([uri], dropped, sample.copy, columns, letters))
    number, sources, sampled = 0, set[str](), _Sampled(load_language(recipe.language))
    for _, each in result:
        number += 1
        if isinstance(each, Chat):
            sources.add(each.source)
            sampled.add("\n".join(message.content for message in each.messages))
    if kind == "questions":
        if sample.whole:
            chat_files.refuse_no_questions(files, number, dropped)
    elif sample.whole or dropped.total:
        chat_files.refuse_no_chats(files, number, dropped, kind, columns)
    # A source may begin behind what was looked at.
    if sample.whole and kind == "chats":
        chat_files.refuse_unknown_mix(recipe.finetune.mix, sources)
    remedy = f"would leave out {counted(dropped.total, 'row')}: {dropped}" if dropped.total else ""
    remedy = "; ".join(filter(None, (remedy, sampled.remedy())))
    return counted(number, kind.removesuffix("s")), remedy


def hardest_chats(recipe: Recipe, system: str) -> list[list[dict[str, str]]]:
    """Return messages of chats in the recipe's local files: the longest in each respect, and some of the others."""
    longest: dict[str | int, tuple[int, Chat]] = {}
    for number, chat in enumerate(_local_chats(recipe)):
        sizes: dict[str | int, int] = {
            "turns": len(chat.messages),
            number % MAX_OTHERS: zlib.crc32(chat.place.encode()),
        }
        for each in chat.messages:
            for respect, size in ((each.role, len(each.content)), ("reasoning", len(each.reasoning))):
                sizes[respect] = max(size, sizes.get(respect, 0))
        for key, size in sizes.items():
            if size > longest.get(key, (0, chat))[0]:
                longest[key] = size, chat
    return [
        [
            {"role": each.role, "content": each.content}
            | dict.fromkeys(REASONINGS if each.reasoning else (), each.reasoning)
            for each in chat.with_system(system).messages
        ]
        for chat in {id(chat): chat for _, chat in longest.values()}.values()
    ]


def _local_chats(recipe: Recipe) -> Iterator[Chat]:
    """Yield chats, also those of pairs, of files that can be read; whoever checks the files says what is wrong with the others."""
    from anadil.artifacts import chat_files

    stage, sample = STAGES["finetune"], InputSample(FIRST_BYTES["finetune.inputs"], PATIENCE_S)
    options: Any = {"dropped": DroppedChats(), "copy": sample.copy, "columns": recipe.finetune.columns}
    pairs = named_side_files(stage, recipe).get("finetune.preference.inputs", ())
    for patterns, is_pairs in ((named_files(stage, recipe), False), (pairs, True)):
        read: Callable[..., Iterator[Any]] = chat_files.read_pairs if is_pairs else chat_files.read_chats
        with suppress(AnadilError, ImportError):
            files = storage.expand([each for each in patterns if "://" not in each], stage.files.key)
            for uri in chat_files.check_chat_files(files):
                for _, row in _taken([uri], sample, lambda uri: read([uri], **options)):  # noqa: B023
                    yield from (row.chosen, row.rejected) if is_pairs else (row,)


def _inspect_heldout(files: Sequence[str], recipe: Recipe, sample: InputSample) -> tuple[str, str]:
    from anadil.artifacts.scored_text import check_heldout_files, documents_of, refuse_too_large
    from anadil.evaluate.heldout import refuse_no_heldout

    check_heldout_files(files)
    field, code = recipe.clean.text_field, recipe.language_code
    result = _taken(files, sample, lambda uri: documents_of([uri], field, code, sample.copy))
    num_documents = sum(1 for document in refuse_too_large(each for _, each in result) if document.text)
    if sample.whole:
        refuse_no_heldout(num_documents, files)
    return counted(num_documents, "document"), ""


def _inspect_retained(files: Sequence[str], recipe: Recipe, sample: InputSample) -> tuple[str, str]:
    from anadil.artifacts.scored_text import retained_documents

    field = recipe.clean.text_field
    documents = _taken(files, sample, lambda uri: retained_documents([uri], field, sample.copy))
    return counted(sum(1 for _ in documents), "document"), ""


Inspector = Callable[[Sequence[str], Recipe, InputSample], tuple[str, str]]
# Recipe key -> function that inspects its files; it returns detail and advice.
INSPECTORS: dict[str, Inspector] = {
    "clean.inputs": _inspect_raw,
    "finetune.inputs": partial(_inspect_rows, "chats"),
    "evaluate.heldout": _inspect_heldout,
}
# The same of files beside them.
SIDE_INSPECTORS: dict[str, Inspector] = {
    "finetune.preference.inputs": partial(_inspect_rows, "pairs"),
    "evaluate.questions": partial(_inspect_rows, "questions"),
    "evaluate.retained": _inspect_retained,
}
