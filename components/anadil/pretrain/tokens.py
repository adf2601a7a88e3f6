"""corpus -> token stream: every training document encoded once, kept for a resume.

The stream is one file of 32-bit ids, documents one after another, each as
`[BOS] text [end of text]`, beside an array with the place where each begins.
"""

import logging
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from anadil import artifact
from anadil.corpus import read_documents
from anadil.errors import DataError, IntegrityError
from anadil.model.load import document_ids, encode_texts, load_tokenizer
from anadil.progress import track

log = logging.getLogger(__name__)

Ids = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]

DOCUMENTS_AT_A_TIME = 1_000
"""Documents encoded by one call, which spreads them over the cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The encoded training part of a corpus."""

    ids: Ids
    """(tokens,): all documents, one after another."""
    starts: Places
    """(documents + 1,): where each document begins; the last entry is the number of tokens."""
    digest: str
    """Stands for the content: equal digests mean equal ids."""


def token_stream(corpus: Path, tokenizer: Path, work: Path, *, write: bool) -> Stream:
    """The stream of a corpus under a tokenizer, from `work` where it is there and undamaged.

    Args:
        corpus: Corpus artifact.
        tokenizer: Tokenizer artifact.
        work: Directory that keeps the stream.
        write: Whether this process makes it; the others find it made.

    Raises:
        DataError: The corpus has no training text.
    """
    origin = {"corpus": digest_of(corpus), "tokenizer": digest_of(tokenizer)}
    folder = work / f"tokens-{artifact.key_of(origin)}"
    if write and not _is_whole(folder):
        _make(corpus, tokenizer, folder, origin)
    ids = np.memmap(folder / "ids.bin", dtype=np.int32, mode="r")
    starts: Places = np.load(folder / "starts.npy", allow_pickle=False)
    return Stream(ids=ids, starts=starts, digest=artifact.key_of(origin))


def digest_of(path: Path) -> str:
    """Digest of an artifact's manifest.

    Raises:
        DataError: There is no manifest.
    """
    manifest = artifact.read_manifest(str(path))
    if manifest is None:
        raise DataError(f"{path}: no finished artifact there; run the stage that writes it")
    return manifest.digest


def _is_whole(folder: Path) -> bool:
    try:
        manifest = artifact.read_manifest(str(folder))
        if manifest is None:
            return False
        artifact.verify(folder, manifest, str(folder))
    except IntegrityError as error:
        log.warning("%s; encoding the corpus again", error)
        return False
    return True


def _make(corpus: Path, tokenizer: Path, folder: Path, origin: dict[str, str]) -> None:
    # Several nodes may share the disk; each writes under its own name, all the same bytes.
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=folder.parent))
    starts = [0]
    with (draft / "ids.bin").open("wb") as file:
        for ids in track(_encoded(corpus, tokenizer), "encoding documents"):
            file.write(ids.tobytes())
            starts.append(starts[-1] + len(ids))
    if starts[-1] == 0:
        raise DataError(f"{corpus}/train: holds no text; run clean with more data or milder rules")
    np.save(draft / "starts.npy", np.array(starts, dtype=np.int64), allow_pickle=False)
    artifact.seal(draft, kind="tokens", origin=origin)
    try:
        draft.rename(folder)
    except OSError:
        if _is_whole(folder):
            # Another node was faster, and its processes may be reading theirs already.
            shutil.rmtree(draft)
            return
        shutil.rmtree(folder)
        draft.rename(folder)


def _encoded(corpus: Path, tokenizer_dir: Path) -> Iterator[Ids]:
    tokenizer = load_tokenizer(tokenizer_dir)
    bos, end = document_ids(tokenizer, str(tokenizer_dir))
    first = [] if bos is None else [bos]
    texts = (document.text for document in read_documents(corpus, "train"))
    while some := list(islice(texts, DOCUMENTS_AT_A_TIME)):
        for ids in encode_texts(tokenizer, some):
            if ids:
                yield np.array([*first, *ids, end], dtype=np.int32)
