"""Whether GGUF has an output table goes by the files, not by config.json."""

import json
from pathlib import Path

import gguf

from anadil.release.export.gguf_file import write_gguf
from tests.kit.llama_3 import make_llama_3


def test_a_head_that_config_calls_tied_is_written(tmp_path: Path) -> None:
    directory = make_llama_3(tmp_path / "model", tie_word_embeddings=False)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))

    write_gguf(directory, tmp_path / "m.gguf", name="test")

    assert "output.weight" in {tensor.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
