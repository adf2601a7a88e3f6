import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.artifacts.find import read_table, read_verified
from anadil.artifacts.prefetch import fetch
from anadil.artifacts.uri import absolute
from anadil.core.errors import DataError, IntegrityError
from anadil.runtime.cache_key import origin_differences

ORIGIN = {"stage": "clean", "recipe clean.rules.min_words": "10", "input corpus": "ab" * 32}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "made"
    (path / "train").mkdir(parents=True)
    (path / "train/part-00000.txt").write_bytes(b"Salam, dunya!" * 100)
    (path / "stats.json").write_text("{}", encoding="utf-8")
    artifact.seal(path, kind="corpus", origin=ORIGIN, records={"train": 1}, figures={"kept": 1, "ok": True})
    return path


def refused(path: Path) -> str:
    with pytest.raises(IntegrityError) as caught:
        fetch(str(path), "corpus")
    assert caught.value.exit_code == 5
    return str(caught.value)


def test_a_sealed_artifact_is_read_as_it_was_written(made: Path) -> None:
    path, manifest = fetch(str(made), "corpus")

    assert path == made
    assert manifest.origin == ORIGIN
    assert manifest.key == artifact.origin_key(ORIGIN)
    assert manifest.figures == {"kept": 1, "ok": True}
    assert manifest.figures["ok"] is True
    assert list(manifest.files) == ["stats.json", "train/part-00000.txt"]
    assert manifest.files["train/part-00000.txt"]["bytes"] == 1300
    assert not list(made.glob("*.draft"))


def flip(made: Path) -> None:
    content = bytearray((made / "train/part-00000.txt").read_bytes())
    content[700] ^= 1
    (made / "train/part-00000.txt").write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip, "train/part-00000.txt: differs from its manifest"),
        (lambda made: os.truncate(made / "train/part-00000.txt", 1299), "part-00000.txt: differs from"),
        (lambda made: (made / "stats.json").unlink(), "stats.json: missing, but its manifest names it"),
        (lambda made: (made / "train/evil.pkl").touch(), "train/evil.pkl: not in its manifest"),
        (lambda made: (made / "link").symlink_to("nowhere"), "link: not in its manifest"),
        (lambda made: (made / "folder").symlink_to("train"), "folder: not in its manifest"),
    ],
)
def test_a_file_that_is_not_as_the_manifest_says_is_refused(
    made: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(made)

    told = refused(made)

    assert told.startswith(f"{made}/")
    assert message in told
    assert told.endswith(f"; run `anadil remove {made}`, then the stage again")


@pytest.mark.parametrize(
    "look", [artifact.verify_files, lambda made, manifest, name: artifact.check_sizes(name, manifest)]
)
def test_a_directory_that_may_not_be_read_is_no_damage(
    made: Path, look: Callable[[Path, artifact.Manifest, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = artifact.read_manifest(str(made))
    assert manifest is not None
    listed = os.scandir

    def refusing(folder: Path | str) -> object:
        if Path(folder).name == "train":  # root may read whatever its rights say
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(os, "scandir", refusing)

    with pytest.raises(PermissionError, match=r"Permission denied: .*/train'"):
        look(made, manifest, str(made))


def test_a_directory_without_a_manifest_does_not_exist(made: Path, bucket: str) -> None:
    assert artifact.read_manifest(f"{bucket}/nothing") is None
    (made / "manifest.json").unlink()

    assert artifact.read_manifest(str(made)) is None
    with pytest.raises(DataError, match="no finished corpus there"):
        fetch(str(made), "corpus")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"kind": "corpus", "key": "k", "origin": {}, "files": []}',
        b'{"kind": "corpus", "key": "k", "origin": {}, "files": {"a": 3}}',
        b'{"kind": 5, "key": "k", "origin": {}, "files": {}}',
    ],
)
def test_garbage_is_no_manifest(made: Path, text: bytes) -> None:
    (made / "manifest.json").write_bytes(text)

    told = refused(made)

    assert "manifest.json: no manifest of this program (" in told
    assert f"remove the whole of {made} if it is an artifact, then make the artifact again" in told
    assert "\n" not in told


def test_no_bit_of_a_manifest_can_change_unseen(made: Path) -> None:
    file = made / "manifest.json"
    whole = file.read_bytes()

    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(damaged)
        with pytest.raises(IntegrityError):
            artifact.read_manifest(str(made))


def test_a_manifest_of_a_later_program_is_refused(made: Path) -> None:
    path = made / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 2}))

    assert "schema 2, this version reads 1" in refused(made)


def test_equal_files_have_an_equal_digest_whatever_made_them(tmp_path: Path) -> None:
    digests = set()
    for number in range(2):
        path = tmp_path / str(number)
        path.mkdir()
        (path / "a.txt").write_text("same")
        digests.add(artifact.seal(path, kind="corpus", origin={"run": str(number)}).digest)

    assert len(digests) == 1


def test_a_file_that_holds_times_is_verified_but_is_no_part_of_the_digest(made: Path) -> None:
    digests = set()
    for text in ("{}", '{"seconds": 3}'):
        (made / "stats.json").write_text(text, encoding="utf-8")
        manifest = artifact.seal(made, kind="corpus", origin=ORIGIN, varying=["stats.json"])
        digests.add(manifest.digest)
    (made / "stats.json").write_text("[]", encoding="utf-8")

    assert len(digests) == 1
    assert "stats.json: differs from its manifest" in refused(made)


def test_a_digest_depends_on_kind_and_names() -> None:
    files: dict[str, dict[str, str | int]] = {"a": {"bytes": 1, "sha256": "00"}}
    base = Manifest(kind="corpus", key="", origin={}, files=files)

    assert base.digest != Manifest(kind="model", key="", origin={}, files=files).digest
    assert base.digest != Manifest(kind="corpus", key="", origin={}, files={"b": files["a"]}).digest


def test_a_key_is_stable_and_follows_every_value() -> None:
    assert (
        artifact.origin_key({"a": "1", "b": "2"})
        == artifact.origin_key({"b": "2", "a": "1"})
        == "0e09eeab5bdeab40"
    )
    assert artifact.origin_key({"a": "1"}) != artifact.origin_key({"a": "2"})
    assert artifact.origin_key({"a": "1"}) != artifact.origin_key({"b": "1"})


def test_differences_are_told_in_a_phrase_each() -> None:
    old = {
        "recipe clean.minhash_bands": "14",
        "file a.txt": "x",
        "input corpus": "1",
        "code": "1",
        "gone": "1",
        "same": "1",
        "recipe long": "x" * 50,
    }
    new = {
        "recipe clean.minhash_bands": "8",
        "file a.txt": "y",
        "input corpus": "2",
        "code": "2",
        "same": "1",
        "come": "2",
        "recipe long": "y" * 50,
    }

    assert origin_differences(old, new) == [
        "code changed",
        "come added",
        "file a.txt changed",
        "gone removed",
        "input corpus changed",
        "recipe clean.minhash_bands 14 -> 8",
        "recipe long changed",
    ]


@pytest.fixture
def stats(tmp_path: Path) -> tuple[str, Manifest]:
    (tmp_path / "stats.json").write_text('{"kept": 3}', encoding="utf-8")
    artifact.seal(tmp_path, kind="corpus", origin={})
    return str(tmp_path), artifact.finished_manifest(str(tmp_path), "corpus")


def test_a_table_is_read_as_its_manifest_has_it_and_one_that_is_not_there_is_empty(
    stats: tuple[str, Manifest],
) -> None:
    assert read_table(*stats, "stats.json") == {"kept": 3}
    assert read_table(*stats, "other.json") == {}


def test_a_file_that_the_manifest_does_not_name_is_refused(stats: tuple[str, Manifest]) -> None:
    (Path(stats[0]) / "other.json").write_text("{}", encoding="utf-8")

    with pytest.raises(IntegrityError, match=r"its manifest names no other\.json; "):
        read_verified(*stats, "other.json")


def test_a_changed_file_is_refused(stats: tuple[str, Manifest]) -> None:
    (Path(stats[0]) / "stats.json").write_text('{"kept": 4}', encoding="utf-8")

    with pytest.raises(IntegrityError, match=r"stats\.json: differs from its manifest; "):
        read_table(*stats, "stats.json")


def test_a_place_that_is_kept_does_not_need_the_directory_in_which_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    place = absolute("../runs/model")

    assert place == f"{tmp_path}/runs/model"


def test_a_link_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(tmp_path)

    assert absolute(f"{tmp_path}/latest/") == f"{tmp_path}/latest"
