"""Results of the stages that compute with a model, and of the report, on small random models.

Each stage has inputs of its own, not what the stage before it made: what changes in one is told of that one.
What every CPU computes alike (ids, places, names, shapes, counts, learning rates) is compared as it is, or by
digest. Losses are not alike: AVX2, AVX-512 and a CPU without either add in another order, as do one and two
threads, and the rounding errors, about 1e-7 of a loss, grow with each step. So training takes a few steps,
and of its losses and of scores three digits count: what differs between CPUs stays a thousandth of that, what
a changed schedule, mask or start differs is more. Generated texts are left out: where two tokens are nearly
as likely, a rounding error chooses another.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors import safe_open

from anadil.artifacts.chat_files import read_chats
from anadil.artifacts.mlmodel import COMPONENTS, ENVIRONMENT, MLMODEL
from anadil.evaluate import run as evaluating
from anadil.evaluate.bits_per_byte import windows
from anadil.finetune import run as finetuning
from anadil.finetune.encode import encode_chats
from anadil.model.load import load_tokenizer
from anadil.pretrain import run as pretraining
from anadil.pretrain.data.batch import batch_of
from anadil.pretrain.data.order import sequences_of_step
from anadil.pretrain.embedding_init import vocabulary_rows, whole_table
from anadil.pretrain.lr_schedule import rate_factor
from anadil.recipe.pretrain import Phase, Pretrain
from anadil.recipe.sections import Recipe
from anadil.report import run as reporting
from anadil.runtime.job import Job
from anadil.text.chats import DroppedChats
from anadil.text.corpus import Document, write_documents
from tests.finetune.conftest import SENTENCES, write_model
from tests.kit import report_run
from tests.kit.pretraining import make_corpus, make_job, make_model, make_recipe, make_tokenizer_artifact
from tests.kit.pretraining_texts import PRETRAINING_TEXTS
from tests.kit.results import digest
from tests.kit.tokens import tokens_of_corpus

Results = dict[str, object]

MLFLOW_FILES = {MLMODEL, COMPONENTS, *ENVIRONMENT}
BASE_ROWS = 300
NEW_ROWS = 310
CHATS: tuple[dict[str, Any], ...] = (
    {"prompt": SENTENCES[0], "response": SENTENCES[1]},
    {"prompt": SENTENCES[2], "response": SENTENCES[3]},
    {
        "messages": [
            {"role": "system", "content": "Qısa cavab ver."},
            {"role": "user", "content": "Salam!"},
            {"role": "assistant", "content": "Salam! Necə kömək edə bilərəm?"},
            {"role": "user", "content": SENTENCES[2]},
            {"role": "assistant", "content": f"{SENTENCES[3]} <|eot_id|>"},
        ]
    },
    {"prompt": "Nizami Gəncəvi kimdir?", "response": SENTENCES[4]},
    {"prompt": "Uzun?", "response": SENTENCES[4] * 40},
    {"prompt": "", "response": "Sual yoxdur."},
)


def model_results(folder: Path) -> dict[str, Results]:
    """Stage -> name of a result -> what it is, made below `folder`."""
    stages = {"pretrain": _pretrain, "finetune": _finetune, "evaluate": _evaluate, "report": _report}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two only wait for each other over models this small
    try:
        # A GPU computes in BF16, of which three digits do not agree.
        with mock.patch("torch.cuda.is_available", return_value=False):
            return {name: results(folder / name) for name, results in stages.items()}
    finally:
        torch.set_num_threads(threads)


def _pretrain(folder: Path) -> Results:
    rows: list[Any] = [
        None if new < 280 else [new % 7, new % 31, new % 271][: 1 + new % 3] for new in range(NEW_ROWS)
    ]
    base = make_model(folder / "model", vocab_size=BASE_ROWS)
    corpus = make_corpus(folder / "corpus")
    tokenizer = make_tokenizer_artifact(folder / "tokenizer", rows, NEW_ROWS)
    phases = [{"trains": "embeddings", "steps": 3, "lr": 0.01}, {"trains": "all", "steps": 3, "lr": 0.005}]
    # `auto` is BF16 on a CPU that has its products.
    recipe = make_recipe(base, phases=phases, checkpoint_every=100, precision="fp32")
    job = make_job(folder, recipe)
    pretraining.run(job)
    rows_made = vocabulary_rows(tokenizer, BASE_ROWS)
    assert rows_made is not None
    # Whole numbers, whose means are the same on every CPU.
    table = (torch.arange(BASE_ROWS * 4).reshape(BASE_ROWS, 4) ** 2 % 1009).float()
    lines = _lines(job.out / "training.jsonl")
    return {
        "sequences": digest(_sequences(recipe, corpus, tokenizer, job.work)),
        "sources of rows": digest(rows_made.sources),
        "new rows": digest([_rounded(row, 5) for row in whole_table(rows_made, table).tolist()]),
        "learning rates": _rounded((line["lr"] for line in lines), 6),
        **{f"schedule {name}": digest(_schedule(name)) for name in ("cosine", "wsd")},
        "losses": _rounded(line["loss"] for line in lines),
        "gradients": _rounded(line["grad_norm"] for line in lines),
        "tensors": digest(_tensors(job.out)),
        "config": _keys(job.out / "config.json"),
        "files": _files(job.out),
    }


def _sequences(recipe: Recipe, corpus: Path, tokenizer: Path, work: Path) -> list[object]:
    """What each step trains on, over more than an epoch."""
    settings = recipe.pretrain
    packed = tokens_of_corpus(corpus, tokenizer, work, length=settings.sequence_length, write=False).packed
    found: list[object] = [packed.num_sequences, packed.num_targets]
    for step in range(2 + packed.num_sequences // settings.batch_size):
        batch = batch_of(
            packed,
            sequences_of_step(step, batch_size=settings.batch_size, blocks=packed.blocks, seed=recipe.seed),
        )
        found += [part.tolist() for part in (batch.input_ids, batch.position_ids, batch.labels)]
    return found


def _schedule(name: str) -> list[float]:
    settings = Pretrain.model_validate({"schedule": name})
    phase = Phase(trains="all", steps=200, lr=1.0)
    return _rounded((rate_factor(step, phase, settings) for step in range(phase.steps)), 6)


def _finetune(folder: Path) -> Results:
    model, chats = folder / "model", folder / "chats.jsonl"
    write_model(model)
    chats.write_text("".join(json.dumps(chat) + "\n" for chat in CHATS), encoding="utf-8")
    settings = {"rank": 8, "batch_size": 2, "epochs": 2.5, "lr": 0.005, "max_length": 200, "dropout": 0.0}
    recipe = Recipe.model_validate({"seed": 7, "finetune": settings})
    job = _job(folder, recipe, {"model": model}, (str(chats),))
    finetuning.run(job)
    dropped = DroppedChats()
    encoded = encode_chats(load_tokenizer(model), read_chats((str(chats),), dropped), 200, dropped)
    examples = [example for _, example in encoded]
    lines = _lines(job.out / "training.jsonl")
    adapter = json.loads((job.out / "adapter_config.json").read_text(encoding="utf-8"))
    names = ("r", "lora_alpha", "lora_dropout", "target_modules", "use_rslora", "use_dora", "bias")
    audit = json.loads((job.out / "mask_audit.json").read_text(encoding="utf-8"))
    return {
        "ids": digest([example.input_ids for example in examples]),
        "masks": digest([example.labels for example in examples]),
        "dropped": json.dumps(dropped.counts, sort_keys=True),
        "trained tokens": audit["trained_tokens"],
        "learning rates": _rounded((line["lr"] for line in lines), 6),
        "losses": _rounded(line["loss"] for line in lines),
        "adapter": digest({name: adapter[name] for name in names}),
        "tensors": digest([_tensors(job.out), _tensors(job.out / "merged")]),
        "config": _keys(job.out / "merged" / "config.json"),
        "files": _files(job.out),
    }


def _evaluate(folder: Path) -> Results:
    corpus = folder / "corpus"
    documents = [
        Document(id=f"{i:04x}", text=text, source="", url="", lang="az")
        for i, text in enumerate(PRETRAINING_TEXTS)
    ]
    write_documents(corpus, "train", documents[:5])
    write_documents(corpus, "heldout", documents[4:])
    make_model(folder / "adapter" / "merged", vocab_size=NEW_ROWS, seed=3)
    base = make_model(folder / "base", vocab_size=BASE_ROWS)
    data = {
        "seed": 7,
        "base": {"model": str(base)},
        "evaluate": {"context": 64, "stride": 48, "max_new_tokens": 4},
    }
    inputs = {
        "corpus": corpus,
        "model": make_model(folder / "model", vocab_size=NEW_ROWS, seed=2),
        "adapter": folder / "adapter",
    }
    job = _job(folder, Recipe.model_validate(data), inputs)
    evaluating.run(job)
    scores = json.loads((job.out / "scores.json").read_text(encoding="utf-8"))
    tables = scores["candidates"].values()
    counts = (
        "context",
        "stride",
        "num_documents",
        "num_tokens",
        "num_words",
        "num_bytes",
        "words_in_context",
    )
    asked = ("prompt", "kind", "mode", "chat")
    lengths, strides = (1, 63, 64, 65, 200), (64, 48)
    return {
        "windows": digest([list(windows(num, 64, stride)) for num in lengths for stride in strides]),
        "counts": digest([[table[name] for name in counts] for table in tables]),
        "prompts": digest(
            [[made[name] for name in asked] for table in tables for made in table["generations"]]
        ),
        "bits per byte": _rounded(table["bits_per_byte"] for table in tables),
        "bits per byte of English": _rounded(table["retained"]["en"] for table in tables),
        # Decimals, not digits: of two figures that nearly agree the difference has few right digits.
        "intervals": [
            round(found[end], 3)
            for found in scores["differences"].values()
            for end in ("low", "value", "high")
        ],
        "contamination": digest(scores["contamination"]),
        "checks": [
            f"{one['name']} {one['limit']:g}{' decides' if one['enforced'] else ''}"
            for one in scores["gate"]["checks"]
        ],
        "names": digest(_tree(scores)),
        "files": _files(job.out),
    }


def _report(folder: Path) -> Results:
    job = report_run.job(folder)
    reporting.run(job)
    page = (job.out / "report.html").read_text(encoding="utf-8")
    # Digests of artifacts follow, which the fixture decides.
    short = (job.out / "report.md").read_text(encoding="utf-8").partition("## How to reproduce")[0]
    found = json.loads((job.out / "metrics.json").read_text(encoding="utf-8"))
    return {
        "headings": [re.sub(r"<[^>]+>", "", text) for text in re.findall(r"<h[12][^>]*>(.*?)</h[12]>", page)],
        "charts": page.count("<svg"),
        "short headings": [line for line in short.splitlines() if line.startswith("#")],
        "tables": digest([line for line in short.splitlines() if line.startswith("|")]),
        "metrics": digest({name: _rounded([value], 6) for name, value in found.items()}),
        "files": _files(job.out),
    }


def _job(folder: Path, recipe: Recipe, inputs: dict[str, Path], files: tuple[str, ...] = ()) -> Job:
    out, work = folder / "out", folder / "work"
    out.mkdir()
    work.mkdir()
    return Job(recipe=recipe, inputs=inputs, files=files, out=out, work=work, base_cache=folder / "cache")


def _rounded(numbers: Iterable[float], digits: int = 3) -> list[float]:
    """The numbers with their first digits alone."""
    return [float(f"{number:.{digits}g}") for number in numbers]


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _tensors(folder: Path) -> dict[str, object]:
    """Name of each tensor saved in a directory -> its precision and shape."""
    found: dict[str, object] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  it is no dict
                tensor = file.get_slice(name)
                found[name] = [tensor.get_dtype(), tensor.get_shape()]
    return found


def _keys(file: Path) -> str:
    return " ".join(sorted(json.loads(file.read_text(encoding="utf-8"))))


def _files(folder: Path) -> str:
    """Files that make the artifact, but for MLflow's.

    What MLflow reads stands beside the content: an artifact of an earlier release without it is the same.
    """
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return " ".join(sorted(str(file) for file in files if not {*file.parts} & MLFLOW_FILES))


def _tree(content: object) -> object:
    """Names of JSON content, without what they name."""
    if isinstance(content, dict):
        return {name: _tree(item) for name, item in content.items()}
    return [_tree(content[0])] if isinstance(content, list) and content else None
