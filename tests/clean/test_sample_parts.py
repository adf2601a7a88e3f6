"""Limits of a learnt language are those of text of another source than it was learnt of."""

import logging
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from anadil.cli.main import main
from anadil.core.errors import DataError
from anadil.language import identify_sample as identifying
from anadil.language import learn_language as learning
from anadil.language.identify_sample import LENGTHS, NO_LIMIT, identify_sample, noise_of_kind
from anadil.language.learn_language import LearntLanguage, learn_language, split_texts
from anadil.language.sample_parts import MAX_SHARE, SampleText, parts_of, read_texts
from anadil.text.language import load_language
from anadil.text.language_id import identify_language
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


@pytest.fixture
def labels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """N-grams, which take most of the time, say nothing of labels."""
    monkeypatch.setattr("anadil.language.identify_sample._profile", lambda *_: None)


@pytest.fixture
def likely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text is likely enough, so that no limit of likelihoods is measured."""
    monkeypatch.setattr("anadil.language.identify_sample._limits", lambda *_: (NO_LIMIT, 0.0))


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """No word is out of its order, so that no limit of associations and order is measured."""
    monkeypatch.setattr(
        "anadil.language.identify_sample._damage_limits", lambda *_: (NO_LIMIT,) * len(LENGTHS)
    )


def pack_of(texts: list[str]) -> LanguagePack:
    """Learn what identifies a language, two thirds of its text to learn of and the rest to measure on."""
    border = 2 * len(texts) // 3
    identification, _ = identify_sample("qaa", texts[:border], texts[border:], {}, None)
    return LanguagePack(code="qaa", name="qaa", script="Latn", identification=identification)


@pytest.mark.usefixtures("likely", "in_order")
def test_a_sibling_that_cld2_knows_is_told_apart_in_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = documents(200)
    confused = {text[:60] for text in texts[::10]}
    detected: dict[str, tuple[bool, str, int, bool, dict[str, int]]] = {}

    def detect(text: str) -> tuple[bool, str, int, bool, dict[str, int]]:
        return detected.get(text, (True, "pt" if text in confused else "gl", 90, False, {}))

    monkeypatch.setattr("anadil.text.language_id._detect", detect)
    pack = pack_of(texts)
    language = to_language(pack)
    before = to_language(
        pack.model_copy(
            update={"identification": pack.identification.model_copy(update={"long_lookalikes": ()})}
        )
    )
    long, short = "\n".join(texts[1:4])[:900], texts[1][:300]

    assert "pt" in pack.identification.lookalikes
    assert pack.identification.long_lookalikes == ("gl", "un")
    for is_reliable in (True, False):
        detected |= dict.fromkeys((long, short), (is_reliable, "pt", 60, False, {}))
        assert not identify_language(long, language).is_language
        assert identify_language(long, before).is_language  # a pack of an earlier release
        assert identify_language(short, language).is_language
    detected[long] = (False, "pt", 40, False, {})
    assert identify_language(long, language).is_language


@pytest.mark.usefixtures("likely", "in_order")
def test_a_siblings_text_that_own_text_is_sometimes_taken_for_is_told_by_its_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def detect(text: str) -> tuple[bool, str, int, bool, dict[str, int]]:
        return True, "ms" if text.count("ñ") > 0.005 * len(text) else "id", 90, False, {}

    monkeypatch.setattr("anadil.text.language_id._detect", detect)
    long = ["\n".join(documents(2, seed=seed))[:900] for seed in range(300)]

    def mixed(text: str) -> str:
        """Own text that is taken for the sibling's for its first part."""
        return text[:300].replace("n", "ñ") + text[300:]

    sample = [mixed(text) if number % 30 == 0 else text for number, text in enumerate(long[:240])]
    language = to_language(pack_of(sample))
    siblings = [text.replace("n", "ñ") for text in long[240:]]

    assert (language.usual_label, "ms" in language.long_lookalikes) == ("id", True)
    assert 0.3 < language.min_usual_pieces <= 0.5
    own = [identify_language(mixed(text), language).is_language for text in long[240:]]
    others = [identify_language(text, language).is_language for text in siblings]
    before = replace(language, usual_label="")
    assert sum(own) >= 57
    assert sum(others) == 0
    assert any(
        identify_language(text, before).is_language for text in siblings
    )  # a pack of an earlier release


@pytest.mark.usefixtures("labels_alone")
def test_labels_that_a_few_texts_get_are_not_expected_beside_text_without_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [each for seed in range(4) for each in documents(100, seed=seed) if len(each) >= 400]
    labels = iter(["no", "un", *["da"] * len(texts)])
    given = {text: next(labels) for text in texts}
    monkeypatch.setattr("anadil.language.identify_sample.main_label", given.__getitem__)
    monkeypatch.setattr("anadil.language.identify_sample.LONG_COVERED", 1 - 1.5 / len(texts))

    identification, _ = identify_sample("qaa", texts[:200], texts[200:], {}, None)

    assert identification.long_lookalikes == ("da", "un")


@pytest.mark.usefixtures("likely", "in_order")
def test_endings_count_in_a_script_with_capitals_only_and_allow_for_text_of_another_kind() -> None:
    texts = documents(120)

    without_case = {ord(letter): 0x5D0 + number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}
    hebrew = [f"{text.lower().translate(without_case)} GNU Linux PDF" for text in texts]

    cased, uncased, with_latin_names = (
        identify_sample("qaa", each[:80], each[80:], {}, None)[0].profile
        for each in (texts, [text.lower() for text in texts], hebrew)
    )

    assert cased
    assert uncased
    assert cased.endings
    assert [*cased.max_new_endings] == sorted(cased.max_new_endings, reverse=True)
    assert cased.max_new_endings[0] > 0.3 > cased.max_new_endings[-1] >= 0.25
    assert (uncased.endings, uncased.max_new_endings) == ("", ())
    assert with_latin_names
    assert (with_latin_names.endings, with_latin_names.max_new_endings) == ("", ())


@pytest.mark.usefixtures("likely", "in_order")
def test_where_endings_tell_nothing_their_limit_is_all_words() -> None:
    texts = documents(120)
    # Half of the text that is set aside ends all its words otherwise.
    other = [re.sub(r"(?<=\w)(?=\b)", "xq", text) for text in texts[100:]]

    identification, _ = identify_sample("qaa", texts[:80], [*texts[80:100], *other], {}, None)

    assert identification.profile
    assert max(identification.profile.max_new_endings) == 1


@pytest.mark.usefixtures("likely")
def test_where_few_texts_are_long_the_limits_of_shorter_ones_hold_for_them() -> None:
    aside = ["\n".join(documents(2, seed=seed))[:700] for seed in range(1, 41)]

    profile = identify_sample("qaa", documents(200), aside, {}, None)[0].profile

    assert profile
    for limits in (profile.min_associations, profile.min_word_order):
        assert NO_LIMIT < limits[3] == limits[4] == limits[5]


@pytest.mark.matrix
def test_short_texts_do_not_loosen_what_is_asked_of_long_ones() -> None:
    own = [letters for text in documents(200, seed=11) if len(letters := text[:330]) == 330]
    fit, short = documents(200), [text[:45] for text in documents(400, seed=12)]

    alone, beside = (identify_sample("qaa", fit, aside, {}, None)[0].profile for aside in (own, own + short))

    assert alone
    assert beside
    # Short texts of a part are joined.
    assert abs(alone.min_likelihoods[3] - beside.min_likelihoods[3]) < 0.3
    assert beside.min_likelihoods[3] > beside.min_likelihoods[0] + 0.3


@pytest.mark.usefixtures("labels_alone")
@pytest.mark.parametrize(
    ("code", "others", "told"),
    [
        ("qaa", 0, "; it does not know the language"),
        ("gl", 1, ""),
        ("gl", 20, r". Only 80.0% are gl, Galician: if the sample holds other languages, take them out"),
    ],
)
def test_a_sample_of_several_languages_is_told_of(
    code: str, others: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = documents(100)
    foreign = {*texts[:others]}
    monkeypatch.setattr(
        "anadil.language.identify_sample.cld2_label", lambda text: ("pt" if text in foreign else "gl", True)
    )

    _, report = identify_sample(code, texts[:70], texts[70:], {}, None)

    assert re.fullmatch(rf"CLD2 takes the sample for: gl [\d.]+%(, pt [\d.]+%)?{told}.*", report[0])


@pytest.mark.usefixtures("labels_alone")
@pytest.mark.parametrize(
    ("code", "taken_for", "others", "sibling"),
    [
        ("rn", {"rw": 80, "rn": 15, "un": 5}, {}, "rw"),  # Kirundi, which CLD2 takes for Kinyarwanda
        ("gag", {"tr": 60, "un": 40}, {}, "tr"),  # which it does not know
        ("qaa", {"tr": 20, "un": 80}, {}, ""),
        ("rn", {"rn": 70, "rw": 25, "un": 5}, {}, ""),
        ("rn", {"rw": 95, "rn": 5}, {"kinyarwanda.txt": documents(40, sibling=True)}, ""),
    ],
)
def test_a_sibling_that_cld2_takes_the_sample_for_is_a_state_of_the_pack(
    code: str,
    taken_for: dict[str, int],
    others: dict[str, list[str]],
    sibling: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = documents(100)
    labels = [label for label, count in taken_for.items() for _ in range(count)]
    given = dict(zip(texts, labels, strict=True))
    monkeypatch.setattr(
        "anadil.language.identify_sample.cld2_label", lambda text: (given.get(text, "un"), text in given)
    )

    identification, report = identify_sample(code, texts[:70], texts[70:], others, None)

    assert identification.sibling == sibling
    assert any("may pass for it" in line for line in report) == bool(sibling)


@pytest.mark.usefixtures("likely")
def test_a_check_that_follows_the_kind_of_text_decides_nothing_where_cld2_is_sure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = documents(120)
    language = to_language(pack_of(texts))
    assert language.profile is not None
    # As if all text were of another kind than the sample.
    strict = replace(language.profile, min_likelihoods=(0.0,) * len(language.profile.min_chars))
    known = replace(language, profile=strict, labels=frozenset({"rw"}))
    text = documents(1, seed=31)[0]
    shuffled = " ".join(sorted(text.split(), key=lambda word: word[::-1]))

    for is_reliable, label, is_language in ((True, "rw", True), (False, "rw", False), (True, "un", False)):
        detected = (is_reliable, label, 90, False, {label: 90})
        monkeypatch.setattr("anadil.text.language_id._detect", lambda _, found=detected: found)
        assert identify_language(text, known).is_language is is_language
    monkeypatch.setattr("anadil.text.language_id._detect", lambda _: (True, "rw", 90, False, {"rw": 90}))
    assert not identify_language(shuffled, known).is_language  # damage is told as ever
