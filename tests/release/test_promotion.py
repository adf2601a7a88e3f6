"""What keeps other bytes and a moved alias out of the registry; no server is asked."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anadil.artifacts import artifact
from anadil.core.errors import GateError, IntegrityError, RecipeError, RetryableError
from anadil.recipe.sections import Recipe
from anadil.release.compare.comparison import _neighbours
from anadil.release.model_source import find_model
from anadil.release.registry import promotion
from anadil.release.registry.client import WHOLE_TAG, ModelName, RegisteredModel, parse, resolve
from anadil.release.registry.promotion import check_promotable
from anadil.release.trace.chain import trace
from anadil.report.model_card import model_card
from anadil.runtime.cache_key import base_files
from tests.kit.pretraining import make_model
from tests.kit.promotable import model
from tests.kit.releasing import week

TOKENS = ["<|im_start|>", "<|im_end|>"]


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
        ("az@champion", "names no version"),
        ("models:/team/az@champion", "'team/az' is not a name of a registered model"),
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


@pytest.fixture
def added(tmp_path: Path) -> Path:
    return make_model(tmp_path / "instruct")


def check(candidate: str, *, passed: bool) -> dict[str, Any]:
    value = 0.5 if passed else 1.5
    return {
        "name": f"{candidate}.bits_per_byte",
        "value": value,
        "limit": 1.0,
        "passed": passed,
        "enforced": True,
    }


def run_of(root: Path, added: Path, *, passes: bool = True) -> dict[str, str]:
    """A model, what was merged of it, an adapter of that and their scores, as a run leaves them."""
    vector: dict[str, Any] = {"model": str(added), "minus": "tiny"}
    recipe = Recipe.model_validate({
        "base": {"model": "tiny"}, "merge": {"add": [vector]},
        "report": {"licences": {str(added): "llama3.2"}},
    }).model_dump(mode="json")  # fmt: skip

    def sealed(kind: str, origin: dict[str, str], files: dict[str, Any], **more: Any) -> str:
        (root / kind / "0").mkdir(parents=True)
        for name, content in files.items():
            (root / kind / "0" / name).write_text(json.dumps(content), encoding="utf-8")
        artifact.seal(root / kind / "0", kind=kind, origin=origin, recipe=recipe, **more)
        return str(root / kind / "0")

    def input_of(uri: str) -> dict[str, str]:
        manifest = artifact.read_manifest(uri)
        assert manifest
        return {f"input {manifest.kind}": manifest.digest}

    added_vector = {**vector, "weight": 0.5, "control_tokens": TOKENS, "relative_difference": 0.02}
    merge = {"base": "tiny", "base_share": 0.25, "add": [added_vector]}
    model = sealed("model", {"stage": "pretrain"}, {"training.json": {"steps": 9}})
    origin = {"stage": "merge", f"base files of {added}": base_files(str(added))["base files"]}
    merged = sealed("merged", origin | input_of(model), {"merge.json": merge}, figures={"answers": 1})
    adapter = sealed("adapter", {"stage": "finetune"} | input_of(merged), {"training.json": {"steps": 2}})
    verdicts = {"merged": {"candidate": "merged", "use": "answering", "passed": passes, "failed": []}}
    gate: dict[str, Any] = {
        "passed": True,
        "released": "merged" if passes else "adapted",
        "verdicts": verdicts,
    }
    gate |= {"checks": [check("adapted", passed=True), check("merged", passed=passes)]}
    names = ("base", "adapted", "merged", "finetuned")
    table = {"candidates": {name: {"bits_per_byte": 1.5} for name in names}, "gate": gate}
    scores = sealed("scores", input_of(model) | input_of(merged) | input_of(adapter), {"scores.json": table})
    return {"model": model, "merged": merged, "adapter": adapter, "scores": scores}


def test_a_card_says_what_was_merged_with_weights_and_licences(tmp_path: Path, added: Path) -> None:
    uris = run_of(tmp_path, added)

    card = model_card(uris["merged"])

    assert "| instruct less a tiny Llama | 0.5000 | 0.020 | Llama 3.2 Community License |" in card
    assert "| measure | base | adapted | merged |" in card
    assert "Release the merged model for answering" in card
    assert "conversational" in card.partition("\n---\n")[0]
    assert "The licences of the models that were merged into it hold as well" in card


def test_the_card_of_an_adapter_names_the_merge_that_it_was_trained_from(tmp_path: Path, added: Path) -> None:
    card = model_card(run_of(tmp_path, added)["adapter"])

    assert "continued pre-training, then merged, then finetuned on chats" in card
    assert "| continued pre-training, steps | 9 |" in card
    assert "| measure | base | adapted | merged | finetuned |" in card


def test_a_merged_model_is_found_by_its_uri_and_answers_as_its_manifest_says(
    tmp_path: Path, added: Path
) -> None:
    uris = run_of(tmp_path, added)

    merged, model = (find_model(uris[word]) for word in ("merged", "model"))

    assert (merged.kind, merged.candidate, merged.answers) == ("merged", "merged", True)
    assert (model.candidate, model.answers) == ("adapted", False)
    assert merged.directory == Path(uris["merged"])


def test_a_trace_follows_a_merge_to_the_files_of_what_was_added(tmp_path: Path, added: Path) -> None:
    uris = run_of(tmp_path, added)

    whole = trace(uris["merged"])
    (added / "config.json").write_text("{}")
    changed = trace(uris["merged"])

    assert [(each.model, each.state) for each in whole.added] == [(str(added), "verified")]
    assert changed.added[0].state == "changed"
    with pytest.raises(IntegrityError, match="its files are not those"):
        changed.check()


def test_a_merged_model_is_promoted_by_its_own_checks(tmp_path: Path, added: Path) -> None:
    passing, failing = (run_of(tmp_path / str(each), added, passes=each) for each in (True, False))

    assert check_promotable(passing["scores"], passing["merged"]).candidate == "merged"
    with pytest.raises(GateError, match="the adapted model passed: promote the model"):
        check_promotable(failing["scores"], failing["merged"])


def test_a_merged_model_stands_for_the_run_that_made_it(tmp_path: Path, added: Path) -> None:
    uris = run_of(tmp_path, added)
    manifest = artifact.read_manifest(uris["merged"])
    assert manifest

    assert _neighbours(uris["merged"], manifest) == uris
