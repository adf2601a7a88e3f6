"""Tokens as training reads them: of a disk and of S3, and damaged ones."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anadil.artifacts import artifact, s3, storage
from anadil.artifacts.uri import join
from anadil.core.errors import DataError, IntegrityError
from anadil.pretrain.data.batch import batch_of
from anadil.runtime.executors.processes import Processes
from anadil.text.corpus import Document, write_documents
from anadil.tokens.make_tokens import make_tokens
from anadil.tokens.packing import TokenStream, pack
from anadil.tokens.stored_tokens import StoredTokens, open_tokens
from anadil.tokens.tensor_file import DATA_BEGIN, TensorWriter, size_of
from anadil.tokens.tokens_file import TOKENS
from tests.kit.pretraining import make_tokenizer_artifact, set_bos
from tests.kit.pretraining_texts import PRETRAINING_TEXTS
from tests.kit.tokens import settings_of

LENGTH = 16


@pytest.fixture(autouse=True)
def blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Blocks of some tokens, so that a small file has many."""
    for module in ("anadil.tokens.tensor_file", "anadil.tokens.tokens_file"):
        monkeypatch.setattr(f"{module}.BLOCK_BYTES", 64)
    monkeypatch.setenv("ANADIL_CACHE", str(tmp_path / "cache"))


def make_artifact(tmp_path: Path, name: str = "tokens", parts: int = 3, **changes: Any) -> Path:
    """Tokens of a corpus of some files, one of them empty, with two held-out documents."""
    corpus, tokenizer = tmp_path / "corpus", tmp_path / "tokenizer"
    if not corpus.exists():
        for number in range(parts):
            texts = PRETRAINING_TEXTS[number::parts] if number != 1 else ()
            documents = [
                Document(id=f"{number}-{i}", text=t, source="", url="", lang="az")
                for i, t in enumerate(texts)
            ]
            write_documents(tmp_path / "draft", "train", documents)
            (corpus / "train").mkdir(parents=True, exist_ok=True)
            (tmp_path / "draft/train/part-00000.jsonl.zst").rename(
                corpus / f"train/part-{number:05}.jsonl.zst"
            )
        heldout = [
            Document(id=f"h{i}", text=t, source="", url="", lang="az")
            for i, t in enumerate(("Bakı.", "Gəncə şəhəri."))
        ]
        write_documents(corpus, "heldout", heldout)
        artifact.seal(corpus, kind="corpus", origin={}, records={"train": 6, "heldout": 2})
        set_bos(make_tokenizer_artifact(tokenizer))
    out = tmp_path / name
    out.mkdir()
    settings = dataclasses.replace(settings_of(corpus, tokenizer, LENGTH), **changes)
    with Processes(1) as executor:
        _, entries = make_tokens(settings, out, tmp_path / f"{name}.work", executor)
    artifact.seal(out, kind="tokens", origin={}, entries=entries)
    return out


def opened(uri: str | Path) -> StoredTokens:
    return open_tokens(str(uri), artifact.finished_manifest(str(uri), "tokens"))


def everything(tokens: StoredTokens) -> list[Any]:
    packed = tokens.packed
    batch = batch_of(packed, np.arange(packed.num_sequences))
    return [
        batch.input_ids.tolist(),
        batch.labels.tolist(),
        batch.borders.tolist(),
        [ids.tolist() for ids in tokens.heldout(9)[0]],
    ]


def in_bucket(folder: Path, bucket: str) -> str:
    uri = f"{bucket}/tokens"
    storage.store(uri).put_directory(shutil.copytree(folder, folder.with_name("copy")), uri)
    return uri


def test_sequences_are_those_of_all_documents_packed_together(tmp_path: Path) -> None:
    packed = opened(make_artifact(tmp_path)).packed

    stream = TokenStream(
        ids=packed.stream.ids[:], starts=packed.stream.first_starts(99), digest="", bos=packed.stream.bos
    )
    expected = pack(stream, LENGTH)
    numbers = np.arange(packed.num_sequences)
    assert packed.stream.bos is not None
    assert packed.num_sequences == expected.num_sequences
    assert (packed.num_targets, packed.waste) == (expected.num_targets, expected.waste)
    assert packed.targets_of(numbers[:3]) == expected.targets_of(numbers[:3])
    for name in ("input_ids", "labels", "position_ids", "borders"):
        assert (
            getattr(batch_of(packed, numbers), name).tolist()
            == getattr(batch_of(expected, numbers), name).tolist()
        )
    for position in range(len(stream.ids)):
        assert packed.stream.document_at(position) == stream.document_at(position)


def test_sources_are_packed_in_blocks_of_consecutive_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anadil.tokens.shard_plan.BLOCK_TOKENS", 1)

    tokens = opened(make_artifact(tmp_path, source="web"))

    assert [(block.first_shard, block.num_shards) for block in tokens.facts.blocks] == [(0, 2), (2, 1)]
    one = opened(make_artifact(tmp_path, "one"))
    assert tokens.packed.num_targets == one.packed.num_targets
    batch = batch_of(tokens.packed, np.arange(tokens.packed.num_sequences))
    whole = batch_of(one.packed, np.arange(one.packed.num_sequences))
    assert sorted(batch.labels.flatten().tolist()) == sorted(
        [*whole.labels.flatten().tolist(), *[-100] * (batch.labels.numel() - whole.labels.numel())]
    )


def test_objects_of_s3_are_read_by_ranges_on_condition_and_kept_on_the_disk(
    tmp_path: Path, bucket: str
) -> None:
    folder = make_artifact(tmp_path)
    uri = in_bucket(folder, bucket)
    asked: list[dict[str, Any]] = []
    s3.s3_client().meta.events.register(
        "before-parameter-build.s3.GetObject", lambda params, **_: asked.append(dict(params))
    )

    tokens = opened(uri)
    tokens.packed.stream.ids[0:3]
    first = [each for each in asked if "Range" in each]
    found = everything(tokens)
    asked.clear()
    again = everything(opened(uri))

    assert {"IfMatch" in each for each in first} == {True}
    # A block of 64 bytes, header and table: never a whole file.
    assert sum(1 for each in first if each["Key"].endswith("part-00000.safetensors")) <= 4
    assert found == again == everything(opened(folder))
    ranges = [each["Range"] for each in asked if "Range" in each]
    assert set(ranges) == {f"bytes=0-{DATA_BEGIN - 1}"}  # headers; the rest came from the disk


def test_a_damaged_copy_on_the_disk_is_fetched_again(tmp_path: Path, bucket: str) -> None:
    uri = in_bucket(make_artifact(tmp_path), bucket)
    found = everything(opened(uri))
    for copy in (tmp_path / "cache" / "blocks").iterdir():
        copy.write_bytes(bytes(len(copy.read_bytes())))

    assert everything(opened(uri)) == found


def test_an_object_that_changes_while_it_is_read_is_refused(tmp_path: Path, bucket: str) -> None:
    uri = in_bucket(make_artifact(tmp_path), bucket)
    tokens = opened(uri)
    tokens.packed.stream.ids[0:3]
    place = join(uri, "train/part-00000.safetensors")
    storage.store(uri).write(place, storage.store(uri).read(place)[::-1])

    with pytest.raises(IntegrityError, match=r"part-00000\.safetensors: changed while it was read"):
        everything(tokens)


@pytest.mark.parametrize("place", [3, DATA_BEGIN + 5, -2])
def test_a_changed_byte_is_refused_with_its_place(tmp_path: Path, place: int) -> None:
    folder = make_artifact(tmp_path)
    file = folder / "train/part-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)

    what = r"bytes 1,024 to 1,088" if place == DATA_BEGIN + 5 else "its header or its table of checksums"
    with pytest.raises(IntegrityError, match=f"part-00000.safetensors: {what} differ"):
        everything(opened(folder))


def test_a_file_that_was_cut_off_or_is_gone_is_refused(tmp_path: Path) -> None:
    folder = make_artifact(tmp_path)
    file = folder / "train/part-00000.safetensors"
    tokens = opened(folder)
    tokens.packed.stream.ids[0:3]
    size = file.stat().st_size
    with file.open("rb+") as open_file:
        open_file.truncate(DATA_BEGIN + 70)

    with pytest.raises(IntegrityError, match="ends at byte 1,094, and was longer before"):
        everything(tokens)
    with pytest.raises(IntegrityError, match=f"has 1,094 bytes, and its manifest says {size:,}"):
        everything(opened(folder))
    file.unlink()
    with pytest.raises(IntegrityError, match=r"part-00000\.safetensors: missing, but its manifest names it"):
        everything(opened(folder))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tokens": 10**9}, "tokens: 1,000,000,000 written, its files have"),
        ({"format": 2}, "format 2, this version reads 1"),
        ({"earlier": {"shards": 1}}, "earlier.shards: 1 written, its files have 0"),
        ({"earlier": {"tokens": 5}}, "earlier.tokens: 5 written, its files have 0"),
        ({"targets": -1}, "targets: must be at least 0"),
        (
            {"blocks": []},
            "shards of blocks: 0 written, its files have 3|shards of blocks: 3 written, its files have 0",
        ),
    ],
)
def test_a_list_that_lies_is_refused(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    folder = make_artifact(tmp_path)
    facts = json.loads((folder / TOKENS).read_text("utf-8"))
    (folder / TOKENS).write_text(json.dumps(facts | change), "utf-8")
    artifact.seal(folder, kind="tokens", origin={})

    with pytest.raises(IntegrityError, match=text):
        opened(folder)


def test_counts_beyond_a_file_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    folder = make_artifact(tmp_path)
    facts = json.loads((folder / TOKENS).read_text("utf-8"))
    facts["train"][2]["tokens"] += 1
    facts["tokens"] += 1
    (folder / TOKENS).write_text(json.dumps(facts), "utf-8")
    artifact.seal(folder, kind="tokens", origin={})

    with pytest.raises(
        IntegrityError, match=r"train/part-00002.safetensors: its counts make [\d,]+ bytes, and it has"
    ):
        opened(folder)


def test_a_list_that_its_manifest_does_not_know_is_refused(tmp_path: Path) -> None:
    folder = make_artifact(tmp_path)
    (folder / TOKENS).write_text((folder / TOKENS).read_text("utf-8") + " ", "utf-8")

    with pytest.raises(IntegrityError, match=r"tokens.json: differs from its manifest"):
        opened(folder)


def test_documents_that_overlap_are_left_out_and_counted(tmp_path: Path) -> None:
    listed = tmp_path / "excluded.jsonl"
    rows = [{"id": "0-0", "reason": "duplicate", "of": "en"}, {"id": "2-1", "reason": "heldout", "of": "en"}]
    listed.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    whole = opened(make_artifact(tmp_path))

    tokens = opened(make_artifact(tmp_path, "some", excluded=listed, excluded_digest="d"))

    assert tokens.facts.left_out == {"duplicate": 1, "heldout": 1}
    assert tokens.facts.documents == whole.facts.documents - 2
    ids, starts = whole.packed.stream.ids[:].tolist(), whole.packed.stream.first_starts(99).tolist()
    second = starts[1]
    assert tokens.packed.stream.ids[0:5].tolist() == ids[second : second + 5]


def test_a_list_of_documents_that_is_none_is_refused(tmp_path: Path) -> None:
    listed = tmp_path / "excluded.jsonl"
    listed.write_text('{"id": "0-0"}\n', "utf-8")

    with pytest.raises(IntegrityError, match=r"excluded.jsonl:1: not a line with id and reason"):
        make_artifact(tmp_path, excluded=listed, excluded_digest="d")


def test_fewer_tokens_than_the_first_document_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"sources.web.max_tokens: 2 are less than the first document has; raise it"
    ):
        make_artifact(tmp_path, max_tokens=2, source="web")


@pytest.mark.parametrize("share", [0.4, 0.55, 1.0])
def test_a_source_is_cut_behind_the_last_whole_document_of_its_tokens(tmp_path: Path, share: float) -> None:
    whole = opened(make_artifact(tmp_path))
    most = int(whole.facts.tokens * share)

    tokens = opened(make_artifact(tmp_path, "some", max_tokens=most))

    ends = whole.packed.stream.first_starts(99)[1:]
    documents = int(np.searchsorted(ends, most, side="right"))
    assert tokens.facts.documents == documents
    assert tokens.facts.tokens == ends[documents - 1]
    assert tokens.packed.stream.ids[:].tolist() == whole.packed.stream.ids[: ends[documents - 1]].tolist()
    assert tokens.facts.left_out.get("max_tokens", 0) == 6 - documents


def test_a_file_is_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    with TensorWriter(tmp_path / "a.safetensors") as out:
        out.append(np.arange(50, dtype=np.int32).tobytes())
        out.end_tensor("ids", "I32", (50,))
        out.write("rows", "I64", np.arange(6).reshape(3, 2))

    read = load_file(tmp_path / "a.safetensors")
    assert read["ids"].tolist() == list(range(50))
    assert read["rows"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert len(read["crc32"]) == -(-(50 * 4 + 6 * 8) // 64)
    assert (tmp_path / "a.safetensors").stat().st_size == size_of(50 * 4 + 6 * 8)
