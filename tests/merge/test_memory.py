"""Memory of a merge is that of some blocks, whatever the model's size."""

from pathlib import Path

import pytest

from tests.kit.child import peak_memory
from tests.kit.merging import sparse_models

SIZES = {"vocab_size": 32_000, "hidden_size": 1_024, "intermediate_size": 4_096, "num_attention_heads": 16}
MERGE = """
import sys
from anadil.merge import weights
base, instruct, model, tokenizer, out = map(Path, sys.argv[1:6])
weights.BLOCK_BYTES = 4 * 1024**2
ends = weights.Ends.open(model, base, tokenizer, add=[(instruct, base)])
print(ends.write(out, 0.25, [0.7])["bytes"])
"""
MOST_MORE_MIB = 40
"""Measured: 0 to 15 MiB, of malloc."""


@pytest.mark.slow
def test_a_model_of_many_layers_takes_the_memory_of_one_of_few(tmp_path: Path) -> None:
    peaks, sizes = [], []
    for layers in (1, 12):
        models = sparse_models(tmp_path / f"{layers}", **SIZES, num_hidden_layers=layers)
        folders = (models.base, models.instruct, models.model, models.tokenizer, tmp_path / f"{layers}/out")
        peak, printed = peak_memory("from pathlib import Path\n" + MERGE, *folders)
        peaks.append(peak)
        sizes.append(int(printed.splitlines()[-1]) / 1024**2)

    assert sizes[1] - sizes[0] > 300
    assert peaks[1] - peaks[0] < MOST_MORE_MIB
