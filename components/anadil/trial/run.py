"""A short training with each strategy's best tokenizer at equal compute, chosen by bits per byte: corpus, tokenizer -> trial.

python -m anadil.trial --recipe R --corpus URI --tokenizer URI --out URI
torchrun --nproc-per-node 8 -m anadil.trial ...the same
"""

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from anadil.core.errors import RecipeError
from anadil.core.files import atomic_file
from anadil.core.json_text import read_json, write_indented
from anadil.evaluate.bootstrap import Difference, paired_difference
from anadil.evaluate.heldout import digest_of
from anadil.model.process_group import Group
from anadil.pretrain.prepare import in_training_group
from anadil.pretrain.short_run import Budget, ScoredText, ShortRun, budget_of, drop_work, short_run
from anadil.runtime.job import Figures, Job
from anadil.runtime.planned_artifact import reusable_artifact
from anadil.text.metrics import bits_per_byte, fertility, words_in_context
from anadil.tokenizer.select import ModelCompute
from anadil.trial.finalists import (
    TARGET,
    Finalist,
    TrialTexts,
    find_finalists,
    read_texts,
    sealed_copy,
)

log = logging.getLogger(__name__)

DIGITS = 6
"""Decimals of bits per byte."""
TABLE = "trial.json"
FOLDER = "finalists"
"""Directory of results, in the artifact and in the work directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalistResult(ShortRun):
    """Result of a finalist's training. The nats of `ShortRun` are by `target` and names of `tokenizer.keep`."""

    name: str
    strategy: str

    def nats_of(self, kind: str) -> NDArray[np.float64]:
        """The nats of one kind of text."""
        return np.array(self.nats[kind], dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The winning finalist."""

    name: str
    reason: str
    why_not: Mapping[str, str]
    differences: Mapping[str, Difference]
    """Each other finalist's bits per byte minus those of the one with the fewest."""


def run(job: Job) -> Figures:
    """Fill `job.out` with the winner's tokenizer, `trial.json`, and the result of each finalist."""
    settings, trial = job.recipe.tokenizer, job.recipe.tokenizer.trial
    if trial is None:
        raise RecipeError(
            "tokenizer.trial: not set, so there is no trial to run; set it, such as {steps: 200}"
        )
    with in_training_group(job) as (processes, device):
        finalists = find_finalists(job.inputs["tokenizer"], settings)
        texts = read_texts(job, finalists)
        budget = budget_of(job.recipe, trial.steps)
        chosen = [each for each in finalists if each.strategy in (trial.strategies or settings.strategies)]
        results = []
        for finalist in chosen:
            result = processes.run_on_first(partial(find_result, job, finalist))
            results.append(result or try_finalist(job, finalist, texts, budget, processes, device))
            job.stop.check()
        figures = _write(job, chosen, results, texts, budget) if processes.is_first else {}
        processes.wait()
    return figures


def find_result(job: Job, finalist: Finalist) -> FinalistResult | None:
    """Find the result of a finalist that an earlier start or a trial of its strategy alone has trained."""
    file = Path(FOLDER, f"{finalist.name}.json")
    path, trial = job.work / file, job.recipe.tokenizer.trial
    assert trial is not None
    if not path.is_file() and trial.strategies != (finalist.strategy,):
        # Pods of a pipeline train one strategy each. Their artifacts have keys, as every artifact does.
        alone = trial.model_copy(update={"strategies": (finalist.strategy,)})
        settings = job.recipe.tokenizer.model_copy(update={"trial": alone})
        reusable = reusable_artifact(job, "trial", job.recipe.model_copy(update={"tokenizer": settings}))
        path = reusable[0] / file if reusable else path
    if not path.is_file():
        return None
    log.info("%s: trained already", finalist.name)
    return FinalistResult(**read_json(path))


def _store_result(folder: Path, result: FinalistResult) -> None:
    # A start after a kill finds a whole result or none.
    with atomic_file(folder / f"{result.name}.json") as draft:
        write_indented(draft, asdict(result))


def try_finalist(
    job: Job, finalist: Finalist, texts: TrialTexts, budget: Budget, processes: Group, device: torch.device
) -> FinalistResult:
    """Train with a finalist's tokenizer and score the model, which is then dropped."""
    work = job.work / finalist.name
    tokenizer = work / "tokenizer"
    if processes.local_rank == 0:
        sealed_copy(finalist, tokenizer)
    processes.wait()
    scored = texts.models[finalist.name]
    text = ScoredText(
        ids={kind: encoded.ids[finalist.name] for kind, encoded in texts.kinds.items()},
        prefix=scored.prefix, bos=scored.bos,
    )  # fmt: skip
    run = short_run(replace(job, work=work), tokenizer, budget, text, processes, device)
    result = FinalistResult(name=finalist.name, strategy=finalist.strategy, **asdict(run))
    if processes.is_first:
        _store_result(job.work / FOLDER, result)
    drop_work(work, processes)
    return result


def _write(
    job: Job, finalists: list[Finalist], results: list[FinalistResult], texts: TrialTexts, budget: Budget
) -> Figures:
    # The winner's tokenizer is the content. The files beside it say why, and change no key of pretrain.
    winner = choose_winner(results, texts, job.recipe.seed)
    table = outcome_table(finalists, results, texts, budget, winner, job.recipe.seed)
    [folder] = [each.folder for each in finalists if each.name == winner.name]
    for file in sorted(folder.iterdir()):
        shutil.copyfile(file, job.out / file.name)
    for result in results:
        _store_result(job.out / FOLDER, result)
    write_indented(job.out / TABLE, table, allow_nan=False)
    job.varying.extend([*(Path(FOLDER, f"{each.name}.json").as_posix() for each in results), TABLE])
    job.records.update(heldout_documents=len(texts.kinds[TARGET].documents))
    for entry in table["finalists"]:
        log.info(
            "%s: %.4f bits per byte after %d steps", entry["name"], entry["bits_per_byte"], entry["steps"]
        )
        job.tracker.metrics(
            {f"{entry['strategy']}_bits_per_byte": entry["bits_per_byte"]}, step=entry["steps"]
        )
    for name, why in winner.why_not.items():
        log.info("not %s: %s", name, why)
    log.info("chose %s: %s", winner.name, winner.reason)
    [best] = [entry for entry in table["finalists"] if entry["name"] == winner.name]
    return {"winner": winner.name, "bits_per_byte": best["bits_per_byte"], "finalists": len(results)}


def choose_winner(results: Sequence[FinalistResult], texts: TrialTexts, seed: int) -> Winner:
    """Choose the fewest bits per byte on the held-out text; among equals the smallest vocabulary."""
    num_bytes = texts.num_bytes(TARGET)
    score = {each.name: bits_per_byte(sum(each.nats[TARGET]), int(num_bytes.sum())) for each in results}
    ranked = sorted(results, key=lambda each: (score[each.name], each.rows))
    best = ranked[0]
    differences = {
        each.name: paired_difference(each.nats_of(TARGET), best.nats_of(TARGET), num_bytes, seed)
        for each in ranked[1:]
    }
    near = [best, *(each for each in ranked[1:] if not differences[each.name].significant)]
    # The smallest vocabulary costs the fewest embedding parameters.
    winner = min(near, key=lambda each: (each.rows, score[each.name]))
    reason = f"{score[winner.name]:.4f} bits per byte"
    if winner is not best:
        reason += (
            f", not told apart from {best.name} ({_shown(differences[winner.name])}), and of "
            f"{len(near)} such it has the smallest vocabulary, {winner.rows:,} rows"
        )
    elif len(near) > 1:
        reason += f", the fewest, and the smallest vocabulary of {len(near)} that are not told apart"
    elif len(results) > 1:
        reason += f", the fewest; {ranked[1].name} has {_shown(differences[ranked[1].name])}"
    why_not = {
        each.name: f"{_shown(differences[each.name])}: not told apart, and {each.rows:,} rows"
        if each in near
        else f"{_shown(differences[each.name])} than {best.name}"
        for each in results
        if each.name not in {winner.name, best.name}
    }
    if winner is not best:
        why_not[best.name] = f"not told apart from {winner.name}, which has the smaller vocabulary"
    return Winner(name=winner.name, reason=reason, why_not=why_not, differences=differences)


def outcome_table(
    finalists: Sequence[Finalist], results: Sequence[FinalistResult], texts: TrialTexts, budget: Budget,
    winner: Winner, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Content of `trial.json`."""
    by_name = {each.name: each for each in finalists}
    return {
        "winner": winner.name,
        "reason": winner.reason,
        "steps": budget.steps,
        "flops": budget.flops,
        "model": ModelCompute(shape=budget.shape, context=budget.context).name,
        "context": budget.context,
        "heldout": {
            "documents": len(texts.kinds[TARGET].documents),
            "bytes": int(texts.num_bytes(TARGET).sum()),
            "sha256": digest_of(texts.kinds[TARGET].documents),
        },
        "finalists": [
            _entry(by_name[each.name], each, texts, budget, seed) | {"why_not": winner.why_not.get(each.name)}
            for each in results
        ],
        "differences": {
            name: asdict(one) | {"significant": one.significant} for name, one in winner.differences.items()
        },
    }


def _entry(
    finalist: Finalist, result: FinalistResult, texts: TrialTexts, budget: Budget, seed: int
) -> dict[str, Any]:
    num_tokens = texts.num_tokens(TARGET, result.name)
    tokens_per_word = fertility(num_tokens, texts.num_words)
    bytes_per_token = int(texts.num_bytes(TARGET).sum()) / num_tokens
    figures = {"name": result.name, "strategy": result.strategy} | asdict(result)  # first, as readers expect
    del figures["nats"]
    return figures | {
        "chosen_because": finalist.reason,
        # Estimated by the held-out text's bytes per token.
        "bytes": round(result.tokens * bytes_per_token),
        "fertility": round(tokens_per_word, 4),
        "words_in_context": words_in_context(budget.context, tokens_per_word),
        **_scored(result, texts, TARGET, seed),
        "keep": {kind: _scored(result, texts, kind, seed) for kind in texts.kinds if kind != TARGET},
    }


def _scored(result: FinalistResult, texts: TrialTexts, kind: str, seed: int) -> dict[str, Any]:
    nats, num_bytes = result.nats_of(kind), texts.num_bytes(kind)
    alone = paired_difference(nats, np.zeros_like(nats), num_bytes, seed)
    return {
        "bits_per_byte": round(alone.value, DIGITS),
        "interval": [round(alone.low, DIGITS), round(alone.high, DIGITS)],
    }


def _shown(difference: Difference) -> str:
    return f"{difference.value:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}] bits per byte"
