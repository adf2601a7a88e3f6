"""corpus, model, adapter -> scores: the base, the adapted and the finetuned model side by side.

One model is in memory at a time. Everything is measured on the same documents, and `scores.json`
holds what the report and the gate need.
"""

import json
import logging
from typing import Any

from anadil.artifacts.base_model import model_config
from anadil.evaluate.candidate import Material, measure
from anadil.evaluate.champion import encode_with_champion
from anadil.evaluate.contamination import find_contamination
from anadil.evaluate.gate import apply_gate
from anadil.evaluate.heldout import RETAINED_KEY, read_heldout, read_retained
from anadil.evaluate.models import ScoredModel, encode_for_all, open_model
from anadil.evaluate.questions import encode_references, read_questions
from anadil.evaluate.scores_table import differences_of, log_scores, scores_table
from anadil.model.adapter import refuse_other_rank
from anadil.model.family_table import refuse_mixture
from anadil.model.tiny import base_model
from anadil.runtime.job import Figures, Job
from anadil.text.corpus import read_documents
from anadil.text.language import load_language
from anadil.text.metrics import SURE_DOCUMENTS, deciding_scores

log = logging.getLogger(__name__)


def run(job: Job) -> Figures:
    """Score the candidates and judge the adapted and the finetuned one.

    Raises:
        DataError: There is no held-out text or no question, or a model or tokenizer cannot be scored on it.
        IntegrityError: The adapter has another rank than it says.
        PreflightError: A model is a mixture of experts.
    """
    recipe, language = job.recipe, load_language(job.recipe.language)
    heldout = read_heldout(job.inputs["corpus"], job.files, recipe.clean.text_field, language.code)
    candidates = _candidates(job)
    champion = job.inputs.get("champion")
    candidates, encoded = encode_with_champion(candidates, champion, heldout.documents)
    retained = read_retained(job.side_files.get(RETAINED_KEY, ()), recipe.clean.text_field)
    questions, references = encode_references(candidates, read_questions(job))
    material = Material(
        heldout=encoded,
        retained=encode_for_all(candidates, retained),
        questions=questions,
        references=references,
    )
    train = read_documents(job.inputs["corpus"], "train")
    contamination = find_contamination(encoded.documents, train, language)
    if len(encoded.documents) < SURE_DOCUMENTS:
        log.warning("held-out: only %d documents; differences are unsure", len(encoded.documents))
    results = {}
    for candidate in candidates:
        results[candidate.name] = measure(candidate, material, recipe, language)
        figures = {
            name: value
            for name, value in results[candidate.name].table.items()
            if isinstance(value, int | float)
        }
        job.tracker.metrics({f"{candidate.name}_{name}": value for name, value in figures.items()})
    differences = differences_of(results, material, contamination, recipe.seed)
    base = results["base"].table
    tables = {name: result.table for name, result in results.items()}
    verdict = apply_gate(recipe.evaluate.gate, tables, differences, contamination, _mask_audit(job))
    log_scores(verdict, results, contamination, differences)
    scores = scores_table(heldout, material, results, differences, contamination, verdict, _tasks(job))
    text = json.dumps(scores, ensure_ascii=False, indent=1, allow_nan=False)
    (job.out / "scores.json").write_text(text + "\n", encoding="utf-8")
    job.tracker.run_metrics(deciding_scores(scores))
    job.records.update(
        documents=len(encoded.documents),
        contaminated=len(contamination.contaminated),
        altered=len(encoded.altered),
    )
    own = tables[verdict.released or "adapted"]  # a figure of one model is never told of another
    return {
        "base_bits_per_byte": base["bits_per_byte"],
        "bits_per_byte": own["bits_per_byte"],
        "base_fertility": base["fertility"],
        "fertility": own["fertility"],
        "gate": "passed" if verdict.passed else "failed",
        "released": verdict.released or "none",
    }


def _candidates(job: Job) -> list[ScoredModel]:
    candidates = [
        open_model("base", base_model(job.recipe.base, job.base_cache)),
        open_model("adapted", job.inputs["model"]),
    ]
    if "adapter" in job.inputs:
        refuse_other_rank(job.inputs["adapter"])
        candidates.append(open_model("finetuned", job.inputs["adapter"] / "merged"))
    for candidate in candidates:
        refuse_mixture(model_config(candidate.path), f"{candidate.name} ({candidate.path})")
    return candidates


def _mask_audit(job: Job) -> dict[str, Any] | None:
    """Read finetune's counts of its rows; an adapter of another program has none."""
    path = job.inputs["adapter"] / "mask_audit.json" if "adapter" in job.inputs else None
    return json.loads(path.read_text(encoding="utf-8")) if path and path.is_file() else None


def _tasks(job: Job) -> dict[str, Any]:
    """Read the candidates' results in tasks of lm-evaluation-harness; empty without tasks."""
    if "tasks" not in job.inputs:
        return {}
    results: dict[str, Any] = json.loads((job.inputs["tasks"] / "tasks.json").read_text(encoding="utf-8"))
    return results
