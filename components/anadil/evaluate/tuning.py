"""Parts of held-out and retained text by which a candidate is tuned, and which no score uses."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from anadil.artifacts.scored_text import NO_SOURCES, ONE_IN, RETAINED_KEY, read_retained, tuning_part
from anadil.core.errors import DataError
from anadil.core.format import counted
from anadil.evaluate.heldout import Heldout
from anadil.recipe.sections import Recipe
from anadil.text.corpus import Document, read_corpora
from anadil.text.language import load_language

log = logging.getLogger(__name__)

NUMBERS = "or set base_share and weight to numbers"
"""Way out where there is nothing to tune by."""


def target_tuning(corpora: Sequence[Path]) -> tuple[Document, ...]:
    """Return the documents of corpora in the taught language by which a merge is tuned."""
    # Files of `evaluate.heldout` are never tuned by. The choice then does not depend on them, and figures on a public test
    # set compare with those of others.
    return tuning_part(document for document in read_corpora(corpora, "heldout") if document.text)[0]


def retained_tuning(
    recipe: Recipe, files: Sequence[str], sources: Mapping[str, Path] = NO_SOURCES
) -> tuple[Document, ...]:
    """Return the documents of languages that the base knows by which a merge is tuned; see `read_retained`."""
    read = read_retained(files, recipe.clean.text_field, sources)
    tuning = tuning_part(read)[0]
    # A source needs no part for tuning in a language that another text is in.
    counts = Counter(each.lang for each in read)
    measured = {each.lang for each in tuning}
    codes = {
        f"{name}_source" if f"{name}_source" in counts else name: load_language(
            recipe.of_source(name).language
        ).code
        for name in sources
    }
    languages = {codes.get(text, text).partition("-")[0] for text in measured}
    for text in {**counts, **codes}:
        if text in measured:
            continue
        count = counted(counts.get(text, 0), "document")
        # A small source holds out a document or two, and the program's English stands for an English one.
        if text in codes and languages & set(codes[text].split("-")):
            log.warning("source text %s has %s held out, and is not tuned by", text, count)
            continue
        place = (
            "clean.heldout_fraction of the source"
            if text in codes
            else f"the number of documents in {RETAINED_KEY}"
        )
        raise DataError(
            f"merge: the retained text {text} has {count} and none for tuning (one in {ONE_IN} is, unless none is left to "
            f"score); raise {place}, {NUMBERS}"
        )
    return tuning


def without_tuning(
    heldout: Heldout, retained: Sequence[Document], corpora: Sequence[Path]
) -> tuple[Heldout, tuple[Document, ...], dict[str, Any]]:
    """Return held-out and retained documents that nothing was tuned by, and the counts of both parts."""
    # Files lose only what the corpora's part repeats.
    texts = {document.text for document in target_tuning(corpora)}
    documents = tuple(document for document in heldout.documents if document.text not in texts)
    if not documents:
        raise DataError(
            f"evaluate.heldout: {', '.join(heldout.files)}: all {len(heldout.documents)} documents also stand in the "
            "part of the corpus by which the merge was tuned; name other files"
        )
    repeated = len(documents) - len({document.text for document in documents})
    tuning, scored = tuning_part(retained)
    of_tuning, of_scores = (Counter(document.lang for document in side) for side in (tuning, scored))
    counts: dict[str, Any] = {
        "heldout": {"tuning": len(heldout.documents) - len(documents), "scored": len(documents)},
        "retained": {text: {"tuning": of_tuning[text], "scored": count} for text, count in of_scores.items()},
    }
    listed = {"held-out text": counts["heldout"], **counts["retained"]}.items()
    log.info(
        "documents by which a candidate was tuned are not scored: %s",
        ", ".join(f"{each['tuning']} of {sum(each.values())} ({text})" for text, each in listed),
    )
    return replace(heldout, documents=documents, repeated=repeated), scored, counts
