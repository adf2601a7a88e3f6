"""The report stage: results of all stages as one page, a short version in Markdown, and flat numbers.

`python -m anadil.report --recipe R --corpus URI --tokenizer URI --model URI --adapter URI
--scores URI --out URI`
"""

import json
import logging
from contextvars import copy_context
from pathlib import Path

import yaml

from anadil import __version__
from anadil.core.candidates import BY_NAME, CANDIDATES
from anadil.core.format import DASH, number
from anadil.core.measures import view_results
from anadil.core.stages import STAGES
from anadil.core.table import Table
from anadil.page import translation
from anadil.page.charts import letters
from anadil.page.format import change_percent, clip, ratio
from anadil.page.render import render_template
from anadil.page.values import Json, candidates_of, field, named_tables, portable, table_of
from anadil.report.corpus_view import corpus_view, parts_of, tokenizer_view, tokenizers_of
from anadil.report.cost_view import DATA_CARD, MODEL_CARD, cost_view
from anadil.report.data_card import card_of_corpora
from anadil.report.generations_view import generations_view, talk_view
from anadil.report.measures_view import loop_rate, measures_view, scores_view
from anadil.report.model_card import ModelFacts, card_of_model
from anadil.report.read import Facts, read_facts
from anadil.report.training_view import finetune_view, training_view
from anadil.report.verdict import FINETUNING, learnings, released_name, verdict
from anadil.runtime.job import Figures, Job
from anadil.text.metrics import deciding_scores

FOLDER = Path(__file__).parent

log = logging.getLogger(__name__)

# Largest page that KFP's and MLflow's viewers show.
MAX_PAGE_BYTES = 2_000_000
MAX_RECIPE = 40_000
MAX_VALUE = 2_000
SCORED = ("bits_per_byte", "fertility", "bytes_per_token", "words_in_context")
ANSWERED = ("bits_per_byte", "chrf", "exact", "ended")
REPORT_SECTIONS = (
    ("answers", "Answers"), ("scores", "Scores"), ("training", "Training"), ("cost", "Time and cost"),
    ("corpus", "Corpus"), ("tokenizer", "Tokenizer"), ("reproduce", "How to reproduce"),
)  # fmt: skip


def run(job: Job) -> Figures:
    """Write `report.html`, `report.md`, `metrics.json`, and the cards of corpus and model."""
    facts, reader, names = read_facts(job), job.recipe.report.reader, job.recipe.sources
    context = copy_context()
    if reader != translation.ENGLISH:
        context.run(letters.set, translation.Translation(reader, names=names).letters)
    view = context.run(_view, facts)
    files = {
        "report.html": render_template(FOLDER / "page.html.j2", view),
        "report.md": render_template(FOLDER / "report.md.j2", view),
        **_cards(facts),
    }
    if reader != translation.ENGLISH:
        files = {
            name: (translation.html if name == "report.html" else translation.markdown)(text, reader, names)
            for name, text in files.items()
        }
    size = len(files["report.html"].encode(errors="replace"))
    if size > MAX_PAGE_BYTES:
        log.warning("report.html has %s bytes, more than the %s that viewers take", size, MAX_PAGE_BYTES)
    numbers = metrics(facts)
    files["metrics.json"] = json.dumps(numbers, indent=1, sort_keys=True) + "\n"
    for name, text in files.items():
        # JSON can hold halves of surrogate pairs, which no UTF-8 file can.
        (job.out / name).write_text(text, encoding="utf-8", errors="replace")
    job.tracker.metrics(numbers)
    # A reused scores artifact was not logged by this run's evaluate stage.
    job.tracker.run_metrics(deciding_scores(facts.scores))
    job.records["metrics"] = len(numbers)
    return _figures(facts)


def _view(facts: Facts) -> dict[str, object]:
    """Build all sections of the page, by the names of its template."""
    recipe = facts.recipe
    return {
        "title": clip(recipe.report.title or f"{facts.language.name}: what {facts.base_name} learned", 200),
        "facts": facts,
        "sections": REPORT_SECTIONS,
        "lang": recipe.language_code,
        "mark": translation.MARK if recipe.report.reader != translation.ENGLISH else "",
        "corpus": corpus_view(facts),
        "tokenizer": tokenizer_view(facts),
        "training": training_view(facts),
        "parts": {
            section: [each for each in facts.parts.values() if each.section == section]
            for section, _ in REPORT_SECTIONS
        },
        "finetune": finetune_view(facts),
        "verdict": verdict(facts),
        "scores": scores_view(facts),
        "measures": measures_view(facts),
        "talk": talk_view(facts.scores),
        "generations": generations_view(candidates_of(facts.scores)),
        "cost": cost_view(facts),
        "provenance": _provenance(facts),
    }


def _cards(facts: Facts) -> dict[str, str]:
    """The data card, and the card of the model that is released, else of the last one that was trained."""
    manifests, recipe = facts.manifests, facts.recipe.model_dump(mode="json")
    released = BY_NAME.get(released_name(facts.scores))
    made = [each.kind for each in CANDIDATES if each.kind in manifests]
    word = released.kind if released and released.kind in manifests else made[-1]
    model = ModelFacts(
        word=word, manifest=manifests[word], recipe=recipe, corpora=facts.corpora,
        training=facts.training_summary, parts=facts.parts, finetuning=facts.finetuning_summary, chats=facts.mask_audit,
        scores=facts.scores,
    )  # fmt: skip
    data_card = card_of_corpora(facts.corpora, facts.training_summary)
    return {MODEL_CARD: card_of_model(model), DATA_CARD: data_card}


def _provenance(facts: Facts) -> dict[str, object]:
    rows = [
        (
            f"{word}/{manifest.key}",
            f"sha256:{manifest.digest}",
            clip(manifest.program.get("version") or DASH, 40),
            clip(manifest.program.get("image") or DASH, 120),
        )
        for word, manifest in facts.manifests.items()
    ]
    columns = ("artifact", "digest", "program", "image")
    table = Table("Artifacts that this page was made from", columns, rows, words=(1, 2, 3))
    # Storage, tracking and cluster change no number, and hold the addresses, perhaps the passwords, of a machine.
    known = facts.recipe.model_dump(mode="json")
    sections = {
        section: _portable(known[section])
        for section in STAGES["report"].keys
        if known.get(section) is not None
    }
    recipe = clip(yaml.safe_dump(sections, allow_unicode=True, sort_keys=False, width=100), MAX_RECIPE)
    return {"version": __version__, "recipe": recipe, "artifacts": table}


def _portable(node: object) -> object:
    if isinstance(node, dict):
        return {key: _portable(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_portable(value) for value in node]
    return clip(portable(node), MAX_VALUE) if isinstance(node, str) else node


def metrics(facts: Facts) -> dict[str, float | int]:
    """Every number that is worth following over runs, by a flat name."""
    cost, passed = cost_view(facts), field(facts.scores, "gate.passed")
    figures: dict[str, object] = {
        "corpus_in": facts.stats.get("in"),
        "corpus_kept": facts.stats.get("kept"),
        "corpus_words": facts.stats.get("words_out"),
        "corpus_bytes": facts.stats.get("bytes_out"),
        "pretrain_final_loss": _last_loss(facts.training),
        "finetune_final_loss": _last_loss(facts.finetuning),
        "gate_passed": int(passed) if isinstance(passed, bool) else None,
        "seconds": cost["seconds"] or None,
        "cost_usd": cost["dollars"],
    }
    figures |= {f"corpus_{part}": int(count) for part, count in parts_of(facts.stats)}
    for each in facts.corpora:
        counts = (
            {"in": "in", "kept": "kept", "words": "words_out", "bytes": "bytes_out"} if each.source else {}
        )
        figures |= {f"corpus_{each.source}_{name}": each.stats.get(key) for name, key in counts.items()}
    for name, table in tokenizers_of(facts):
        figures[f"tokenizer_fertility_{name}"] = table.get("fertility")
    for part in facts.parts.values():
        figures |= part.metrics
    for name, table in candidates_of(facts.scores).items():
        figures |= _of_candidate(name, table)
    for task, by_candidate in named_tables(facts.scores.get("tasks")):
        for name, entry in by_candidate.items():
            figures[f"task_{task}_{name}"] = table_of(entry).get("value")
    for stage, learning in learnings(facts).items():
        figures[f"{'finetune' if stage == FINETUNING else 'pretrain'}_loss_fall"] = learning.fall
    return {name: value for name, item in figures.items() if (value := number(item)) is not None}


def _of_candidate(name: str, table: Json) -> dict[str, object]:
    figures: dict[str, object] = {f"{key}_{name}": table.get(key) for key in SCORED}
    figures[f"loop_rate_{name}"] = loop_rate(table)
    figures[f"own_language_{name}"] = field(table, "output_language.own")
    for part in ("questions", "seen_questions"):
        figures |= {f"{part}_{key}_{name}": table_of(table.get(part)).get(key) for key in ANSWERED}
    for part in ("retained", "domains"):
        figures |= {f"{part}_{key}_{name}": value for key, value in table_of(table.get(part)).items()}
    for each in view_results("metrics", table):
        figures |= {f"{key}_{name}": value for key, value in each.items()}
    for source, entry in table_of(table.get("choices")).items():
        figures[f"choices_{source}_{name}"] = table_of(entry).get("accuracy")
    return figures


def _last_loss(lines: list[Json]) -> object:
    return next((line["loss"] for line in reversed(lines) if number(line.get("loss")) is not None), None)


def _figures(facts: Facts) -> Figures:
    candidates, released = candidates_of(facts.scores), released_name(facts.scores)
    base, model = candidates.get("base", {}), candidates.get(released or "adapted", {})
    change = change_percent(base.get("bits_per_byte"), model.get("bits_per_byte"))
    fertility = ratio(base.get("fertility"), model.get("fertility"))
    passed = field(facts.scores, "gate.passed")
    figures: Figures = {}
    if change is not None:
        figures["bits_per_byte_change_percent"] = round(change, 2)
    if fertility is not None:
        figures["fertility_ratio"] = round(fertility, 4)
    if released:
        figures["released"] = released
    figures["gate"] = {True: "passed", False: "not passed"}[passed] if isinstance(passed, bool) else "none"
    return figures
