import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from anadil.core.errors import IntegrityError
from anadil.evaluate.run import refuse_other_rank

MATRIX = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def write(folder: Path, said: int, rank: int) -> Path:
    (folder / "adapter_config.json").write_text(json.dumps({"r": said, "lora_alpha": 28}), encoding="utf-8")
    save_file({MATRIX: np.zeros((rank, 32), dtype=np.float32)}, folder / "adapter_model.safetensors")
    return folder


def test_an_adapter_of_another_rank_than_it_says_is_refused_with_both(tmp_path: Path) -> None:
    with pytest.raises(
        IntegrityError, match=r"q_proj\.lora_A\.weight has rank 8, and adapter_config.json says 64"
    ):
        refuse_other_rank(write(tmp_path, 64, 8))


def test_an_adapter_of_its_rank_and_a_model_of_which_all_was_trained_pass(tmp_path: Path) -> None:
    refuse_other_rank(tmp_path)
    refuse_other_rank(write(tmp_path, 8, 8))


def test_a_torn_adapter_is_an_integrity_error(tmp_path: Path) -> None:
    write(tmp_path, 8, 8)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\x10\0\0\0")

    with pytest.raises(IntegrityError, match="damaged"):
        refuse_other_rank(tmp_path)
