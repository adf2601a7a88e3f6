"""Data sets on a hub that are listed and read where they lie."""

import hashlib
import io
import logging
import sys
from dataclasses import replace
from email.message import Message

import pytest
from huggingface_hub import constants

from anadil.artifacts import hub_files, prefetch, storage
from anadil.core.errors import DataError, IntegrityError, PreflightError, RecipeError, RetryableError
from tests.kit.fake_hub import COMMIT, REPO, ROOT, Answer, FakeHub, cut, refusal
from tests.kit.http_server import Reply, Request

LINES = b"".join(b"%d a line of a file\n" % number for number in range(5_000))
pytestmark = pytest.mark.usefixtures("hub")


def sizes(path: str) -> dict[str, int]:
    """Paths of a glob, and bytes of each."""
    found = storage.sizes([f"{ROOT}/{path}"], "clean.inputs")
    return {uri.removeprefix(f"{ROOT}/"): size for uri, size in found.items()}


def read(uri: str) -> bytes:
    with storage.readable(uri).open("rb") as stream:
        content: bytes = stream.read()
    return content


def test_globs_folders_and_files_are_listed_with_their_sizes(hub: FakeHub) -> None:
    for path in ("README.md", "a.jsonl", "data/b.jsonl", "data/en/c.jsonl", "data/en/d.txt"):
        hub.put(path, path.encode(), large=path.endswith("c.jsonl"))

    assert sizes("*.jsonl") == {"a.jsonl": 7}
    assert sizes("data/*.jsonl") == {"data/b.jsonl": 12}
    assert list(sizes("**/*.jsonl")) == ["a.jsonl", "data/b.jsonl", "data/en/c.jsonl"]
    assert (
        list(sizes("data/**")) == list(sizes("data")) == ["data/b.jsonl", "data/en/c.jsonl", "data/en/d.txt"]
    )
    assert sizes("data/en/c.jsonl") == {"data/en/c.jsonl": 15}
    assert list(storage.sizes([ROOT], "clean.inputs")) == [
        f"{ROOT}/{path}" for path in ("a.jsonl", "data/b.jsonl", "data/en/c.jsonl", "data/en/d.txt")
    ]


@pytest.mark.parametrize("path", ["a file @ home.jsonl", "m\u0259tn/\u6587\u7ae0.jsonl", "100%25 #1?.jsonl",
    "a+b&c=d.jsonl", "part[1].jsonl"])  # fmt: skip
def test_any_path_is_listed_and_read(hub: FakeHub, path: str) -> None:
    for large in (False, True):
        uri = hub.put(path, LINES, large=large)
        hub_files._known.cache_clear()

        assert sizes(path) == {path: len(LINES)}
        assert read(uri) == LINES


def test_ten_thousand_files_cost_a_request_a_page_and_no_byte_of_them(hub: FakeHub) -> None:
    for number in range(10_000):
        hub.put(f"data/{number:05}.jsonl", b"%d" % number)

    files = storage.expand([f"{ROOT}/data/*.jsonl"], "clean.inputs")
    fingerprints = {storage.input_store(uri).fingerprint(uri) for uri in files}

    assert len(files) == len(fingerprints) == 10_000
    assert len(hub.requests) == 10
    assert not hub.bytes_sent()


def test_the_fingerprint_is_id_and_size_of_the_content(hub: FakeHub) -> None:
    small, large = hub.put("a.txt", b"text"), hub.put("b.txt", b"text", large=True)
    git, sha256 = "f3a34851d44d6b97c90fbb99dd3d18c261b9a237", hashlib.sha256(b"text").hexdigest()

    assert storage.input_store(small).fingerprint(small) == f"{git}-4"
    assert storage.input_store(large).fingerprint(large) == f"{sha256}-4"


def test_large_files_are_read_at_their_store_which_gets_no_token(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret_token")
    hub.token = "hf_secret_token"
    uri = hub.put("a.jsonl", LINES, large=True)

    with storage.readable(uri).open("rb") as stream:
        assert stream.read(10) == LINES[:10]
        stream.seek(-10, io.SEEK_END)
        assert stream.read() == LINES[-10:]
        stream.seek(0)
        assert stream.read() == LINES

    assert hub.store_requests
    assert not any(request.headers["Authorization"] for request in hub.store_requests)


@pytest.mark.parametrize("large", [False, True])
def test_a_piece_that_is_cut_off_or_refused_for_now_is_asked_for_again(hub: FakeHub, large: bool) -> None:
    uri = hub.put("a.jsonl", LINES, large=large)
    file = storage.readable(uri)
    hub.warm()
    faults = [cut, lambda *_: Reply(status=503), lambda *_: Reply(status=0), cut]
    (hub.store_faults if large else hub.faults).extend(faults)

    with file.open("rb") as stream:
        assert stream.read() == LINES


def test_a_hub_that_never_answers_ends_the_run_to_be_started_again(hub: FakeHub) -> None:
    uri = hub.put("a.jsonl", LINES)
    file = storage.readable(uri)
    hub.faults += [lambda *_: Reply(status=503)] * 100

    with pytest.raises(RetryableError, match=r"bytes 0 to .* did not come whole 4 times") as raised:
        file.open("rb").read(10)
    assert raised.value.exit_code == 138
    with pytest.raises(RetryableError, match=r"the hub failed for now \(503: .*run the same command again"):
        sizes("*.jsonl")


def other_bytes(_: Request, answer: Reply) -> Reply:
    assert isinstance(answer, Answer)
    return replace(answer, content=answer.content.replace(b"line", b"lime"))


@pytest.mark.parametrize("large", [False, True])
def test_bytes_that_are_not_those_of_the_commit_are_refused_and_copied_again(
    hub: FakeHub, large: bool
) -> None:
    uri = hub.put("a.jsonl", LINES, large=large)
    faults = hub.store_faults if large else hub.faults
    storage.input_store(uri).version(uri)
    hub.warm()

    faults.append(other_bytes)
    with pytest.raises(IntegrityError, match=r"is not the file that the commit names \(digest .*HF_ENDPOINT"):
        read(uri)
    faults.append(other_bytes)
    with storage.local_copy(uri) as path:
        assert path.read_bytes() == LINES
    faults.extend([other_bytes] * 2)
    with pytest.raises(IntegrityError, match="is not the file"), storage.local_copy(uri):
        pass
    prefetch.checked_copy(uri).write_bytes(b"damaged on this disk")
    prefetch.checked_copy.cache_clear()
    assert prefetch.checked_copy(uri).read_bytes() == LINES


@pytest.mark.parametrize("revision", ["@main", "", "@refs/convert/parquet", "@refs%2Fconvert%2Fparquet"])
def test_an_address_without_a_commit_is_refused_with_the_one_that_it_stands_for(revision: str) -> None:
    with pytest.raises(RecipeError) as raised:
        storage.expand([f"hf://datasets/{REPO}{revision}/data/*.jsonl"], "clean.inputs")
    assert str(raised.value).endswith(f"; write hf://datasets/{REPO}@{COMMIT}/data/*.jsonl")
    assert raised.value.exit_code == 2


def test_an_address_without_a_commit_is_refused_without_a_hub_too(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(RecipeError, match="'main' is not a commit and can change; write @ and its 40 hex"):
        storage.expand([f"hf://datasets/{REPO}@main/a.jsonl"], "clean.inputs")
    with pytest.raises(PreflightError, match="HF_HUB_OFFLINE forbids to ask the hub; unset it, or copy the"):
        storage.expand([f"{ROOT}/a.jsonl"], "clean.inputs")


@pytest.mark.parametrize(
    "uri",
    ["hf://org/model@main/a.jsonl", "hf://datasets/squad/a", "hf://spaces/org/a/b", "hf://datasets/a b/c/d"],
)
def test_what_is_no_address_of_a_data_set_is_refused(uri: str) -> None:
    if uri == "hf://datasets/squad/a":
        uri = "hf://datasets/squad"
    with pytest.raises(RecipeError, match="is not the address of a data set on the hub; write"):
        storage.expand([uri], "clean.inputs")


@pytest.mark.parametrize(
    ("path", "commit", "repo", "text"),
    [
        ("none/*.jsonl", COMMIT, REPO, r"none: no such file or folder at this commit \(404: none does not exist"),
        ("none.jsonl", COMMIT, REPO, "clean.inputs: no file matches"),
        ("*.parquet", COMMIT, REPO, "clean.inputs: no file matches"),
        ("a.jsonl", "f" * 40, REPO, "has no such commit .*; it may have been squashed, so name one of its history"),
        ("a.jsonl", COMMIT, "org/none", "no such data set, or one that the token may not see"),
    ],
)  # fmt: skip
def test_what_is_not_on_the_hub_is_an_error_of_the_data(
    hub: FakeHub, path: str, commit: str, repo: str, text: str
) -> None:
    hub.put("a.jsonl", LINES)

    with pytest.raises(DataError, match=text) as raised:
        storage.expand([f"hf://datasets/{repo}@{commit}/{path}"], "clean.inputs")
    assert raised.value.exit_code == 3


def test_rights_that_lack_are_named_without_the_token(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = hub.put("a.jsonl", LINES)
    hub.token = "hf_another_token"

    for token in ("", "hf_wrong_token"):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(PreflightError, match=r"private, gated or not there.*401.*set HF_TOKEN") as raised:
            storage.expand([uri], "clean.inputs")
        assert "hf_wrong_token" not in str(raised.value)
    hub.token = ""
    hub.faults.append(lambda *_: refusal(403, "GatedRepo", f"Access to dataset {REPO} is restricted"))
    with pytest.raises(PreflightError, match=r"may not be read \(403.*; accept its terms on"):
        storage.expand([uri], "clean.inputs")


def test_a_data_set_of_another_name_is_read_under_the_old_one(
    hub: FakeHub, caplog: pytest.LogCaptureFixture
) -> None:
    hub.put("data/a.jsonl", LINES)
    hub.put("data/b.jsonl", LINES, large=True)
    hub.renamed, hub.card = "old/name", {"license": ["odc-by", "mit"]}
    root = f"hf://datasets/old/name@{COMMIT}"

    assert storage.expand([f"{root}/data/*.jsonl"], "clean.inputs") == [
        f"{root}/data/a.jsonl",
        f"{root}/data/b.jsonl",
    ]
    assert read(f"{root}/data/b.jsonl") == read(f"{root}/data/a.jsonl") == LINES
    with caplog.at_level(logging.WARNING):
        assert hub_files.data_sets([f"{root}/data/a.jsonl", f"{root}/data/b.jsonl", "c.jsonl"]) == [
            {"name": "old/name", "commit": COMMIT, "licence": "odc-by, mit"}
        ]
    assert f"hf://datasets/old/name is called {REPO} now; name it so" in caplog.text


def test_a_file_is_copied_for_who_reads_it_whole(hub: FakeHub) -> None:
    uri = hub.put("chats/a.jsonl", LINES, large=True)

    with storage.local_copy(uri) as path:
        assert path.name == "a.jsonl"
        assert path.read_bytes() == LINES
    assert storage.input_store(uri).part(uri, -5, 5) == (LINES[-5:], len(LINES))


@pytest.mark.parametrize("address", ["ftp://a", "http://", "https://a:b", "huggingface.co"])
def test_an_endpoint_that_is_no_address_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)

    with pytest.raises(PreflightError, match=r"HF_ENDPOINT: .* is not a web address"):
        storage.expand([f"{ROOT}/a.jsonl"], "clean.inputs")


def test_what_does_not_answer_as_a_hub_does_is_refused(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.faults += [lambda *_: Reply(text="<html>sign in</html>"), lambda *_: Reply(body={"error": "no list"})]
    for _ in range(2):
        with pytest.raises(PreflightError, match="does not answer as the hub does; check HF_ENDPOINT and"):
            storage.expand([f"{ROOT}/a.jsonl"], "clean.inputs")
    hub.put("a.jsonl", LINES)
    hub.put("b.jsonl", LINES)
    hub.page = 1
    first = hub.reply(Request(method="GET", path=f"/api/datasets/{REPO}/tree/{COMMIT}",
        query={"recursive": "false"}, headers=Message(), content=b""))  # fmt: skip
    hub.faults += [lambda *_: first] * 9
    with pytest.raises(PreflightError, match="does not answer as the hub does"):
        storage.expand([f"{ROOT}/*.jsonl"], "clean.inputs")
    # Pages without an entry that name each other, or ever new ones.
    monkeypatch.setattr(hub_files, "MAX_PAGES", 20)
    for number in (2, 10_000):
        tree = f"{hub.url}/api/datasets/{REPO}/tree/{COMMIT}"
        pages = [{"Link": f'<{tree}?recursive=false&cursor={each % number}>; rel="next"'} for each in range(30)]  # fmt: skip
        hub.faults[:] = [lambda *_, head=head: Reply(text="[]", headers=head) for head in pages]
        with pytest.raises(PreflightError, match="does not answer as the hub does"):
            storage.expand([f"{ROOT}/*.jsonl"], "clean.inputs")
        assert len(hub.faults) > 5
    hub.faults.clear()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RetryableError, match="the hub did not answer; check the network"):
        storage.expand([f"{ROOT}/a.jsonl"], "clean.inputs")


def test_without_its_package_the_hub_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    with pytest.raises(
        PreflightError, match=r"hf:// needs huggingface_hub; run \S+ -m pip install --editable .*\[hub\]'"
    ):
        storage.expand([f"{ROOT}/a.jsonl"], "clean.inputs")
