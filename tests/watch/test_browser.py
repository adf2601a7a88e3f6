"""The pages in a browser: no error, no overflow, live, and no script of a document."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anadil.runtime.run_record import StepRecord
from tests.kit.browser import Page, browser
from tests.kit.watching import HOST, STAGES, TOKEN, Pages, put_live, put_record, put_training, watching


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.fixture
def pages(tmp_path: Path, page: Page) -> Iterator[Pages]:
    page.errors.clear()
    with watching(tmp_path) as pages:
        page.open(f"http://{HOST}:{pages.port}/?token={TOKEN}")
        yield pages


def put_three(root: Path) -> list[str]:
    """A run in progress, and two that have ended."""
    runs = [put_live(root)]
    put_training(root, runs[0])
    for number, code in ((1, 0), (2, 3)):
        folder = root / "model" / f"key{number}"
        folder.mkdir(parents=True)
        lines = [{"step": step, "loss": number + 4 / step} for step in range(1, 1500)]
        (folder / "training.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        steps = {
            "pretrain": StepRecord(
                stage="pretrain", status="finished", uri=str(folder), message="a word " * 40
            )
        }
        runs.append(
            put_record(root, f"2026010{number}-000000-1", started=time.time() - 9e4 * number, stages=STAGES, steps=steps,
                       exit_code=code, message="" if not code else f"data: {'x' * 300} is wrong; correct it")
        )  # fmt: skip
    return runs


def test_every_page_fits_every_screen_and_no_console_complains(
    tmp_path: Path, page: Page, pages: Pages
) -> None:
    paths = ["/", *(f"/run/{run}" for run in put_three(tmp_path)), "/run/nothing"]
    for path in paths:
        page.open(f"http://{HOST}:{pages.port}{path}")
        for width in (390, 1280, 1920):
            for dark in (False, True):
                page.show(width, dark=dark)
                wide = page.value("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{path} at {width}: {wide} pixels too wide"

    assert [each for each in page.errors if "404" not in each] == []


def test_the_page_follows_a_run_and_shows_numbers_under_the_pointer(
    tmp_path: Path, page: Page, pages: Pages
) -> None:
    run = put_live(tmp_path)
    work = put_training(tmp_path, run)
    page.show(1280)
    page.open(f"http://{HOST}:{pages.port}/run/{run}")

    page.wait("performance.getEntriesByType('paint').length > 0")
    with (work / "training.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 31, "loss": 0.125}\n')
    page.wait("document.querySelector('.plot').dataset.chart.includes('0.125')")
    page.value(
        "{const svg = document.querySelector('.plot svg'), box = svg.getBoundingClientRect();"
        "svg.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: box.right - 15, clientY: box.top + 50}))}"
    )
    assert page.value("document.querySelector('.plot .at').textContent").startswith("step 31: all 0.125")
    page.value(
        "{const svg = document.querySelector('.plot svg'), box = svg.getBoundingClientRect();"
        "const send = (name, share) => svg.dispatchEvent(new PointerEvent(name, {bubbles: true, button: 0,"
        "clientX: box.left + share * box.width, clientY: box.top + 50}));"
        "send('pointerdown', .4); send('pointermove', .7); send('pointerup', .7)}"
    )
    page.wait(
        "location.search.startsWith('?from=') && !document.querySelector('.plot').dataset.chart.includes('0.125')"
    )
    assert page.errors == []


def test_without_scripts_a_page_reads_and_its_forms_work(tmp_path: Path, page: Page, pages: Pages) -> None:
    run = put_live(tmp_path)
    put_training(tmp_path, run)
    page.call("Emulation.setScriptExecutionDisabled", value=True)

    page.open(f"http://{HOST}:{pages.port}/run/{run}")
    shown = page.value("document.querySelector('main').innerText")
    page.value("document.querySelector('.plot details').open = true")
    table = page.value("document.querySelector('.plot table').innerText")
    page.value("document.querySelector('input[name=to]').value = '10'")
    page.value("document.querySelector('form.window button').click()")
    page.wait("location.search === '?from=&to=10'")

    page.call("Emulation.setScriptExecutionDisabled", value=False)
    assert all(words in shown for words in ("Loss", "a remedy", "What the model writes", "Stop this run"))
    assert page.value("typeof refresh") == "undefined"
    assert table.split("\n")[-1].split("\t")[0] == "30"
    assert page.errors == []


def test_text_of_a_document_runs_no_script(tmp_path: Path, page: Page, pages: Pages) -> None:
    marks = ["<script>window.evil=1</script>", "<img src=x onerror='window.evil=1'>", '" onmouseover="window.evil=1',
             "<svg onload='window.evil=1'>", "javascript:window.evil=1", "</textarea><script>window.evil=1</script>",
             "<iframe srcdoc='<script>parent.evil=1</script>'>", "\u2028<script>window.evil=1</script>"]  # fmt: skip
    run = put_live(tmp_path, recipe=marks[0])
    work = put_training(tmp_path, run)
    texts = [{"step": 0, "texts": [{"prompt": mark, "text": mark} for mark in marks]}]
    (work / "texts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in texts))
    log = [{"level": "warning", "stage": mark, "msg": mark, "ts": mark} for mark in marks]
    (tmp_path / "runs" / run / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in log))

    page.open(f"http://{HOST}:{pages.port}/run/{run}")
    page.value("refresh()")

    assert page.value("window.evil") is None
    assert page.value("document.querySelectorAll('main img, main iframe, main script').length") == 0
    assert page.value("document.querySelectorAll('.trio').length") == len(marks)
    assert page.errors == []


def test_another_origin_reads_nothing(tmp_path: Path, page: Page, pages: Pages) -> None:
    put_record(tmp_path)
    with watching(tmp_path) as other:
        page.open(f"http://{HOST}:{other.port}/?token={TOKEN}")
        there = f"http://{HOST}:{pages.port}/"

        assert (
            page.value(f"fetch('{there}', {{credentials: 'include'}}).then(() => 'read', () => 'refused')")
            == "refused"
        )
