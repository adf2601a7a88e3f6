"""Texts that a model wrote at each validation, side by side over time."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from anadil.artifacts.uri import join
from anadil.core.format import number
from anadil.report.format import clip, evenly
from anadil.watch.plots import folder_of
from anadil.watch.run_state import RunState, last_lines
from anadil.watch.watched import Watched

FILE = "texts.jsonl"
SHOWN = 5
"""Texts of a prompt that stand side by side; the others are folded."""
MAX_BYTES = 4_000_000
"""Read of the file's end."""
MAX_CHARS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTexts:
    """A beginning, and how the model went on with it at each step."""

    prompt: str
    shown: list[tuple[int, str]]
    """Step and text, the first and the last among them."""
    every: list[tuple[int, str]]


def texts_of(watched: Watched, state: RunState) -> list[PromptTexts]:
    """Texts by prompt, in the order of the first validation; none where pre-training has written none."""
    by_prompt: dict[str, dict[int, str]] = {}
    folder = folder_of(watched, state.record, state.place, "pretrain")
    live = join(state.root, "runs", state.record.id, f"pretrain.{FILE}")
    for step, prompt, text in _texts(join(folder, FILE) if folder else live):
        by_prompt.setdefault(prompt, {})[step] = clip(text, MAX_CHARS)
    return [
        PromptTexts(prompt=prompt, shown=evenly(list(texts.items()), SHOWN), every=list(texts.items()))
        for prompt, texts in by_prompt.items()
    ]


def _texts(uri: str) -> Iterator[tuple[int, str, str]]:
    """Yield step, prompt and text; a line that is being written, or is none of ours, is passed over."""
    for known in last_lines(uri, MAX_BYTES):
        with suppress(TypeError, KeyError):
            if (step := number(known["step"])) is not None:
                yield from ((int(step), str(each["prompt"]), str(each["text"])) for each in known["texts"])
