"""What keeps other bytes and a moved alias out of the registry; no server is asked."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anadil.artifacts import artifact
from anadil.core.errors import IntegrityError, RecipeError, RetryableError
from anadil.release.registry import promotion
from anadil.release.registry.client import WHOLE_TAG, ModelName, RegisteredModel, parse, resolve
from anadil.release.registry.gate_verdict import check_promotable
from tests.kit.promotable import model
from tests.kit.releasing import week


def test_a_way_back_that_another_promotion_has_changed_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = iter("2131")  # champion and previous, before and after the bytes were read

    def by_alias(name: str, _: str) -> RegisteredModel:
        return RegisteredModel(name=name, version=next(versions), uri="", digest="", kind="")

    registry: Any = SimpleNamespace(uri="http://mlflow", by_alias=by_alias)
    monkeypatch.setattr(promotion, "registry_errors", lambda _: nullcontext())
    monkeypatch.setattr(promotion, "_verify", lambda *_, **__: None)

    with pytest.raises(RetryableError, match="another promotion moved the aliases"):
        promotion.roll_back(registry, "az")


def test_a_version_that_holds_other_bytes_than_were_promoted_is_refused(tmp_path: Path) -> None:
    made = model(tmp_path / "model")
    manifest = artifact.read_manifest(str(made))
    assert manifest is not None

    def verify(digest: str, whole_digest: str) -> None:
        version = RegisteredModel(
            name="az", version="1", uri=str(made), digest=digest, kind="model", tags={WHOLE_TAG: whole_digest}
        )
        promotion._verify(version, whole=False)

    verify(manifest.digest, manifest.whole_digest)
    for digests in (("0" * 64, manifest.whole_digest), (manifest.digest, "0" * 64)):
        with pytest.raises(IntegrityError, match="its bytes differ from those that were promoted"):
            verify(*digests)


@pytest.mark.parametrize(("kind", "alias"), [("adapter", "challenger"), ("model", "champion")])
def test_a_model_that_only_continues_text_does_not_replace_one_that_answers(
    tmp_path: Path, kind: str, alias: str
) -> None:
    made = model(tmp_path / kind / "champion", kind=kind)
    digest = artifact.finished_manifest(str(made), kind).digest
    champion = RegisteredModel(name="anadil-az", version="1", uri=str(made), digest=digest, kind=kind)
    second = week(tmp_path, "second", digest)

    chosen = promotion.target_alias(champion, check_promotable(second["scores"], second["model"]))

    assert chosen == alias


def test_a_version_is_named_by_number_or_alias() -> None:
    assert parse("models:/az@champion") == ModelName(name="az", alias="champion")
    assert parse("models:/a model/12") == ModelName(name="a model", version="12")


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("models:/az", "names no version; write models:/name@champion or models:/name/3"),
        ("models:/az/latest", "names no version"),
        ("models:/az/Production", "names no version"),
        ("models:/m-0123", "names no version"),
        ("az@champion", "names no version"),
        ("models:/team/az@champion", "'team/az' is not a name of a registered model"),
        ("models:/team/az/3", "'team/az' is not a name of a registered model"),
        ("models:/@champion", "'' is not a name of a registered model"),
        ("models:/az@latest", "MLflow keeps the alias 'latest' for itself"),
        ("models:/az@v3", "MLflow keeps the alias 'v3' for itself"),
        ("models:/az@", "'' is not an alias"),
    ],
)
def test_what_names_none_is_refused_before_anybody_is_asked(
    uri: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    with pytest.raises(RecipeError, match=reason):
        resolve(uri)


def test_without_a_registry_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    with pytest.raises(RecipeError, match="no MLflow server; set it or MLFLOW_TRACKING_URI"):
        resolve("models:/az@champion")
    with pytest.raises(RecipeError, match="ftp:// is not an address of MLflow"):
        resolve("models:/az@champion", "ftp://host")
