"""A model that only continues text beside a champion that answers."""

import json
from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.recipe.load import parse_recipe
from anadil.release import run as release
from anadil.release.registry.client import RegisteredModel
from anadil.release.registry.gate_verdict import check_promotable
from anadil.release.registry.promotion import target_alias
from anadil.runtime.job import Job
from tests.kit.promotable import model
from tests.kit.releasing import retraining, week


def champion_of(root: Path, kind: str) -> RegisteredModel:
    made = model(root / kind / "champion", kind=kind)
    manifest = artifact.finished_manifest(str(made), kind)
    return RegisteredModel(name="anadil-az", version="1", uri=str(made), digest=manifest.digest, kind=kind)


@pytest.mark.parametrize(("kind", "alias"), [("adapter", "challenger"), ("model", "champion")])
def test_a_model_that_only_continues_text_does_not_replace_one_that_answers(
    tmp_path: Path, kind: str, alias: str
) -> None:
    champion = champion_of(tmp_path, kind)
    made = week(tmp_path, "second", champion.digest)

    assert target_alias(champion, check_promotable(made["scores"], made["model"])) == alias


def test_the_champions_own_model_is_not_released_anew_where_only_chats_are_new(tmp_path: Path) -> None:
    champion = champion_of(tmp_path, "adapter")
    made = week(tmp_path, "second", champion.digest)
    data = json.loads(retraining(tmp_path, "http://nowhere:1", champion).model_dump_json())
    data["retrain"]["champion"]["artifacts"] = {"model": made["model"]}
    data["retrain"]["keeps"] = ["model"]
    out = tmp_path / "out"
    out.mkdir()
    job = Job(
        recipe=parse_recipe(json.dumps(data), "derived"), inputs={"scores": Path(made["scores"])}, uris=made, out=out,
        work=tmp_path / "work", base_cache=tmp_path,
    )  # fmt: skip

    figures = release.run(job)

    assert figures == {"outcome": "refused"}
    assert (
        "The gate released none, so version 1 of anadil-az stays champion."
        in (out / "release.json").read_text()
    )
