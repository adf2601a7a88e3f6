"""Find the code page that gives the letters of a language, for bytes that are not UTF-8.

Detectors know forty languages and take Kazakh's code page for Windows-1251, in which most of it reads well.
"""

import functools
import heapq
import itertools
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from anadil.text.letters import Letters

log = logging.getLogger(__name__)

CODE_PAGES = (
    "cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp874", "kz1048",
    "ptcp154", "koi8-u", "koi8-r", "koi8-t", "iso8859-2", "iso8859-3", "iso8859-4", "iso8859-5", "iso8859-6",
    "iso8859-7", "iso8859-8", "iso8859-10", "iso8859-13", "iso8859-14", "iso8859-15", "iso8859-16", "cp866", "cp1125",
    "cp855", "cp852", "cp850", "cp857", "cp775", "cp737", "cp869", "cp862", "cp720", "cp861", "cp865", "cp437", "cp860", "cp863", "cp858",
    "mac-cyrillic", "mac-latin2", "mac-roman", "mac-greek", "mac-turkish", "mac-croatian", "mac-romanian",
    "mac-iceland", "mac-arabic", "mac-farsi",
)  # fmt: skip
"""With one byte a character, of those that Python knows; usual ones first."""
QUOTES = {"ʻ": "‘", "ʼ": "’"}
"""Letters of Uzbek and others -> what keyboards and code pages have for them."""
MIN_COVERAGE = 0.8
"""Least share of a language's letters that a code page has: Azerbaijani was written without ə, Bashkir with signs for its own."""
MIN_FIT = 0.8
"""Share of what stands beyond ASCII in words that the language writes; less is a text in another language."""
MAX_WRONG = 0.03
"""Share of it that the language does not write, up to which these are foreign names."""
MAX_WORDS = 250
"""Words with bytes beyond ASCII that are looked at."""
MAX_CLOSE = 8
"""Code pages whose words are looked at: those that give most letters of the language, whatever stands beside them."""
WORDS = re.compile(rb"[^\s<>\"&;=/]*[\x80-\xff][^\s<>\"&;=/]*")
BESIDE_LETTERS = re.compile(r"(?<=[^\W\d_])[^\x00-\x7f]|[^\x00-\x7f](?=[^\W\d_])")
"""Characters beyond ASCII within a word or at one: its letters, quotation marks, and signs that were letters."""
WITHIN = re.compile(r"(?<=[^\W\d_])[^\x00-\x7f\w\u00b7\u2010-\u2019\u00ad\ufffd\x80-\x9f](?=[^\W\d_])")
INNER_CAPITAL = re.compile(r"(?<=[^\W\d_])[^\x00-\x7f]")
LOST = re.compile(r"(?<=[^\W\d_])\?(?=[^\W\d_])")
"""Sign that programs write for a letter that a code page lacks, such as `s?n` for sən in Windows-1254."""
MIN_LOST = 3
"""Fewer are two sentences without a space, or addresses. Chosen by us."""
MAX_DAMAGE = 0.3
"""Share of the characters beyond ASCII up to which a text is UTF-8 with damage: pages are cut, and files joined. Measured: 0.58 or more in 163 texts of other encodings."""
NO_TEXT = re.compile("[\x80-\x9f\ufffd\u2500-\u25a0\u2320\u2321]")
"""Controls, lost characters, and lines of boxes."""


def nearly_utf_8(data: bytes) -> str | None:
    """The text of bytes that are UTF-8, or were before little damage; None for another encoding."""
    text = data.decode(errors="replace")
    beyond = len(text) - len(text.encode("ascii", "ignore"))
    return text if text.count("\ufffd") <= MAX_DAMAGE * beyond else None


def say_lost_letters(name: str, text: str, code_page: str) -> None:
    """Warn of letters that were lost when a file was written in a code page without them."""
    if (lost := len(LOST.findall(text))) >= MIN_LOST:
        log.warning(
            "%s: %d times a `?` stands within a word: %s lacks letters of the text, and they are lost; write the file again as UTF-8",
            name, lost, code_page,
        )  # fmt: skip


def best_code_page(data: bytes, candidates: Sequence[str], letters: Letters) -> str | None:
    """Return the code page that gives most of a language's letters and fewest others; None if none gives that language.

    `candidates` are declared or detected; the first of equals is taken.
    """
    letters = _as_code_pages_write(letters)
    if not letters.own:
        return None
    sample = b" ".join(match[0] for match in itertools.islice(WORDS.finditer(data), MAX_WORDS))
    counts = Counter(sample)
    of_codec = _letters_of_code_pages(letters)
    close = heapq.nlargest(
        len(of_codec), of_codec, key=lambda codec: sum(map(counts.__getitem__, of_codec[codec]))
    )
    # Those that read alike count once.
    texts = {sample.decode(codec, "replace"): codec for codec in reversed([*candidates, *close])}
    best = (0.0, "")
    for text, codec in itertools.islice(reversed(texts.items()), len(candidates) + MAX_CLOSE):
        score, fit, most = _score(text, letters)
        if fit >= MIN_FIT and score > best[0]:
            best = (score, codec)
        if score and score == most:
            break
    return best[1] or None


def without_wrong_letters(text: str, letters: Letters) -> str:
    """Replace what the language does not write by U+FFFD, where no code page was right."""
    text = unicodedata.normalize("NFC", text)
    letters = _as_code_pages_write(letters)
    known = letters.own | letters.others
    signs_beside = Counter(BESIDE_LETTERS.findall(text))
    signs = {each for each in WITHIN.findall(text) if each not in known}
    wrong = {each for each in signs_beside if each in signs or (each.isalpha() and each not in known)}
    if sum(map(signs_beside.__getitem__, wrong)) <= MAX_WRONG * signs_beside.total():
        return text
    return BESIDE_LETTERS.sub(lambda match: "\ufffd" if match[0] in wrong else match[0], text)


@functools.lru_cache(maxsize=8)
def _as_code_pages_write(letters: Letters) -> Letters:
    # Code pages have letters with a cedilla for those of Romanian with a comma below, and quotation marks for Uzbek's.
    alphabet = frozenset(QUOTES.get(each, each) for each in letters.own)
    # A language that writes ASCII has quotation marks and foreign names beyond it.
    alphabet = alphabet or frozenset(QUOTES.values() if letters.others else ())
    return Letters(own=alphabet, others=letters.others | set(map(_cedilla, alphabet)) - alphabet)


def _cedilla(letter: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", letter).replace("\u0326", "\u0327"))


@functools.lru_cache(maxsize=8)
def _letters_of_code_pages(letters: Letters) -> dict[str, bytes]:
    """Return code pages that have the letters of a language, and the bytes which are those; its own count twice."""
    small = {_cedilla(each) for each in letters.own if each == each.lower()}
    fits = {}
    for codec in CODE_PAGES:
        characters = {byte: bytes([byte]).decode(codec, "ignore") for byte in range(0x100)}
        has = set(map(_cedilla, characters.values()))
        if sum(_is_written(each, has) for each in small) >= MIN_COVERAGE * len(small):
            fits[codec] = bytes(
                byte
                for kind in (letters.own, letters.own, letters.others)
                for byte, each in characters.items()
                if each in kind
            )
    return fits


def _is_written(letter: str, has: set[str]) -> bool:
    """Return whether a letter is in a set, or made of two that are."""
    parts = unicodedata.decomposition(letter).split()
    return letter in has or (len(parts) == 2 and all(chr(int(part, 16)) in has for part in parts))


def _score(text: str, letters: Letters) -> tuple[float, float, int]:
    """Count the letters of the language in words, less what is none; return it, their share, and the most that it could be."""
    text = unicodedata.normalize("NFC", text)
    beside = [each for each in BESIDE_LETTERS.findall(text) if each.isalpha() or each in letters.own]
    num_own = sum(map(letters.own.__contains__, beside))
    others = sum(map(letters.others.__contains__, beside))
    signs = sum(each not in letters.own for each in WITHIN.findall(text))
    wrong = len(beside) - num_own - others + signs + 2 * len(NO_TEXT.findall(text))
    capitals = sum(
        match[0].isupper() and any(map(str.islower, text[match.start() - 1 : match.end() + 1]))
        for match in INNER_CAPITAL.finditer(text)
    )
    total = max(1, num_own + others + wrong)
    return num_own + others / 2 - wrong - capitals, (num_own + others) / total, total
