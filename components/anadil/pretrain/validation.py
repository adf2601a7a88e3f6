"""Bits per byte of the corpus's held-out part while a model is trained.

Documents are `[prefix] + ids`, as in training and in evaluate: the prefix (BOS, else the end token) is
context only, no end token is scored, and each byte counts once. A document longer than a sequence is
cut into pieces that do not see each other; evaluate fills its last window with earlier context. So
both give the same number for documents that fit into a sequence. For longer ones this one is slightly higher.
"""

import json
import logging
import math
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from anadil.artifacts.scored_text import RETAINED_KEY, tuning_texts
from anadil.core.errors import RecipeError
from anadil.core.files import write_atomic
from anadil.core.json_text import json_lines
from anadil.model.load import document_ids, encode_text, encode_texts, load_tokenizer, window_bos
from anadil.pretrain.callback import Callback
from anadil.pretrain.data.batch import Batch, batch_of
from anadil.pretrain.parallel.loss_forward import last_hidden
from anadil.pretrain.parallel.parallelize import ParallelModel
from anadil.pretrain.resilience.out_of_memory import no_room, out_of_memory
from anadil.pretrain.state import Step
from anadil.recipe.pretrain import Pretrain
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job
from anadil.text.corpus import BEGINNING_CHARS, beginning_of
from anadil.text.language import load_language
from anadil.text.metrics import bits_per_byte
from anadil.tokens.packing import Ids, Packed, TokenStream, pack, packed_of, stream_of
from anadil.tokens.stored_tokens import StoredTokens

log = logging.getLogger(__name__)

MOST_PAIRS = 64
"""Targets of a piece: a missing BOS costs the first tokens of a text most, and the rest would hide it."""
MOST_DOCUMENTS = 1_000_000
"""Documents that pieces are chosen from: the order of a corpus is that of hashes, so the first are a sample."""
LEANS_FROM = 0.5
"""Nats a token from which on a base leans on BOS. Chosen by us: without it Gemma 3 270M loses 2.31, SmolLM2-135M .11."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPosition:
    """Mean nats of the targets of some pieces that begin inside documents."""

    with_bos: float
    without: float
    targets: int


class FirstPositionProbe(Callback):
    """Reports once, before the first step, how much the base leans on BOS at position 0."""

    def pre_train(self) -> None:
        """Probe and report, unless the run resumes."""
        run = self.training
        if run.state.step:
            return
        with no_room(run.job.recipe, "scoring the base's first positions", rank=run.group.rank):
            position = probe_first_position(run.trainer.net, run.trainer.data.first)
        if position is not None and run.group.is_first:
            tell_first_position(position, run.trainer.data.first, run.job.inputs["tokenizer"])


def probe_first_position(net: ParallelModel, packed: Packed) -> FirstPosition | None:
    """Score one sequence twice, a collective; None where no document is long enough."""
    pieces = _pieces(packed.stream, packed.length)
    if not len(pieces):
        return None
    bos = int(packed.stream.ids[:1][0])
    stream = replace(packed.stream, bos=bos)
    targets = int(pieces[:, 1].sum())
    nats_per_target = []
    for lead in (1, 0):
        row = packed_of(
            stream,
            np.concatenate([pieces, np.full((len(pieces), 1), lead)], axis=1),
            np.array([0, len(pieces)]),
            packed.length,
        )
        with torch.no_grad():
            nats = net.nats(batch_of(row, np.zeros(1, dtype=np.int64))).detach().double()
        # Each group of processes scored the same sequence.
        nats_per_target.append(float(net.add_up(nats).item()) / net.mesh.data / targets)
    return FirstPosition(with_bos=nats_per_target[0], without=nats_per_target[1], targets=targets)


def _pieces(stream: TokenStream, length: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Choose pieces from the middle of documents, as many as fit into a sequence: start and pairs of each."""
    pairs = min(MOST_PAIRS, length - 1)
    begins = stream.first_starts(MOST_DOCUMENTS)
    sizes = np.diff(begins)
    # The end token is no target, and a piece begins one behind the document's prefix at the earliest.
    long_enough = np.flatnonzero(sizes >= pairs + 4)
    room = length // (pairs + 1)
    places = np.linspace(0, len(long_enough) - 1, min(room, len(long_enough))).astype(np.int64)
    chosen = long_enough[places]
    starts = begins[chosen] + (sizes[chosen] - pairs) // 2
    return np.stack([starts, np.full(len(chosen), pairs)], axis=1)


def tell_first_position(position: FirstPosition, packed: Packed, tokenizer: Path) -> None:
    """Log the base's need of BOS, and warn where the tokenizer does not set it."""
    name = load_tokenizer(tokenizer).decode(packed.stream.ids[:1].tolist())
    sets_bos = packed.stream.bos is not None
    log.info(
        "text from the middle of documents costs the base %.2f nats a token behind %s and %.2f without it (%s targets); "
        "%s",
        position.with_bos, name, position.without, f"{position.targets:,}",
        "the tokenizer sets it before every text, so every piece and window begins with it"
        if sets_bos else "the tokenizer sets none, so only documents begin with it",
    )  # fmt: skip
    if position.without - position.with_bos > LEANS_FROM and not sets_bos:
        log.warning(
            "the base leans on %s at the beginning of every text, and its tokenizer sets none: give base.model a "
            "tokenizer whose post-processor sets it (add_bos_token in tokenizer_config.json), and run again",
            name,
        )  # fmt: skip


SCORE = "validation_bits_per_byte"
"""Metric of the held-out part."""

Loss = Callable[[Batch], torch.Tensor]
Sum = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Held-out documents, encoded and packed; every process holds all of them."""

    packed: Packed
    num_bytes: int
    """UTF-8 bytes of the documents' text."""
    rows: int
    """Sequences of a forward pass."""

    def nats(
        self, summed_loss: Loss, *, data: int = 1, data_rank: int = 0, add_up: Sum | None = None,
        ends: Callable[[], bool] | None = None,
    ) -> float | None:  # fmt: skip
        """Sum the loss over the documents; every process gets the same number.

        `summed_loss` is this process's part of a batch, which `add_up` sums over all. `data` groups of processes work on
        sequences of their own. All have to agree on `ends`: whether to give up between two passes, with None.
        """
        nats = torch.zeros((), dtype=torch.float64)
        mine = np.arange(data_rank, self.packed.num_sequences, data)
        # Equally many passes in all processes, since a sharded model is gathered in each.
        passes = -(-self.packed.num_sequences // (data * self.rows))
        with torch.no_grad():
            for number in range(passes):
                if number and ends and ends():
                    return None
                chosen = mine[number * self.rows : (number + 1) * self.rows]
                # A process that is done passes a row without labels.
                loss = summed_loss(batch_of(self.packed, chosen, rows=1))
                # FP64: thousands of small sums.
                nats = nats.to(loss.device) + loss.detach().double()
        total = float((add_up(nats) if add_up else nats).item())
        if not np.isfinite(total):
            raise RecipeError(
                f"pretrain: held-out loss is {total}; lower the learning rate in pretrain.phases and run again"
            )
        return total


class Validator(Callback):
    """Scores held-out documents: the base before the first step, then the model where it is due."""

    def __init__(
        self, validations: Mapping[str, Validation], targets: Collection[str], *, must_end: bool = False
    ) -> None:
        """Score the held-out part of each source. `targets`, in the taught language, have the plain metric together.

        With `must_end` a signal waits for the scores, on which later steps depend.
        """
        self._validations, self._targets, self._must_end = validations, set(targets), must_end
        self.num_bytes = {name: each.num_bytes for name, each in validations.items()}
        """Bytes that are scored, by source and retained text."""

    def pre_train(self) -> None:
        """Score the base in the run's vocabulary, unless the run resumes."""
        if self.training.state.step == 0:
            score = self._score()
            log.info("before the first step: %.4f bits per byte of the held-out part", score)

    def post_step(self, step: Step) -> None:  # noqa: ARG002  a hook
        """Score the model at the end of a phase and each `validate_every` steps."""
        run = self.training
        if not run.is_validation_due:
            return
        if self._score() is None:
            # The signal has come to some process, perhaps not to this one.
            run.signal = run.job.stop.signal or signal.SIGTERM
            log.info("validation of step %s is skipped, since the run stops", f"{run.state.step:,}")

    def _score(self) -> float | None:
        """Record bits per byte; None where a signal came before the last step."""
        run = self.training
        net, done, stop = run.trainer.net, run.state.step, run.job.stop

        def ends() -> bool:
            return any(run.group.gather("stop" if stop.signal else ""))

        def nats(batch: Batch) -> torch.Tensor:
            run.enter("validate")
            return net.nats(batch)

        totals: dict[str, float] = {}
        size = run.trainer.micro_batch_size
        with (
            run.metrics.section("validation"),
            out_of_memory(run.job.recipe, run.job.work, size, step=done, rank=run.group.rank),
        ):
            for name, validation in self._validations.items():
                total = validation.nats(
                    nats,
                    data=net.mesh.data,
                    data_rank=net.mesh.data_rank,
                    add_up=net.add_up,
                    ends=ends if 0 < done < run.job.recipe.pretrain.steps and not self._must_end else None,
                )
                if total is None:
                    return None
                totals[name] = total
        run.figures.update(self._scores(totals))
        run.is_log_due = True
        return run.figures.get(SCORE, math.nan)

    def _scores(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Bits per byte of the taught language, and of each source."""
        num_bytes = {name: each.num_bytes for name, each in self._validations.items()}
        targets = [name for name in totals if name in self._targets]
        taught_nats = sum(totals[name] for name in targets)
        taught_bytes = sum(num_bytes[name] for name in targets)
        return {
            **({SCORE: bits_per_byte(taught_nats, taught_bytes)} if targets else {}),
            **{
                f"{SCORE}/{name}": bits_per_byte(nats, num_bytes[name])
                for name, nats in totals.items()
                if name
            },
        }


def validator_of(job: Job, tokens: Mapping[str, StoredTokens], *, rows: int) -> Validator | None:
    """Prepare the scores of each source's held-out documents, and of retained texts where they decide the teacher's weight.

    None for no validation. Raises as `validation_of`.
    """
    recipe, must_end = job.recipe, job.recipe.finds_teacher_weight
    sources = {name: validation_of(each, recipe.pretrain, rows=rows) for name, each in tokens.items()}
    validations = {name: each for name, each in sources.items() if each}
    if must_end:
        validations |= _of_retained(job, rows)
    for name, each in validations.items():
        log.info(
            "validation%s: %s held-out documents, %s bytes, %s tokens in %s sequences",
            f" on {name}" if name else "", f"{each.packed.stream.num_documents:,}", f"{each.num_bytes:,}",
            f"{each.packed.num_targets:,}", f"{each.packed.num_sequences:,}",
        )  # fmt: skip
    return Validator(validations, recipe.target_sources or [""], must_end=must_end) if validations else None


def validation_of(tokens: StoredTokens, settings: Pretrain, *, rows: int) -> Validation | None:
    """Pack the held-out documents of a run, `rows` sequences a pass; None for no validation."""
    if not settings.validate_every:
        return None
    # The first documents, so that all runs of a corpus are comparable.
    documents, num_bytes = tokens.heldout(settings.validate_documents)
    if not documents:
        log.info("the corpus holds nothing out: no bits per byte while training; see clean.heldout_fraction")
        return None
    return _packed(documents, num_bytes, tokens.facts.bos, settings.sequence_length, rows)


def _of_retained(job: Job, rows: int) -> dict[str, Validation]:
    """Encode and pack the texts by which the teacher's weight is found."""
    folder, settings = job.inputs["tokenizer"], job.recipe.pretrain
    tokenizer = load_tokenizer(folder)
    before, _ = document_ids(tokenizer, str(folder))
    files, field = job.side_files.get(RETAINED_KEY, ()), job.recipe.retained_text_field
    validations = {}
    for name, texts in tuning_texts(files, field, settings.validate_documents).items():
        documents = [np.array([before, *ids], dtype=np.int32) for ids in encode_texts(tokenizer, texts)]
        num_bytes = sum(len(text.encode()) for text in texts)
        validations[name] = _packed(
            documents, num_bytes, window_bos(tokenizer), settings.sequence_length, rows
        )
    return validations


def _packed(documents: Sequence[Ids], num_bytes: int, bos: int | None, length: int, rows: int) -> Validation:
    return Validation(packed=pack(stream_of(documents, bos), length), num_bytes=num_bytes, rows=rows)


FILE = "texts.jsonl"
"""In the work directory, then in the artifact: a line for each validation."""
NUM_PROMPTS = 3
NUM_TOKENS = 20
"""Tokens of a text: enough for a sentence. Both are choices; see the cost above."""


class TextSamples(Callback):
    """Lets the model continue the language's prompts before the first step and where a validation is due."""

    def __init__(self, prompts: Sequence[str], heldout: Sequence[Ids] = ()) -> None:
        """Take beginnings of texts, or where there are none held-out documents, whose beginnings are taken."""
        self._prompts, self._heldout = tuple(prompts), heldout
        self._ids: list[list[int]] = []
        self._end = self._num_ids = 0

    def pre_train(self) -> None:
        """Encode the prompts, drop texts of later steps, and let the base write, unless the run resumes."""
        run = self.training
        tokenizer: Any = load_tokenizer(run.job.inputs["tokenizer"])
        before, self._end = document_ids(tokenizer, str(run.job.inputs["tokenizer"]))
        # A character has a token at least.
        texts = (
            tokenizer.decode(ids[: 2 * BEGINNING_CHARS], skip_special_tokens=True) for ids in self._heldout
        )
        self._prompts = self._prompts or tuple(dict.fromkeys(filter(None, map(beginning_of, texts))))
        self._ids = [[before, *encode_text(tokenizer, prompt)] for prompt in self._prompts]
        self._tokenizer, self._num_ids = tokenizer, max(tokenizer.get_vocab().values()) + 1
        # A run that begins again lets its base write again, which may be another one.
        self._cut_back(run.state.step or -1)
        if run.state.step == 0:
            self._write()

    def post_rollback(self) -> None:
        """Drop the texts of later steps."""
        self._cut_back(self.training.state.step)

    def _cut_back(self, num_done: int) -> None:
        if self._path.is_file() and self.training.group.is_first:
            # The process may have been killed while it wrote the last line.
            lines = [each for each in json_lines(self._path, may_be_torn=True) if each["step"] <= num_done]
            write_atomic(self._path, "".join(map(_text_line, lines)))

    def post_step(self, step: Step) -> None:  # noqa: ARG002  a hook
        """Let the model write where it was validated."""
        run = self.training
        if run.is_validation_due and not run.ends:
            self._write()

    @property
    def _path(self) -> Path:
        return self.training.job.work / FILE

    def _write(self) -> None:
        run = self.training
        if not run.group.is_first:
            return
        with run.metrics.section("validation"):
            rows = continuations(run.trainer.net, self._ids, end=self._end, num_ids=self._num_ids)
        texts = [
            {"prompt": prompt, "text": self._tokenizer.decode(row, skip_special_tokens=True)}
            for prompt, row in zip(self._prompts, rows, strict=True)
        ]
        with self._path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(_text_line({"step": run.state.step, "texts": texts}))


def _text_line(texts: Mapping[str, Any]) -> str:
    return f"{json.dumps(texts, ensure_ascii=False)}\n"


def text_samples_of(
    net: ParallelModel, tokens: Mapping[str, StoredTokens], recipe: Recipe
) -> TextSamples | None:
    """Return the callback of a run; None where no process can write alone, or there is nothing to continue."""
    prompts = (recipe.evaluate.prompts or load_language(recipe.language).prompts)[:NUM_PROMPTS]
    taught = () if prompts else [tokens[name] for name in recipe.target_sources or [""] if name in tokens]
    heldout = [ids for each in taught for ids in each.heldout(NUM_PROMPTS)[0]][:NUM_PROMPTS]
    # A shared model would need all processes for each token, and FP8 products take no odd number of tokens.
    if not (prompts or heldout) or net.mesh.shares_model or recipe.pretrain.matmul != "same":
        return None
    return TextSamples(prompts, heldout)


@torch.no_grad()
def continuations(
    net: ParallelModel, prompts: Sequence[Sequence[int]], *, end: int, num_ids: int
) -> list[list[int]]:
    """Greedy tokens after each prompt, up to the end token; in the precision of training."""
    model: Any = net.model
    head: Any = model.get_output_embeddings()
    # Padding rows of the table lie behind the ids.
    weight = head.weight[:num_ids]
    rows, open_rows = [list(prompt) for prompt in prompts], list(range(len(prompts)))
    # Compiled layers would be compiled for each of these lengths.
    with (
        torch.autocast(net.device.type, dtype=torch.bfloat16, enabled=net.autocast),
        torch.compiler.set_stance("force_eager"),
    ):
        for _ in range(NUM_TOKENS):
            lengths = [len(rows[row]) for row in open_rows]
            ids = torch.tensor([[token for row in open_rows for token in rows[row]]], device=net.device)
            positions = torch.cat([torch.arange(length) for length in lengths])[None].to(net.device)
            borders = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
            states = last_hidden(model, ids, positions, borders)[0, borders[1:].long().to(net.device) - 1]
            chosen = nn.functional.linear(states, weight).argmax(1).tolist()
            for row, token in zip(open_rows, chosen, strict=True):
                rows[row].append(token)
            open_rows = [row for row, token in zip(open_rows, chosen, strict=True) if token != end]
            if not open_rows:
                break
    return [row[len(prompt) :] for row, prompt in zip(rows, prompts, strict=True)]
