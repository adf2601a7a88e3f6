"""Write Azerbaijani law in documents of a paragraph or two: `python benchmarks/bases/make_text.py OUT`; reads $ANADIL_DATA."""

import json
import os
import random
import sys
from pathlib import Path

CHARS, TRAIN_BYTES, HELDOUT = 800, 2_500_000, 120
out = Path(sys.argv[1])
[file] = Path(os.environ["ANADIL_DATA"], "az").glob("*legal_codes.jsonl")
pieces = []
for line in file.open(encoding="utf-8"):
    piece = ""
    for paragraph in json.loads(line)["text"].splitlines():
        piece = f"{piece}\n{paragraph}".strip()
        if len(piece) >= CHARS:
            pieces.append(piece)
            piece = ""
pieces = list(dict.fromkeys(pieces))
random.Random(0).shuffle(pieces)  # noqa: S311  no secret
heldout, train, size = pieces[:HELDOUT], [], 0
for piece in pieces[HELDOUT:]:
    size += len(piece.encode())
    if size > TRAIN_BYTES:
        break
    train.append(piece)
for name, texts in (("heldout", heldout), ("train", train)):
    rows = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    (out / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
print(len(train), len(heldout), sum(len(text.encode()) for text in heldout))
