"""Measures beside bits per byte: forgetting, domains, tasks, answers, choices.

Each measure is a table and perhaps a chart; one that `scores.json` does not hold is skipped.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from anadil.core.candidates import COLOURS
from anadil.core.format import DASH, number
from anadil.core.measures import view_results
from anadil.core.table import Table
from anadil.page.charts import Bar, Chart, bars, estimate, facts_table, intervals
from anadil.page.format import MINUS, change_percent, clip, figure, percent, plain_value, signed_percent
from anadil.page.part import MeasureView
from anadil.page.values import Json, candidates_of, field, interval_of, interval_words, named_tables, table_of
from anadil.report import verdict
from anadil.report.read import Facts
from anadil.text.metrics import SURE_DOCUMENTS

MAX_NAMES = 40
"""Most domains, files, tasks or languages that the page lists."""
UNSURE = " *"
UNSURE_NOTE = f"* unsure: fewer than {SURE_DOCUMENTS}, so the interval says little."
# Source: `benchmarks/evaluate/coverage.py`, 6 to 300 Azerbaijani documents of 3,000 bytes in the middle.
ALONE_NOTE = (
    "Intervals of one model are too narrow if a few long documents hold most of the text. On real documents they held the "
    "truth 79 to 86 times in 100, not 95. Compare models by the interval of their difference."
)
PARTS = (("questions", "not seen in training"), ("seen_questions", "seen in training"))

Candidates = Mapping[str, Json]
MAX_DIFFERENCES = 40
OF_ANSWERS = ", answers"
FIGURES = (
    ("bits_per_byte", "bits per byte"),
    ("loops", "greedy texts that loop"),
    ("fertility", "tokens per word"),
    ("bytes_per_token", "bytes per token"),
    ("words_in_context", "words in context"),
)
# Language of the published figures; they say nothing about words and bytes of others.
PUBLISHED_LANGUAGE = "az"
COUNTERS = (
    ("num_documents", "documents"),
    ("num_words", "words"),
    ("num_bytes", "bytes"),
    ("num_tokens", "tokens"),
    ("parameters", "parameters"),
    ("context", "context"),
    ("stride", "stride"),
)


def measures_view(facts: Facts) -> tuple[MeasureView, ...]:
    """Measures in the order in which they decide: losses to the base, strengths by text, abilities."""
    candidates = candidates_of(facts.scores)
    domains, files = (
        _by_part(candidates, key, word) for key, word in (("domains", "domain"), ("sources", "file"))
    )
    # A record that names neither host nor source has its file as its domain.
    same = [row[0] for row in domains.table.rows] == [row[0] for row in files.table.rows]
    measures = (
        _forgetting(facts, candidates),
        *chain.from_iterable(view_results("measures", facts.scores)),
        domains,
        *([] if same else [files]),
        _tasks(facts.scores, candidates),
        _questions(candidates),
        _choices(candidates),
    )
    return tuple(measure for measure in measures if measure.table.rows)


def ends_of(difference: Json) -> list[object]:
    """Both ends of a paired difference, as `interval_of` takes them."""
    return [difference.get("low"), difference.get("high")]


def counted_words(count: object) -> str:
    """A number of documents or questions, with a mark where it is too small for an interval."""
    known = number(count)
    return f"{figure(count)}{UNSURE if known is not None and known < SURE_DOCUMENTS else ''}"


def _note(rows: Sequence[Sequence[str]]) -> str:
    return UNSURE_NOTE if any(row[1].endswith(UNSURE) for row in rows) else ""


def _forgetting(facts: Facts, candidates: Candidates) -> MeasureView:
    names = _names(candidates, "retained")
    changes = {
        name: {each.text: each for each in verdict.changes_of(facts.scores, name)} for name in candidates
    }
    rows, drawn = [], []
    for code in names:
        cells = []
        for name, item in candidates.items():
            value = number(table_of(item.get("retained")).get(code))
            change = None if name == "base" else changes[name].get(code)
            cells.append(f"{figure(value)}{_change_words(change)}")
            if value is not None:
                label = name if len(names) == 1 else f"{name}, {clip(code, 20)}"
                drawn.append(Bar(label, float(value), COLOURS.get(name, 3)))
        # `en` of the program's text and `en_source` would be taken for one.
        source = verdict.source_of_text(code, names, facts.recipe.sources)
        rows.append((f"source {source}" if source else clip(code, 60), *cells))
    released = verdict.released_name(facts.scores)
    columns = ("text", *(f"{name}, released" if name == released else name for name in candidates))
    table = Table("Forgetting: bits per byte on text that the base could read", columns, rows)
    lead = (
        "Bits per byte on text that the base could read. In brackets, the change from the base with the 95 % interval of the "
        "paired difference. Lower is better."
    )
    chart = bars("Forgetting", "bits per byte, lower is better", drawn[:MAX_NAMES], table)
    return MeasureView("Forgetting", lead, table, chart)


def _change_words(change: verdict.Change | None) -> str:
    if change is None:
        return ""
    ends = " to ".join(signed_percent(round(end * 100, 1)) for end in change.interval or ())
    return f" ({signed_percent(round(change.share * 100, 1))}{f'; {ends}' if ends else ''})"


def _by_part(candidates: Candidates, key: str, word: str) -> MeasureView:
    rows, counts = [], []
    for name in _names(candidates, key):
        parts = [table_of(table_of(item.get(f"{word}_figures")).get(name)) for item in candidates.values()]
        count = next((n for part in parts if (n := number(part.get("num_documents"))) is not None), None)
        cells = []
        for item, part in zip(candidates.values(), parts, strict=True):
            # One document leaves nothing to resample.
            ends = DASH if count == 1 else interval_words(part.get("interval"))
            value = figure(table_of(item.get(key)).get(name))
            cells.append(value if ends == DASH else f"{value} ({ends})")
        counts.append(count)
        rows.append((clip(name, 60), counted_words(count), *cells))
    columns, notes = (word, "documents", *candidates), [_note(rows), ALONE_NOTE]
    known = any(count is not None for count in counts)
    if not known:
        rows, columns, notes = [(row[0], *row[2:]) for row in rows], (word, *candidates), []
    lead = f"Bits per byte of the held-out text by {word}{', with 95 % intervals' if known else ''}. Lower is better."
    note = " ".join(filter(None, notes))
    return MeasureView(f"By {word}", lead, Table(f"Bits per byte by {word}", columns, rows, note=note))


def _tasks(scores: Json, candidates: Candidates) -> MeasureView:
    rows, facts = [], dict(named_tables(scores.get("task_facts")))
    for task, by_candidate in named_tables(scores.get("tasks"))[:MAX_NAMES]:
        entries = [table_of(by_candidate.get(name)) for name in candidates]
        first = next(filter(None, entries), {})
        cells = []
        for entry in entries:
            error = number(entry.get("stderr"))
            more = "" if error is None else f" \N{PLUS-MINUS SIGN} {figure(error, 2)}"
            cells.append(DASH if number(entry.get("value")) is None else f"{figure(entry['value'])}{more}")
        metric = clip(first.get("metric") or DASH, 40)
        known = facts.get(task, {})
        of_task = (
            clip(known.get("measures") or DASH, 80), figure(known.get("questions")), figure(known.get("contaminated"))
        )  # fmt: skip
        rows.append((clip(task, 80), *of_task, metric, figure(first.get("chance")), *cells))
    lead = (
        "Benchmarks of lm-evaluation-harness with standard errors. A model at chance only guesses. Questions that stand in the "
        "training text may be known by heart."
    )
    columns = ("task", "measures", "questions", "in the training text", "metric", "chance", *candidates)
    table = Table("Tasks", columns, rows, words=(1, 4))
    return MeasureView("Tasks", lead, table)


def _questions(candidates: Candidates) -> MeasureView:
    """Questions with a reference answer, those that training has not seen first."""
    rows, drawn = [], []
    for key, words in PARTS:
        for name, item in candidates.items():
            entry = table_of(item.get(key))
            if not (count := number(entry.get("num"))):
                continue
            value, ends = entry.get("bits_per_byte"), entry.get("bits_per_byte_interval")
            rows.append(
                (
                    f"{name}, {words}", counted_words(count), figure(value), interval_words(ends), figure(entry.get("asked", count)),
                    figure(entry.get("chrf"), 3), percent(entry.get("exact")), percent(entry.get("ended")),
                )
            )  # fmt: skip
            if key == "questions":
                drawn += estimate(name, name, value, ends)
    table = Table(
        "Answers to questions with a reference",
        ("candidate", "questions", "bits per byte of the reference", "95 % interval", "answered", "chrF", "word for word", "ended"),
        rows,
        note=_note(rows),
    )  # fmt: skip
    lead = "Likelihood of the reference answer (bits per byte, lower is better), and similarity of the model's own answer to it (chrF, higher is better)."
    title = "Reference answers to unseen questions"
    chart = intervals(title, "bits per byte, lower is better", drawn, table)
    return MeasureView("Held-out questions and answers", lead, table, chart)


def _choices(candidates: Candidates) -> MeasureView:
    """Accuracy by likelihood, with what guessing would give."""
    names = _names(candidates, "choices")
    rows, drawn = [], []
    for source in names:
        for name, item in candidates.items():
            entry = table_of(table_of(item.get("choices")).get(source))
            value, chance = number(entry.get("accuracy")), number(entry.get("chance"))
            ends, against = interval_of(entry.get("interval")), DASH
            if value is None:
                continue
            if ends and chance is not None:
                against = "better" if ends[0] > chance else "worse" if ends[1] < chance else "not told apart"
            rows.append(
                (
                    f"{clip(source, 60)}, {name}", counted_words(entry.get("num")), percent(value),
                    interval_words(entry.get("interval"), percent), percent(chance), against,
                )
            )  # fmt: skip
            label = name if len(names) == 1 else f"{clip(source, 12)}, {name}"
            drawn += estimate(label, name, value, entry.get("interval"), chance)
    table = Table(
        "Choices: share of questions whose right answer is the likeliest",
        ("source", "questions", "accuracy", "95 % interval", "chance", "against chance"),
        rows,
        words=(5,),
        note=_note(rows),
    )
    lead = "The model's choice is the likeliest answer by bits per byte. The dashed line marks guessing."
    chart = intervals("Accuracy by likelihood", "share right, higher is better", drawn[:MAX_NAMES], table)
    return MeasureView("Choices", lead, table, chart)


def _names(candidates: Candidates, key: str) -> list[str]:
    names = dict.fromkeys(name for item in candidates.values() for name in table_of(item.get(key)))
    return list(names)[:MAX_NAMES]


def scores_view(facts: Facts) -> dict[str, Any]:
    """Build the section on scores and the large figures of the page, by the names of the template."""
    scores = facts.scores
    candidates, differences = candidates_of(scores), _differences(scores)
    headlines, seen = _headlines(scores, facts.language.code), table_of(scores.get("contamination"))
    return {
        "headlines": headlines,
        "has_published": any(each["published"] for each in headlines),
        "candidates": _figures("Candidates on the same held-out text", candidates, FIGURES),
        "counters": _figures("Counts behind the figures", candidates, COUNTERS),
        "charts": _charts(candidates, differences),
        "differences": _difference_table("Differences in bits per byte, paired by document", differences),
        "contamination": facts_table("Held-out text that training has seen", seen),
        "heldout": facts_table("The held-out text", table_of(scores.get("heldout")) | _tuning(scores)),
        "checks": _checks(scores),
    }


def _tuning(scores: Json) -> Json:
    """Documents of each text that are not scored, since a candidate was tuned by them."""
    tuning = table_of(scores.get("tuning"))
    texts = {"heldout": table_of(tuning.get("heldout")), **dict(named_tables(tuning.get("retained")))}
    return {
        f"for_tuning_{name}": f"{figure(each.get('tuning'))} not scored, {figure(each.get('scored'))} scored"
        for name, each in texts.items()
        if each
    }


def loop_rate(candidate: Json) -> float | None:
    """Share of a candidate's greedy generations that end in a loop; sampling hides loops."""
    return number(field(candidate, "repetition.greedy.loop_rate"))


def _headlines(scores: Json, language: str) -> list[dict[str, Any]]:
    """Large figures of the released model; without one, of the adapted model, and nothing is marked better."""
    candidates, released = candidates_of(scores), verdict.released_name(scores)
    of = released or next(iter(verdict.subjects_of(scores)), "adapted")
    earlier = verdict.before(scores)
    base, trained, model = (candidates.get(name, {}) for name in ("base", earlier, of))
    context = number(model.get("context"))
    room = f"in {figure(context)} tokens, more is better" if context is not None else "more is better"
    rows = (
        ("Bits per byte", "lower is better", "bits_per_byte", -1, "0.6830 to 0.5795 (\N{MINUS SIGN}15.2 %)"),
        ("Fertility", "tokens per word, lower is better", "fertility", -1, "3.22 to 1.59 (\N{MINUS SIGN}50.6 %)"),
        ("Words in context", room, "words_in_context", 1, "about 40,000 to about 80,000"),
    )  # fmt: skip
    headlines = [
        _headline(
            name, unit, of, base.get(key), model.get(key), better_way=better_way,
            published=published if language == PUBLISHED_LANGUAGE else "",
        )
        for name, unit, key, better_way, published in rows
    ]  # fmt: skip
    first, last = (field(each, "questions.bits_per_byte") for each in (trained, model))
    if of == "finetuned" and number(first) is not None and number(last) is not None:
        unit = "bits per byte of answers to unseen questions, lower is better"
        headlines.append(_headline("Answers", unit, of, first, last, compared=earlier))
    else:
        start, end = loop_rate(base), loop_rate(model)
        moved = None if start is None or end is None else (end - start) * 100
        change = DASH if moved is None else f"{signed_percent(moved).removesuffix(' %')} points"
        loops = _headline("Loop rate", "greedy texts that end in a loop", of, start, end)
        headlines.append(loops | {"before": percent(start), "after": percent(end), "change": change})
    # A model that is not released gets no green figure, whatever moved.
    refused = isinstance(field(scores, "gate.passed"), bool) and not released
    return [each | {"better": None} if refused and each["better"] else each for each in headlines]


def _headline(
    name: str, unit: str, of: str, before: object, after: object, *, better_way: int = -1,
    compared: str = "base", published: str = "",
) -> dict[str, Any]:  # fmt: skip
    """One large figure: before, after, and as others published it."""
    old, new = number(before), number(after)
    moved = 0.0 if old is None or new is None else new - old
    return {
        "name": name, "unit": unit, "of": of, "compared": compared, "before": figure(before), "after": figure(after),
        "change": signed_percent(change_percent(before, after)), "published": published,
        # True if the figure moved in the better direction: 1 is up, -1 down.
        "better": moved * better_way > 0 if moved else None,
    }  # fmt: skip


def _figures(caption: str, candidates: dict[str, Json], known: tuple[tuple[str, str], ...]) -> Table:
    """A row for each candidate, a column for each figure that any of them has."""
    figures = {name: item | {"loops": loop_rate(item)} for name, item in candidates.items()}
    present = [
        (key, label)
        for key, label in known
        if any(number(item.get(key)) is not None for item in figures.values())
    ]
    rows = []
    for name, item in figures.items():
        cells = {key: figure(item.get(key)) for key, _ in present}
        if "loops" in cells:
            count = number(field(item, "repetition.greedy.samples"))
            of = "" if count is None or item.get("loops") is None else f" of {figure(count)}"
            cells["loops"] = f"{percent(item.get('loops'))}{of}"
        rows.append((name, *cells.values()))
    return Table(caption, ("candidate", *(label for _, label in present)), rows if present else ())


def _charts(candidates: dict[str, Json], differences: list[tuple[str, Json]]) -> tuple[Chart, ...]:
    charts = []
    for key, title, unit in (
        ("bits_per_byte", "Bits per byte", "bits per byte, lower is better"),
        ("fertility", "Fertility", "tokens per word, lower is better"),
    ):
        values = [(name, n) for name, item in candidates.items() if (n := number(item.get(key))) is not None]
        drawn = [Bar(name, float(value), COLOURS.get(name, 3)) for name, value in values]
        rows = [(bar.label, figure(bar.value)) for bar in drawn]
        charts.append(bars(title, unit, drawn, Table(title, ("candidate", unit), rows)))
    text = [(label, item) for label, item in differences if "," not in label]
    answers = [
        (label.removesuffix(OF_ANSWERS), item) for label, item in differences if label.endswith(OF_ANSWERS)
    ]
    charts.append(_difference_chart("Differences on held-out text", text))
    charts.append(_difference_chart("Differences on answers to unseen questions", answers))
    return tuple(chart for chart in charts if chart)


def _difference_chart(title: str, named: list[tuple[str, Json]]) -> Chart | None:
    drawn = [
        row
        for label, item in named
        for row in estimate(label, label.partition(" ")[0], item.get("value"), ends_of(item))
    ]
    return intervals(title, "bits per byte, below zero is better", drawn, _difference_table(title, named))


def _differences(scores: Json) -> list[tuple[str, Json]]:
    named = named_tables(scores.get("differences"))[:MAX_DIFFERENCES]
    return [(clip(name, 80).replace(" - ", f" {MINUS} "), item) for name, item in named]


def _difference_table(caption: str, named: list[tuple[str, Json]]) -> Table:
    rows = []
    for label, item in named:
        sure = item.get("significant")
        clear = ("yes" if sure else "no, the interval holds 0") if isinstance(sure, bool) else DASH
        ends = interval_words(ends_of(item))
        rows.append((label, figure(item.get("value")), ends, figure(item.get("num_documents")), clear))
    columns = ("difference", "bits per byte", "95 % interval", "documents", "clear")
    return Table(caption, columns, rows, words=(4,))


def _checks(scores: Json) -> Table:
    rows = []
    with_intervals = any(check.get("interval") for check in verdict.checks_of(scores))
    for check in verdict.checks_of(scores)[:MAX_DIFFERENCES]:
        passed = check.get("passed")
        outcome = ("passed" if passed else "not passed") if isinstance(passed, bool) else DASH
        rows.append(
            (
                verdict.check_words(check, before=verdict.before(scores)),
                "undecided" if check.get("undecided") is True else outcome,
                f"{plain_value(check.get('value'))}{UNSURE if check.get('unsure') is True else ''}",
                verdict.limit_words(check),
                *([interval_words(check.get("interval"))] if with_intervals else []),
                "decides" if check.get("enforced", True) else "shown only",
            )
        )
    # A phone shows the first columns of a table: those that say how it ended.
    columns = ("check", "outcome", "value", "limit", *(["95 % interval"] if with_intervals else []), "weight")
    note = UNSURE_NOTE if any(check.get("unsure") is True for check in verdict.checks_of(scores)) else ""
    words = (1, len(columns) - 1)
    return Table("Checks of the quality gate", columns, rows, words=words, note=note)
