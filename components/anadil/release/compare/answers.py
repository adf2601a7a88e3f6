"""Answers of the models of two runs to the same prompts."""

from dataclasses import replace
from typing import Any

from anadil.release.compare.run_facts import RunFacts, records
from anadil.report.generations_view import PromptView, chosen_prompts, is_greedy, prompts_of
from anadil.report.read import Json
from anadil.report.verdict import candidates_of

KINDS = {"answer": ("finetuned", "adapted"), "continuation": ("adapted", "finetuned")}
"""Kind of prompt -> candidates whose text is shown: the first that the run has."""


def compared_prompts(a: RunFacts, b: RunFacts, kind: str) -> tuple[PromptView, ...]:
    """Prompts of a kind that both runs gave their models, and the greedy text of each; at most those of a report.

    A question that only one run has trained on is marked as neither.
    """
    texts = [(name, *_greedy(run, kind)) for name, run in (("A", a), ("B", b))]
    seen = [{str(line.get("prompt")): line.get("seen") for line in lines} for _, _, lines in texts]
    common = seen[0].keys() & seen[1].keys()
    shown: dict[str, Json] = {}
    for name, candidate, lines in texts:
        shown[f"{name} {candidate}"] = {
            "generations": [
                line if seen[0][prompt] == seen[1][prompt] else line | {"seen": None}
                for line in lines
                if (prompt := str(line.get("prompt"))) in common
            ]
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
    lines = records(known.get(candidate, {}).get("generations"))
    return candidate, [
        each for each in lines if (each.get("kind") == "answer") == (kind == "answer") and is_greedy(each)
    ]
