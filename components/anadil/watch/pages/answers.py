"""Answers to questions that training has not seen, by the columns of their sheet, the worst first."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from anadil.artifacts import artifact
from anadil.artifacts.find import read_table
from anadil.core.candidates import BY_NAME, COLOURS
from anadil.core.format import number
from anadil.core.table import Table
from anadil.page.format import clip, figure
from anadil.watch.data.corpora import uri_of
from anadil.watch.page import link, page, place_of
from anadil.watch.watched import Watched

SCORES = "scores"
SIZE = 40
MAX_TEXT = 4_000
TOPIC_COLUMNS = ("questions", "chrF, mean", "word for word", "loops")
OTHER = "without"
"""Topic of questions whose row has none."""
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredQuestion:
    """A question with the answers of all candidates."""

    question: str
    topics: Mapping[str, str]
    """Column of its row -> what stands there."""
    reference: str
    seen: bool | None
    answers: tuple[tuple[str, Json], ...]
    """(candidate, its greedy answer)."""
    score: float | None
    """chrF of the deciding candidate's answer against the reference, 0 to 100; None without a reference."""


class Topic(NamedTuple):
    """Questions that have the same text in a column."""

    name: str
    num: int
    score: float | None
    """Mean chrF."""
    num_exact: int
    num_loops: int


def routes(watched: Watched) -> list[Route]:
    """`/run/ID/answers`."""
    return [Route("/run/{id}/answers", partial(_show, watched))]


def _show(watched: Watched, request: Request) -> Response:
    run = watched.run(request.path_params["id"])
    place = f"/run/{run.id}/answers"
    view: dict[str, object] = {"title": "Answers", "run": run, "place": place, "deciding": ""}
    if SCORES in run.artifacts:
        given = request.query_params
        topic, start = given.get("topic", ""), place_of(given.get("from", ""))
        seen = bool(given.get("seen"))
        deciding, questions = answers_of(uri_of(run, SCORES), seen=seen)
        columns = list(dict.fromkeys(name for each in questions for name in each.topics))
        by = given["by"] if given.get("by") in columns else next(iter(columns), "")
        chosen = [each for each in questions if not topic or each.topics.get(by, OTHER) == topic]
        also = ({"seen": "1"} if seen else {}) | ({"by": by} if by else {})
        more = also | ({"topic": topic} if topic else {}) | {"from": str(start + SIZE)}
        view |= {
            "deciding": deciding, "topic": topic, "num": len(chosen), "seen": seen,
            "by": by, "columns": columns,
            "topics": Table(f"By {by}", (by, *TOPIC_COLUMNS), [
                (link(each.name, f"{place}?{urlencode(also | {'topic': each.name})}"), *map(figure, each[1:]))
                for each in _topics(questions, by, deciding)
            ] if by else []),
            "questions": [_view(each) for each in chosen[start : start + SIZE]],
            "next": f"{place}?{urlencode(more)}" if start + SIZE < len(chosen) else "",
        }  # fmt: skip
    return page(request, "answers.html.j2", view)


def _view(question: AnsweredQuestion) -> dict[str, object]:
    made = []
    for name, line in question.answers:
        badges = [("exact", "word for word")] if line.get("exact") is True else []
        badges += [("loop", "loops")] if line.get("loop") is True else []
        note = f"chrF {figure(line['chrf'], 3)}" if line.get("chrf") is not None else ""
        text = str(line.get("text") or "").removeprefix(question.question).strip()
        made.append({
            "candidate": name, "text": clip(text, MAX_TEXT), "badges": badges, "note": note,
            "style": name if name in COLOURS else "",
        })  # fmt: skip
    return {
        "text": clip(question.question, MAX_TEXT), "reference": clip(question.reference, MAX_TEXT), "made": made, "others": (),
        "seen": question.seen, "seen_words": {True: "seen in training", False: "not seen in training"}.get(question.seen, "") if question.seen is not None else "",
    }  # fmt: skip


def answers_of(scores: str, *, seen: bool = False) -> tuple[str, list[AnsweredQuestion]]:
    """Return the candidate whose answers decide the order, and the questions of a `scores` artifact, the worst first.

    Questions that training has seen are left out unless they are asked for.
    """
    manifest = artifact.finished_manifest(scores, "scores")
    candidates = read_table(scores, manifest, "scores.json").get("candidates")
    by_question: dict[str, list[tuple[str, Json]]] = defaultdict(list)
    for name, table in candidates.items() if isinstance(candidates, dict) else ():
        for line in table.get("generations") or ():
            if (
                line.get("kind") == "answer"
                and line.get("mode") in ("greedy", None)
                and (seen or not line.get("seen"))
            ):
                by_question[str(line.get("prompt") or "")].append((name, line))
    names = {name for answers in by_question.values() for name, _ in answers}
    deciding = next((name for name in reversed(BY_NAME) if name in names), next(iter(sorted(names)), ""))
    questions = [_question(text, answers, deciding) for text, answers in by_question.items()]
    # Answers that were compared come first; the others have no figure to be ordered by.
    questions.sort(key=_worst_first)
    return deciding, questions


def _question(text: str, answers: Sequence[tuple[str, Json]], deciding: str) -> AnsweredQuestion:
    by_name = dict(answers)
    score = number(by_name.get(deciding, {}).get("chrf"))
    return AnsweredQuestion(
        question=text, topics=next((known for _, line in answers if isinstance(known := line.get("topics"), dict)), {}),
        score=None if score is None else float(score), answers=tuple(answers),
        reference=next((str(line["reference"]) for _, line in answers if line.get("reference")), ""),
        seen=next((flag for _, line in answers if isinstance(flag := line.get("seen"), bool)), None),
    )  # fmt: skip


def _worst_first(question: AnsweredQuestion) -> tuple[bool, float, bool]:
    """Order by chrF; of answers without a reference, those that loop come first."""
    loops = any(line.get("loop") for _, line in question.answers)
    return (question.score is None, question.score or 0.0, not loops)


def _topics(questions: Sequence[AnsweredQuestion], by: str, deciding: str) -> tuple[Topic, ...]:
    groups: dict[str, list[AnsweredQuestion]] = defaultdict(list)
    for question in questions:
        groups[question.topics.get(by, OTHER)].append(question)
    topics = []
    for name, group in groups.items():
        known = [each.score for each in group if each.score is not None]
        lines = [line for each in group for who, line in each.answers if who == deciding]
        topics.append(Topic(
            name=name, num=len(group), score=sum(known) / len(known) if known else None,
            num_exact=sum(line.get("exact") is True for line in lines),
            num_loops=sum(line.get("loop") is True for line in lines),
        ))  # fmt: skip
    return tuple(sorted(topics, key=lambda each: (each.score is None, each.score or 0.0, -each.num)))
