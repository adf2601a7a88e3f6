"""What identifies a learnt language: which labels its text gets, and how likely its n-grams are."""

import re
from dataclasses import replace

import pytest

from anadil.language.identify_sample import LENGTHS, NO_LIMIT, identify_sample
from anadil.text.language_id import identify_language
from anadil.text.language_pack import LanguagePack, to_language
from tests.kit.constructed import documents


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


@pytest.mark.slow
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
