"""A comparison as one page in the report's style, and answers of both runs to the same prompts."""

import re
from dataclasses import replace
from typing import Any

from anadil import __version__
from anadil.core.format import DASH
from anadil.release.compare.compared_runs import ComparedRuns
from anadil.release.compare.run_facts import RunFacts
from anadil.release.compare.score_pairs import ScorePair
from anadil.release.compare.tables import COST_COLUMNS, SCORE_COLUMNS, cost_rows, score_rows, value_text
from anadil.report.charts import Estimate, Line
from anadil.report.elements import Chart, TextTable, intervals, lines
from anadil.report.format import MINUS, clip, figure
from anadil.report.generations_view import (
    OPEN_ANSWERS,
    OPEN_BEGINNINGS,
    PromptView,
    chosen_prompts,
    greedy_texts,
    prompts_of,
)
from anadil.report.read import Json, portable
from anadil.report.render import render_template
from anadil.report.verdict import candidates_of

SECTIONS = (
    ("scores", "Scores"),
    ("recipe", "Recipe"),
    ("curves", "Curves"),
    ("answers", "Answers"),
    ("cost", "Time and cost"),
    ("artifacts", "Artifacts"),
)
KINDS = {
    "answer": ("finetuned", "merged", "adapted"),
    "continuation": ("merged", "adapted", "finetuned"),
}
"""Kind of prompt -> candidates whose text is shown: the first that the run has."""
COLOURS = {"a": 4, "b": 1}
TEXTS = {"bits_per_byte": "", "questions.bits_per_byte": " answers"}
"""Measure in bits per byte -> its text after the candidate in a chart; retained languages have their codes."""
MAX_VALUE = 300
NOTE = (
    "The interval of a difference comes from a bootstrap over documents, the same draw for both runs. If it contains 0, "
    "neither run is clearly better. Intervals of shares are each run's own."
)
HEADLINES = (
    ("adapted", "bits_per_byte", "Bits per byte", "adapted model, lower is better"),
    ("adapted", "fertility", "Fertility", "tokens per word, lower is better"),
    (
        "finetuned",
        "questions.bits_per_byte",
        "Answers",
        "bits per byte of answers to unseen questions, lower is better",
    ),
    ("finetuned", "questions.exact", "Word for word", "share of unseen questions, more is better"),
)


def render_comparison(runs: ComparedRuns) -> str:
    """The page."""
    answers, beginnings = (compared_prompts(runs.a, runs.b, kind) for kind in ("answer", "continuation"))
    view: dict[str, object] = {
        "title": "Two runs compared",
        "sections": SECTIONS,
        "lang": runs.b.language or runs.a.language or "en",
        "a": runs.a.label,
        "b": runs.b.label,
        "verdict": runs.verdict,
        "notes": runs.notes,
        "headlines": _headlines(runs),
        "scores": _scores(runs, differing=True),
        "same_scores": _scores(runs, differing=False),
        "difference": _difference_chart(runs.scores),
        "recipe": _recipe(runs),
        "has_recipes": bool(runs.a.recipe and runs.b.recipe),
        "charts": [
            lines(
                each.stage,
                each.unit,
                [
                    Line(one.label, one.points, colour=COLOURS[one.run], dashed=one.validation)
                    for one in each.lines
                ],
            )
            for each in runs.curves
            if each.lines
        ],
        "no_axis": [f"{each.stage}: {each.why_not}." for each in runs.curves if each.why_not],
        "answers": answers[:OPEN_ANSWERS],
        "more_answers": answers[OPEN_ANSWERS:],
        "beginnings": beginnings[:OPEN_BEGINNINGS],
        "more_beginnings": beginnings[OPEN_BEGINNINGS:],
        "cost": TextTable("Time and cost by stage", COST_COLUMNS, cost_rows(runs)),
        "artifacts": _artifacts(runs),
        "version": __version__,
    }
    return render_template("compare.html.j2", view)


def _headlines(runs: ComparedRuns) -> list[dict[str, str]]:
    pairs = {(each.candidate, each.measure): each for each in runs.scores}

    def shown(pair: ScorePair, value: float | None) -> str:
        return f"{figure(value * 100, 3)} %" if pair.share and value is not None else figure(value)

    headlines = []
    for candidate, measure, name, unit in HEADLINES:
        if (pair := pairs.get((candidate, measure))) is None:
            continue
        change = "the same" if pair.difference == 0 else "not clearly apart"
        if pair.better:
            change = f"{pair.better.upper()} is better"
        if pair.why_not:
            change = f"not comparable: {pair.why_not}"
        headlines.append(
            {
                "name": name, "unit": unit, "a": shown(pair, pair.a), "b": shown(pair, pair.b), "change": change,
                "kind": "better" if pair.better else "",
            }
        )  # fmt: skip
    return headlines


def _scores(runs: ComparedRuns, *, differing: bool) -> TextTable:
    """Figures that differ or cannot be compared, or those that are the same."""

    def signed(text: str) -> str:
        return re.sub(r"(?<![\w.])-(?=[\d ])", MINUS, text)

    every, apart = score_rows(runs), score_rows(runs, differing=True)
    rows = apart if differing else [row for row in every if row not in apart]
    return TextTable(
        "Figures that differ" if differing else "Figures that are the same",
        ("figure", *map(signed, SCORE_COLUMNS[2:])),
        [(f"{row[0]}, {row[1]}", *map(signed, row[2:])) for row in rows],
        words=(6,),
        pinned=True,
        note=NOTE if differing else "",
    )


def _difference_chart(pairs: tuple[ScorePair, ...]) -> Chart | None:
    """Differences with paired intervals, without the base: mostly both runs have the same one."""
    drawn = [
        Estimate(
            label=f"{pair.candidate}{TEXTS.get(pair.measure, pair.measure.replace('retained.', ' '))}",
            value=pair.difference, low=pair.low, high=pair.high, colour=COLOURS[pair.better] if pair.better else 0,
        )
        for pair in pairs
        if pair.candidate != "base" and pair.difference is not None and pair.low is not None and pair.high is not None
    ]  # fmt: skip
    rows = [(each.label, figure(each.value), f"{figure(each.low)} to {figure(each.high)}") for each in drawn]
    table = TextTable("B less A", ("candidate", "bits per byte", "95 % interval"), rows)
    return intervals("B less A", "bits per byte, below zero B is better", drawn, table)


def _recipe(runs: ComparedRuns) -> TextTable:
    rows = [
        (change.key, _portable(change.a), _portable(change.b), "yes" if change.decides else "no")
        for change in runs.recipe
    ]
    return TextTable("Keys that differ", ("key", "A", "B", "decides a result"), rows, words=(1, 2, 3))


def _portable(value: object) -> str:
    """A value without the directories of a machine, as the report prints them."""
    if isinstance(value, str) and (shown := portable(value)) != value:
        return shown
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return clip(", ".join(_portable(each) for each in value), MAX_VALUE)
    return value_text(value, MAX_VALUE)


def _artifacts(runs: ComparedRuns) -> TextTable:
    rows = []
    for word in dict.fromkeys([*runs.a.digests, *runs.b.digests]):
        digests = [run.digests.get(word, DASH)[:16] for run in (runs.a, runs.b)]
        same = {True: "yes", False: "no", None: DASH}[runs.same.get(word)]
        if word != "report":
            rows.append((word, *digests, same))
    return TextTable("Digests of what they hold", ("artifact", "A", "B", "the same"), rows, words=(1, 2, 3))


def compared_prompts(a: RunFacts, b: RunFacts, kind: str) -> tuple[PromptView, ...]:
    """Prompts of a kind that both runs gave their models, and the greedy text of each; at most those of a report.

    A question that only one run has trained on is marked as neither.
    """
    texts = [(name, *_greedy(run, kind)) for name, run in (("A", a), ("B", b))]
    seen = [{str(line.get("prompt")): line.get("seen") for line in lines} for _, _, lines in texts]
    common = seen[0].keys() & seen[1].keys()
    shown: dict[str, Json] = {
        f"{name} {candidate}": {
            "generations": [
                line if seen[0][prompt] == seen[1][prompt] else line | {"seen": None}
                for line in lines_
                if (prompt := str(line.get("prompt"))) in common
            ]
        }
        for name, candidate, lines_ in texts
    }
    return tuple(
        replace(each, made=tuple(replace(one, style="adapted" if one.candidate.startswith("B") else "") for one in each.made))
        for each in chosen_prompts(prompts_of(shown, kind))
    )  # fmt: skip


def side_by_side(a: RunFacts, b: RunFacts) -> list[dict[str, Any]]:
    """The same for JSON, every prompt of both runs."""
    entries: dict[tuple[str, str], dict[str, Any]] = {}
    for kind in KINDS:
        for name, run in (("a", a), ("b", b)):
            candidate, lines = _greedy(run, kind)
            for line in lines:
                text = str(line.get("prompt"))
                entry = entries.setdefault((kind, text), {"kind": kind, "prompt": text, "a": None, "b": None})
                keys = ("text", "seen", "exact", "ended", "loop", "chrf")
                entry[name] = {"candidate": candidate} | {key: line.get(key) for key in keys}
    return list(entries.values())


def _greedy(run: RunFacts, kind: str) -> tuple[str, list[Json]]:
    """The candidate whose texts of a kind are shown, and those texts."""
    known = candidates_of(run.scores)
    candidate = next((name for name in KINDS[kind] if name in known), "")
    return candidate, greedy_texts(known.get(candidate, {}), answers=kind == "answer")
