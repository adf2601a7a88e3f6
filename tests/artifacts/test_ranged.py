"""Objects of S3 that are read piece by piece."""

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from anadil.artifacts import ranged, s3, storage
from anadil.artifacts.line_reader import lines_with_offsets
from anadil.core.errors import IntegrityError, PreflightError, RetryableError
from anadil.runtime.termination import exit_code_of

LINES = b"".join(b"%d a line of an object\n" % number for number in range(20_000))
Answer = dict[str, Any]


@pytest.fixture(autouse=True)
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranged, "PIECE_BYTES", 16 * 1024)
    monkeypatch.setattr(ranged, "PAUSE_S", 0.0)


@pytest.fixture
def answers(bucket: str, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[Answer], Answer]]:
    """What becomes of the next answers of the server; each is used once."""
    client, changes = s3.s3_client(), list[Callable[[Answer], Answer]]()
    get_object = client.get_object

    def changed(**asked: Any) -> Answer:
        return (changes.pop(0) if changes else lambda answer: answer)(get_object(**asked))

    monkeypatch.setattr(client, "get_object", changed)
    return changes


def cut(answer: Answer) -> Answer:
    from botocore.response import StreamingBody

    data = answer["Body"].read()
    return {**answer, "Body": StreamingBody(io.BytesIO(data[: len(data) // 2]), len(data))}


def shortened(answer: Answer) -> Answer:
    """With a length that fits what comes."""
    return {**answer, "Body": io.BytesIO(answer["Body"].read()[:100])}


def put(bucket: str, name: str, content: bytes) -> str:
    storage.store(bucket).write(f"{bucket}/{name}", content)
    return f"{bucket}/{name}"


def test_an_object_is_read_in_pieces_and_only_as_far_as_it_is_looked_at(bucket: str) -> None:
    uri = put(bucket, "a.jsonl", LINES)
    asked: list[str] = []
    s3.s3_client().meta.events.register(
        "before-parameter-build.s3.GetObject", lambda params, **_: asked.append(params["Range"])
    )

    with storage.readable(uri).open("rb") as file:
        assert file.read(10) == LINES[:10]
        file.seek(-10, io.SEEK_END)
        assert file.read() == LINES[-10:]
        assert file.read() == b""

    assert asked[0] == "bytes=0-16383"
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("suffix", "packed"),
    [(".jsonl", LINES), (".jsonl.gz", gzip.compress(LINES)), (".jsonl.zst", zstandard.compress(LINES))],
)
def test_lines_of_objects_are_those_of_files(bucket: str, suffix: str, packed: bytes, tmp_path: Path) -> None:
    uri = put(bucket, f"a{suffix}", packed)
    local = tmp_path / f"a{suffix}"
    local.write_bytes(packed)

    assert list(lines_with_offsets(storage.readable(uri))) == list(lines_with_offsets(local))


def test_an_object_that_changes_while_it_is_read_is_refused(bucket: str) -> None:
    uri = put(bucket, "a.jsonl", LINES)
    lines = lines_with_offsets(storage.readable(uri))
    next(lines)
    put(bucket, "a.jsonl", LINES.replace(b"line", b"text"))

    with pytest.raises(IntegrityError, match=r"a\.jsonl: changed while it was read; let nobody write there"):
        list(lines)
    assert exit_code_of(lambda: len(list(lines_with_offsets(storage.readable(uri, '"no"-9'))))) == 5


def test_an_object_that_is_gone_or_shorter_is_refused(bucket: str) -> None:
    uri = put(bucket, "a.jsonl", LINES)
    file = storage.readable(uri)
    s3.S3().remove(uri)

    with pytest.raises(IntegrityError, match="changed"), file.open("rb") as stream:
        stream.read()


def test_a_changed_object_is_seen_where_the_server_knows_no_conditions(
    bucket: str, answers: list[Callable[[Answer], Answer]]
) -> None:
    uri = put(bucket, "a.jsonl", LINES)
    answers.append(lambda answer: {**answer, "ETag": '"another"'})

    with pytest.raises(IntegrityError, match="changed"), storage.readable(uri).open("rb") as stream:
        stream.read()


@pytest.mark.parametrize("fault", [cut, shortened])
def test_a_piece_that_ends_early_is_asked_for_again(
    bucket: str, answers: list[Callable[[Answer], Answer]], fault: Callable[[Answer], Answer]
) -> None:
    uri = put(bucket, "a.jsonl", LINES)
    answers += [fault] * (ranged.ATTEMPTS - 1)

    with storage.readable(uri).open("rb") as stream:
        assert stream.read() == LINES


def test_pieces_that_always_end_early_end_the_run_to_be_started_again(
    bucket: str, answers: list[Callable[[Answer], Answer]]
) -> None:
    uri = put(bucket, "a.jsonl", LINES)
    answers += [cut] * ranged.ATTEMPTS

    with pytest.raises(RetryableError, match="did not come whole 4 times") as raised:
        storage.readable(uri).open("rb").read(100)
    assert raised.value.exit_code == 138


def test_storage_that_knows_no_ranges_is_refused(
    bucket: str, answers: list[Callable[[Answer], Answer]]
) -> None:
    uri = put(bucket, "a.jsonl", LINES)
    answers.append(
        lambda answer: {**answer, "ContentRange": "", "ContentLength": len(LINES), "Body": io.BytesIO(LINES)}
    )

    with storage.readable(uri).open("rb") as stream:
        stream.seek(500)
        with pytest.raises(PreflightError, match="does not answer for a range of bytes"):
            stream.read(1)
