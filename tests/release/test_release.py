"""The release step of a retraining, against a real MLflow server."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anadil.core.errors import PreflightError, RetryableError
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.release import run as release
from anadil.release.registry.client import RegisteredModel, Registry, open_registry
from anadil.release.registry.promotion import check_promotable, promote, roll_back, source_of
from anadil.release.run import ReleaseRecord, read_release
from anadil.runtime.alerts import Event
from anadil.runtime.evidence import run_tags
from anadil.runtime.execute import execute
from tests.kit.marks import matrix, slow
from tests.kit.mlflow_server import MlflowServer
from tests.kit.promotable import model, scores
from tests.kit.releasing import UNSURE, retraining, week

pytestmark = [
    pytest.mark.slow,  # MLflow takes seconds to import
    pytest.mark.filterwarnings("ignore"),  # its own
]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A registered model of the test's own, on a server that tests share."""
    return f"release-{request.node.name[:60]}"


@pytest.fixture
def registry(mlflow_server: MlflowServer) -> Registry:
    return open_registry(mlflow_server.uri)


@pytest.fixture
def champion(registry: Registry, name: str, tmp_path: Path) -> RegisteredModel:
    """The first champion, made by a run and promoted by hand."""
    made = model(tmp_path / "model" / "first", "first")
    promote(
        registry, name, check_promotable(str(scores(tmp_path / "scores/1", made)), str(made)), None, "anadil"
    )
    found = registry.by_alias(name, "champion")
    assert found is not None
    return found


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Alerts that would have been sent."""
    sent: list[Event] = []
    monkeypatch.setattr(release, "notify", sent.append)
    return sent


def released(recipe: Recipe, inputs: dict[str, str]) -> ReleaseRecord:
    return read_release(execute(STAGES["release"], recipe, inputs, (), None).uri)


def aliases(registry: Registry, name: str) -> dict[str, str]:
    found = registry.model(name)
    return {alias: str(number) for alias, number in found.aliases.items()}


def test_a_candidate_that_beats_the_champion_takes_its_place_and_says_who_what_and_why(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, events: list[Event]
) -> None:
    recipe = retraining(tmp_path, registry.uri, champion)

    record = released(recipe, week(tmp_path, "second", champion.digest))

    assert (record.outcome, record.alias, record.version, record.previous) == (
        "champion",
        "champion",
        "2",
        "1",
    )
    assert aliases(registry, champion.name) == {"champion": "2", "previous": "1"}
    assert record.reasons == (
        f"Version 2 of {champion.name}, the adapted model, is champion: it beats version 1 with 95 % confidence.",
        "Bits per byte over the champion's is 0.9 (0.8500 to 0.9500), the limit 1.02.",
    )
    assert record.uri == f"{tmp_path}/model/second"
    assert {check["name"] for check in record.checks} >= {"adapted.bits_per_byte_to_champion"}
    assert record.by["user"]
    assert len(record.by["recipe"]) == 64
    assert [(each.kind, each.artifact) for each in events] == [("released", record.uri)]
    assert "95 % confidence" in events[0].message
    assert f"anadil rollback --name {champion.name}" in events[0].resume


def test_a_version_names_its_corpora_and_the_champion_that_its_training_began_with(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, events: list[Event]
) -> None:
    recipe = retraining(tmp_path, registry.uri, champion)
    told = recipe.model_copy(
        update={"pretrain": recipe.pretrain.model_copy(update={"start_from": champion.uri})}
    )
    inputs = week(tmp_path, "second", champion.digest, recipe=told.model_dump(mode="json"))

    released(recipe, inputs)

    tags = registry.client.get_model_version(champion.name, "2").tags
    assert tags["anadil.parent"] == f"{champion.name}/1"
    assert tags["anadil.parent_sha256"] == champion.digest
    assert json.loads(tags["anadil.corpora"]) == {"corpus": "c" * 64}
    assert {"anadil.parent", "anadil.parent_sha256"} <= run_tags(told, STAGES["pretrain"]).keys()
    assert "anadil.parent" not in run_tags(recipe, STAGES["pretrain"]), "a run from the base has no parent"


def test_a_candidate_that_beats_nobody_for_sure_becomes_challenger(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, events: list[Event]
) -> None:
    recipe = retraining(tmp_path, registry.uri, champion)

    record = released(recipe, week(tmp_path, "second", champion.digest, **UNSURE))

    assert (record.outcome, record.alias, record.version) == ("challenger", "challenger", "2")
    assert aliases(registry, champion.name) == {"champion": "1", "challenger": "2"}
    assert (
        "nothing shows with 95 % confidence that it beats version 1, which stays champion"
        in record.reasons[0]
    )
    assert events[0].kind == "released"


def test_a_candidate_that_was_compared_with_no_champion_becomes_challenger_and_says_so(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, events: list[Event]
) -> None:
    record = released(retraining(tmp_path, registry.uri, champion), week(tmp_path, "second", "0" * 64))

    assert record.outcome == "challenger"
    assert "the scores do not compare it with version 1, which stays champion" in record.reasons[0]


def test_a_gate_that_released_none_leaves_the_champion_and_sends_the_reasons(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, events: list[Event]
) -> None:
    inputs = week(tmp_path, "second", champion.digest, by_gate=False)

    record = released(retraining(tmp_path, registry.uri, champion), inputs)

    assert (record.outcome, record.alias, record.version, record.previous) == ("refused", "", "", "1")
    assert record.reasons == (
        f"The gate released none, so version 1 of {champion.name} stays champion.",
        "Adapted: tokens per word over the base's is 0.5, the limit 1.",
    )
    assert aliases(registry, champion.name) == {"champion": "1"}
    assert [each.kind for each in events] == ["refused"]
    assert "tokens per word" in events[0].message
    assert inputs["scores"] in events[0].resume


def test_a_champion_that_another_has_moved_meanwhile_is_not_replaced(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, events: list[Event]
) -> None:
    other = week(tmp_path, "by hand", champion.digest)
    promote(registry, champion.name, check_promotable(other["scores"], other["model"]), "champion", "anadil")
    recipe, inputs = retraining(tmp_path, registry.uri, champion), week(tmp_path, "second", champion.digest)

    with pytest.raises(
        RetryableError,
        match="is version 2 now, and this retraining began with version 1; nothing was moved; run anadil retrain again",
    ):
        released(recipe, inputs)
    assert aliases(registry, champion.name) == {"champion": "2", "previous": "1"}
    registry.client.delete_registered_model_alias(champion.name, "champion")
    with pytest.raises(RetryableError, match="is no version now, and this retraining began with version 1"):
        released(recipe, inputs)
    assert events == []


def test_a_champion_that_moves_while_files_are_read_is_not_replaced(
    registry: Registry,
    champion: RegisteredModel,
    tmp_path: Path,
    events: list[Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = week(tmp_path, "by hand", champion.digest)
    place = "anadil.release.registry.promotion.source_of"

    def late(*given: Any) -> Any:
        monkeypatch.setattr(place, source_of)
        promote(
            registry, champion.name, check_promotable(other["scores"], other["model"]), "champion", "anadil"
        )
        return source_of(*given)

    monkeypatch.setattr(place, late)

    with pytest.raises(RetryableError, match="another promotion moved the aliases"):
        released(retraining(tmp_path, registry.uri, champion), week(tmp_path, "second", champion.digest))
    assert aliases(registry, champion.name) == {"champion": "2", "previous": "1"}


def test_a_version_that_was_rolled_back_is_made_champion_by_name_only(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, events: list[Event]
) -> None:
    recipe, inputs = retraining(tmp_path, registry.uri, champion), week(tmp_path, "second", champion.digest)
    first = execute(STAGES["release"], recipe, inputs, (), None)
    roll_back(registry, champion.name)

    again = execute(STAGES["release"], recipe, inputs, (), None)
    anew = read_release(execute(STAGES["release"], recipe, inputs, (), str(tmp_path / "anew")).uri)

    assert again.uri == first.uri, "what is done is not done again"
    assert anew.outcome == "challenger"
    assert "it was rolled back at 20" in anew.reasons[0]
    assert aliases(registry, champion.name) == {"champion": "1", "previous": "2", "challenger": "2"}


def test_an_artifact_that_is_remade_elsewhere_moves_and_tells_nothing_twice(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, events: list[Event]
) -> None:
    recipe, inputs = retraining(tmp_path, registry.uri, champion), week(tmp_path, "second", champion.digest)
    first = released(recipe, inputs)

    again = read_release(execute(STAGES["release"], recipe, inputs, (), str(tmp_path / "again")).uri)

    assert (again.outcome, again.version, again.previous, again.reasons) == (
        first.outcome, first.version, first.previous, first.reasons,
    )  # fmt: skip
    versions = registry.client.search_model_versions(f"name = '{champion.name}'")
    assert sorted(str(each.version) for each in versions) == ["1", "2"]
    assert aliases(registry, champion.name) == {"champion": "2", "previous": "1"}


def test_without_a_champion_in_the_recipe_no_alias_is_moved(tmp_path: Path, events: list[Event]) -> None:
    recipe = parse_recipe(f"{{language: az, storage: {{root: {tmp_path}}}, retrain: {{}}}}", "r")

    record = released(recipe, week(tmp_path, "second", "0" * 64))

    assert record.outcome == "refused"
    assert "retrain.champion is not set" in record.reasons[0]
    assert events == []


def test_without_a_registry_the_remedy_is_said(
    registry: Registry, champion: RegisteredModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = retraining(tmp_path, registry.uri, champion)
    away = recipe.model_copy(update={"tracking": recipe.tracking.model_copy(update={"uri": None})})

    with pytest.raises(
        PreflightError, match=r"no registry is named that could release it; set tracking\.uri or"
    ):
        released(away, week(tmp_path, "second", champion.digest))


@pytest.mark.parametrize("kills", [slow(4), matrix(20)])
def test_a_step_that_is_killed_at_any_moment_ends_the_same_when_it_is_repeated(
    mlflow_server: MlflowServer, tmp_path: Path, kills: int
) -> None:
    worker = [
        sys.executable,
        "-m",
        "tests.kit.release_worker",
        mlflow_server.uri,
        str(tmp_path),
        str(kills),  # also the seed, and in the names: the tests share a server
        str(kills),
    ]

    done = subprocess.run(
        worker, cwd=Path(__file__).parents[2], check=True, timeout=900, stdout=subprocess.PIPE, text=True
    )

    trials: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(trials) == kills + 2
    wholes = {trial["record"][0]: trial for trial in trials[:2]}  # those that were left alone
    assert set(wholes) == {"champion", "challenger"}
    assert sum(trial["killed"] for trial in trials) >= kills // 4, "the others had ended before"
    for trial in trials[2:]:
        whole = wholes[trial["record"][0]]
        same = ("record", "aliases", "versions", "runs", "artifacts", "leftovers", "again")
        assert {name: trial[name] for name in same} == {name: whole[name] for name in same}
        assert set(trial["alerts"]) == {"released"}
        assert len(trial["alerts"]) <= 2, "once more at most"
    expected = {"champion": "2", "previous": "1"}
    assert wholes["champion"]["aliases"] == expected
    assert (wholes["champion"]["versions"], wholes["champion"]["runs"]) == (["1", "2"], 2)
