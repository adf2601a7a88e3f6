"""tokens, base -> probabilities: what the base expects behind each token of a source, which training keeps to.

python -m anadil.distill --recipe RECIPE --source en --tokens DIR --tokenizer DIR --out DIR

Parts of some documents are each whole or absent, so that a killed run resumes behind the last.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anadil.artifacts import artifact, sealed_dir
from anadil.artifacts.base_model import model_config
from anadil.artifacts.local_directory import link
from anadil.artifacts.scored_text import RETAINED_KEY, tuning_texts
from anadil.core.errors import RecipeError
from anadil.core.format import human_bytes
from anadil.core.json_text import read_json, write_json
from anadil.core.progress import progress
from anadil.core.stages import last_form
from anadil.distill.teach import BaseTeacher, Vocabulary
from anadil.estimate.fit import FITS
from anadil.estimate.model_shape import shape_from
from anadil.estimate.stage_memory import scoring_parts
from anadil.model.load import load_placed, load_tokenizer
from anadil.model.teacher import NONE
from anadil.model.tiny import base_model
from anadil.recipe.pretrain import probability_bytes
from anadil.runtime.cache_key import base_identity
from anadil.runtime.job import Figures, Job
from anadil.tokens.make_tokens import room_for
from anadil.tokens.packing import Ids, Places, TokenStream
from anadil.tokens.probabilities import PartFacts, ProbabilitiesFacts, TextScore, id_dtype
from anadil.tokens.stored_tokens import StoredTokens, open_tokens
from anadil.tokens.tensor_file import DTYPES, TensorWriter

log = logging.getLogger(__name__)

PART_TOKENS = 2**18
"""Tokens after which a part ends, with a whole document: minutes of work for a kill to undo, 26 MB."""
PART, FACTS = "part.safetensors", "facts.json"
"""Files of a part's folder."""
MUCH_CUT = 1.05
"""Tokens of the base for one of its own cut, from which on its probabilities are of text as it never read it. Chosen by us."""


def run(job: Job) -> Figures:
    """Fill the artifact with `part-*.safetensors` and `probabilities.json`."""
    stream = job.streams["tokens"]
    tokens = open_tokens(stream.uri, stream.manifest)
    tokenizer, k = job.inputs[last_form("tokenizer", job.inputs)], job.recipe.pretrain.distillation.top_k
    facts, length = tokens.facts, tokens.facts.sequence_length
    digests = {"tokenizer": artifact.digest_of(tokenizer), "stream": facts.stream}
    about: dict[str, Any] = {"base": base_identity(job.recipe.base), "k": k, **digests}
    origin = {name: str(value) for name, value in {**about, "length": length}.items()}
    folder = job.work / f"probabilities-{artifact.origin_key(origin)}"
    teacher = _teacher(job, tokenizer, k, facts.vocabulary)
    scores, cut_otherwise = _scores(job, teacher, tokens, tokenizer)
    parts, counts = [], Counter[str]()
    num_bytes = probability_bytes(k, facts.vocabulary) * facts.tokens
    room = f"the probabilities of the base, {human_bytes(num_bytes)}"
    with room_for(folder, room), progress("tokens", facts.tokens) as bar:
        for number, (name, starts, ids) in enumerate(_documents(tokens)):
            place, file = folder / f"part-{number:05}", f"part-{number:05}.safetensors"
            if not sealed_dir.verify(place, origin | {"part": str(number)}):
                part = TokenStream(ids=ids, starts=starts, digest="", bos=facts.bos)
                with sealed_dir.create(place, origin | {"part": str(number)}) as draft:
                    _write(draft, teacher, part, tokens, name)
            made = read_json(place / FACTS)
            link(place / PART, job.out / file)
            parts.append(PartFacts(file=file, tokens=len(ids), crc32=made["crc32"]))
            counts.update(made["counts"])
            bar.advance(len(ids))
            job.stop.check()
    positions = counts.pop("positions")
    ProbabilitiesFacts(
        **about, source=facts.source, vocabulary=facts.vocabulary, tokens=facts.tokens, positions=positions,
        left_out=dict(counts), cut_otherwise=cut_otherwise, scores=scores, parts=tuple(parts),
    ).write(job.out)  # fmt: skip
    if not positions:
        raise RecipeError(
            f"sources.{facts.source}.teacher: no token of its text is one of the base's; leave `teacher` out, or "
            "set tokenizer.choice to extend"
        )
    return {"positions": positions, "left_out": counts.total(), "bytes": num_bytes}


def _scores(
    job: Job, teacher: BaseTeacher, tokens: StoredTokens, tokenizer: Path
) -> tuple[dict[str, TextScore], int]:
    """Return the base's loss on the texts that training is scored on, and the held-out documents that it cuts otherwise."""
    facts, num, recipe = tokens.facts, job.recipe.pretrain.validate_documents, job.recipe
    documents, num_bytes = tokens.heldout(num)
    decode = partial(load_tokenizer(tokenizer).decode, clean_up_tokenization_spaces=False)
    [(source, settings)] = recipe.sources.items()
    by_base = teacher.encode(
        [decode(ids[1:]) for ids in documents], reads_special=settings.written_by is not None
    )
    encoded = {source: (by_base, num_bytes)} if documents else {}
    cuts = [
        (teacher.vocabulary.expand(ids[1:]), alone[1:]) for ids, alone in zip(documents, by_base, strict=True)
    ]
    cut_otherwise = sum(not np.array_equal(*pair) for pair in cuts)
    pieces, alone = (sum(map(len, each)) for each in zip(*cuts, strict=True)) if cuts else (0, 0)
    if pieces > MUCH_CUT * alone:
        log.warning(
            "sources.%s.teacher: its held-out text takes %s tokens of the base as this vocabulary cuts it, and %s as the base does. "
            "Probabilities are then those of text as the base never read it: set tokenizer.choice to extend, or leave `teacher` out",
            source, f"{pieces:,}", f"{alone:,}",
        )  # fmt: skip
    if recipe.finds_teacher_weight:
        files, text_field = job.side_files.get(RETAINED_KEY, ()), recipe.retained_text_field
        for name, texts in tuning_texts(files, text_field, num).items():
            encoded[name] = teacher.encode(texts), sum(len(text.encode()) for text in texts)
    return {
        name: TextScore(
            documents=len(ids), bytes=size,
            nats=teacher.nats(ids, facts.sequence_length, name, sets_bos=facts.bos is not None),
        )
        for name, (ids, size) in encoded.items()
    }, cut_otherwise  # fmt: skip


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


def _teacher(job: Job, tokenizer: Path, k: int, num_ids: int) -> BaseTeacher:
    base = base_model(job.recipe.base, job.base_cache)
    config: dict[str, Any] = model_config(base)
    model = load_placed(
        base, "base", lambda count: scoring_parts(shape_from(config, "base"), count, on_gpu=True), FITS
    )
    num_base = len(model.get_output_embeddings().weight)
    if k > num_base:
        raise RecipeError(f"pretrain.distillation.top_k: {k} tokens, and the base has {num_base:,}; lower it")
    return BaseTeacher(model, base, Vocabulary(tokenizer, num_base, num_ids), k)


def _write(draft: Path, teacher: BaseTeacher, part: TokenStream, tokens: StoredTokens, name: str) -> None:
    ids, logs, left_out = teacher.probabilities(part, tokens.facts.sequence_length, name)
    dtype = id_dtype(tokens.facts.vocabulary)
    with TensorWriter(draft / PART) as out:
        # `NONE` becomes the largest number.
        out.write("ids", dtype, ids.astype(DTYPES[dtype]))
        out.write("logs", "F16", logs)
    counts = {**left_out, "positions": int((ids != NONE).any(1).sum())}
    write_json(draft / FACTS, {"crc32": out.table_crc, "counts": counts})
