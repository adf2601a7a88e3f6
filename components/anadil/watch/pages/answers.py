"""Answers to held-out questions, by topic, the worst first."""

from functools import partial
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from anadil.core.candidates import COLOURS
from anadil.report.format import clip, figure
from anadil.watch.corpora import uri_of
from anadil.watch.data.answers import AnsweredQuestion, answers_of
from anadil.watch.page import page
from anadil.watch.watched import Watched

SCORES = "scores"
SIZE = 40
MAX_TEXT = 4_000


def routes(watched: Watched) -> list[Route]:
    """`/run/ID/answers`."""
    return [Route("/run/{id}/answers", partial(_show, watched))]


def _show(watched: Watched, request: Request) -> Response:
    run = watched.run(request.path_params["id"])
    place = f"/run/{run.id}/answers"
    view: dict[str, object] = {"title": "Answers", "run": run, "place": place, "deciding": ""}
    if SCORES in run.artifacts:
        given = request.query_params
        topic, start = given.get("topic", ""), int(given["from"]) if given.get("from", "").isdecimal() else 0
        seen = bool(given.get("seen"))
        answers = answers_of(uri_of(run, SCORES), seen=seen)
        chosen = [each for each in answers.questions if not topic or each.topic == topic]
        also = {"seen": "1"} if seen else {}
        more = also | ({"topic": topic} if topic else {}) | {"from": str(start + SIZE)}
        view |= {
            "deciding": answers.deciding, "topic": topic, "num": len(chosen), "seen": seen,
            "topics": [
                ((each.name, f"{place}?{urlencode(also | {'topic': each.name})}"), figure(each.num), figure(each.score), figure(each.num_exact), figure(each.num_loops))
                for each in answers.topics
            ],
            "questions": [_view(each) for each in chosen[start : start + SIZE]],
            "next": f"{place}?{urlencode(more)}" if start + SIZE < len(chosen) else "",
        }  # fmt: skip
    return page(request, "answers.html.j2", view)


def _view(question: AnsweredQuestion) -> dict[str, object]:
    """The question as the report shows one."""
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
