"""A base of SentencePiece's kind with its own vocabulary, extended, and with tokens exchanged: training at equal compute.

Each of the candidates of a tokenizer artifact is trained on the same texts for as many steps of as many tokens. The table
shows tokens a word, English documents with the base's ids, and bits per byte of held-out text before and after.

python benchmarks/tokenizer/pieces.py --base GEMMA --tokenizer TOKENIZER --train AZ.jsonl ... --replay EN.jsonl --heldout AZ.jsonl --english EN.jsonl
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from anadil.artifacts.base_model import read_tokenizer
from anadil.model.load import load_model
from anadil.pretrain.embedding_init import fit_vocabulary

Ids = list[list[int]]
PADDING = -100
WINDOWS = 4  # scored at a time


def main() -> None:
    """Print a row for each candidate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("base", "tokenizer"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("train", "replay", "heldout", "english"):
        parser.add_argument(f"--{name}", type=Path, nargs="+", required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--candidates", nargs="+", help="only these")
    parser.add_argument("--rows", type=int, default=4, help="sequences of a step")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--share", type=float, default=0.1, help="of the replayed text")
    parser.add_argument("--chars", type=int, default=6_000, help="scored characters of each text")
    parser.add_argument("--lr", type=float, default=2e-4)
    settings = parser.parse_args()
    torch.autocast("cpu", torch.bfloat16, cache_enabled=False).__enter__()
    began = time.process_time()
    for folder in sorted((settings.tokenizer / "candidates").iterdir()):
        if folder.name in (settings.candidates or [folder.name]):
            print(" | ".join(one(folder, settings)), flush=True)
    print(f"{time.process_time() - began:.0f} CPU seconds", file=sys.stderr)


def one(folder: Path, settings: argparse.Namespace) -> list[str]:
    """The cells of a candidate's row."""
    tokenizer, base = read_tokenizer(folder), read_tokenizer(settings.base)
    texts = {name: texts_of(getattr(settings, name)) for name in ("train", "replay", "heldout", "english")}
    words = {name: sum(len(text.split()) for text in texts[name]) for name in ("heldout", "english")}
    ids = {name: ids_of(tokenizer, texts[name]) for name in (texts if settings.steps else words)}
    same = sum(map(list.__eq__, ids["english"], ids_of(base, texts["english"])))
    model: Any = load_model(settings.base)
    fit_vocabulary(model, folder)
    begin = tokenizer.encode("").ids
    before = [bits_per_byte(model, begin, tokenizer, texts[name], settings) for name in words]
    print(f"{folder.name}, step 0: {before}", file=sys.stderr, flush=True)
    if settings.steps:
        train(model, begin, ids, settings)
    after = [
        bits_per_byte(model, begin, tokenizer, texts[name], settings) for name in words if settings.steps
    ]
    return [
        folder.name, f"{tokenizer.get_vocab_size():,}",
        *(f"{sum(map(len, ids[name])) / number:.3f}" for name, number in words.items()),
        f"{same} of {len(texts['english'])}", *(f"{each:.3f}" for each in (*before, *after)),
    ]  # fmt: skip


def texts_of(files: Sequence[Path]) -> list[str]:
    """The texts of files."""
    return [
        json.loads(line)["text"] for file in files for line in file.read_text(encoding="utf-8").splitlines()
    ]


def ids_of(tokenizer: Any, texts: Sequence[str]) -> Ids:
    """Ids of each text, without BOS."""
    return [list(each.ids) for each in tokenizer.encode_batch(texts, add_special_tokens=False)]


def train(model: Any, begin: list[int], ids: dict[str, Ids], settings: argparse.Namespace) -> None:
    """Train all weights; every row begins with BOS, as Gemma wants it."""
    random = np.random.default_rng(0)
    own, other = ([index for text in ids[name] for index in text] for name in ("train", "replay"))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    for step in range(settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * min(
                1, (step + 1) / 10, (settings.steps - step) / (settings.steps / 2)
            )
        rows = []
        for _ in range(settings.rows):
            source = other if random.random() < settings.share else own
            at = int(random.random() * (len(source) - settings.length))
            rows.append([*begin, *source[at : at + settings.length]])
        loss = nats(model, torch.tensor(rows)).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step + 1}: loss {loss.item():.3f}", file=sys.stderr, flush=True)


def nats(model: Any, windows: torch.Tensor) -> torch.Tensor:
    """Loss of each token but the first of each row."""
    logits = model(input_ids=windows[:, :-1].clamp(min=0), use_cache=False).logits
    expected = windows[:, 1:].flatten()
    return functional.cross_entropy(
        logits.float().flatten(0, 1), expected, reduction="none", ignore_index=PADDING
    )


@torch.no_grad()
def bits_per_byte(
    model: Any, begin: list[int], tokenizer: Any, texts: Sequence[str], settings: argparse.Namespace
) -> float:
    """Score of whole texts, in windows of equal characters that begin with BOS, for every tokenizer the same ones."""
    text = "\n".join(texts)[: settings.chars]
    windows = [text[at : at + 500] for at in range(0, len(text), 500)]
    total = 0.0
    for at in range(0, len(windows), WINDOWS):
        rows = [torch.tensor([*begin, *ids]) for ids in ids_of(tokenizer, windows[at : at + WINDOWS])]
        whole = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING)
        total += nats(model, whole).double().sum().item()
    return total / math.log(2) / len(text.encode())


if __name__ == "__main__":
    main()
