"""Near duplicates by rensa or datasketch: a JSONL file in, the documents that stay out; in the peers' environment.

python minhash_peer.py rensa|datasketch INPUT OUTPUT --language az|ja

The same shingles, bands and rows as the stage: 14 bands of 8 rows over runs of five words (of Japanese,
characters), the first document of a bucket stays. Prints how many documents stay.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

BANDS, ROWS, SHINGLE = 14, 8, 5
THRESHOLD = (1 / BANDS) ** (1 / ROWS)


def shingles(text: str, language: str) -> list[str]:
    """Runs of units of the lower-cased text."""
    if language == "ja":
        units = "".join(text.split())
        return [units[at : at + SHINGLE] for at in range(max(1, len(units) - SHINGLE + 1))]
    words = text.lower().split()
    return [" ".join(words[at : at + SHINGLE]) for at in range(max(1, len(words) - SHINGLE + 1))]


def by_rensa(texts: Iterator[str], language: str) -> Iterator[bool]:
    """True for each text that stays."""
    from rensa import RMinHash, RMinHashLSH

    index = RMinHashLSH(threshold=THRESHOLD, num_perm=BANDS * ROWS, num_bands=BANDS)
    for number, text in enumerate(texts):
        signature = RMinHash(num_perm=BANDS * ROWS, seed=1)
        signature.update(shingles(text, language))
        stays = not index.query(signature)
        if stays:
            index.insert(number, signature)
        yield stays


def by_datasketch(texts: Iterator[str], language: str) -> Iterator[bool]:
    """True for each text that stays."""
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(num_perm=BANDS * ROWS, params=(BANDS, ROWS))
    for number, text in enumerate(texts):
        signature = MinHash(num_perm=BANDS * ROWS, seed=1)
        signature.update_batch([each.encode() for each in shingles(text, language)])
        stays = not index.query(signature)
        if stays:
            index.insert(str(number), signature)
        yield stays


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tool", choices=("rensa", "datasketch"))
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--language", required=True)
    options = parser.parse_args()
    find = {"rensa": by_rensa, "datasketch": by_datasketch}[options.tool]
    options.output.mkdir(parents=True)
    num_unique = 0
    with (
        options.input.open(encoding="utf-8") as lines,
        options.input.open(encoding="utf-8") as again,
        (options.output / "kept.jsonl").open("w", encoding="utf-8") as out,
    ):
        verdicts = find((json.loads(line)["text"] for line in lines), options.language)
        for line, stays in zip(again, verdicts, strict=True):
            if stays:
                out.write(line)
                num_unique += 1
    print(num_unique)


if __name__ == "__main__":
    main()
