"""The texts of `tokenizer.keep`, which the model must go on reading as cheaply as before."""

from collections.abc import Iterator
from pathlib import Path

from anadil.artifacts import storage
from anadil.artifacts.text_files import TEXT_SUFFIXES, text_of, text_rows, text_suffix
from anadil.core.errors import DataError
from anadil.runtime.job import Job
from anadil.text.domains import name_of_file

KEY = "tokenizer.keep"


def read_keep_texts(job: Job) -> dict[str, tuple[str, ...]]:
    """Name of each text -> its documents; the name is a language's id, or that of the file.

    Raises:
        DataError: A file is of another kind, is damaged, or holds no text.
    """
    documents: dict[str, tuple[str, ...]] = {}
    for uri in job.side_files.get(KEY, ()):
        with storage.local_copy(uri) as path:
            texts = tuple(text for text in _texts(path, uri, job.recipe.clean.text_field) if text.strip())
        if not texts:
            raise DataError(f"{KEY}: {uri} holds no text; name another file")
        name = _name(uri)
        documents[name] = documents.get(name, ()) + texts
    return documents


def _name(uri: str) -> str:
    if uri.startswith(storage.BUILT_IN):
        return uri.removeprefix(storage.BUILT_IN).partition("/")[0]
    return name_of_file(uri.partition("?")[0])


def _texts(path: Path, uri: str, field: str) -> Iterator[str]:
    if not text_suffix(uri):
        raise DataError(
            f"{KEY}: {uri} is neither {', '.join(TEXT_SUFFIXES)} nor the id of a language with built-in text; name one of those"
        )
    try:
        if suffix == ".txt":
            if path.stat().st_size > MAX_LINE_BYTES:
                raise DataError(
                    f"{KEY}: {uri} is longer than {human_bytes(MAX_LINE_BYTES)}; a sample is enough"
                )
            yield path.read_text(encoding="utf-8-sig")
            return
        # clean.text_field is the key of the user's files, not of built-in ones.
        field = "text" if uri.startswith(storage.BUILT_IN) else field
        for number, line in enumerate(bounded_lines(path, suffix), 1):
            if isinstance(line, TooLong):
                raise DataError(f"{KEY}: {uri}:{number}: {line}; a sample is enough")
            if line.strip():
                yield _text(parse_json(line), field, f"{uri}:{number}")
    except (ValueError, *DAMAGED) as error:
        raise DataError(f"{KEY}: {uri} is damaged, not UTF-8 or not JSON ({error}); repair it") from None


def _text(row: object, field: str, place: str) -> str:
    text = row.get(field) if isinstance(row, Mapping) else None
    if not isinstance(text, str):
        raise DataError(
            f"{KEY}: {place} has no text in {field!r}; set clean.text_field or correct the record"
        )
    return text
