"""A linear classifier in the format of fastText, which `clean` reads as `clean.quality_model`.

Without words in its dictionary, fastText averages the rows of a text's character n-grams. With rows of one number, and
labels at plus and minus a half, the softmax of two labels is the logistic function of that average.
Source: facebookresearch/fastText 0.9.2, dictionary.cc (`computeSubwords`, `hash`, `load`), args.cc, densematrix.cc.
"""

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anadil.core.files import write_atomic

BUCKETS = 2**18
"""Rows that n-grams share by their hash: a file of 1 MiB."""
SHORTEST, LONGEST = 1, 4
"""Characters of an n-gram. Single ones tell most where labels are few (benchmarks/clean)."""
GOOD_LABEL, BAD_LABEL = "__label__hq", "__label__lq"
MAGIC, VERSION, SOFTMAX, SUPERVISED = 793_712_314, 12, 3, 3
END_OF_LINE = "</s>"
"""The only word of the dictionary. Its row counts once in the average of each text."""


def ngram_rows(word: str) -> list[int]:
    """Rows of the n-grams of a word, in any order: FNV-1a of their UTF-8 bytes, which fastText reads as signed."""
    letters = [
        [each | 0xFFFFFF00 if each > 127 else each for each in letter.encode(errors="replace")]
        for letter in f"<{word}>"
    ]
    rows = []
    for start in range(len(letters)):
        state = 2_166_136_261
        for size, letter in enumerate(letters[start : start + LONGEST], 1):
            for byte in letter:
                state = (state ^ byte) * 16_777_619 & 0xFFFFFFFF
            # fastText leaves the two signs around a word out as n-grams of their own.
            if size > 1 or 0 < start < len(letters) - 1:
                rows.append(state % BUCKETS + 1)
    return rows


def write_model(weights: NDArray[np.float32], path: Path) -> None:
    """Write a model of `weights` by row: the end of a line, then the buckets."""
    args = struct.pack(
        "<12id", 1, 1, 1, 1, 0, 1, SOFTMAX, SUPERVISED, BUCKETS, SHORTEST, LONGEST, 1, 1e-4
    )  # dim, ws, epoch, minCount, neg, wordNgrams, loss, model, bucket, minn, maxn, lrUpdateRate, t
    entries = ((END_OF_LINE, 0), (GOOD_LABEL, 1), (BAD_LABEL, 1))
    words = b"".join(name.encode() + struct.pack("<xqb", 1, kind) for name, kind in entries)
    dictionary = struct.pack("<iiiqq", len(entries), 1, 2, 1, -1) + words
    rows = struct.pack("<?qq", False, len(weights), 1) + np.asarray(weights, "<f4").tobytes()
    labels = struct.pack("<?qq", False, 2, 1) + np.array([0.5, -0.5], "<f4").tobytes()
    write_atomic(path, struct.pack("<ii", MAGIC, VERSION) + args + dictionary + rows + labels)
