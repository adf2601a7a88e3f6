"""Limits of a learnt language are those of text of another source than it was learnt of."""

import logging
import random
from dataclasses import replace
from pathlib import Path

import pytest

from anadil.cli.main import main
from anadil.core.errors import DataError
from anadil.language import identify_sample as identifying
from anadil.language import learn_language as learning
from anadil.language.identify_sample import LENGTHS, identify_sample, noise_of_kind
from anadil.language.learn_language import LearntLanguage, learn_language, split_texts
from anadil.language.sample_parts import MAX_SHARE, SampleText, parts_of, read_texts
from anadil.text.language import load_language
from anadil.text.language_pack import Identification, LanguagePack, to_language
from anadil.text.profile_checks import is_likely
from tests.kit.clean_stage import write_jsonl
from tests.kit.constructed import documents, write_documents_of


def of_another_source(seed: int) -> list[str]:
    """Own text every third word of which the sample lacks, in letters that it hardly has."""
    words, draw = random.Random(3), random.Random(seed)
    new = [
        "".join(words.choice("ptkbdgmnlrszfvjhwxqy") + words.choice("aeiouëö") for _ in range(3))
        for _ in range(300)
    ]
    return [
        " ".join(
            word if number % 3 else draw.choice(new) + draw.choice(("om", "ul", ""))
            for number, word in enumerate(text.split())
        )
        for text in documents(60, seed=seed)
    ]


def test_a_part_holds_whole_sources_and_one_that_is_too_large_is_cut_in_clusters() -> None:
    large, small = documents(60), documents(9, sibling=True, seed=1)
    tiny = documents(1, seed=2)
    sources = dict.fromkeys(large, "a") | dict.fromkeys(small, "b") | dict.fromkeys(tiny, "c")

    parts = parts_of(sorted([*large, *small, *tiny]), sources)

    assert sorted(text for part in parts for text in part) == sorted(sources)
    together = [{sources[text] for text in part} for part in parts]
    assert {"b", "c"} in together  # the smallest are joined, since a handful of texts sets no limit
    assert together.count({"a"}) == 4
    total = sum(map(len, sources))
    assert all(sum(map(len, part)) <= MAX_SHARE * total for part in parts)


def test_texts_of_one_source_are_parted_by_their_kind() -> None:
    kinds = dict.fromkeys(documents(40), "own") | dict.fromkeys(documents(40, sibling=True, seed=1), "other")

    parts = parts_of(sorted(kinds), {})

    assert len(parts) >= 4
    assert all(len({kinds[text] for text in part}) == 1 for part in parts[:-1])
    assert parts_of(["bir"], {}) == [["bir"]]


def test_where_cld2_is_sure_own_text_of_a_source_that_the_sample_lacks_is_kept() -> None:
    sources = dict.fromkeys(documents(160), "news") | dict.fromkeys(documents(80, seed=1), "blog")
    texts = sorted(sources)

    profile = identify_sample("qaa", texts[::2], texts[1::2], {}, None, sources)[0].profile

    assert profile
    language = to_language(
        LanguagePack(code="qaa", name="qaa", script="Latn", identification=Identification(profile=profile))
    )
    assert language.profile
    unseen, damaged = of_another_source(6), noise_of_kind("misread letters", documents(60, seed=7))
    assert sum(is_likely(text, language.profile, is_sure=True) for text in unseen) >= 55
    assert sum(is_likely(text, language.profile, is_sure=True) for text in damaged) <= 15
    # As packs of earlier releases count rare pairs: names and damage look alike.
    before = replace(language.profile, least_rarity=0.0)
    assert sum(is_likely(text, before, is_sure=True) for text in unseen) <= 5


def test_the_command_says_how_many_sources_set_its_limits_and_warns_of_a_single_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(learning, "MIN_BYTES", 10_000)
    # The slowest part, which sources do not touch.
    monkeypatch.setattr(identifying, "_limits", lambda *_: (identifying.NO_LIMIT, 0.0))
    monkeypatch.setattr(identifying, "_damage_limits", lambda *_: (identifying.NO_LIMIT,) * len(LENGTHS))
    texts = documents(80)
    one = [SampleText.of(text, "laws.jsonl") for text in texts]
    several = [SampleText.of(text, f"{number % 5}.example") for number, text in enumerate(texts)]

    with caplog.at_level(logging.WARNING):
        learnt = learn_language("qaa", several, {})
    assert not caplog.text
    assert any("limits are set on 5 parts of the sample (5 sources)" in line for line in learnt.report)

    with caplog.at_level(logging.WARNING):
        learnt = learn_language("qaa", one, {})
    assert (
        "all of the sample is of one source (laws.jsonl): text of other kinds may be dropped" in caplog.text
    )
    assert any("(clusters of like texts of one source)" in line for line in learnt.report)


def test_a_source_is_the_host_of_a_record_or_its_file(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["bir"])
    path.write_text(
        path.read_text("utf-8") + '{"text": "iki", "url": "https://News.example:80/a"}\n', "utf-8"
    )

    assert [text.source for text in read_texts([str(path)], "text")] == [str(path), "news.example"]


def test_unreadable_records_of_a_sample_are_said_with_their_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["bir"])
    path.write_bytes(path.read_bytes() + b'{"body": "iki"}\n')

    with caplog.at_level(logging.WARNING):
        assert list(read_texts([str(path)], "text")) == ["bir"]

    assert "1 of 2 records are unreadable (50.00%) and were skipped" in caplog.text
    assert "a.jsonl:2: no key 'text'" in caplog.text


@pytest.mark.parametrize(
    ("content", "why"), [(b'{"content": "a"}', "no key 'text' .* among 'content'"), (b"", "it is empty")]
)
def test_learning_says_why_a_file_holds_no_text(
    content: bytes, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    path = str(tmp_path / "a.jsonl")

    assert main(["language", "learn", "qaa", path, "--out", str(tmp_path / "qaa.yaml")]) == 3

    with pytest.raises(DataError, match=rf"a\.jsonl: holds no text that can be read; .*{why}"):
        list(read_texts([path], "text"))
    assert "holds no text that can be read" in capsys.readouterr().err


def test_bad_text_that_is_too_little_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MIN_BYTES", 1_000)

    with pytest.raises(DataError, match=r"--bad noise\.txt: 3 B of text is too little to learn from"):
        learn_language("qaa", documents(20), {"noise.txt": ["bir"]})


def test_a_sample_of_figures_makes_no_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MIN_BYTES", 1_000)
    figures = [" ".join(str(start + each * 7919) for each in range(60)) for start in range(40)]

    with pytest.raises(DataError, match="the sample holds no letter"):
        learn_language("qaa", figures, {})


def test_bad_files_of_one_name_in_two_directories_are_both_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(learning, "MIN_BYTES", 1_000)
    sample = write_documents_of(tmp_path / "sample.jsonl", documents(20))
    files = [tmp_path / place / "a.jsonl" for place in ("ru", "tr")]
    for file, texts in zip(files, (["bir"], documents(20, seed=1)), strict=True):
        file.parent.mkdir()
        write_documents_of(file, texts)

    main(
        [
            "language", "learn", "qaa", str(sample), "--bad", *map(str, files), "--out",
            str(tmp_path / "q.yaml"),
        ]
    )  # fmt: skip

    assert "--bad ru/a.jsonl: 3 B of text is too little" in capsys.readouterr().err


def test_an_id_that_no_pack_can_have_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["language", "learn", "a" * 65, "no.txt", "--out", str(tmp_path / "a.yaml")]) == 2

    assert "64 at most" in capsys.readouterr().err


def test_a_pack_that_a_siblings_text_passes_is_written_only_where_the_user_accepts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = LanguagePack(
        code="rn", name="Rundi", script="Latn", identification=Identification(cld2=("rn",), sibling="rw")
    )
    monkeypatch.setattr(learning, "learn_language", lambda *_: LearntLanguage(pack=pack))
    out = tmp_path / "rn.yaml"
    command = [
        "language",
        "learn",
        "rn",
        str(write_documents_of(tmp_path / "own.jsonl", documents(9))),
        "--out",
        str(out),
    ]

    assert main(command) == 3
    told = capsys.readouterr().err
    assert "takes the sample for Kinyarwanda (rw)" in told
    assert "--accept-sibling" in told
    assert not out.exists()

    assert main([*command, "--accept-sibling"]) == 0
    assert load_language(str(out)).sibling == "rw"


def test_pieces_of_a_document_are_fitted_on_or_set_aside_together() -> None:
    books = [
        "\n".join(f"book {book}, line {number} of all it says" for number in range(300)) for book in range(40)
    ]

    found = split_texts(books)

    sides = [{text.split(",")[0] for text in texts} for texts in (found.fit, found.aside)]
    assert len(found.fit) + len(found.aside) > 100
    assert sides[1]
    assert sides[0].isdisjoint(sides[1])
