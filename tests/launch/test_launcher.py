"""What is refused before a cluster hears of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.core.errors import DataError, IntegrityError, PreflightError
from anadil.launch.launcher import LaunchRequest, check_job, job_for_dry_run, launch_job
from anadil.recipe.load import load_recipe
from tests.kit.fake_kubernetes import Cluster
from tests.kit.harness import again
from tests.kit.jobs import job


def asked(root: str, folder: Path) -> LaunchRequest:
    """Pre-training on two machines that share the model, its inputs on a volume."""
    inputs = {}
    for word in ("corpus", "tokenizer"):
        (folder / word).mkdir()
        (folder / word / "config.json").write_text("{}")
        artifact.seal(folder / word, kind=word, origin={"stage": word})
        inputs[word] = str(folder / word)
    settings = [
        f"storage.root={root}",
        f"cluster.volumes=[{{claim: data, path: {folder}}}]",
        "cluster.backend=pytorchjob",
        "cluster.nodes=2",
        "pretrain.parallelism.shard=2",
    ]
    return LaunchRequest(stage="pretrain", recipe=load_recipe("smoke", settings), inputs=inputs)


def test_machines_without_a_place_for_shared_checkpoints_are_refused_before_anything_starts(
    bucket: str, tmp_path: Path, cluster: Cluster
) -> None:
    with pytest.raises(PreflightError, match=r"^cluster\.work: not set.*cluster\.volumes=\[") as refused:
        launch_job(asked(bucket, tmp_path))

    assert refused.value.exit_code == 4
    assert cluster.requests == []


def test_a_manifest_that_would_be_refused_is_shown_with_a_warning(
    bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shown = job_for_dry_run(asked(bucket, tmp_path))

    assert shown.nodes == 2
    assert "cluster.work: not set" in caplog.text


@pytest.mark.parametrize("backend", ["pytorchjob", "trainjob"])
@pytest.mark.parametrize("name", ["azerbaijani-1b", "azerbaijani-8b", "japanese-1b", "japanese-70b"])
def test_the_jobs_of_a_shipped_recipe_may_start(name: str, backend: str) -> None:
    check_job(job(name), backend)
    check_job(job(name, stage="finetune"), backend)


def test_finetune_on_one_machine_needs_no_shared_checkpoints() -> None:
    check_job(job("azerbaijani-1b", "cluster.work=null", stage="finetune"), "pytorchjob")


@pytest.mark.parametrize(
    ("place", "settings", "out"),
    [
        ("--corpus", (), None),
        ("storage.root", ("storage.root={claim}/anadil",), None),
        ("--out", (), "{claim}/model"),
    ],
)
def test_a_laptop_that_does_not_see_the_claim_is_told_so_first(
    place: str, settings: tuple[str, ...], out: str | None, tmp_path: Path, cluster: Cluster
) -> None:
    claim = tmp_path / "not-mounted"
    there = asked("s3://bucket/root", tmp_path)
    settings = (
        "cluster.backend=pytorchjob",
        f"cluster.volumes=[{{claim: anadil-storage, path: {claim}}}]",
        *(each.format(claim=claim) for each in settings),
    )
    corpus = {"corpus": f"{claim}/run/corpus"} if place == "--corpus" else {}
    wanted = LaunchRequest(
        stage="pretrain",
        recipe=load_recipe("smoke", settings),
        inputs=there.inputs | corpus,
        out=out and out.format(claim=claim),
    )

    with pytest.raises(PreflightError, match=rf"^{place} .*: lies on the claim anadil-storage.*manifests/"):
        launch_job(wanted)

    assert cluster.requests == []


def test_chats_without_a_chat_are_refused_before_anything_starts(
    bucket: str, tmp_path: Path, cluster: Cluster
) -> None:
    model = asked(bucket, tmp_path)
    artifact.seal(tmp_path / "corpus", kind="model", origin={})
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "no chat"}\n')
    recipe = again(model.recipe, "cluster.nodes=1", "pretrain.parallelism.shard=1")
    finetune = LaunchRequest(
        stage="finetune", recipe=recipe, inputs={"model": str(tmp_path / "corpus")}, files=[str(rows)]
    )

    with pytest.raises(DataError, match=r"none of 1 rows can be trained on: no_chat 1 .*rows\.jsonl:1"):
        launch_job(finetune)

    assert cluster.requests == []


def test_a_torn_base_model_is_refused_before_anything_starts(
    bucket: str, tmp_path: Path, cluster: Cluster
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text('{"model_type": "llama"}')
    (base / "tokenizer.json").write_text("{}")
    (base / "model.safetensors").write_bytes(b"torn")
    model = asked(bucket, tmp_path)
    settings = ["cluster.nodes=1", "pretrain.parallelism.shard=1", f"base.model={base}"]

    with pytest.raises(IntegrityError, match=r"model\.safetensors: has 4 bytes, and no header of"):
        launch_job(replace(model, recipe=again(model.recipe, *settings)))

    assert cluster.requests == []
