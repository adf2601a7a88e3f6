"""Shares of three sources found from one short branch of each, against nine mixed runs, as JSON and Markdown.

ANADIL_DATA=DIR python benchmarks/mix/branches.py --base DIR --seed 0 [--to-one] [--work DIR]
python benchmarks/mix/branches.py --report FILE...

A branch trains on one source alone. Weights of the branches' differences from the base minimise a quadratic model of the
merged models' loss on one half of the held-out documents. The other half scores every model.
"""

import argparse
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.stats import kendalltau
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path[:0] = [str(Path(__file__).parents[2])]

from benchmarks.stage_runs import NEWS, documents  # noqa: E402  scripts are installed nowhere

SOURCES = ("law", "other", "en")
PARTS = (*SOURCES, "news")
"""Kinds of held-out text. News is English too, and nothing of its kind is trained on."""
LENGTH, BATCH, STEPS, BRANCH_STEPS, RATE = 256, 2, 30, 6, 3e-4
SEARCHED, SEARCHED_CHARS, SCORED, SCORED_CHARS = 8, 300, 10, 500
"""Documents of a part, and characters of each, that the search reads and that scores read."""
NINE = (
    (1 / 3, 1 / 3, 1 / 3), (0.5, 0.5, 0), (0.5, 0, 0.5), (0, 0.5, 0.5), (0.6, 0.2, 0.2), (0.2, 0.6, 0.2),
    (0.2, 0.2, 0.6), (0.4, 0.4, 0.2), (0.45, 0.45, 0.1),
)  # fmt: skip
GRID = (
    *itertools.product((0.0, 1.0), repeat=3), (0.5, 0.5, 0.5), (1.5, 1.5, 1.5), (2.0, 1.0, 1.0),
    (1.0, 2.0, 1.0), (1.0, 1.0, 2.0),
)  # fmt: skip
"""Weights that every search tries; then it tries the minimum of its model, twice."""
SIMPLEX = (
    (1, 0, 0), (0, 1, 0), (0, 0, 1), (0.5, 0.5, 0), (0.5, 0, 0.5), (0, 0.5, 0.5), (1 / 3, 1 / 3, 1 / 3),
)  # fmt: skip
"""Weights of a search whose weights sum to one."""
MOST = 2.5
"""Largest weight of a branch."""


def texts() -> dict[str, dict[str, list[str]]]:
    """Return part -> `train`, `search` and `score`; a hash of the text decides, one document of eight is held out."""
    split: dict[str, dict[str, list[str]]] = {p: {"train": [], "search": [], "score": []} for p in PARTS}
    for language in ("az", "en"):
        for file, text in documents(language):
            news = any(name in file for name in NEWS)
            part = (
                ("news" if news else "en") if language == "en" else ("law" if "eqanun" in file else "other")
            )
            digest = hashlib.sha256(text.encode()).digest()[0]
            split[part]["train" if digest >= 32 else ("search" if digest % 2 else "score")].append(text)
    # The few that are read come from all files of a part.
    for each in split.values():
        for kind in ("search", "score"):
            each[kind].sort(key=lambda text: hashlib.sha256(text.encode()).hexdigest())
    return split


class Lab:
    """A base, its tokenizer and text; trains, merges and scores by plain torch."""

    def __init__(self, base: Path, seed: int) -> None:
        self.seed = seed
        self.tokenizer = AutoTokenizer.from_pretrained(base)
        self.model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
        master = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        self.start = [each.detach() for each in master.parameters()]
        self.split = texts()
        self.prefix = self.tokenizer.convert_tokens_to_ids("<|im_start|>")

    def set(self, weights: Sequence[torch.Tensor]) -> None:
        """Give the model these weights, rounded to BF16."""
        with torch.no_grad():
            for mine, given in zip(self.model.parameters(), weights, strict=True):
                mine.copy_(given)

    def rows(self, source: str) -> np.ndarray:
        """Return the source's training text, shuffled by the seed, as rows of `LENGTH` tokens."""
        order = np.random.default_rng((self.seed, SOURCES.index(source)))
        ids: list[int] = []
        found = self.split[source]["train"]
        for number in order.permutation(len(found)):
            ids += [self.prefix, *self.tokenizer(found[number], add_special_tokens=False)["input_ids"]]
            if len(ids) > STEPS * BATCH * LENGTH:
                break
        return np.array(ids[: len(ids) // LENGTH * LENGTH]).reshape(-1, LENGTH)

    def train(self, shares: Sequence[float], steps: int) -> list[torch.Tensor]:
        """Train from the base: FP32 weights of Adam, gradients in BF16, warm-up of a tenth, then half a cosine."""
        pools = [self.rows(source) for source in SOURCES]
        master = [each.clone() for each in self.start]
        optimizer = torch.optim.AdamW(master, lr=RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        used, warm = np.zeros(len(SOURCES), dtype=int), max(1, steps // 10)
        self.model.train()
        for step in range(steps):
            batch = []
            for _ in range(BATCH):  # the source that lags most behind its share
                at = int(np.argmax(np.array(shares) * (used.sum() + 1) - used))
                batch.append(pools[at][used[at] % len(pools[at])])
                used[at] += 1
            ids = torch.as_tensor(np.stack(batch))
            self.set(master)
            logits = self.model(ids[:, :-1]).logits
            cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten()).backward()
            for mine, copy in zip(master, self.model.parameters(), strict=True):
                assert copy.grad is not None
                mine.grad, copy.grad = copy.grad.float(), None
            torch.nn.utils.clip_grad_norm_(master, 1.0)
            rate = min((step + 1) / warm, 0.5 * (1 + np.cos(np.pi * step / steps)))
            for group in optimizer.param_groups:
                group["lr"] = RATE * rate
            optimizer.step()
        return master

    def bits(self, kind: str) -> dict[str, list[float]]:
        """Return part -> bits per byte of each document, of the model as it is."""
        most, chars = (SEARCHED, SEARCHED_CHARS) if kind == "search" else (SCORED, SCORED_CHARS)
        self.model.eval()
        result: dict[str, list[float]] = {}
        for part in PARTS:
            result[part] = []
            for text in [each[:chars] for each in self.split[part][kind][:most]]:
                ids = torch.tensor(
                    [self.prefix, *self.tokenizer(text, add_special_tokens=False)["input_ids"]]
                )
                with torch.no_grad():
                    logits = self.model(ids[None, :-1]).logits[0].float()
                nats = float(cross_entropy(logits, ids[1:], reduction="sum"))
                result[part].append(nats / np.log(2) / len(text.encode()))
        return result

    def merged(
        self, weights: Sequence[float], moves: Sequence[Sequence[torch.Tensor]], start: Sequence[torch.Tensor]
    ) -> None:
        """Give the model `start` plus the weighted differences."""
        total = [each.clone() for each in start]
        for weight, move in zip(weights, moves, strict=True):
            if weight:
                for into, part in zip(total, move, strict=True):
                    into.add_(part, alpha=weight)
        self.set(total)


def terms(w: np.ndarray) -> np.ndarray:
    """Return the terms of a quadratic in three weights, [points, 10]."""
    w = np.atleast_2d(w)
    pairs = [w[:, a] * w[:, b] for a in range(3) for b in range(a, 3)]
    return np.stack([np.ones(len(w)), *w.T, *pairs], axis=1)


def least(tried: Sequence[Mapping], total: float | None = None) -> np.ndarray:
    """Return the weights at the least sum over the sources' parts of a quadratic for each.

    Args:
        tried: Weights and bits per byte of each part's documents.
        total: Sum that the weights must have; None: free.
    """
    points = np.array([each["weights"] for each in tried])
    values = {p: np.array([np.mean(each["bits"][p]) for each in tried]) for p in PARTS}
    summed = sum(np.linalg.lstsq(terms(points), values[p], rcond=None)[0] for p in SOURCES)
    rules = [] if total is None else [{"type": "eq", "fun": lambda w: w.sum() - total}]
    starts = points[np.argsort(sum(values[p] for p in SOURCES))[:4]]
    found = [
        minimize(
            lambda w: float(terms(w)[0] @ summed),
            s,
            bounds=[(0, MOST)] * 3,
            constraints=rules,
            method="SLSQP",
        )
        for s in starts
    ]
    return min((each for each in found if each.success), key=lambda each: each.fun).x


def measure(base: Path, seed: int, work: Path, *, to_one: bool) -> None:
    """Measure a seed into `work/seed-N.json`, which each finished model is added to."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    path = work / (f"seed-{seed}-to-one.json" if to_one else f"seed-{seed}.json")
    work.mkdir(parents=True, exist_ok=True)
    done: dict = {"cpu_s": {}, "search": [], "scores": {}}
    lab = Lab(base, seed)

    def timed(name: str, begin: float) -> None:
        done["cpu_s"][name] = round(time.process_time() - begin, 1)
        path.write_text(json.dumps(done))
        print(seed, name, done["cpu_s"][name], file=sys.stderr, flush=True)

    def scored(name: str) -> None:
        begin = time.process_time()
        done["scores"][name] = lab.bits("score")
        timed(f"score {name}", begin)

    moves = []
    for number, source in enumerate(SOURCES):
        begin = time.process_time()
        alone = [float(at == number) for at in range(3)]
        moves.append([a - b for a, b in zip(lab.train(alone, BRANCH_STEPS), lab.start, strict=True)])
        timed(f"branch {source}", begin)
    begin = time.process_time()
    dots = [[sum(float((a * b).sum()) for a, b in zip(x, y, strict=True)) for y in moves] for x in moves]
    done["cosine"] = [[dots[a][b] / (dots[a][a] * dots[b][b]) ** 0.5 for b in range(3)] for a in range(3)]
    grid, total = (SIMPLEX, 1.0) if to_one else (GRID, None)
    for weights in itertools.chain(grid, (None,) if to_one else (None, None)):
        w = least(done["search"], total=total) if weights is None else np.array(weights)
        lab.merged(w.tolist(), moves, lab.start)
        done["search"].append({"weights": w.tolist(), "bits": lab.bits("search")})
    found = least(done["search"], total=total)
    done["weights"], done["shares"] = found.tolist(), (found / found.sum()).tolist()
    timed("search", begin)
    print(seed, done["weights"], done["shares"], done["cosine"], file=sys.stderr, flush=True)

    if to_one:
        return

    merges = {"base": np.zeros(3), "merged found": found, "merged all": np.ones(3)}
    merges |= {f"merged without {each}": 1.5 - 1.5 * np.eye(3)[n] for n, each in enumerate(SOURCES)}
    for name, w in merges.items():
        lab.merged(w.tolist(), moves, lab.start)
        scored(name)
    for name, shares in {"found": done["shares"], **{str(n): each for n, each in enumerate(NINE)}}.items():
        begin = time.process_time()
        weights = lab.train(shares, STEPS)
        timed(f"run {name}", begin)
        lab.set(weights)
        scored(f"run {name}")
        for number in range(3) if name == "0" else ():
            lab.merged([-float(at == number) for at in range(3)], moves, weights)
            scored(f"run 0 minus {SOURCES[number]}")


def means(bits: Mapping[str, Sequence[float]]) -> np.ndarray:
    """Return the mean bits per byte of each part, [4]."""
    return np.array([np.mean(bits[part]) for part in PARTS])


def values(scores: Mapping[str, Mapping], full: str, without: Sequence[str]) -> np.ndarray:
    """Return bits per byte that each source takes off each part, [sources, parts]."""
    return np.stack([means(scores[each]) - means(scores[full]) for each in without])


def report(path: Path) -> None:
    """Print the tables of a seed."""
    done = json.loads(path.read_text(encoding="utf-8"))
    scores, cost = done["scores"], done["cpu_s"]
    print(f"## {path.name}\n\n| model | law, other, en | {' | '.join(PARTS)} | sum of three |")
    print("|---|---|---:|---:|---:|---:|---:|")
    shares = {f"run {n}": each for n, each in enumerate(NINE)} | {"run found": done["shares"]}
    for name, bits in scores.items():
        line, words = means(bits), ", ".join(f"{each:.2f}" for each in shares.get(name, ()))
        cells = " | ".join(f"{each:.3f}" for each in line)
        print(f"| {name} | {words} | {cells} | {line[:3].sum():.3f} |")
    runs = [cost[name] for name in cost if name.startswith("run ")]
    spent = cost["search"] + sum(cost[f"branch {each}"] for each in SOURCES)
    print(f"\nweights {np.round(done['weights'], 2)}, cosines {np.round(done['cosine'], 2).tolist()}")
    print(f"CPU seconds: branches and search {spent:.0f}, a mixed run {np.mean(runs):.0f}")
    if "run 3" not in scores:
        return
    # Runs 3, 2 and 1 are those without law, other and en.
    trained = values(scores, "run 0", ("run 3", "run 2", "run 1"))
    tried = {tuple(each["weights"]): means(each["bits"]) for each in done["search"]}
    alone = np.stack([tried[0.0, 0.0, 0.0] - tried[tuple(each)] for each in np.eye(3).tolist()])
    merged = values(scores, "merged all", [f"merged without {each}" for each in SOURCES])
    print(
        f"\n| value of | to {' | '.join(PARTS)} | merged: {' | '.join(PARTS)} | alone: {' | '.join(PARTS)} |"
    )
    print("|---|" + "---:|" * 12)
    for row in zip(SOURCES, trained, merged, alone, strict=True):
        print(f"| {row[0]} | {' | '.join(f'{each:+.3f}' for each in np.concatenate(row[1:]))} |")
    for name, each in {"merged": merged, "branch alone": alone}.items():
        print(f"tau, {name}: {kendalltau(trained.ravel(), each.ravel()).statistic:.2f}")


def main() -> None:
    """Measure a seed, or print the tables of finished ones."""
    asked = argparse.ArgumentParser(
        description="Find shares from branches, and compare with nine mixed runs."
    )
    asked.add_argument("--base", type=Path, help="directory of the base model")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--work", type=Path, default=Path("branches"))
    asked.add_argument("--to-one", action="store_true", help="only search, weights that sum to one")
    asked.add_argument("--report", type=Path, nargs="+", help="files of seeds")
    given = asked.parse_args()
    for path in given.report or ():
        report(path)
    if not given.report:
        measure(given.base, given.seed, given.work, to_one=given.to_one)


if __name__ == "__main__":
    main()
