"""A small run of the stage `pretrain` in two processes, forked from one that has imported everything.

So a start costs no import, and hundreds of them fit into minutes. What runs is the stage's own entry
point: recipe, artifacts, group, training, checkpoints, export.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from anadil.artifacts import artifact, storage
from anadil.artifacts.base_model import BEGIN, END
from anadil.model.load import save_model
from anadil.runtime.entry_point import main
from anadil.text.corpus import Document, write_documents

sys.path.append(str(Path(__file__).parents[2]))
from tests.kit.fault_injection import hand_in  # it imports what each start needs

RANKS = 2
STEPS = 60
EVERY = 5
VOCABULARY = 512
TEXT = "builtin:az/prose.jsonl"
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
"""0.2 million parameters."""
PATIENCE_S = 180.0
POLL_S = 0.002
PR_SET_PDEATHSIG = 1
"""Source: linux/prctl.h."""


def make_inputs(folder: Path, steps: int = STEPS) -> None:
    """A corpus, a tokenizer and a base model as artifacts, and the recipe of all runs; in a fork."""
    child = os.fork()
    if not child:
        _make_inputs(folder, steps)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(f"{folder}: the inputs cannot be made")


def _make_inputs(folder: Path, steps: int) -> None:
    lines = storage.built_in(TEXT).read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    documents = [Document(id=f"{i:04x}", text=t, source="", url="", lang="az") for i, t in enumerate(texts)]
    write_documents(folder / "corpus", "train", documents[:-4])
    write_documents(folder / "corpus", "heldout", documents[-4:])
    artifact.seal(folder / "corpus", kind="corpus", origin={})
    tokenizer = folder / "tokenizer"
    _make_tokenizer(tokenizer, texts)
    torch.manual_seed(1)
    config = LlamaConfig(**SHAPE, vocab_size=VOCABULARY, tie_word_embeddings=True, initializer_range=0.1)
    save_model(LlamaForCausalLM(config), tokenizer, folder / "model", torch.float32)
    (tokenizer / "embedding_map.json").write_text(json.dumps({"rows": None}))
    artifact.seal(tokenizer, kind="tokenizer", origin={})
    embeddings = steps // 5
    phases = [
        {"trains": "embeddings", "steps": embeddings, "lr": 0.01},
        {"trains": "all", "steps": steps - embeddings, "lr": 0.003},
    ]
    pretrain = {
        "phases": phases, "batch_size": 4, "micro_batch_size": 2, "sequence_length": 64,
        "checkpoint_every": EVERY, "log_every": 1, "validate_every": 20,
    }  # fmt: skip
    recipe = {"seed": 7, "base": {"model": str(folder / "model")}, "tracking": {"uri": "off"}}
    (folder / "recipe.yaml").write_text(json.dumps({**recipe, "pretrain": pretrain}))


def _make_tokenizer(folder: Path, texts: list[str]) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - 2, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in (BEGIN, END)])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


@dataclass(slots=True, kw_only=True)
class Start:
    """The processes of one start of a run."""

    pids: tuple[int, ...]
    logs: tuple[Path, ...]
    """Stderr of each process, as JSON lines."""
    at: float
    """Unix time."""
    codes: dict[int, int] = field(default_factory=dict)
    """Exit code of each process that has ended, or minus the number of a signal."""

    def ended(self, seconds: float = PATIENCE_S) -> bool:
        """Wait for all processes; True if they end within a time."""
        deadline = time.monotonic() + seconds
        while True:
            for pid in set(self.pids) - self.codes.keys():
                ended_pid, status = os.waitpid(pid, os.WNOHANG)
                if ended_pid:
                    self.codes[pid] = os.waitstatus_to_exitcode(status)
            if len(self.codes) == len(self.pids) or time.monotonic() > deadline:
                return len(self.codes) == len(self.pids)
            time.sleep(POLL_S)

    def kill(self) -> None:
        """SIGKILL to all that run, at once, and wait for their end."""
        for pid in set(self.pids) - self.codes.keys():
            os.kill(pid, signal.SIGKILL)
        assert self.ended()

    def exit_codes(self) -> list[int]:
        """By rank."""
        return [self.codes[pid] for pid in self.pids]

    def said(self, rank: int = 0) -> list[dict[str, Any]]:
        """The whole lines of a process's log."""
        lines = self.logs[rank].read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def start(
    folder: Path, name: str, settings: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Start:
    """Start or resume a run.

    Args:
        folder: What `make_inputs` has filled.
        name: Of the run; its artifact is `folder / name`, its work directory `folder / name.work`.
        settings: `key=value` that the recipe does not say.
        environment: Beside that of the group.
    """
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a process with threads must not fork"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
    command = ["--recipe", str(folder / "recipe.yaml"), "--out", str(folder / name)]
    command += [f"--{word}={folder / word}" for word in ("corpus", "tokenizer")]
    command += [f"--set={one}" for one in settings]
    logs = tuple(folder / f"{name}.rank-{rank}.log" for rank in range(RANKS))
    at, pids = time.time(), []
    for rank, log in enumerate(logs):
        own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "ANADIL_LOG": "json"}
        pids.append(os.fork() or _rank({**own, **(environment or {})}, log, command))
    return Start(pids=tuple(pids), logs=logs, at=at)


def _rank(environment: Mapping[str, str], log: Path, command: Sequence[str]) -> int:
    """In the fork: the stage, as `python -m anadil.pretrain` runs it."""
    code = 99
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.environ.update(environment)
        torch.set_num_threads(1)
        hand_in()
        code = main("pretrain", command)
    except SystemExit as error:
        code = int(error.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def losses(path: Path) -> dict[int, float]:
    """Loss by step of a `training.jsonl`; the last line may be half written."""
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    assert len({line["step"] for line in lines}) == len(lines), f"{path}: a step twice"
    return {line["step"]: line["loss"] for line in lines if line["step"]}
