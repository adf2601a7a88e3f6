"""Replace personal data by typed placeholders: each pattern has a validator or needs words around it.

A corpus of laws is full of numbers that look like addresses of computers or telephones, so a run of digits alone
counts for nothing: it needs a check sum, a prefix that only telephones have, or the word that says what it is.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address

from anadil.clean.filters import telephones

SEVEN_DIGITS = re.compile(rf"\d(?:[{telephones.SIGNS}]{{0,3}}\d){{6}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One way that personal data is written."""

    kind: str
    """Name of the placeholder."""
    hint: re.Pattern[str] = SEVEN_DIGITS
    """Cheap search; a text without it holds none."""
    expression: re.Pattern[str]
    context: re.Pattern[str] | None = None
    """Text that must stand within `CONTEXT_CHARS` before it, in the same line."""
    not_before: re.Pattern[str] | None = None
    """Text that must not stand right behind it."""
    not_behind: re.Pattern[str] | None = None
    """Text that must not stand right before it."""
    is_valid: Callable[[str], bool] = bool
    """Test of a match."""


def passes_luhn(value: str) -> bool:
    """Check the last digit of a card number. Source: ISO/IEC 7812-1, annex B."""
    digits = [int(each) for each in value if each.isdecimal()]
    doubled = sum(sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return len(set(digits)) > 1 and (sum(digits[-1::-2]) + doubled) % 10 == 0


def passes_mod_97(value: str) -> bool:
    """Check the check digits of an IBAN. Source: ISO 13616-1."""
    plain = value.replace(" ", "")
    return int("".join(str(int(each, 36)) for each in plain[4:] + plain[:4])) % 97 == 1


def passes_my_number(value: str) -> bool:
    """Check the last digit of a Japanese individual number.

    Source: order 85 of 2014 of the Ministry of Internal Affairs and Communications, article 5.
    """
    *digits, check = (int(each) for each in value if each.isdecimal())
    weights = (6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2)
    rest = sum(digit * weight for digit, weight in zip(digits, weights, strict=True)) % 11
    return check == (0 if rest <= 1 else 11 - rest)


def passes_kimlik(value: str) -> bool:
    """Check both check digits of a Turkish citizen's number.

    Source: General Directorate of Civil Registration and Citizenship, algorithm of T.C. Kimlik No.
    """
    digits = [int(each) for each in value if each.isdecimal()]
    tenth = (7 * sum(digits[0:9:2]) - sum(digits[1:8:2])) % 10
    return digits[9] == tenth and digits[10] == sum(digits[:10]) % 10


CONTEXT_CHARS = 40
AT_SIGN = re.compile("@")
FOUR_NUMBERS = re.compile(r"\d\.\d{1,3}\.\d{1,3}\.\d")
FIN_WORD = re.compile(r"\b(?:F[İI]N|[Ff][iİIı]n\b)|identifikasiya", re.IGNORECASE)
OF_DIGITS = frozenset((FOUR_NUMBERS, SEVEN_DIGITS))
RUN_OF_DIGITS = re.compile(rf"\d[\d{telephones.SIGNS}]{{6}}")
"""With what both hints of numbers begin, or an earlier place: one search spares most texts both."""
NO_DIGIT_BEFORE, NO_DIGIT_AFTER = r"(?<![\w.,/+$€£¥₼₺₽-])", r"(?![\w/-]|[.,]\d)"
OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
SUFFIX = r"(?:['’-]?\w{1,6})?"
"""Endings of a word of Azerbaijani, behind a hyphen or none."""

LABEL = r"a-zA-Z0-9-\u00b7-\u1fff\u2c00-\u2fef\u3005-\u3007\u3041-\ud7ff\uf900-\ufdff\ufe70-\ufefc"
"""Letters of all scripts, with the signs above and below them, which names of hosts may hold too."""
FOREIGN = LABEL.removeprefix("a-zA-Z0-9-")
EMAIL = Pattern(
    kind="EMAIL",
    hint=AT_SIGN,
    expression=re.compile(
        # The last part is in one script: where no space is written, text may follow.
        rf"(?<![\w.+%{FOREIGN}-])[\w.+%{FOREIGN}-]{{1,64}}@(?:[{LABEL}]{{1,63}}\.){{1,8}}"
        rf"(?:[a-zA-Z]{{2,24}}(?![a-zA-Z0-9-])|xn--[a-zA-Z0-9-]{{2,59}}|[{FOREIGN}]{{2,24}}(?![{LABEL}]))"
    ),
)
IP = Pattern(
    kind="IP",
    hint=FOUR_NUMBERS,
    expression=re.compile(rf"(?<![\w.,+-]){OCTET}(?:\.{OCTET}){{3}}(?!\w|\.\d)"),
    context=re.compile(
        r"\b(?:ip|ipv4|dns|server\w*|host\w*|ping|ssh|gateway|şəbəkə\w*)\b|ünvan|://|サーバ|アドレス|ホスト",
        re.IGNORECASE,
    ),
    # `127.0.0.1` is nobody's.
    is_valid=lambda value: IPv4Address(value).is_global,
)
IBAN = Pattern(
    kind="IBAN",
    expression=re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?!\w)"),
    is_valid=passes_mod_97,
)
CARD = Pattern(
    kind="CARD",
    expression=re.compile(
        rf"{NO_DIGIT_BEFORE}(?:[456]\d{{3}}|2[2-7]\d\d)(?:[ -]?\d{{4}}){{3}}{NO_DIGIT_AFTER}"
        rf"|{NO_DIGIT_BEFORE}3[47]\d\d[ -]?\d{{6}}[ -]?\d{{5}}{NO_DIGIT_AFTER}"
    ),
    is_valid=passes_luhn,
)
"""Prefixes of Visa, Mastercard, UnionPay, Maestro of 16 digits, and American Express."""
INTERNATIONAL_PHONE = Pattern(
    kind="PHONE",
    expression=telephones.international(),
    not_before=telephones.RECORD,
    is_valid=telephones.is_no_amount,
)
LOCAL_PHONE = Pattern(
    kind="PHONE",
    expression=telephones.LOCAL,
    context=telephones.TELEPHONE_WORD,
    not_before=telephones.RECORD,
    is_valid=telephones.is_local,
)
FIN = Pattern(
    kind="FIN",
    hint=FIN_WORD,
    expression=re.compile(r"(?<!\w)(?=[A-Za-z]*\d)[0-9A-HJ-NP-Za-hj-np-z]{7}(?!\w)"),
    context=re.compile(
        rf"\b(?:f[iİıI]n{SUFFIX}|(?:fərdi\s)?identifikasiya)[^\w\n]{{0,3}}(?:kod\w*|nömrə\w*)?[^\w\n]{{0,5}}$",
        re.IGNORECASE,
    ),
)
"""Personal number of Azerbaijan's identity card: seven digits and letters without I and O."""
VOEN = Pattern(
    kind="VOEN",
    expression=re.compile(r"(?<!\w)\d{10}(?!\w)"),
    context=re.compile(rf"\bV[ÖO]EN{SUFFIX}[^\w\n]{{0,3}}(?:kod\w*|nömrə\w*)?[^\w\n]{{0,5}}$", re.IGNORECASE),
)
"""Number of a taxpayer of Azerbaijan: ten digits; a person in business has one too."""
KIMLIK = Pattern(
    kind="KIMLIK",
    expression=re.compile(rf"{NO_DIGIT_BEFORE}[1-9]\d{{10}}(?!\w|[.,/-]\d)"),
    not_behind=telephones.NUMBER_OF_RECORD,
    not_before=telephones.RECORD,
    is_valid=passes_kimlik,
)
"""Number of a citizen of Turkey."""
NAMED_KIMLIK = Pattern(
    kind="KIMLIK",
    expression=re.compile(rf"{NO_DIGIT_BEFORE}[1-9](?:[ .-]?\d){{10}}(?!\w|[.,/-]\d)"),
    context=re.compile(
        r"(?:\bT\.?\s?C\.?|\bkimlik|\bvatandaşlık)\w{0,6}(?:\s(?:kimlik|no|numara)\w{0,4}){0,2}[^\w\n]{0,4}$",
        re.IGNORECASE,
    ),
    is_valid=passes_kimlik,
)
"""The same behind its name, in groups too."""
MY_NUMBER = Pattern(
    kind="MY_NUMBER",
    expression=re.compile(r"(?<![\d-])\d{4}[ -]?\d{4}[ -]?\d{4}(?![\d-])"),
    context=re.compile("個人番号|マイナンバー"),
    is_valid=passes_my_number,
)

EVERYWHERE = (EMAIL, IP, IBAN, CARD)
OF_LANGUAGE = {"az": (FIN, VOEN), "ja": (MY_NUMBER,), "tr": (NAMED_KIMLIK, KIMLIK)}
"""Patterns that only texts in a language hold."""


def knows_telephones(code: str) -> bool:
    """Return whether the national form of telephones is known of a language's country."""
    return code in telephones.NATIONAL


def patterns_of(code: str) -> tuple[Pattern, ...]:
    """Return the patterns that are looked for in texts of a language."""
    national = (_national(code),) if knows_telephones(code) else ()
    return (*EVERYWHERE, *OF_LANGUAGE.get(code, ()), INTERNATIONAL_PHONE, LOCAL_PHONE, *national)


def _national(code: str) -> Pattern:
    return Pattern(
        kind="PHONE",
        # Letters of Japanese stand right beside a number.
        expression=re.compile(
            rf"(?<![\da-zA-Z./+-])(?:{telephones.NATIONAL[code]})(?![\da-zA-Z/-])"
            if code == "ja"
            else rf"{NO_DIGIT_BEFORE}(?:{telephones.NATIONAL[code]}){NO_DIGIT_AFTER}"
        ),
        not_behind=telephones.NUMBER_OF_RECORD,
        not_before=telephones.RECORD,
        is_valid=telephones.has_telephone_length if code == "ja" else bool,
    )


def replace_personal_data(text: str, patterns: tuple[Pattern, ...]) -> tuple[str, Counter[str]]:
    """Replace personal data in a normalized text by `<EMAIL>`, `<PHONE>` and so on; return how many of each kind there were.

    Applying it again changes nothing. Time is linear in the length.
    """
    counts: Counter[str] = Counter()
    hints = _hints(text, patterns)
    for pattern in patterns:
        if pattern.hint in hints:
            text = pattern.expression.sub(partial(_placed, pattern=pattern, counts=counts), text)
    return text, counts


def _hints(text: str, patterns: tuple[Pattern, ...]) -> set[re.Pattern[str]]:
    digits = RUN_OF_DIGITS.search(text)
    hints = {each.hint for each in patterns}
    present = {hint for hint in hints - OF_DIGITS if hint.search(text)}
    if digits:
        present |= {hint for hint in hints & OF_DIGITS if hint.search(text, digits.start())}
    return present


def _placed(match: re.Match[str], pattern: Pattern, counts: Counter[str]) -> str:
    before = match.string[max(0, match.start() - CONTEXT_CHARS) : match.start()]
    if pattern.context and not pattern.context.search(before.rpartition("\n")[2]):
        return match[0]
    behind, ahead = pattern.not_behind, pattern.not_before
    # Text beside a number may show that it is a number of another kind.
    if not pattern.is_valid(match[0]) or (behind and behind.search(before)):
        return match[0]
    if ahead and ahead.match(match.string, match.end()):
        return match[0]
    counts[pattern.kind] += 1
    return f"<{pattern.kind}>"
