"""The part of the page on what `auto` has chosen."""

from pathlib import Path

import pytest

from anadil.report.merge_view import frontier_of
from anadil.report.read import read_facts
from anadil.report.run import run
from anadil.report.scores_view import scores_view
from tests.kit import report_run
from tests.kit.measured_merge import measured_merge


def pages(folder: Path, merge: report_run.Json) -> tuple[str, str]:
    """The page and the short version."""
    job = report_run.job(folder, merge=merge)
    run(job)
    page, short = ((job.out / name).read_text(encoding="utf-8") for name in ("report.html", "report.md"))
    return page, short


def test_the_frontier_is_drawn_with_its_limit_and_the_chosen_point() -> None:
    (chart,) = frontier_of(measured_merge()).charts

    svg = str(chart.svg)
    assert svg.count("<circle") == 11 + 1
    assert svg.count('class="ring"') == 1
    assert ">limit 1.1<" in svg
    assert ">weight 0.5<" in svg
    assert all(f">{share}</text>" in svg for share in ("0", "0.25", "0.5", "0.75", "1"))


def test_labels_of_dots_that_lie_together_do_not_run_into_each_other() -> None:
    (chart,) = frontier_of(measured_merge()).charts

    assert ">weight 0.75</text>" not in str(chart.svg)
    assert "<title>weight 0.75</title>" in str(chart.svg), "but stand under the pointer"


def test_the_table_has_every_point_and_marks_the_chosen_one() -> None:
    table = frontier_of(measured_merge()).points

    assert table.columns == (
        "base_share",
        "weights",
        "target, bits per byte",
        "en, over the base's",
        "within the limit",
    )
    assert len(table.rows) == 11
    assert table.marked == 8
    assert table.rows[8] == ("0.1875", "0.5", "2.278", "1.044 (to 1.064)", "yes")
    assert table.rows[0][-1] == "no"
    assert "target 64, en 4" in table.note


def test_each_retained_text_has_a_chart_up_to_four() -> None:
    merge = measured_merge()
    for each in merge["points"]:
        each["retained"] = dict.fromkeys(("en", "ru", "tr", "de", "fr"), each["retained"]["en"])

    frontier = frontier_of(merge)

    assert [chart.title for chart in frontier.charts] == [
        f"Target language against {name}" for name in ("en", "ru", "tr", "de")
    ]
    assert len(frontier.points.rows[0]) == 3 + 5 + 1


def test_values_of_the_recipe_have_no_frontier(tmp_path: Path) -> None:
    merge = {"base": "tiny", "base_share": 0, "add": []}

    frontier = frontier_of(merge)

    assert (frontier.charts, frontier.points.rows, frontier.reasons, frontier.rules) == ((), [], (), ())
    assert "Rule of" not in pages(tmp_path, merge)[0]


@pytest.mark.parametrize("without", ["limits", "chosen", "points", "texts", "rules", "add", "base_share"])
def test_a_table_that_lacks_a_key_still_gives_a_page(without: str, tmp_path: Path) -> None:
    merge = measured_merge()
    del merge[without]

    assert "<h3>Merge</h3>" in pages(tmp_path, merge)[0]


def test_page_and_markdown_say_what_was_chosen_and_by_which_rule(tmp_path: Path) -> None:
    page, short = pages(tmp_path, measured_merge())

    assert "<li>base_share 0.1875: the fewest bits per byte</li>" in page
    assert "Rule of base_share: the fewest bits per byte." in page
    assert "- Merge: base\\_share 0.1875: the fewest bits per byte" in short
    assert "| 0.1875 | 0.5 | 2.278 |" in short


def test_the_page_counts_documents_that_are_not_scored(tmp_path: Path) -> None:
    counts = {"heldout": {"tuning": 9, "scored": 31}, "retained": {"en": {"tuning": 4, "scored": 12}}}
    facts = read_facts(report_run.job(tmp_path, scores=report_run.scores() | {"tuning": counts}))

    rows = scores_view(facts).heldout.rows

    assert ("for tuning heldout", "9 not scored, 31 scored") in rows
    assert ("for tuning en", "4 not scored, 12 scored") in rows


def test_the_model_card_says_what_was_chosen(tmp_path: Path) -> None:
    job = report_run.job(tmp_path, merge=measured_merge())
    run(job)

    card = (job.out / "model_card.md").read_text(encoding="utf-8")

    chosen = card.partition("Chosen by bits per byte of held-out text that no score uses:")[2]
    assert chosen.startswith(
        "\n\n- base\\_share 0.1875: the fewest bits per byte\n- add.0.weight 0.5: the largest\n"
    )
    assert "## Merge" not in _card(tmp_path / "without")


def _card(folder: Path) -> str:
    job = report_run.job(folder)
    run(job)
    return (job.out / "model_card.md").read_text(encoding="utf-8")
