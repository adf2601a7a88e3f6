import json
import logging
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anadil.artifacts import local_directory, s3, storage
from anadil.artifacts.s3 import s3_client
from anadil.artifacts.storage import is_no_data
from anadil.core.errors import DataError, PreflightError, RetryableError


def lay(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}", encoding="utf-8")
    return folder


def upload(uri: str, *names: str) -> None:
    bucket = uri.removeprefix("s3://")
    for name in names:
        s3.s3_client().put_object(Bucket=bucket, Key=name, Body=f"text of {name}".encode())


@pytest.fixture
def closed_port() -> Iterator[str]:
    """The address of a port where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def credentials(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing-secret")
    s3.s3_client.cache_clear()


def test_a_scheme_that_we_do_not_speak_is_told() -> None:
    with pytest.raises(PreflightError) as caught:
        storage.store("gs://bucket/key")

    assert str(caught.value) == "gs://bucket/key: storage gs:// is not supported; use a local path or s3://"


def test_local_files_are_found_by_path_directory_and_glob(tmp_path: Path) -> None:
    lay(tmp_path, "b.txt", "a.txt", "deep/c.txt", "d.jsonl")
    local = storage.store(str(tmp_path))

    assert local.files(f"{tmp_path}/a.txt") == [f"{tmp_path}/a.txt"]
    assert local.files(f"{tmp_path}/*.txt") == [f"{tmp_path}/a.txt", f"{tmp_path}/b.txt"]
    assert local.files(f"{tmp_path}/**/*.txt") == [
        f"{tmp_path}/{name}" for name in ("a.txt", "b.txt", "deep/c.txt")
    ]
    assert len(local.files(str(tmp_path))) == 4


def test_inputs_are_expanded_in_order_and_once(tmp_path: Path) -> None:
    lay(tmp_path, "b.txt", "a.txt")

    found = storage.expand((f"{tmp_path}/b.txt", f"{tmp_path}/*.txt"), "clean.inputs")

    assert found == [f"{tmp_path}/b.txt", f"{tmp_path}/a.txt"]


def test_a_pattern_without_files_is_told_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        storage.expand((f"{tmp_path}/*.txt",), "clean.inputs")

    assert f"clean.inputs: no file matches '{tmp_path}/*.txt'; correct the path" in str(caught.value)


def test_built_in_data_keeps_its_name_and_has_bytes() -> None:
    found = storage.expand(("builtin:az/*.jsonl",), "clean.inputs")

    assert "builtin:az/prose.jsonl" in found
    assert storage.store(found[0]).exists(found[0])
    assert storage.store(found[0]).read(found[0])
    assert len(storage.store(found[0]).fingerprint(found[0])) == 64
    with storage.local_copy(found[0]) as path:
        assert path.is_file()


@pytest.mark.parametrize("there", [False, True])
def test_a_local_directory_is_put_in_one_step_with_its_rights(tmp_path: Path, there: bool) -> None:
    source = lay(tmp_path / "source", "manifest.json", "deep/a.txt")
    source.chmod(0o755)
    target = tmp_path / "root" / "target"
    if there:  # an empty directory
        target.mkdir(parents=True)

    storage.store(str(target)).put_directory(source, str(target))

    assert (target / "deep/a.txt").read_text() == "text of deep/a.txt"
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    assert not source.exists()


def test_a_directory_with_somebodys_files_is_never_replaced(tmp_path: Path) -> None:
    source = lay(tmp_path / "source", "manifest.json")
    target = lay(tmp_path / "home", "thesis.txt")

    with pytest.raises(DataError, match="home: holds files that are no artifact; give another place"):
        storage.store(str(target)).put_directory(source, str(target))

    assert (target / "thesis.txt").is_file()


def test_directories_are_those_with_a_manifest_oldest_first(tmp_path: Path) -> None:
    lay(tmp_path, "new/manifest.json", "old/manifest.json", "unfinished/a.txt")
    os.utime(tmp_path / "old/manifest.json", (1, 1))

    found = storage.store(str(tmp_path)).directories(str(tmp_path))

    assert found == [str(tmp_path / "old"), str(tmp_path / "new")]


def test_objects_are_found_by_key_prefix_and_glob(bucket: str) -> None:
    upload(bucket, "raw/az/a.txt", "raw/az/b.jsonl", "raw/az/deep/c.txt", "raw/azeri.txt", "raw/az/folder/")
    found = storage.store(bucket)

    assert found.files(f"{bucket}/raw/az/a.txt") == [f"{bucket}/raw/az/a.txt"]
    assert found.files(f"{bucket}/raw/az/*.txt") == [f"{bucket}/raw/az/a.txt", f"{bucket}/raw/az/deep/c.txt"]
    assert found.files(f"{bucket}/raw/az") == [
        f"{bucket}/raw/az/{name}" for name in ("a.txt", "b.jsonl", "deep/c.txt")
    ]
    assert found.files(f"{bucket}/raw/az/") == found.files(f"{bucket}/raw/az")
    assert len(found.files(bucket)) == 4
    with pytest.raises(DataError, match="no file matches"):
        storage.expand((f"{bucket}/none/*",), "clean.inputs")


def test_the_bytes_of_inputs_are_known_without_reading_them(bucket: str, tmp_path: Path) -> None:
    upload(bucket, "raw/a.txt", "raw/deep/b.txt")
    (tmp_path / "c.jsonl").write_text("12345")

    found = storage.sizes(
        (f"{bucket}/raw", str(tmp_path / "*.jsonl"), "builtin:az/prose.jsonl"), "clean.inputs"
    )

    assert found[f"{bucket}/raw/deep/b.txt"] == len("text of raw/deep/b.txt")
    assert found[str(tmp_path / "c.jsonl")] == 5
    assert found["builtin:az/prose.jsonl"] > 1_000
    assert len(found) == 4
    with pytest.raises(DataError, match=r"clean\.inputs: no file matches"):
        storage.sizes((f"{bucket}/none",), "clean.inputs")


def test_an_object_is_read_and_known_by_its_etag(bucket: str) -> None:
    upload(bucket, "a.txt")
    uri = f"{bucket}/a.txt"

    assert storage.store(uri).exists(uri)
    assert not storage.store(uri).exists(f"{bucket}/a.t")
    assert storage.store(uri).read(uri) == b"text of a.txt"
    assert storage.store(uri).fingerprint(uri) == storage.store(uri).fingerprint(uri)
    with storage.local_copy(uri) as path:
        assert path.read_text() == "text of a.txt"
    assert not path.exists()


@pytest.mark.parametrize("place", ["runs/corpus/1", ""])
def test_a_directory_goes_to_a_bucket(bucket: str, place: str, tmp_path: Path) -> None:
    source = lay(tmp_path / "source", "a.txt", "deep/b.txt", "manifest.json")
    uri = f"{bucket}/{place}".rstrip("/")

    storage.store(uri).put_directory(source, uri)

    assert storage.store(uri).directory_sizes(uri).keys() == {"a.txt", "deep/b.txt", "manifest.json"}
    assert storage.store(uri).read(f"{uri}/deep/b.txt") == b"text of deep/b.txt"
    assert not source.exists()


def test_the_manifest_is_uploaded_last(bucket: str, tmp_path: Path) -> None:
    source = lay(tmp_path / "source", "a.txt", "manifest.json", "z.txt")
    order = []
    s3.s3_client().meta.events.register(
        "before-call.s3.PutObject", lambda params, **_: order.append(params["url_path"])
    )

    storage.store(bucket).put_directory(source, f"{bucket}/out")

    written = [path for path in order if not path.endswith("/out.claim")]
    assert written[-1].endswith("/out/manifest.json")
    assert len(written) == 3
    assert storage.store(bucket).files(f"{bucket}/out.claim") == []


def test_what_consoles_write_for_an_empty_folder_is_skipped(bucket: str) -> None:
    upload(bucket, "out/", "out/deep/", "out/manifest.json")

    assert list(storage.store(bucket).directory_sizes(f"{bucket}/out")) == ["manifest.json"]


def test_a_bucket_knows_its_directories_and_forgets_removed_ones(bucket: str) -> None:
    upload(
        bucket, "corpus/1/manifest.json", "corpus/1/a.txt", "corpus/2/a.txt", "corpus/3/deep/manifest.json"
    )

    before = storage.store(bucket).directories(f"{bucket}/corpus")
    storage.store(bucket).remove_directory(f"{bucket}/corpus/1")

    assert before == [f"{bucket}/corpus/1"]
    assert storage.store(bucket).directories(f"{bucket}/corpus") == []
    assert storage.store(bucket).files(f"{bucket}/corpus/1") == []


def test_a_missing_bucket_or_key_is_a_data_error(bucket: str) -> None:
    for call in (
        lambda: storage.store(bucket).read(f"{bucket}/none.txt"),
        lambda: storage.store(bucket).fingerprint(f"{bucket}/none.txt"),
        lambda: storage.store(bucket).files("s3://no-such-bucket-here/a/*"),
        lambda: storage.store(bucket).exists("s3://no-such-bucket-here/a"),
    ):
        with pytest.raises(DataError, match="does not exist; check bucket and key"):
            call()


@pytest.mark.parametrize(
    ("uri", "message"),
    [("s3://", "names no bucket; write s3://bucket/key"), ("s3://Not_A Bucket!/x", "Invalid bucket name")],
)
def test_a_uri_without_a_proper_bucket_is_a_data_error(bucket: str, uri: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        storage.store(bucket).files(uri)


def test_denied_access_names_what_to_grant(bucket: str) -> None:
    name = bucket.removeprefix("s3://")
    upload(bucket, "a.txt")
    rule = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": f"arn:aws:s3:::{name}/*"}
    policy = {"Version": "2012-10-17", "Statement": [rule]}
    s3.s3_client().put_bucket_policy(Bucket=name, Policy=json.dumps(policy))

    with pytest.raises(PreflightError) as caught:
        storage.store(bucket).read(f"{bucket}/a.txt")

    assert str(caught.value).startswith(f"{bucket}/a.txt: access denied (")
    assert "grant s3:GetObject, PutObject and ListBucket" in str(caught.value)


def test_missing_credentials_are_told_with_the_remedy(
    closed_port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", closed_port)

    with pytest.raises(PreflightError) as caught:
        storage.store("s3://bucket/key").read("s3://bucket/key")

    assert caught.value.exit_code == 4
    assert str(caught.value).startswith(
        "s3://bucket/key: no AWS credentials; set AWS_PROFILE, or AWS_ACCESS_KEY_ID"
    )


def test_an_unknown_profile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")

    with pytest.raises(PreflightError, match=r"profile \(nobody\) could not be found"):
        storage.store("s3://bucket/key")


def test_a_broken_endpoint_setting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    credentials(monkeypatch, "not a url")

    with pytest.raises(PreflightError, match="Invalid endpoint: not a url; correct AWS_ENDPOINT_URL_S3"):
        storage.store("s3://bucket/key")


def test_an_endpoint_that_is_down_can_be_tried_again(
    closed_port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials(monkeypatch, closed_port)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    started = time.monotonic()

    with pytest.raises(RetryableError) as caught:
        storage.store("s3://bucket/key").read("s3://bucket/key")

    assert caught.value.exit_code == 138
    assert "storage did not answer, run the same command again" in str(caught.value)
    assert time.monotonic() - started < 10


def test_the_usual_patience_with_a_dead_endpoint_is_five_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    credentials(monkeypatch, "http://127.0.0.1:9")

    assert s3.s3_client().meta.config.retries == {"mode": "standard", "total_max_attempts": 5}


def test_an_object_is_copied_only_over_what_was_seen(bucket: str) -> None:
    upload(bucket, "a.txt", "b.txt")
    store, target = s3.S3(), f"{bucket}/deep/c.txt"

    assert store.copy(f"{bucket}/a.txt", target, "")
    assert not store.copy(f"{bucket}/b.txt", target, "")
    assert store.read(target) == b"text of a.txt"
    assert store.copy(f"{bucket}/b.txt", target, store.tags(bucket)["deep/c.txt"])
    assert store.read(target) == b"text of b.txt"
    with pytest.raises(DataError, match=r"none\.txt: does not exist"):
        store.copy(f"{bucket}/none.txt", target, store.tags(bucket)["deep/c.txt"])


def test_files_behind_links_are_found_and_a_link_back_ends_nothing(tmp_path: Path) -> None:
    lay(tmp_path, "elsewhere/a.txt", "raw/b.txt")
    (tmp_path / "raw/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "raw")

    found = storage.expand([str(tmp_path / "raw")], "clean.inputs")

    assert [str(Path(file).relative_to(tmp_path)) for file in found] == ["raw/b.txt", "raw/linked/a.txt"]


def test_a_directory_that_cannot_be_read_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path, "a.txt", "closed/b.txt")
    listed = Path.iterdir

    def refusing(folder: Path) -> Iterator[Path]:
        if folder.name == "closed":  # root may read whatever its rights say
            raise PermissionError(13, "Permission denied")
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", refusing)

    with pytest.raises(DataError, match=r"closed: cannot be read \(Permission denied\); check its rights"):
        storage.expand([str(tmp_path)], "clean.inputs")


@pytest.mark.parametrize("pattern", ["{}/pipe.txt", "{}/*.txt", "{}"])
def test_a_pipe_is_refused_before_anybody_waits_for_its_writer(tmp_path: Path, pattern: str) -> None:
    lay(tmp_path, "a.txt")
    os.mkfifo(tmp_path / "pipe.txt")

    with pytest.raises(DataError, match=r"pipe.txt: is a pipe or device, not a file|no file matches"):
        storage.sizes([pattern.format(tmp_path)], "clean.inputs")


def test_a_link_to_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone.txt").symlink_to(tmp_path / "none.txt")

    with pytest.raises(DataError, match=r"gone.txt: cannot be read \(No such file or directory\)"):
        storage.sizes([str(tmp_path)], "clean.inputs")


def test_an_empty_path_is_not_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path, "a.txt")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(DataError, match=r"clean\.inputs: no file matches ''"):
        storage.sizes([""], "clean.inputs")


def test_what_a_desktop_hides_in_a_directory_is_no_input(tmp_path: Path) -> None:
    folder = tmp_path / ".mine" / "text"
    lay(folder, ".DS_Store", "._a.txt", "a.txt", ".git/b.txt", "deep/.c.txt")

    assert storage.expand([str(folder)], "clean.inputs") == [f"{folder}/a.txt"]
    assert storage.expand([f"{folder}/._a.txt"], "clean.inputs") == [f"{folder}/._a.txt"]


def test_a_second_place_for_a_file_is_a_copy_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    (tmp_path / "a").write_text("text")
    monkeypatch.setattr("os.link", refused)

    local_directory.link(tmp_path / "a", tmp_path / "deep" / "b")

    assert (tmp_path / "deep" / "b").read_text() == "text"
    (tmp_path / "deep" / "b").write_text("other")
    assert (tmp_path / "a").read_text() == "text"


@pytest.mark.parametrize(
    "name",
    [
        *("_SUCCESS", "_common_metadata", "_committed_123", "_started_123", "a.parquet.crc", "readme.txt"),
        *(
            "LICENSE",
            "NOTICE",
            "CITATION.cff",
            ".gitattributes",
            "dataset_infos.json",
            "state.json",
            "SHA256SUMS",
        ),
        *("sha256sums.txt", "a.json.md5", "logo.png", "a/paper.JPEG", "dataset.yaml", "run.log", "oscar.py"),
        *("_delta_log/00000.json", "a/_temporary/0/part.parquet", ".cache/huggingface/a.json"),
    ],
)
def test_a_name_tells_a_file_without_data(name: str) -> None:
    assert is_no_data(name)


@pytest.mark.parametrize(
    "name", ["_index.html", "licences_of_the_state.jsonl", "readme_texts.txt", "metadata.jsonl", "_a/b.txt"]
)
def test_a_name_like_it_is_one_of_data(name: str) -> None:
    assert not is_no_data(name)


@pytest.mark.parametrize("rows", ["part-0.jsonl", "a.parquet", "b.warc.gz", "x.json.zst"])
@pytest.mark.parametrize(
    "name", ["log.txt", "index.html", "paper.pdf", "stats.csv", "corpus_stats.tsv", "urls.txt"]
)
def test_what_tells_of_files_of_rows_is_none_of_the_data_and_is_data_elsewhere(
    tmp_path: Path, rows: str, name: str
) -> None:
    for each in (f"a/{rows}", f"a/{name}", f"b/{name}", "b/text.txt"):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).touch()

    found = [each.removeprefix(f"{tmp_path}/") for each in storage.expand([str(tmp_path)], "clean.inputs")]

    assert found == sorted([f"a/{rows}", f"b/{name}", "b/text.txt"])
    assert storage.expand([str(tmp_path / "a" / name)], "clean.inputs") == [f"{tmp_path}/a/{name}"]


def test_they_are_passed_over_in_directories_and_globs_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.txt", "_SUCCESS", "b/README.md", "b/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    caplog.set_level(logging.INFO)
    expected = [f"{tmp_path}/a.txt", f"{tmp_path}/b/c.txt"]

    assert storage.expand([str(tmp_path)], "clean.inputs") == expected
    assert storage.expand([f"{tmp_path}/**"], "clean.inputs") == expected
    assert "clean.inputs: passed over 2 files without data by name, such as" in caplog.text
    assert storage.expand([f"{tmp_path}/_SUCCESS"], "clean.inputs") == [f"{tmp_path}/_SUCCESS"]
    with pytest.raises(DataError, match=r"no file matches '.*/_\*' but 1 file without data by name"):
        storage.expand([f"{tmp_path}/_*"], "clean.inputs")


def test_a_hidden_directory_above_the_inputs_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".own/raw").mkdir(parents=True)
    (tmp_path / ".own/raw/a.txt").touch()
    monkeypatch.setenv("HOME", str(tmp_path))

    assert storage.expand(["~/.own/raw"], "clean.inputs") == [f"{tmp_path}/.own/raw/a.txt"]


def test_they_are_passed_over_in_a_bucket(bucket: str) -> None:
    name = bucket.removeprefix("s3://")
    for key in ("raw/_SUCCESS", "raw/.part-0.parquet.crc", "raw/part-0.parquet"):
        s3_client().put_object(Bucket=name, Key=key, Body=b"x")

    assert storage.expand([f"{bucket}/raw"], "clean.inputs") == [f"{bucket}/raw/part-0.parquet"]
