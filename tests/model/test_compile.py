import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import LlamaForCausalLM

from anadil.core.errors import PreflightError
from anadil.model.attention import use_packed_attention
from anadil.model.kernels import Policy, check_compiler, checkpoint_layers, compile_layers, decoder_layers
from tests.kit.llama import small_llama
from tests.kit.machines import descendants
from tests.kit.marks import matrix, slow
from tests.kit.ranks import in_ranks

# torch's own, while it loads its compiler, and where it looks at every tensor's gradient.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The distutils package:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
NUM_LAYERS = 3
BORDERS = ([0, 10, 32, 64], [0, 32, 64], [0, 5, 9, 32, 40, 64], [0, 1, 2, 32, 33, 64], [0, 32, 50, 64])
"""Of two sequences of 32 tokens."""
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def forget_programs() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    limit = torch._dynamo.config.recompile_limit
    yield
    torch._dynamo.config.recompile_limit = limit
    torch._dynamo.reset()


def llama(num_layers: int = NUM_LAYERS) -> LlamaForCausalLM:
    made = small_llama(num_hidden_layers=num_layers)
    made.config.use_cache = False
    use_packed_attention(made)
    return made


def loss_of(made: nn.Module, borders: list[int]) -> torch.Tensor:
    inner: Any = made
    positions = torch.cat([torch.arange(end - begin) for begin, end in pairwise(borders)])
    states: torch.Tensor = inner.base_model(
        input_ids=(torch.arange(64) * 5 % 64).reshape(2, 32),
        position_ids=positions.view(2, 32),
        borders=torch.tensor(borders, dtype=torch.int32),
        use_cache=False,
    ).last_hidden_state
    return states.square().mean()


def losses(made: nn.Module) -> list[float]:
    """A step of plain gradient descent on each batch."""
    found = []
    for borders in BORDERS:
        loss = loss_of(made, borders)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.5)
                    parameter.grad = None
        found.append(float(loss.detach()))
    return found


@pytest.mark.parametrize("policy", [matrix("none"), matrix("selective"), slow("full")])
def test_one_program_serves_all_layers_and_all_borders(policy: Policy) -> None:
    expected = losses(llama())
    made = llama()
    checkpoint_layers(decoder_layers(made), policy)

    compile_layers(decoder_layers(made), backend="aot_eager")
    found = losses(made)

    assert found == pytest.approx(expected, rel=1e-6)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@pytest.mark.slow
def test_a_deep_copy_calls_its_own_layers() -> None:
    made = llama(1)
    compile_layers(decoder_layers(made), backend="eager")
    before = float(loss_of(made, BORDERS[0]).detach())

    other = copy.deepcopy(made)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()

    assert float(loss_of(other, BORDERS[0]).detach()) == before


@pytest.mark.slow
def test_compiled_losses_are_those_of_eager_layers() -> None:
    eager, made = llama(), llama()
    expected = losses(eager)

    compile_layers(decoder_layers(made))
    actual = losses(made)

    assert actual == pytest.approx(expected, rel=1e-5)
    assert [name for name, _ in made.named_parameters()] == [name for name, _ in eager.named_parameters()]
    assert counters["stats"]["unique_graphs"] <= 2


def test_without_a_compiler_or_the_named_one_nothing_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)

    with pytest.raises(PreflightError, match=r"CXX is not set, no g\+\+ or clang\+\+.*pretrain.compile"):
        check_compiler(CPU)
    with pytest.raises(PreflightError, match=r"pretrain.kernels needs .*no gcc or clang.*kernels to torch"):
        check_compiler(torch.device("cuda"), "pretrain.kernels", "torch")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(PreflightError, match="CXX=no-such-compiler"):
        check_compiler(CPU)


def test_without_python_headers_nothing_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})

    with pytest.raises(PreflightError, match=r"no .*Python.h; install them .*python3-dev"):
        check_compiler(CPU)


def sharded(_rank: int) -> None:
    """On each of two processes, which see the same batches."""
    mesh = init_device_mesh("cpu", (2,))
    expected = losses(llama())
    for policy in ("none", "selective"):
        torch._dynamo.reset()
        counters.clear()
        made = llama()
        checkpoint_layers(decoder_layers(made), policy)
        compile_layers(decoder_layers(made), backend="aot_eager")
        for layer in decoder_layers(made):
            fully_shard(layer, mesh=mesh)
        fully_shard(made.base_model, mesh=mesh)
        assert losses(made) == pytest.approx(expected, rel=1e-5), policy
        assert counters["stats"]["unique_graphs"] == 1, dict(counters["stats"])


def stopped() -> None:
    """Compile until a signal comes, which is answered as a stage answers it."""

    def leave(number: int, _frame: Any) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    made = llama(1)
    compile_layers(decoder_layers(made))
    print("compiling", flush=True)
    losses(made)
    print("compiled", flush=True)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


@pytest.mark.matrix
def test_fsdp_runs_its_hooks_around_compiled_layers() -> None:
    in_ranks(sharded, 2)


@pytest.mark.parametrize("after_s", [matrix(1.0), matrix(5.0)])
def test_a_signal_ends_compilation_and_its_helpers(tmp_path: Path, after_s: float) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.model.test_compile"],
        # An empty cache, else there would be nothing to compile; two threads, for helper processes.
        env=environment(TORCHINDUCTOR_CACHE_DIR=str(tmp_path), TORCHINDUCTOR_COMPILE_THREADS="2"),
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "compiling\n"
    time.sleep(after_s)
    helpers = descendants(child.pid)

    child.send_signal(signal.SIGTERM)
    rest = child.communicate(timeout=60)[0]

    assert (child.returncode, rest) == (128 + signal.SIGTERM, "")
    deadline = time.monotonic() + 10
    while any(is_alive(helper) for helper in helpers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [helper for helper in helpers if is_alive(helper)]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    torch.set_num_threads(1)
    stopped()
