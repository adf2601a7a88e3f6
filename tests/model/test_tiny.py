import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from anadil.artifacts import base_model
from anadil.core.errors import DataError
from anadil.model import tiny
from anadil.model.load import load_model, load_tokenizer
from anadil.recipe.sections import Base
from anadil.runtime.cache_key import base_files


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


DIGEST = "2d8d97a18b897985acdb6274cc1383c1e2bb168f3e2d75f5760cd0b65fd85ae1"
"""SHA-256 over names and bits of the weights after `STEPS` steps on `TEXT`."""
TEXT = "\n".join(
    f"The {noun} of the {other} is {verb} when a {noun} {verb}s the other {other} in line {line}."
    for line, noun in enumerate(
        ("value", "name", "class", "module", "object", "method", "frame", "block") * 5
    )
    for other, verb in (("function", "call"), ("scope", "bind"), ("statement", "return"))
)
STEPS = 12
SCRIPT = f"""
import hashlib, sys
from pathlib import Path
import torch
from anadil.artifacts import base_model as base
from anadil.recipe.sections import Base
from anadil.model import tiny
from anadil.model.load import load_model
base.tiny_text = tiny.tiny_text = lambda: {TEXT!r}
tiny.TINY_STEPS = {STEPS}
model = load_model(tiny.base_model(Base(model="tiny"), Path(sys.argv[1])))
digest = hashlib.sha256()
for name, weight in sorted(model.named_parameters()):
    digest.update(name.encode() + weight.detach().numpy().tobytes())
print(torch.backends.cpu.get_cpu_capability(), digest.hexdigest())
"""


@pytest.mark.parametrize(
    ("capability", "environment"),
    [
        ("", {"OMP_NUM_THREADS": "2"}),
        pytest.param(
            "DEFAULT", {"MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}, marks=pytest.mark.slow
        ),
        pytest.param("AVX2", {"MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}, marks=pytest.mark.slow),
    ],
)
def test_tiny_has_the_same_weights_on_every_cpu(
    tmp_path: Path, capability: str, environment: dict[str, str]
) -> None:
    """As other kinds of CPU compute: torch, MKL and oneDNN choose their kernels by these variables."""
    chosen = environment | ({"ATEN_CPU_CAPABILITY": capability.lower()} if capability else {})

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True, text=True, check=False, env=os.environ | chosen,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    used, digest = done.stdout.split()
    assert used == capability or not capability
    assert digest == DIGEST


@pytest.mark.usefixtures("quick")
def test_making_tiny_takes_one_thread_and_gives_the_others_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, seen = torch.get_num_threads(), []
    rounding = tiny._round

    def noted(optimizer: torch.optim.Optimizer) -> None:
        seen.append(torch.get_num_threads())
        rounding(optimizer)

    monkeypatch.setattr(tiny, "_round", noted)
    torch.set_num_threads(3)
    try:
        state = torch.random.get_rng_state()
        tiny.base_model(Base(model="tiny"), tmp_path)

        assert set(seen) == {1}
        assert torch.get_num_threads() == 3
        assert torch.equal(torch.random.get_rng_state(), state)
    finally:
        torch.set_num_threads(before)


def test_the_threads_come_back_after_a_failure() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(ValueError, match="stopped"), tiny._one_thread():
            raise ValueError("stopped")

        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("quick")
def test_another_text_is_another_tiny_also_in_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each release of Python has another text."""
    one, origin = tiny.base_model(Base(model="tiny"), tmp_path), base_files("tiny")
    for module in (base_model, tiny):
        monkeypatch.setattr(module, "tiny_text", lambda: TEXT)

    other = tiny.base_model(Base(model="tiny"), tmp_path)

    assert one.name != other.name
    assert origin.keys() == base_files("tiny").keys() == {"base files"}
    assert origin != base_files("tiny")


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
