import hashlib
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from anadil.artifacts import base_model
from anadil.core.errors import DataError
from anadil.model import tiny
from anadil.model.load import load_model, load_tokenizer
from anadil.recipe.sections import Base
from anadil.runtime.cache_key import base_files
from anadil.runtime.threads import ASLEEP
from tests.kit.marks import matrix
from tests.kit.ranks import in_forks


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing takes some seconds."""
    monkeypatch.setattr(tiny, "TINY_STEPS", 2)
    monkeypatch.setattr(tiny, "TINY_BATCH", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_tiny_is_a_small_tied_llama_of_the_same_bytes_wherever_it_is_made_and_made_once(
    tmp_path: Path,
) -> None:
    one, two = (tiny.base_model(Base(model="tiny"), tmp_path / name) for name in "ab")
    made = (one / "model.safetensors").stat().st_mtime_ns

    again = tiny.base_model(Base(model="tiny"), tmp_path / "a")

    assert again == one
    assert (one / "model.safetensors").stat().st_mtime_ns == made
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    assert one.name == two.name
    assert not list((tmp_path / "a").glob("tiny-model-*"))
    model = load_model(one)
    assert model.config.tie_word_embeddings
    assert model.config.vocab_size == len(load_tokenizer(one))
    assert sum(p.numel() for p in model.parameters()) < 5e6


def test_of_workers_that_share_a_directory_one_makes_tiny(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def save(_: object, __: object, draft: Path, ___: object) -> None:
        made.append(draft)
        time.sleep(0.5)

    monkeypatch.setattr(tiny, "base_tokenizer", lambda *_: tmp_path)
    monkeypatch.setattr(tiny, "_trained", lambda _: None)
    monkeypatch.setattr(tiny, "save_model", save)
    (tmp_path / "tokenizer.json").write_text("{}")
    with ThreadPoolExecutor(3) as workers:
        found = set(workers.map(lambda _: tiny.base_model(Base(model="tiny"), tmp_path / "cache"), range(3)))

    assert len(made) == len(found) == 1
    assert list((tmp_path / "cache").iterdir()) == list(found)


DIGEST = "f7f6677c19afd4a5c77c4b1d286606a4e520075b3ca48f65938578b418e6afdd"
"""SHA-256 over names and bits of the weights after `STEPS` steps on `TEXT`."""
TEXT = "\n".join(
    f"The {noun} of the {other} is {verb} when a {noun} {verb}s the other {other} in line {line}."
    for line, noun in enumerate(
        ("value", "name", "class", "module", "object", "method", "frame", "block") * 5
    )
    for other, verb in (("function", "call"), ("scope", "bind"), ("statement", "return"))
)
STEPS = 4


def print_digest(folder: Path, threads: int = 1) -> None:
    """In a process of its own: the CPU's kind, and what `DIGEST` is."""
    for module in (base_model, tiny):
        vars(module)["tiny_text"] = lambda: TEXT
    vars(tiny)["TINY_STEPS"] = STEPS
    torch.set_num_threads(threads)
    model = load_model(tiny.base_model(Base(model="tiny"), folder))
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        digest.update(name.encode() + weight.detach().numpy().tobytes())
    print(torch.backends.cpu.get_cpu_capability(), digest.hexdigest())


@pytest.mark.slow
def test_tiny_has_the_weights_that_it_always_had(tmp_path: Path) -> None:
    codes = in_forks([partial(print_digest, tmp_path / "cache")], tmp_path)

    said = (tmp_path / "0.log").read_text()
    assert codes == [0], said
    assert said.split()[-1] == DIGEST


@pytest.mark.parametrize(
    ("capability", "environment"),
    [
        matrix("DEFAULT", {"MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}),
        matrix("AVX2", {"MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}),
    ],
)
def test_tiny_has_the_same_weights_on_every_cpu_and_with_two_threads(
    tmp_path: Path, capability: str, environment: dict[str, str]
) -> None:
    """As other kinds of CPU compute: torch, MKL and oneDNN choose their kernels by these variables."""
    script = f"from tests.model.test_tiny import Path, print_digest; print_digest(Path({str(tmp_path)!r}), 2)"

    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
        env=os.environ | environment | ASLEEP | {"ATEN_CPU_CAPABILITY": capability.lower()},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == [capability, DIGEST]


@pytest.mark.usefixtures("quick")
def test_making_tiny_moves_no_random_numbers_of_others(tmp_path: Path) -> None:
    state = torch.random.get_rng_state()

    tiny.base_model(Base(model="tiny"), tmp_path)

    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.usefixtures("quick")
def test_another_text_is_another_tiny_also_in_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, origin = tiny.base_model(Base(model="tiny"), tmp_path), base_files("tiny")
    for module in (base_model, tiny):
        monkeypatch.setattr(module, "tiny_text", lambda: TEXT)

    other = tiny.base_model(Base(model="tiny"), tmp_path)

    assert one.name != other.name
    assert origin.keys() == base_files("tiny").keys() == {"base files"}
    assert origin != base_files("tiny")


def test_a_model_directory_is_its_own_base(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")

    assert tiny.base_model(Base(model=str(tmp_path)), tmp_path / "cache") == tmp_path


def test_a_missing_directory_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"base.model: no directory"):
        tiny.base_model(Base(model=str(tmp_path / "none")), tmp_path)
