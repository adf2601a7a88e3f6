"""Personal data to typed placeholders: each pattern has a validator or needs words around it.

A corpus of laws is full of numbers that look like addresses of computers or telephones, so a run of digits alone
counts for nothing: it needs a check sum, a prefix that only telephones have, or the word that says what it is.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One way that personal data is written."""

    kind: str
    """Name of the placeholder."""
    hint: re.Pattern[str]
    """Cheap; a text in which it is not found holds none."""
    expression: re.Pattern[str]
    context: re.Pattern[str] | None = None
    """What must stand within `CONTEXT_CHARS` before it, in the same line."""
    is_valid: Callable[[str], bool] = bool
    """Of what the expression found."""


def passes_luhn(value: str) -> bool:
    """Whether the check digit of a card number is right. Source: ISO/IEC 7812-1, annex B."""
    digits = [int(each) for each in value if each.isdecimal()]
    doubled = sum(sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return len(set(digits)) > 1 and (sum(digits[-1::-2]) + doubled) % 10 == 0


def passes_mod_97(value: str) -> bool:
    """Whether the check digits of an IBAN are right. Source: ISO 13616-1."""
    plain = value.replace(" ", "")
    return int("".join(str(int(each, 36)) for each in plain[4:] + plain[:4])) % 97 == 1


def passes_my_number(value: str) -> bool:
    """Whether the check digit of a Japanese individual number is right.

    Source: order 85 of 2014 of the Ministry of Internal Affairs and Communications, article 5.
    """
    *digits, check = (int(each) for each in value if each.isdecimal())
    weights = (6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2)
    rest = sum(digit * weight for digit, weight in zip(digits, weights, strict=True)) % 11
    return check == (0 if rest <= 1 else 11 - rest)


def has_telephone_length(value: str) -> bool:
    """Whether a Japanese number has as many digits as one has: 10, or 11 of mobile and IP telephones."""
    digits = re.sub(r"\D", "", value)
    return len(digits) == (11 if digits[:3] in ("020", "050", "070", "080", "090") else 10)


def is_public(value: str) -> bool:
    """Whether an address of a computer is one of the open Internet: `127.0.0.1` is nobody's."""
    return IPv4Address(value).is_global


CONTEXT_CHARS = 40
AT_SIGN = re.compile("@")
FOUR_NUMBERS = re.compile(r"\d\.\d{1,3}\.\d{1,3}\.\d")
FIN_WORD = re.compile("F[İI]N")
SEVEN_DIGITS = re.compile(r"\d(?:[ .()\u00a0-]{0,3}\d){6}")
OF_DIGITS = frozenset((FOUR_NUMBERS, SEVEN_DIGITS))
RUN_OF_DIGITS = re.compile(r"\d[\d .()\u00a0-]{6}")
"""With what both hints of numbers begin, or an earlier place: one search spares most texts both."""
NO_DIGIT_BEFORE, NO_DIGIT_AFTER = r"(?<![\w.,/+-])", r"(?![\w/-]|[.,]\d)"
OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
SPACE = r"[ \u00a0-]?"

EMAIL = Pattern(
    kind="EMAIL",
    hint=AT_SIGN,
    expression=re.compile(
        r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[a-zA-Z0-9-]{1,63}\.){1,8}[a-zA-Z]{2,24}(?![a-zA-Z0-9-])"
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
    is_valid=is_public,
)
IBAN = Pattern(
    kind="IBAN",
    hint=SEVEN_DIGITS,
    expression=re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?!\w)"),
    is_valid=passes_mod_97,
)
CARD = Pattern(
    kind="CARD",
    hint=SEVEN_DIGITS,
    expression=re.compile(
        rf"{NO_DIGIT_BEFORE}(?:[456]\d{{3}}|2[2-7]\d\d)(?:[ -]?\d{{4}}){{3}}{NO_DIGIT_AFTER}"
        rf"|{NO_DIGIT_BEFORE}3[47]\d\d[ -]?\d{{6}}[ -]?\d{{5}}{NO_DIGIT_AFTER}"
    ),
    is_valid=passes_luhn,
)
"""Prefixes of Visa, Mastercard, UnionPay, Maestro of 16 digits, and American Express."""
AZ_AREAS = "(?:10|12|18|2[0-6]|36|40|44|50|51|55|60|70|77|99)"
"""Codes of Azerbaijan's operators and towns. Source: the national numbering plan as ITU-T publishes it."""
AZ_REST = rf"{SPACE}\d{{3}}{SPACE}\d{{2}}{SPACE}\d{{2}}"
AZ_PHONE = Pattern(
    kind="PHONE",
    hint=SEVEN_DIGITS,
    expression=re.compile(
        rf"(?<![\w.,/-])(?:(?:\+|00){SPACE}994{SPACE}\(?0?{AZ_AREAS}\)?|\(0{AZ_AREAS}\)|0{AZ_AREAS}){AZ_REST}{NO_DIGIT_AFTER}"
    ),
)
FIN = Pattern(
    kind="FIN",
    hint=FIN_WORD,
    expression=re.compile(r"(?<!\w)(?=[A-Z]*\d)[0-9A-HJ-NP-Z]{7}(?!\w)"),
    context=re.compile(r"\bF[İI]N\b[^\w\n]{0,3}(?:kod\w*|nömrə\w*)?[^\w\n]{0,5}$"),
)
"""Personal number of Azerbaijan's identity card: seven digits and letters without I and O."""
VOEN = Pattern(
    kind="VOEN",
    hint=SEVEN_DIGITS,
    expression=re.compile(r"(?<!\w)\d{10}(?!\w)"),
    context=re.compile(r"\bV[ÖO]EN\w*[^\w\n]{0,8}$", re.IGNORECASE),
)
"""Number of a taxpayer of Azerbaijan: ten digits; a person in business has one too."""
JA_PHONE = Pattern(
    kind="PHONE",
    hint=SEVEN_DIGITS,
    expression=re.compile(
        r"(?<![\d./+-])(?:\+81[ -]?\(?0?\)?[1-9]\d{0,3}|0\d{1,4}|\(0\d{1,4}\))[ -]?\(?\d{1,4}\)?[ -]\d{4}(?![\d/-])"
    ),
    is_valid=lambda value: has_telephone_length(re.sub(r"^\+81[ -]?(?:\(0\))?0?", "0", value)),
)
MY_NUMBER = Pattern(
    kind="MY_NUMBER",
    hint=SEVEN_DIGITS,
    expression=re.compile(r"(?<![\d-])\d{4}[ -]?\d{4}[ -]?\d{4}(?![\d-])"),
    context=re.compile("個人番号|マイナンバー"),
    is_valid=passes_my_number,
)

EVERYWHERE = (EMAIL, IP, IBAN, CARD)
OF_LANGUAGE = {"az": (AZ_PHONE, FIN, VOEN), "ja": (MY_NUMBER, JA_PHONE)}
"""What only texts in a language hold."""


def patterns_of(code: str) -> tuple[Pattern, ...]:
    """What is looked for in texts of a language."""
    return EVERYWHERE + OF_LANGUAGE.get(code, ())


def replace_personal_data(text: str, patterns: tuple[Pattern, ...]) -> tuple[str, Counter[str]]:
    """The text with `<EMAIL>`, `<PHONE>` and so on, and how many of each kind there were.

    Applying it again changes nothing. Time is linear in the length.

    Args:
        text: Normalized.
        patterns: Of `patterns_of`.
    """
    counts: Counter[str] = Counter()
    hints = _hints(text, patterns)
    for pattern in patterns:
        if pattern.hint in hints:
            text = pattern.expression.sub(partial(_placed, pattern=pattern, counts=counts), text)
    return text, counts


def _hints(text: str, patterns: tuple[Pattern, ...]) -> set[re.Pattern[str]]:
    """Those that a text holds."""
    digits = RUN_OF_DIGITS.search(text)
    hints = {each.hint for each in patterns}
    found = {hint for hint in hints - OF_DIGITS if hint.search(text)}
    if digits:
        found |= {hint for hint in hints & OF_DIGITS if hint.search(text, digits.start())}
    return found


def _placed(match: re.Match[str], pattern: Pattern, counts: Counter[str]) -> str:
    if pattern.context:
        before = match.string[max(0, match.start() - CONTEXT_CHARS) : match.start()].rpartition("\n")[2]
        if not pattern.context.search(before):
            return match[0]
    if not pattern.is_valid(match[0]):
        return match[0]
    counts[pattern.kind] += 1
    return f"<{pattern.kind}>"
