"""Personal data becomes placeholders, and numbers that are none stay."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anadil.clean.filters.pii import (
    FOUR_NUMBERS,
    OF_DIGITS,
    SEVEN_DIGITS,
    _hints,
    patterns_of,
    replace_personal_data,
)
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import clean, documents, stats, write_jsonl

LAW = [
    f"Maddə {number}.{clause}.{point}.{item}. Hüquqi şəxs cərimə olunur."
    for number in range(166)
    for clause, point, item in ((0, 3, 1), (1, 12, 2), (24, 1, 1), (10, 8, 44))
]


def replaced(code: str, text: str) -> str:
    return replace_personal_data(text, patterns_of(code))[0]


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        ("az", "Mənə elvin.m+iş@mail.az ünvanına yazın.", "Mənə <EMAIL> ünvanına yazın."),
        ("ja", "jo@samaritans.orgへEメールを送信", "<EMAIL>へEメールを送信"),
        ("az", "Zəng edin: +994 50 123 45 67.", "Zəng edin: <PHONE>."),
        ("az", "Tel: (012) 498-12-34, 0501234567", "Tel: <PHONE>, <PHONE>"),
        ("ja", "電話は03-1234-5678、携帯は090-1234-5678です", "電話は<PHONE>、携帯は<PHONE>です"),
        ("ja", "+81-3-1234-5678", "<PHONE>"),
        ("ja", "マイナンバー：123456789018です", "マイナンバー：<MY_NUMBER>です"),
        ("az", "Serverin IP ünvanı 185.12.3.4 oldu", "Serverin IP ünvanı <IP> oldu"),
        ("az", "Hesab: AZ21 NABZ 0000 0000 1370 1000 1944", "Hesab: <IBAN>"),
        ("az", "Kart 4111 1111 1111 1111, 3782 822463 10005", "Kart <CARD>, <CARD>"),
        ("az", "FİN: 5ABC123, FİN kodu 7AB12CD", "FİN: <FIN>, FİN kodu <FIN>"),
        ("az", "VÖEN: 1234567891", "VÖEN: <VOEN>"),
        ("az", "994551234567 və 994 (55) 123 45 67", "<PHONE> və <PHONE>"),
        (
            "fa",
            "با +۹۸ ۹۱۲ ۳۴۵ ۶۷۸۹ یا ۰۰۹۸۲۱۸۸۷۷۶۶۵۵ تماس بگیرید، ۱۲۳",
            "با <PHONE> یا <PHONE> تماس بگیرید، ۱۲۳",
        ),
        ("bn", "+৮৮০ ১৭১২-৩৪৫৬৭৮", "<PHONE>"),
        (
            "zh",
            "邮箱：ｎａｍｅ＠ｈｏｓｔ．ｃｏｍ，电话＋８６ １３８１２３４５６７８（１２）",
            "邮箱：<EMAIL>，电话<PHONE>（１２）",
        ),
        (
            "az",
            "n [at] ev.az, n(at)ev[dot]az, n at ev dot az, n @ ev.az; saat 5 (at) və it, @ 5 manat, look at this dot on it",
            "<EMAIL>, <EMAIL>, <EMAIL>, <EMAIL>; saat 5 (at) və it, @ 5 manat, look at this dot on it",
        ),
        (
            "az",
            "wa.me/994501234567, x.az/?phone=0501234567, x.az/0501234567",
            "wa.me/<PHONE>, x.az/?phone=<PHONE>, x.az/0501234567",
        ),
        ("tr", "T.C. kimlik no 10000000146", "T.C. kimlik no <KIMLIK>"),
        ("tr", "ayşe@çiçekçi.com.tr, a@örnek.xn--p1ai", "<EMAIL>, <EMAIL>"),
        (
            "ja",
            "携帯08012345678、0120-444-113、0120444113、電話は0312345678です。国外から+81-3-1234-5678へ",
            "携帯<PHONE>、<PHONE>、<PHONE>、電話は<PHONE>です。国外から<PHONE>へ",
        ),
        ("ru", "8 (495) 123-45-67, 8-912-345-67-89, тел. 123-45-67", "<PHONE>, <PHONE>, тел. <PHONE>"),
        ("kk", "8 701 123 45 67", "<PHONE>"),
        ("en", "(212) 555-0123, 212-555-0123", "<PHONE>, <PHONE>"),
        ("eu", "+34 943 12 34 56, (+34) 943123456, 0034943123456", "<PHONE>, <PHONE>, <PHONE>"),
        (
            "tr",
            "0850 333 0 777, 0 850 333 07 77, 444 2 555, 541 234 56 78",
            "<PHONE>, <PHONE>, <PHONE>, <PHONE>",
        ),
        ("tr", "TC: 100 000 001 46, iletişim no: 0216 555 01 32", "TC: <KIMLIK>, iletişim no: <PHONE>"),
        ("az", "055.234.56.78, 055/234/56/78, 055\u2013234\u201356\u201378", "<PHONE>, <PHONE>, <PHONE>"),
        ("az", "Fərdi identifikasiya nömrəsi: 7DEF234", "Fərdi identifikasiya nömrəsi: <FIN>"),
        ("ru", "т. 234-56-78, моб.: 912\u2013345\u201367\u201389", "т. <PHONE>, моб.: <PHONE>"),
    ],
)
def test_personal_data_becomes_a_placeholder(code: str, text: str, expected: str) -> None:
    assert replaced(code, text) == expected
    assert replaced(code, expected) == expected


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("az", "http://127.0.0.1:8000, IP 192.168.1.1"),
        ("az", "Versiya 10.2.3.4 çıxdı, 256.1.1.1 isə ünvan deyil"),
        ("az", "Kart 4111 1111 1111 1112; 0000 0000 0000 0000"),
        ("az", "2 300 000 nəfər, 1918-1920-ci illər, 12.05.2026"),
        ("ja", "2020-2021-2022年、12-34-5678番地、マイナンバー：123456789012"),
        ("tr", "0501234567"),
        ("az", "№ 0501234567 saylı qərar, 0501234567 nömrəli sərəncam, № 994551234567"),
        ("az", "artım +20 000 000 manat, telefon 100 000 ədəd, telefon 2024-cü ildə"),
        ("eu", "2 943 123 456 euro, 1918-1920, 943123456"),
        ("az", "№-si 0552345678 olan sərəncam, 0552345678 №-li qərar, 0552345678 sayda, 0552345678 manat"),
        ("tr", "dosya no: 02161234567, fatura numarası: 0532 123 45 67, 05321234567 TL"),
        ("tr", "10000000146 liralık, 10000000146 adet, karar no: 10000000146"),
        ("ja", "平成06-2345-6789号、第06-2345-6789号、注文番号：06-2345-6789"),
        (
            "en",
            "phone 1979-2023, phone 2024-05-12, $312.555.0145, 312.555.0145 USD, invoice no. 312-555-0145",
        ),
        ("ru", "приказ № 8 912 345 67 89, договор номер 8 912 345-67-89, 8 912 345 67 89 рублей"),
    ],
)
def test_other_numbers_stay(code: str, text: str) -> None:
    assert replaced(code, text) == text


@pytest.mark.parametrize(("code", "expected"), [("az", True), ("eu", False)])
def test_a_language_whose_telephones_have_no_known_form_is_said(
    tmp_path: Path, code: str, expected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    modes = {} if expected else {"language": "report"}

    corpus = clean(
        tmp_path, write_jsonl(tmp_path / "a.jsonl", texts(9)), language=code, pii=True, modes=modes
    )

    assert stats(corpus)["national_telephones"] == expected
    assert ("national forms of telephones are not looked for" in caplog.text) != expected


def test_numbers_of_articles_of_law_are_no_addresses() -> None:
    text = "\n".join(LAW)

    assert len(LAW) == 664
    assert replaced("az", text) == text


@given(st.text("0123456789٣. ()-\u00a0a", max_size=24))
@example("1.1.1.1")
@example("٣٣٣ ٣٣٣٣")
def test_no_number_is_overlooked_by_the_first_search(text: str) -> None:
    numbers = {hint for hint in (FOUR_NUMBERS, SEVEN_DIGITS) if hint.search(text)}

    assert _hints(text, patterns_of("az")) & OF_DIGITS == numbers


def test_addresses_and_sources_hold_no_personal_data(tmp_path: Path) -> None:
    urls = ["https://a:b@x.az/?m=q%40x.az&tel=%2B994501234567", "https://x.az/2024/1234567890?a=%40"]
    rows = [
        {"text": text, "url": url, "source": "ad@ev.az"} for text, url in zip(texts(2), urls, strict=True)
    ]
    raw = tmp_path / "a.jsonl"
    raw.write_text("".join(map("{}\n".format, map(json.dumps, rows))), encoding="utf-8")

    corpus = clean(tmp_path, raw, pii=True)

    assert {each.url for each in documents(corpus)} == {"https://x.az/?m=<EMAIL>&tel=<PHONE>", urls[1]}
    assert {each.source for each in documents(corpus)} == {"a.jsonl:1 <EMAIL>", "a.jsonl:2 <EMAIL>"}
    assert stats(corpus)["personal_data"] == {"EMAIL": 3, "PHONE": 1}


def test_each_kind_is_counted() -> None:
    _, counts = replace_personal_data("a@b.az, c@d.az, 0501234567", patterns_of("az"))

    assert counts == {"EMAIL": 2, "PHONE": 1}


@pytest.mark.parametrize("unit", ["a.", "1 ", "1.", "@", "AZ21 ", "0(", "4111-", "a@b.", "FİN "])
def test_time_is_linear_in_the_length(unit: str) -> None:
    def seconds(length: int) -> float:
        text = unit * (length // len(unit))
        started = time.process_time()
        replaced("az", text)
        replaced("ja", text)
        return time.process_time() - started

    # A quadratic pattern would take 100 times as long.
    assert seconds(50_000) < 40 * max(seconds(5_000), 0.005)
