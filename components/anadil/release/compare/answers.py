"""Answers of two runs' models to the same prompts, side by side."""

from dataclasses import replace
from typing import Any

from anadil.release.compare.run_facts import RunFacts, records
from anadil.report.generations_view import PromptView, chosen_prompts, prompts_of
from anadil.report.read import Json
from anadil.report.verdict import candidates_of

KINDS = {"answer": ("finetuned", "adapted"), "continuation": ("adapted", "finetuned")}
"""Kind of prompt -> whose text of it is shown: the first that the run has."""


def compared_prompts(a: RunFacts, b: RunFacts, kind: str) -> tuple[PromptView, ...]:
    """Prompts of a kind that both runs gave their models, and the greedy text of each; at most those of a report.

    A question that only one run has trained on is marked as neither.
    """
    tables = {
        f"{name} {candidate}": _greedy(run, candidate, kind)
        for name, run in (("A", a), ("B", b))
        if (candidate := _candidate(run, kind))
    }
    if len(tables) < 2:
        return ()
    asked = [{str(line.get("prompt")): line.get("seen") for line in lines} for lines in tables.values()]
    common = asked[0].keys() & asked[1].keys()
    shown: dict[str, Json] = {}
    for name, lines in tables.items():
        shared = [line for line in lines if str(line.get("prompt")) in common]
        plain = [
            line if asked[0][text] == asked[1][text] else line | {"seen": None}
            for line in shared
            for text in [str(line.get("prompt"))]
        ]
        shown[name] = {"generations": plain}
    prompts = chosen_prompts(prompts_of(shown, kind))
    return tuple(
        replace(each, made=tuple(replace(one, style="adapted" if one.candidate.startswith("B") else "") for one in each.made))
        for each in prompts
    )  # fmt: skip


def side_by_side(a: RunFacts, b: RunFacts) -> list[dict[str, Any]]:
    """The same for JSON, every prompt of both runs."""
    entries: dict[tuple[str, str], dict[str, Any]] = {}
    for kind in KINDS:
        for name, run in (("a", a), ("b", b)):
            candidate = _candidate(run, kind)
            for line in _greedy(run, candidate, kind) if candidate else []:
                text = str(line.get("prompt"))
                entry = entries.setdefault((kind, text), {"kind": kind, "prompt": text, "a": None, "b": None})
                keys = ("text", "seen", "exact", "ended", "loop", "chrf")
                entry[name] = {"candidate": candidate} | {key: line.get(key) for key in keys}
    return list(entries.values())


def _candidate(run: RunFacts, kind: str) -> str:
    known = candidates_of(run.scores)
    return next((name for name in KINDS[kind] if name in known), "")


def _greedy(run: RunFacts, candidate: str, kind: str) -> list[Json]:
    lines = records(candidates_of(run.scores).get(candidate, {}).get("generations"))
    return [
        each
        for each in lines
        if (each.get("kind") == "answer") == (kind == "answer") and each.get("mode") in ("greedy", None)
    ]
