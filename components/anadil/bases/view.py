"""The comparison of candidates as JSON, as tables and as sentences on what the evidence supports."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anadil.bases.measure import Measured, Texts
from anadil.core.format import (
    DASH,
    human_bytes,
    human_dollars,
    human_figure,
    human_hours,
    human_parameters,
    human_percent,
    one_line,
    short_count,
)
from anadil.core.table import Table
from anadil.evaluate.bootstrap import paired_difference
from anadil.page.values import last_part
from anadil.recipe.sections import Recipe
from anadil.text.language import load_language
from anadil.text.metrics import SURE_DOCUMENTS

WIDTH = 80
LABEL, DIGITS = 18, 3
SMALL = 10_000_000
"""Parameters below which billions would be mostly zeros."""
SURE_STEPS = 100
"""Steps of a short training from which its order counts. Measured on five bases: Kendall's tau with the whole was .6 up to 64
steps and .8 from 75 to 128 on (`benchmarks/bases`)."""
MAX_OTHERS = 2
"""Other languages of a base's output that a table names."""
SORTED_BY = ("extrapolated", "trial", "bits_per_byte")
"""Figures that sort candidates, the first that they have."""
Result = Mapping[str, Any]
"""Content of `-o json`, or a part of it."""


def result_of(
    name: str, recipe: Recipe, texts: Texts, measured: Sequence[Measured], refused: Sequence[Result]
) -> dict[str, Any]:
    """Content of `-o json`: measured candidates, the fewest bits per byte first, then the refused ones."""
    language = load_language(recipe.language)
    ranked = sorted(measured, key=_rank)
    for each in ranked:
        each.table["from_best"] = _difference(each, ranked[0], recipe.seed)
    result: dict[str, Any] = {
        "recipe": name,
        "language": {"code": language.code, "name": language.name, "script": language.script},
        "texts": texts.table(),
        "sorted_by": SORTED_BY[_rank(ranked[0])[0]] if ranked else None,
        "candidates": [each.table for each in ranked],
        "left_out": list(refused),
    }
    return result | {"says": list(sentences(result))}


def _rank(each: Measured) -> tuple[int, float]:
    if each.extrapolation:
        return 0, each.extrapolation.value
    figures = each.table["trial"] if each.after else each.table
    return (1 if each.after else 2), float(figures["taught"]["bits_per_byte"])


def _difference(each: Measured, best: Measured, seed: int) -> dict[str, Any] | None:
    """Difference to the best candidate in the figure that sorts them. None for a candidate without it."""
    if _rank(each)[0] != _rank(best)[0]:
        return None
    if each.extrapolation and best.extrapolation:
        draws = each.extrapolation.draws - best.extrapolation.draws
        value = each.extrapolation.value - best.extrapolation.value
        low, high = map(float, np.percentile(draws, [2.5, 97.5]))
        return {"value": value, "low": low, "high": high, "told_apart": not low <= 0 <= high}
    nats, other = (each.after or each.nats)["taught"], (best.after or best.nats)["taught"]
    paired = paired_difference(nats, other, each.num_bytes, seed)
    return {"value": paired.value, "low": paired.low, "high": paired.high, "told_apart": paired.significant}


def sentences(result: Result) -> Iterator[str]:
    """Sentences on what the figures support, and what they do not."""
    entries = named_entries(result)
    if not entries:
        yield "No candidate could be measured."
        return
    language, (label, best), sorted_by = result["language"]["name"], entries[0], result["sorted_by"]
    trial, figures = best.get("trial") or {}, best["taught"]
    number, share = figures["num_documents"], human_percent(trial.get("share"))
    after = {
        "extrapolated": (f"Extrapolated from {share} of the recipe's compute to all of it,", trial.get("extrapolated")),
        "trial": (f"After {share} of the recipe's compute", trial.get("taught")),
        "bits_per_byte": ("Before training", figures),
    }  # fmt: skip
    begin, scored = after[sorted_by]
    yield (
        f"{begin} {label} has the fewest bits per byte of {language}, {_interval(scored)}, on {number:,} documents "
        f"({human_bytes(figures['num_bytes'])}) of {result['texts']['taught']['from']}. {_near(entries)}"
    )
    if number < SURE_DOCUMENTS:
        yield f"Fewer than {SURE_DOCUMENTS} documents make every interval unsure."
    if sorted_by == "bits_per_byte":
        yield f"This tells how well each base writes {language} now, not how well it will learn it. The option --trial tells more."
    else:
        if trial["steps"] < SURE_STEPS:
            yield (
                f"{trial['steps']:,} steps are few, and fewer than {SURE_STEPS} may not order bases as the whole training does. "
                "A larger PERCENT gives more."
            )
        yield (
            "Each base kept its vocabulary and read text in the language alone. A changed vocabulary or a mixture may change "
            "the order."
        )


def _near(entries: Sequence[tuple[str, Result]]) -> str:
    others = {label: each["from_best"] for label, each in entries[1:]}
    near = [label for label, each in others.items() if each and not each["told_apart"]]
    absent = [label for label, each in others.items() if not each]
    words = f"Not told apart from it: {', '.join(near)}." if near else ""
    if not near and len(absent) < len(others):
        words = "The others are told apart from it (95 %)."
    return f"{words} Without this figure: {', '.join(absent)}." if absent else words


def named_entries(result: Result) -> list[tuple[str, Result]]:
    """Measured candidates by a short name each."""
    entries = list(result["candidates"])
    short = [one_line(last_part(str(each["name"]).rstrip("/")), LABEL) for each in entries]
    return [
        (label if short.count(label) == 1 else f"{place}: {label}"[:LABEL], each)
        for place, (label, each) in enumerate(zip(short, entries, strict=True), start=1)
    ]


def tried_entries(result: Result) -> list[tuple[str, Result]]:
    """The entries of candidates that were trained."""
    return [(label, each) for label, each in named_entries(result) if "curve" in each.get("trial", {})]


def tables_of(result: Result) -> list[Table]:
    """Tables of the measured candidates."""
    entries, language = named_entries(result), result["language"]
    tables = (
        Table(
            "Bits per byte after a short training at equal compute, extrapolated to the whole",
            ("base", "before", "after", "whole", "words read"),
            [(label, *_tried(each["trial"])) for label, each in tried_entries(result)],
        ),
        Table(
            "Bits per byte before training, with 95 % intervals over documents",
            ("base", language["name"], "English", "tokens a word"),
            [
                (label, _interval(each["taught"]), _interval(each["english"]), _figure(each["taught"]["fertility"]))
                for label, each in entries
            ],
        ),
        Table(
            "Language of what it writes, greedily, after beginnings and questions",
            ("base", "texts", language["name"][:12], "other script", "most others"),
            [(label, *_output(each["output"], language)) for label, each in entries],
            words=(4,),
        ),
        Table(
            "A billion words in its own vocabulary",
            ("base", "parameters", "words held", "memory", "time", "cost"),
            [(label, *_cost(each)) for label, each in entries],
        ),
    )  # fmt: skip
    return [each for each in tables if each.rows]


def _figure(value: object) -> str:
    return human_figure(value, DIGITS)


def _interval(figures: Result) -> str:
    low, high = (_figure(each) for each in figures["bits_per_byte_interval"])
    return f"{_figure(figures.get('bits_per_byte'))} [{low}, {high}]"


def _tried(trial: Result) -> tuple[str, str, str, str]:
    whole = _interval(trial["extrapolated"]) if trial["extrapolated"] else DASH
    first = trial["curve"][0]["bits_per_byte"]
    return _figure(first), _figure(trial["taught"]["bits_per_byte"]), whole, short_count(trial["words"])


def _output(output: Result, language: Result) -> tuple[str, str, str, str]:
    others = [
        f"{each['name']}{'' if each['script'] == language['script'] else ' in ' + each['script']} {human_percent(each['share'])}"
        for each in output["languages"]
        if each["code"] != language["code"]
    ]
    more = f", {len(others) - MAX_OTHERS} more" if len(others) > MAX_OTHERS else ""
    return (
        f"{output.get('num_identified')} of {output.get('num_texts')}",
        human_percent(output["own_share"]),
        human_percent(output["other_script_share"]),
        ", ".join(others[:MAX_OTHERS]) + more or DASH,
    )


def _cost(each: Result) -> tuple[str, str, str, str, str]:
    cost, total, active = each["billion_words"], each["parameters"], each["active_parameters"]
    size = "/".join(
        human_parameters(each) if each >= SMALL else human_figure(each)
        for each in dict.fromkeys((total, active))
    )
    fits = ": no" if cost.get("verdict") == "no" else ""
    return (
        size,
        human_figure(each.get("words_in_longest_context")),
        f"{human_bytes(cost.get('memory_bytes'))}{fits}",
        human_hours(cost.get("hours")),
        human_dollars(cost.get("usd")),
    )


def facts_of(result: Result) -> list[tuple[str, list[str]]]:
    """Declarations of each candidate and its use with the recipe, and reasons of the ones that are left out."""
    return [
        *((each["name"], [*_facts(each)]) for each in result["candidates"]),
        *((each["name"], [f"left out: {each['left_out']}"]) for each in result["left_out"]),
    ]


def _facts(each: Result) -> Iterator[str]:
    declared, why_not = each["declared"], each["why_not_trained"]
    yield f"licence {declared['licence']}{_because(declared['licence_says'])}"
    made_from = (
        f", {' '.join(declared['made_by']) or 'made'} of {', '.join(declared['made_from'])} by its card"
    )
    yield f"kind {declared['kind']}{_because(declared['kind_says'])}{made_from if declared['made_from'] else ''}"
    if declared["languages"]:
        yield f"languages of its card: {', '.join(declared['languages'])}"
    trains = f"does not train with this recipe: {why_not}" if why_not else "trains"
    yield f"model type {each['model_type']}, {trains}, layouts {', '.join(each['layouts']) or 'one process'}"
    strategies = each["tokenizer_strategies"]
    if possible := [name for name, why in strategies.items() if not why]:
        yield f"tokenizer: {', '.join(possible)} possible"
    yield from (f"tokenizer {name}: {why}" for name, why in strategies.items() if why)
    context = f"{each['context']:,} tokens, {each['context_bytes']:,} bytes"
    yield f"scored with a context of {context}, texts begin with {each['text_begins_with']}"
    if why := each["output"]["not_asked"]:
        yield f"asked no questions: {why}"
    for what, table in (("cost not planned", each["billion_words"]), ("not tried", each.get("trial", {}))):
        if why := table.get("why_not"):
            yield f"{what}: {why}"


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""


def lines_of(result: Result) -> Iterator[str]:
    """The comparison for a terminal of 80 columns."""
    for sentence in result["says"]:
        yield from textwrap.wrap(sentence, WIDTH, break_on_hyphens=False)
    for table in tables_of(result):
        yield from ("", table.caption, *table.lines())
    wrap = textwrap.TextWrapper(WIDTH, "  ", "    ", break_on_hyphens=False, break_long_words=False)
    for name, facts in facts_of(result):
        yield from ("", name)
        for fact in facts:
            yield from wrap.wrap(fact)
