"""`training.jsonl`: a line for each logged step, each step once, also after a resume."""

import json
from pathlib import Path
from typing import Any

FILE = "training.jsonl"


class Journal:
    """The lines of a run; kept in the work directory until the run is done."""

    def __init__(self, folder: Path, num_done: int) -> None:
        """Go on after optimizer step `num_done`; later lines of a killed run are dropped."""
        self._path = folder / FILE
        folder.mkdir(parents=True, exist_ok=True)
        self.lines = [line for line in _read(self._path) if line["step"] <= num_done]
        draft = self._path.with_suffix(".draft")
        draft.write_text("".join(f"{json.dumps(line)}\n" for line in self.lines), encoding="utf-8")
        draft.replace(self._path)

    def add(self, line: dict[str, Any]) -> None:
        """Append a line, so that it is there if the process dies right after."""
        self.lines.append(line)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break  # the process was killed while it wrote the last line
    return lines
