"""Measures beside bits per byte: forgetting, domains, tasks, answers, choices, language.

Each measure is a table and perhaps a chart; of what `scores.json` does not hold there is none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from anadil.core.format import DASH, number
from anadil.report.charts import Bar, Estimate
from anadil.report.elements import Chart, TextTable, bars, intervals
from anadil.report.format import change_percent, clip, figure, percent, signed_percent
from anadil.report.read import Facts, Json, list_of, named_tables, table_of
from anadil.report.verdict import COLOURS, candidates_of
from anadil.text.metrics import SURE_DOCUMENTS

MAX_NAMES = 40
"""Most domains, sources, tasks or languages that the page lists."""
UNSURE = " *"
UNSURE_NOTE = f"* unsure: fewer than {SURE_DOCUMENTS}, so the interval says little."
ALONE_NOTE = (
    "Intervals of one model are too narrow if a few long documents hold most of the text. On real documents they held the "
    "truth 79 to 86 times in 100, not 95. Compare models by the interval of their difference."
)
"""Source: `benchmarks/evaluate/coverage.py`, 6 to 300 Azerbaijani documents of 3,000 bytes in the middle."""
PARTS = (("questions", "not seen in training"), ("seen_questions", "seen in training"))

Candidates = Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One measure of all candidates."""

    title: str
    lead: str
    """Meaning and how to read it."""
    chart: Chart | None
    table: TextTable


def measures_view(facts: Facts) -> tuple[Measure, ...]:
    """In the order in which they decide: what was lost, where it is good, what it can do."""
    candidates = candidates_of(facts.scores)
    made = (
        _forgetting(candidates),
        _by_part(candidates, "domains", "domain"),
        _by_part(candidates, "sources", "source"),
        _tasks(facts.scores, candidates),
        _pairs(candidates),
        _choices(candidates),
        _language(candidates),
    )
    return tuple(measure for measure in made if measure and measure.table.rows)


def interval_of(value: object) -> tuple[float, float] | None:
    """Low and high of an interval that is written as a pair; None without a width, as resampling one document gives it."""
    ends = [number(end) for end in list_of(value)]
    if len(ends) != 2 or ends[0] is None or ends[1] is None or ends[0] == ends[1]:
        return None
    return ends[0], ends[1]


def interval_words(value: object, say: Callable[[object], str] = figure) -> str:
    """`1.2 to 1.4`, or a dash."""
    ends = interval_of(value)
    return DASH if ends is None else f"{say(ends[0])} to {say(ends[1])}"


def _forgetting(candidates: Candidates) -> Measure:
    """Bits per byte on what the base knew, with the change to the base."""
    names = _names(candidates, "retained")
    base = table_of(candidates.get("base", {}).get("retained"))
    rows, drawn = [], []
    for code in names:
        known = {name: number(table_of(item.get("retained")).get(code)) for name, item in candidates.items()}
        cells = [_with_change(known[name], base.get(code), name) for name in candidates]
        rows.append((clip(code, 60), *cells))
        drawn += [
            Bar(
                label=name if len(names) == 1 else f"{name}, {clip(code, 20)}",
                value=float(value),
                colour=COLOURS.get(name, 3),
            )
            for name, value in known.items()
            if value is not None
        ]
    table = TextTable(
        caption="Forgetting: bits per byte on what the base knew",
        columns=("text", *candidates),
        rows=tuple(rows),
    )
    return Measure(
        title="Forgetting",
        lead="Bits per byte on text that the base could read, with the change from the base. Lower is better.",
        chart=bars("Forgetting", "bits per byte, lower is better", drawn[:MAX_NAMES], table),
        table=table,
    )


def _with_change(value: object, base: object, name: str) -> str:
    change = None if name == "base" else change_percent(base, value)
    return figure(value) if change is None else f"{figure(value)} ({signed_percent(round(change, 1))})"


def _by_part(candidates: Candidates, key: str, word: str) -> Measure:
    """Bits per byte of each domain or source of the held-out text."""
    rows, counts = [], []
    for name in _names(candidates, key):
        parts = [table_of(table_of(item.get(f"{word}_figures")).get(name)) for item in candidates.values()]
        counts.append(
            next((n for part in parts if (n := number(part.get("num_documents"))) is not None), None)
        )
        cells = []
        for item, part in zip(candidates.values(), parts, strict=True):
            # Of one document there is nothing to draw again.
            ends = DASH if counts[-1] == 1 else interval_words(part.get("interval"))
            value = figure(table_of(item.get(key)).get(name))
            cells.append(value if ends == DASH else f"{value} ({ends})")
        rows.append((clip(name, 60), *cells))
    few = [count is not None and count < SURE_DOCUMENTS for count in counts]
    known = any(count is not None for count in counts)
    if known:
        marked = [
            f"{figure(count)}{UNSURE if unsure else ''}" for count, unsure in zip(counts, few, strict=True)
        ]
        rows = [(row[0], text, *row[1:]) for row, text in zip(rows, marked, strict=True)]
    return Measure(
        title=f"By {word}",
        lead=f"Bits per byte of the held-out text by {word}{', with 95 % intervals' if known else ''}. Lower is better.",
        chart=None,
        table=TextTable(
            caption=f"Bits per byte by {word}",
            columns=(word, *(["documents"] if known else []), *candidates),
            rows=tuple(rows),
            note=" ".join(filter(None, (UNSURE_NOTE if any(few) else "", ALONE_NOTE if known else ""))),
        ),
    )


def _tasks(scores: Json, candidates: Candidates) -> Measure:
    """Benchmarks of lm-evaluation-harness."""
    rows = []
    for task, by_candidate in named_tables(scores.get("tasks"))[:MAX_NAMES]:
        entries = {name: table_of(by_candidate.get(name)) for name in candidates}
        first = next((entry for entry in entries.values() if entry), {})
        cells = [
            DASH if number(entry.get("value")) is None
            else f"{figure(entry['value'])}" + (f" \N{PLUS-MINUS SIGN} {figure(error, 2)}" if (error := number(entry.get("stderr"))) is not None else "")
            for entry in entries.values()
        ]  # fmt: skip
        rows.append(
            (clip(task, 80), clip(first.get("metric") or DASH, 40), figure(first.get("chance")), *cells)
        )
    return Measure(
        title="Tasks",
        lead="Benchmarks of lm-evaluation-harness with standard errors. A model at chance only guesses.",
        chart=None,
        table=TextTable(
            caption="Tasks", columns=("task", "metric", "chance", *candidates), rows=tuple(rows), words=(1,)
        ),
    )


def _pairs(candidates: Candidates) -> Measure:
    """Questions with a reference answer, those that training has not seen first."""
    rows, drawn, unsure = [], [], False
    for key, words in PARTS:
        for name, item in candidates.items():
            entry = table_of(item.get(key))
            count = number(entry.get("num"))
            if not count:
                continue
            few = count < SURE_DOCUMENTS
            unsure = unsure or few
            value, ends = number(entry.get("bits_per_byte")), interval_of(entry.get("bits_per_byte_interval"))
            rows.append(
                (
                    f"{name}, {words}", f"{figure(count)}{UNSURE if few else ''}", figure(value),
                    interval_words(entry.get("bits_per_byte_interval")), figure(entry.get("asked", count)),
                    figure(entry.get("chrf"), 3), percent(entry.get("exact")), percent(entry.get("ended")),
                )
            )  # fmt: skip
            if key == "questions" and value is not None and ends:
                drawn.append(
                    Estimate(label=name, value=value, low=ends[0], high=ends[1], colour=COLOURS.get(name, 3))
                )
    table = TextTable(
        caption="Answers to questions with a reference",
        columns=("candidate", "questions", "bits per byte of the reference", "95 % interval", "answered", "chrF", "word for word", "ended"),
        rows=tuple(rows),
        note=UNSURE_NOTE if unsure else "",
    )  # fmt: skip
    return Measure(
        title="Held-out questions and answers",
        lead="Likelihood of the reference answer (bits per byte, lower is better), and similarity of the model's own answer to it (chrF, higher is better).",
        chart=intervals("Reference answers to unseen questions", "bits per byte, lower is better", drawn, table),
        table=table,
    )  # fmt: skip


def _choices(candidates: Candidates) -> Measure:
    """Accuracy by likelihood, with what guessing would give."""
    names = _names(candidates, "choices")
    rows, drawn, unsure = [], [], False
    for source in names:
        for name, item in candidates.items():
            entry = table_of(table_of(item.get("choices")).get(source))
            value, ends, chance = (
                number(entry.get("accuracy")),
                interval_of(entry.get("interval")),
                number(entry.get("chance")),
            )
            if value is None:
                continue
            count = number(entry.get("num"))
            few = count is not None and count < SURE_DOCUMENTS
            unsure = unsure or few
            label = name if len(names) == 1 else f"{clip(source, 12)}, {name}"
            rows.append(
                (
                    f"{clip(source, 60)}, {name}", f"{figure(count)}{UNSURE if few else ''}", percent(value),
                    interval_words(entry.get("interval"), percent), percent(chance), _against_chance(ends, chance),
                )
            )  # fmt: skip
            if ends:
                drawn.append(
                    Estimate(
                        label=label,
                        value=value,
                        low=ends[0],
                        high=ends[1],
                        colour=COLOURS.get(name, 3),
                        chance=chance,
                    )
                )
    table = TextTable(
        caption="Choices: share of questions whose right answer is the likeliest",
        columns=("source", "questions", "accuracy", "95 % interval", "chance", "against chance"),
        rows=tuple(rows),
        words=(5,),
        note=UNSURE_NOTE if unsure else "",
    )
    return Measure(
        title="Choices",
        lead="The model's choice is the likeliest answer by bits per byte. The dashed line marks guessing.",
        chart=intervals("Accuracy by likelihood", "share right, higher is better", drawn[:MAX_NAMES], table),
        table=table,
    )


def _against_chance(ends: tuple[float, float] | None, chance: float | None) -> str:
    if ends is None or chance is None:
        return DASH
    return "better" if ends[0] > chance else "worse" if ends[1] < chance else "not told apart"


def _language(candidates: Candidates) -> Measure:
    """In which language the models write."""
    rows = []
    for name, item in candidates.items():
        entry = table_of(item.get("output_language"))
        if number(entry.get("own")) is None:
            continue
        shares = sorted(
            ((number(share) or 0, code) for code, share in table_of(entry.get("shares")).items()),
            reverse=True,
        )
        words = ", ".join(f"{clip(code, 20)} {percent(share)}" for share, code in shares[:6] if share)
        rows.append((name, figure(entry.get("num")), percent(entry["own"]), words or DASH))
    return Measure(
        title="Language of what they write",
        lead="Identified as clean does it.",
        chart=None,
        table=TextTable(
            caption="Language of the texts that the candidates write",
            columns=("candidate", "texts", "own language", "found"),
            rows=tuple(rows),
            words=(3,),
        ),
    )


def _names(candidates: Candidates, key: str) -> list[str]:
    """Names in a table of any candidate, in order."""
    names = dict.fromkeys(name for item in candidates.values() for name in table_of(item.get(key)))
    return list(names)[:MAX_NAMES]
