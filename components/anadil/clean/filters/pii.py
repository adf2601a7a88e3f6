"""Replace personal data by typed placeholders: each pattern has a validator or needs words around it.

A corpus of laws is full of numbers that look like addresses of computers or telephones, so a run of digits alone
counts for nothing: it needs a check sum, a prefix that only telephones have, or the word that says what it is.

A telephone number in national form is known by its first digits and its length, which follow from the country's plan;
those of countries that no language here belongs to are not looked for.
Source: ITU-T E.164 and its list of country codes; the national numbering plans as ITU-T publishes them.
"""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from urllib.parse import unquote

DASHES = r"\u2010-\u2014\u2212-"
"""Hyphens and dashes of Unicode, and the minus; to stand last in a class of characters."""
BLANKS = r" \u00a0\u2009\u202f\u3000"
SIGNS = rf"{BLANKS}.()/\uff08\uff09\u30fc{DASHES}"
"""All that stands between the digits of a number, in Japan the wide brackets and the long vowel too."""
SEPARATORS = rf"[{BLANKS}.(){DASHES}]{{0,2}}"
WORD = r"[^\W\u3040-\u30ff\u3400-\u9fff]"
"""A character of a word; in Japanese a number stands right beside one."""
BEFORE, AFTER = rf"(?<!{WORD})(?<![.,/+$\u20ac\u00a3\u00a5\u20bc\u20ba\u20bd-])", rf"(?!{WORD}|[.,-]\d|/\d)"
LENGTHS = {
    "1": "10", "7": "10", "20": "8,10", "27": "9", "30": "10", "31": "9", "32": "8,9", "33": "9", "34": "9",
    "36": "8,9", "39": "6,11", "40": "9", "41": "9", "44": "9,10", "45": "8", "46": "7,9", "47": "8", "48": "9",
    "49": "6,12", "51": "8,9", "52": "10", "53": "8", "54": "10,11", "55": "10,11", "56": "9", "57": "10", "58": "10",
    "60": "8,10", "61": "9", "62": "8,12", "63": "10", "64": "8,10", "65": "8", "66": "8,9", "81": "9,10", "82": "8,10",
    "84": "9,10", "86": "10,11", "90": "10", "91": "10", "92": "9,10", "93": "9", "94": "9", "95": "7,10", "98": "10",
    "351": "9", "352": "6,9", "353": "7,9", "354": "7", "355": "8,9", "356": "8", "357": "8", "358": "6,10", "359": "8,9",
    "370": "8", "371": "8", "372": "7,8", "373": "8", "374": "8", "375": "9", "380": "9", "381": "8,9", "382": "8",
    "385": "8,9", "386": "8", "387": "8", "389": "8", "420": "9", "421": "9", "855": "8,9", "856": "8,10", "880": "8,10",
    "961": "7,8", "962": "8,9", "963": "8,9", "964": "8,10", "966": "9", "971": "8,9", "972": "8,9", "976": "8",
    "977": "8,10", "992": "9", "993": "8", "994": "9", "995": "9", "996": "9", "998": "9",
}  # fmt: skip
"""Country code -> digits of a number behind it, at least and at most."""
OTHER_CODES = r"(?:2[1-9]\d|3[578]\d|42\d|50\d|59\d|6[7-9]\d|8[058]\d|9[67]\d)"
"""Country codes of three digits whose lengths are not listed."""
LOCAL = re.compile(
    rf"{BEFORE}\(?\d{{1,5}}\)?(?:(?:[{BLANKS}./{DASHES}]|\s[{DASHES}]\s)?\(?\d{{1,4}}\)?){{1,5}}{AFTER}"
)
_OF_NUMBER = (
    r"n[ro]|nº|n°|№|nömrə\w{0,6}|number|nummer|numara\w{0,4}|numer\w{0,3}|número|номер\w{0,3}|kom|dom|mob"
)
TELEPHONE_WORD = re.compile(
    r"(?:\b(?:t[eéè]l[eéè]?|t[eéè]l[eéè]f\w{0,10}|tél[ée]phon\w{0,2}|tfno|tlfn?|tfn|phone|mob|m[oó][bv]il\w{0,6}|cell\w{0,5}|celular"
    r"|cep|gsm|handy|fax|faks\w{0,4}|whats?app\w{0,4}|puh|puhelin|simu|đt|sđt|điện thoại|əlaqə|iletişim|irtibat|zəng (?:edin|et)"
    r"|call(?: us)?(?: at| on)?|dial|(?:hp|wa)(?=\s?[:.])|т(?=\.)|тел|телефон\w{0,4}|моб|сот|факс|тлф|утас|τηλ\w{0,6}|հեռ"
    r"|טל|טלפון|נייד|جوال|هاتف|تلفن|فون|موبائل|ტელ|ስልክ)"
    r"|टेलीफोन|फ़ोन|फोन|मोबाइल|दूरभाष|ফোন|মোবাইল|โทร|(?:電話|携帯|电话|手机|手機)(?:番号|号码|號碼)?は?|전화|휴대폰|핸드폰|\u260e|\U0001f4de)"
    rf"(?:['’-]\w{{1,4}})?(?:[.\s]{{1,2}}(?:{_OF_NUMBER})\b|[^\w\n]{{1,3}}\w{{1,12}}[.:)]{{1,2}})?"
    # Others before it in the same list.
    r"[^\w\n]{0,4}(?:\(?\d[\d ().\u00a0-]{5,20}(?:[,;/]| və| ve| и| or)\s{0,2}){0,3}[^\w\n]{0,2}$",
    re.IGNORECASE,
)
"""Text right before a number that is a telephone's, whatever its form."""
YEARS_OR_DATE = re.compile(
    r"(?:1[5-9]|20)\d\d\W{1,3}(?:1[5-9]|20)\d\d|\d{1,2}[./-]\d{1,2}[./-]\d{4}|\d{4}[./-]\d{1,2}[./-]\d{1,2}"
)
THOUSANDS = re.compile(r"\+?\d{1,3}(?:[ .\u00a0]\d{3})+")
MIN_LOCAL_DIGITS, MAX_DIGITS = 7, 15
_RECORDS = (
    "qərar|sərəncam|qanun|fərman|əmr|protokol|müqavilə|sifariş|faktura|qaimə|hesab|kart|lisenziya|arayış|qeydiyyat|reyestr"
    "|karar|kanun|fatura|dosya|esas|sipariş|sözleşme|ruhsat|abone|sicil|invoice|order|decision|decree|case|account|contract"
    "|patent|ticket|licen[cs]e|закон|указ|приказ|договор|сч[её]т|постановлени|распоряжени|дел|заказ|решени"
)
NUMBER_OF_RECORD = re.compile(
    r"(?:(?:№|\bn[ro]\b\.?|\bn\.?)(?:['’-]\w{1,4})?\s{0,2}[:.]?\s{0,2}(?:[\d/.-]{3,20}(?:[,;]| və| ve| и)\s){0,3}"
    rf"|\b(?:{_RECORDS})\w{{0,6}}\s(?:{_OF_NUMBER})[^\w\n]{{0,4}}"
    r"|[$€£¥₼₺₽]\s?|(?:明治|大正|昭和|平成|令和|第)\s?|番号[はが]?[:：\s]{0,2})$",
    re.IGNORECASE,
)
"""Before the number of a law, a decision or an invoice, and before an amount."""
RECORD = re.compile(
    r"['’-]?\s{0,2}(?:(?:say[ıi]?l[ıi]|sayda|nömrəli|nolu|numaral[ıi]|сайлы)\b|№"
    r"|-?(?:nci|ci|cı|cu|cü)\s+(?:qərar|maddə)|[$€£¥₼₺₽%]|[号円人個件台]"
    r"|(?:manat|lira|tl|azn|usd|eur|dol+ar|avro|euro|pound|yen|rub|rubl|руб|доллар|евро|тенге|тонн|человек|штук|экз|сом)\w{0,5}\b"
    r"|(?:ədəd|adet|tane|nəfər|kişi|people|person|copies|unit|ton|time|tonn|kq|kg|km|hektar|million|milyon|milyard|billion)\w{0,4}\b)",
    re.IGNORECASE,
)
"""Behind one."""
_B = rf"[{BLANKS}{DASHES}]"
_S = rf"[{BLANKS}./{DASHES}]"
_AZ_AREAS = "(?:10|12|18|2[0-6]|36|40|44|50|51|55|60|70|77|99)"
_AZ_REST = rf"{_S}?\d{{3}}{_S}?\d{{2}}{_S}?\d{{2}}"
_OF_RUSSIA = rf"8{_B}?\(?[3-9]\d\d\)?{_B}?\d{{3}}{_B}?\d\d{_B}?\d\d"
_JA = r"[ \u3000\u30fc\u2010-\u2015\u2212\uff0d-]"
NATIONAL = {
    "az": rf"(?:994{_B}?\(?{_AZ_AREAS}\)?|\(0{_AZ_AREAS}\)|0{_AZ_AREAS}){_AZ_REST}|8 ?\([3-9]\d\d\) ?\d{{3}}{_B}\d\d{_B}\d\d",
    "tr": rf"(?:(?:90{_B}?(?=\(?5)|0{_B}?)\(?(?:[2-5]\d\d|8[05]\d)\)?|\(0?(?:[2-5]\d\d|8[05]\d)\))(?:{_S}{{0,2}}\d){{7}}"
    rf"|444{_B}\d{_B}\d{{3}}|444{_B}\d\d{_B}\d\d|5[0-5]\d{_B}\d{{3}}{_B}\d\d{_B}\d\d",
    "ja": rf"(?:0\d{{1,4}}|[(（]0\d{{1,4}}[)）]){_JA}?[(（]?\d{{1,4}}(?:[)）]|{_JA})\d{{4}}|0[5789]0\d{{8}}"
    rf"|0(?:120|570|800){_JA}?\d{{3}}{_JA}?\d{{3,4}}",
    "en": rf"(?:1[{BLANKS}.{DASHES}])?(?:\([2-9]\d\d\) ?|[2-9]\d\d[.{DASHES}])[2-9]\d\d[.{DASHES}]\d{{4}}",
    **dict.fromkeys(("ru", "kk", "tt", "ba", "cv", "sah"), _OF_RUSSIA),
}
"""Language -> its country's own form; of a language that is not here none is looked for."""
SEVEN_DIGITS = re.compile(rf"\d(?:[{SIGNS}]{{0,3}}\d){{6}}")
CONTEXT_CHARS = 40
LAST_FIGURE = 0x20000
"""Code point behind the figures of all scripts. Source: Unicode 15, blocks."""
AT_SIGN = re.compile("@")
_AT = "at|ət|ät|et|a|@|kuyruklu a|arroba|собака|собачка|эт|кукац"
_DOT = r"dot|nöqtə|nokta|точка|punkt|punto|point|\."
_ENDS = "(?:com|org|net|info|edu|gov|biz|io|eu|az|tr|uz|kz|kg|ge|ru|ua|by|ir|pk|de|fr|uk|рф)"
SPELT_AT = re.compile(
    rf"[\[({{<«]\s?(?:{_AT})\s?[\])}}>»]| @|@ | (?:at|ət|собака) \S+ (?:{_DOT}) ", re.IGNORECASE
)
FOUR_NUMBERS = re.compile(r"\d\.\d{1,3}\.\d{1,3}\.\d")
FIN_WORD = re.compile(r"\b(?:F[İI]N|[Ff][iİIı]n\b)|identifikasiya", re.IGNORECASE)
OF_DIGITS = frozenset((FOUR_NUMBERS, SEVEN_DIGITS))
RUN_OF_DIGITS = re.compile(rf"\d[\d{SIGNS}]{{6}}")
"""With what both hints of numbers begin, or an earlier place: one search spares most texts both."""
ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*://)?(?:[^/?#@]*@)?([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
NO_DIGIT_BEFORE, NO_DIGIT_AFTER = r"(?<![\w.,/+$€£¥₼₺₽-])", r"(?![\w/-]|[.,]\d)"
OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
SUFFIX = r"(?:['’-]?\w{1,6})?"
"""Endings of a word of Azerbaijani, behind a hyphen or none."""
LABEL = r"a-zA-Z0-9-\u00b7-\u1fff\u2c00-\u2fef\u3005-\u3007\u3041-\ud7ff\uf900-\ufdff\ufe70-\ufefc"
"""Letters of all scripts, with the signs above and below them, which names of hosts may hold too."""
FOREIGN = LABEL.removeprefix("a-zA-Z0-9-")


def international() -> re.Pattern[str]:
    """Return the pattern of numbers with `+` or `00` and a country code, with a zero in brackets behind it or none."""
    digit = rf"(?:{SEPARATORS}\d)"
    plans = [f"{code}(?:{SEPARATORS}\\(0\\))?\\)?{digit}{{{length}}}" for code, length in LENGTHS.items()]
    plans.append(rf"{OTHER_CODES}\)?{digit}{{6,12}}")
    return re.compile(rf"(?:{BEFORE}|(?<=\())(?:\+|\(\+|00)[{BLANKS}]?\(?(?:{'|'.join(plans)}){AFTER}")


def is_local(value: str) -> bool:
    """Return whether a number behind a word has as many digits as a telephone's, and is not one in thousands."""
    num_digits = sum(map(str.isdecimal, value))
    is_amount = THOUSANDS.fullmatch(value) and (value.endswith("000") or not value[:3].isdecimal())
    is_other = is_amount or YEARS_OR_DATE.fullmatch(value)
    return MIN_LOCAL_DIGITS <= num_digits <= MAX_DIGITS and not is_other


def has_telephone_length(value: str) -> bool:
    """Return whether a Japanese number has 10 digits, or 11 of mobile and IP telephones."""
    digits = re.sub(r"\D", "", value)
    return len(digits) == (11 if digits[:3] in ("020", "050", "070", "080", "090") else 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One way that personal data is written."""

    kind: str
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


EMAIL = Pattern(
    kind="EMAIL",
    hint=AT_SIGN,
    expression=re.compile(
        # The last part is in one script: where no space is written, text may follow.
        rf"(?<![\w.+%{FOREIGN}-])[\w.+%{FOREIGN}-]{{1,64}}@(?:[{LABEL}]{{1,63}}\.){{1,8}}"
        rf"(?:[a-zA-Z]{{2,24}}(?![a-zA-Z0-9-])|xn--[a-zA-Z0-9-]{{2,59}}|[{FOREIGN}]{{2,24}}(?![{LABEL}]))"
    ),
)
SPELT_EMAIL = Pattern(
    kind="EMAIL",
    hint=SPELT_AT,
    expression=re.compile(
        r"(?<![\w.+%-])[\w.+%-]{1,64}"
        rf"(?:(?:\s?[\[({{<«]\s?(?:{_AT})\s?[\])}}>»]\s?|\s?@\s?)(?:[{LABEL}]{{1,63}}(?:\.|\s?[\[({{<«]\s?(?:{_DOT})\s?[\])}}>»]\s?| dot )){{1,8}}"
        rf"| (?:at|ət|собака) (?:[{LABEL}]{{1,63}} (?:{_DOT}) ){{1,8}}(?={_ENDS}\b))[^\W\d_]{{2,24}}(?![a-zA-Z0-9-])",
        re.IGNORECASE,
    ),
)
"""The same as people write it so that programs do not know it: `ad [at] ev.example`, `ad at ev dot example`."""
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
    # `+20 000 000` is a growth.
    kind="PHONE", expression=international(), not_before=RECORD,
    is_valid=lambda value: not (THOUSANDS.fullmatch(value) and value.endswith("000")),
)  # fmt: skip
LOCAL_PHONE = Pattern(
    kind="PHONE", expression=LOCAL, context=TELEPHONE_WORD, not_before=RECORD, is_valid=is_local
)
LINKED_PHONE = Pattern(
    kind="PHONE",
    expression=re.compile(rf"(?:\+|%2[bB])?\d{{{MIN_LOCAL_DIGITS},{MAX_DIGITS}}}(?!\w)"),
    context=re.compile(
        r"(?:\b(?:wa|t|viber|signal)\.me/(?:p/|#p/)?|[?&;](?:phone|tel|telephone|mobile|msisdn|gsm|number|whatsapp)=|\b(?:tel|sms|callto|whatsapp):(?://)?)$",
        re.IGNORECASE,
    ),
)
"""A number in an address: `wa.me/994501234567`."""
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
    not_behind=NUMBER_OF_RECORD,
    not_before=RECORD,
    is_valid=passes_kimlik,
)
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

EVERYWHERE = (EMAIL, SPELT_EMAIL, IP, IBAN, CARD, LINKED_PHONE)
OF_LANGUAGE = {"az": (FIN, VOEN), "ja": (MY_NUMBER,), "tr": (NAMED_KIMLIK, KIMLIK)}
"""Patterns that only texts in a language hold."""


def knows_telephones(code: str) -> bool:
    """Return whether the national form of telephones is known of a language's country."""
    return code in NATIONAL


def patterns_of(code: str) -> tuple[Pattern, ...]:
    """Return the patterns that are looked for in texts of a language."""
    national = (_national(code),) if knows_telephones(code) else ()
    return (*EVERYWHERE, *OF_LANGUAGE.get(code, ()), INTERNATIONAL_PHONE, LOCAL_PHONE, *national)


def _national(code: str) -> Pattern:
    return Pattern(
        kind="PHONE",
        # Letters of Japanese stand right beside a number.
        expression=re.compile(
            rf"(?<![\da-zA-Z./+-])(?:{NATIONAL[code]})(?![\da-zA-Z/-])"
            if code == "ja"
            else rf"{NO_DIGIT_BEFORE}(?:{NATIONAL[code]}){NO_DIGIT_AFTER}"
        ),
        not_behind=NUMBER_OF_RECORD,
        not_before=RECORD,
        is_valid=has_telephone_length if code == "ja" else bool,
    )


def replace_personal_data(text: str, patterns: tuple[Pattern, ...]) -> tuple[str, Counter[str]]:
    """Replace personal data in a normalized text by `<EMAIL>`, `<PHONE>` and so on; return how many of each kind there were.

    Applying it again changes nothing. Time is linear in the length.
    """
    counts: Counter[str] = Counter()
    if not text:
        return text, counts
    plain = text
    if not text.isascii():
        table, others = _ascii_of()
        plain = text.translate(table) if others.search(text) else text
    hints = _hints(plain, patterns)
    for pattern in patterns:
        if pattern.hint not in hints:
            continue
        spans = [match.span() for match in pattern.expression.finditer(plain) if _is_personal(match, pattern)]
        if spans:
            counts[pattern.kind] += len(spans)
            is_same = plain is text
            text = _placed(text, spans, f"<{pattern.kind}>")
            plain = text if is_same else _placed(plain, spans, f"<{pattern.kind}>")
    return text, counts


@functools.cache
def _ascii_of() -> tuple[dict[int, str], re.Pattern[str]]:
    """Figures of all scripts, and wide signs -> what patterns know them by, one for one; and a search for them."""
    figures = {
        code: str(unicodedata.decimal(chr(code)))
        for code in range(0x80, LAST_FIGURE)
        if chr(code).isdecimal()
    }
    table = {
        **figures,
        **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},
        0xFE62: "+",
        0xFE6B: "@",
    }
    return table, re.compile(f"[{''.join(map(chr, table))}]")


def replace_in_address(address: str, patterns: tuple[Pattern, ...]) -> tuple[str, Counter[str]]:
    """Replace personal data behind the host of an address, in which signs may be `%40`; a user before the host goes."""
    if not address:
        return address, Counter()
    match = ADDRESS.fullmatch(address)
    assert match is not None, "every part may be empty"
    scheme, host, rest = match.groups()
    replaced, counts = replace_personal_data(unquote(rest), patterns)
    return f"{scheme or ''}{host}{replaced if counts else rest}", counts


def _hints(text: str, patterns: tuple[Pattern, ...]) -> set[re.Pattern[str]]:
    digits = RUN_OF_DIGITS.search(text)
    hints = {each.hint for each in patterns}
    present = {hint for hint in hints - OF_DIGITS if hint.search(text)}
    if digits:
        present |= {hint for hint in hints & OF_DIGITS if hint.search(text, digits.start())}
    return present


def _is_personal(match: re.Match[str], pattern: Pattern) -> bool:
    before = match.string[max(0, match.start() - CONTEXT_CHARS) : match.start()]
    if pattern.context and not pattern.context.search(before.rpartition("\n")[2]):
        return False
    behind, ahead = pattern.not_behind, pattern.not_before
    # Text beside a number may show that it is a number of another kind.
    if not pattern.is_valid(match[0]) or (behind and behind.search(before)):
        return False
    return not (ahead and ahead.match(match.string, match.end()))


def _placed(text: str, spans: Sequence[tuple[int, int]], placeholder: str) -> str:
    ends = [0, *(end for _, end in spans)]
    starts = [*(start for start, _ in spans), len(text)]
    return placeholder.join(text[end:start] for end, start in zip(ends, starts, strict=True))
