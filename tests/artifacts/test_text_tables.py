"""Tables that people keep chats in: as spreadsheets and databases write them."""

from pathlib import Path

import pytest

from anadil.artifacts.chat_files import read_chats, rows_of
from anadil.artifacts.separated_file import QUOTE, Fault
from anadil.artifacts.text_files import separated_rows
from anadil.core.errors import DataError
from anadil.text.chats import DroppedChats
from anadil.text.letters import letters_of

ROWS = [("Nə vaxt?", "Saat altıda, səhər."), ("O nə dedi?", 'Dedi: "Gəl"'), ("Ünvan?", "Bakı;\nNizami 1")]


def quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"'


def text_of(separator: str, end: str = "\r\n", before: str = "") -> str:
    lines = [("Question", "answer"), *ROWS]
    return before + "".join(separator.join(map(quoted, row)) + end for row in lines).replace(
        "Question", "question"
    )


def chats_of(path: Path) -> list[tuple[str, ...]]:
    return [tuple(each.content for each in chat.messages) for chat in read_chats([str(path)], DroppedChats())]


@pytest.mark.parametrize(
    ("name", "separator", "encoding", "before"),
    [
        ("a.csv", ",", "utf-8", ""),
        ("a.csv", ";", "utf-8-sig", ""),
        ("a.csv", "\t", "utf-16", ""),
        ("a.csv", ";", "utf-8", "sep=;\r\n"),
        ("a.tsv", "\t", "utf-8", ""),
        ("a.TSV", "|", "utf-8", ""),
    ],
)
def test_tables_are_read_as_spreadsheets_write_them(
    tmp_path: Path, name: str, separator: str, encoding: str, before: str
) -> None:
    (tmp_path / name).write_bytes(text_of(separator, before=before).encode(encoding))

    assert chats_of(tmp_path / name) == ROWS


def test_rows_have_the_number_of_their_first_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        'question,answer,,\n\n"bir\niki",üç\n,,,\ndörd,beş,,\naltı\n', encoding="utf-8"
    )

    rows = list(separated_rows(tmp_path / "a.csv", "a.csv"))

    assert rows[:2] == [
        (3, {"question": "bir\niki", "answer": "üç"}),
        (6, {"question": "dörd", "answer": "beş"}),
    ]
    assert rows[2] == (7, Fault(f"1 cells, and 2 columns are named; {QUOTE}"))


@pytest.mark.parametrize(
    ("lines", "bad", "why"),
    [
        ("Bir,iki\nA, b, üç\nDörd,beş\n", 3, "3 cells, and 2 columns are named; put a text"),
        ('Bir,iki\nA,"üç\nDörd,beş\n', 3, "cannot be cut into cells (unexpected end"),
        ('Bir,iki\nA,"b,c" dedi\nDörd,beş\n', 3, "cannot be cut into cells"),
    ],
)
def test_a_row_that_cannot_be_cut_is_left_out_with_its_line_and_no_other_row(
    tmp_path: Path, lines: str, bad: int, why: str
) -> None:
    (tmp_path / "a.csv").write_text(f"sual,cavab\n{lines}", encoding="utf-8")
    dropped = DroppedChats()

    chats = read_chats([str(tmp_path / "a.csv")], dropped, columns={"question": "sual", "answer": "cavab"})

    assert [chat.messages[0].content for chat in chats] == ["Bir", "Dörd"]
    assert dropped.counts == {"bad_row": 1}
    assert dropped.places["bad_row"][0].startswith(f"a.csv:{bad} ({why!r:.20}")
    with pytest.raises(DataError, match=rf"a\.csv:{bad}: .* write a quote in it twice"):
        list(rows_of(tmp_path / "a.csv", "a.csv"))


def test_a_table_in_a_code_page_is_read_by_the_letters_of_its_language(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [("Müştəri xidməti nə vaxt işləyir?", "Hər gün, səhər doqquzdan axşam altıya qədər.")] * 5
    text = "question;answer\r\n" + "".join(f"{asked};{answer}\r\n" for asked, answer in rows)
    (tmp_path / "a.csv").write_bytes(text.encode("cp1254", "replace"))

    (first, *_) = read_chats([str(tmp_path / "a.csv")], DroppedChats(), letters=letters_of("az"))

    assert first.messages[0].content == "Müşt?ri xidm?ti n? vaxt işl?yir?"
    assert "a.csv: not UTF-8; read as cp1254" in caplog.text
    assert "times a `?` stands within a word: cp1254 lacks letters of the text" in caplog.text
    with pytest.raises(DataError, match=r"a\.csv: is not UTF-8, nor in a code page of the language; save it"):
        list(read_chats([str(tmp_path / "a.csv")], DroppedChats()))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"question,answer,answer\nBir,iki,uc\n")

    with pytest.raises(DataError, match=r"a\.csv:1: two columns are called 'answer'"):
        list(read_chats([str(tmp_path / "a.csv")], DroppedChats()))
