"""Bits per byte beside lm-evaluation-harness: tokens a CPU second, and whether the figures are equal.

Each row is a process of its own, with one thread, on the same random Llama, tokenizer and documents.

OMP_NUM_THREADS=1 python benchmarks/evaluate/scoring.py
OMP_NUM_THREADS=1 python benchmarks/evaluate/scoring.py --even
python benchmarks/evaluate/scoring.py --device cuda --vocabulary 128000 --hidden 2048 --layers 16   # not run yet
"""

import argparse
import json
import math
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from random_model import model_of, tokenizer_of

SEED = 20_260_101
TEXTS = ("builtin:az/prose.jsonl", "builtin:az/generated.jsonl")
CONTROL = ("<|begin_of_text|>", "<|end_of_text|>")
DOCUMENT_WORDS = (15, 30, 60, 120, 240, 480)
"""Lengths that documents have, each as often: a corpus has short and long pages side by side."""
Figures = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description="Score documents in two ways.")
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    sizes = {"vocabulary": 32_000, "hidden": 256, "layers": 4, "context": 512, "documents": 72, "batch": 8}
    for name, value in sizes.items():
        made.add_argument(f"--{name}", type=int, default=value, help=f"default: {value}")
    made.add_argument("--text", nargs="+", default=TEXTS, help="documents as JSON lines")
    made.add_argument("--even", action="store_true", help="documents of one length")
    made.add_argument("--only", help="one row, in this process")
    return made


def texts_of(asked: argparse.Namespace) -> list[str]:
    """Running text, cut into documents of mixed length in random order, or of one length with `--even`."""
    from anadil.artifacts import storage

    documents = []
    for name in asked.text:
        with storage.local_copy(name) as path:
            documents += [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]
    words = " ".join(documents).split()
    lengths = [DOCUMENT_WORDS[at % len(DOCUMENT_WORDS)] for at in range(asked.documents)]
    if asked.even:
        lengths = [sum(lengths) // len(lengths)] * len(lengths)
    random.Random(SEED).shuffle(lengths)  # noqa: S311  no secret
    starts = [sum(lengths[:at]) for at in range(len(lengths))]
    return [" ".join(words[start : start + count]) for start, count in zip(starts, lengths, strict=True)]


def model_for(asked: argparse.Namespace) -> Any:
    """The model that is scored."""
    sizes = {name: getattr(asked, name) for name in ("vocabulary", "hidden", "layers", "context")}
    return model_of(**sizes, seed=SEED, initializer_range=0.1).to(asked.device).eval()


def score_here(model: Any, tokenizer: Any, texts: list[str], asked: argparse.Namespace) -> list[float]:
    """Nats of each document, by the stage."""
    from anadil.evaluate.bits_per_byte import score
    from anadil.model.load import encode_texts

    ids = [np.array(each, dtype=np.int32) for each in encode_texts(tokenizer, texts)]
    nats = score(
        model,
        [([0], own) for own in ids],
        context=asked.context,
        stride=asked.context,
        batch_tokens=asked.batch * asked.context,
        name="model",
    )
    return [float(each) for each in nats]


def score_by_harness(model: Any, tokenizer: Any, texts: list[str], asked: argparse.Namespace) -> list[float]:
    """Nats of each document, by lm-evaluation-harness; with its default it scores a second BOS."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    peer = HFLM(
        pretrained=model, tokenizer=tokenizer, batch_size=asked.batch, max_length=asked.context,
        add_bos_token=False, softmax_dtype="float32",
    )  # fmt: skip
    requests = [
        Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=number)
        for number, text in enumerate(texts)
    ]
    return [-float(each) for each in peer.loglikelihood_rolling(requests, disable_tqdm=True)]


def score_plain(model: Any, tokenizer: Any, texts: list[str], asked: argparse.Namespace) -> list[float]:
    """Nats of each document, one forward pass for each window of a document."""
    import torch

    nats = []
    for text in texts:
        ids = [0, *tokenizer(text, add_special_tokens=False)["input_ids"]]
        total = 0.0
        for at in range(0, len(ids) - 1, asked.context):
            window = torch.tensor([ids[at : at + asked.context + 1]])
            with torch.no_grad():
                logits = model(window[:, :-1]).logits.float()
            total += float(torch.nn.functional.cross_entropy(logits[0], window[0, 1:], reduction="sum"))
        nats.append(total)
    return nats


def run_scoring(by: Callable[..., list[float]], asked: argparse.Namespace) -> Figures:
    """One way to score: tokens a CPU second with encoding, and what came out."""
    texts = texts_of(asked)
    tokenizer, model = tokenizer_of(texts, CONTROL), model_for(asked)
    by(model, tokenizer, texts[:2], asked)
    num_tokens = sum(len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"])
    cpu, wall = time.process_time(), time.perf_counter()
    nats = by(model, tokenizer, texts, asked)
    num_bytes = sum(len(text.encode()) for text in texts)
    return clocked(cpu, wall, num_tokens) | {
        "nats": nats,
        "bits_per_byte": sum(nats) / math.log(2) / num_bytes,
    }


def clocked(cpu: float, wall: float, num_tokens: int) -> Figures:
    """Rates since the clocks were read, and the largest memory of the process."""
    spent = time.process_time() - cpu
    return {
        "tokens": num_tokens,
        "cpu_s": spent,
        "tokens_per_cpu_s": num_tokens / spent,
        "tokens_per_s": num_tokens / (time.perf_counter() - wall),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


WAYS: dict[str, Callable[..., list[float]]] = {
    "lm-evaluation-harness": score_by_harness,
    "plain loop": score_plain,
    "anadil": score_here,
}


def differs(ours: Figures, theirs: Figures) -> str:
    """How far bits per byte are apart, and at most the nats of a document, as shares."""
    pairs = zip(ours["nats"], theirs["nats"], strict=True)
    documents = max(abs(one - other) / other for one, other in pairs)
    whole = abs(ours["bits_per_byte"] / theirs["bits_per_byte"] - 1)
    return f"{whole:.1e}, of a document {documents:.1e}"


def main() -> None:
    """Print a Markdown table, or one row's figures."""
    asked = parser().parse_args()
    if asked.only:
        print(json.dumps(run_scoring(WAYS[asked.only], asked)))
        return
    rows: dict[str, Figures] = {}
    for name in WAYS:
        command = [sys.executable, str(Path(__file__)), *sys.argv[1:], "--only", name]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        rows[name] = json.loads(done.stdout.splitlines()[-1])
    first = next(iter(rows.values()))
    print("| by | tokens | CPU s | tokens/CPU s | tokens/s | x | peak MiB | differs |\n" + "|---" * 8 + "|")
    for name, row in rows.items():
        rate = row["tokens_per_cpu_s"]
        print(
            f"| {name} | {row['tokens']:,} | {row['cpu_s']:.1f} | {rate:,.0f} | {row['tokens_per_s']:,.0f} | "
            f"{rate / first['tokens_per_cpu_s']:.2f} | {row['peak_mib']:,.0f} | {differs(row, first)} |"
        )


if __name__ == "__main__":
    main()
