"""Sentences and lines that many documents of a host share."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from anadil.clean.kernels.sentence_kernel import sentences_of
from anadil.clean.shards import shards
from anadil.text.language import load_language
from tests.kit.clean_stage import clean, documents, rows, stats
from tests.kit.texts import AZERBAIJANI

FOOTER = "Saytdakı materiallardan istifadə zamanı istinad vacibdir. Bizi Telegram kanalımızdan izləyin, xəbərləri oxuyun."
NOTICE = "Bu yazı müəllifin şəxsi fikridir və redaksiyanın mövqeyini əks etdirmir"


def bodies(number: int) -> list[str]:
    draw, words = random.Random(1), AZERBAIJANI.split()
    return [" ".join(draw.choices(words, k=80)).strip(".,") + "." for _ in range(number)]


def site(path: Path, texts: Sequence[str], host: str = "xeber.example") -> Path:
    items = [
        {"text": text, "url": f"https://{host}/{number}" if host else ""} for number, text in enumerate(texts)
    ]
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    return path


def made(folder: Path, *files: Path, **settings: Any) -> tuple[list[str], dict[str, Any]]:
    corpus = clean(folder, *files, rules="none", **settings)
    return sorted(document.text for document in documents(corpus)), stats(corpus)["shared_sentences"]


@pytest.mark.parametrize("host", ["xeber.example", ""])
@pytest.mark.parametrize(
    "text", ["{body}\n{footer}", "{body} {footer}", "{notice}\n\n{body}", "{head}. {footer} {tail}"]
)
def test_what_most_documents_of_a_host_or_file_share_is_taken_out(
    tmp_path: Path, text: str, host: str
) -> None:
    plain = bodies(30)
    parts = [body.rstrip(".").partition(". ") for body in plain]
    texts = [
        text.format(body=body, footer=FOOTER, notice=NOTICE, head=head, tail=f"{tail}.")
        for body, (head, _, tail) in zip(plain, parts, strict=True)
    ]
    kept, shared = made(tmp_path, site(tmp_path / "a.jsonl", texts, host))
    assert kept == sorted(plain)
    assert shared["documents"] == 30
    assert shared["examples"][0]["documents"] == 30
    assert shared["examples"][0]["host"] == (host or "a.jsonl")


@pytest.mark.parametrize(
    ("number", "settings"),
    [(9, {}), (12, {"max_shared": 0.5}), (30, {"max_shared": 1}), (30, {"as_is": True})],
)
def test_what_few_share_or_what_is_kept_on_demand_stays(
    tmp_path: Path, number: int, settings: dict[str, Any]
) -> None:
    texts = [f"{body} {FOOTER}" if place < number else body for place, body in enumerate(bodies(30))]
    kept, shared = made(tmp_path, site(tmp_path / "a.jsonl", texts), **settings)
    assert kept == sorted(texts)
    assert shared == {"documents": 0, "sentences": 0, "examples": []}


def test_personal_data_of_what_goes_is_not_counted(tmp_path: Path) -> None:
    texts = [f"{body} Fikrinizi redaksiya@xeber.example ünvanına yazıb göndərin." for body in bodies(30)]
    texts[3] = f"Mənə ali@xeber.example ünvanından yazdılar ki, bu belə deyil. {texts[3]}"
    corpus = clean(tmp_path, site(tmp_path / "a.jsonl", texts), rules="none", pii=True)
    assert stats(corpus)["shared_sentences"]["sentences"] == 30
    assert stats(corpus)["personal_data"] == {"EMAIL": 1}


def test_copies_and_other_hosts_count_once(tmp_path: Path) -> None:
    body = bodies(31)
    copies = site(tmp_path / "copies.jsonl", [*(20 * [f"{body[30]} {FOOTER}"]), *body[:20]])
    others = [site(tmp_path / f"{n}.jsonl", [f"{body[20 + n]} {FOOTER}"], f"{n}.example") for n in range(10)]
    kept, shared = made(tmp_path, copies, *others)
    assert (len(kept), shared["documents"]) == (31, 0)


def test_the_rest_is_judged_again_and_shards_do_not_change_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{body}\n{FOOTER}" for body in bodies(30)] + [
        f"Qısa yazı {number}.\n{FOOTER}" for number in range(3)
    ]
    path = site(tmp_path / "a.jsonl", texts)
    settings: dict[str, Any] = {
        "rules": {"min_words": 10},
        "modes": dict.fromkeys(("words_soup", "stop_words"), "report"),
    }
    one = clean(tmp_path / "one", path, **settings)
    monkeypatch.setattr(shards, "MIN_SHARD_BYTES", 1_000)
    monkeypatch.setattr("anadil.clean.shards.shared_sentences.PART_SENTENCES", 16)
    many = clean(tmp_path / "many", path, shard_bytes=4_000, **settings)
    assert rows(many) == rows(one)
    assert {row["reason"] for row in rows(one)[30:]} == {"short"}
    for each in (one, many):
        assert stats(each)["shared_sentences"]["documents"] == 33
    assert [document.text for document in documents(one)] == [document.text for document in documents(many)]


@pytest.mark.parametrize(
    ("code", "text", "sentences"),
    [
        ("az", "Kənd məktəbi 1.5 km uzaqdadır, yol da pisdir. “Bura gəlin, mənim uşaqlarım!” dedi.\nSon.", 2),
        ("az", "Kənd məktəbi uzaqdadır, yolu da pisdir.\nKƏND MƏKTƏBİ UZAQDADIR; YOLU DA PİSDİR", 1),
        ("ja", "当サイトの記事は無断転載禁止です。詳しくは利用規約をご覧ください。はい。", 2),
    ],
)
def test_sentences_are_found_by_their_letters(code: str, text: str, sentences: int) -> None:
    found = sentences_of(["", text, text], load_language(code))
    assert set(found.texts.tolist()) == {1, 2}
    assert len(set(found.hashes.tolist())) == sentences
