"""Answers of a run, for pages that show them."""

from pathlib import Path

from anadil.runtime.run_record import StepRecord
from tests.kit import report_run
from tests.kit.watching import put_record


def put_trained(root: Path, text: str, place: str = "", topics: dict[str, str] | None = None) -> str:
    """Write the scores of a run whose every text is `text`; return the run's id."""
    place = place or str(root)
    scores = report_run.scores(text=text)
    for name, candidate in scores["candidates"].items():
        candidate["generations"].append(
            report_run.answer(name, text, (False, text)) | {"text": text, "topics": topics}
        )
    report_run.artifacts(root / "made", scores=scores)
    step = StepRecord(stage="evaluate", status="finished", uri=f"{place}/made/scores", seconds=1)
    return put_record(
        root, "20260101-120000-3", root=place, steps={"evaluate": step}, stages=("evaluate",), exit_code=0
    )
