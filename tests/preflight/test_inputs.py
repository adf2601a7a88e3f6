import functools
import gzip
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from anadil.cli import main
from anadil.core.errors import DataError, PreflightError, RecipeError
from anadil.preflight import inputs
from anadil.preflight.inputs import InputSample, cut_at_record
from anadil.recipe.sections import Recipe
from anadil.runtime.check import passed, skipped
from tests.kit.harness import again
from tests.kit.inspect_inputs import SMALL, lines, look, put, upload
from tests.kit.texts import AZERBAIJANI, BOSNIAN, CROATIAN, TURKISH

CHAT = {"messages": [{"role": "user", "content": "Salam"}, {"role": "assistant", "content": "Salam!"}]}
CLAIM = "cluster.volumes=[{claim: fsx, path: /claims/fsx}]"


REFUSALS = [
    ("finetune", "rows.jsonl", lines(*({"text": str(number)} for number in range(433))), r"no_chat 433 .*:1 \('text'\), "),
    ("finetune", "chats.xls", lines(CHAT), r"chats\.xls: chats are read from \.jsonl, "),
    ("finetune", "chats.json", lines(CHAT)[:-3], r"chats\.json: is not JSON behind item 0"),
    ("finetune", "chats.jsonl", lines(CHAT) + b"{", r"chats\.jsonl:2: not a JSON line"),
    ("finetune", "chats.jsonl", b"", r"hold no rows; a row needs `messages`"),
    ("clean", "a.docx", b"PK", r"clean\.inputs: 1 file of unknown kind, such as .*a\.docx"),
    ("clean", "a.jsonl", b"", r"clean\.inputs: the files hold no documents"),
    ("clean", "a.jsonl", lines({"body": "Salam"}), r"a\.jsonl:1: no key 'text' \(clean\.text_field\) among 'body'"),
    ("clean", "a.jsonl.gz", b"no gzip", r"a\.jsonl\.gz:1: compressed data is damaged"),
    ("clean", "a.warc.gz", b"no WARC", r"a\.warc\.gz:0: WARC is damaged"),
    ("clean", "a.parquet", b"no Parquet", r"a\.parquet:1: Parquet is damaged"),
    ("evaluate", "a.html", b"<p>", r"a\.html: held-out text is read from"),
    ("evaluate", "a.jsonl", lines({"text": "Salam"}) + b"?\n", r"a\.jsonl:2: not a JSON line"),
    ("evaluate", "a.jsonl", lines({"text": ""}), r"held-out text is empty: .*a\.jsonl"),
]  # fmt: skip


@pytest.mark.parametrize(("stage", "name", "content", "message"), REFUSALS)
def test_a_file_that_its_stage_could_not_use_is_refused(
    stage: str, name: str, content: bytes, message: str, recipe: Recipe, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        look(recipe, stage, put(tmp_path, name, content))


# Chats


def test_a_mix_of_chats_that_are_not_there_is_refused_before_training(recipe: Recipe, tmp_path: Path) -> None:
    chats = put(tmp_path, "mine.jsonl", lines(CHAT))
    mixed = recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update={"mix": {"chats": 0.5}})})

    with pytest.raises(
        RecipeError, match=r"finetune\.mix: no chats of chats; the sources are mine; correct it, or"
    ):
        look(mixed, "finetune", chats)
    assert look(recipe, "finetune", chats)


def test_rows_that_are_no_chat_beside_chats_are_told(recipe: Recipe, tmp_path: Path) -> None:
    found = look(recipe, "finetune", put(tmp_path, "chats.jsonl", lines(CHAT, {"text": "?"}, CHAT)))

    assert found.detail == "1 file, 2 chats"
    assert "would leave out 1 row: no_chat 1" in found.remedy
    assert "chats.jsonl:2" in found.remedy


@pytest.mark.parametrize("cut", ['dörd,"be', 'dörd,"beş\naltı', "dörd,", ""])
def test_the_beginning_of_a_table_ends_behind_a_whole_row(cut: str) -> None:
    whole = 'question,answer\nbir,iki\nüç,"dörd\nbeş"\n'

    assert cut_at_record((whole + cut).encode(), "chats.csv", 99) == whole.encode()


def test_pairs_are_looked_at_beside_the_chats(recipe: Recipe, tmp_path: Path) -> None:
    chats, good = put(tmp_path, "chats.jsonl", lines(CHAT)), {"prompt": "?", "chosen": "a", "rejected": "b"}
    mixed = put(tmp_path, "pairs.jsonl", lines(good, {"prompt": "?"}))
    bad = put(tmp_path, "bad.jsonl", lines({"prompt": "?"}))

    found = look(again(recipe, f"finetune.preference.inputs=[{mixed}]"), "finetune", chats)

    assert found.detail.endswith("; finetune.preference.inputs: 1 file, 1 pair")
    assert "would leave out 1 row: no_pair 1" in found.remedy
    with pytest.raises(DataError, match=r"pairs: none of 1 rows can be trained on: no_pair 1"):
        look(again(recipe, f"finetune.preference.inputs=[{bad}]"), "finetune", chats)


@pytest.mark.parametrize("command", [["doctor"], ["run"]], ids=lambda words: words[0])
def test_a_command_ends_at_rows_that_are_no_chats(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = put(tmp_path, "rows.jsonl", lines({"text": "no chat"}))
    work = tmp_path / "work"

    code = main.main([*command, "smoke", "--work", str(work), "--set", f"finetune.inputs=[{rows}]"])

    said = capsys.readouterr()
    assert code == (4 if command == ["doctor"] else 3)
    assert "none of 1 rows can be trained on: no_chat 1" in said.out + said.err
    assert not (work / "corpus").exists()


# Raw data


def test_documents_are_counted_over_all_kinds_of_files(recipe: Recipe, tmp_path: Path) -> None:
    files = [
        put(tmp_path, "a.jsonl", lines({"text": "Bir"}, {"text": "Iki"})),
        put(tmp_path, "b.txt", b"Salam"),
        put(tmp_path, "c.html", b"<p>Salam"),
        "builtin:az/pages.warc.gz",
    ]

    found = look(recipe, "clean", *files)

    assert found.status == "passed"
    assert found.detail.startswith("4 files, ")
    assert "what was checked" not in found.detail


@functools.cache
def big(name: str, field: str = "text") -> bytes:
    """A file of some kind, many times as large as what is looked at."""
    rows = lines(*({field: f"Salam {number} {'x' * 900}"} for number in range(4_000)))
    # Bytes that cannot be packed, so that the packed file is large too.
    noise = lines(*({field: hex(hash((number, 1)) ** 40)} for number in range(4_000)))
    if name.endswith(".gz"):
        return gzip.compress(noise)
    return zstandard.compress(noise) if name.endswith(".zst") else rows


@pytest.mark.parametrize(
    ("name", "where"),
    [("a.jsonl", "s3"), ("a.jsonl.gz", "s3"), ("a.jsonl.zst", "local"), ("a.json.gz", "local")],
)
@pytest.mark.usefixtures("small")
def test_no_more_than_the_beginning_of_a_large_file_is_read(
    name: str, where: str, recipe: Recipe, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    content = big(name)
    assert len(content) > 4 * SMALL
    place = (
        upload(request.getfixturevalue("bucket"), name, content)
        if where == "s3"
        else put(tmp_path, name, content)
    )

    found = look(recipe, "clean", place)

    count = int(found.detail.split(", ")[1].split()[0].replace(",", ""))
    assert 20 < count < 2_000
    assert found.detail.endswith("in what was checked (the first 256.0 KiB of a file)")
    assert "read" not in found.remedy


@pytest.mark.usefixtures("small")
def test_some_unreadable_records_of_a_large_file_are_told_and_stop_nothing(
    recipe: Recipe, tmp_path: Path
) -> None:
    found = look(recipe, "clean", put(tmp_path, "a.jsonl", b"?\n" + big("a.jsonl")))

    assert "records could not be read, such as " in found.remedy
    assert "a.jsonl:1: not JSON" in found.remedy


@pytest.mark.usefixtures("small")
def test_a_large_warc_is_cut_between_two_records(recipe: Recipe, tmp_path: Path) -> None:
    body = "x" * 3_000
    http = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    head = f"WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http; msgtype=response\r\nContent-Length: {len(http)}\r\n\r\n"
    record = f"{head}{http}\r\n\r\n".encode()

    plain = look(recipe, "clean", put(tmp_path, "a.warc", record * 500))
    noise = [gzip.compress(record, 0) for _ in range(500)]
    packed = look(recipe, "clean", put(tmp_path, "a.warc.gz", b"".join(noise)))

    for found in (plain, packed):
        assert 75 < int(found.detail.split()[2]) < 85
        assert "in what was checked" in found.detail
        assert found.remedy == ""


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_of_a_part_of_a_long_list_nothing_is_told(recipe: Recipe, tmp_path: Path, name: str) -> None:
    rows = big(name)
    content = gzip.decompress(rows) if name.endswith(".gz") else rows
    listed = b"[" + content.strip().replace(b"\n", b",\n") + b"]"

    found = look(
        recipe, "clean", put(tmp_path, name, gzip.compress(listed) if name.endswith(".gz") else listed)
    )

    assert found.detail.startswith("1 file, 0 documents in what was checked")
    assert found.remedy == ""


@pytest.mark.usefixtures("small")
def test_a_line_longer_than_what_is_looked_at_is_no_mistake(recipe: Recipe, tmp_path: Path) -> None:
    found = look(recipe, "clean", put(tmp_path, "a.jsonl", lines({"text": "x" * 4 * SMALL})))

    assert found.detail.startswith("1 file, 0 documents in what was checked")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("stage", "name", "pack"),
    [
        ("finetune", "a.jsonl", bytes),
        ("evaluate", "a.jsonl.gz", gzip.compress),
        ("evaluate", "a.jsonl.zst", zstandard.compress),
    ],
)
def test_a_line_too_long_for_its_reader_is_refused_before_its_end(
    stage: str, name: str, pack: Callable[[bytes], bytes], recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    line = lines({"text": random.Random(0).randbytes(4 * SMALL).hex()})
    for module in ("artifacts.line_reader", "preflight.inputs"):
        monkeypatch.setattr(f"anadil.{module}.MAX_LINE_BYTES", SMALL // 2)

    with pytest.raises(DataError, match=r":1: line of .* is longer than"):
        look(recipe, stage, put(tmp_path, name, pack(line)))


@pytest.mark.usefixtures("small")
def test_a_letter_is_not_cut_in_two(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anadil.preflight.inputs.ONE_DOCUMENT_BYTES", 1_001)

    found = look(recipe, "evaluate", put(tmp_path, "a.txt", "\u0259".encode() * 1_000))

    assert found.detail.startswith("1 file, 1 document")


def test_of_many_records_the_first_are_looked_at(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MAX_RECORDS", 5)

    found = look(recipe, "clean", put(tmp_path, "a.jsonl", lines(*({"text": "salam"} for _ in range(9)))))

    assert found.detail.startswith("1 file, 5 documents in what was checked")


def test_many_files_and_slow_storage_end_in_time(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        put(tmp_path, f"{number}.jsonl", lines({"text": "Salam"}))
    monkeypatch.setattr(inputs, "PATIENCE_S", 0.3)
    part = InputSample.copy

    def slow(*words: object) -> object:
        time.sleep(0.05)
        return part(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(InputSample, "copy", slow)

    found = look(recipe, "clean", str(tmp_path / "*.jsonl"))

    count = int(found.detail.split(", ")[1].split()[0])
    assert found.detail.startswith("100 files, ")
    assert 1 <= count <= 10
    looked = int(found.detail.partition(" of 100 files looked into")[0].rpartition(" ")[2])
    assert count <= looked <= 10


def test_every_file_is_looked_into_and_one_without_a_readable_record_is_named(
    recipe: Recipe, tmp_path: Path
) -> None:
    for number in range(200):
        put(tmp_path, f"{number:03}.jsonl", lines(*({"text": "Salam"} for _ in range(120))))
    put(tmp_path, "131.jsonl", b'{"text": "Salam\n' * 3)

    found = look(recipe, "clean", str(tmp_path / "*.jsonl"))

    # 64 files are read on; of the others the first hundred records.
    assert found.detail.startswith("200 files, 21,160 documents in what was checked")
    assert "1 file without a readable record, such as " in found.remedy
    assert "131.jsonl" in found.remedy


def test_files_beside_heldout_text_are_looked_for_where_the_corpus_has_that(recipe: Recipe) -> None:
    with pytest.raises(DataError, match=r"evaluate\.questions: no file matches 'gone\.jsonl'"):
        look(again(recipe, "evaluate.questions=[gone.jsonl]"), "evaluate")


@pytest.mark.parametrize(
    ("key", "name", "content", "message"),
    [
        ("evaluate.questions", "a.jsonl", b"", r"evaluate\.questions: .*a\.jsonl: hold no question with an answer; name"),
        ("evaluate.questions", "a.jsonl", lines({"a": 1}), r"hold no question with an answer: no_chat 1"),
        ("evaluate.questions", "a.jsonl", lines(CHAT) + b"?\n", r"a\.jsonl:2: not a JSON line"),
        ("evaluate.retained", "a.jsonl", lines({"text": ""}), r"evaluate\.retained: .*a\.jsonl holds no text; name"),
    ],
)  # fmt: skip
def test_files_that_only_evaluation_reads_are_read_before_hours_of_training(
    key: str, name: str, content: bytes, message: str, recipe: Recipe, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        look(again(recipe, f"{key}=[{put(tmp_path, name, content)}]"), "evaluate")


@pytest.mark.parametrize("stage", ["evaluate", "clean"])
def test_files_with_a_check_of_their_own_are_reported_by_it_alone(
    stage: str, recipe: Recipe, tmp_path: Path
) -> None:
    lacking = again(recipe, "evaluate.votes=[gone.json]", 'clean.filters=["gone.py:f"]')

    found = look(lacking, stage, put(tmp_path, "a.jsonl", lines({"text": AZERBAIJANI})))

    assert "1 document" in found.detail


# Inputs that this machine cannot see


def test_data_on_a_claim_is_said_to_be_unseen_where_the_run_is_elsewhere(
    recipe: Recipe, tmp_path: Path
) -> None:
    claimed = again(recipe, CLAIM)

    found = look(claimed, "finetune", "/claims/fsx/chats.jsonl", here=False)

    assert found.status == "skipped"
    assert found.detail == "/claims/fsx/chats.jsonl (claim fsx) can be seen from pods alone"
    with pytest.raises(DataError, match="no file matches '/claims/fsx/chats"):
        look(claimed, "finetune", "/claims/fsx/chats.jsonl", here=True)
    rows = put(tmp_path, "rows.jsonl", lines({"text": "no chat"}))
    with pytest.raises(DataError, match="none of 1 rows"):
        look(claimed, "finetune", "/claims/fsx/chats.jsonl", rows, here=False)


def test_storage_that_only_pods_may_read_stops_no_submission(recipe: Recipe) -> None:
    place = "s3://somebody-elses/chats.jsonl"

    found = look(recipe, "finetune", place, here=False)

    assert found.status == "skipped"
    assert "cannot be read from here" in found.detail
    assert "no AWS credentials" in found.detail
    with pytest.raises(PreflightError, match="no AWS credentials"):
        look(recipe, "finetune", place, here=True)


def test_packages_of_a_stage_that_are_not_here_are_said(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object) -> tuple[str, str]:
        raise ModuleNotFoundError(name="fastwarc")

    monkeypatch.setitem(inputs.INSPECTORS, "clean.inputs", absent)
    monkeypatch.setattr("anadil.core.install.is_installed", lambda _: False)

    found = look(recipe, "clean", put(tmp_path, "a.txt", b"Salam"))

    assert (found.status, found.detail) == ("skipped", "not checked, because fastwarc is not installed here")
    assert found.remedy.endswith("[clean]'")


def test_what_asks_for_attention_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    passed("a", "well").log()
    passed("b", "2 chats", "1 row is none").log()
    skipped("c", "unseen").log()

    assert caplog.messages == ["b: 2 chats; 1 row is none", "c: unseen"]


@pytest.mark.parametrize("stage", ["clean", "finetune"])
@pytest.mark.parametrize(
    ("text", "advice"),
    [(TURKISH, "3 of 3 texts are in another language than Azerbaijani, mostly in tr "), (AZERBAIJANI, "")],
)
def test_files_in_another_language_are_said(
    stage: str, text: str, advice: str, recipe: Recipe, tmp_path: Path
) -> None:
    row = {"text": text} if stage == "clean" else {"prompt": text[:80], "response": text}

    remedy = look(recipe, stage, put(tmp_path, "a.jsonl", lines(*[row] * 3))).remedy

    assert remedy.startswith(advice) if advice else not remedy


def test_texts_that_are_taken_for_a_sibling_are_said(recipe: Recipe, tmp_path: Path) -> None:
    rows = [{"text": text} for text in (CROATIAN, CROATIAN, BOSNIAN)]

    found = look(
        recipe.model_copy(update={"language": "hr"}), "clean", put(tmp_path, "a.jsonl", lines(*rows))
    )

    assert found.remedy.startswith(
        "1 of 3 texts would be dropped as Croatian's siblings: neither CLD2 nor py3langid"
    )
