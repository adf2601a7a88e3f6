"""A limit moved by hand: what it would keep, and the line that sets it in a recipe."""

from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from anadil.core.errors import AnadilError, DataError
from anadil.core.format import human_bytes
from anadil.report.format import figure, percent, setting, words_of
from anadil.report.read import table_of
from anadil.text.filter_rules import KEYS
from anadil.watch.corpora import WatchedCorpus, corpus_of
from anadil.watch.data.document_list import SHOWN
from anadil.watch.data.recipe_change import RecipeChange, change_of, lines_to_paste, set_option, write_change
from anadil.watch.data.tried_limit import Side, TriedLimit, tried_limit
from anadil.watch.page import form_of, page
from anadil.watch.pages.documents import document_rows
from anadil.watch.watched import Watched

PLACE = "/run/{id}/data/{corpus}/limits"


def routes(watched: Watched) -> list[Route]:
    """The page of limits, and the form that writes one into a recipe."""
    return [Route(PLACE, partial(_show, watched)), Route(PLACE, partial(_write, watched), methods=["POST"])]


def _show(watched: Watched, request: Request) -> Response:
    return _page(watched, request, dict(request.query_params))


async def _write(watched: Watched, request: Request) -> Response:
    fields = await form_of(request)
    return await run_in_threadpool(_written, watched, request, fields)


def _written(watched: Watched, request: Request, fields: dict[str, str]) -> Response:
    run = watched.run(request.path_params["id"])
    corpus = corpus_of(run, request.path_params["corpus"])
    keys = (*corpus.keys_of_rules, _key(fields))
    # Made anew from the file as it is now: the digest says whether that is what was looked at.
    change = change_of(fields.get("recipe", ""), keys, _limit(fields))
    write_change(change, fields.get("digest", ""))
    return _page(
        watched, request, fields, written=f"{change.path} is written. The next run with it cleans again."
    )


def _page(watched: Watched, request: Request, fields: dict[str, str], *, written: str = "") -> Response:
    run = watched.run(request.path_params["id"])
    corpus = corpus_of(run, request.path_params["corpus"])
    place = f"/run/{run.id}/data/{corpus.word}"
    limits = table_of(corpus.stats.get("limits"))
    view: dict[str, object] = {
        "title": f"Limits of {corpus.word}", "run": run, "place": place, "written": written, "fault": "",
        "keys": [(key, _in_force(limits.get(key))) for key, rule in KEYS.items() if rule.measure in corpus.rows.columns],
        "key": "", "limit": fields.get("limit", ""), "doc": "", "tried": None, "recipe": fields.get("recipe", ""), "change": None,
    }  # fmt: skip
    if fields.get("key"):
        key = _key(fields)
        view |= {"key": key, "doc": KEYS[key].doc}
    if fields.get("key") and fields.get("limit", "").strip():
        keys, limit = (*corpus.keys_of_rules, _key(fields)), _limit(fields)
        tried = tried_limit(corpus.rows, corpus.stats, corpus.modes, _key(fields), limit)
        change, fault = _change(fields.get("recipe", ""), keys, limit) if not written else (None, "")
        view |= {
            "tried": _view(corpus, tried, place), "paste": lines_to_paste(keys, limit), "option": set_option(keys, limit),
            "change": change, "fault": fault,
        }  # fmt: skip
    return page(request, "limits.html.j2", view)


def _key(fields: dict[str, str]) -> str:
    key = fields.get("key", "")
    if key not in KEYS:
        raise DataError(f"{key[:60]}: not a key of clean.rules; take one of the list")
    return key


def _limit(fields: dict[str, str]) -> float:
    text = fields.get("limit", "").strip().replace(",", ".")
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < 1e12:
        raise DataError(f"{text[:40]}: not a limit; write a number from 0 on, such as 0.25 or 100")
    return limit


def _change(recipe: str, keys: tuple[str, ...], limit: float) -> tuple[RecipeChange | None, str]:
    """Return the change of a recipe that somebody names, or why it is left to them."""
    if not recipe.strip():
        return None, ""
    try:
        return change_of(recipe.strip(), keys, limit), ""
    except AnadilError as error:
        return None, str(error)


def _in_force(limit: object) -> str:
    return "no limit" if limit is None else setting(limit)


def _view(corpus: WatchedCorpus, tried: TriedLimit, place: str) -> dict[str, object]:
    # Before duplicates are dropped among the new ones, which the note says.
    after = tried.num_kept + tried.gained.documents - tried.lost.documents
    unique = tried.num_kept / tried.num_passing if tried.num_passing else 1.0
    notes = []
    if not tried.is_enforced:
        notes.append(f"The rule only counts. clean.modes.{tried.rule.name}: enforce lets it drop.")
    if tried.gained.documents:
        notes.append(
            f"Of documents that pass all rules now, {percent(1 - unique)} are duplicates, and so may be some of the new ones."
        )
    if tried.num_rows < corpus.num_rows:
        notes.append(f"Counted in {tried.num_rows:,} of {corpus.num_rows:,} documents.")
    return {
        "rule": words_of(tried.rule.name), "measure": words_of(tried.rule.measure),
        "in_force": _in_force(tried.in_force), "limit": setting(tried.limit), "notes": notes,
        "headlines": [
            ("Kept", "documents with this limit", figure(after), f"now {figure(tried.num_kept)}"),
            ("New", "documents that it lets in", figure(tried.gained.documents), _extent(tried.gained)),
            ("Gone", "documents that it drops", figure(tried.lost.documents), _extent(tried.lost)),
        ],
        "sides": [
            ("It lets in, such as", _rows(corpus, tried.gained, tried.rule.measure, place)),
            ("It drops, such as", _rows(corpus, tried.lost, tried.rule.measure, place)),
        ],
    }  # fmt: skip


def _extent(side: Side) -> str:
    return f"{figure(side.words)} words, {human_bytes(side.num_bytes)}"


def _rows(corpus: WatchedCorpus, side: Side, measure: str, place: str) -> list[dict[str, object]]:
    columns = [name for name in dict.fromkeys((*SHOWN, measure)) if name in corpus.rows.columns]
    rows = corpus.rows.rows(side.examples, columns) if side.examples else []
    return document_rows(side.examples, rows, measure, place)
