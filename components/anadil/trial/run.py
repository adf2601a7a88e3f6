"""A short training with each strategy's best tokenizer at equal compute, chosen by bits per byte: corpus, tokenizer -> trial.

python -m anadil.trial --recipe R --corpus URI --tokenizer URI --out URI
torchrun --nproc-per-node 8 -m anadil.trial ...the same
"""

import logging
import shutil
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch

from anadil.core.errors import RecipeError
from anadil.core.json_text import read_json, write_indented
from anadil.model.process_group import Group
from anadil.pretrain.prepare import in_training_group
from anadil.pretrain.short_run import Budget, ScoredText, budget_of, drop_work, short_run
from anadil.runtime.job import Figures, Job
from anadil.runtime.planned_artifact import reusable_artifact
from anadil.trial.finalists import (
    TARGET,
    Finalist,
    TrialTexts,
    find_finalists,
    read_texts,
    sealed_copy,
)
from anadil.trial.outcome import FinalistResult, choose_winner, outcome_table

log = logging.getLogger(__name__)

TABLE = "trial.json"
FOLDER = "finalists"
"""Directory of results, in the artifact and in the work directory."""


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
    folder.mkdir(parents=True, exist_ok=True)
    # Renamed whole: a start after a kill finds a whole result or none.
    draft = folder / f"{result.name}.draft"
    write_indented(draft, asdict(result))
    draft.replace(folder / f"{result.name}.json")


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
