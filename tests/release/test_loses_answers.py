"""A model that only continues text beside a champion that answers."""

from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.release.registry.client import RegisteredModel
from anadil.release.registry.gate_verdict import check_promotable
from anadil.release.registry.promotion import target_alias
from tests.kit.promotable import model
from tests.kit.releasing import week


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
