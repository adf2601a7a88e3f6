"""Pages that look at the data of a run, as a browser gets them."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from markupsafe import escape

from anadil.artifacts import artifact, s3, storage
from anadil.runtime.run_record import RunRecord, StepRecord
from anadil.text.corpus import Document, write_documents
from tests.kit.browser import browser
from tests.kit.watched_corpus import make_watched_corpus, seal_corpus
from tests.kit.watched_model import put_trained
from tests.kit.watching import HOST, HOSTILE, Pages, put_record, watching

HOSTILE_TEXT = "<script>window.hit = 1</script><img src=x onerror=alert(1)> \u202e {{ 7 * 7 }} ]]>"
WIDTHS = (390, 1280, 1920)
RUN, TRAINED = "20260101-120000-1", "20260101-120000-3"


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
    texts = [Document(id=f"{number:032x}", text=f"{HOSTILE_TEXT}\n\nXəzər dənizi {number}",
        source=f"crawl-0.jsonl:{number}", url="javascript:alert(1)", lang="az") for number in range(0, 200, 2)]  # fmt: skip
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
    assert "1 to 50 are shown" in page.text
    ordered = re.search(r'href="([^"]+)" rel="next"', page.text)
    assert ordered
    assert "51 to 100 are shown" in site.pages.ask(ordered[1].replace("&amp;", "&")).text
    assert "Xəzər dənizi" in site.pages.ask(f"{site.data}?reason=kept").text, "the text of a document"
    assert site.pages.ask(f"{site.data}?sort=id;&order=least").status == 404
    assert page.text.count("<rect") == 48
    assert "crawl-2.jsonl" in page.text
    following = re.search(r'href="([^"]+)" rel="next"', site.pages.ask(site.data).text)
    assert following
    assert site.pages.ask(following[1].replace("&amp;", "&")).status == 200


def test_text_of_documents_is_only_text(site: Site) -> None:
    for page in (
        site.pages.ask(kept_place(site)),
        site.pages.ask(f"{site.data}?{urlencode({'source': HOSTILE_TEXT, 'host': HOSTILE_TEXT})}"),
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
    assert row["text"].startswith(HOSTILE_TEXT)
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


@pytest.mark.parametrize(
    "text", ["9" * 5_000, "-1", "nan", "1e999", "\0", "\ud800".encode("utf-8", "surrogatepass")]
)
def test_no_address_is_a_fault_of_the_server(site: Site, text: str | bytes) -> None:
    run = put_trained(site.root, "Bakı")
    for path, names in (
        (site.data, ("from", "least", "most", "order", "by", "reason")),
        (f"/run/{run}/answers", ("from", "topic", "seen")),
        (f"/run/{run}", ("from", "to")),
    ):
        for name in names:
            assert site.pages.ask(f"{path}?{urlencode({name: text, 'statistic': 'words'})}").status in (
                200,
                404,
            )


def test_a_corpus_that_goes_while_it_is_watched_is_said(site: Site) -> None:
    assert site.pages.ask(site.data).status == 200

    part = site.root / "corpus/0a1b/stats/part-00000.parquet"
    content = part.read_bytes()
    part.write_bytes(content[:9_000] + bytes([content[9_000] ^ 1]) + content[9_001:])
    damaged = site.pages.ask(site.data)
    shutil.rmtree(site.root / "corpus")
    gone = site.pages.ask(site.data)

    assert damaged.status == 503
    assert "is damaged: its digest differs from the manifest; make the corpus again" in damaged.text
    assert gone.status == 404
    assert "no finished corpus" in gone.text


def test_answers_are_shown_as_text(site: Site) -> None:
    run = put_trained(site.root, HOSTILE_TEXT, topics={"Bölmə": HOSTILE_TEXT})

    every = site.pages.ask(f"/run/{run}/answers").text
    answers = site.pages.ask(f"/run/{run}/answers?{urlencode({'topic': HOSTILE_TEXT})}").text
    assert "By Bölmə" in every
    assert "topic=without" in every, "questions of a sheet without that column"

    assert answers.count(str(escape(HOSTILE_TEXT))) >= 4
    assert "<script>window" not in answers
    assert "<img" not in answers


@pytest.mark.slow
def test_pages_fit_every_screen_and_say_no_error(site: Site) -> None:
    run = put_trained(site.root, HOSTILE_TEXT)
    paths = [f"{site.data}?statistic=words&by=host", kept_place(site), f"/run/{run}/answers"]  # fmt: skip
    server = f"http://{HOST}:{site.pages.port}"
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


def put_remote(root: str, run: str) -> None:
    """Files of a run on a cluster: its record, and copies of its curves and texts."""
    import json

    now = time.time()
    record = RunRecord(
        id=run, recipe="az 1b", started=now - 60, updated=now, stages=("pretrain",), root=root,
        steps={"pretrain": StepRecord(stage="pretrain")},
    )  # fmt: skip
    texts = {"step": 5, "texts": [{"prompt": "Bakı", "text": "şəhəri"}]}
    files = {
        f"{run}.json": json.dumps(asdict(record)),
        f"{run}/pretrain.jsonl": '{"step": 1, "loss": 4.5}\n{"step": 2, "lo',
        f"{run}/pretrain.texts.jsonl": f"{json.dumps(texts)}\n",
    }
    for name, text in files.items():
        uri = f"{root}/runs/{name}"
        storage.store(uri).write(uri, text.encode())


def put_on_store(root: Path, place: str) -> None:
    """Make a corpus of a hundred files and a trained model on this machine, and copy them to a store."""
    corpus = make_watched_corpus(root / "corpus/0a1b", 20_000)
    texts = [
        Document(id=f"{number:032x}", text=f"Söz {number} " * 9, source=f"a:{number}", url="", lang="az")
        for number in range(0, 2_000, 2)
    ]
    write_documents(corpus, "train", texts)
    write_documents(corpus, "heldout", [])
    seal_corpus(corpus)
    step = StepRecord(stage="clean", status="finished", uri=f"{place}/corpus/0a1b")
    put_record(root, RUN, root=place, steps={"clean": step}, stages=("clean",))
    put_trained(root, "Salam", place)
    for path in root.rglob("*"):
        if path.is_file():
            uri = f"{place}/{path.relative_to(root)}"
            storage.store(uri).write(uri, path.read_bytes())


@contextmanager
def requests() -> Iterator[list[str]]:
    """The names of the calls of S3 that are made in the block."""
    names: list[str] = []
    events = s3.s3_client().meta.events

    def note(model: Any, **_: object) -> None:
        names.append(model.name)

    events.register("after-call.s3", note)
    yield names
    events.unregister("after-call.s3", note)


def test_a_run_on_a_store_is_shown_beside_those_of_this_machine(bucket: str, tmp_path: Path) -> None:
    here, there = put_record(tmp_path, recipe="local"), "20260102-000000-9"
    put_remote(f"{bucket}/az", there)

    with watching(tmp_path, f"{bucket}/az") as pages:
        listed, text = pages.ask("/").text, pages.ask(f"/run/{there}").text
        storage.store(bucket).write(
            f"{bucket}/az/runs/{there}/pretrain.jsonl", b'{"step": 3, "loss": 0.125}\n'
        )
        later = pages.ask(f"/run/{there}").text

    assert here in listed
    assert there in listed
    assert "[1.0, 4.5]" in text
    assert "damaged" not in text
    assert "şəhəri" in text
    assert "The run is on a cluster: stop and start it there." in text
    assert "[3.0, 0.125]" in later


def test_a_store_that_does_not_answer_is_said(tmp_path: Path, bucket: str) -> None:
    with watching("s3://no-such-bucket-of-ours/az") as pages:
        answer = pages.ask("/")
    here = put_record(tmp_path)
    with watching("s3://no-such-bucket-of-ours/az", tmp_path) as pages:
        beside, run = pages.ask("/").text, pages.ask(f"/run/{here}")

    assert answer.status in (404, 503)
    assert "no-such-bucket-of-ours" in answer.text
    assert "no-such-bucket-of-ours" in beside
    assert here in beside
    assert run.status == 200


def test_the_report_is_a_page_that_runs_no_script_and_leads_back(tmp_path: Path) -> None:
    folder = tmp_path / "report" / "key"
    folder.mkdir(parents=True)
    (folder / "report.html").write_text(
        f'<!doctype html><html><body><h1>Hesabat</h1>{HOSTILE}<a href="model_card.md">card</a><a href="../../x.md">none</a></body></html>',
        encoding="utf-8",
    )
    (folder / "model_card.md").write_text(
        "---\na: b\n---\n# Kart\n\nmodel&#39;s \\*100\\#\n\n| a |\n|---|\n| <script>x</script> |"
    )
    artifact.seal(folder, kind="report", origin={})
    step = StepRecord(stage="report", status="finished", uri=str(folder))
    run = put_record(tmp_path, stages=("report",), steps={"report": step}, exit_code=0)

    with watching(tmp_path) as pages:
        answer = pages.ask(f"/run/{run}/report")
        card = re.search(r'href="([^"]+)">card<', answer.text)
        assert card
        shown, others = (
            pages.ask(card[1]),
            [pages.ask(f"/run/{run}/card/report/{name}") for name in ("report.html", "../x.md")],
        )
        (folder / "report.html").write_text("<body>another", encoding="utf-8")
        changed = pages.ask(f"/run/{run}/report")

    assert "Hesabat" in answer.text
    assert f'<a href="/run/{run}">' in answer.text
    assert "<h1>Kart</h1>\n<p>model's *100#</p>" in shown.text
    assert "<td>&lt;script&gt;x&lt;/script&gt;</td>" in shown.text
    assert [each.status for each in others] == [404, 404]
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox allow-same-origin; default-src 'none';")
    assert "script-src" not in policy
    assert changed.status == 503
    assert "differs from its manifest" in changed.text


def test_every_page_of_data_reads_a_store_by_range(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, data = f"{bucket}/az", f"/run/{RUN}/data/corpus"
    monkeypatch.setattr("anadil.text.corpus.MAX_PART_BYTES", 2_000)
    put_on_store(tmp_path, place)
    with watching(place) as pages, requests() as sent:
        first = pages.ask(data)
        begun = len(sent)
        again = pages.ask(data)
        listed = sent[begun:]
        kept = re.findall(r"/document/0-0-(\d*[02468])\"", pages.ask(f"{data}?reason=kept").text)[-1]
        begun = len(sent)
        document = pages.ask(f"{data}/document/0-0-{kept}")
        read = sent[begun:]
        others = [
            pages.ask(path)
            for path in (
                f"{data}?statistic=words&order=largest&by=host", f"/run/{TRAINED}/answers",
            )
        ]  # fmt: skip

    assert [each.status for each in (first, again, document, *others)] == [200] * 5
    # Some columns of the 50 documents that are listed, of a file of 2 MB.
    assert listed.count("HeadObject") == 0
    assert len(listed) <= 9
    # One of a hundred files, known by the first ids of some.
    assert f"Söz {kept}" in document.text
    assert len(read) <= 20
    assert "20,000 documents have a value" in others[0].text
    assert "Salam" in others[1].text
