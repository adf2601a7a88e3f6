from pathlib import Path

import pytest

from anadil.artifacts import artifact
from anadil.artifacts.artifact import Manifest
from anadil.core.errors import IntegrityError
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime.lineage import refuse_strangers
from anadil.runtime.planned_artifact import planned_artifact

URIS = {"model": "s3://a/model", "adapter": "s3://a/adapter", "scores": "s3://a/scores"}


def manifest(kind: str, content: str = "", **origin: str) -> Manifest:
    files: dict[str, dict[str, str | int]] = {"f": {"bytes": 1, "sha256": content}}
    named = {f"input {word}": digest for word, digest in origin.items()}
    return Manifest(kind=kind, key="", origin=named, files=files)


MODEL, OTHER = manifest("model", "a"), manifest("model", "b")
ADAPTER = manifest("adapter", model=MODEL.digest)


@pytest.mark.parametrize(
    ("kind", "made"),
    [("adapter", ADAPTER), ("scores", manifest("scores", model=MODEL.digest, adapter=ADAPTER.digest))],
)
def test_an_adapter_or_scores_beside_another_model_are_refused_with_both_digests(
    kind: str, made: Manifest
) -> None:
    refuse_strangers({"model": MODEL, kind: made}, URIS)

    with pytest.raises(IntegrityError) as refused:
        refuse_strangers({"model": OTHER, kind: made}, URIS)

    text = str(refused.value)
    assert text.startswith(f"s3://a/{kind}: is made from the model {MODEL.digest[:16]}, and s3://a/model is")
    assert OTHER.digest[:16] in text


def test_scores_beside_another_adapter_are_refused() -> None:
    scores = manifest("scores", model=MODEL.digest, adapter=ADAPTER.digest)
    again = manifest("adapter", "retrained", model=MODEL.digest)

    with pytest.raises(IntegrityError, match="is made from the adapter"):
        refuse_strangers({"model": MODEL, "adapter": again, "scores": scores}, URIS)


def test_what_does_not_say_what_it_is_made_from_is_not_judged() -> None:
    refuse_strangers({"model": MODEL, "adapter": manifest("adapter")}, URIS)


def test_evaluate_does_not_begin_with_an_adapter_of_another_model(tmp_path: Path) -> None:
    inputs = {}
    for word, origin in (("corpus", {}), ("model", {}), ("adapter", {"input model": "another"})):
        (tmp_path / word).mkdir()
        (tmp_path / word / "content").write_text(word)
        artifact.seal(tmp_path / word, kind=word, origin=origin)
        inputs[word] = str(tmp_path / word)
    recipe = Recipe.model_validate({"evaluate": {"champion": "none"}, "base": {"model": "tiny"}})

    with pytest.raises(IntegrityError, match="adapter: is made from the model another, and"):
        planned_artifact(STAGES["evaluate"], recipe, inputs, (), str(tmp_path / "out"))

    del inputs["adapter"]
    assert planned_artifact(STAGES["evaluate"], recipe, inputs, (), str(tmp_path / "out")).key
