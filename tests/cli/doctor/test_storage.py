"""The probe of `storage.root`, against a server that speaks the protocol of S3."""

import time

import pytest

from anadil.artifacts import s3, storage
from anadil.launch.kubernetes.checks import run_cluster_checks
from anadil.preflight.services import check_storage
from anadil.recipe.sections import Recipe
from anadil.runtime.check import CheckResult
from tests.cli.doctor.lines import line, with_timeout
from tests.kit.fake_cluster import Cluster
from tests.kit.harness import again


def probe(recipe: Recipe, root: str) -> CheckResult:
    [check] = with_timeout("storage", lambda: check_storage(again(recipe, f"storage.root={root}")), 25)
    return check


def test_nothing_stays_where_reading_fails(
    bucket: str, wanted: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert probe(wanted, f"{bucket}/az").status == "passed"
    assert f"{bucket}-none" in probe(wanted, f"{bucket}-none/az").detail

    def cut(**_: object) -> None:
        raise ConnectionResetError("cut")

    monkeypatch.setattr(s3.s3_client(), "get_object", cut)

    check = probe(wanted, f"{bucket}/az")

    assert check.status == "failed"
    assert storage.store(bucket).files(bucket) == []


def test_storage_that_is_away_is_given_up(
    closed_port: int, wanted: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{closed_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3.s3_client.cache_clear()
    started = time.monotonic()

    check = probe(wanted, "s3://bucket/az")

    assert time.monotonic() - started < 10
    assert check.status == "failed"


def test_a_directory_has_to_be_on_a_volume(wanted: Recipe) -> None:
    on_volume = probe(wanted, "/fsx/other")
    elsewhere = probe(wanted, "/home/leyla/az")
    unset = probe(wanted, "null")

    assert on_volume.status == "passed"
    assert elsewhere.status == "failed"
    assert "no pod would see it" in elsewhere.detail
    assert unset.detail == "storage.root is not set"


def test_shared_checkpoints_have_to_have_a_place(cluster: Cluster, wanted: Recipe) -> None:
    settings = ["storage.root=s3://bucket/az", "cluster.work=null", "pretrain.parallelism.shard=16"]

    check = line(again(wanted, *settings), "checkpoints")

    assert check.status == "failed"
    assert check.detail.startswith("cluster.work: not set, and beside s3://bucket/az each of the 2 machines")
    assert check.remedy.startswith("put cluster.work on a volume")
    fitting = run_cluster_checks(again(wanted, *settings, "cluster.work=/fsx/work"))
    assert "checkpoints" not in {each.name for each in fitting}
