"""The finalists of a trial: the best size of each strategy, by the rule of the tokenizer stage."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anadil.artifacts import artifact
from anadil.artifacts.base_model import read_tokenizer
from anadil.core.errors import DataError
from anadil.core.json_text import read_json
from anadil.recipe.sections import Strategy
from anadil.recipe.sections import Tokenizer as Settings
from anadil.tokenizer.candidate import TokenizerCandidate
from anadil.tokenizer.fertility import Fertility, TextFertility
from anadil.tokenizer.select import Cost, MeasuredCandidate, choose_candidate
from anadil.tokenizer.usage import usage_in

if TYPE_CHECKING:
    from tokenizers import Tokenizer
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from anadil.evaluate.heldout import refuse_no_heldout
from anadil.evaluate.models import EncodedDocuments, ScoredModel, encode_for_all, open_model
from anadil.runtime.job import Job
from anadil.text.corpus import Document, read_corpora
from anadil.text.language import load_language
from anadil.tokenizer.fertility import read_keep_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """The candidate that stands for a strategy."""

    strategy: Strategy
    name: str
    """Name in `fertility.json`."""
    folder: Path
    """Its directory in the tokenizer artifact."""
    reason: str
    """Reason for this one of the strategy's sizes."""


def find_finalists(artifact_folder: Path, settings: Settings) -> tuple[Finalist, ...]:
    """Find the best candidate of each strategy, in the order of the recipe."""
    table = read_json(artifact_folder / "fertility.json")["candidates"]
    measured = {
        name: _measured(entry, artifact_folder / "candidates" / name) for name, entry in table.items()
    }
    # A recipe that does not compare the base stores its figures alone, and nothing else is needed.
    base = measured["base"] or _measured(table["base"], artifact_folder)
    chosen = []
    for strategy in dict.fromkeys(settings.strategies):
        sizes = [each for each in measured.values() if each and each.candidate.strategy == strategy]
        if not sizes or base is None:
            raise DataError(
                f"{artifact_folder}: holds no candidate of the strategy {strategy}; take it out of tokenizer.strategies, "
                "or make the tokenizer again with this recipe"
            )
        rule = settings.model_copy(update={"choice": strategy, "trial": None})
        choice = choose_candidate(sizes, base, rule)
        name = choice.best.candidate.name
        folder = artifact_folder / "candidates" / name
        chosen.append(Finalist(strategy=strategy, name=name, folder=folder, reason=choice.reason))
    return tuple(chosen)


def sealed_copy(finalist: Finalist, target: Path) -> Path:
    """Copy its tokenizer into an artifact of its own, for pretrain."""
    if artifact.read_manifest(str(target)) is None:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(finalist.folder, target)
        artifact.seal(target, kind="tokenizer", origin={"candidate": finalist.name})
    return target


def _measured(entry: Mapping[str, Any], folder: Path) -> MeasuredCandidate | None:
    if not (folder / "tokenizer.json").is_file():
        return None
    tokenizer: Tokenizer = read_tokenizer(folder)
    candidate = TokenizerCandidate(
        strategy=entry["strategy"],
        asked=entry["asked"],
        got=entry["got"],
        tokenizer=tokenizer,
        usage=usage_in(entry),
    )
    kinds = {
        kind: {name: TextFertility(**text_figures) for name, text_figures in entry[kind].items()}
        for kind in ("domains", "keep")
    }
    figures = {each.name: entry[each.name] for each in fields(Fertility) if each.name in entry}
    # `fertility.json` leaves these out, and the choice ignores them.
    fertility = Fertility(**figures | kinds | {"changed_documents": (), "tokens_per_cpu_s": 0.0})
    return MeasuredCandidate(candidate=candidate, fertility=fertility, cost=Cost(**entry["cost"]))


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
