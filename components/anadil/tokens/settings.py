"""Input of the token maker, for the stage and for training that encodes by itself."""

from collections.abc import Mapping
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
    """Kind -> URI of the champion's artifacts; empty without a champion that knows the source."""

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
    champion = recipe.retrain.champion if recipe.retrain else None
    words = {kind: word_of(kind, source) for kind in stage.champion.artifacts}
    places = {
        kind: champion.artifacts[word]
        for kind, word in words.items()
        if champion and word in champion.artifacts
    }
    return Settings(
        corpus=job.inputs[corpus], corpus_digest=artifact.digest_of(job.inputs[corpus]),
        tokenizer=tokenizer, tokenizer_digest=artifact.digest_of(tokenizer),
        language=recipe.language_code, sequence_length=recipe.pretrain.sequence_length, source=source,
        excluded=excluded / EXCLUDED if excluded else None,
        excluded_digest=artifact.digest_of(excluded) if excluded else "",
        max_tokens=recipe.sources[source].max_tokens if source else None, reads_special=is_written(recipe),
        champion=places if "corpus" in places else {},
    )  # fmt: skip
