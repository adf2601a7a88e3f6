"""Measure CPU seconds of `clean` without filters, and with a filter of the user's.

ANADIL_DATA=DIR OMP_NUM_THREADS=1 python -m benchmarks.clean.filters [--old CHECKOUT]

`--old` is a checkout with a `.venv` of its own, whose runs take turns with those of this one.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.clean.inputs import write_jsonl
from benchmarks.clean.measure import run

NUM_DOCUMENTS, ROUNDS = 8_000, 3
RULES = "def trivial(text, statistics):\n    return 'lyrics' if 'zzz' in text else None\n"


def cpu_s(python: str, raw: Path, folder: Path, name: str, *settings: str) -> tuple[float, dict[str, float]]:
    """CPU seconds of a run with one worker, and of its steps."""
    out = folder / name
    command = [python, "-m", "anadil", "clean", "--recipe", "smoke", "--raw", str(raw), "--out", str(out)]
    for each in ("language=az", "clean.workers=1", *settings):
        command += ["--set", each]
    cost = run(command, folder / "log")
    return cost.cpu_s, json.loads((out / "stats.json").read_text(encoding="utf-8"))["seconds"]


def main() -> None:
    """Print the best of some rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--old", type=Path)
    old = parser.parse_args().old
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "rules.py").write_text(RULES, encoding="utf-8")
        lines = write_jsonl(folder / "az.jsonl", "az", NUM_DOCUMENTS)
        plain = folder / "az.txt"
        texts = [json.loads(line)["text"] for line in lines.open(encoding="utf-8")]
        plain.write_text("\n\n".join(text.replace("\n\n", "\n") for text in texts), encoding="utf-8")
        variants = {
            "none": (sys.executable, ()),
            "filter": (sys.executable, (f"clean.filters=[{folder / 'rules.py'}:trivial]",)),
        }
        if old:
            variants["old"] = str(old / ".venv/bin/python"), ()
        for raw in (lines, plain):
            block = ("clean.txt_document=block",) if raw == plain else ()
            best: dict[str, float] = {}
            for number in range(ROUNDS):
                for name, (python, settings) in variants.items():
                    used, steps = cpu_s(
                        python, raw, folder, f"{name}-{number}-{raw.suffix}", *settings, *block
                    )
                    best[name] = min(used, best.get(name, used))
                    if "filters" in steps:
                        calls = min(steps["filters"], best.get("calls", steps["filters"]))
                        best["calls"] = calls
            print(
                raw.name,
                f"{raw.stat().st_size / 1e6:.1f} MB",
                {name: round(value, 2) for name, value in best.items()},
                flush=True,
            )


if __name__ == "__main__":
    main()
