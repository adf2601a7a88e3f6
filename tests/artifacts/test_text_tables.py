"""Tables that people keep chats in: as spreadsheets and databases write them."""

import zipfile
from pathlib import Path

import pytest

from anadil.artifacts.chat_files import read_chats
from anadil.artifacts.text_tables import separated_rows
from anadil.core.errors import DataError
from anadil.text.chats import DroppedChats

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

    assert list(separated_rows(tmp_path / "a.csv", "a.csv", ".csv")) == [
        (3, {"question": "bir\niki", "answer": "üç"}),
        (6, {"question": "dörd", "answer": "beş"}),
        (7, {"question": "altı", "answer": None}),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"question,answer\nBir, iki, \xc3\xbc\xc3\xa7\n",
            r"a\.csv:2: 3 cells, and 2 columns are named; put a text",
        ),
        (b'question,answer\nBir,"iki\n', r"a\.csv:2: cannot be cut into cells"),
        (b'question,answer\nBir,"iki" dedi\n', r"a\.csv:2: cannot be cut into cells .*write a quote twice"),
        (
            "sual,cavab\nGöl,\u015fəhər\n".replace("ə", "e").encode("cp1254"),
            r"is not UTF-8 .*; Excel calls that",
        ),
        (b"question,answer,answer\nBir,iki,uc\n", r"a\.csv:1: two columns are called 'answer'"),
    ],
)
def test_a_table_that_cannot_be_cut_is_named_with_its_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "a.csv").write_bytes(content)

    with pytest.raises(DataError, match=message):
        list(read_chats([str(tmp_path / "a.csv")], DroppedChats()))


SPACE = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
LINKS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
SHEET = f"""<worksheet xmlns="{SPACE}"><sheetData>
<row r="1"><c r="A1" t="s"><v>0</v></c><c r="C1" t="inlineStr"><is><t>answer</t></is></c></row>
<row r="3"><c r="A3" t="s"><v>1</v></c><c r="B3"><v>7</v></c><c r="C3"><v>42</v></c></row>
<row r="4"><c r="A4" t="s"><v>2</v></c><c r="C4" t="str"><v>Bəli_x000A_xeyr</v></c></row>
</sheetData></worksheet>"""
STRINGS = f"""<sst xmlns="{SPACE}"><si><t>question</t></si><si><r><t>Neçə </t></r><r><t>dənə?</t></r></si>
<si><t>東京</t><rPh sb="0" eb="2"><t>トウキョウ</t></rPh></si></sst>"""
PARTS = {
    "xl/workbook.xml": f'<workbook xmlns="{SPACE}" xmlns:r="{LINKS}"><sheets><sheet name="Sual" r:id="rId7"/>'
    '<sheet name="Arxiv" r:id="rId1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": '<Relationships xmlns="x"><Relationship Id="rId1" Target="worksheets/sheet1.xml"/>'
    '<Relationship Id="rId7" Target="/xl/worksheets/sheet2.xml"/></Relationships>',
    "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{SPACE}"/>',
    "xl/worksheets/sheet2.xml": SHEET,
    "xl/sharedStrings.xml": STRINGS,
}


def test_the_first_sheet_of_a_workbook_is_read_and_others_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as book:
        for name, text in PARTS.items():
            book.writestr(name, text)

    rows = list(separated_rows(tmp_path / "a.xlsx", "a.xlsx", ".xlsx"))

    assert rows == [
        (3, {"question": "Neçə dənə?", "column 2": "7", "answer": "42"}),
        (4, {"question": "東京", "column 2": None, "answer": "Bəli\nxeyr"}),
    ]
    assert caplog.messages == ["a.xlsx: only its first sheet is read, not Arxiv"]


@pytest.mark.parametrize("content", [b"\xd0\xcf\x11\xe0 with a password", b"PK\x03\x04 torn"])
def test_what_is_no_workbook_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.xlsx").write_bytes(content)

    with pytest.raises(DataError, match=r"a\.xlsx: is not a workbook .* without a password, or as \.csv"):
        list(read_chats([str(tmp_path / "a.xlsx")], DroppedChats()))
