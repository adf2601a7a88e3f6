"""Ways to make the embedding rows of new tokens: bits per byte after some steps of training.

The base model `tiny`, a small Llama with tied embeddings that has learnt some English, is extended by
tokens of a text in another language and then trained on it, with each of `pretrain.embedding_init` and
with several seeds, which draw random rows and the order of the text. All that share a seed see the
same sequences. With `--base-text` the base first learns that text: the better it knows the pieces, the more means of
them are worth.

OMP_NUM_THREADS=1 python benchmarks/tokenizer/embedding_rows.py
OMP_NUM_THREADS=1 python benchmarks/tokenizer/embedding_rows.py --text news.jsonl prose.jsonl --tokens 3000 --base-text en.jsonl tr.jsonl

`--base` takes another base than `tiny`.
"""

import argparse
import hashlib
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch.nn import functional

from anadil.artifacts import artifact
from anadil.artifacts.base_model import base_tokenizer, read_tokenizer
from anadil.artifacts.base_vocabulary import base_settings
from anadil.model.load import load_model
from anadil.model.tiny import base_model
from anadil.pretrain.embedding_init import Init, fit_vocabulary
from anadil.recipe.sections import Base
from anadil.tokenizer.bpe import continue_merges
from anadil.tokenizer.candidate import (
    TokenizerCandidate,
    chat_template,
    extend_vocabulary,
    with_all_bytes,
    write_embedding_map,
    write_tokenizer,
)
from anadil.tokenizer.pretokens import count_texts

BUILT_IN = Path(artifact.__file__).parents[1] / "builtin" / "az"
INITS: tuple[str, ...] = get_args(Init)
Scores = dict[str, list[list[float]]]

WARMUP = 10
STUDENT_T = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Number of seeds -> quantile .975 of Student's distribution with one degree of freedom less."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--text", nargs="+", type=Path, default=[BUILT_IN / "generated.jsonl", BUILT_IN / "prose.jsonl"]
    )
    parser.add_argument("--tokens", type=int, default=2_000, help="new tokens")
    parser.add_argument(
        "--steps", nargs="+", type=int, default=[50, 100, 300], help="where bits per byte are measured"
    )
    parser.add_argument("--seeds", type=int, default=5, choices=sorted(STUDENT_T))
    parser.add_argument("--inits", nargs="+", choices=INITS, default=get_args(Init))
    parser.add_argument("--base", default="tiny", help="a directory, or the built-in one")
    parser.add_argument("--heldout-chars", type=int, default=40_000, help="scored characters")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--rows", type=int, default=8, help="sequences of a step")
    parser.add_argument("--length", type=int, default=64, help="tokens of a sequence")
    parser.add_argument("--bf16", action="store_true", help="products in BF16, on a CPU that has them")
    parser.add_argument("--base-text", nargs="+", type=Path, default=[], help="what the base learns before")
    parser.add_argument("--base-steps", type=int, default=300)
    parser.add_argument("--base-lr", type=float, default=2e-3)
    settings = parser.parse_args()
    began = time.process_time()
    # All that is trained or scored below is in it. Its cache is emptied at its end alone, and weights change before.
    torch.autocast("cpu", torch.bfloat16, enabled=settings.bf16, cache_enabled=False).__enter__()
    base = learnt_base(settings)
    train, heldout = texts_of(settings.text)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_tokenizer(folder / "tokenizer", train, settings)
        scores: Scores = {init: [] for init in settings.inits}
        for seed in range(settings.seeds):
            for init in settings.inits:
                scores[init].append(one(folder, base, init, seed, settings, (train, heldout)))
                print(f"seed {seed}, {init}:", scores[init][-1], file=sys.stderr, flush=True)
    print_table(scores, [0, *settings.steps])
    print(f"\n{time.process_time() - began:.0f} CPU seconds")


def texts_of(files: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Texts to train on, and one in ten, by its hash, to measure."""
    texts = [
        json.loads(line)["text"] for file in files for line in file.read_text(encoding="utf-8").splitlines()
    ]
    train: list[str] = []
    heldout: list[str] = []
    for text in texts:
        (train if hashlib.sha256(text.encode()).digest()[0] % 10 else heldout).append(text)
    return train, heldout


def make_tokenizer(folder: Path, train: Sequence[str], settings: argparse.Namespace) -> None:
    """The tokenizer artifact of an extension of the base."""
    place = base_tokenizer(Base(model=settings.base), cache())
    base = with_all_bytes(read_tokenizer(place))
    merges = continue_merges(base, count_texts(base, train), settings.tokens, 2)
    tokenizer = extend_vocabulary(base, merges)
    candidate = TokenizerCandidate(
        strategy="extend", asked=settings.tokens, got=len(merges), tokenizer=tokenizer
    )
    write_tokenizer(candidate, place, base_settings(place, base), chat_template(place, base), folder)
    write_embedding_map(candidate, read_tokenizer(place), folder, pad_to=128)


def cache() -> Path:
    """Where `tiny` is kept from run to run."""
    return Path(tempfile.gettempdir()) / "anadil-embedding-rows"


def learnt_base(settings: argparse.Namespace) -> dict[str, torch.Tensor]:
    """Weights of the base after the text that it learns first."""
    place = base_model(Base(model=settings.base), cache())
    model: Any = load_model(place)
    if settings.base_text:
        train, heldout = texts_of(settings.base_text)
        encoder = read_tokenizer(place)
        before = bits_per_byte(model, encoder, heldout, settings)
        for _ in training(model, encoder, train, settings, 0, settings.base_steps, settings.base_lr):
            pass
        after = bits_per_byte(model, encoder, heldout, settings)
        print(f"base: {before:.3f} -> {after:.3f} bits per byte of its own held-out text\n", flush=True)
    weights: dict[str, torch.Tensor] = model.state_dict()
    return weights


def one(
    folder: Path,
    base: dict[str, torch.Tensor],
    init: str,
    seed: int,
    settings: argparse.Namespace,
    texts: tuple[list[str], list[str]],
) -> list[float]:
    """Bits per byte at step 0 and at each of `settings.steps`."""
    train, heldout = texts
    place = base_model(Base(model=settings.base), cache())
    model: Any = load_model(place)
    model.load_state_dict(base)
    fit_vocabulary(model, folder / "tokenizer", "random" if init == "random" else "mean", seed=seed)
    encoder = read_tokenizer(folder / "tokenizer")
    scores = [bits_per_byte(model, encoder, heldout, settings)]
    steps = training(model, encoder, train, settings, seed, max(settings.steps), settings.lr)
    scores += [bits_per_byte(model, encoder, heldout, settings) for step in steps if step in settings.steps]
    return scores


def token_ids(encoder: Any, texts: Sequence[str]) -> Any:
    """Tokens of all texts, one after another."""
    return np.concatenate(
        [encoding.ids for encoding in encoder.encode_batch(texts, add_special_tokens=False)]
    )


def training(
    model: Any,
    encoder: Any,
    train: Sequence[str],
    settings: argparse.Namespace,
    seed: int,
    num_steps: int,
    peak_lr: float,
) -> Iterator[int]:
    """Train all weights, and say after each step how many there were."""
    ids = token_ids(encoder, train)
    random = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = peak_lr * min(1, (step + 1) / WARMUP)
        starts = random.integers(0, len(ids) - settings.length - 1, settings.rows)
        windows = torch.from_numpy(np.stack([ids[at : at + settings.length + 1] for at in starts]))
        loss = nats(model, windows).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield step + 1


def nats(model: Any, windows: torch.Tensor) -> torch.Tensor:
    """Loss of each token but the first of each row."""
    logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten(), reduction="none")


@torch.no_grad()
def bits_per_byte(model: Any, encoder: Any, texts: Sequence[str], settings: argparse.Namespace) -> float:
    """Score of the held-out text in windows of equal bytes, so that every tokenizer is measured on the same."""
    text, length = "\n".join(texts)[: settings.heldout_chars], settings.length
    ids = encoder.encode(text, add_special_tokens=False).ids
    rows = [ids[at : at + length + 1] for at in range(0, len(ids) - length - 1, length)]
    total = nats(model, torch.tensor(rows)).double().sum().item()
    scored = encoder.decode([token for row in rows for token in row[1:]], skip_special_tokens=False)
    return total / math.log(2) / len(scored.encode())


def print_table(scores: Scores, steps: Sequence[int]) -> None:
    """Means over seeds, and how far each way is from `mean`, with its interval of 95 %."""
    print("| rows of new tokens | " + " | ".join(f"step {step}" for step in steps) + " |")
    print("|---|" + "---:|" * len(steps))
    for init, runs in scores.items():
        cells = []
        for number, _ in enumerate(steps):
            cell = f"{statistics.mean(run[number] for run in runs):.3f}"
            gaps = [run[number] - other[number] for run, other in zip(runs, scores["mean"], strict=True)]
            if init != "mean":
                half = STUDENT_T[len(gaps)] * statistics.stdev(gaps) / math.sqrt(len(gaps))
                cell += f" ({statistics.mean(gaps):+.3f} ± {half:.3f})"
            cells.append(cell)
        print(f"| {init} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
