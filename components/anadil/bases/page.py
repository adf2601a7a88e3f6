"""The comparison of candidates as one page."""

from pathlib import Path
from typing import Any

from anadil import __version__
from anadil.bases.view import Result, facts_of, named_entries, tables_of
from anadil.core.format import human_bytes
from anadil.core.table import Table
from anadil.page.charts import Chart, Estimate, intervals
from anadil.page.format import clip
from anadil.page.render import render_template

FOLDER = Path(__file__).parent
MAX_TEXT = 600


def page_of(result: Result) -> str:
    """The page's HTML."""
    language = result["language"]
    view: dict[str, object] = {
        "title": f"Bases for {language['name']}",
        "lang": language["code"],
        "recipe": result["recipe"],
        "says": result["says"],
        "candidates": result["candidates"],
        "left_out": len(result["left_out"]),
        "sections": [
            ("figures", "Figures"),
            ("candidates", "Candidates"),
            ("output", "What they write"),
            ("text", "Text"),
        ],
        "charts": [
            *filter(
                None, (_chart(result, "taught", str(language["name"])), _chart(result, "english", "English"))
            )
        ],
        "tables": tables_of(result),
        "facts": facts_of(result),
        "prompts": _prompts(result),
        "texts": _texts(result),
        "version": __version__,
    }
    return render_template(FOLDER / "page.html.j2", view)


def _chart(result: Result, kind: str, language: str) -> Chart | None:
    drawn = []
    for label, each in named_entries(result):
        figures = each[kind]
        low, high = figures["bits_per_byte_interval"]
        drawn.append(Estimate(label=label, value=figures["bits_per_byte"], low=low, high=high))
    return intervals(f"{language} before training", "bits per byte", drawn, Table("", (), ()))


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


def _texts(result: Result) -> Table:
    rows = [
        (
            name,
            str(each["from"]),
            f"{each['num_documents']:,}",
            human_bytes(each["num_bytes"]),
            str(each["sha256"])[:16],
        )
        for name, each in ((name, each) for name, each in result["texts"].items())
    ]
    return Table("Held-out text", ("text", "from", "documents", "bytes", "SHA-256"), rows, words=(1, 4))
