"""The comparison of candidates as one page."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from anadil import __version__
from anadil.bases.view import Result, facts_of, named_entries, tables_of, tried_entries
from anadil.core.format import human_bytes
from anadil.core.table import Table
from anadil.page.charts import KEYS, Chart, Estimate, Line, colours_of, intervals, lines
from anadil.page.format import clip
from anadil.page.render import render_template

FOLDER = Path(__file__).parent
MAX_TEXT = 600
SECTIONS = (
    ("figures", "Figures"),
    ("candidates", "Candidates"),
    ("output", "What they write"),
    ("text", "Text"),
)


def page_of(result: Result) -> str:
    """The page's HTML."""
    language, tables, tried = result["language"], tables_of(result), tried_entries(result)
    looks = colours_of(label for label, _ in tried)
    if tried:  # names the curves
        tables[0] = replace(tables[0], keys=[KEYS[looks[label][0]] for label, _ in tried])
    drawn = []
    for label, each in tried:
        points = ((100 * point["share"], point["bits_per_byte"]) for point in each["trial"]["curve"])
        drawn.append(Line(label, tuple(points), colour=looks[label][0]))
    curves = lines("Short training", "bits per byte", drawn, legend=False, x_label="% of the compute")
    rows = [
        (
            name,
            str(each["from"]),
            f"{each['num_documents']:,}",
            human_bytes(each["num_bytes"]),
            each["sha256"][:16],
        )
        for name, each in result["texts"].items()
    ]
    texts = Table("Held-out text", ("text", "from", "documents", "bytes", "SHA-256"), rows, words=(1, 4))
    view = {
        "title": f"Bases for {language['name']}", "lang": language["code"], "recipe": result["recipe"], "says": result["says"],
        "candidates": result["candidates"], "left_out": len(result["left_out"]), "sections": SECTIONS,
        "charts": [*filter(None, (curves, *_charts(result)))], "tables": tables,
        "facts": facts_of(result), "prompts": _prompts(result), "texts": texts, "version": __version__,
    }  # fmt: skip
    return render_template(FOLDER / "page.html.j2", view)


def _charts(result: Result) -> Iterator[Chart | None]:
    for kind, language in (("taught", result["language"]["name"]), ("english", "English")):
        drawn = []
        for label, each in named_entries(result):
            low, high = each[kind]["bits_per_byte_interval"]
            drawn.append(Estimate(label=label, value=each[kind]["bits_per_byte"], low=low, high=high))
        yield intervals(f"{language} before training", "bits per byte", drawn, Table("", (), ()))


def _prompts(result: Result) -> list[dict[str, Any]]:
    """Each prompt with what every candidate wrote."""
    prompts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for label, each in named_entries(result):
        for text in each["output"]["texts"]:
            note = f"{text['language'] or 'too short to identify'}, {text['script'] or 'no letters'}"
            made = {
                "candidate": label,
                "style": "",
                "badges": [],
                "text": clip(text["text"], MAX_TEXT),
                "note": note,
            }
            prompts.setdefault((str(text["kind"]), str(text["prompt"])), []).append(made)
    return [
        {"text": prompt, "seen_words": "", "seen": None, "reference": "", "made": made, "others": []}
        for (_, prompt), made in prompts.items()
    ]
