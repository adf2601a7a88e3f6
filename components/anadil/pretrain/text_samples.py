"""Texts that the model writes at each validation: a few greedy continuations, beside the curves.

They are for people who follow a run, and decide nothing. Tokens are computed anew at each step of a text, in one packed
row: three texts of twenty tokens cost a twelfth of a training step of 4,096 tokens.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anadil.model.load import document_ids, encode_text, load_tokenizer
from anadil.pretrain.callback import Callback
from anadil.pretrain.parallel.loss_forward import last_hidden
from anadil.pretrain.parallel.parallelize import ParallelModel
from anadil.pretrain.trainer import Step
from anadil.recipe.sections import Recipe
from anadil.text.language import load_language

log = logging.getLogger(__name__)

FILE = "texts.jsonl"
"""In the work directory, then in the artifact: a line for each validation."""
NUM_PROMPTS = 3
NUM_TOKENS = 20
"""Tokens of a text: enough for a sentence. Both are choices; see the cost above."""


class TextSamples(Callback):
    """Lets the model continue the language's prompts before the first step and where a validation is due."""

    def __init__(self, prompts: Sequence[str]) -> None:
        """Take beginnings of texts."""
        self._prompts = tuple(prompts)
        self._ids: list[list[int]] = []
        self._end = self._num_ids = 0

    def pre_train(self) -> None:
        """Encode the prompts, drop texts of later steps, and let the base write, unless the run resumes."""
        run = self.training
        tokenizer: Any = load_tokenizer(run.job.inputs["tokenizer"])
        before, self._end = document_ids(tokenizer, str(run.job.inputs["tokenizer"]))
        self._ids = [[before, *encode_text(tokenizer, prompt)] for prompt in self._prompts]
        self._tokenizer, self._num_ids = tokenizer, max(tokenizer.get_vocab().values()) + 1
        self.post_rollback()
        if run.state.step == 0:
            self._write()

    def post_rollback(self) -> None:
        """Drop the texts of later steps."""
        if self._path.is_file() and self.training.group.is_first:
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
            draft = self._path.with_suffix(".draft")
            draft.write_text("".join(line for line in lines if self._is_done(line)), encoding="utf-8")
            draft.replace(self._path)

    def post_step(self, step: Step) -> None:  # noqa: ARG002  a hook
        """Let the model write where it was validated."""
        run = self.training
        if run.is_validation_due and not run.ends:
            self._write()

    @property
    def _path(self) -> Path:
        return self.training.job.work / FILE

    def _is_done(self, line: str) -> bool:
        try:
            return line.endswith("\n") and int(json.loads(line)["step"]) <= self.training.state.step
        except (ValueError, KeyError, TypeError):
            return False  # the process was killed while it wrote

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
        line = json.dumps({"step": run.state.step, "texts": texts}, ensure_ascii=False)
        with self._path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{line}\n")


def text_samples_of(net: ParallelModel, recipe: Recipe) -> TextSamples | None:
    """Return the callback of a run; None where no process can write alone, or there is nothing to continue."""
    prompts = (recipe.evaluate.prompts or load_language(recipe.language).prompts)[:NUM_PROMPTS]
    # A shared model would need all processes for each token, and FP8 products take no odd number of tokens.
    if not prompts or net.mesh.shares_model or recipe.pretrain.matmul != "same":
        return None
    return TextSamples(prompts)


@torch.no_grad()
def continuations(
    net: ParallelModel,
    prompts: Sequence[Sequence[int]],
    *,
    end: int,
    num_ids: int,
    num_tokens: int = NUM_TOKENS,
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
        for _ in range(num_tokens):
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
