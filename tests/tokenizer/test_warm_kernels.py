import os
import subprocess
import sys
from pathlib import Path

import pytest

USE = """
from tokenizers import Tokenizer
from tokenizers.models import BPE
from anadil.artifacts.base_model import base_tokenizer, read_tokenizer
from anadil.tokenizer.bpe import continue_merges
from anadil.tokenizer.pretokens import count_texts
from anadil.tokenizer.bpe import train_vocabulary
from anadil.tokenizer.word_counts import read_counts, sum_counts, write_counts
from anadil.recipe.sections import Base
from pathlib import Path
import sys

base = read_tokenizer(base_tokenizer(Base(model="tiny"), Path(sys.argv[1])))
tables = [count_texts(base, [f"kitab {number} {number + letter} ev" for number in range(60_000)]) for letter in (1, 2)]
write_counts(sum_counts(tables), Path(sys.argv[1]) / "counts")
table = read_counts(Path(sys.argv[1]) / "counts").pruned(2)
train_vocabulary(table, 3_000, 2)
continue_merges(base, table, 500, 2)
continue_merges(base, {"kitab": 3, "kitablar": 3}, 500, 2, lambda token: False)
"""


@pytest.mark.slow
def test_after_warming_nothing_is_compiled(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "compiled")}

    subprocess.run([sys.executable, "-m", "anadil.tokenizer.warm_kernels"], check=True, env=environment)
    warm = compiled_code(tmp_path)
    subprocess.run([sys.executable, "-c", USE, tmp_path], check=True, env=environment)

    assert warm
    assert compiled_code(tmp_path) == warm


def compiled_code(folder: Path) -> set[str]:
    return {file.name for file in (folder / "compiled").rglob("*.nbc")}
