"""Languages as the stages see them: a pack of data, and a few small pure functions if it needs them.

A language is named by its id, for which a pack is shipped or identifiers know enough, or by the path
of a pack (`languages/README.md` describes its keys; `anadil language learn` writes one).
"""

import difflib
import functools
from pathlib import Path

from anadil.text.language_data import NO_LANGUAGE, KnownLanguage, Language, UnknownLanguageError
from anadil.text.language_pack import language_of_pairs, read_pack, without_language, without_pack
from anadil.text.parallel import is_pair, languages_of

PACKS = Path(__file__).parent / "languages"
"""Shipped packs, the functions that some need, and the table of codes."""
PACK_SUFFIXES = (".yaml", ".yml", ".json")
WRITTEN_IN = {"Hang": ("Kore",), "Hani": ("Hans", "Hant"), "Aran": ("Arab",)}
"""Scripts that public data sets name -> those of rows that they stand for."""
LEARN = "anadil language learn {0} SAMPLE... --out {0}.yaml"


@functools.cache
def known_languages() -> dict[str, KnownLanguage]:
    """Every language that has a row, by its id."""
    lines = (PACKS / "codes.tsv").read_text(encoding="utf-8").splitlines()[1:]
    names = ("code", "iso639_3", "script", "name", "cld2", "second", "also")
    rows = (dict(zip(names, line.split("\t"), strict=True)) for line in lines)
    return {row["code"]: KnownLanguage(**row) for row in rows}


def language_codes() -> list[str]:
    """Ids of the shipped packs."""
    return sorted(path.stem for path in PACKS.glob("*.yaml"))


def is_pack_path(language: str) -> bool:
    """Return True if a recipe names a language by the path of a pack."""
    return (language.endswith(PACK_SUFFIXES) or "/" in language) and not is_pair(language)


@functools.cache
def _by_other_id() -> dict[str, KnownLanguage]:
    """Rows by their ids of three letters, and by those that other lists have for the language."""
    rows = [row for code, row in known_languages().items() if "-" not in code]
    # Reversed, so that the first of several rows with one id wins.
    return {row.iso639_3: row for row in reversed(rows)} | {
        other: row for row in rows for other in row.also.split()
    }


def find_language(code: str) -> KnownLanguage | None:
    """The row of an id, in any common spelling: `kk`, `kaz`, `kk-Cyrl`, `kaz_Cyrl`, `__label__kaz_Cyrl`.

    With a script other than the usual one it has no identifiers, because they have not seen it.
    """
    first, _, script = code.removeprefix("__label__").replace("_", "-").partition("-")
    rows, script = known_languages(), script.title()
    row = rows.get(first.lower()) or _by_other_id().get(first.lower())
    if row is None or not script or row.script in {script, *WRITTEN_IN.get(script, ())}:
        return row
    if len(script) != 4 or not script.isalpha():
        return None
    return rows.get(f"{row.code}-{script}") or KnownLanguage(
        code=f"{row.code}-{script}", iso639_3=row.iso639_3, script=script,
        name=row.name, cld2="", second="",
    )  # fmt: skip


@functools.cache
def is_alone_in_script(code: str, script: str) -> bool:
    """Return True if no other language of the list has this usual script."""
    return [row.code for row in known_languages().values() if row.script == script] == [code]


def load_language(language: str) -> Language:
    """The language of an id, such as `az` or `kaz_Cyrl`, of a pack's path, of `none`, or of pairs in two languages."""
    if is_pair(language):
        return language_of_pairs(tuple(map(load_language, languages_of(language))))
    if is_pack_path(language):
        path = Path(language).expanduser()
        try:
            status = path.stat()
        except OSError as error:
            raise UnknownLanguageError(
                f"the language pack {language} cannot be read: {error.strerror}"
            ) from None
        return read_pack(path, (status.st_mtime_ns, status.st_size))
    if language.lower() == NO_LANGUAGE:
        return without_language()
    row = find_language(language)
    if row is None:
        raise UnknownLanguageError(_unknown(language))
    if row.code in language_codes():
        # A shipped pack never changes while the program runs.
        return read_pack(PACKS / f"{row.code}.yaml", (0, 0))
    if not row.cld2:
        usual = known_languages().get(row.code.partition("-")[0], row)
        instead = f"; it is usually written in {usual.script}, whose id is {usual.code}" if usual.cld2 else ""
        raise UnknownLanguageError(
            f"{row.name} in {row.script} is a language that CLD2 cannot tell from others{instead}; make a pack of text "
            f"in it, `{LEARN.format(row.code)}`, and name its path"
        )
    return without_pack(row)


def _unknown(language: str) -> str:
    rows = known_languages()
    names = {row.name.lower(): row.code for row in rows.values()}
    ids = [*rows, *_by_other_id()]
    near = next(iter(difflib.get_close_matches(language.lower(), names, n=1, cutoff=0.8)), "")
    near = names.get(near, "") or next(iter(difflib.get_close_matches(language, ids, n=1, cutoff=0.5)), "")
    guess = f"; did you mean {near!r} ({nearest.name})?" if near and (nearest := find_language(near)) else "."
    return (
        f"no language has this id{guess} Packs are shipped for {', '.join(language_codes())}; one in no list is "
        f"learnt, `{LEARN.format('NAME')}`, and named by the pack's path"
    )
