"""The texts that every finalist is scored on: the corpus's held-out part, and those of `tokenizer.keep`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anadil.evaluate.heldout import refuse_no_heldout
from anadil.evaluate.models import EncodedDocuments, ScoredModel, encode_for_all, open_model
from anadil.runtime.job import Job
from anadil.text.corpus import Document, read_corpora
from anadil.text.language import load_language
from anadil.tokenizer.samples import read_keep_texts
from anadil.trial.finalists import Finalist

TARGET = "target"
"""Name of the corpus's held-out text, beside the names of `tokenizer.keep`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTexts:
    """Documents that every finalist's tokenizer gives back unchanged, in its tokens."""

    kinds: Mapping[str, EncodedDocuments]
    """`target`, and each name of `tokenizer.keep`."""
    models: Mapping[str, ScoredModel]
    """By finalist: its tokenizer and the tokens before documents."""
    num_words: int
    """Words of the held-out text, as its language counts them."""

    def num_bytes(self, kind: str) -> NDArray[np.int64]:
        """UTF-8 bytes of each document."""
        return self.kinds[kind].num_bytes

    def num_tokens(self, kind: str, finalist: str) -> int:
        """Tokens of all documents under a finalist, without special tokens."""
        return sum(len(ids) for ids in self.kinds[kind].ids[finalist])


def read_texts(job: Job, finalists: Sequence[Finalist]) -> TrialTexts:
    """Read and encode the texts with all finalists, so that each is scored on the same bytes."""
    models = [open_model(each.name, each.folder) for each in finalists]
    corpora = list(job.of_sources("corpus").values())
    heldout = [document for document in read_corpora(corpora, "heldout") if document.text]
    refuse_no_heldout(len(heldout), [f"{corpus}/heldout" for corpus in corpora])
    kinds = {TARGET: encode_for_all(models, heldout)}
    for name, texts in read_keep_texts(job).items():
        documents = [
            Document(id=f"{name}-{number}", text=text, source=name, url="", lang=name)
            for number, text in enumerate(texts)
        ]
        kinds[name] = encode_for_all(models, documents)
    words = load_language(job.recipe.language).words
    return TrialTexts(
        kinds=kinds,
        models={model.name: model for model in models},
        num_words=sum(len(words(document.text)) for document in kinds[TARGET].documents),
    )
