"""What we save is the same model to transformers 4, in an environment of its own."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from anadil.model.family_table import model_types
from anadil.model.load import load_model, save_model
from tests.kit.families import make_family
from tests.kit.llama import small_llama
from tests.kit.pretraining import make_tokenizer

pytestmark = pytest.mark.slow

PACKAGES = ("transformers==4.57.6", "tokenizers==0.22.2", "huggingface-hub==0.36.2")
"""The last of version 4, and the only dependencies that it wants older than ours."""
READ = """
import json, sys, torch
from pathlib import Path
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, __version__
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
assert __version__.startswith("4.57."), __version__
ids = torch.load(sys.argv[1], weights_only=True)
for folder in map(Path, sys.argv[2:]):
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    if kind not in CONFIG_MAPPING:
        continue
    assert AutoConfig.from_pretrained(folder).dtype == torch.float32, kind
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        torch.save(model(input_ids=ids).logits, folder / "logits.pt")
    if (folder / "tokenizer_config.json").is_file():
        print(AutoTokenizer.from_pretrained(folder).model_max_length)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with transformers 4 before our own packages, of which it takes torch and the rest."""
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "anadil-tests"
    folder = root / f"transformers-4-{sys.version_info.major}.{sys.version_info.minor}"
    made = folder / "bin/python"
    if not (folder / "whole").is_file():
        venv.create(folder, with_pip=False, clear=True)
        install = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(made),
            "install",
            "-q",
            "--no-deps",
            *PACKAGES,
        ]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{PACKAGES[0]} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
        (folder / "whole").touch()
    own = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})["purelib"]
    Path(own, "beside.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    return made


def read_by_4(python: Path, folders: list[Path], ids: torch.Tensor, scratch: Path) -> str:
    """Leaves the logits of version 4 in each folder; what it prints."""
    torch.save(ids, scratch / "ids.pt")
    command = [str(python), "-W", "ignore", "-c", READ, str(scratch / "ids.pt"), *map(str, folders)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def logits_of(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids).logits
    return logits


def test_version_4_predicts_the_same_tokens_of_a_llama_3_shape(python: Path, tmp_path: Path) -> None:
    model = small_llama(
        seed=3,
        vocab_size=300,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        max_position_embeddings=4096,
        initializer_range=0.2,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    )
    saved = tmp_path / "model"
    save_model(model, make_tokenizer(tmp_path / "t"), saved, torch.float32)
    ids = torch.randint(0, 300, (2, 512), generator=torch.Generator().manual_seed(4))

    told = read_by_4(python, [saved], ids, tmp_path)

    ours, theirs = logits_of(saved, ids), torch.load(saved / "logits.pt", weights_only=True)
    assert (ours.argmax(-1) == theirs.argmax(-1)).float().mean() == 1.0
    assert told.split() == ["4096"]


def test_version_4_computes_every_family_that_it_knows_as_version_5_does(
    python: Path, tmp_path: Path
) -> None:
    ids = torch.randint(0, 300, (1, 64), generator=torch.Generator().manual_seed(4))
    make_tokenizer(tmp_path / "t")
    folders = []
    for kind in model_types():
        made = make_family(tmp_path / "made" / kind, kind)
        save_model(load_model(made), tmp_path / "t", tmp_path / kind, torch.float32)
        folders.append(tmp_path / kind)

    read_by_4(python, folders, ids, tmp_path)

    known = [folder for folder in folders if (folder / "logits.pt").is_file()]
    assert {folder.name for folder in folders} - {folder.name for folder in known} == NEWER
    for folder in known:
        theirs = torch.load(folder / "logits.pt", weights_only=True)
        # Version 4 keeps the constants of Apertus in BF16.
        assert (logits_of(folder, ids) - theirs).norm() < 5e-3 * theirs.norm(), folder.name


NEWER = {"cwm", "hyperclovax", "jais2", "ministral3"}
"""Types that came with version 5."""
