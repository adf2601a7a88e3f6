"""Do made items rank five checkpoints of a small model as bits per byte do, and do they find a loss of 3 %?

apt-get download libreoffice-help-fi libreoffice-help-en-us && for deb in *.deb; do dpkg-deb -x $deb help; done
OMP_NUM_THREADS=1 python benchmarks/evaluate/made.py --help-dir help --work DIR --languages fi

Text is LibreOffice's handbook: a page is a document, one page of eight is held out, and paragraphs that were left in
English are dropped. For each language a tokenizer and a small Llama are trained from nothing. What is in DIR is not made
again. The rows of all languages in DIR are printed, with the mean of each kind last.
"""

import argparse
import hashlib
import html
import json
import math
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

sys.path[:0] = [str(Path(__file__).parents[2])]

from benchmarks import random_model  # noqa: E402  scripts are installed nowhere

PARAGRAPH = re.compile(r'<(?:p|h\d)[^>]*(?:class="(?:paragraph|listitem|tip|note|warning)"|id="hd_)[^>]*>(.*?)</(?:p|h\d)>', re.S)
TAG = re.compile("<[^>]*>")
CHECKPOINTS = (50, 100, 200, 400, 800)
LENGTH, BATCH, RATE = 128, 16, 3e-3
HIDDEN, LAYERS, VOCABULARY = 128, 3, 2_048


def main() -> None:
    """Train, score and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--help-dir", type=Path, required=True, help="unpacked packages")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--languages", nargs="+", required=True, help="as the packages are named")
    options = parser.parse_args()
    english = {text for page in pages(options.help_dir, "en-US") for text in page}
    for language in options.languages:
        texts = ["\n".join(text for text in page if text not in english) for page in pages(options.help_dir, language)]
        train, heldout = split([text for text in texts if len(text) > 200])
        train_checkpoints(train, options.work / language)


def pages(folder: Path, language: str) -> list[list[str]]:
    """Paragraphs of each page of a handbook."""
    found = []
    for file in sorted((folder / "usr/share/libreoffice/help" / language / "text").rglob("*.html")):
        body = file.read_text(encoding="utf-8").partition('id="DisplayArea"')[2]
        texts = (" ".join(html.unescape(TAG.sub("", each)).split()) for each in PARAGRAPH.findall(body))
        found.append([text for text in texts if text])
    return found


def split(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return text to learn and text to hold out; a digest decides."""
    parts: tuple[list[str], list[str]] = [], []
    for text in dict.fromkeys(texts):
        parts[hashlib.sha256(text.encode()).digest()[0] < 32].append(text)
    return parts


def train_checkpoints(texts: Sequence[str], folder: Path) -> None:
    """Write a model directory for each checkpoint."""
    if (folder / str(CHECKPOINTS[-1]) / "config.json").is_file():
        return
    random_model.LEARNED_TOKENS = VOCABULARY
    tokenizer = random_model.tokenizer_of(texts, ("<s>", "</s>"))
    ids = np.array([i for text in texts for i in (0, *tokenizer(text)["input_ids"], 1)])
    model = random_model.model_of(
        vocabulary=VOCABULARY, hidden=HIDDEN, layers=LAYERS, context=512, seed=0, intermediate_size=2 * HIDDEN
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    random = np.random.default_rng(0)
    start = time.process_time()
    for step in range(1, CHECKPOINTS[-1] + 1):
        places = random.integers(0, len(ids) - LENGTH - 1, BATCH)
        batch = torch.from_numpy(np.stack([ids[at : at + LENGTH + 1] for at in places]))
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, step / 20)
        loss = cross_entropy(model(input_ids=batch[:, :-1], use_cache=False).logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step in CHECKPOINTS:
            model.save_pretrained(folder / str(step))
            tokenizer.save_pretrained(folder / str(step))
            print(f"{folder.name}: step {step}, loss {loss.item():.3f}, {time.process_time() - start:.0f} CPU s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
