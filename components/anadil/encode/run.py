"""corpus, tokenizer -> tokens: the ids of all documents, and which of them training reads side by side.

python -m anadil.encode --recipe smoke --corpus DIR --tokenizer DIR --out DIR

It needs CPUs only. Without it training encodes by itself, on the machine with the GPUs.
"""

import importlib.util
import logging

from anadil.artifacts import artifact
from anadil.core.errors import DataError
from anadil.encode.drift import drift_of
from anadil.encode.earlier_tokens import EXCLUDED, champion_places
from anadil.encode.make_tokens import Settings, make_tokens
from anadil.encode.tokens_file import TokensFacts
from anadil.recipe.sections import Recipe
from anadil.runtime.executor import Executor
from anadil.runtime.executors import processes
from anadil.runtime.executors.engines import LOCAL_ENGINES, executor_of
from anadil.runtime.job import Figures, Job, is_written, source_of, word_of

log = logging.getLogger(__name__)


def run(job: Job) -> Figures:
    """Fill the artifact of tokens."""
    with _executor(job) as executor:
        copies = job.copies if "://" in job.target else None
        settings = settings_of(job, job.recipe)
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
    """Figures of a retraining: its new part, and how the tokenizer suits it."""
    if not settings.champion:
        return {}
    figures: Figures = {
        "new_documents": facts.documents - facts.earlier.documents,
        "new_tokens": facts.tokens - facts.earlier.tokens,
        "new_sequences": facts.sequences - facts.earlier.sequences,
    }
    return figures | drift_of(facts, settings.corpus, settings.champion["corpus"])


def settings_of(job: Job, recipe: Recipe, corpus: str = "corpus") -> Settings:
    """The settings of a run of the stage, or of training that encodes a corpus by itself; `corpus` is its word."""
    tokenizer = job.inputs.get("trial", job.inputs["tokenizer"])
    source = next(iter(recipe.sources), "")
    # The word has its source where the stage reads several, as a trial does.
    excluded = job.inputs.get("overlap", job.inputs.get(word_of("overlap", source_of(corpus))))
    return Settings(
        corpus=job.inputs[corpus],
        corpus_digest=digest_of(job.inputs[corpus]),
        tokenizer=tokenizer,
        tokenizer_digest=digest_of(tokenizer),
        language=recipe.language_code,
        sequence_length=recipe.pretrain.sequence_length,
        source=source,
        excluded=excluded / EXCLUDED if excluded else None,
        excluded_digest=digest_of(excluded) if excluded else "",
        max_tokens=recipe.sources[source].max_tokens if source else None,
        reads_special=is_written(recipe),
        champion=champion_places(recipe, source),
    )


def digest_of(path: object) -> str:
    """Digest of an artifact's manifest; `DataError` without one."""
    manifest = artifact.read_manifest(str(path))
    if manifest is None:
        raise DataError(f"{path}: no finished artifact there; run the stage that writes it")
    return manifest.digest


def _executor(job: Job) -> Executor:
    """The executor that cleans, where this program has it; else processes of this machine."""
    engine = job.recipe.clean.engine
    if engine in LOCAL_ENGINES and (engine != "ray" or importlib.util.find_spec("ray")):
        return executor_of(job)
    log.info("clean.engine: %s works for clean alone here; encoding in processes of this machine", engine)
    return processes.executor(job)
