"""How much lost English interpolation with the base takes back, and how much Azerbaijani it costs, as Markdown tables.

ANADIL_DATA=DIR python benchmarks/merge/interpolate.py --base DIR [--work DIR]

A base learns Azerbaijani text alone, once a seed. The stage `merge` chooses the base's share by `auto` on a part of the
held-out text. Scores are bits per byte of other text. The result is compared with a merge in plain torch, bit by bit.
"""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2])]

from benchmarks.merge import by_hand  # noqa: E402  scripts are installed nowhere
from benchmarks.merge.models import LANGUAGES, Models, parser  # noqa: E402
from benchmarks.stage_runs import Scores, score, with_spread  # noqa: E402

SHARE_OF_LOSS = 0.3
"""Loss of English that is allowed, of the loss of the adapted model."""
TITLES = {"az": "Azerbaijani", "en": "English"}
PROMPTS = {
    "az": (
        "Azərbaycan Respublikasının paytaxtı", "Hər bir şəxsin hüququ var", "Bu gün hava",
        "Kompüterdə yeni fayl yaratmaq üçün", "Məhkəmənin qərarı", "Uşaqlar məktəbdə", "Su insan üçün",
        "Vergi ödəyicisi", "Tarix boyu", "Komponentin vəziyyəti dəyişəndə",
    ),
    "en": (
        "The capital of France is", "Everyone has the right to", "The weather today", "To open a file in Python,",
        "The court decided that", "Children at school", "Water is important because", "A taxpayer must",
        "Throughout history,", "When the state of a component changes,",
    ),
}  # fmt: skip
"""Beginnings that the models continue, ten of each language."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """One adapted model and what became of it."""

    limit: float
    base: Scores
    adapted: Scores
    merged: Scores
    merge: dict[str, Any]
    """The stage's own figures."""
    differing: int
    """Numbers that are not those of plain torch."""

    @property
    def lost(self) -> float:
        """English that the merged model lost, of what the adapted one lost; NaN if that lost none."""
        if self.adapted["en"] <= self.base["en"]:
            return math.nan
        return (self.merged["en"] - self.base["en"]) / (self.adapted["en"] - self.base["en"])

    @property
    def gained(self) -> float:
        """Azerbaijani that the merged model gained, of what the adapted one gained."""
        return (self.base["az"] - self.merged["az"]) / (self.base["az"] - self.adapted["az"])


def scores(models: Models, name: str, model: Path, *, tuning: bool = False) -> Scores:
    """Score a model on a part of the held-out text, unless the figures are saved."""
    part, length = models.heldout(tuning=tuning), models.options.length
    settings = {"model": str(model), "length": length, "texts": part}
    kind = "tuning" if tuning else "scored"
    return models.runs.saved(f"{kind}-{name}", settings, lambda: score(model, part, length))


def one(models: Models, seed: int) -> Seed:
    """Adapt, merge and score once."""
    adapted = models.adapted("extend", seed)
    # The limit follows from English that is not scored, so that the scores say what a user would meet.
    before = scores(models, "base", models.base, tuning=True)
    after = scores(models, f"extend-{seed}", adapted, tuning=True)
    limit = 1 + SHARE_OF_LOSS * (after["en"] / before["en"] - 1)
    settings = models.settings("extend", seed)
    settings["evaluate"] |= {"gate": {"max_retained_ratio": round(limit, 5)}}
    merged = models.merged(
        f"interpolated-{seed}", adapted, models.tokenizer, settings, {"base_share": "auto"}
    )
    figures = json.loads((merged / "merge.json").read_text(encoding="utf-8"))
    return Seed(
        limit=limit,
        base=scores(models, "base", models.base),
        adapted=scores(models, f"extend-{seed}", adapted),
        merged=scores(models, f"interpolated-{seed}", merged),
        merge=figures,
        differing=differing(models, adapted, merged, figures["base_share"]),
    )


def differing(models: Models, adapted: Path, merged: Path, share: float) -> int:
    """Count the numbers of a merged model that are not those of plain torch, bit by bit, in the model's own precision."""
    rows = by_hand.sources(models.tokenizer)
    carried = by_hand.carried(by_hand.weights(models.base), rows)
    expected = by_hand.interpolated(by_hand.weights(adapted), carried, share)
    actual, precisions = by_hand.weights(merged), by_hand.precisions(merged)
    if actual.keys() != expected.keys():
        return sum(tensor.numel() for tensor in expected.values())
    # Products in FP32, rounded once where training in BF16 has stored BF16.
    return sum(
        int((actual[name] != tensor.to(precisions[name]).float()).sum()) for name, tensor in expected.items()
    )


def figures(seeds: Sequence[Seed]) -> Iterator[str]:
    """Yield bits per byte of base, adapted and merged models, and what is lost and gained."""
    yield "| model | Azerbaijani | English |"
    yield "|---|---:|---:|"
    for name in ("base", "adapted", "merged"):
        each = [getattr(seed, name) for seed in seeds]
        yield f"| {name} | {' | '.join(with_spread([row[one] for row in each]) for one in LANGUAGES)} |"
    yield ""
    yield "| seed | limit | base share | English lost, of adapted | Azerbaijani gain kept | not bit-equal |"
    yield "|---:|---:|---:|---:|---:|---:|"
    for number, seed in enumerate(seeds):
        yield (
            f"| {number} | {seed.limit:.4f} | {seed.merge['base_share']:.4g} | {seed.lost:.3f} "
            f"| {100 * seed.gained:.1f} % | {seed.differing} |"
        )
    lost = [seed.lost for seed in seeds if not math.isnan(seed.lost)]
    gained = [100 * seed.gained for seed in seeds]
    yield f"| all | | | {with_spread(lost) if lost else 'no seed lost any'} | {with_spread(gained, 1)} % | |"


def points(seed: Seed) -> Iterator[str]:
    """Yield the frontier that the stage measured."""
    yield "| base share | Azerbaijani | English | English, of the base's: upper end | within |"
    yield "|---:|---:|---:|---:|---|"
    for point in sorted(seed.merge["points"], key=lambda each: float(each["base_share"])):
        (text,) = point["retained"].values()
        yield (
            f"| {point['base_share']:.4g} | {point['target']:.3f} | {text['bits_per_byte']:.3f} | {text['high']:.4f} "
            f"| {'yes' if point['within'] else 'no'} |"
        )


def continuations(models: Models, folders: dict[str, Path], tokens: int = 16) -> Iterator[str]:
    """Yield the first words with which each model continues ten beginnings of both languages."""
    from anadil.evaluate.generate import GenerationPrompt, generate_texts
    from anadil.model.decoding import open_decoder
    from anadil.model.load import load_model, load_tokenizer

    listed = [text for language in LANGUAGES for text in PROMPTS[language]]
    written: dict[str, list[str]] = {}
    for name, folder in folders.items():

        def made(folder: Path = folder, name: str = name) -> dict[str, Any]:
            prompts = [GenerationPrompt(text=text, kind="continuation") for text in listed]
            tokenizer = load_tokenizer(folder)
            texts = generate_texts(
                open_decoder(load_model(folder), tokenizer), tokenizer, prompts,
                max_new_tokens=tokens, seed=0, name=name, modes=("greedy",),
            )  # fmt: skip
            return {"texts": [" ".join(each.text.split()).replace("|", "/") for each in texts]}

        settings = {"model": str(folder), "prompts": listed, "tokens": tokens}
        written[name] = models.runs.saved(f"continued-{name}", settings, made)["texts"]
    yield f"| beginning | {' | '.join(folders)} |"
    yield "|---|" + "---|" * len(folders)
    for place, text in enumerate(listed):
        yield f"| {text} | {' | '.join(written[name][place] for name in folders)} |"


def main() -> None:
    """Print the tables."""
    options = parser((__doc__ or "").splitlines()[0]).parse_args()
    models = Models.of(options)
    seeds = [one(models, seed) for seed in range(options.seeds)]
    print("\n".join(figures(seeds)))
    for number, seed in enumerate(seeds):
        print(f"\nFrontier of seed {number}, on the part that chooses:\n")
        print("\n".join(points(seed)))
    folders = {"base": models.base, "adapted": models.adapted("extend", 0)}
    folders["merged"] = models.runs.work / "interpolated-0"
    print("\n" + "\n".join(continuations(models, folders)))


if __name__ == "__main__":
    main()
