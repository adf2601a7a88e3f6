import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anadil.core.errors import IntegrityError
from anadil.text import corpus
from anadil.text.corpus import Document, line_of, read_documents, write_documents
from anadil.text.domains import MAX_DOMAINS, OTHER, domains_of, site_of

DOCUMENT = Document(
    id="1f",
    text="Yağış göydə birdən-birə peyda olmur.\nOnun uzun bir yolu var; \u2028 düz mətn.",
    source="raw/a.warc.gz:3",
    url="https://example.az/yağış",
    lang="az",
)
PART = Path("train/part-00000.jsonl.zst")


def documents(number: int) -> list[Document]:
    return [dataclasses.replace(DOCUMENT, id=f"{i:x}") for i in range(number)]


def test_documents_come_back_as_they_went_in(tmp_path: Path) -> None:
    written = write_documents(tmp_path, "train", documents(3))

    assert written == 3
    assert list(read_documents(tmp_path, "train")) == documents(3)


@settings(deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    document = dataclasses.replace(DOCUMENT, text=text)

    write_documents(folder, "heldout", [document])

    assert list(read_documents(folder, "heldout")) == [document]


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_a_line_is_what_the_json_library_makes_of_a_document(text: str) -> None:
    document = dataclasses.replace(DOCUMENT, text=text, source=text)

    assert line_of(document).decode() == json.dumps(dataclasses.asdict(document), ensure_ascii=False) + "\n"


def test_equal_documents_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_documents(tmp_path / name, "train", documents(50))

    assert (tmp_path / "one" / PART).read_bytes() == (tmp_path / "two" / PART).read_bytes()


def test_a_part_that_is_full_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "MAX_PART_BYTES", 2 * len(DOCUMENT.text.encode()))

    write_documents(tmp_path, "train", documents(5))

    assert len(list((tmp_path / "train").iterdir())) == 3
    assert list(read_documents(tmp_path, "train")) == documents(5)


def test_no_documents_are_one_empty_part(tmp_path: Path) -> None:
    assert write_documents(tmp_path, "heldout", []) == 0
    assert [path.name for path in (tmp_path / "heldout").iterdir()] == ["part-00000.jsonl.zst"]
    assert list(read_documents(tmp_path, "heldout")) == []


def flipped(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[-2] ^= 1  # in the checksum
    return bytes(changed)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "half": lambda content: content[: len(content) // 2],
    "cut off": lambda content: content[: int(len(content) * 0.99)],
    "a bit": flipped,
    "text": lambda _: b"no zstd at all",
    "other frame": lambda _: b"\x28\xb5\x2f\xfd" + b"\xff" * 30,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_part_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    write_documents(tmp_path, "train", documents(200))
    path = tmp_path / PART
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(
        IntegrityError, match=r"part-00000\.jsonl\.zst: damaged corpus part \(.*\); run clean again"
    ):
        list(read_documents(tmp_path, "train"))


def test_a_corpus_that_has_gone_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"corpus: no such directory any more; put the corpus back"):
        list(read_documents(tmp_path / "corpus", "heldout"))


def domains(*places: tuple[str, str]) -> tuple[str, ...]:
    """Domains of documents of one size, given as (source, address)."""
    documents = [Document(id="", text="", source=source, url=url, lang="az") for source, url in places]
    return domains_of(documents, [1] * len(documents))


def test_a_file_is_a_domain_of_its_own_whatever_packs_it() -> None:
    sources = (
        "s3://raw/az/law.jsonl.zst:17",
        "/data/news.2.jsonl:3",
        "/data/book one.txt",
        "/data/page.html",
    )
    assert domains(*((source, "") for source in sources)) == ("law", "news.2", "book one", "page")


def test_a_crawl_is_split_by_host_and_a_file_of_one_host_is_not() -> None:
    assert domains(
        ("web.warc.gz:0", "https://www.bbc.com/azeri/1"),
        ("web.warc.gz:900", "https://xeber.az:8080/2"),
        ("web.warc.gz:950", "http://["),
        ("docs.jsonl:1", "https://github.com/one"),
        ("docs.jsonl:2", "https://github.com/two"),
    ) == ("bbc.com", "xeber.az", "web", "docs", "docs")


def test_a_file_of_several_sources_is_split_by_what_its_records_name() -> None:
    assert domains(
        ("all.jsonl:1 legal codes", "https://a.az/"), ("all.jsonl:2 FLORES (devtest)", "https://b.az/")
    ) == ("legal codes", "FLORES (devtest)")


@pytest.mark.parametrize(("number", "own"), [(MAX_DOMAINS, MAX_DOMAINS), (MAX_DOMAINS + 1, MAX_DOMAINS - 1)])
def test_the_smallest_of_many_domains_share_one(number: int, own: int) -> None:
    documents = [
        Document(id="", text="", source=f"{place:02}.txt", url="", lang="az") for place in range(number)
    ]

    found = domains_of(documents, [number - place for place in range(number)])

    assert found[:own] == tuple(f"{place:02}" for place in range(own))
    assert set(found[own:]) <= {OTHER}


@pytest.mark.parametrize(
    ("host", "site"),
    [
        ("www.sport.xeber.az", "xeber.az"), ("xeber.com.az", "xeber.com.az"), ("a.b.xeber.com.az", "xeber.com.az"), ("com.az", "com.az"),
        ("en.wikipedia.org", "wikipedia.org"), ("localhost", "localhost"), ("10.0.0.7", "10.0.0.7"), ("", ""),
    ],
)  # fmt: skip
def test_a_site_is_the_domain_that_somebody_has_registered(host: str, site: str) -> None:
    assert site_of(host) == site
