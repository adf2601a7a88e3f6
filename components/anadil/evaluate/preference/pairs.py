"""Pairs of texts for a blind comparison: the page that a judge gets, and the key that nobody shows to judges.

The page holds prompts, texts and ids. The key holds which candidate wrote which text. A seed draws pairs, order and places.
Each candidate stands first in half of the pairs, because judges prefer a place.
Source: Zheng et al. 2023, "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena", arXiv:2306.05685, section 3.4.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from anadil.core.errors import DataError
from anadil.evaluate.preference.key import Key, KeyPair, text_digest
from anadil.page.render import render_template

SECONDS = 15
"""Seconds that a pair takes a reader: 40 pairs in ten minutes. An assumption."""
TEMPLATE = Path(__file__).parent / "page.html.j2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two texts for one prompt."""

    prompt: str
    texts: tuple[str, str]
    """In the order of the candidates."""

    @property
    def equal(self) -> bool:
        """True if there is nothing to judge."""
        return self.texts[0] == self.texts[1]


def read_pairs(
    uri: str, scores: Mapping[str, Any], between: tuple[str, str], *, kind: str, mode: str, seen: bool
) -> list[Pair]:
    """Read what two candidates wrote for the same prompts, without questions that training has seen unless asked for."""
    one, other = (_texts(uri, scores, name, kind, mode) for name in between)
    prompts = [prompt for prompt in one if prompt in other]
    unseen = [prompt for prompt in prompts if seen or one[prompt].get("seen") is not True]
    if not unseen:
        why = "training has seen all; add --seen" if prompts else "take the other --kind or --mode"
        raise DataError(f"{uri}: no {kind} in mode {mode} that both {' and '.join(between)} wrote; {why}")
    return [Pair(prompt=each, texts=(_own(one[each]), _own(other[each]))) for each in unseen]


def draw_key(
    pairs: Sequence[Pair], between: tuple[str, str], *, uri: str, digest: str, seed: int, count: int
) -> tuple[Key, list[Pair]]:
    """Return the key of at most `count` pairs, and these in the key's order; `digest` is that of the scores."""
    # Without the digest, a judge who guesses the seed could draw the same key.
    generator = random.Random(f"{seed} {digest}")  # noqa: S311  no secret, but a repeatable order
    drawn = generator.sample(pairs, min(count, len(pairs)))
    lefts = [place % 2 for place in range(len(drawn))]
    generator.shuffle(lefts)
    # Numbers say nothing, and are different for each place.
    ids = [f"{place + 1:03d}" for place in range(len(drawn))]
    entries = [
        KeyPair(id=id, left=left, prompt=each.prompt, texts=(text_digest(each.texts[0]), text_digest(each.texts[1])))
        for id, left, each in zip(ids, lefts, drawn, strict=True)
    ]  # fmt: skip
    salt = f"{generator.getrandbits(128):032x}"
    return Key(between=between, scores=uri, seed=seed, salt=salt, pairs=tuple(entries)), drawn


def blind_page(key: Key, pairs: Sequence[Pair], language: str) -> str:
    """Return the page for judges, which needs no network."""
    rows = [
        {"id": entry.id, "prompt": each.prompt, "left": each.texts[entry.left], "right": each.texts[1 - entry.left]}
        for entry, each in zip(key.pairs, pairs, strict=True)
    ]  # fmt: skip
    # A text that ends the script element stays text. So does a lone surrogate, which no UTF-8 file can hold.
    data = json.dumps({"list": key.list, "pairs": rows}).replace("<", "\\u003c")
    minutes = max(1, round(len(rows) * SECONDS / 60))
    view: dict[str, object] = {
        "num_pairs": len(rows), "minutes": minutes, "lang": language, "data": Markup(data),  # noqa: S704  "<" is escaped
    }  # fmt: skip
    return render_template(TEMPLATE, view)


def _texts(uri: str, scores: Mapping[str, Any], name: str, kind: str, mode: str) -> dict[str, dict[str, Any]]:
    candidates = scores.get("candidates", {})
    if name not in candidates:
        raise DataError(
            f"{uri}: holds no candidate {name!r}; name two of {', '.join(candidates) or 'none: run evaluate first'}"
        )
    made = candidates[name].get("generations") or []
    return {one["prompt"]: one for one in made if one.get("kind") == kind and one.get("mode") == mode}


def _own(generation: Mapping[str, Any]) -> str:
    return str(generation["text"]).removeprefix(str(generation["prompt"])).strip()
