"""The section of a retraining, at the top of the page: what changed since the champion, and its admission."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anadil.artifacts.artifact import Manifest
from anadil.core.format import (
    DASH,
    counted,
    human_bytes,
    human_count,
    human_dollars,
    human_figure,
    human_percent,
    human_seconds,
    number,
)
from anadil.core.table import Table
from anadil.recipe.retrain import EARLIER, NEW, Champion, Retrain
from anadil.report.charts import Chart, intervals
from anadil.report.cost_view import stage_costs
from anadil.report.format import figure, signed_percent
from anadil.report.measures_view import ends_of, estimates, interval_words
from anadil.report.read import CorpusFacts, Facts, Json, field, last_part, table_of
from anadil.report.verdict import before, candidates_of, check_words, checks_of, outcome_words, subjects_of
from anadil.runtime.job import word_of

CHAMPION = "champion"
"""Name of the champion in the scores."""
TO_CHAMPION = "_to_champion"
"""Ends of the names of checks that compare with it."""
SHOWN = 5
"""Files of chats that are named."""

SHARES = ("language", "duplicates", "contaminated", "unusable", "personal_data")
"""Checks whose figures are shares; the others are times and indices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainView:
    """New text, scores and verdict since the champion."""

    title: str
    lead: str
    reasons: tuple[str, ...]
    """The gate's comparisons with the champion."""
    text: Table
    """New text by source."""
    scores: Table
    """Challenger against champion."""
    chart: Chart | None


def retrain_view(facts: Facts) -> RetrainView | None:
    """Build the section; None for a run that retrains nothing."""
    retrain = facts.recipe.retrain
    if retrain is None or retrain.champion is None:
        return None
    # Where the gate released none, the last candidate is the one that the run was for.
    name = next(iter(subjects_of(facts.scores)[::-1]), "")
    rows = _compared(facts.scores, name) if name else []
    return RetrainView(
        title=f"Since version {retrain.champion.version} of {retrain.champion.name}",
        lead=_lead(facts, retrain, retrain.champion),
        reasons=tuple(_reasons(facts.scores, name)),
        text=_text_table(facts, retrain),
        scores=_scores_table(rows, name),
        chart=_chart(rows, name),
    )


def _lead(facts: Facts, retrain: Retrain, champion: Champion) -> str:
    """Sentences about the start, the text, the chats, the steps and the cost."""
    chats, cost = _chats_words(facts, retrain.new_chats), _cost(facts, retrain.keeps)
    if retrain.keeps_model:
        return (
            f"This run challenges version {champion.version}. Without new text it took the champion's model as it is."
            f"{chats} {cost}"
        )
    training = facts.training_summary
    week = table_of(training.get("retrain"))
    steps = number(week.get("steps") if week else training.get("steps"))
    origin = "It began with the base, on all text"
    if week:
        step = figure(field(training, "start_from.step"))
        begins = {"plateau": f"checkpoint at step {step}, with its moments"}
        origin = (
            f"It began with the champion's {begins.get(str(week.get('begin')), 'weights, with new moments')}"
        )
    took = f", and took {counted(int(steps), 'step')}" if steps is not None else ""
    new, earlier = (number(field(week, f"{side}.documents")) for side in (NEW, EARLIER))
    text = (
        f" It trained on {human_figure(new)} new documents beside {human_figure(earlier)} earlier ones."
        if new is not None and earlier is not None
        else ""
    )
    return f"This run challenges version {champion.version}. {origin}{took}.{text}{chats} {cost}"


def _chats_words(facts: Facts, new: Sequence[str]) -> str:
    """Sentence about the files of chats that came or changed; empty where there are none."""
    if not new:
        return ""
    names = ", ".join(last_part(name) for name in new[:SHOWN])
    more = ", ..." if len(new) > SHOWN else ""
    learnt = number(facts.finetuning_summary.get("examples"))
    words = f" It learnt {counted(int(learnt), 'chat')} of all files." if learnt is not None else ""
    if facts.recipe.finetune.start_from:
        number_of = counted(int(learnt), "chat") if learnt is not None else "the chats"
        words = f" It went on with the champion's adapter, on {number_of} of these files alone."
    return f" Chats came in {counted(len(new), 'file')} ({names}{more}).{words}"


def _cost(facts: Facts, keeps: Sequence[str]) -> str:
    """Sentence about the time and the price of what the run did not take from the champion."""
    # Time of the champion's own artifacts was paid for by an earlier run.
    made = {word: manifest for word, manifest in facts.manifests.items() if word not in keeps}
    rows = stage_costs(made, {"model": facts.training_summary, "adapter": facts.finetuning_summary})
    if not rows:
        return "No stage recorded its time."
    prices = [row.dollars for row in rows if row.dollars is not None]
    price = f", {human_dollars(sum(prices))} at on-demand prices" if prices else ""
    return f"Its stages took {human_seconds(sum(row.seconds for row in rows))}{price}."


def _text_table(facts: Facts, retrain: Retrain) -> Table:
    """A row for each source: files, documents and tokens that the champion has not read; none where no text is new."""
    rows = []
    for each in () if retrain.keeps_model else facts.corpora:
        tokens = facts.manifests.get(word_of("tokens", each.source))
        is_new = word_of("corpus", each.source) not in retrain.keeps
        cells = _new_text(each, tokens) if is_new else ("none", *[DASH] * 6)
        rows.append((each.source or "text", *cells))
    columns = (
        "source",
        "new files",
        "documents read",
        "documents kept",
        "words",
        "text",
        "tokens",
        "tokens per word",
    )
    return Table("New text", columns, rows)


def _new_text(corpus: CorpusFacts, tokens: Manifest | None) -> tuple[str, ...]:
    # A corpus that adds to another counts its new files alone.
    files = [name for name in corpus.manifest.origin if name.startswith("file ") and " of " not in name]
    known = table_of(tokens.figures if tokens else {})
    return (
        f"{len(files):,}",
        *(human_count(number(corpus.stats.get(key))) for key in ("in", "kept", "words_out")),
        human_bytes(number(corpus.stats.get("bytes_out"))),
        human_figure(number(known.get("new_tokens"))),
        _cost_of_words(known),
    )


def _cost_of_words(figures: Json) -> str:
    """Tokens a word of the new text and of the earlier; bytes a token where the language counts no words."""
    for key, unit in (("tokens_per_word", ""), ("bytes_per_token", " bytes a token")):
        new, earlier = (number(figures.get(f"{key}_{side}")) for side in (NEW, EARLIER))
        if new is not None and earlier is not None:
            drift = number(figures.get("tokenizer_drift"))
            change = f" ({signed_percent(100 * drift)})" if drift is not None else ""
            return f"{figure(new)}{unit}, was {figure(earlier)}{change}"
    return DASH


def _compared(scores: Json, name: str) -> list[tuple[str, object, object, Json]]:
    """Text -> bits per byte of champion and challenger, and their difference."""
    candidates = candidates_of(scores)
    champion, challenger = candidates.get(CHAMPION, {}), candidates.get(name, {})
    paths = [("held-out text", "bits_per_byte", "")]
    paths += [
        (f"kept text: {language}", f"retained.{language}", f", retained {language}")
        for language in table_of(champion.get("retained"))
    ]
    paths += [("answers", "questions.bits_per_byte", ", answers")]
    differences = table_of(scores.get("differences"))
    return [
        (label, old, new, table_of(differences.get(f"{name} - {CHAMPION}{ending}")))
        for label, path, ending in paths
        if (old := field(champion, path)) is not None and (new := field(challenger, path)) is not None
    ]


def _scores_table(rows: list[tuple[str, object, object, Json]], name: str) -> Table:
    cells = [
        (
            label,
            figure(old),
            figure(new),
            figure(difference.get("value")),
            interval_words(ends_of(difference)),
        )
        for label, old, new, difference in rows
    ]
    columns = ("bits per byte on", CHAMPION, name, "difference", "95 % interval")
    note = "Less is better. Differences are paired by document; an interval that holds 0 decides nothing."
    return Table("Challenger against champion", columns, cells, note=note)


def _chart(rows: list[tuple[str, object, object, Json]], name: str) -> Chart | None:
    title = f"{name} less champion"
    drawn = estimates([(label, difference, 1) for label, _, _, difference in rows])
    return intervals(title, "bits per byte", drawn, Table(title, (), ()))


def _reasons(scores: Json, name: str) -> list[str]:
    """The gate's checks against the champion, or why there are none."""
    checks = (
        [each for each in checks_of(scores, name) if TO_CHAMPION in str(each.get("name"))] if name else []
    )
    if not checks:
        return [
            "The scores compare with no champion, so the release step makes this model challenger at most."
        ]
    return [
        f"{check_words(each, name, before(scores)).capitalize()} {outcome_words(each)}: "
        f"{'passed' if each.get('passed') else 'not passed'}{'' if each.get('enforced', True) else ', not decisive'}."
        for each in checks
    ]


def admission_table(admission: Mapping[str, Any]) -> Table:
    """Build a row for each check; no rows for a run that admits nothing."""
    rows = []
    for check in admission.get("checks", ()):
        say = human_percent if check["name"] in SHARES else human_figure
        figures = [say(check[key]) for key in ("value", "usual", "limit")]
        rows.append((check["name"].replace("_", " "), check["source"] or "text", *figures, check["words"]))
    weeks = admission.get("earlier_weeks", 0)
    # A limit that is passed by chance alone refuses nothing, so a figure may be above it.
    notes = [
        f"Compared with {counted(weeks, 'earlier week')}." if weeks else "",
        *admission.get("notes", ()),
    ]
    columns = ("check", "source", "now", "usually", "limit", "")
    return Table("Admission of the new text", columns, rows, words=(1, 5), note=" ".join(filter(None, notes)))
