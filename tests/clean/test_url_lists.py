"""Pages of listed hosts are left out."""

import gzip
import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
import zstandard

from anadil.artifacts import line_reader
from anadil.clean.filters import lists
from anadil.clean.filters.lists import Decontamination, UrlLists, read_items, read_url_lists, texts_of
from anadil.core.errors import DataError
from anadil.text.language import load_language
from tests.kit.child import peak_memory
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import clean, documents, stats, write_jsonl
from tests.kit.texts import ANOTHER, AZERBAIJANI, JAPANESE, TURKISH

LISTS = UrlLists(["casino.example", "news.example/bet", "co.uk.example"], ["good.casino.example"])


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://casino.example/", True),
        ("http://www.CASINO.example:8080/a?b=c#d", True),
        ("https://user:secret@play.casino.example./x", True),
        ("casino.example", True),
        ("https://good.casino.example/x", False),
        ("https://news.example/bet/today", True),
        ("https://news.example/better", False),
        ("", False),
        ("https://" + "a." * 500 + "casino.example/" + "b/" * 500, True),
        ("https://\ud800.example/", False),
    ],
)
def test_a_listed_host_or_path_is_blocked_with_all_below_it(url: str, expected: bool) -> None:
    assert LISTS.is_blocked(url) == expected


def test_categories_are_directories_of_domains_and_urls(tmp_path: Path) -> None:
    category = tmp_path / "gambling"
    category.mkdir()
    (category / "domains").write_text("casino.example\n# more\n\n", encoding="utf-8-sig")
    (category / "urls").write_bytes(b"news.example/bet/\nbad\xff.example\n")
    own = tmp_path / "own.txt"
    own.write_text("https://spam.example/\n", encoding="utf-8")

    lists = read_url_lists([category, own], allowed=["https://good.casino.example"])

    assert all(map(lists.is_blocked, ("casino.example", "spam.example", "http://news.example/bet/1")))
    assert not lists.is_blocked("http://good.casino.example")


def test_a_directory_without_lists_is_refused_with_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"clean.url_lists: .* neither `domains` nor `urls`.*gambling"):
        read_url_lists([tmp_path])


def test_a_category_is_read_as_ut1_hands_it_out(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "gambling.tar.gz", "w:gz") as archive:
        for name, content in (
            ("domains", b"casino.example\n"),
            ("urls", b"news.example/bet\n"),
            ("usage", b"x"),
        ):
            member = tarfile.TarInfo(f"gambling/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))

    lists = read_url_lists([tmp_path / "gambling.tar.gz"])

    assert lists.is_blocked("https://www.casino.example/1")
    assert lists.is_blocked("https://news.example/bet")
    assert not lists.is_blocked("https://x/")


def test_entries_that_are_no_hosts_are_said_and_too_many_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "list.txt"
    path.write_text("bad.example\ngood.example\ntwo words\n")

    read_url_lists([path])

    assert "list.txt: 1 entries are neither host nor address, such as 'two words'" in caplog.text
    path.write_text("host,category\nbad.example,ads\n")
    with pytest.raises(
        DataError, match=r"clean.url_lists: 2 of 2 entries of list.txt are neither a host nor"
    ):
        read_url_lists([path])


def test_records_without_an_address_are_said_where_a_list_blocks_some(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "list.txt").write_text("bad.example\n")
    rows = [{"text": text, "source_uri": f"http://bad.example/{n}"} for n, text in enumerate(texts(3))]
    rows += [{"text": text} for text in texts(9)[3:]]
    raw = tmp_path / "a.jsonl"
    raw.write_text("".join(json.dumps(row) + "\n" for row in rows))

    corpus = clean(tmp_path, raw, url_lists=[str(tmp_path / "list.txt")])

    assert stats(corpus)["dropped"]["blocked"] == 3
    assert "clean.url_lists: 6 of 9 records name no address" in caplog.text


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "holds no entry"),
        (b"# hosts\n\n! more\n", "holds no entry"),
        (gzip.compress(b""), "holds no entry"),
        (b"\xef\xbb\xbf\n", "holds no entry"),
        (b"\x1f\x9d\x90b\xc2\x84\n", ""),
        ("şans.example\n".encode("cp1254"), ""),
        (b"a=b\n{x}\n", ""),
    ],
)
def test_what_is_no_list_of_hosts_in_utf_8_is_refused_by_name(
    content: bytes, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "list"
    path.write_bytes(content)

    with pytest.raises(DataError, match=rf"clean.url_lists: .*list.*{why}"):
        read_url_lists([path])


def test_one_file_of_a_category_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / "domains").write_text("bad.example\n")
    (tmp_path / "urls").write_text("")

    assert read_url_lists([tmp_path]).is_blocked("http://bad.example")


@pytest.mark.parametrize(
    ("line", "blocked"),
    [
        ('"bad.example",', ["bad.example"]),
        ("address=/bad.example/0.0.0.0", ["bad.example"]),
        ("server=/bad.example/worse.example/", ["bad.example", "worse.example"]),
        ("0.0.0.0 bad.example worse.example # both", ["bad.example", "worse.example"]),
        ("127.0.0.1 localhost\n||ads.example^\n*.spam.example", ["ads.example", "spam.example"]),
        ("şans.example", ["şans.example", "xn--ans-rza.example"]),
        ("xn--80aodfsg.xn--p1ai", ["казино.рф", "КАЗИНО.рф", "xn--80aodfsg.xn--p1ai"]),
    ],
)
def test_entries_are_read_in_the_layouts_and_letters_of_hosts(
    line: str, blocked: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "list"
    path.write_text(line + "\n", encoding="utf-8")

    lists = read_url_lists([path])

    assert [lists.is_blocked(f"https://a.{host}/b") for host in blocked] == [True] * len(blocked)
    assert not lists.is_blocked("https://good.example/bad.example")


ROWS: list[dict[str, Any]] = [
    {"question": "Paytaxt hansıdır?", "answer": "Bakı"},
    {"messages": [{"role": "user", "content": "Salam"}]},
]
TEXTS = {1: ["Paytaxt hansıdır?", "Bakı"], 2: ["user", "Salam"]}


def jsonl(path: Path) -> None:
    path.write_text("\n\n".join(map(json.dumps, ROWS)), encoding="utf-8")


def packed(path: Path) -> None:
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode()))


def rows_as_table() -> pa.Table:
    return pa.table({key: [row.get(key) for row in ROWS] for key in ("question", "answer", "messages")})


def table(path: Path) -> None:
    pq.write_table(rows_as_table(), path, row_group_size=1)


def arrow(path: Path) -> None:
    made = rows_as_table()
    with pa.ipc.new_stream(str(path), made.schema) as stream:
        stream.write_table(made)


@pytest.mark.parametrize(
    ("name", "write", "second"),
    [
        ("qa.jsonl", jsonl, 3),  # places are lines, and one is blank
        ("qa.jsonl.gz", packed, 2),
        ("qa.json", lambda path: path.write_text(json.dumps(ROWS)), 2),
        ("qa.PARQUET", table, 2),
        ("qa.arrow", arrow, 2),
    ],
)
def test_every_text_of_every_layout_is_found_with_its_place(
    name: str, write: Callable[[Path], None], second: int, tmp_path: Path
) -> None:
    write(tmp_path / name)

    found = list(read_items([str(tmp_path / name)]))

    assert found == [(f"{name}:1", text) for text in TEXTS[1]] + [
        (f"{name}:{second}", text) for text in TEXTS[2]
    ]


@pytest.mark.parametrize(("name", "separator"), [("qa.csv", ","), ("qa.TSV", "\t")])
def test_each_field_of_a_table_is_a_text(name: str, separator: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(
        f'\ufeffsual{separator}cavab\n"Paytaxt\nhansıdır?"{separator}Bakı\n', encoding="utf-8"
    )

    assert list(read_items([str(tmp_path / name)])) == [
        (f"{name}:1", "sual"), (f"{name}:1", "cavab"), (f"{name}:2", "Paytaxt\nhansıdır?"), (f"{name}:2", "Bakı"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (("Bakı\nşəhər" * 50).encode() + b"\xff", "Bakı\nşəhər" * 50 + "\ufffd"),
        ("Paytaxt hansı şəhərdir?".encode("utf-16"), "Paytaxt hansı şəhərdir?"),
    ],
)
def test_a_text_file_is_one_text_that_is_decoded_as_inputs_are(
    content: bytes, text: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(content)

    assert list(read_items([str(tmp_path / "a.txt")])) == [("a.txt:1", text)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("qa.xml", b"a,b", r"qa\.xml: cannot be compared with; its name must end in one of \.jsonl"),
        ("qa.jsonl", b'{"a": "b"}\n{"a":', r"qa\.jsonl:2: not a JSON line \(Expecting value"),
        ("qa.jsonl", b"[" * 100_000, r"qa\.jsonl:1: not a JSON line \(nested too deep"),
        ("qa.parquet", b"PAR1", r"qa\.parquet: is a damaged table \("),
        ("qa.jsonl.gz", gzip.compress(b'{"a": "b"}\n' * 50)[:-9], r"qa\.jsonl\.gz: damaged \("),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place_and_the_remedy(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DataError, match=message + r"[\s\S]*set clean\.decontaminate to false"):
        list(read_items([str(tmp_path / name)]))


def test_a_table_whose_text_is_not_utf_8_is_told(tmp_path: Path) -> None:
    texts = pa.array([b"\xfe\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"a": texts}), tmp_path / "qa.parquet")

    with pytest.raises(DataError, match=r"qa\.parquet:1: 'utf-8' codec"):
        list(read_items([str(tmp_path / "qa.parquet")]))


def test_a_line_without_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_reader, "MAX_LINE_BYTES", 100)
    (tmp_path / "qa.jsonl").write_text(json.dumps({"a": "b"}) + "\n" + "x" * 200)

    with pytest.raises(DataError, match=r"qa\.jsonl:2: .*set clean\.decontaminate to false"):
        list(read_items([str(tmp_path / "qa.jsonl")]))


def test_text_of_task_files_is_left_out_and_tasks_without_files_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = texts(12)
    folder = tmp_path / "tasks"
    folder.mkdir()
    data = "task: own\ndataset_path: csv\ndataset_kwargs: {data_files: {test: own.csv}}\n"
    (folder / "own.yaml").write_text(data, encoding="utf-8")
    (folder / "own.csv").write_text(f'question\n"{own[3]}"\n', encoding="utf-8")
    (folder / "notes.xml").write_text(own[4], encoding="utf-8")
    choices = tmp_path / "choices.jsonl"
    choices.write_text(json.dumps({"question": own[5], "choices": ["a", "b"], "answer": 0}), encoding="utf-8")
    raw = write_jsonl(tmp_path / "a.jsonl", own)
    tasks = [str(folder), str(choices), "belebele_azj_Latn", "auto"]

    made = clean(tmp_path, raw, decontaminate=True, others={"evaluate": {"tasks": tasks}})

    assert stats(made)["dropped"] == {"contaminated": 2}
    assert {own[3], own[5]}.isdisjoint(document.text for document in documents(made))
    assert re.search(r"not compared with belebele_azj_Latn, auto, .*notes\.xml", caplog.text)


def test_texts_of_named_tasks_are_looked_for_in_the_file_that_fetch_wrote(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = texts(12)
    items = write_jsonl(tmp_path / "items.jsonl", [own[7]])
    raw = write_jsonl(tmp_path / "a.jsonl", own)
    others = {"evaluate": {"tasks": "auto", "task_items": [str(items)]}}

    made = clean(tmp_path, raw, decontaminate=True, others=others)

    assert stats(made)["dropped"] == {"contaminated": 1}
    assert own[7] not in [document.text for document in documents(made)]
    assert "not compared with" not in caplog.text


az, ja = load_language("az"), load_language("ja")
ITEM = "Göygöl milli parkının ərazisində neçə göl var və onlardan ən böyüyü hansıdır?"


@pytest.mark.parametrize(
    "text",
    [
        f"{AZERBAIJANI} {ITEM} {ANOTHER}",
        f"{AZERBAIJANI} {ITEM.upper()} {ANOTHER}",
        f"{AZERBAIJANI} «{ITEM.replace(' və', ', və')}» {ANOTHER}",
        f"{AZERBAIJANI} {' '.join(ITEM.split()[:8])} {ANOTHER}",
        f"{AZERBAIJANI} {ITEM.replace(' ', ' , ')} {ANOTHER}",
        f"{AZERBAIJANI} {ITEM.translate(str.maketrans('öüığəç', 'ouigec')).replace('hansidir', 'hansi')} {ANOTHER}",
        f"{AZERBAIJANI} {ITEM.replace('hansıdır', 'hansıydı').replace('milli', '')} {ANOTHER}",
    ],
)
def test_an_item_is_found_in_any_case_and_frame(text: str) -> None:
    assert Decontamination([("eval.jsonl:7", ITEM)], az).matches(text) == ["eval.jsonl:7"]


def test_a_long_item_is_found_wherever_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "PIECE_CHARS", 100)
    monkeypatch.setattr(lists, "MIN_MERGED", 10)
    item = f"{AZERBAIJANI} {ITEM} {ANOTHER}"
    words = item.split()

    found = Decontamination([("first", AZERBAIJANI), ("long", item), ("last", TURKISH)], az)

    for start in range(len(AZERBAIJANI.split()) - 7, len(words) - 8):
        assert found.matches(" ".join(words[start : start + 8]))[-1] == "long"
    assert found.matches(AZERBAIJANI) == ["first"]
    assert found.matches(TURKISH) == ["last"]


def test_items_that_repeat_themselves_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    line = json.dumps({"text": ITEM * 40_000}).encode() + b"\n"
    path.write_bytes(zstandard.compress(line * 10, 1))
    code = """
import sys
from anadil.clean.filters.lists import Decontamination
from anadil.clean.filters.lists import read_items
from anadil.text.language import load_language
found = Decontamination(read_items([sys.argv[1]]), load_language("az"))
print(len(found._hashes) < 1_000)
"""

    peak, printed = peak_memory(code, path)

    assert printed == "True"
    assert peak < 250


def test_other_text_is_clean() -> None:
    found = Decontamination([("a", ITEM), ("b", AZERBAIJANI)], az)

    assert found.matches(f"{ANOTHER} {TURKISH}") == []
    assert found.matches("") == []
    assert Decontamination([], az).matches(AZERBAIJANI) == []


def test_seven_words_of_an_item_are_chance() -> None:
    item = "bu il də o var ya yox nə"

    assert Decontamination([("a", item)], az).matches(f"{ANOTHER} {item}") == ["a"]
    assert Decontamination([("a", item)], az).matches(f"{ANOTHER} {item.rpartition(' ')[0]} {TURKISH}") == []


def test_an_item_of_a_few_words_is_not_looked_for() -> None:
    found = Decontamination([("short", "Bakı şəhəri"), ("long", ITEM)], az)

    assert found.matches(f"Bakı şəhəri. {ANOTHER}") == []


def test_japanese_is_compared_by_characters() -> None:
    found = Decontamination([("a", JAPANESE[:45])], ja)

    assert found.matches("前置き。" + JAPANESE) == ["a"]
    assert found.matches("前置き。" + JAPANESE[:20] + "別の文です。" + JAPANESE[60:]) == []


def test_texts_are_taken_from_any_layout() -> None:
    row = {"messages": [{"role": "user", "content": "a"}], "choices": ["b", "c"], "n": 3, "x": None}

    assert list(texts_of(row)) == ["user", "a", "b", "c"]


@pytest.mark.parametrize("text", ["[1] Bakı haqqında qeyd", "{söz", "[" * 100_000])
def test_text_that_begins_as_a_list_and_is_none_is_text(text: str) -> None:
    assert list(texts_of({"question": text})) == [text]


def test_short_questions_are_looked_for_with_their_answers(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    rows = [
        {"prompt": "Azərbaycanın paytaxtı haradır?", "response": "Bakı şəhəridir."},
        {
            "messages": [
                {"role": "user", "content": "Necəsən bu gün?"},
                {"role": "assistant", "content": "Yaxşı."},
            ]
        },
        {"question": "Nə vaxt gəldi?", "choices": ["Dünən", "Bu gün"], "answer": 1},
        {"prompt": "Salam!", "response": "Salam!"},
    ]
    chats = tmp_path / "chats.jsonl"
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    items = Decontamination(read_items([str(chats)]), load_language("az"))
    items.save(tmp_path)
    found = Decontamination.load(tmp_path, load_language("az"))

    assert (items.num_items, items.num_short) == (4, 1)
    assert found.matches("Sual: AZƏRBAYCANIN paytaxtı haradır - Bakı şəhəridir!") == ["chats.jsonl:1"]
    for question, answer in zip(
        ("**Sual 1:**", "### Sual\n", ""), ("\nCavab:", "\n### Cavab\n", "B)"), strict=True
    ):
        asked = f"{ANOTHER} {question} Azərbaycanın paytaxtı haradır? {answer} Bakı şəhəridir."
        assert found.matches(asked) == ["chats.jsonl:1"], asked
    # Two of the shortest prove what one does not.
    assert found.matches("Necəsən bu gün? Yaxşı.") == []
    assert found.matches("Necəsən bu gün? Yaxşı. Nə vaxt gəldi? Bu gün.") == [
        "chats.jsonl:2",
        "chats.jsonl:3",
    ]
    assert found.matches("Azərbaycanın paytaxtı haradır? Sumqayıt.") == []
    raw = write_jsonl(tmp_path / "a.jsonl", texts(3))
    clean(tmp_path, raw, decontaminate=True, others={"finetune": {"inputs": [str(chats)]}})
    assert "1 of 4 items are too short to be looked for" in caplog.text
