"""New tokens on text of sources that the vocabulary never saw: as means of their pieces, and after a phase `new_rows`.

A base is extended by tokens of `--text`. Both, and the base with its own vocabulary, are trained on `--text` by the
product. The table shows bits per byte of `--heldout`, where every window has equal characters.

OMP_NUM_THREADS=1 python -m benchmarks.tokenizer.new_rows --base SMOLLM2 --text OTHER.jsonl ... --heldout LAW.jsonl
"""

import argparse
import json
import logging
import math
import resource
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tests.kit.pretraining import make_corpus, make_job, make_recipe
from torch.nn import functional

from anadil.artifacts import artifact
from anadil.artifacts.base_model import read_tokenizer
from anadil.artifacts.base_vocabulary import base_settings
from anadil.model.load import load_model
from anadil.pretrain.embedding_init import fit_vocabulary
from anadil.pretrain.run import run
from anadil.tokenizer.candidate import (
    TokenizerCandidate,
    chat_template,
    write_embedding_map,
    write_tokenizer,
)
from anadil.tokenizer.makers import extensions
from anadil.tokenizer.pretokens import count_texts, cutter_of

HELD_OUT = 20
"""Documents that are scored, spread over the files."""
KINDS = ("own", "means", "new_rows", "own, as much compute")
"""Rows of the table; in the last, all weights take the compute of new rows and steps together."""


def main() -> None:
    """Print a row for each seed and vocabulary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="for the vocabulary and training")
    parser.add_argument("--heldout", type=Path, nargs="+", required=True)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--tokens", type=int, default=2_048, help="new ones")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--row-steps", type=int, default=60, help="of new_rows, 4 sequences of 256 tokens")
    parser.add_argument("--row-lr", type=float, default=1e-2)
    parser.add_argument("--steps", type=int, default=60, help="of all weights, 2 sequences of 256 tokens")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--chars", type=int, default=30_000, help="scored characters")
    parser.add_argument("--window", type=int, default=3_000, help="characters of context")
    settings = parser.parse_args()
    logging.disable(logging.WARNING)
    train, held_out = texts_of(settings.text), texts_of(settings.heldout)
    text = "\n\n".join(held_out[:: max(1, len(held_out) // HELD_OUT)][:HELD_OUT])[: settings.chars]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_corpus(folder / "corpus", train)
        print("| vocabulary | seed | step 0 | after training all weights |\n|---|---:|---:|---:|")
        for kind in settings.kinds:
            row_steps = settings.row_steps if kind == "new_rows" else 0
            # A step of new rows has twice the tokens of one of all weights.
            steps = settings.steps + (2 * settings.row_steps if kind == KINDS[-1] else 0)
            tokenizer = folder / ("base" if kind.startswith("own") else "extend")
            if not tokenizer.exists():
                make_vocabulary(tokenizer, settings, train)
            for seed in settings.seeds:
                (folder / "tokenizer").unlink(missing_ok=True)
                (folder / "tokenizer").symlink_to(tokenizer)
                cells = one(folder, f"{KINDS.index(kind)}-{seed}", settings, row_steps, steps, seed, text)
                print(
                    f"| {kind} | {seed} | " + " | ".join(f"{each:.3f}" for each in cells) + " |", flush=True
                )
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{used.ru_utime + used.ru_stime:.0f} CPU seconds", file=sys.stderr)


def texts_of(files: Sequence[Path]) -> list[str]:
    """The texts of files."""
    return [
        json.loads(line)["text"] for file in files for line in file.read_text(encoding="utf-8").splitlines()
    ]


def make_vocabulary(folder: Path, settings: argparse.Namespace, train: Sequence[str]) -> None:
    """A tokenizer artifact in a folder that is named for its strategy."""
    base = read_tokenizer(settings.base)
    candidate = TokenizerCandidate(strategy="base", asked=0, got=base.get_vocab_size(), tokenizer=base)
    if folder.name == "extend":
        how: Any = SimpleNamespace(prune=False, min_uses=20, min_frequency=2, choice="extend", strategies=())
        counts = count_texts(cutter_of(base), train)
        candidate = next(extensions(base, counts, (settings.tokens,), how, {}))
    template = chat_template(settings.base, base)
    write_tokenizer(candidate, settings.base, base_settings(settings.base, base), template, folder)
    write_embedding_map(candidate, base, folder, pad_to=128)
    artifact.seal(folder, kind="tokenizer", origin={})


def one(
    folder: Path, name: str, settings: argparse.Namespace, row_steps: int, steps: int, seed: int, text: str
) -> list[float]:
    """Bits per byte before training all weights, and after."""
    place = settings.base
    if row_steps:
        phase = {"trains": "new_rows", "steps": row_steps, "lr": settings.row_lr}
        place = trained(folder, f"{name}-rows", place, seed, batch_size=4, phases=[phase])
    model: Any = load_model(place)
    if not row_steps:
        fit_vocabulary(model, folder / "tokenizer")
    cells = [bits_per_byte(model, folder / "tokenizer", settings, text)]
    if steps:
        phase = {"trains": "all", "steps": steps, "lr": settings.lr}
        if row_steps:
            # Its output has the extended vocabulary as its own: the second run takes it as a base, with no row to make.
            own = folder / f"{name}-tokenizer"
            shutil.copytree(folder / "extend", own)
            (own / "embedding_map.json").write_text('{"rows": null}')
            artifact.seal(own, kind="tokenizer", origin={})
            (folder / "tokenizer").unlink()
            (folder / "tokenizer").symlink_to(own)
        out = trained(folder, name, place, seed, batch_size=2, phases=[phase])
        cells.append(bits_per_byte(load_model(out), folder / "tokenizer", settings, text))
    return cells


def trained(folder: Path, name: str, base: Path, seed: int, **pretrain: Any) -> Path:
    """Train by the product, and return the model's directory."""
    fixed = {"micro_batch_size": 2, "sequence_length": 256, "checkpoint_every": 1_000, "validate_every": 0}
    recipe = make_recipe(base, **fixed, **pretrain).model_copy(update={"seed": seed})
    job = make_job(folder, recipe, name)
    run(job)
    return job.out


@torch.no_grad()
def bits_per_byte(model: Any, tokenizer: Path, settings: argparse.Namespace, text: str) -> float:
    """Score windows of equal characters, for every vocabulary the same ones."""
    encoder = read_tokenizer(tokenizer)
    begin, nats = encoder.encode("").ids[:1], 0.0
    for at in range(0, len(text), settings.window):
        ids = [*begin, *encoder.encode(text[at : at + settings.window], add_special_tokens=False).ids]
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            logits = model(input_ids=torch.tensor([ids[:-1]]), use_cache=False).logits
        nats += functional.cross_entropy(logits[0].float(), torch.tensor(ids[1:]), reduction="sum").item()
    return nats / math.log(2) / len(text.encode())


if __name__ == "__main__":
    main()
