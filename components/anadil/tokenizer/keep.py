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
    # clean.text_field is the key of the user's files, not of built-in ones.
    field = "text" if uri.startswith(storage.BUILT_IN) else field
    name = f"{KEY}: {uri}"
    for place, row in text_rows(path, name, field):
        yield text_of(row, field, f"{name}{place}")
