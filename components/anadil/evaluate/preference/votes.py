"""Votes of judges, opened by the key, and the preference that they make.

A vote is `left`, `right` or `same`. The share is of the votes that prefer one of two candidates. Ties stand beside it.
"""

import json
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anadil.core.errors import DataError, IntegrityError
from anadil.core.json_text import parse_json
from anadil.evaluate.preference.key import Key, KeyPair
from anadil.text.metrics import careful_interval

log = logging.getLogger(__name__)

SAME = "same"
VOTES = ("left", "right", SAME)
AGAIN = "make a new page with `anadil judge page` and ask again"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPair:
    """A pair that somebody judged."""

    prompt: str
    texts: tuple[str, str]
    """Digests, in the order of the candidates."""
    left: int
    votes: Mapping[str, int | None]
    """Judge -> place of the candidate whose text is better; None: the texts are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedVotes:
    """Votes that say which candidate they prefer: the file that `evaluate.votes` names."""

    between: tuple[str, str]
    scores: str
    """URI of the scores with the texts."""
    list: str
    pairs: tuple[JudgedPair, ...]


def read_key(path: Path) -> Key:
    """Read a key; one that was edited is refused."""
    table = _table(path, "a key of `anadil judge page`", "give the key.json that it wrote")
    try:
        entries = [
            KeyPair(id=str(each["id"]), left=int(each["left"]), prompt=str(each["prompt"]), texts=_two(each["texts"]))
            for each in table["pairs"]
        ]  # fmt: skip
        key = Key(
            between=_two(table["between"]), scores=str(table["scores"]), seed=int(table["seed"]), salt=str(table["salt"]),
            pairs=tuple(entries),
        )  # fmt: skip
    except (LookupError, TypeError, ValueError):
        raise DataError(
            f"{path}: is not a key of `anadil judge page`; give the key.json that it wrote"
        ) from None
    if key.list != table.get("list"):
        raise IntegrityError(
            f"{path}: was edited: its content has the digest {key.list[:8]}, and it names {str(table.get('list'))[:8]}; "
            f"restore it, or {AGAIN}"
        )
    return key


def open_votes(paths: Sequence[Path], key: Key) -> OpenedVotes:
    """Read files of votes, and say whom each vote prefers; what is missing or repeated is logged."""
    by_judge: dict[str, dict[str, str]] = {}
    places = {each.id: place for place, each in enumerate(key.pairs)}
    repeated: Counter[str] = Counter()
    for path in paths:
        judge, rows = _read_file(path, key)
        known = by_judge.setdefault(judge, {})
        for place, row in enumerate(rows):
            name, vote = _vote(f"{path}: vote {place + 1}", row, places)
            if name in known and known[name] != vote:
                raise DataError(
                    f"{path}: vote {place + 1}: {judge!r} judged pair {name} {known[name]!r} before, and now {vote!r}; leave "
                    'out the file that does not count. If two people share the name, change "judge" in one file'
                )
            repeated[judge] += name in known
            known[name] = vote
    for judge, votes in by_judge.items():
        if repeated[judge]:
            log.warning("%s: %d votes were given twice and count once", judge, repeated[judge])
        if len(votes) < len(key.pairs):
            log.warning(
                "%s: judged %d of %d pairs; the others do not count. The page goes on where the judge stopped",
                judge, len(votes), len(key.pairs),
            )  # fmt: skip
    opened = [
        JudgedPair(
            prompt=each.prompt, texts=each.texts, left=each.left,
            votes={judge: _preferred(votes[each.id], each.left) for judge, votes in by_judge.items() if each.id in votes},
        )
        for each in key.pairs
    ]  # fmt: skip
    judged = tuple(each for each in opened if each.votes)
    if not judged:
        raise DataError(f"{', '.join(map(str, paths))}: hold no vote; ask a judge to vote and save the file")
    return OpenedVotes(between=key.between, scores=key.scores, list=key.list, pairs=judged)


def opened_json(opened: OpenedVotes) -> str:
    """Return the file that `evaluate.votes` names."""
    return json.dumps(asdict(opened), ensure_ascii=False, indent=1) + "\n"


def read_opened(path: Path) -> OpenedVotes:
    """Read a file that `anadil judge votes --out` wrote."""
    remedy = "evaluate.votes takes files that `anadil judge votes --out` wrote"
    table = _table(path, "a file of votes that a key opened", remedy)
    try:
        pairs = [
            JudgedPair(
                prompt=str(each["prompt"]), texts=_two(each["texts"]), left=int(each["left"]),
                votes={str(judge): None if vote is None else _place(vote) for judge, vote in each["votes"].items()},
            )
            for each in table["pairs"]
        ]  # fmt: skip
        return OpenedVotes(
            between=_two(table["between"]), scores=str(table["scores"]), list=str(table["list"]), pairs=tuple(pairs)
        )  # fmt: skip
    except (LookupError, TypeError, ValueError, AttributeError):
        raise DataError(f"{path}: is not a file of votes that a key opened; {remedy}") from None


def preference(pairs: Iterable[JudgedPair]) -> dict[str, Any]:
    """Return how often the first candidate is preferred, by judge and over judges."""
    listed = list(pairs)
    judges = sorted({judge for each in listed for judge in each.votes})
    by_judge = {
        judge: _figures([(each.left, [each.votes[judge]]) for each in listed if judge in each.votes])
        for judge in judges
    }
    several = [[*each.votes.values()] for each in listed if len(each.votes) > 1]
    return _figures([(each.left, [*each.votes.values()]) for each in listed]) | {
        "judges": by_judge,
        "judged_by_several": len(several),
        "agreement": sum(len(set(each)) == 1 for each in several) / len(several) if several else None,
    }


def _figures(votes: Sequence[tuple[int, Sequence[int | None]]]) -> dict[str, Any]:
    """Return the figures of pairs, each with the place of its left candidate and its votes."""
    wins = [sum(vote == 0 for vote in each) for _, each in votes]
    decided = [sum(vote is not None for vote in each) for _, each in votes]
    lefts = [sum(vote == left for vote in each) for left, each in votes]
    share, interval = clustered_share(wins, decided)
    left_share, left_interval = clustered_share(lefts, decided)
    num = sum(len(each) for _, each in votes)
    return {
        "pairs": len(votes), "votes": num, "wins": sum(wins), "losses": sum(decided) - sum(wins), "same": num - sum(decided),
        "share": share, "interval": interval, "left_share": left_share, "left_interval": left_interval,
    }  # fmt: skip


def clustered_share(
    wins: Sequence[int], votes: Sequence[int]
) -> tuple[float | None, tuple[float, float] | None]:
    """Return a share of votes and its 95 % interval; votes on one pair count as less than as many pairs.

    Source: Korn and Graubard 1998, "Confidence Intervals for Proportions with Small Expected Number of Positive
    Counts Estimated from Survey Data", for the effective number of votes.
    """
    total = sum(votes)
    if not total:
        return None, None
    share = sum(wins) / total
    variance = sum((won - share * num) ** 2 for won, num in zip(wins, votes, strict=True)) / total**2
    if math.isclose(variance, 0, abs_tol=1e-15):
        # All votes are alike: the judges may only repeat each other.
        effective = float(sum(num > 0 for num in votes))
    else:
        effective = min(total, share * (1 - share) / variance)
    return share, careful_interval(share, effective)


def _read_file(path: Path, key: Key) -> tuple[str, list[Any]]:
    remedy = "give the file that the page saved, and no other"
    table = _table(path, "a file of votes", remedy)
    judge, rows = table.get("judge"), table.get("votes")
    if not isinstance(rows, list) or not isinstance(table.get("list"), str):
        raise DataError(f"{path}: is not a file of votes; {remedy}")
    if table["list"] != key.list:
        raise DataError(
            f"{path}: judges another list of pairs ({table['list'][:8]}) than the key ({key.list[:8]}); give the key.json that "
            "was written beside the page"
        )
    if not isinstance(judge, str) or not judge.strip():
        raise DataError(f'{path}: names no judge; write a name at "judge"')
    return judge.strip(), rows


def _vote(place: str, row: Any, ids: Mapping[str, int]) -> tuple[str, str]:
    name, vote = (str(row.get(key)) if isinstance(row, dict) else "" for key in ("id", "vote"))
    if vote not in VOTES:
        raise DataError(f"{place}: {vote[:40]!r} is not one of {', '.join(VOTES)}; correct it, or remove the vote")
    if name not in ids:
        raise DataError(
            f"{place}: id {name[:40]!r} is not a pair of the key ({len(ids)} pairs); correct it, or remove the vote"
        )
    return name, vote


def _preferred(vote: str, left: int) -> int | None:
    return None if vote == SAME else left if vote == "left" else 1 - left


def _place(value: Any) -> int:
    if value not in (0, 1) or isinstance(value, bool):
        raise ValueError(value)
    return int(value)


def _two(value: Any) -> tuple[str, str]:
    first, second = value
    return str(first), str(second)


def _table(path: Path, what: str, remedy: str) -> dict[str, Any]:
    try:
        value = parse_json(path.read_bytes(), no_twins=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    except ValueError as error:
        raise DataError(f"{path}: is not {what} ({error}); {remedy}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: is not {what}; {remedy}")
    return value
