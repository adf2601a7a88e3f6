"""The guide states the limits that the page uses."""

from pathlib import Path

from anadil.core.format import human_percent
from anadil.report import learning, retained
from anadil.text.metrics import SURE_DOCUMENTS

GUIDE = Path(__file__).parents[2] / "docs/guides/report.md"


def short(share: float) -> str:
    return human_percent(share).replace(".00", "").replace(".0", "")


def test_the_limits_of_the_guide_are_those_of_the_page() -> None:
    text = " ".join(GUIDE.read_text(encoding="utf-8").split())

    for said in (
        f"the loss fell by less than {short(learning.NOTHING)}",
        f"finetuning's loss fell by less than {short(learning.LITTLE)}",
        f"more than {short(learning.TURNED)} above its lowest",
        f"rose by more than {short(retained.FORGETS)} over the base's",
        f"fewer than {SURE_DOCUMENTS} documents, questions or choices",
    ):
        assert said in text, said
