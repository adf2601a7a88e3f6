"""Votes of judges, opened by the key, and the preference that they make.

The key says which candidate wrote which text, and judges do not get it. With the votes in it, it is what `evaluate.votes`
names. The preference is a share of the votes that prefer one of the two candidates. Ties stand beside it.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError

from anadil.artifacts import storage
from anadil.core.errors import DataError, IntegrityError
from anadil.core.format import counted
from anadil.core.json_text import json_sha256, parse_json
from anadil.core.reasons import first_mistake
from anadil.text.metrics import clustered_share

log = logging.getLogger(__name__)

T = TypeVar("T")
KEY = "evaluate.votes"
"""Recipe key of the files of opened votes."""
AGAIN = "Make a new page with `anadil judge page`, and ask again"
Place = Literal[0, 1]
"""Place of a candidate among the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """Two texts for one prompt, and the votes on them."""

    id: str
    left: Place
    """Candidate whose text stands first."""
    prompt: str
    texts: tuple[str, str]
    """Digests, in the order of the candidates: a vote counts as long as both are written."""
    votes: Mapping[str, Place | None] = field(default_factory=dict)
    """Judge -> candidate whose text is better. None: both are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """File that says who wrote what."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    between: tuple[str, str]
    """Candidates."""
    scores: str
    """URI of the scores with the texts."""
    salt: str
    """Keeps judges from trying keys until one has the digest that the page names."""
    pairs: tuple[KeyPair, ...]
    list: str = ""
    """Digest of all but the votes. Page and votes name it, so that an edited key opens nothing."""

    @property
    def digest(self) -> str:
        """Digest of the content."""
        blank = replace(self, list="", pairs=tuple(replace(each, votes={}) for each in self.pairs))
        return json_sha256(asdict(blank))

    def json(self) -> str:
        """Content of the file."""
        return json.dumps(asdict(self), indent=1) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Choice of a judge."""

    id: str
    vote: Literal["left", "right", "same"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VotesFile:
    """File that the page saves."""

    list: str
    judge: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=60)]
    votes: tuple[Vote, ...]


def written_text(generation: Mapping[str, Any]) -> str:
    """Return what a judge sees of an entry of `generations`."""
    return str(generation["text"]).strip()


def text_digest(text: str) -> str:
    """Return the digest of a text in a key."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def read_key(path: Path, name: str) -> Key:
    """Read a key, with votes or without. An edited key is refused. Messages have `name`."""
    remedy = "Give the key.json of `anadil judge page`, and to evaluate.votes the file of `judge votes --out`"
    key = _read(path, name, Key, remedy)
    if key.list != key.digest:
        raise IntegrityError(
            f"{name}: was edited: it names the digest {key.list[:8]}, and has {key.digest[:8]}. Restore it. Else: {AGAIN}"
        )
    return key


def read_votes(uris: Sequence[str]) -> tuple[Key, ...]:
    """Read the files of `evaluate.votes`."""
    files: dict[str, Key] = {}
    for uri in uris:
        with storage.local_copy(uri) as path:
            file = read_key(path, f"{KEY}: {uri}")
        if file.list in files:
            raise DataError(
                f"{KEY}: {uri}: another file has votes on the same pairs ({file.list[:8]}). Open all of them by one "
                "`anadil judge votes VOTES... --key FILE --out FILE`"
            )
        if not any(each.votes for each in file.pairs):
            raise DataError(f"{KEY}: {uri}: holds no vote. Name a file of `anadil judge votes --out`")
        files[file.list] = file
    return tuple(files.values())


def describe(uris: Sequence[str]) -> str:
    """Read the files of `evaluate.votes`, and count their votes."""
    return counted(sum(len(pair.votes) for file in read_votes(uris) for pair in file.pairs), "vote")


def open_votes(paths: Sequence[str], key: Key) -> Key:
    """Return the key with its votes and those of some files, and log missing and repeated votes."""
    by_judge: dict[str, dict[str, Place | None]] = {}
    for each in key.pairs:
        for judge, choice in each.votes.items():
            by_judge.setdefault(judge, {})[each.id] = choice
    lefts = {each.id: each.left for each in key.pairs}
    for path in paths:
        file = _read(Path(path), path, VotesFile, 'Give the file that the page saved, with a name at "judge"')
        if file.list != key.list:
            raise DataError(
                f"{path}: judges other pairs ({file.list[:8]}) than the key ({key.list[:8]}). Give the key.json that was "
                "written beside the page"
            )
        _add(path, file, by_judge.setdefault(file.judge, {}), lefts)
    for judge, votes in by_judge.items():
        if len(votes) < len(key.pairs):
            log.warning(
                "%s: judged %d of %d pairs. The others do not count. The page goes on where the judge stopped",
                judge, len(votes), len(key.pairs),
            )  # fmt: skip
    if not any(by_judge.values()):
        raise DataError(f"{', '.join(paths)}: hold no vote. Ask a judge to vote and save the file")
    pairs = (
        replace(each, votes={judge: votes[each.id] for judge, votes in by_judge.items() if each.id in votes})
        for each in key.pairs
    )  # fmt: skip
    return replace(key, pairs=tuple(pairs))


def preference(pairs: Iterable[KeyPair]) -> dict[str, Any]:
    """Return how often the first candidate is preferred, by judge and over judges."""
    judged = [each for each in pairs if each.votes]
    judges = sorted({judge for each in judged for judge in each.votes})
    several = [set(each.votes.values()) for each in judged if len(each.votes) > 1]
    return _figures(judged, judges) | {
        "judges": {judge: _figures([each for each in judged if judge in each.votes], [judge]) for judge in judges},
        "judged_by_several": len(several),
        "agreement": sum(len(each) == 1 for each in several) / len(several) if several else None,
    }  # fmt: skip


def _figures(pairs: Sequence[KeyPair], judges: Sequence[str]) -> dict[str, Any]:
    votes = [[each.votes[judge] for judge in judges if judge in each.votes] for each in pairs]
    wins = [each.count(0) for each in votes]
    decided = [len(each) - each.count(None) for each in votes]
    lefts = [each.count(pair.left) for pair, each in zip(pairs, votes, strict=True)]
    share, interval = clustered_share(wins, decided)
    left_share, left_interval = clustered_share(lefts, decided)
    num = sum(map(len, votes))
    return {
        "pairs": len(votes), "votes": num, "wins": sum(wins), "losses": sum(decided) - sum(wins), "same": num - sum(decided),
        "share": share, "interval": interval, "left_share": left_share, "left_interval": left_interval,
    }  # fmt: skip


def _add(path: str, file: VotesFile, known: dict[str, Place | None], lefts: Mapping[str, Place]) -> None:
    total = len(known) + len(file.votes)
    for place, each in enumerate(file.votes, 1):
        if each.id not in lefts:
            raise DataError(
                f"{path}: vote {place}: id {each.id[:40]!r} is not a pair of the key ({len(lefts)} pairs). Correct or remove it"
            )
        left = lefts[each.id]
        other: Place = 0 if left else 1
        choice = {"left": left, "right": other, "same": None}[each.vote]
        if known.setdefault(each.id, choice) != choice:
            raise DataError(
                f"{path}: vote {place}: {file.judge!r} judged pair {each.id} otherwise before, and now {each.vote!r}. "
                'Leave out the file that does not count. If two people share the name, change "judge" in one file'
            )
    if total > len(known):
        log.warning("%s: %d votes were given twice and count once", file.judge, total - len(known))


def _read(path: Path, name: str, kind: type[T], remedy: str) -> T:
    try:
        return TypeAdapter(kind).validate_python(parse_json(path.read_bytes(), no_twins=True))
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror}). {remedy}") from None
    except ValidationError as error:
        raise DataError(f"{name}: {first_mistake(error)}. {remedy}") from None
    except ValueError as error:
        raise DataError(f"{name}: {error}. {remedy}") from None
