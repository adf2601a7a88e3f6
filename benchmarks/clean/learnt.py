"""A language learnt of a sample, as if nothing were known of it: own text lost, noise and siblings kept, of text never seen.

    python benchmarks/clean/learnt.py hungarian.jsonl [more.jsonl ...] [--sibling finnish.jsonl ...] [--source news.jsonl ...]

Of records with a field `text`. Three fifths of the text at most are the sample. The noise is of other kinds, or made otherwise, than
what the command itself tries its limits on; text that keeps nine tenths of its words, or that cleaning puts right again, is no noise.
"""

import argparse
import hashlib
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from anadil.clean.filters.judge_record import Settings, judge_prepared, prepare_record
from anadil.clean.read.readers import RawRecord
from anadil.language.learn_language import learn_language
from anadil.recipe.sections import Recipe

NUM_OWN, NUM_NOISY, NUM_SIBLING = 400, 100, 200
SAMPLE_SHARE = 0.6
ENGLISH = "The settings of this page are saved when you close the window, and they are used again the next time that you open it."
CODE = (
    "def load(path):\n    with open(path) as handle:\n        return [json.loads(line) for line in handle]\n"
)
LOOKALIKES = dict(zip("aeopcxyiTHAаеорсхуіαοντι", "аеорсхуіТНАaeopcxyiaovti", strict=False))


def ends(words: Sequence[str], draw: random.Random) -> str:
    """One or two of the words, as an entry of a menu."""
    return " ".join(draw.sample(words, min(len(words), draw.randint(1, 2))))


def replaced(text: str, share: float, draw: random.Random, by: Callable[[str], str]) -> str:
    """The text with a share of its letters replaced."""
    return "".join(by(each) if each.isalpha() and draw.random() < share else each for each in text)


def keywords(words: Sequence[str], draw: random.Random) -> str:
    """Sixty words, listed twice."""
    some = draw.sample(words, min(60, len(words)))
    return ", ".join(draw.sample(some, len(some)) + draw.sample(some, len(some)))


KINDS: dict[str, Callable[[str, list[str], random.Random], str]] = {
    "signs for letters, one in twelve": lambda t, _, d: replaced(t, 0.08, d, lambda _: d.choice("l1I|!0O5S8B~^*")),
    "letters misread, one in ten": lambda t, _, d: replaced(t, 0.1, d, lambda _: d.choice(t) if t else ""),
    "half of the blanks lost": lambda t, _, d: "".join(c for c in t if c != " " or d.random() < 0.5),
    "lookalikes": lambda t, _, d: replaced(t, 0.5, d, lambda c: LOOKALIKES.get(c, c)),
    "capitals at random": lambda t, _, d: replaced(t, 0.5, d, str.upper),
    "markup": lambda _, w, d: " ".join(f'<div class="c{d.randrange(99)}"><a href="/p?id={d.randrange(9999)}">{each}</a></div>' for each in w),
    "menu": lambda _, w, d: "\n".join(ends(w, d) for _ in range(120)),
    "menu bar": lambda _, w, d: " | ".join(ends(w, d) for _ in range(120)),
    "log": lambda _, w, d: "\n".join(f"2026-11-{d.randrange(1, 28):02d} 12:{d.randrange(60):02d} INFO [{d.choice(w)}] GET /v1/{d.randrange(9999)} 200 {d.randrange(999)}ms {ends(w, d)}" for _ in range(40)),
    "code": lambda _, w, d: "\n".join(f"{CODE}# {ends(w, d)}" for _ in range(12)),
    "eight words": lambda _, w, d: " ".join(d.choices(d.sample(w, min(8, len(w))), k=250)),
    "keywords twice": lambda _, w, d: keywords(w, d),
    "shuffled words": lambda _, w, d: " ".join(d.sample(w, len(w))),
    "one paragraph": lambda t, _, __: "\n".join([t[:300]] * 10),
    "half English": lambda t, _, __: "\n".join(f"{line}\n{ENGLISH}" for line in t.split("\n")),
    "reversed": lambda t, _, __: "\n".join(line[::-1] for line in t.split("\n")),
    "vowels lost": lambda t, _, __: re.sub("[aeiouəöüıаеиоуыэюяαεηιουω]", "", t),
    "table": lambda _, w, d: "\n".join(f"{d.choice(w)} {d.randrange(9999)} {d.random():.3f}" for _ in range(60)),
    "hexadecimal": lambda _, w, d: " ".join(w[:40]) + "\n" + "\n".join(hashlib.sha256(f"{d.random()}".encode()).hexdigest() for _ in range(25)),
}  # fmt: skip


def read(files: Iterable[Path]) -> list[str]:
    """Texts of records."""
    lines = (line for file in files for line in file.read_text(encoding="utf-8").split("\n"))
    return [json.loads(line)["text"] for line in lines if line]


def is_changed(words: Sequence[str], others: Sequence[str]) -> bool:
    """True if a tenth of the words are others. Tamil with its few Latin letters replaced is no noise."""
    same = sum(first == second for first, second in zip(words, others, strict=False))
    return same < 0.9 * max(len(words), len(others))


def judged(settings: Settings, texts: Sequence[str]) -> list[str | None]:
    """Why each is dropped; None of one that is kept."""
    records = [RawRecord(source=f"text:{number}", text=text) for number, text in enumerate(texts)]
    return [
        each.reason for each in judge_prepared([prepare_record(each, settings) for each in records], settings)
    ]


def main() -> None:
    """Print one language's figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--sibling", nargs="*", type=Path, default=[])
    parser.add_argument(
        "--source", nargs="*", type=Path, default=[], help="own text of sources that the sample lacks"
    )
    parser.add_argument(
        "--code", default="qaa", help="as which it is learnt; of a language that CLD2 knows, its label counts"
    )
    parser.add_argument("--megabytes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    texts, draw = read(options.texts), random.Random(options.seed)  # noqa: S311  no secret
    draw.shuffle(texts)
    most = min(options.megabytes * 1e6, SAMPLE_SHARE * sum(len(text.encode()) for text in texts))
    sample: list[str] = []
    num_bytes = 0
    while num_bytes < most:
        sample.append(texts.pop())
        num_bytes += len(sample[-1].encode())
    began = time.process_time()
    pack = learn_language(options.code, sample, {}).pack
    seconds = time.process_time() - began
    with TemporaryDirectory() as folder:
        path = Path(folder, "pack.yaml")
        path.write_text(
            yaml.safe_dump(pack.model_dump(mode="json", exclude_defaults=True), allow_unicode=True)
        )
        settings = Settings(recipe=Recipe.model_validate({"language": str(path)}))
        own = texts[:NUM_OWN]
        reasons = judged(settings, own)
        dropped = Counter(filter(None, reasons))
        print(
            f"sample {num_bytes / 1e6:.1f} MB, {len(sample):,} documents, {seconds:.0f} CPU s, pack {path.stat().st_size / 1e3:.0f} kB"
        )
        print(f"own: {len(own):,} documents, dropped {dropped.total() / len(own):.3f}: {dict(dropped)}")
        good = [text for text, reason in zip(own, reasons, strict=True) if reason is None][:NUM_NOISY]
        for kind, make in KINDS.items():
            made = [(text, make(text, text.split(), draw)) for text in good]
            noisy = [
                noise
                for text, noise in made
                if is_changed(*(settings.language.normalize(each).split() for each in (text, noise)))
            ]
            if noisy:
                print(f"{kind}: {judged(settings, noisy).count(None) / len(noisy):.3f} of {len(noisy)} kept")
        for file in [*options.source, *options.sibling]:
            others = read([file])[:NUM_SIBLING]
            print(
                f"{file.stem}: {judged(settings, others).count(None) / len(others):.3f} of {len(others)} kept"
            )


if __name__ == "__main__":
    main()
