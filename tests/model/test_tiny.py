from pathlib import Path

import pytest

from anadil.config import Base
from anadil.errors import DataError
from anadil.model import tiny
from anadil.model.load import load_model, load_tokenizer


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing takes some seconds."""
    monkeypatch.setattr(tiny, "TINY_STEPS", 2)
    monkeypatch.setattr(tiny, "TINY_BATCH", 1)


@pytest.mark.usefixtures("quick")
def test_tiny_is_the_same_bytes_wherever_it_is_made(tmp_path: Path) -> None:
    one, two = (tiny.base_model(Base(model="tiny"), tmp_path / name) for name in "ab")

    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    assert one.name == two.name
    assert not list((tmp_path / "a").glob("tiny-model-*"))


@pytest.mark.usefixtures("quick")
def test_tiny_is_a_small_tied_llama_with_its_tokenizer_and_is_made_once(tmp_path: Path) -> None:
    path = tiny.base_model(Base(model="tiny"), tmp_path)
    made = (path / "model.safetensors").stat().st_mtime_ns

    again = tiny.base_model(Base(model="tiny"), tmp_path)

    model = load_model(path)
    assert again == path
    assert (path / "model.safetensors").stat().st_mtime_ns == made
    assert model.config.tie_word_embeddings
    assert model.config.vocab_size == len(load_tokenizer(path))
    assert sum(p.numel() for p in model.parameters()) < 5e6


def test_a_model_directory_is_its_own_base(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")

    assert tiny.base_model(Base(model=str(tmp_path)), tmp_path / "cache") == tmp_path


def test_a_missing_directory_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"base.model: no directory"):
        tiny.base_model(Base(model=str(tmp_path / "none")), tmp_path)
