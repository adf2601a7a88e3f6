"""Tokens as Megatron-LM reads them."""

import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from anadil.artifacts import artifact
from anadil.cli import main
from anadil.core.errors import IntegrityError
from anadil.encode.stored_tokens import open_tokens
from anadil.release.export import megatron
from anadil.release.export.megatron import export_tokens
from tests.kit.pretraining import make_corpus, make_tokenizer_artifact
from tests.kit.pretraining_texts import PRETRAINING_TEXTS
from tests.kit.tokens import tokens_of_corpus


def read_back(prefix: Path) -> list[list[int]]:
    """Read documents as `_IndexReader` of megatron-core does."""
    index = prefix.with_suffix(".idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, documents = struct.unpack_from("<QBQQ", index, 9)
    assert (version, documents) == (1, sequences + 1)
    dtype = {8: np.uint16, 4: np.int32}[code]
    lengths = np.frombuffer(index, np.int32, sequences, 34)
    pointers = np.frombuffer(index, np.int64, sequences, 34 + lengths.nbytes)
    borders = np.frombuffer(index, np.int64, documents, 34 + lengths.nbytes + pointers.nbytes)
    assert borders.tolist() == list(range(documents))
    assert len(index) == 34 + lengths.nbytes + pointers.nbytes + borders.nbytes
    content = prefix.with_suffix(".bin").read_bytes()
    return [
        np.frombuffer(content, dtype, length, pointer).tolist()
        for length, pointer in zip(lengths.tolist(), pointers.tolist(), strict=True)
    ]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """An artifact of tokens with two held-out documents."""
    corpus = make_corpus(tmp_path / "corpus", heldout=PRETRAINING_TEXTS[:2])
    made = tokens_of_corpus(corpus, make_tokenizer_artifact(tmp_path / "tokenizer"), tmp_path / "work")
    (folder := Path(made.uri)).rename(tmp_path / "tokens")
    (tmp_path / "tokens" / "manifest.json").unlink()
    artifact.seal(tmp_path / "tokens", kind="tokens", origin={})
    assert not folder.exists()
    return tmp_path / "tokens"


@pytest.mark.parametrize("most", [0, 65_500])
def test_documents_are_read_back_as_they_are(
    tmp_path: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(megatron, "MAX_UINT16_VOCABULARY", most)

    exported = export_tokens(str(tokens), tmp_path / "out")

    assert exported.names == ("heldout.bin", "heldout.idx", "train.bin", "train.idx")
    own = open_tokens(str(tokens), artifact.finished_manifest(str(tokens), "tokens"))
    for part in ("train", "heldout"):
        [(starts, ids)] = own.documents(part)
        expected = [ids[begin:end].tolist() for begin, end in pairwise(starts)]
        assert read_back(tmp_path / "out" / part) == expected
    width = 4 if most == 0 else 2
    assert (tmp_path / "out" / "train.bin").stat().st_size == width * own.facts.tokens


def test_the_command_prints_the_place_and_refuses_options_of_models(
    tmp_path: Path, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(tokens), "--format", "megatron", "--out", str(tmp_path / "out")]

    assert main.main(command) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out'}\n"
    assert main.main([*command[:-1], str(tmp_path / "two"), "--precision", "bf16"]) == 2
    assert "--precision: is of models, and --format megatron writes tokens" in capsys.readouterr().err


def test_a_damaged_shard_leaves_nothing(tmp_path: Path, tokens: Path) -> None:
    file = tokens / "train/part-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[1_100] ^= 1
    file.write_bytes(content)

    with pytest.raises(IntegrityError, match="part-00000"):
        export_tokens(str(tokens), tmp_path / "out")

    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()
