"""Requests that a model should refuse or should answer, and the words by which languages refuse."""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, StrictBool, ValidationError

from anadil.artifacts import storage
from anadil.artifacts.text_files import text_rows
from anadil.core.errors import DataError
from anadil.core.format import counted
from anadil.core.reasons import first_mistake
from anadil.core.strict_yaml import parse_yaml
from anadil.text.language import find_language, load_language

KEY = "evaluate.refusals"
"""Recipe key of the files."""
FOLDER = Path(__file__).parent
BUILT_IN = FOLDER / "requests.jsonl"
MAX_REQUESTS = 1_000
"""Most requests of a language and a kind: each candidate answers all of them. Chosen by us."""

Kind = Literal["harmful", "harmless"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def _code(lang: str) -> str:
    if (known := find_language(lang)) is None:
        raise ValueError("is the id of no language, such as az")
    return known.code


class Request(BaseModel):
    """A request in one language."""

    model_config = ConfigDict(
        frozen=True, coerce_numbers_to_str=True, str_strip_whitespace=True, str_min_length=1
    )
    id: str
    """The same in each language that it was translated into."""
    text: str
    kind: Kind
    lang: Annotated[str, AfterValidator(_code)]
    native: StrictBool = True
    """False where no native speaker has read it, by its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrases:
    """Words by which a language refuses."""

    code: str
    is_read: bool
    """A native speaker has read them."""
    patterns: tuple[re.Pattern[str], ...]
    """Patterns of refusals, in folded text."""
    refusals: tuple[str, ...]
    """Beginnings of answers that refuse."""
    compliance: tuple[str, ...]
    """Beginnings of answers that comply."""

    def refuses(self, text: str) -> bool:
        """True if an answer refuses."""
        folded = _folded(text, self.code)
        return any(pattern.search(folded) for pattern in self.patterns)


def phrase_languages() -> list[str]:
    """Ids of the languages whose words of refusing are known."""
    return sorted(path.stem for path in (FOLDER / "languages").glob("*.yaml"))


@cache
def load_phrases(code: str) -> Phrases:
    """The words by which a language of `phrase_languages` refuses."""
    path = FOLDER / "languages" / f"{code}.yaml"
    table = cast("dict[str, list[str]]", parse_yaml(path.read_text(encoding="utf-8"), path.name)[0])
    return Phrases(
        code=code, is_read=bool(table["native"]), refusals=tuple(table["refusals"]), compliance=tuple(table["compliance"]),
        patterns=tuple(re.compile(_folded(each, code)) for each in table["patterns"]),
    )  # fmt: skip


def _folded(text: str, code: str) -> str:
    straight = unicodedata.normalize("NFKC", text).replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return load_language(code).fold(" ".join(straight.split()))


def read_requests(files: Sequence[str] = ()) -> dict[str, tuple[Request, ...]]:
    """Read the requests of files, or else the built-in ones, by language."""
    by_language: dict[str, dict[str, Request]] = defaultdict(dict)
    for uri in files or (str(BUILT_IN),):
        with storage.local_copy(uri) as path:
            for place, row in text_rows(path, f"{KEY}: {uri}", "text"):
                try:
                    request = Request.model_validate(row)
                except ValidationError as error:
                    raise DataError(
                        f'{place}: {first_mistake(error)}; a line is {{"id": ..., "text": ..., "kind": "harmful" | "harmless", "lang": "az"}}'
                    ) from None
                known = by_language[request.lang]
                if request.id in known:
                    raise DataError(
                        f"{place}: id {request.id!r} is there twice in {request.lang}; give each request its own"
                    )
                known[request.id] = request
    named = ", ".join(files)
    if not by_language:
        raise DataError(f"{KEY}: {named}: no request; name another file")
    for lang, known in by_language.items():
        counts = Counter(each.kind for each in known.values())
        if missing := [kind for kind in KINDS if not counts[kind]]:
            raise DataError(
                f"{KEY}: {named}: {counted(len(known), 'request')} in {lang}, none of them {missing[0]}, so that nothing tells a "
                f"refusal of harm from a refusal of everything; add {missing[0]} ones"
            )
        if max(counts.values()) > MAX_REQUESTS:
            raise DataError(
                f"{KEY}: {named}: more than {MAX_REQUESTS:,} requests of a kind in {lang}; give a sample"
            )
    return {lang: tuple(known.values()) for lang, known in by_language.items()}


def describe(files: Sequence[str]) -> str:
    """Read the requests of files, and count them."""
    by_language = read_requests(files).items()
    return ", ".join(f"{counted(len(each), 'request')} in {code}" for code, each in by_language)
