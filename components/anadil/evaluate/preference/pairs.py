"""The page of a blind comparison. It holds prompts, texts and ids, and the key holds who wrote them.

A seed draws pairs, order and places. Each candidate stands first in half of the pairs, because judges prefer a place.
Source: Zheng et al. 2023, "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena", arXiv:2306.05685, section 3.4.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from anadil.core.errors import DataError
from anadil.evaluate.preference.votes import Key, KeyPair, text_digest, written_text
from anadil.page.render import render_template

SECONDS = 15
"""Seconds that a pair takes a reader: 40 pairs in ten minutes. An assumption."""
TEMPLATE = Path(__file__).parent / "page.html.j2"
Pair = tuple[str, str, str]
"""Prompt, and the text of each candidate."""


def read_pairs(
    uri: str, scores: Mapping[str, Any], between: tuple[str, str], *, kind: str, mode: str, seen: bool
) -> list[Pair]:
    """Read two candidates' texts for the same prompts. `seen` includes questions that training has seen."""
    one, other = (_texts(uri, scores, name, kind, mode) for name in between)
    prompts = [prompt for prompt in one if prompt in other]
    unseen = [prompt for prompt in prompts if seen or one[prompt].get("seen") is not True]
    if not unseen:
        why = "Training has seen all: add --seen" if prompts else "Take the other --kind or --mode"
        raise DataError(f"{uri}: no {kind} in mode {mode} that both {' and '.join(between)} wrote. {why}")
    return [(each, written_text(one[each]), written_text(other[each])) for each in unseen]


def draw_key(
    pairs: Sequence[Pair], between: tuple[str, str], *, uri: str, digest: str, seed: int, count: int
) -> tuple[Key, list[Pair]]:
    """Return the key of at most `count` pairs, and the pairs in its order. `digest` names the scores."""
    # Without the digest, a judge who guesses the seed could draw the same key.
    generator = random.Random(f"{seed} {digest}")  # noqa: S311  a repeatable order
    drawn = generator.sample(pairs, min(count, len(pairs)))
    lefts = [place % 2 for place in range(len(drawn))]
    generator.shuffle(lefts)
    entries = [
        # Places are the ids: they reveal nothing.
        KeyPair(
            id=f"{place:03d}",
            left=1 if left else 0,
            prompt=prompt,
            texts=(text_digest(first), text_digest(second)),
        )
        for place, (left, (prompt, first, second)) in enumerate(zip(lefts, drawn, strict=True), 1)
    ]
    salt = f"{generator.getrandbits(128):032x}"
    key = Key(between=between, scores=uri, salt=salt, pairs=tuple(entries))
    return replace(key, list=key.digest), drawn


def blind_page(key: Key, pairs: Sequence[Pair], language: str) -> str:
    """Return the page for judges, which needs no network."""
    rows = [
        {"id": entry.id, "prompt": prompt, "left": texts[entry.left], "right": texts[1 - entry.left]}
        for entry, (prompt, *texts) in zip(key.pairs, pairs, strict=True)
    ]
    # A text that ends the script element stays text. No UTF-8 file can hold a lone surrogate, but JSON can.
    data = json.dumps({"list": key.list, "pairs": rows}).replace("<", "\\u003c")
    minutes = max(1, round(len(rows) * SECONDS / 60))
    return render_template(
        TEMPLATE, {"num_pairs": len(rows), "minutes": minutes, "lang": language, "data": data}
    )


def _texts(uri: str, scores: Mapping[str, Any], name: str, kind: str, mode: str) -> dict[str, dict[str, Any]]:
    candidates = scores.get("candidates", {})
    if name not in candidates:
        raise DataError(f"{uri}: holds no candidate {name!r}. Name two of {', '.join(candidates)}")
    made = candidates[name].get("generations") or []
    return {one["prompt"]: one for one in made if one.get("kind") == kind and one.get("mode") == mode}
