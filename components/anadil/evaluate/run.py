"""corpus, model, adapter -> scores: the base, the adapted and the finetuned model side by side.

One model is in memory at a time. Everything is measured on the same documents, and `scores.json`
holds what the report and the gate need.
"""

import gc
import json
import logging
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from anadil.artifacts.base_model import model_config
from anadil.evaluate.bits_per_byte import score
from anadil.evaluate.bootstrap import Difference, paired_difference
from anadil.evaluate.champion import encode_with_champion
from anadil.evaluate.contamination import Contamination, find_contamination
from anadil.evaluate.gate import GateVerdict, apply_gate, log_verdict
from anadil.evaluate.generate import GenerationPrompt, generate_texts, repetition_of
from anadil.evaluate.heldout import RETAINED_LANGUAGE, Heldout, read_heldout, read_retained
from anadil.evaluate.models import EncodedDocuments, ScoredModel, encode_for_all, open_model
from anadil.model.family_table import refuse_mixture
from anadil.model.load import load_model, pick_device, pick_dtype
from anadil.model.tiny import base_model
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Figures, Job
from anadil.text.corpus import read_documents
from anadil.text.language import Language, load_language
from anadil.text.metrics import SURE_DOCUMENTS, bits_per_byte, deciding_scores, fertility, words_in_context

log = logging.getLogger(__name__)

BATCH_TOKENS = {"cpu": 4_096, "cuda": 32_768}
"""Tokens of a padded batch by device: enough to keep it busy; more brings nothing but memory."""
PAIRS = (
    *(("adapted", "base"), ("finetuned", "base"), ("finetuned", "adapted")),
    *(("adapted", "champion"), ("finetuned", "champion")),
)
"""Candidates that are compared: the second is taken from the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelScores:
    """What was measured of one candidate."""

    table: dict[str, Any]
    """Its entry in `scores.json`."""
    nats: NDArray[np.float64]
    """By document."""


def run(job: Job) -> Figures:
    """Score the candidates and judge the adapted and the finetuned one.

    Raises:
        DataError: There is no held-out text, or a model or tokenizer cannot be scored on it.
        PreflightError: A model is a mixture of experts.
    """
    recipe, language = job.recipe, load_language(job.recipe.language)
    heldout = read_heldout(job.inputs["corpus"], job.files, recipe.clean.text_field, language.code)
    candidates = [
        open_model("base", base_model(recipe.base, job.base_cache)),
        open_model("adapted", job.inputs["model"]),
    ]
    if "adapter" in job.inputs:
        candidates.append(open_model("finetuned", job.inputs["adapter"] / "merged"))
    for candidate in candidates:
        refuse_mixture(model_config(candidate.path), f"{candidate.name} ({candidate.path})")
    champion = job.inputs.get("champion")
    candidates, encoded = encode_with_champion(candidates, champion, heldout.documents)
    retained = encode_for_all(candidates, read_retained())
    train = read_documents(job.inputs["corpus"], "train")
    contamination = find_contamination(encoded.documents, train, language)
    if len(encoded.documents) < SURE_DOCUMENTS:
        log.warning("held-out: only %d documents; differences are unsure", len(encoded.documents))
    results = {}
    for candidate in candidates:
        results[candidate.name] = _score_model(candidate, encoded, retained, recipe, language)
        figures = {name: value for name, value in results[candidate.name].table.items() if _is_number(value)}
        job.tracker.metrics({f"{candidate.name}_{name}": value for name, value in figures.items()})
    differences = _differences(results, encoded, contamination, recipe.seed)
    base, adapted = results["base"].table, results["adapted"].table
    tables = {name: result.table for name, result in results.items()}
    verdict = apply_gate(recipe.evaluate.gate, tables, differences, contamination, _mask_audit(job))
    _log_scores(verdict, results, contamination, differences)
    scores = _scores_table(heldout, encoded, results, differences, contamination, verdict)
    text = json.dumps(scores, ensure_ascii=False, indent=1, allow_nan=False)
    (job.out / "scores.json").write_text(text + "\n", encoding="utf-8")
    job.tracker.run_metrics(deciding_scores(scores))
    job.records.update(
        documents=len(encoded.documents),
        contaminated=len(contamination.contaminated),
        altered=len(encoded.altered),
    )
    return {
        "base_bits_per_byte": base["bits_per_byte"],
        "bits_per_byte": adapted["bits_per_byte"],
        "base_fertility": base["fertility"],
        "fertility": adapted["fertility"],
        "gate": "passed" if verdict.passed else "failed",
        "released": verdict.released or "none",
    }


def _mask_audit(job: Job) -> dict[str, Any] | None:
    """What finetune counted of its own rows; an adapter of another program has none."""
    path = job.inputs["adapter"] / "mask_audit.json" if "adapter" in job.inputs else None
    return json.loads(path.read_text(encoding="utf-8")) if path and path.is_file() else None


def _score_model(
    candidate: ScoredModel,
    encoded: EncodedDocuments,
    retained: EncodedDocuments,
    recipe: Recipe,
    language: Language,
) -> ModelScores:
    """Load one candidate, score it, let it write, and free its memory."""
    device = pick_device()
    dtype = pick_dtype("auto", device)
    loaded: Any = load_model(candidate.path, dtype)
    model = loaded.to(device)
    context, stride = _windows(candidate.name, model, recipe)
    settings: Any = {
        "prefix": candidate.prefix, "context": context, "stride": stride, "name": candidate.name,
        "batch_tokens": BATCH_TOKENS[device.type],
    }  # fmt: skip
    nats = score(model, encoded.ids[candidate.name], **settings)
    english = score(model, retained.ids[candidate.name], **settings)
    made = generate_texts(
        model, candidate.tokenizer, _prompts(candidate, recipe, language),
        max_new_tokens=recipe.evaluate.max_new_tokens, seed=recipe.seed, name=candidate.name,
    )  # fmt: skip
    table = _text_figures(encoded, candidate.name, nats, recipe, language) | {
        "parameters": int(model.num_parameters()),
        "context": context,
        "stride": stride,
        "dtype": str(dtype).removeprefix("torch."),
        "device": device.type,
        "retained": {RETAINED_LANGUAGE: bits_per_byte(float(english.sum()), int(_bytes_of(retained).sum()))},
        "repetition": repetition_of(made),
        "generations": [asdict(one) for one in made],
    }
    log.info(
        "%s: %.4f bits per byte, %.3f tokens per word",
        candidate.name,
        table["bits_per_byte"],
        table["fertility"],
    )
    del model, loaded
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return ModelScores(table=table, nats=nats)


def _windows(name: str, model: Any, recipe: Recipe) -> tuple[int, int]:
    """Tokens that a model sees at a time, and how many of them each window scores."""
    longest = getattr(model.config, "max_position_embeddings", None) or recipe.context
    context = min(recipe.context, longest)
    if context < recipe.context:
        log.warning("%s: holds %d tokens, fewer than the context of %d", name, context, recipe.context)
    return context, min(recipe.evaluate.stride or context, context)


def _text_figures(
    encoded: EncodedDocuments, name: str, nats: NDArray[np.float64], recipe: Recipe, language: Language
) -> dict[str, Any]:
    num_tokens = sum(len(ids) for ids in encoded.ids[name])
    num_words = sum(len(language.words(document.text)) for document in encoded.documents)
    num_bytes = int(_bytes_of(encoded).sum())
    alone = paired_difference(nats, np.zeros_like(nats), _bytes_of(encoded), recipe.seed)
    tokens_per_word = fertility(num_tokens, num_words)
    return {
        "bits_per_byte": bits_per_byte(float(nats.sum()), num_bytes),
        "fertility": tokens_per_word,
        "bytes_per_token": num_bytes / num_tokens,
        "words_in_context": words_in_context(recipe.context, tokens_per_word),
        "num_documents": len(encoded.documents),
        "num_words": num_words,
        "num_bytes": num_bytes,
        "num_tokens": num_tokens,
        "nats": float(nats.sum()),
        "bits_per_byte_interval": [alone.low, alone.high],
    }


def _prompts(candidate: ScoredModel, recipe: Recipe, language: Language) -> list[GenerationPrompt]:
    beginnings = recipe.evaluate.prompts or language.prompts
    tokenizer: Any = candidate.tokenizer
    chat = candidate.answers and tokenizer.chat_template is not None
    if candidate.answers and not chat:
        log.warning("%s: has no chat template; questions are asked as plain text", candidate.path)
    return [
        *(GenerationPrompt(text=text, kind="continuation") for text in beginnings),
        *(GenerationPrompt(text=text, kind="answer", chat=chat) for text in language.questions),
    ]


def _differences(
    results: dict[str, ModelScores], encoded: EncodedDocuments, contamination: Contamination, seed: int
) -> dict[str, Difference]:
    """Bits per byte of each pair, also without contaminated documents where there are some."""
    num_bytes = _bytes_of(encoded)
    clean = np.array([document.id not in set(contamination.contaminated) for document in encoded.documents])
    made = {}
    for name, other in PAIRS:
        if name not in results or other not in results:
            continue
        nats, before = results[name].nats, results[other].nats
        made[f"{name} - {other}"] = paired_difference(nats, before, num_bytes, seed)
        if clean.any() and not clean.all():
            made[f"{name} - {other}, uncontaminated"] = paired_difference(
                nats[clean], before[clean], num_bytes[clean], seed
            )
    return made


def _bytes_of(encoded: EncodedDocuments) -> NDArray[np.int64]:
    return np.array([len(document.text.encode()) for document in encoded.documents], dtype=np.int64)


def _log_scores(
    verdict: GateVerdict,
    results: dict[str, ModelScores],
    contamination: Contamination,
    differences: dict[str, Difference],
) -> None:
    for name in ("adapted - base", "finetuned - adapted"):
        if difference := differences.get(name):
            log.info(
                "bits per byte, %s: %+.4f [%+.4f, %+.4f] over %d documents",
                name, difference.value, difference.low, difference.high, difference.num_documents,
            )  # fmt: skip
    english = (
        f"{name} {result.table['retained'][RETAINED_LANGUAGE]:.4f}" for name, result in results.items()
    )
    log.info("bits per byte on the built-in English text: %s", ", ".join(english))
    found = contamination.contaminated
    if found:
        log.warning(
            "held-out: %d of %d documents stand in the training part (%d as a whole): %s%s",
            len(found), contamination.num_documents, len(contamination.exact),
            ", ".join(found[:5]), ", ..." if len(found) > 5 else "",
        )  # fmt: skip
    log_verdict(verdict)


def _scores_table(
    heldout: Heldout,
    encoded: EncodedDocuments,
    results: dict[str, ModelScores],
    differences: dict[str, Difference],
    contamination: Contamination,
    verdict: GateVerdict,
) -> dict[str, Any]:
    return {
        "candidates": {name: result.table for name, result in results.items()},
        "differences": {
            name: asdict(one) | {"significant": one.significant} for name, one in differences.items()
        },
        "contamination": asdict(contamination)
        | {"share": len(contamination.contaminated) / contamination.num_documents},
        "gate": asdict(verdict),
        "heldout": {
            "source": heldout.source,
            "files": heldout.files,
            "sha256": heldout.sha256,
            "num_documents": len(heldout.documents),
            "empty": heldout.empty,
            "repeated": heldout.repeated,
            "altered": encoded.altered,
        },
        "documents": _by_document(encoded, results),
    }


def _by_document(encoded: EncodedDocuments, results: dict[str, ModelScores]) -> list[dict[str, Any]]:
    """Nats of each document, so that any interval can be computed again."""
    return [
        {
            "id": document.id,
            "num_bytes": len(document.text.encode()),
            "nats": {name: float(result.nats[index]) for name, result in results.items()},
        }
        for index, document in enumerate(encoded.documents)
    ]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
