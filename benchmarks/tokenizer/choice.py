"""Choice of the rule on a corpus of the published size, from the word counts of a small one.

    python benchmarks/tokenizer/choice.py --train az.jsonl... --heldout flores.jsonl... --base DIR

The published run took a new vocabulary of 100,000 tokens on 2.5 billion tokens of text ("Azerbaijani Llama on Amazon
SageMaker AI", AWS). Its corpus is not public, so its word counts are extrapolated: known words grow in proportion, and
new ones join them as Heaps' law says, with Zipf's counts, their spelling being a stem and suffixes that the small
corpus holds apart. The candidates are then made, measured and chosen from by the code of the stage.
"""

import argparse
import itertools
import json
import math
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from anadil.artifacts import artifact
from anadil.artifacts.base_model import read_tokenizer
from anadil.estimate.model_shape import KNOWN, shape_from
from anadil.recipe.sections import Tokenizer as Settings
from anadil.text.corpus import Document
from anadil.text.cut_patterns import to_symbols, to_text
from anadil.text.language import load_language
from anadil.text.language_data import Language
from anadil.tokenizer.candidate import TokenizerCandidate, vocab_size
from anadil.tokenizer.fertility import (
    Fertility,
    HeldoutSample,
    measure_fertility,
    sample_heldout,
    suffix_borders,
)
from anadil.tokenizer.makers import MAKERS
from anadil.tokenizer.pretokens import count_texts
from anadil.tokenizer.select import MeasuredCandidate, ModelCompute, choose_candidate, cost_of, rule_text
from anadil.tokenizer.word_counts import WordCounts, word_counts

PUBLISHED_TOKENS, PUBLISHED_FERTILITY = 2.5e9, 1.59
SETTINGS = Settings()
ENGLISH = Path(artifact.__file__).parents[1] / "builtin" / "en" / "retained.jsonl"
CONTEXT = 2_048
"""`pretrain.sequence_length` of the recipe azerbaijani-1b."""


def main() -> None:
    """Extrapolate, make the candidates, choose."""
    options = _options()
    language = load_language(options.language)
    base = read_tokenizer(options.base)
    texts = [text for path in options.train for text in _texts(path, language)]
    words = sum(len(language.words(text)) for text in texts)
    counts = dict(count_texts(base, texts).items())
    tables = {"the small corpus": counts}
    if not options.small:
        target = PUBLISHED_TOKENS / PUBLISHED_FERTILITY
        heaps, zipf = heaps_exponent(base, texts), zipf_exponent(counts)
        print(f"{words:,} words, {len(counts):,} pretokens; Heaps' exponent {heaps:.3f}, Zipf's {zipf:.3f}")
        grown = extrapolated(counts, target / words, heaps, options.least, language)
        print(
            f"grown to {target:,.0f} words: {len(grown):,} pretokens of at least {options.least} occurrences"
        )
        tables["the extrapolated one"] = grown
    heldout = sample_heldout(
        [
            Document(id="", text=text, source=f"{path.name}:1", url="", lang=options.language)
            for path in options.heldout
            for text in _texts(path, language)
        ],
        language,
        {"en": _texts(ENGLISH, language)},
    )
    for name, table in tables.items():
        begin = time.process_time()
        candidates = list(_candidates(base, word_counts(table.items()), options.sizes, heldout))
        for model in options.models:
            print(f"\n## {model}, {name}")
            _choose(candidates, ModelCompute(shape=shape_from(KNOWN[model], model), context=CONTEXT))
        print(f"({time.process_time() - begin:.0f} CPU s)")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--language", default="az")
    parser.add_argument("--train", type=Path, nargs="+", required=True, help="JSON lines with `text`")
    parser.add_argument("--heldout", type=Path, nargs="+", required=True, help="the same, of other sources")
    parser.add_argument("--base", type=Path, required=True, help="directory with the tokenizer of Llama 3")
    parser.add_argument("--sizes", type=int, nargs="+", default=[50_000, 75_000, 100_000])
    parser.add_argument("--models", nargs="+", default=["meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.1-8B"])
    parser.add_argument(
        "--least", type=int, default=100, help="rarer words are left out (default: %(default)s)"
    )
    parser.add_argument("--small", action="store_true", help="nothing is extrapolated")
    return parser.parse_args()


def _texts(path: Path, language: Language) -> list[str]:
    lines = path.read_text(encoding="utf-8").split("\n")
    return [language.normalize(json.loads(line)["text"]) for line in lines if line]


def heaps_exponent(base: Tokenizer, texts: Sequence[str]) -> float:
    """Slope of log different words over log words, from the second half of the text. Source: Heaps 1978, section 7.5."""
    seen: set[str] = set()
    points: list[tuple[float, float]] = []
    total = 0
    shuffled = sorted(texts, key=lambda text: zlib.crc32(text.encode()))
    for text in shuffled:
        pieces = [piece for piece, _ in base.pre_tokenizer.pre_tokenize_str(text)]
        seen.update(pieces)
        total += len(pieces)
        points.append((math.log(total), math.log(len(seen))))
    last = [point for point in points if point[0] > points[-1][0] - math.log(4)]
    return _slope(last)


def zipf_exponent(counts: Mapping[str, int]) -> float:
    """Slope of log count over log rank, ranks 1,000 to 20,000, with its sign turned."""
    ranked = sorted(counts.values(), reverse=True)
    return -_slope(
        [(math.log(rank), math.log(ranked[rank - 1])) for rank in range(1_000, min(20_000, len(ranked)))]
    )


def _slope(points: Sequence[tuple[float, float]]) -> float:
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    over = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return float(over / sum((x - mean_x) ** 2 for x, _ in points))


def extrapolated(
    counts: Mapping[str, int], factor: float, heaps: float, least: int, language: Language
) -> dict[str, int]:
    """The counts of a corpus `factor` times as large.

    In N words as many are seen `least` times as are seen once in N / least. The counts of the new ones fall by Zipf's
    law with the exponent that belongs to Heaps' (1 / heaps), from the rarest known word down to `least`.

    Source: van Leijenhorst and van der Weide 2005, "A formal derivation of Heaps' Law", section 3.
    """
    grown = {word: round(count * factor) for word, count in counts.items()}
    num_words = round(len(counts) * (factor / least) ** heaps)
    first = len(grown)
    for word in _new_words(counts, num_words - first, language):
        count = round(factor * (len(grown) / first) ** (-1 / heaps))
        grown[word] = max(count, least)
    return grown


def _new_words(counts: Mapping[str, int], number: int, language: Language) -> list[str]:
    """Words that join a stem of the corpus with suffixes of another of its words, likeliest first, in byte symbols."""
    spelled: dict[str, int] = {}
    for word, count in counts.items():
        text = to_text(word)
        if text[:1] == " " and text[1:].isalpha():
            spelled[text[1:]] = count
    folded = {language.fold(text) for text in spelled}
    stems, endings = Counter[str](), Counter[str]()
    for text, count in spelled.items():
        same = language.fold(text)
        borders = suffix_borders(same, language.suffixes, folded) if len(same) == len(text) else frozenset()
        first = min(borders, default=len(text))
        stems[text[:first]] += count
        if borders:
            endings[text[first:]] += count
    # The product of both shares orders pairs; a stem of rank r reaches down to the ending of rank limit / r.
    ranked_stems, ranked_endings = (
        [part for part, _ in each.most_common() if part] for each in (stems, endings)
    )
    weighted: list[tuple[int, str]] = []
    limit = number
    while True:
        weighted = [
            (stems[stem] * endings[ending], stem + ending)
            for rank, stem in enumerate(ranked_stems, 1)
            for ending in itertools.islice(ranked_endings, limit // rank)
            if stem + ending not in spelled
        ]
        if len(weighted) >= number or limit > number * 64:
            break
        limit *= 2
    weighted.sort(reverse=True)
    words = dict.fromkeys(text for _, text in weighted)
    return [to_symbols(f" {text}".encode()) for text in itertools.islice(words, number)]


def _candidates(
    base: Tokenizer, counts: WordCounts, sizes: Sequence[int], heldout: HeldoutSample
) -> Iterator[tuple[TokenizerCandidate, Fertility]]:
    """The base, then those of all strategies: the sizes that the corpus supports, and those that are named."""
    rows = vocab_size(base)
    candidates = [TokenizerCandidate(strategy="base", asked=rows, got=rows, tokenizer=base)]
    keep = dict(count_texts(base, [text for sample in heldout.keep for text in sample.texts]).items())
    for make in MAKERS.values():
        for named in ((), tuple(sizes)):
            candidates += make(base, counts, named, SETTINGS, keep)
    for candidate in candidates:
        yield candidate, measure_fertility(candidate.tokenizer, heldout, candidate.name, CONTEXT)


def _choose(candidates: Sequence[tuple[TokenizerCandidate, Fertility]], compute: ModelCompute) -> None:
    """Print the candidates' figures, the choice, and how far it is from the cheapest that can be learnt."""
    base, fertility = candidates[0]
    unit = fertility.mean_fertility
    measured = [
        MeasuredCandidate(
            candidate=each,
            fertility=fertility,
            cost=cost_of(
                fertility.mean_fertility, each.num_rows(SETTINGS.pad_to), (unit, base.vocab_size), compute
            ),
        )
        for each, fertility in candidates
    ]
    print("| candidate | tokens per word | over base | cost | own tokens at 100 uses | supported |")
    print("|---|---:|---:|---:|---:|---:|")
    for item in measured:
        usage_of = item.candidate.usage
        share = f"{usage_of.own_tokens_seen / usage_of.own_tokens:.1%}" if usage_of else ""
        print(
            f"| {item.candidate.name} | {item.cost.tokens_per_word:.3f} | "
            f"{item.cost.tokens_per_word / unit:.3f} | {item.cost.relative:.3f} | {share} | "
            f"{usage_of.supported_size if usage_of else 0:,} |"
        )
    choice = choose_candidate(measured, measured[0], SETTINGS)
    best = choice.best.cost.relative
    print(f"\n{choice.reason}\nRule: {rule_text(SETTINGS, compute.text)}")
    for name, why in choice.why_not.items():
        print(f"- not {name}: {why}")
    for text, items in (
        ("candidate", measured),
        ("new candidate whose tokens can be learnt", [item for item in measured[1:] if not item.warning]),
    ):
        least = min(items, key=lambda item: item.cost.relative, default=None)
        if least:
            print(
                f"cheapest {text}: {least.candidate.name}, {least.cost.relative:.3f}; the choice {best / least.cost.relative - 1:+.1%}"
            )


if __name__ == "__main__":
    main()
