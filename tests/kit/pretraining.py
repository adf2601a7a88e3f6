"""A random model of two layers, a byte-level tokenizer and a few documents, as artifacts."""

import json
import os
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from anadil.artifacts import artifact
from anadil.pretrain.metrics_logger import FILE
from anadil.recipe.sections import Recipe
from anadil.runtime.job import Job
from anadil.runtime.tracking_spool import Tracker
from anadil.text.corpus import Document, write_documents
from tests.kit.pretraining_texts import PRETRAINING_TEXTS
from tests.kit.ranks import variables_of_ranks

SPECIALS = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")


SHORT: list[dict[str, Any]] = [
    {"trains": "embeddings", "steps": 1, "lr": 0.01},
    {"trains": "all", "steps": 3, "lr": 0.005},
]
"""Phases of a run that shows whether it trains at all, or as another one does."""


def make_tokenizer(folder: Path, vocab_size: int = 300, specials: Sequence[str] = SPECIALS) -> Path:
    """A Hugging Face tokenizer directory."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(specials),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(PRETRAINING_TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[0],
        "eos_token": SPECIALS[1],
        "model_max_length": 64,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    return folder


def set_bos(tokenizer: Path) -> None:
    """Let a tokenizer set BOS before every text, as Llama's and Gemma's do."""
    opened = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    opened.post_processor = processors.TemplateProcessing(
        single=f"{SPECIALS[0]} $A", special_tokens=[(SPECIALS[0], opened.token_to_id(SPECIALS[0]))]
    )
    opened.save(str(tokenizer / "tokenizer.json"))


def make_model(
    folder: Path,
    *,
    tied: bool = True,
    vocab_size: int = 300,
    seed: int = 1,
    specials: Sequence[str] = SPECIALS,
) -> Path:
    """A Hugging Face model directory with random weights."""
    import torch

    from anadil.model.load import save_model
    from tests.kit.llama import small_llama

    tokenizer = make_tokenizer(folder / "t", vocab_size, specials)
    model = small_llama(
        seed=seed,
        vocab_size=vocab_size,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        initializer_range=0.1,
    )
    save_model(model, tokenizer, folder, torch.float32)
    for file in tokenizer.iterdir():
        file.unlink()
    tokenizer.rmdir()
    return folder


def make_documents(texts: Sequence[str]) -> list[Document]:
    """One for each text."""
    return [
        Document(id=f"{i:04x}", text=text, source="test", url="", lang="az") for i, text in enumerate(texts)
    ]


def make_corpus(folder: Path, texts: Sequence[str] = PRETRAINING_TEXTS, heldout: Sequence[str] = ()) -> Path:
    """A corpus artifact."""
    write_documents(folder, "train", make_documents(texts))
    write_documents(folder, "heldout", make_documents(heldout))
    artifact.seal(folder, kind="corpus", origin={})
    return folder


def make_tokenizer_artifact(folder: Path, rows: list[list[int]] | None = None, vocab_size: int = 300) -> Path:
    """A tokenizer artifact whose embedding map is `rows`."""
    make_tokenizer(folder, vocab_size)
    (folder / "embedding_map.json").write_text(json.dumps({"rows": rows}))
    artifact.seal(folder, kind="tokenizer", origin={})
    return folder


def make_recipe(base: Path, **pretrain: Any) -> Recipe:
    """Two short phases, unless `pretrain` says otherwise."""
    settings: dict[str, Any] = {
        "phases": [
            {"trains": "embeddings", "steps": 4, "lr": 0.01},
            {"trains": "all", "steps": 8, "lr": 0.005},
        ],
        "batch_size": 4,
        "micro_batch_size": 2,
        "sequence_length": 32,
        "checkpoint_every": 3,
        "log_every": 1,
    }
    return Recipe.model_validate(
        {"seed": 7, "base": {"model": str(base)}, "pretrain": {**settings, **pretrain}}
    )


class SignalAt(Tracker):
    """Sends this process a signal when a step is logged."""

    def __init__(self, step: int, signal: int, after: Path | None = None) -> None:
        """Waits for `after`, such as a checkpoint that is written in the background."""
        super().__init__(None)
        self.at = step
        self.signal = signal
        self.after = after

    def metrics(self, values: Any, step: int | None = None) -> None:
        if step == self.at:
            while self.after is not None and not self.after.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), self.signal)


def make_job(tmp_path: Path, recipe: Recipe, name: str = "a", tracker: Tracker | None = None) -> Job:
    """A job whose inputs are below `tmp_path`; `name` tells runs apart."""
    out, work = tmp_path / name / "out", tmp_path / name / "work"
    out.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    inputs = {"corpus": tmp_path / "corpus", "tokenizer": tmp_path / "tokenizer"}
    return Job(
        recipe=recipe,
        inputs=inputs,
        out=out,
        work=work,
        base_cache=tmp_path / "base",
        tracker=tracker or Tracker(None),
    )


def generations(job: Job) -> list[Path]:
    """Finished checkpoints of a run, the newest first."""
    return sorted(job.work.glob("checkpoints/step-????????"), reverse=True)


def losses(folder: Path) -> dict[int, float]:
    """Loss by step, as `training.jsonl` says; a step twice is an error."""
    lines = [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
    assert len({line["step"] for line in lines}) == len(lines)
    return {line["step"]: line["loss"] for line in lines if line["step"]}


def in_child(work: Callable[[], object], environment: dict[str, str] | None = None) -> int:
    """Start `work` in a fork of this process; the child's id."""
    import torch

    child = os.fork()
    if child:
        return child
    try:
        os.environ.update(environment or {})
        torch.set_num_threads(1)
        work()
    except BaseException as error:  # noqa: BLE001  nothing may leave the fork
        traceback.print_exc()
        os._exit(int(getattr(error, "exit_code", 99)))
    os._exit(0)


def run_in_child(job: Job) -> int:
    """Run the stage in a fork, with its signals taken over and the faults of ANADIL_INJECT; exit code, or minus a signal."""
    from tests.kit.fault_injection import run

    def work() -> None:
        job.stop.listen()
        run(job)

    return os.waitstatus_to_exitcode(os.waitpid(in_child(work), 0)[1])


def run_in_several(job: Job, processes: int = 2) -> list[int]:
    """Run the stage in forks that train together over gloo, with the faults of ANADIL_INJECT; their exit codes."""
    from tests.kit.fault_injection import run

    def work() -> None:
        job.stop.listen()
        run(job)

    children = [in_child(work, variables) for variables in variables_of_ranks(processes)]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
