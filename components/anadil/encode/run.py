"""corpus, tokenizer -> tokens: the ids of all documents, and which of them training reads side by side.

python -m anadil.encode --recipe smoke --corpus DIR --tokenizer DIR --out DIR

It needs CPUs only. Without it training encodes by itself, on the machine with the GPUs.
"""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from anadil.artifacts import artifact, storage
from anadil.artifacts.uri import join
from anadil.core.errors import AnadilError
from anadil.core.json_text import read_json
from anadil.core.stages import STAGES
from anadil.runtime.executors.engines import executor_of_this_program
from anadil.runtime.job import Figures, Job
from anadil.tokens.make_tokens import make_tokens
from anadil.tokens.settings import Settings, settings_of
from anadil.tokens.tokens_file import EarlierFacts, TokensFacts

log = logging.getLogger(__name__)

STATS = "stats.json"
MAX_DRIFT = 0.3
"""More tokens a word in new text that are said as a warning. Of documents held back, samples of a fifth had up to 10 %
more in Azerbaijani and 30 % in Japanese; a kind of text alone up to 63 %, other languages 104 % and more. See
benchmarks/retrain. A tokenizer made anew costs a run from the base, since rows of the embeddings change their meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextCost:
    """Tokens that a text costs."""

    tokens_per_word: float
    """0: the language counts no words."""
    bytes_per_token: float

    @classmethod
    def of(cls, part: EarlierFacts, words_per_byte: float) -> Self:
        """Compute both; words are counted by `clean`, whose corpus holds documents that training leaves out."""
        # Without the two tokens round a document, or short documents would cost more.
        tokens, num_bytes = part.tokens - 2 * part.documents, part.bytes
        words = words_per_byte * num_bytes
        return cls(tokens_per_word=tokens / words if words else 0.0, bytes_per_token=num_bytes / tokens)

    def __str__(self) -> str:
        words = f"{self.tokens_per_word:.2f} tokens a word and " if self.tokens_per_word else ""
        return f"{words}{self.bytes_per_token:.2f} bytes a token"


def drift_of(facts: TokensFacts, corpus: Path, champions_corpus: str) -> Figures:
    """Compare the new part with the champion's, and say so; empty where one of them has no text."""
    old = facts.earlier
    later = EarlierFacts.of(facts.train[old.shards :], facts.blocks[old.blocks :])
    if not (old.documents and later.documents):
        return {}
    new_stats = read_json(corpus / STATS) if (corpus / STATS).is_file() else {}
    earlier = TextCost.of(old, _words_per_byte(*_stats_of_weeks(champions_corpus)))
    new = TextCost.of(later, _words_per_byte(new_stats))
    costs = {"earlier": earlier, "new": new}
    figures: Figures = {
        f"bytes_per_token_{name}": round(each.bytes_per_token, 3) for name, each in costs.items()
    }
    # A language without words has its bytes alone.
    ratio = earlier.bytes_per_token / new.bytes_per_token
    if earlier.tokens_per_word and new.tokens_per_word:
        ratio = new.tokens_per_word / earlier.tokens_per_word
        figures |= {f"tokens_per_word_{name}": round(each.tokens_per_word, 3) for name, each in costs.items()}
    figures["tokenizer_drift"] = round(ratio - 1, 4)
    log.log(
        logging.WARNING if ratio - 1 > MAX_DRIFT else logging.INFO,
        "new text has %s, the champion's %s: %+.1f %% tokens%s",
        new, earlier, 100 * (ratio - 1),
        "; a run from the base (anadil retrain --from-base) makes a tokenizer for it" if ratio - 1 > MAX_DRIFT else "",
    )  # fmt: skip
    return figures


def _words_per_byte(*stats: dict[str, object]) -> float:
    words, num_bytes = (
        sum(int(str(each.get(key, 0))) for each in stats) for key in ("words_out", "bytes_out")
    )
    return words / num_bytes if num_bytes else 0.0


def _stats_of_weeks(uri: str) -> Iterator[dict[str, object]]:
    """Counts of a corpus and of those that it was added to, as far as they are there: each has those of its own input."""
    while uri:
        try:
            manifest = artifact.read_manifest(uri)
            yield json.loads(storage.store(uri).read(join(uri, STATS)))
        except AnadilError as error:
            log.info("%s: its words are not counted: %s", uri, error)
            return
        clean = manifest.recipe.get("clean") if manifest else None
        uri = str(clean.get("since") or "") if isinstance(clean, dict) else ""


def run(job: Job) -> Figures:
    """Fill the artifact of tokens."""
    with executor_of_this_program(job) as executor:
        copies = job.copies if "://" in job.target else None
        settings = settings_of(job, job.recipe, STAGES["encode"])
        facts, entries = make_tokens(settings, job.out, job.work, executor, copies)
    job.entries.update(entries)
    job.records.update(train=facts.documents, heldout=sum(shard.documents for shard in facts.heldout))
    return {
        "documents": facts.documents,
        "tokens": facts.tokens,
        "sequences": facts.sequences,
        "bytes_per_token": round(facts.bytes / facts.tokens, 3),
        "left_out": sum(facts.left_out.values()),
        **_of_new_text(facts, settings),
    }


def _of_new_text(facts: TokensFacts, settings: Settings) -> Figures:
    if not settings.champion:
        return {}
    counts = ("documents", "tokens", "sequences")
    figures: Figures = {f"new_{name}": getattr(facts, name) - getattr(facts.earlier, name) for name in counts}
    return figures | drift_of(facts, settings.corpus, settings.champion["corpus"])
