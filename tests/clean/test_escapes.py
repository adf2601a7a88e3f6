r"""Line feeds, letters and tags that a program wrote out."""

from pathlib import Path

import pytest

from anadil.clean.extract.escapes import undo_escapes
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import clean, documents, stats, write_jsonl
from tests.kit.texts import ANOTHER, AZERBAIJANI

UNDONE = [
    (
        r"Birinci abzas bitdi.\nİkinci abzas başlandı.\n\nÜçüncü də var.",
        "Birinci abzas bitdi.\nİkinci abzas başlandı.\n\nÜçüncü də var.",
    ),
    (r"Başlıq\r\nƏvvəl yağış yağdı\r\nSonra günəş çıxdı", "Başlıq\nƏvvəl yağış yağdı\nSonra günəş çıxdı"),
    (r"Dedi: \"Salam\".\nSonra \"Yox\" dedi.\nBitdi.", 'Dedi: "Salam".\nSonra "Yox" dedi.\nBitdi.'),
    (r"Az\u0259rbaycan v\u0259 \u015f\u0259h\u0259r", "Azərbaycan və şəhər"),
    ("Birinci gün.<br>İkinci gün.<br/>Üçüncü gün.", "Birinci gün.\nİkinci gün.\nÜçüncü gün."),
    (
        '<p>Birinci <b>qalın</b> söz.</p><p class="x">İkinci abzas.</p>',
        "\nBirinci qalın söz.\n\nİkinci abzas.\n",
    ),
    ("G&uuml;n&ouml;rta vaxtı &quot;salam&quot; dedi, R&amp;D", 'Günörta vaxtı "salam" dedi, R&D'),
]
KEPT = [
    r"Yeni sətir üçün \n, tab üçün \t yazılır; Windows isə \r\n işlədir.",
    r'Belə yazın: print("Salam\nDünya\nYenə") və baxın.',
    "Proqram:\nprint(\"Salam\\nDünya\")\nprint('A\\nB')",
    r"Fayl C:\new\nodes və C:\temp\notes qovluğundadır.",
    "HTML-də <p> və </p> teqləri var, `<br>` isə sətri qırır; <b> qalın edir.",
    r"Sətirlər belə bitir: \n. Windows isə \r\n yazır, sonra \t gəlir.",
    'Kod: f("Bir.\\nİki. \\"Üç\\" və \\"dörd\\"")\nSonra.',
    "Modellər <|endoftext|> və </s> işarələrini, HTML isə <!-- şərh --> yazır. Başqa yerdə: <section> bölmədir.",
    "AT&T; a<b and c>d, x &lt; y",
]


@pytest.mark.parametrize(("raw", "expected"), UNDONE)
def test_what_a_program_wrote_out_is_undone(raw: str, expected: str) -> None:
    found = undo_escapes(raw)

    assert found.text.replace("\r\n", "\n") == expected
    assert (found.is_changed, found.is_doubtful) == (True, False)


@pytest.mark.parametrize("text", KEPT)
def test_a_text_on_programming_stays_as_it_is(text: str) -> None:
    assert undo_escapes(text) == (text, False, False)


def test_what_may_be_written_by_hand_beside_real_line_feeds_is_counted_only() -> None:
    text = "Birinci cümlə\\nİkinci cümlə.\nÜçüncü cümlə."

    assert undo_escapes(text) == (text, False, True)


PARAGRAPHS = ["Səhər açıldı.", "Hamı işə getdi.", "«Axşam» isə qayıtdılar.", "Gecə sakit keçdi!"]


@pytest.mark.parametrize(
    "sign",
    [
        r" \n ", r"\t", r"\\n", r"\r\n", "_x000D_", "_x000D_\n", "[br]", "/n", " /n ", "</s>", "<|endoftext|>",
        "\n<|im_end|>\n", "<!-- bölmə -->", " <br /> ", "</figure><figure>", "</section><section>", "&lt;br&gt;",
    ],
)  # fmt: skip
def test_paragraphs_are_parted_again_by_whatever_sign_a_program_wrote(sign: str) -> None:
    found = undo_escapes(sign.join(PARAGRAPHS))

    assert found.text.split() == " ".join(PARAGRAPHS).split()
    assert not any(". " in line.strip() for line in found.text.replace("\t", "\n").split("\n"))
    assert (found.is_changed, found.is_doubtful) == (True, False)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (r"Bir.\nİki.", "Bir.\nİki."),
        ("Bir.\nİki.\\nÜç.\\nDörd.", "Bir.\nİki.\nÜç.\nDörd."),
        ("&lt;p&gt;Bir.&lt;/p&gt;&lt;p&gt;İki.&lt;/p&gt;", "\nBir.\n\nİki.\n"),
        ("Dedi: &amp;quot;Bir&amp;quot;, sonra &amp;quot;iki&amp;quot;.", 'Dedi: "Bir", sonra "iki".'),
        (r"Dedi: \"Bir\", sonra \"iki\".", 'Dedi: "Bir", sonra "iki".'),
        ("Bakı &ndash; paytaxt, Gəncə &ndash; şəhər.", "Bakı – paytaxt, Gəncə – şəhər."),
        ("<article><section><p>Bir.</p></section><section><p>İki.</p></section></article>", "\n\n\nBir.\n\n\n\nİki.\n\n\n"),
    ],
)  # fmt: skip
def test_signs_between_sentences_are_certain_and_escapes_of_escapes_are_undone(
    raw: str, expected: str
) -> None:
    assert undo_escapes(raw) == (expected, True, False)


def test_the_stage_counts_what_was_undone_and_warns_of_what_was_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written = [ANOTHER.replace(". ", ".\\n"), "Bir söz\\nİki söz.\n" + AZERBAIJANI]
    raw = write_jsonl(tmp_path / "a.jsonl", [*texts(6), *written])

    corpus = clean(tmp_path, raw)

    found = stats(corpus)
    assert (found["unescaped"], found["escaped"]) == (1, 1)
    assert "1 document: line feeds, letters or tags stand there as a program writes them" in caplog.text
    assert ANOTHER.replace(". ", ".\n") in [document.text for document in documents(corpus)]
