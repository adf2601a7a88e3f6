"""`training.jsonl`: a line for each logged step, each step once, also after a resume."""

import json
from pathlib import Path
from typing import Any

FILE = "training.jsonl"


class Journal:
    """The lines of a run; kept in the work directory until the run is done."""

    def __init__(self, folder: Path, num_done: int, saved: str = "") -> None:
        """Resume after optimizer step `num_done`; later lines of a killed run are dropped.

        Args:
            folder: The work directory.
            num_done: Optimizer steps done.
            saved: `text` when the checkpoint was saved, which counts where the directory knows less.
        """
        self._path = folder / FILE
        folder.mkdir(parents=True, exist_ok=True)
        text = self.text if self._path.is_file() else ""
        by_step = {line["step"]: line for line in (*_parsed(saved), *_parsed(text))}
        self.lines = [by_step[step] for step in sorted(by_step) if step <= num_done]
        draft = self._path.with_suffix(".draft")
        draft.write_text("".join(f"{json.dumps(line)}\n" for line in self.lines), encoding="utf-8")
        draft.replace(self._path)

    @property
    def text(self) -> str:
        """All lines, as they are in the file."""
        return self._path.read_text(encoding="utf-8")

    def add(self, line: dict[str, Any]) -> None:
        """Append a line, so that it is there if the process dies right after."""
        self.lines.append(line)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _parsed(whole: str) -> list[dict[str, Any]]:
    lines = []
    for text in whole.splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            break  # the process was killed while it wrote the last line
    return lines
