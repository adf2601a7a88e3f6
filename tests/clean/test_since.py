"""New documents are added to an earlier corpus."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anadil.artifacts import artifact, s3, storage
from anadil.artifacts.artifact import read_manifest
from anadil.artifacts.prefetch import fetch
from anadil.clean.dedup.sorted_documents import Signatures
from anadil.clean.filters.judge_record import Settings
from anadil.clean.kernels.minhash import MinHash
from anadil.clean.shards import since
from anadil.clean.shards.since import EarlierCorpus
from anadil.core.errors import DataError, IntegrityError, RecipeError, RetryableError
from anadil.core.stages import STAGES
from anadil.language.fasttext_file import BUCKETS, write_model
from anadil.recipe.load import parse_recipe
from anadil.runtime.execute import execute
from anadil.text.corpus import read_documents
from anadil.text.language import load_language
from tests.kit.clean_inputs import texts
from tests.kit.clean_stage import documents, samples, stats, write_jsonl
from tests.kit.texts import ANOTHER, AZERBAIJANI

CLEAN = STAGES["clean"]
OWN = texts(30)


def corpus(folder: Path, name: str, lines: list[str], **settings: Any) -> Path:
    """A corpus of the stage, with its manifest, as `clean.since` reads it."""
    return Path(corpus_at(str(folder / name), folder, lines, **settings))


def corpus_at(uri: str, folder: Path, lines: list[str], **settings: Any) -> str:
    """The same at any place."""
    raw = write_jsonl(folder / f"{uri.rpartition('/')[2]}.jsonl", lines)
    data = {"language": "az", "clean": {"inputs": [str(raw)], "workers": 1, **settings}}
    return execute(CLEAN, parse_recipe(json.dumps(data), "recipe", ()), {}, (), uri).uri


def fetched_objects() -> list[str]:
    """The path of each object whose bytes are asked for from now on."""
    paths: list[str] = []
    s3.s3_client().meta.events.register(
        "before-call.s3.GetObject", lambda params, **_: paths.append(params["url_path"])
    )
    return paths


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.kit.clean_stage import InThisProcess

    monkeypatch.setattr("anadil.clean.run.executor_of", lambda _: InThisProcess())


@pytest.mark.parametrize("max_unverified", [50, 1], ids=["small", "large"])
def test_new_documents_are_added_and_held_ones_stay(
    tmp_path: Path, max_unverified: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anadil.clean.dedup.find_duplicates.MAX_UNVERIFIED", max_unverified)
    first = corpus(tmp_path, "first", [*OWN[:15], AZERBAIJANI])

    second = corpus(
        tmp_path, "second", [OWN[3], *OWN[15:], AZERBAIJANI.upper(), f"{AZERBAIJANI} Son."], since=str(first)
    )

    for path in [*first.glob("train/*"), *first.glob("heldout/*")]:
        assert (second / path.relative_to(first)).read_bytes() == path.read_bytes()
    old, new = documents(first), documents(second)
    assert {document.text for document in new} == {*OWN, AZERBAIJANI}
    assert len(new) == 31
    assert {d.id for d in read_documents(second, "heldout")} == {
        d.id for d in read_documents(first, "heldout")
    }
    found = stats(second)
    assert (found["in"], found["kept"], found["dropped"]) == (18, 15, {"duplicate": 2, "near_duplicate": 1})
    assert sum(found["records"].values()) == len(old) + 15
    assert found["earlier_files"] == {"train": 1, "heldout": 1}
    rows = samples(second, "near_duplicate")
    assert rows[0]["duplicate_of"] == next(d.id for d in old if d.text == AZERBAIJANI)


def test_additions_can_be_added_to(tmp_path: Path) -> None:
    made = [corpus(tmp_path, "0", OWN[:10])]

    for number in range(1, 4):
        lines = OWN[: 5 * number + 10]
        made.append(corpus(tmp_path, str(number), lines, since=str(made[-1])))

    assert sorted(document.text for document in documents(made[-1])) == sorted(OWN[:25])
    assert stats(made[-1])["dropped"] == {"duplicate": 20}
    assert len(list((made[-1] / "index").glob("part-*"))) == len(list((made[-1] / "train").iterdir())) == 4


def chain() -> tuple[str, str, str]:
    """A text, and two others each of which agrees with it in a band, but not with the other one."""
    minhash = MinHash(load_language("az"), bands=14, rows=8, shingle=5)

    def agree(first: str, second: str) -> bool:
        return bool((minhash.band_keys(first) == minhash.band_keys(second)).any())

    words = f"{AZERBAIJANI} {ANOTHER}".split()
    middle = " ".join(words)
    variants = [
        " ".join([*words[:at], *(f"söz{n}" for n in range(4)), *words[at + 4 :]]) for at in range(0, 96, 4)
    ]
    alike = [variant for variant in variants if agree(variant, middle)]
    return middle, *next(pair for pair in itertools.combinations(alike, 2) if not agree(*pair))


def test_held_documents_stay_when_a_new_one_joins_them(tmp_path: Path) -> None:
    middle, *ends = chain()
    first = corpus(tmp_path, "first", [*ends, *OWN[:3]])
    assert len(documents(first)) == 5

    second = corpus(tmp_path, "second", [middle, *OWN[5:8]], since=str(first))

    assert {document.text for document in documents(second)} == {*ends, *OWN[:3], *OWN[5:8]}
    assert (stats(second)["kept"], stats(second)["dropped"]) == (3, {"near_duplicate": 1})


def test_the_content_of_what_is_added_to_is_part_of_the_key(tmp_path: Path) -> None:
    first, other = corpus(tmp_path, "first", OWN[:10]), corpus(tmp_path, "other", OWN[:9])
    keys = {
        json.loads(
            (corpus(tmp_path, f"on-{name.name}", OWN[12:], since=str(name)) / "manifest.json").read_text()
        )["key"]
        for name in (first, other)
    }

    assert len(keys) == 2


def test_what_cannot_be_added_to_is_refused(tmp_path: Path) -> None:
    first = corpus(tmp_path, "first", OWN[:10])

    with pytest.raises(RecipeError, match=r"was made with other settings \(bands 14 there and 7 here\)"):
        corpus(tmp_path, "bands", OWN[12:], since=str(first), minhash_bands=7)
    with pytest.raises(DataError, match="no finished corpus there"):
        corpus(tmp_path, "none", OWN[12:], since=str(tmp_path / "nowhere"))
    made_before = Path(shutil.copytree(first, tmp_path / "made_before"))
    manifest = json.loads((made_before / "manifest.json").read_text("utf-8"))
    manifest["files"] = {name: each for name, each in manifest["files"].items() if "index/" not in name}
    del manifest["seal"]
    (made_before / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(DataError, match="no index, so nothing can be added to it; make it again"):
        corpus(tmp_path, "old", OWN[12:], since=str(made_before))
    other_keys = Path(shutil.copytree(first, tmp_path / "other_keys"))
    meta = json.loads((other_keys / "index/index.json").read_text("utf-8"))
    (other_keys / "index/index.json").write_text(json.dumps({**meta, "folding": "case"}), "utf-8")
    with pytest.raises(DataError, match=r"index of .* another version, whose keys .*make that corpus again"):
        since._check_meta(str(other_keys), Settings(recipe=parse_recipe('{"language": "az"}', "recipe", ())))
    index = first / "index/part-00000.npy"
    damaged = bytearray(index.read_bytes())
    damaged[-1] ^= 1
    index.write_bytes(damaged)
    with pytest.raises(IntegrityError, match=r"index/part-00000\.npy"):
        corpus(tmp_path, "damaged", OWN[12:], since=str(first))


def test_what_new_documents_share_with_the_held_out_part_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = corpus(tmp_path, "first", OWN[:20], heldout_fraction=0.2)
    heldout = [document.text for document in read_documents(first, "heldout")]
    half = " ".join(heldout[0].split()[:40])

    second = corpus(tmp_path, "second", [f"{half} {OWN[21]}", *OWN[22:]], since=str(first))

    assert stats(second)["kept"] == 9
    assert stats(second)["heldout"] == {
        "documents": 0, "looked_at": len(heldout), "sharing": 1, "held_out_sharing": 1, "contaminated": 1,
    }  # fmt: skip
    assert "1 of the held-out documents stand in the training part, too" in caplog.text


def test_the_documents_of_a_corpus_in_s3_are_added_to_without_being_fetched(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact, "SMALL_BYTES", 200)  # a real corpus is larger than what is looked into
    first = corpus_at(f"{bucket}/first", tmp_path, OWN[:20])
    paths = fetched_objects()

    second = corpus_at(f"{bucket}/second", tmp_path, OWN[10:30], since=first)

    assert not [path for path in paths if "/first/train/" in path]
    assert [path for path in paths if "/first/index/part-" in path]
    folder, manifest = fetch(second, "corpus")  # verifies every file
    assert sorted(document.text for document in documents(folder)) == sorted(OWN)
    # On this machine it becomes the same.
    local = corpus(tmp_path, "local", OWN[:20])
    second_here = corpus(tmp_path, "second", OWN[10:30], since=str(local))
    there, here = manifest, read_manifest(str(second_here))
    assert here is not None
    assert (there.digest, list(there.files)) == (here.digest, list(here.files))


def test_a_corpus_in_s3_is_added_to_on_this_machine(bucket: str, tmp_path: Path) -> None:
    first = corpus_at(f"{bucket}/first", tmp_path, OWN[:20])

    second = corpus(tmp_path, "second", OWN[10:30], since=first)

    assert sorted(document.text for document in documents(second)) == sorted(OWN)


@pytest.mark.parametrize("harm", ["cut", "removed"])
def test_a_harmed_corpus_in_s3_is_not_added_to(bucket: str, tmp_path: Path, harm: str) -> None:
    first = corpus_at(f"{bucket}/first", tmp_path, OWN[:20])
    part = f"{first}/train/part-00000.jsonl.zst"
    if harm == "cut":
        storage.store(part).write(part, storage.store(part).read(part)[:-1])
    else:
        s3.s3_client().delete_object(
            Bucket=bucket.removeprefix("s3://"), Key="first/train/part-00000.jsonl.zst"
        )

    with pytest.raises(IntegrityError, match=r"first/train/part-00000\.jsonl\.zst: (size differs|missing)"):
        corpus_at(f"{bucket}/second", tmp_path, OWN[10:30], since=first)


def test_a_run_that_is_started_again_reads_no_index_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = corpus(tmp_path, "first", OWN[:9])
    manifest = read_manifest(str(first))
    assert manifest is not None
    earlier = EarlierCorpus(uri=str(first), folder=first, manifest=manifest, is_copied=False)
    folders = earlier.write_columns(tmp_path / "work")
    monkeypatch.delattr("anadil.clean.shards.since.write_columns")

    assert earlier.write_columns(tmp_path / "work") == folders
    assert Signatures([], folders).num_held == 9


def test_an_upload_that_failed_is_made_up_for_by_the_next_start(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = corpus_at(f"{bucket}/first", tmp_path, OWN[:20])

    def fail(*_: object) -> None:
        raise RetryableError("the network is gone")

    with monkeypatch.context() as patch:
        patch.setattr(s3.S3, "copy", fail)
        with pytest.raises(RetryableError, match="the network is gone"):
            corpus_at(f"{bucket}/second", tmp_path, OWN[10:30], since=first)

    second = corpus_at(f"{bucket}/second", tmp_path, OWN[10:30], since=first)

    assert sorted(document.text for document in documents(fetch(second, "corpus")[0])) == sorted(OWN)


def test_an_index_of_several_files_is_added_to_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = corpus(tmp_path / "whole", "first", OWN[:20])
    monkeypatch.setattr("anadil.clean.shards.since.INDEX_DOCUMENTS", 3)
    parts = corpus(tmp_path / "parts", "first", OWN[:20])

    added = [corpus(first.parent, "second", OWN[10:], since=str(first)) for first in (whole, parts)]

    assert len(list((parts / "index").glob("*.npy"))) == -(-len(documents(parts)) // 3)
    assert [stats(each)["dropped"] for each in added] == [{"duplicate": 10}] * 2
    assert sorted(document.text for document in documents(added[1])) == sorted(OWN)


def test_the_best_share_of_an_addition_is_of_the_new_documents(tmp_path: Path) -> None:
    write_model(np.random.default_rng(0).normal(0, 8, BUCKETS + 1).astype(np.float32), tmp_path / "q.bin")
    best: dict[str, Any] = {"quality_model": str(tmp_path / "q.bin"), "quality": "top 50 %"}
    first = corpus(tmp_path, "first", OWN[:10])

    second = corpus(tmp_path, "second", OWN[5:], since=str(first), **best)

    quality = stats(second)["quality"]
    assert quality["documents"] == 20
    assert 0.5 <= quality["words_kept"] / quality["words"] < 0.6
    assert len(documents(second)) == 10 + quality["kept"]
