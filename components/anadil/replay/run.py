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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
import zstandard

from anadil.artifacts import sealed_dir
from anadil.artifacts.base_model import model_config
from anadil.artifacts.local_directory import link
from anadil.core.errors import DataError
from anadil.core.format import counted, human_percent
from anadil.core.json_text import read_json, write_indented, write_json
from anadil.core.progress import progress
from anadil.core.stages import STAGES
from anadil.estimate.fit import FITS
from anadil.estimate.model_shape import shape_from
from anadil.estimate.stage_memory import scoring_parts
from anadil.model.chat_ids import ControlWords, chat_ids
from anadil.model.chat_template import rendered
from anadil.model.decoding import TEMPERATURE, TOP_P, Continuation, open_decoder, sample_seed, text_of
from anadil.model.gguf_layers import of_kind
from anadil.model.load import document_ids, load_placed, load_tokenizer
from anadil.model.template_limits import RAISED
from anadil.model.tiny import base_model
from anadil.replay.need import MAX_TOKENS, SHARD_DOCUMENTS, batch_tokens, cache_bytes
from anadil.runtime.cache_key import base_files, result_version
from anadil.runtime.job import Figures, Job
from anadil.text.metrics import is_loop
from anadil.text.written import ABOUT, part_name

log = logging.getLogger(__name__)

QUESTION_TOKENS, ANSWER_TOKENS = 256, 1_024
"""Most tokens of a chat's question and answer. A chat that does not end by then is dropped: it would teach to break off."""
SAMPLING = {"text": (1.0, 1.0), "question": (1.0, 1.0), "answer": (TEMPERATURE, TOP_P)}
"""Temperature and top-p of each part. At 1 and 1 every id is drawn as often as the base would have it, so that training on
the text moves the base nowhere by itself. Source: sampling in the code of arXiv:2605.26097, questions of arXiv:2406.08464
(Magpie). Answers are drawn as people get them: at 1, a base of 135M ended none of 4 within 1,024 tokens. Magpie's are greedy,
which lets small bases loop."""
CHAT_EVERY = 2
"""One document of so many is a chat, where the base was taught chats. Chosen by us: text and chats may both be forgotten,
and no one has published a share."""
PROBES = 8
"""Chats that are begun to see whether the base writes chats: many a base has a template that it was never taught."""
PLACE = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands for the user's words while a template is cut in two."""
CUT_OFF = "\N{REPLACEMENT CHARACTER}"
"""Ends a text whose last token is a part of a letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenDocument:
    """A text that the base wrote."""

    number: int
    kind: str
    """`text` or `chat`."""
    text: str
    tokens: int
    """Tokens that were sampled, the end token too."""
    dropped: str = ""
    """Reason why it is of no use: `empty`, `loop`, `control` (it spells a control token), `unended` (a chat)."""

    def as_row(self) -> dict[str, str | int]:
        """Row of the artifact."""
        return {"text": self.text, "number": self.number, "kind": self.kind}


class Writer:
    """A base that writes."""

    def __init__(self, model: Any, tokenizer: Any, seed: int, name: str) -> None:
        """Take a model on its device, and its tokenizer; `name` is for messages."""
        self._decoder, self._tokenizer, self._seed = open_decoder(model, tokenizer), tokenizer, seed
        self._begin = document_ids(tokenizer, name)[0]
        self._words = ControlWords(tokenizer)
        longest = getattr(model.config, "max_position_embeddings", None) or MAX_TOKENS + 1
        # One token begins the document.
        self.max_tokens = min(MAX_TOKENS, longest - 1)
        self._batch_tokens = _batch_tokens(model)
        self._prefix = self._question_prefix()
        if self._prefix and not self._asks():
            log.info(
                "%s: has a chat template, and ends none of %d questions: it writes no chats", name, PROBES
            )
            self._prefix = []

    @property
    def writes_chats(self) -> bool:
        """True if some of its documents are chats."""
        return bool(self._prefix)

    def write(self, numbers: Sequence[int]) -> list[WrittenDocument]:
        """Write the documents of these numbers, in order."""
        chats = [number for number in numbers if self.writes_chats and number % CHAT_EVERY == CHAT_EVERY - 1]
        texts = [number for number in numbers if number not in {*chats}]
        written = [*self._texts(texts), *self._chats(chats)]
        return sorted(written, key=lambda each: each.number)

    def _texts(self, numbers: Sequence[int]) -> list[WrittenDocument]:
        rows = self._continued("text", {number: [self._begin] for number in numbers}, self.max_tokens)
        return [self._judged(number, "text", row) for number, row in rows.items()]

    def _chats(self, numbers: Sequence[int]) -> list[WrittenDocument]:
        """Write questions behind the beginning of a user's turn, then the answers. Source: arXiv:2406.08464."""
        asked = self._continued("question", dict.fromkeys(numbers, self._prefix), QUESTION_TOKENS)
        chats = {number: self._judged(number, "chat", row) for number, row in asked.items()}
        turns = {
            number: [{"role": "user", "content": each.text}]
            for number, each in chats.items()
            if not each.dropped
        }
        prompts = {
            number: chat_ids(self._tokenizer, each, add_generation_prompt=True)
            for number, each in turns.items()
        }
        for number, row in self._continued("answer", prompts, ANSWER_TOKENS).items():
            answer = self._judged(number, "chat", row)
            whole = replace(answer, tokens=answer.tokens + chats[number].tokens)
            chats[number] = whole if whole.dropped else self._in_template(whole, turns[number])
        return list(chats.values())

    def _in_template(self, answer: WrittenDocument, turns: list[dict[str, str]]) -> WrittenDocument:
        """Return a chat as its template writes it, without the BOS that every document gets."""
        turns = [*turns, {"role": "assistant", "content": answer.text}]
        text = str(rendered(self._tokenizer, turns, tokenize=False))
        return replace(answer, text=text.removeprefix(self._tokenizer.bos_token or "").strip())

    def _judged(self, number: int, kind: str, row: Continuation) -> WrittenDocument:
        text = text_of(self._tokenizer, row.tokens).rstrip(CUT_OFF).strip()
        dropped = ""
        if not text:
            dropped = "empty"
        elif kind == "chat" and not row.ended:
            dropped = "unended"
        elif is_loop(row.tokens):
            dropped = "loop"
        elif self._words.pattern.search(text):
            # Encoding reads such letters as the token in all that the base wrote: only templates may write them.
            dropped = "control"
        return WrittenDocument(
            number=number, kind=kind, text=text, dropped=dropped, tokens=len(row.tokens) + row.ended
        )  # fmt: skip

    def _continued(
        self, part: str, prompts: Mapping[int, Sequence[int]], most: int
    ) -> dict[int, Continuation]:
        """Return number -> continuation of its prompt, each drawn by a generator of its own."""
        numbers, (temperature, top_p) = list(prompts), SAMPLING[part]
        rows: Iterable[tuple[int, list[Continuation]]] = self._decoder.batches(
            list(prompts.values()), [[sample_seed(self._seed, f"{part} {number}")] for number in numbers],
            max_new_tokens=most, batch_tokens=self._batch_tokens, temperature=temperature, top_p=top_p,
        )  # fmt: skip
        return {numbers[place]: continuation for place, [continuation] in rows}

    def _question_prefix(self) -> list[int]:
        """Return the ids before a user's first words in the template; nothing where the base has no template."""
        if self._tokenizer.chat_template is None:
            return []
        turns = [{"role": "user", "content": PLACE}]
        try:
            before, place, _ = str(rendered(self._tokenizer, turns, tokenize=False)).partition(PLACE)
        except RAISED as error:
            log.warning("the chat template refuses a question (%s), so the base writes no chats", error)
            return []
        return list(self._tokenizer.encode(before, add_special_tokens=False)) if place else []

    def _asks(self) -> bool:
        """Return whether the base ends one of a few questions, and not as a document ends alone."""
        # Numbers of their own: no document is one of them.
        prompts = dict.fromkeys(range(-PROBES, 0), self._prefix)
        rows = self._continued("question", prompts, QUESTION_TOKENS).values()
        return any(row.ended and text_of(self._tokenizer, row.tokens).strip() for row in rows)


def _batch_tokens(model: Any) -> int | None:
    """Return the tokens that are written side by side; None: as many as the decoder takes by itself."""
    if model.device.type != "cuda":
        return None
    config = model.config
    # Gemma 4 has wider heads in some layers.
    layers = [of_kind(config, kind) for kind in getattr(config, "layer_types", None) or ("",)]
    heads = [getattr(each, "num_key_value_heads", None) or each.num_attention_heads for each in layers]
    sizes = [
        getattr(each, "head_dim", None) or each.hidden_size // each.num_attention_heads for each in layers
    ]
    width = max(num * size for num, size in zip(heads, sizes, strict=True))
    # Where layers lie on several GPUs, the first one's memory holds its part of the cache only.
    free, _ = torch.cuda.mem_get_info(model.device)
    return batch_tokens(free, cache_bytes(config.num_hidden_layers, width, model.dtype.itemsize))


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
        path, "base", lambda count: scoring_parts(shape_from(model_config(path), "base"), count, on_gpu=True), FITS
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
        "format_version": FORMAT_VERSION, "base": job.recipe.base.model, "revision": job.recipe.base.revision,
        "seed": job.recipe.seed,
        "sampling": {part: {"temperature": each[0], "top_p": each[1]} for part, each in SAMPLING.items()},
        "max_tokens": MAX_TOKENS, **sums, "dropped": _dropped(facts),
    }  # fmt: skip


def _dropped(facts: list[dict[str, Any]]) -> dict[str, int]:
    return dict(sum((Counter(each["dropped"]) for each in facts), Counter[str]()).most_common())


def _refuse_nothing(job: Job, facts: list[dict[str, Any]]) -> None:
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
