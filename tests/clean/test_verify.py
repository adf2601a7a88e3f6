"""A corpus whose bytes are those of its manifest, and that is wrong all the same."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anadil.artifacts.artifact import Manifest, read_manifest
from anadil.clean.inspect.verify import verify_corpus
from anadil.core.errors import IntegrityError
from anadil.text.corpus import Document, read_documents, write_documents
from tests.clean.test_clean_verbs import make

__all__ = ["make"]


def rewritten(corpus: Path, change: Callable[[list[Document]], list[Document]]) -> None:
    documents = change(list(read_documents(corpus, "train")))
    for file in (corpus / "train").iterdir():
        file.unlink()
    write_documents(corpus, "train", documents)


def damaged_text(corpus: Path) -> None:
    rewritten(corpus, lambda found: [replace(found[0], text=found[0].text + "?"), *found[1:]])


def other_order(corpus: Path) -> None:
    rewritten(corpus, lambda found: found[::-1])


def one_lost(corpus: Path) -> None:
    rewritten(corpus, lambda found: found[1:])


def said_of_records(corpus: Path) -> None:
    stats: dict[str, Any] = json.loads((corpus / "stats.json").read_text())
    stats["records"] = {"train": 7}
    stats["kept"], stats["in"] = stats["kept"] + 1, stats["in"] + 1
    (corpus / "stats.json").write_text(json.dumps(stats))


@pytest.mark.parametrize(
    ("damage", "messages"),
    [
        (damaged_text, (r"is not the id of its text", r"its texts are not those of the manifest")),
        (other_order, (r"comes after", r"its texts are not those of the manifest")),
        (one_lost, (r"train: [\d,]+ documents, [\d,]+ in the manifest",)),
        (said_of_records, (r"records are \{'train': 7\}", r"stats/: [\d,]+ rows are kept, [\d,]+ in stats")),
    ],
)
def test_everything_that_is_wrong_is_told(
    damage: Callable[[Path], None], messages: tuple[str, ...], make: Callable[..., Path]
) -> None:
    corpus = make("one")
    manifest = read_manifest(str(corpus))
    assert isinstance(manifest, Manifest)
    assert set(verify_corpus(corpus, manifest)) == {"files", "documents", "counts"}

    damage(corpus)

    for message in messages:
        with pytest.raises(IntegrityError, match=message + r"[\s\S]*make the corpus again"):
            verify_corpus(corpus, manifest)
