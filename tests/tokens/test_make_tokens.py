import errno
import json
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import zstandard

from anadil.artifacts import artifact, sealed_dir
from anadil.core.errors import DataError, IntegrityError, PreflightError
from anadil.model.load import encode_texts, load_tokenizer
from anadil.text import encoder
from anadil.text.corpus import Document, document_files, write_documents
from anadil.tokens import encode_file as encode_files
from anadil.tokens import make_tokens
from anadil.tokens.encode_file import EncodeTask
from anadil.tokens.packing import TokenStream
from anadil.tokens.tensor_file import TensorWriter
from tests.kit.encoding import Unlike
from tests.kit.pretraining import make_corpus, make_tokenizer_artifact, set_bos
from tests.kit.pretraining_texts import PRETRAINING_TEXTS
from tests.kit.tokens import tokens_of_corpus

BOS, END = 297, 298


def documents(*texts: str) -> list[Document]:
    return [Document(id=str(i), text=text, source="", url="", lang="az") for i, text in enumerate(texts)]


def make_parts(folder: Path, *parts: tuple[str, ...]) -> Path:
    """A corpus artifact with a file for each group of texts."""
    for number, texts in enumerate(parts):
        write_documents(folder / "draft", "train", documents(*texts))
        target = folder / "train" / f"part-{number:05}.jsonl.zst"
        target.parent.mkdir(exist_ok=True)
        (folder / "draft" / "train" / "part-00000.jsonl.zst").rename(target)
    (folder / "draft" / "train").rmdir()
    (folder / "draft").rmdir()
    artifact.seal(folder, kind="corpus", origin={})
    return folder


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return make_tokenizer_artifact(tmp_path / "tokenizer")


@pytest.fixture
def in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode also small files in processes of their own."""
    monkeypatch.setattr(make_tokens, "SMALL_BYTES", 0)


def token_stream(corpus: Path, tokenizer: Path, work: Path, *, write: bool = True) -> TokenStream:
    return tokens_of_corpus(corpus, tokenizer, work, write=write).packed.stream


def texts_of(stream: TokenStream, tokenizer: Path) -> list[str]:
    decoder = load_tokenizer(tokenizer)
    return [
        str(decoder.decode(stream.ids[begin + 1 : end - 1].tolist()))
        for begin, end in pairwise(stream.first_starts(99).tolist())
    ]


def test_documents_stand_one_after_another_between_begin_and_end(tmp_path: Path, tokenizer: Path) -> None:
    corpus = make_parts(tmp_path / "corpus", PRETRAINING_TEXTS[:3], (), PRETRAINING_TEXTS[3:])

    stream = token_stream(corpus, tokenizer, tmp_path / "work")

    assert texts_of(stream, tokenizer) == list(PRETRAINING_TEXTS)
    assert stream.ids[0:1].tolist() == [BOS]
    assert all(stream.ids[end - 1 : end].tolist() == [END] for end in stream.first_starts(99)[1:].tolist())
    assert len(stream.ids) == stream.first_starts(99)[-1]
    assert stream.ids[0:5].dtype == np.int32


@pytest.mark.usefixtures("in_processes")
def test_processes_give_the_bytes_that_one_gives(tmp_path: Path, tokenizer: Path) -> None:
    corpus = make_parts(tmp_path / "corpus", PRETRAINING_TEXTS[:3], (*PRETRAINING_TEXTS[3:], "son"))
    stream = token_stream(corpus, tokenizer, tmp_path / "many")

    make_tokens.SMALL_BYTES = 10**9
    alone = token_stream(corpus, tokenizer, tmp_path / "one")

    other = make_parts(tmp_path / "other", PRETRAINING_TEXTS[:3], PRETRAINING_TEXTS[3:])
    assert stream.digest == alone.digest
    assert stream.digest != token_stream(other, tokenizer, tmp_path / "third").digest
    assert stream.ids[:].tolist() == alone.ids[:].tolist()
    assert stream.first_starts(99).tolist() == alone.first_starts(99).tolist()


def test_a_killed_run_goes_on_with_the_next_file(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = make_parts(
        tmp_path / "corpus", PRETRAINING_TEXTS[:3], PRETRAINING_TEXTS[3:5], PRETRAINING_TEXTS[5:]
    )
    first, second, _ = document_files(corpus, "train")
    encode_file, asked = encode_files.encode_file, []

    def killed_at_second(task: EncodeTask) -> None:
        asked.append(task.file.name)
        if task.file == second and len(asked) == 2:
            raise KeyboardInterrupt
        encode_file(task)

    monkeypatch.setattr(encode_files, "encode_file", killed_at_second)
    with pytest.raises(KeyboardInterrupt):
        token_stream(corpus, tokenizer, tmp_path / "work")

    stream = token_stream(corpus, tokenizer, tmp_path / "work")

    assert asked == [first.name, second.name, second.name, "part-00002.jsonl.zst"]
    assert texts_of(stream, tokenizer) == list(PRETRAINING_TEXTS)


def test_a_damaged_shard_is_made_again_and_the_others_stay(
    tmp_path: Path, tokenizer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = make_parts(tmp_path / "corpus", PRETRAINING_TEXTS[:3], PRETRAINING_TEXTS[3:])
    before = token_stream(corpus, tokenizer, tmp_path / "work")
    whole, damaged = sorted((tmp_path / "work").rglob("shard.safetensors"))
    made_at = whole.stat().st_mtime_ns
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + b"\x01")

    stream = token_stream(corpus, tokenizer, tmp_path / "work")

    assert damaged.read_bytes() == content
    assert whole.stat().st_mtime_ns == made_at
    assert stream.digest == before.digest
    assert "part-00001.safetensors: differs from its manifest; making it again" in caplog.text


def test_a_restart_reads_again_only_what_somebody_has_touched(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = make_parts(tmp_path / "corpus", PRETRAINING_TEXTS[:3], PRETRAINING_TEXTS[3:])
    verify = artifact.verify_files
    read: list[str] = []

    def seen(path: Path, manifest: artifact.Manifest, name: str) -> None:
        read.append(path.name)
        verify(path, manifest, name)

    monkeypatch.setattr(artifact, "verify_files", seen)

    def start() -> list[str]:
        read.clear()
        token_stream(corpus, tokenizer, tmp_path / "work")
        return sorted(read)

    made, first, second = start(), start(), start()
    touched = sorted((tmp_path / "work").rglob("shard.safetensors"))[1]
    touched.write_bytes(touched.read_bytes())
    third = start()
    monkeypatch.setattr(sealed_dir, "BOOT", tmp_path / "another")
    (tmp_path / "another").write_text("another boot")

    assert [len(each) for each in (made, first, second, third)] == [0, 1, 0, 1]
    assert start() == first


def test_a_process_that_does_not_write_reads_what_the_first_made(tmp_path: Path, tokenizer: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus")
    with pytest.raises(DataError, match="not there; each node's first process makes it"):
        token_stream(corpus, tokenizer, tmp_path / "work", write=False)
    token_stream(corpus, tokenizer, tmp_path / "work")

    assert texts_of(token_stream(corpus, tokenizer, tmp_path / "work", write=False), tokenizer) == list(
        PRETRAINING_TEXTS
    )


def test_a_corpus_without_text_is_a_data_error(tmp_path: Path, tokenizer: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus", [""])

    with pytest.raises(DataError, match=r"corpus/train: holds no text; run clean with more data"):
        token_stream(corpus, tokenizer, tmp_path / "work")


@pytest.mark.usefixtures("in_processes")
def test_a_damaged_file_of_the_corpus_is_told_by_its_process(tmp_path: Path, tokenizer: Path) -> None:
    corpus = make_parts(tmp_path / "corpus", PRETRAINING_TEXTS[:3], PRETRAINING_TEXTS[3:])
    file = document_files(corpus, "train")[1]
    file.write_bytes(file.read_bytes()[:-9])

    with pytest.raises(IntegrityError, match=r"part-00001.jsonl.zst: damaged corpus part \(cut off\)"):
        token_stream(corpus, tokenizer, tmp_path / "work")


def test_a_full_disk_is_told_with_place_and_remedy(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = make_corpus(tmp_path / "corpus")
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(TensorWriter, "append", Mock(side_effect=full))

    with pytest.raises(PreflightError) as caught:
        token_stream(corpus, tokenizer, tmp_path / "work")

    assert str(caught.value).startswith(str(tmp_path / "work" / "shards-"))
    assert "no space left for the token ids of the corpus" in str(caught.value)
    assert "choose another storage.root or ANADIL_WORK, and run again: finished parts are kept" in str(
        caught.value
    )
    assert not list((tmp_path / "work").rglob("*.partial-*"))


def test_the_processes_load_no_torch() -> None:
    code = "import sys, anadil.encode.run; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_another_machine_that_was_faster_keeps_its_shard(tmp_path: Path) -> None:
    target = tmp_path / "work" / "part-00000"
    with sealed_dir.create(target, {"a": "1"}, socket.gethostname()) as draft:
        (draft / "shard.safetensors").write_bytes(b"1234")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("socket.gethostname", lambda: "other")
            with sealed_dir.create(target, {"a": "1"}, socket.gethostname()) as theirs:
                (theirs / "shard.safetensors").write_bytes(b"1234")
        inode = (target / "shard.safetensors").stat().st_ino

    assert (target / "shard.safetensors").stat().st_ino == inode
    assert [path.name for path in target.parent.iterdir()] == ["part-00000"]


def test_machines_begin_with_different_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    turns = []
    for machine in ("0", "1"):
        monkeypatch.setenv("GROUP_RANK", machine)
        turns.append(make_tokens._in_turn(5))

    assert turns == [[0, 1, 2, 3, 4], [2, 3, 4, 0, 1]]


def test_a_difference_makes_the_shard_again_from_its_start_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_tokenizer_artifact(tmp_path / "tokenizer")
    texts = ["salam", "xabc", *["abc"] * 98, "yabc xabc", "abc"]
    corpus = make_parts(tmp_path / "corpus", tuple(texts), ("xabc",))
    exact = encode_texts(load_tokenizer(folder), [*texts, "xabc"])
    monkeypatch.setattr(encoder, "FAST_FROM_CHARS", 1)
    make = encoder._gigatoken_of
    monkeypatch.setattr(encoder, "_gigatoken_of", lambda ranks: Unlike(make(ranks)))
    monkeypatch.setattr(encode_files, "BATCH_CHARS", 5)

    stream = token_stream(corpus, folder, tmp_path / "work")

    assert stream.ids[:].tolist() == [index for ids in exact for index in (BOS, *ids, END)]
    assert caplog.text.count("the fast encoder gives other token ids than tokenizers for 'yabc xabc'") == 1
    assert caplog.text.count("fast encoder") == 1


def test_a_document_that_is_no_unicode_names_its_file(tmp_path: Path, tokenizer: Path) -> None:
    corpus = make_parts(tmp_path / "corpus", ("salam",))
    file = document_files(corpus, "train")[0]
    lines = "".join(json.dumps(document.as_row()) + "\n" for document in documents("ab\ud83d"))
    file.write_bytes(zstandard.compress(lines.encode()))
    artifact.seal(corpus, kind="corpus", origin={})

    with pytest.raises(DataError, match=r"part-00000.jsonl.zst: text 'ab\\ud83d': character 2 is half"):
        token_stream(corpus, tokenizer, tmp_path / "work")


def test_a_document_of_a_base_without_bos_begins_with_the_end_of_text(
    tmp_path: Path, tokenizer: Path
) -> None:
    corpus = make_corpus(tmp_path / "corpus")
    before = token_stream(corpus, tokenizer, tmp_path / "work")
    config = tokenizer / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"bos_token": "<|begin_of_text|>", ', ""))

    stream = token_stream(corpus, tokenizer, tmp_path / "work")

    assert [int(stream.ids[at : at + 1][0]) for at in stream.first_starts(99)[:-1]] == [
        END
    ] * stream.num_documents
    assert (
        stream.first_starts(99).tolist() == before.first_starts(99).tolist()
    )  # each text's first token is predicted, too
    assert before.bos is stream.bos is None


def test_a_stream_knows_whether_its_tokenizer_sets_bos_before_every_text(
    tmp_path: Path, tokenizer: Path
) -> None:
    set_bos(tokenizer)

    made = token_stream(make_corpus(tmp_path / "corpus"), tokenizer, tmp_path / "work")
    read = token_stream(tmp_path / "corpus", tokenizer, tmp_path / "work", write=False)

    assert (made.bos, read.bos) == (BOS, BOS)
