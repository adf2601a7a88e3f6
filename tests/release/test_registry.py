"""What a `models:/` URI names; no registry is asked."""

import pytest

from anadil.core.errors import RecipeError
from anadil.release.registry.client import ModelName, parse, resolve


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
