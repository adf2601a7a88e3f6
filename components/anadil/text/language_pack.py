"""A language as one file of data: its keys, and the language that comes of it."""

import functools
import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from anadil.core import strict_yaml
from anadil.core.errors import RecipeError
from anadil.core.format import MIB, human_bytes
from anadil.core.json_text import parse_json
from anadil.core.reasons import reason_of
from anadil.text import language_data, languages
from anadil.text.filter_rules import Share, limits_model
from anadil.text.letters import WITHOUT_SPACES, letters_of, lookalike_repair, script_test
from anadil.text.reading_order import FROM_THE_RIGHT, put_in_reading_order
from anadil.text.spelling import spelling_repair
from anadil.text.unicode_repair import (
    MAX_PASSES,
    apply_until_stable,
    is_sound,
    join_surrogates,
    normalize_spaces,
    repair_characters,
)

GENERAL_ENDS = ".!?…:;。！？؟۔।॥။።՞།"
"""Ends of sentences in the scripts that have signs of their own."""
MAX_PACK_BYTES = 16 * MIB  # Our choice: a learnt pack takes some 100 kB
CODE = r"^[A-Za-z][A-Za-z0-9-]{0,63}$"
CHARACTERS = re.compile(r"[^\W\d_]|\d+")
"""The units of a script without spaces: each letter, and each number."""

DOTTED = frozenset({"lt", "sgs"})
"""Languages that write a dot under the accent of an i. Source: Unicode, SpecialCasing.txt."""
MAX_SEARCHES = 20
CERTAIN = 2.0  # Times the guard's share from which a text needs no other opinion


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Guard(_Table):
    """Sure signs of the language, whatever an identifier says."""

    letters: str
    min_share: Share
    """Share of these among the letters above which a text is in the language."""
    absent: str = ""
    """Letters that none of its texts holds."""


def _checked(profile: language_data.Profile | None) -> language_data.Profile | None:
    from anadil.text.profile_checks import check_profile  # numpy, which few readers of a pack need

    if profile:
        check_profile(profile)
    return profile


class Identification(_Table):
    """Signs that tell the language from others."""

    cld2: tuple[str, ...] = ()
    second: str = ""
    lookalikes: tuple[str, ...] = ()
    """Labels of CLD2 that its text gets by mistake."""
    long_lookalikes: tuple[str, ...] = ()
    """Those that its text gets from 400 characters on, whether CLD2 is sure or not; empty: `lookalikes`, if it is sure."""
    usual_label: str = ""
    """CLD2's label for most of its long text, if CLD2 takes some for a sibling's."""
    min_usual_pieces: Share = 0.0
    """Least share of such a text's pieces with the usual label, of those with it or the sibling's."""
    sibling: str = ""
    """Label of CLD2 for most of the sample, of another language: text in that one may pass. Learnt with `--accept-sibling`."""
    guard: Guard | None = None
    own_letters: str = ""
    min_own_letters: Share = 0.0
    """Less is text in another spelling, such as ASCII."""
    profile: Annotated[language_data.Profile | None, AfterValidator(_checked)] = None
    model: language_data.LanguageModel | None = None


class PackLimits(limits_model(_Table, has_defaults=True)):  # type: ignore[misc]  # the table of rules has its fields
    """Limits of the document filters; one left out is the general one."""


class LanguagePack(_Table):
    """The keys of a pack."""

    code: Annotated[str, Field(pattern=CODE)]
    name: Annotated[str, Field(min_length=1)]
    script: Annotated[str, Field(pattern=r"^[A-Z][a-z]{3}$")]
    functions: str = ""
    """Module of `languages/` that holds functions which the language needs; of shipped packs only."""
    words: Literal["spaces", "characters"] = "spaces"
    fold: Literal["plain", "turkic"] = "plain"
    """`turkic`: I, İ, ı and i are one letter."""
    alphabet: str = ""
    identification: Identification = Identification()
    stop_words: str = ""
    stray_letters: str = ""
    sentence_ends: str = GENERAL_ENDS
    min_long_block: int = 140
    limits: PackLimits = PackLimits()
    prompts: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    sample_words: tuple[str, ...] = ()
    suffixes: str = ""
    """Endings that words are glued together with, separated by spaces: borders of tokens are compared with theirs."""
    learnt: dict[str, Any] = {}
    """How and on how much evidence the pack was made; for people."""


@functools.lru_cache(maxsize=32)
def read_pack(path: Path, version: tuple[int, int]) -> language_data.Language:
    """The language of a pack; `version`, its time and size, lets a changed file be read again."""
    del version
    try:
        with path.open("rb") as file:
            content = file.read(MAX_PACK_BYTES + 1)
        if len(content) > MAX_PACK_BYTES:
            raise ValueError(f"is larger than {human_bytes(MAX_PACK_BYTES)}, and so none")
        text = content.decode()
        if path.suffix == ".json":
            data = parse_json(text, no_twins=True)
        else:
            data, _ = strict_yaml.parse_yaml(text, f"the language pack {path}", MAX_PACK_BYTES)
        pack = LanguagePack.model_validate(data)
    except RecipeError as error:
        raise language_data.UnknownLanguageError(str(error)) from None
    except ValidationError as error:
        reasons = (
            f"{'.'.join(map(str, each['loc'])) or 'the file'}: {reason_of(each)}" for each in error.errors()
        )
        raise language_data.UnknownLanguageError(f"the language pack {path}: {'; '.join(reasons)}") from None
    except (OSError, ValueError) as error:
        raise language_data.UnknownLanguageError(
            f"the language pack {path}: {' '.join(str(error).split())}"
        ) from None
    return to_language(pack)


def general_limits(*, has_spaces: bool) -> PackLimits:
    """Limits of a language of which only is known whether spaces part its words.

    Without spaces a character is a word: a twentieth of damaged words is a hundredth of the characters, and runs of five to
    ten are a word or two, which all text repeats. Measured on eight such languages: .13 to .77 of the .99 quantile of
    documents, .88 of a paragraph eight times.
    """
    if has_spaces:
        return PackLimits()
    most = 0.8
    return PackLimits(
        min_mean_word_length=1, max_mean_word_length=6, max_isolated=0.01, max_duplicate_ngrams=most,
        max_duplicate_6grams=most, max_duplicate_7grams=most, max_duplicate_8grams=most, max_duplicate_9grams=most,
        max_duplicate_10grams=most,
    )  # fmt: skip


def without_pack(row: language_data.KnownLanguage) -> language_data.Language:
    """A language of which script and identifiers are known: general limits, no prompts."""
    spaces = row.script not in WITHOUT_SPACES
    return to_language(
        LanguagePack(
            code=row.code, name=row.name, script=row.script, words="spaces" if spaces else "characters",
            identification=Identification(cld2=(row.cld2,), second=row.second),
            min_long_block=140 if spaces else 70, limits=general_limits(has_spaces=spaces),
        )
    )  # fmt: skip


@functools.cache
def without_language() -> language_data.Language:
    """Text in no language: words by white space, general limits, and no change but to what cannot be written."""
    pack = LanguagePack(code=language_data.NO_LANGUAGE, name="no language", script="Zyyy")
    return replace(to_language(pack), normalize=writable, is_none=True)


@functools.lru_cache(maxsize=64)
def language_of_pairs(sides: tuple[language_data.Language, ...]) -> language_data.Language:
    """Parallel text as clean sees a pair: in no language as a whole, with those of its sides."""
    # Runs and shingles of words would not see text without spaces; those of characters see both sides.
    without_spaces = [side.shingle_units for side in sides if side.word_unit]
    units = next(iter(without_spaces), without_language().shingle_units)
    return replace(
        without_language(), code="-".join(side.code for side in sides),
        name=" and ".join(side.name for side in sides), shingle_units=units, sides=sides,
    )  # fmt: skip


def writable(text: str) -> str:
    """The text without what no file or program of C can hold."""
    # NUL ends a text for programs in C, such as fastText; UTF-8 has no lone surrogates.
    return join_surrogates(text.replace("\0", ""))


def to_language(pack: LanguagePack) -> language_data.Language:
    """The language of a pack's data; functions of its module go first."""
    module = importlib.import_module(f"{languages.__name__}.{pack.functions}") if pack.functions else None

    def function(name: str, general: Callable[..., Any]) -> Callable[..., Any]:
        return getattr(module, name, general)

    identification = pack.identification
    fold = function("fold", fold_turkic if pack.fold == "turkic" else str.lower)
    words = function("words", str.split if pack.words == "spaces" else CHARACTERS.findall)
    by_words = pack.words == "spaces"
    units = (
        (lambda text: fold(text).split()) if by_words else (lambda text: list("".join(fold(text).split())))
    )
    return language_data.Language(
        code=pack.code, name=pack.name, script=pack.script, words=words,
        word_unit="" if by_words else getattr(module, "WORD_UNIT", "a letter or a number"),
        shingle_units=function("shingle_units", units), fold=fold, normalize=_normalizer(pack, module),
        reorder=put_in_reading_order if pack.script in FROM_THE_RIGHT else str,
        respell=spelling_repair(letters_of(pack.code, pack.alphabet)),
        letters=letters_of(pack.code, pack.alphabet),
        is_script=function("is_script", script_test(pack.script)), guard=_guard(identification.guard),
        is_certain=_guard(identification.guard, CERTAIN), labels=frozenset(identification.cld2),
        second_label=identification.second, lookalikes=frozenset(identification.lookalikes),
        long_lookalikes=frozenset(identification.long_lookalikes), usual_label=identification.usual_label,
        min_usual_pieces=identification.min_usual_pieces, sibling=identification.sibling,
        profile=identification.profile, model=identification.model,
        own_letters=frozenset(identification.own_letters), min_own_letters=identification.min_own_letters,
        stop_words=frozenset(map(fold, pack.stop_words.split())), stray_letters=frozenset(pack.stray_letters),
        sentence_ends=pack.sentence_ends, min_long_block=pack.min_long_block, limits=pack.limits.model_dump(),
        prompts=pack.prompts, questions=pack.questions, sample_words=pack.sample_words,
        suffixes=frozenset(map(fold, pack.suffixes.split())), alphabet=pack.alphabet,
    )  # fmt: skip


def normalize(text: str) -> str:
    """NFC, misread bytes put right, no characters that nobody sees or needs, tidy spaces."""
    return apply_until_stable(
        lambda once: once if is_sound(once) else normalize_spaces(repair_characters(once)), text
    )


def _normalizer(pack: LanguagePack, module: ModuleType | None) -> Callable[[str], str]:
    """`normalize` with the repairs of a language's letters."""
    repair = getattr(module, "normalize", normalize)
    letters = letters_of(pack.code, pack.alphabet)
    repair_lookalikes, respell = lookalike_repair(pack.script, letters), spelling_repair(letters)
    has_dots, is_from_right = pack.code in DOTTED, pack.script in FROM_THE_RIGHT

    def normalized(text: str) -> str:
        # Before ligatures become two letters, whose order would be turned as well.
        text = put_in_reading_order(text) if is_from_right else text
        for _ in range(MAX_PASSES):
            text = after = repair(text)
            if "\u0307" in text and not has_dots:
                # Most programs lower İ to this.
                after = text.replace("i\u0307", "i").replace("ı\u0307", "i")
            after = respell(repair_lookalikes(after))
            if after == text:
                break
            text = after
        return text

    return normalized


def fold_turkic(text: str) -> str:
    """Lower case in which I, İ, ı and i are one letter: in upper-cased text I and İ both stand for ı or i."""
    # Four replacements are six times as fast as one `translate`.
    one = text.replace("İ", "i").replace("I", "i").replace("ı", "i").replace("\u0307", "")
    return one.lower()


def _guard(table: Guard | None, times: float = 1.0) -> Callable[[str], bool]:
    if table is None:
        return lambda _: False
    letters, min_share, absent = frozenset(table.letters), times * table.min_share, tuple(table.absent)
    few = len(letters) <= MAX_SEARCHES

    def guard(text: str) -> bool:
        if absent and any(map(text.__contains__, absent)):
            return False
        # A search for each of few letters is far faster than a look at each character.
        num_own = sum(map(text.count, letters) if few else map(letters.__contains__, text))
        if num_own > min_share * len(text):  # which has not fewer characters than letters
            return True
        return num_own > min_share * sum(map(str.isalpha, text))

    return guard
