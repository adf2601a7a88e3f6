"""base -> written: text that the base model writes itself, which `clean` reads as any other, against forgetting.

python -m anadil.replay --recipe RECIPE --source self --out DIR

It reads the base and nothing else, so a base writes once for all corpora, tokenizers and phases. Documents are made in
shards, each whole or absent, so that a killed run resumes behind the last.
"""

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import zstandard

from anadil.artifacts import sealed_dir
from anadil.artifacts.base_model import model_config
from anadil.artifacts.local_directory import link
from anadil.core.errors import DataError
from anadil.core.format import counted, human_percent
from anadil.core.json_text import read_json, write_indented, write_json
from anadil.core.progress import progress
from anadil.core.stages import STAGES
from anadil.model.load import load_placed, load_tokenizer
from anadil.model.tiny import base_model
from anadil.plan.memory import FITS
from anadil.plan.model_shape import shape_from
from anadil.plan.stage_memory import MAX_TOKENS, SHARD_DOCUMENTS, evaluate_parts
from anadil.replay.write_documents import SAMPLING, Writer, WrittenDocument
from anadil.runtime.cache_key import base_files, result_version
from anadil.runtime.job import Figures, Job
from anadil.text.written import ABOUT, part_name

log = logging.getLogger(__name__)

ENOUGH = 64
"""Documents after which a base is refused that has written nothing of use; the first shard has no more."""
SAMPLES, SAMPLE_CHARS = 3, 200
FACTS, DOCUMENTS = "facts.json", "documents.jsonl.zst"
"""Files of a shard's folder."""
FORMAT_VERSION = 1


def run(job: Job) -> Figures:
    """Fill the artifact with `part-*.jsonl.zst` and `written.json`."""
    (source,) = job.recipe.sources.values()
    assert source.tokens is not None
    shards = list(_shards(job, source.tokens))
    facts = [read_json(shard / FACTS) for shard in shards]
    filled = [shard for shard, each in zip(shards, facts, strict=True) if each["documents"]]
    for number, shard in enumerate(filled):
        link(shard / DOCUMENTS, job.out / part_name(number))
    about = _about(job, facts)
    write_indented(job.out / ABOUT, about, 2)
    job.records.update(documents=about["documents"], chats=about["chats"])
    _refuse_nothing(job, facts)
    if about["dropped"]:
        log.warning(
            "%s of %s were dropped: %s", f"{sum(about['dropped'].values()):,}",
            counted(about["written"], "document"), _reasons(about["dropped"]),
        )  # fmt: skip
    return {
        "documents": about["documents"],
        "chats": about["chats"],
        "tokens": about["tokens"],
        "dropped": sum(about["dropped"].values()),
        "tokens_per_s": round(about["tokens"] / sum(each["seconds"] for each in facts), 1),
    }


def _shards(job: Job, tokens: int) -> Iterator[Path]:
    """Yield the folder of each shard, made or left by a killed run, until the base has written so many tokens."""
    folder, writer = job.work / "shards", None
    # With `--out` the work directory is that place's, whatever the recipe was before.
    base = job.recipe.base
    origin = {"base": base.model, "revision": str(base.revision), **base_files(base.model)}
    origin |= {"seed": str(job.recipe.seed), "tokens": str(tokens), **result_version(STAGES["replay"])}
    begun: list[dict[str, Any]] = []
    with progress("written", tokens) as bar:
        for number in count():
            written = sum(each["tokens"] for each in begun)
            if written >= tokens:
                return
            first = sum(each["written"] for each in begun)
            shard = folder / f"shard-{number:05}"
            if not sealed_dir.verify(shard, origin):
                writer = writer or _writer(job)
                # As many as the rest needs at the mean length so far, so that little is written beyond it.
                mean = written / first if first else writer.max_tokens
                # The first shard is small: it tells a base of no use, and how long documents are.
                most = SHARD_DOCUMENTS if number else ENOUGH
                size = min(most, math.ceil((tokens - written) / max(1, mean)))
                with sealed_dir.create(shard, origin) as draft:
                    started = time.perf_counter()
                    documents = writer.write(range(first, first + size))
                    _write_shard(documents, time.perf_counter() - started, draft)
            begun.append(read_json(shard / FACTS))
            bar.advance(min(begun[-1]["tokens"], tokens - written))
            if first + begun[-1]["written"] >= ENOUGH:
                _refuse_nothing(job, begun)  # rather than write millions of tokens of it
            yield shard
            job.stop.check()


def _writer(job: Job) -> Writer:
    base = job.recipe.base
    path = base_model(base, job.base_cache)
    model = load_placed(
        path, "base", lambda count: evaluate_parts(shape_from(model_config(path), "base"), count, on_gpu=True), FITS
    )  # fmt: skip
    return Writer(model, load_tokenizer(path), job.recipe.seed, base.model)


def _write_shard(documents: list[WrittenDocument], seconds: float, draft: Path) -> None:
    usable = [each for each in documents if not each.dropped]
    lines = "".join(json.dumps(each.as_row(), ensure_ascii=False) + "\n" for each in usable)
    (draft / DOCUMENTS).write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(lines.encode()))
    dropped = [each for each in documents if each.dropped]
    facts = {
        "written": len(documents),
        "tokens": sum(each.tokens for each in documents),
        "seconds": seconds,
        "documents": len(usable),
        "chats": sum(each.kind == "chat" for each in usable),
        "dropped": dict(Counter(f"{each.kind} {each.dropped}" for each in dropped)),
        "samples": [each.text[:SAMPLE_CHARS] for each in (usable or dropped)[:SAMPLES]],
    }
    write_json(draft / FACTS, facts)


def _about(job: Job, facts: list[dict[str, Any]]) -> dict[str, Any]:
    sums = {name: sum(each[name] for each in facts) for name in ("written", "tokens", "documents", "chats")}
    return {
        "format_version": FORMAT_VERSION,
        "base": job.recipe.base.model,
        "revision": job.recipe.base.revision,
        "seed": job.recipe.seed,
        "sampling": {part: {"temperature": each[0], "top_p": each[1]} for part, each in SAMPLING.items()},
        "max_tokens": MAX_TOKENS,
        **sums,
        "dropped": _dropped(facts),
    }


def _dropped(facts: list[dict[str, Any]]) -> dict[str, int]:
    total = Counter[str]()
    for each in facts:
        total.update(each["dropped"])
    return dict(total.most_common())


def _refuse_nothing(job: Job, facts: list[dict[str, Any]]) -> None:
    """Refuse a base that has written nothing of use."""
    if any(each["documents"] for each in facts):
        return
    texts = [text for each in facts for text in each["samples"]][:SAMPLES]
    total = sum(each["written"] for each in facts)
    raise DataError(
        f"sources.{next(iter(job.recipe.sources))}: the base {job.recipe.base.model} writes nothing of use: "
        f"{counted(total, 'document')} written, all dropped: {_reasons(_dropped(facts))}; it wrote "
        f"{', '.join(map(repr, texts))}; check base.model, or give real text as `inputs` in place of written_by"
    )


def _reasons(dropped: dict[str, int]) -> str:
    total = sum(dropped.values())
    return ", ".join(f"{name} {num:,} ({human_percent(num / total)})" for name, num in dropped.items())
