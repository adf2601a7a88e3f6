"""Input of the token maker, for the stage and for training that encodes by itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anadil.artifacts import artifact
from anadil.core.stage import Stage
from anadil.core.stages import last_form
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job, is_written, source_of, word_of
from anadil.text.excluded import EXCLUDED, EXCLUDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Input of `make_tokens`, and what decides the tokens besides."""

    corpus: Path
    corpus_digest: str
    tokenizer: Path
    tokenizer_digest: str
    language: str
    sequence_length: int
    source: str = ""
    """Name in the recipe's `sources`; empty without them."""
    excluded: Path | None = None
    """File of documents to leave out."""
    excluded_digest: str = ""
    max_tokens: int | None = None
    """Tokens after which the source is cut."""
    reads_special: bool = False
    """True if the base wrote the source, whose chats have control tokens."""
    champion: Mapping[str, str] = field(default_factory=dict)
    """Artifacts of a retraining's champion; see `champion_places`."""

    @property
    def origin(self) -> dict[str, str]:
        """Everything that decides a shard, without the file of the corpus."""
        more = {"excluded": self.excluded_digest} if self.excluded else {}
        more |= {"special tokens": "read"} if self.reads_special else {}
        return {"corpus": self.corpus_digest, "tokenizer": self.tokenizer_digest, **more}


def settings_of(job: Job, recipe: Recipe, stage: Stage, corpus: str = "corpus") -> Settings:
    """The settings of a stage that encodes a corpus; `corpus` is its word."""
    tokenizer = job.inputs[last_form("tokenizer", job.inputs)]
    source = next(iter(recipe.sources), "")
    # The word has its source where the stage reads several, as a trial does.
    excluded = job.inputs.get(EXCLUDING, job.inputs.get(word_of(EXCLUDING, source_of(corpus))))
    return Settings(
        corpus=job.inputs[corpus],
        corpus_digest=artifact.digest_of(job.inputs[corpus]),
        tokenizer=tokenizer,
        tokenizer_digest=artifact.digest_of(tokenizer),
        language=recipe.language_code,
        sequence_length=recipe.pretrain.sequence_length,
        source=source,
        excluded=excluded / EXCLUDED if excluded else None,
        excluded_digest=artifact.digest_of(excluded) if excluded else "",
        max_tokens=recipe.sources[source].max_tokens if source else None,
        reads_special=is_written(recipe),
        champion=champion_places(recipe, source, stage.champion.artifacts),
    )


def champion_places(recipe: Recipe, source: str, kinds: Sequence[str]) -> dict[str, str]:
    """Kind -> URI of the champion's artifacts of a source; empty without a champion that knows the source."""
    champion = recipe.retrain.champion if recipe.retrain else None
    named = champion.artifacts if champion else {}
    places = {kind: named[word_of(kind, source)] for kind in kinds if word_of(kind, source) in named}
    return places if "corpus" in places else {}
