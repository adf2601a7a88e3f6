"""tokens, base -> probabilities: what the base expects behind each token of a source, which training keeps to.

python -m anadil.distill --recipe RECIPE --source en --tokens DIR --tokenizer DIR --out DIR

Parts of some documents are each whole or absent, so that a killed run resumes behind the last.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from anadil.artifacts import artifact, sealed_dir
from anadil.artifacts.base_model import model_config
from anadil.artifacts.local_directory import link
from anadil.core.errors import RecipeError
from anadil.core.format import human_bytes, human_percent
from anadil.core.json_text import read_json, write_json
from anadil.core.progress import progress
from anadil.core.stages import last_form
from anadil.distill.teach import BaseTeacher, Vocabulary
from anadil.estimate.memory import FITS
from anadil.estimate.model_shape import shape_from
from anadil.estimate.stage_memory import scoring_parts
from anadil.model.load import load_placed
from anadil.model.teacher import NONE
from anadil.model.tiny import base_model
from anadil.runtime.cache_key import base_identity
from anadil.runtime.job import Figures, Job
from anadil.tokens.make_tokens import room_for
from anadil.tokens.packing import Ids, Places, TokenStream, stream_of
from anadil.tokens.probabilities import PartFacts, ProbabilitiesFacts, id_dtype, token_bytes
from anadil.tokens.stored_tokens import StoredTokens, open_tokens
from anadil.tokens.tensor_file import DTYPES, TensorWriter

log = logging.getLogger(__name__)

PART_TOKENS = 2**18
"""Tokens after which a part ends, with a whole document: minutes of work for a kill to undo, 26 MB."""
PART, FACTS = "part.safetensors", "facts.json"
"""Files of a part's folder."""


def run(job: Job) -> Figures:
    """Fill the artifact with `part-*.safetensors` and `probabilities.json`."""
    stream = job.streams["tokens"]
    tokens = open_tokens(stream.uri, stream.manifest)
    tokenizer, k = job.inputs[last_form("tokenizer", job.inputs)], job.recipe.pretrain.distillation.top_k
    about: dict[str, Any] = {
        "base": base_identity(job.recipe.base),
        "tokenizer": artifact.digest_of(tokenizer),
        "stream": tokens.facts.stream,
        "k": k,
    }
    origin = {name: str(value) for name, value in about.items()} | {
        "length": str(tokens.facts.sequence_length)
    }
    folder = job.work / f"probabilities-{artifact.origin_key(origin)}"
    parts, counts, teacher = [], Counter[str](), None
    started, made = time.perf_counter(), 0
    size = token_bytes(k, tokens.facts.vocabulary)
    room = f"the probabilities of the base, {human_bytes(size * tokens.facts.tokens)}"
    with room_for(folder, room), progress("tokens", tokens.facts.tokens) as bar:
        for number, (name, starts, ids) in enumerate(_documents(tokens)):
            place = folder / f"part-{number:05}"
            if not sealed_dir.verify(place, origin | {"part": str(number)}):
                teacher = teacher or _teacher(job, tokenizer, k)
                part = TokenStream(ids=ids, starts=starts, digest="", bos=tokens.facts.bos)
                with sealed_dir.create(place, origin | {"part": str(number)}) as draft:
                    _write(draft, teacher, part, tokens, name)
                made += len(ids)
            facts = read_json(place / FACTS)
            file = f"part-{number:05}.safetensors"
            link(place / PART, job.out / file)
            parts.append(PartFacts(file=file, tokens=len(ids), crc32=facts["crc32"]))
            counts.update(facts["counts"])
            bar.advance(len(ids))
            job.stop.check()
        documents, num_bytes = tokens.heldout(job.recipe.pretrain.validate_documents)
        nats = 0.0
        if documents:
            teacher = teacher or _teacher(job, tokenizer, k)
            nats = teacher.nats(stream_of(documents, tokens.facts.bos), tokens.facts.sequence_length)
    positions = counts.pop("positions")
    ProbabilitiesFacts(
        **about, source=tokens.facts.source, vocabulary=tokens.facts.vocabulary, tokens=tokens.facts.tokens,
        positions=positions, left_out=dict(counts), heldout_documents=len(documents), heldout_bytes=num_bytes,
        heldout_nats=nats, parts=tuple(parts),
    ).write(job.out)  # fmt: skip
    left_out = sum(counts.values())
    if left_out:
        reasons = ", ".join(f"{name} {num:,}" for name, num in counts.items() if num)
        log.info(
            "%s of %s predicted tokens have no teacher (%s): %s",
            f"{left_out:,}", f"{left_out + positions:,}", human_percent(left_out / (left_out + positions)), reasons,
        )  # fmt: skip
    if not positions:
        raise RecipeError(
            f"sources.{tokens.facts.source}.teacher: no token of its text is one of the base's; leave `teacher` out, or "
            "set tokenizer.choice to extend"
        )
    activation = DTYPES["F16"].itemsize * int(
        model_config(base_model(job.recipe.base, job.base_cache))["hidden_size"]
    )
    log.info("%s bytes a token, %.3f of a hidden state in BF16", size, size / activation)
    return {
        "positions": positions,
        "left_out": left_out,
        "bytes": size * tokens.facts.tokens,
        "tokens_per_s": round(made / (time.perf_counter() - started), 1),
    }


def _documents(tokens: StoredTokens) -> Iterator[tuple[str, Places, Ids]]:
    """Yield name, begins and ids of some whole documents at a time, in the order of the stream."""
    for shard, (starts, ids) in zip(tokens.facts.train, tokens.documents("train"), strict=True):
        first = 0
        while first < shard.documents:
            reach = int(np.searchsorted(starts, starts[first] + PART_TOKENS, side="right")) - 1
            last = max(first + 1, reach)
            name = f"{tokens.uri}: {shard.file}, documents from {first:,} on"
            yield name, starts[first : last + 1] - starts[first], ids[starts[first] : starts[last]]
            first = last


def _teacher(job: Job, tokenizer: Path, k: int) -> BaseTeacher:
    base = base_model(job.recipe.base, job.base_cache)
    config: dict[str, Any] = model_config(base)
    model = load_placed(
        base, "base", lambda count: scoring_parts(shape_from(config, "base"), count, on_gpu=True), FITS
    )
    num_base = len(model.get_output_embeddings().weight)
    if k > num_base:
        raise RecipeError(f"pretrain.distillation.top_k: {k} tokens, and the base has {num_base:,}; lower it")
    return BaseTeacher(model, base, Vocabulary(tokenizer, num_base), k)


def _write(draft: Path, teacher: BaseTeacher, part: TokenStream, tokens: StoredTokens, name: str) -> None:
    ids, logs, left_out = teacher.probabilities(part, tokens.facts.sequence_length, name)
    dtype = id_dtype(tokens.facts.vocabulary)
    with TensorWriter(draft / PART) as out:
        # `NONE` becomes the largest number.
        out.write("ids", dtype, ids.astype(DTYPES[dtype]))
        out.write("logs", "F16", logs)
    counts = {**left_out, "positions": int((ids != NONE).any(1).sum())}
    write_json(draft / FACTS, {"crc32": out.table_crc, "counts": counts})
