"""Do made items rank five checkpoints of a small model as bits per byte do, and do they find a loss of 3 %?

apt-get download libreoffice-help-fi libreoffice-help-en-us && for deb in *.deb; do dpkg-deb -x $deb help; done
OMP_NUM_THREADS=1 python benchmarks/evaluate/made.py --help-dir help --work DIR --languages fi
... --cost MODEL    # instead: CPU seconds of the items on a model beside those of scoring their text once

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import kendalltau
from torch.nn.functional import cross_entropy

from anadil.evaluate.made.items import Item, Vocabulary, make_items
from anadil.evaluate.made.measure import ALL, differences, margins_of
from anadil.evaluate.models import BATCH_TOKENS, CandidateModel, Memory, load_for_scoring, open_model
from anadil.model.load import encode_texts
from anadil.text.corpus import Document
from anadil.text.language import load_language
from anadil.text.metrics import bits_per_byte, share_interval

sys.path[:0] = [str(Path(__file__).parents[2])]

from benchmarks import random_model  # noqa: E402  scripts are installed nowhere

PARAGRAPH = re.compile(
    r'<(?:p|h\d)[^>]*(?:class="(?:paragraph|listitem|tip|note|warning)"|id="hd_)[^>]*>(.*?)</(?:p|h\d)>',
    re.DOTALL,
)
TAG = re.compile("<[^>]*>")
CHECKPOINTS = (50, 100, 200, 400, 800)
LENGTH, BATCH, RATE = 128, 16, 3e-3
HIDDEN, LAYERS, VOCABULARY = 128, 3, 2_048
MIN_CHARS = 200
"""Fewest characters of a page."""
LOSS, SEARCHED, SCORED = 0.03, 30, 100
"""Rise of bits per byte that noise on the weights makes, and documents on which its scale is sought and on which bits per byte
are measured."""


def main() -> None:
    """Train, score and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--help-dir", type=Path, required=True, help="unpacked packages")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument(
        "--languages", nargs="+", default=[], help="as the packages are named; none prints the table"
    )
    parser.add_argument("--items", type=int, default=500, help="of each kind")
    parser.add_argument("--cost", type=Path, help="directory of a model whose time is measured")
    options = parser.parse_args()
    for code in options.languages:
        english = {text for page in pages(options.help_dir, "en-US") for text in page}
        found = pages(options.help_dir, code)
        texts = ["\n".join(text for text in page if text not in english) for page in found]
        train, heldout = split([text for text in texts if len(text) > MIN_CHARS])
        if options.cost:
            print_cost(code, train, heldout, options.cost, options.items)
            continue
        train_checkpoints(train, options.work / code)
        result = options.work / code / f"made-{options.items}.json"
        result.write_text(json.dumps(score(code, train, heldout, options.work / code, options.items)))
    if options.cost:
        return
    print_tables(
        [json.loads(file.read_text()) for file in sorted(options.work.glob(f"*/made-{options.items}.json"))]
    )


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
        loss = cross_entropy(
            model(input_ids=batch[:, :-1], use_cache=False).logits.flatten(0, 1), batch[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step in CHECKPOINTS:
            model.save_pretrained(folder / str(step))
            tokenizer.save_pretrained(folder / str(step))
            print(
                f"{folder.name}: step {step}, loss {loss.item():.3f}, {time.process_time() - start:.0f} CPU s",
                file=sys.stderr,
                flush=True,
            )


def score(code: str, train: Sequence[str], heldout: Sequence[str], folder: Path, most: int) -> dict[str, Any]:
    """Measure the checkpoints, and the last one with noise on its weights."""
    kinds = items_of(code, train, heldout, most)
    listed = [*kinds, ALL]
    steps: list[dict[str, Any]] = []
    for step in CHECKPOINTS:
        loaded = opened(folder / str(step))
        bits, margins = bits_of(loaded, heldout[:SCORED]), with_all(margins_of(loaded, kinds))
        steps.append(
            {"bits": bits, "right": {kind: float((margins[kind] > 0).mean()) for kind in listed},
             "margin": {kind: float(margins[kind].mean()) for kind in listed}}
        )  # fmt: skip
    scale = worsen(loaded, heldout)
    noisy_bits = bits_of(loaded, heldout[:SCORED])
    noisy = with_all(margins_of(loaded, kinds))
    items = {**kinds, ALL: [item for each in kinds.values() for item in each]}
    lost = {kind: differences(items[kind], noisy[kind], margins[kind], 0) for kind in listed}
    print(f"{code}: noise of {scale:.4f} costs {noisy_bits / bits - 1:.1%}", file=sys.stderr)
    return {
        "language": code, "documents": len(heldout), "steps": steps, "lost": lost, "loss": noisy_bits / bits - 1,
        "num": {kind: len(items[kind]) for kind in listed},
        "chance": {kind: float(np.mean([1 / len(item.choices) for item in items[kind]])) for kind in listed},
    }  # fmt: skip


def items_of(
    code: str, train: Sequence[str], heldout: Sequence[str], most: int
) -> Mapping[str, Sequence[Item]]:
    """Make the items of a language's held-out pages."""
    language = load_language({"zh-CN": "zh"}.get(code, code))
    documents = [
        Document(id=str(number), text=text, source="", url="", lang=code)
        for number, text in enumerate(heldout)
    ]
    return make_items(documents, Vocabulary.of(train, language), most, seed=0)


def print_cost(code: str, train: Sequence[str], heldout: Sequence[str], path: Path, most: int) -> None:
    """Print a row for each kind: CPU seconds of its items over those of contexts and right choices alone."""
    loaded = opened(path)
    loaded.model  # noqa: B018  loads it
    for kind, items in items_of(code, train, heldout, most).items():
        texts = [item.contexts[0] + item.choices[0] for item in items]
        ids = [np.array(each, dtype=np.int32) for each in encode_texts(loaded.candidate.tokenizer, texts)]
        loaded.memory = Memory()
        start = time.process_time()
        loaded.nats(ids)
        once = time.process_time() - start
        margins_of(loaded, {kind: items})
        made = time.process_time() - start - once
        print(
            f"| {code} | {kind} | {len(items)} | {sum(map(len, ids)):,} | {once:.1f} | {made:.1f} | {made / once:.2f} |",
            flush=True,
        )


def with_all(margins: dict[str, Any]) -> dict[str, Any]:
    """Add the margins of all kinds together."""
    return {**margins, ALL: np.concatenate(list(margins.values()))}


def opened(path: Path) -> CandidateModel:
    """Open a checkpoint as the stage does."""
    return CandidateModel(
        candidate=open_model(path.name, path), load=lambda: load_for_scoring(path, path.name), context=512, stride=512,
        batch_tokens=BATCH_TOKENS["cpu"],
    )  # fmt: skip


def bits_of(loaded: CandidateModel, texts: Sequence[str]) -> float:
    """Bits per byte of all held-out text."""
    ids = [np.array(each, dtype=np.int32) for each in encode_texts(loaded.candidate.tokenizer, texts)]
    return bits_per_byte(float(loaded.nats(ids).sum()), sum(len(text.encode()) for text in texts))


def worsen(loaded: CandidateModel, texts: Sequence[str]) -> float:
    """Add noise to the weights until bits per byte have risen by `LOSS`; return its scale."""
    weights = [weight for weight in loaded.model.parameters() if weight.ndim > 1]
    before = [weight.detach().clone() for weight in weights]
    torch.manual_seed(0)
    noise = [torch.randn_like(weight) * weight.std() for weight in before]
    texts = texts[:SEARCHED]
    low, high, bits = 0.0, 0.4, bits_of(loaded, texts)
    for _ in range(8):
        scale = (low + high) / 2
        with torch.no_grad():
            for weight, old, each in zip(weights, before, noise, strict=True):
                weight.copy_(old + scale * each)
        loaded.memory = Memory()
        worse = bits_of(loaded, texts)
        if abs(worse / bits - 1 - LOSS) < LOSS / 20:
            break
        low, high = (scale, high) if worse / bits - 1 < LOSS else (low, scale)
    loaded.memory = Memory()
    return scale


def print_tables(results: Sequence[dict[str, Any]]) -> None:
    """Print the rank of the checkpoints by each kind, and whether the planted loss was found."""
    kinds = list(results[0]["num"])
    print("\n| language | documents | bits per byte | " + " | ".join(kinds) + " |")
    print("|---|---:|---|" + "---:|" * len(kinds))
    taus: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for each in results:
        bits = [step["bits"] for step in each["steps"]]
        cells = []
        for kind in kinds:
            right, margin = ([step[key][kind] for step in each["steps"]] for key in ("right", "margin"))
            tau, of_margin = (
                float(kendalltau(bits, [-value for value in values]).statistic) for values in (right, margin)
            )
            taus[kind].append((tau, of_margin))
            low = share_interval(right[-1], each["num"][kind])
            mark = "" if low and low[0] > each["chance"][kind] else " *"
            words = f"{right[0]:.2f} to {right[-1]:.2f}{mark} ({tau:.2f}, {of_margin:.2f})"
            cells.append(words if each["num"][kind] else "no items")
        print(
            f"| {each['language']} | {each['documents']} | {bits[0]:.2f} to {bits[-1]:.2f} | "
            + " | ".join(cells)
            + " |"
        )
    means = [tuple(np.nanmean(np.array(taus[kind]), axis=0)) for kind in kinds]
    print("| mean tau | | | " + " | ".join(f"{tau:.2f}, {margin:.2f}" for tau, margin in means) + " |")
    print("\n| language | loss | " + " | ".join(kinds) + " |")
    print("|---|---:|" + "---:|" * len(kinds))
    for each in results:
        cells = [
            f"{told(each['lost'][kind]['accuracy'])}, {told(each['lost'][kind]['margin'])}" for kind in kinds
        ]
        print(f"| {each['language']} | {each['loss']:.1%} | " + " | ".join(cells) + " |")


def told(difference: dict[str, float]) -> str:
    """A difference, and `found` where its interval lies below 0."""
    if math.isnan(difference["value"]):
        return "no items"
    return f"{difference['value']:+.3f}{' found' if difference['high'] < 0 else ''}"


if __name__ == "__main__":
    main()
