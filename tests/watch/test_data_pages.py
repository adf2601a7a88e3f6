"""Pages that look at the data of a run, as a browser gets them."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest
from markupsafe import escape

from anadil.runtime.run_record import StepRecord
from anadil.text.corpus import Document, write_documents
from anadil.watch.pages.answers import OTHER
from tests.kit.browser import browser
from tests.kit.watched_corpus import make_watched_corpus, seal_corpus
from tests.kit.watched_model import put_trained
from tests.kit.watching import Pages, put_record, watching

HOSTILE = "<script>window.hit = 1</script><img src=x onerror=alert(1)> \u202e {{ 7 * 7 }} ]]>"
WIDTHS = (390, 1280, 1920)


@dataclass(frozen=True, slots=True)
class Site:
    """A served run with one corpus, and a run that has made nothing yet."""

    pages: Pages
    root: Path
    run: str
    young: str

    @property
    def data(self) -> str:
        """Address of the corpus."""
        return f"/run/{self.run}/data/corpus"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    corpus = make_watched_corpus(tmp_path / "corpus/0a1b", 9_000)
    texts = [
        Document(
            id=f"{number:032x}",
            text=f"{HOSTILE}\n\nXəzər dənizi {number}",
            source=f"crawl-0.jsonl:{number}",
            url="javascript:alert(1)",
            lang="az",
        )
        for number in range(0, 200, 2)
    ]
    write_documents(corpus, "train", texts)
    write_documents(corpus, "heldout", [])
    seal_corpus(corpus)
    step = StepRecord(stage="clean", status="finished", uri=str(corpus), seconds=3)
    run = put_record(tmp_path, "20260101-120000-1", steps={"clean": step}, stages=("clean",))
    young = put_record(tmp_path, "20260101-120000-2", stages=("clean",))
    with watching(tmp_path) as pages:
        yield Site(pages, tmp_path, run, young)


def kept_place(site: Site) -> str:
    """Address of a kept document whose text the corpus holds."""
    text = site.pages.ask(f"{site.data}?reason=kept").text
    places = re.findall(r'href="([^"]*/document/0-0-(\d+))"', text)
    return next(str(place) for place, row in places if int(row) % 2 == 0 and int(row) < 200)


def test_documents_are_listed_under_conditions(site: Site) -> None:
    every = site.pages.ask(f"/run/{site.run}/data")
    assert (every.status, every.headers["location"]) == (307, site.data)

    page = site.pages.ask(f"{site.data}?reason=mixed&statistic=words&order=largest&by=file")

    assert page.status == 200
    assert "9,000 documents were read" in page.text
    assert page.text.count('<span class="badge loop">mixed</span>') == 50
    assert page.text.count("<rect") == 48
    assert "crawl-2.jsonl" in page.text
    following = re.search(r'href="([^"]+)" rel="next"', site.pages.ask(site.data).text)
    assert following
    assert site.pages.ask(following[1].replace("&amp;", "&")).status == 200


def test_text_of_documents_is_only_text(site: Site) -> None:
    for page in (
        site.pages.ask(kept_place(site)),
        site.pages.ask(f"{site.data}?{urlencode({'source': HOSTILE, 'host': HOSTILE})}"),
    ):
        assert page.status == 200
        assert "<script>window" not in page.text
        assert "<img" not in page.text
        assert "49" not in page.text.split("</header>")[0]
        assert 'href="javascript' not in page.text
        assert "script-src 'self'" in page.headers["content-security-policy"]


def test_a_label_is_written_once_and_can_be_taken_back(site: Site) -> None:
    place = kept_place(site)

    done = site.pages.ask(f"{place}/label", "label=bad")

    assert (done.status, done.headers["location"]) == (303, place)
    row = json.loads((site.root / "labels/bad.jsonl").read_text(encoding="utf-8"))
    assert row["text"].startswith(HOSTILE)
    assert row["source"].startswith("crawl-")
    assert "<strong>bad</strong>" in site.pages.ask(place).text
    assert site.pages.ask(f"{place}/label", "label=good", Origin="http://evil.example").status == 403
    site.pages.ask(f"{place}/label", "label=")
    assert (site.root / "labels/bad.jsonl").read_text(encoding="utf-8") == ""


@pytest.mark.parametrize("path", ["data", "answers", "report", "data/corpus"])
def test_a_run_that_has_made_nothing_yet_says_what_is_missing(site: Site, path: str) -> None:
    page = site.pages.ask(f"/run/{site.young}/{path}")

    assert page.status == (200 if path in ("data", "answers") else 404)
    assert "once" in page.text


@pytest.mark.parametrize(
    "query", ["?fails=x", "?statistic=x", "?least=x&statistic=words", "?from=1-2", "/document/9-9-9", "/document/x"]
)  # fmt: skip
def test_what_is_asked_wrongly_is_said_and_no_fault_of_the_server(site: Site, query: str) -> None:
    assert site.pages.ask(f"{site.data}{query}").status == 404


def test_a_corpus_that_goes_while_it_is_watched_is_said(site: Site) -> None:
    assert site.pages.ask(site.data).status == 200

    (site.root / "corpus/0a1b/stats/part-00000.parquet").write_bytes(b"PAR1 damaged PAR1")
    damaged = site.pages.ask(site.data)
    shutil.rmtree(site.root / "corpus")
    gone = site.pages.ask(site.data)

    assert damaged.status == 503
    assert "make the corpus again" in damaged.text
    assert gone.status == 404
    assert "no finished corpus" in gone.text


def test_answers_are_shown_as_text(site: Site) -> None:
    run = put_trained(site.root, HOSTILE)

    answers = site.pages.ask(f"/run/{run}/answers?{urlencode({'topic': OTHER})}").text

    assert answers.count(str(escape(HOSTILE))) >= 4
    assert "<script>window" not in answers
    assert "<img" not in answers


@pytest.mark.slow
def test_pages_fit_every_screen_and_say_no_error(site: Site) -> None:
    run = put_trained(site.root, HOSTILE)
    paths = [
        f"{site.data}?statistic=words&by=host",
        kept_place(site),
        f"/run/{run}/answers",
    ]
    server = f"http://127.0.0.1:{site.pages.port}"
    with browser() as tab:
        name, _, value = site.pages.cookie.partition("=")
        tab.call("Network.setCookie", name=name, value=value, url=server)
        for path in paths:
            tab.open(f"{server}{path}")
            for width in WIDTHS:
                for dark in (False, True):
                    tab.show(width, dark=dark)
                    wide = tab.value(
                        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                    )
                    assert wide <= 0, (path, width)
            assert tab.value("window.hit === undefined && !document.querySelector('main img, main script')")
        tab.open(f"{server}{kept_place(site)}")
        # A form that a person sends, with the origin that the browser gives it.
        tab.value("""document.querySelector('button[value="good"]').click()""")
        tab.wait("!!document.querySelector('form strong')")
        assert (site.root / "labels/good.jsonl").read_text(encoding="utf-8").count("\n") == 1
        assert tab.errors == []
