import json
import os
from pathlib import Path

import pytest
from botocore.exceptions import EndpointConnectionError

from anadil.artifacts import artifact, s3, storage
from anadil.artifacts.prefetch import fetch
from anadil.core.errors import DataError, IntegrityError, PreflightError, RecipeError, RetryableError
from anadil.core.stages import STAGES
from anadil.recipe.load import parse_recipe
from anadil.recipe.sections import Recipe
from anadil.runtime import entry_point, execute
from anadil.runtime.planned_artifact import MadeArtifact
from anadil.text.corpus import read_documents
from tests.kit.harness import CLEAN, again, arguments, partials
from tests.kit.one_text import ONE_TEXT


def test_a_stage_makes_a_sealed_artifact_at_the_place_of_its_key(
    corpus: MadeArtifact, tmp_path: Path
) -> None:
    path, manifest = fetch(corpus.uri, "corpus")

    assert path == tmp_path / "root" / "corpus" / manifest.key
    assert [item.name for item in path.parent.iterdir()] == [manifest.key]
    assert (
        manifest.figures["kept"]
        == len([*read_documents(path, "train"), *read_documents(path, "heldout")])
        > 10
    )
    assert manifest.recipe["storage"] == {"root": str(tmp_path / "root")}
    assert set(manifest.program) == {"version", "image", "source"}


def test_a_second_run_makes_nothing(
    corpus: MadeArtifact, recipe: Recipe, caplog: pytest.LogCaptureFixture
) -> None:
    files = list(Path(corpus.uri).rglob("*"))
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files]
    caplog.set_level("INFO")

    found = execute.execute(CLEAN, recipe, {}, (), None)

    assert found.uri == corpus.uri
    assert found.manifest == corpus.manifest
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files] == before
    assert f"reused {corpus.uri}" in caplog.text
    assert "running" not in caplog.text


def test_two_runs_give_the_same_bytes(corpus: MadeArtifact, recipe: Recipe, tmp_path: Path) -> None:
    other = execute.execute(CLEAN, again(recipe, f"storage.root={tmp_path}/other"), {}, (), None)

    assert other.uri != corpus.uri
    assert other.manifest.key == corpus.manifest.key
    assert other.manifest.digest == corpus.manifest.digest
    assert other.manifest.files.keys() == corpus.manifest.files.keys()


def test_a_changed_key_is_named_as_the_reason(
    corpus: MadeArtifact, recipe: Recipe, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    other = execute.execute(CLEAN, again(recipe, "clean.minhash_bands=8"), {}, (), None)

    assert other.uri != corpus.uri
    assert "running because recipe clean.minhash_bands 14 -> 8" in caplog.text


def test_a_changed_input_file_is_named_as_the_reason(
    recipe: Recipe, raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "raw.jsonl"
    path.write_bytes(raw.read_bytes())
    mine = again(recipe, f"clean.inputs=['{path}']")
    execute.execute(CLEAN, mine, {}, (), None)
    path.write_bytes(b"".join(raw.read_bytes().splitlines(keepends=True)[:12]))
    caplog.clear()
    caplog.set_level("INFO")

    execute.execute(CLEAN, mine, {}, (), None)

    assert f"running because file {path} changed" in caplog.text


def test_a_damaged_neighbour_stops_nobody(corpus: MadeArtifact, recipe: Recipe) -> None:
    (Path(corpus.uri) / "manifest.json").write_text("garbage")

    assert execute.execute(CLEAN, again(recipe, "clean.minhash_bands=8"), {}, (), None)


def test_out_is_used_and_never_made_from_something_else(recipe: Recipe, tmp_path: Path) -> None:
    out = str(tmp_path / "mine")
    made = execute.execute(CLEAN, recipe, {}, (), out)

    assert made.uri == out
    with pytest.raises(RecipeError) as caught:
        execute.execute(CLEAN, again(recipe, "clean.minhash_bands=8"), {}, (), out)
    assert str(caught.value) == (
        f"{out}: holds a corpus made from something else (recipe clean.minhash_bands 14 -> 8); "
        "artifacts are written once: give another --out or remove it"
    )


@pytest.mark.parametrize("out", ["deep/mine/", "mine"])
def test_out_may_end_in_a_slash_and_be_relative(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    made = execute.execute(CLEAN, recipe, {}, (), out)

    assert made.uri == str(tmp_path / "here" / out)
    assert fetch(made.uri, "corpus")
    assert execute.execute(CLEAN, recipe, {}, (), out).uri == made.uri


def test_out_with_somebodys_files_is_refused_before_any_work(recipe: Recipe, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").touch()

    with pytest.raises(DataError, match="holds files that are no artifact"):
        execute.execute(CLEAN, recipe, {}, (), str(home))

    assert (home / "thesis.txt").is_file()
    assert not partials(tmp_path)


def test_without_a_root_and_an_out_there_is_no_place(recipe: Recipe) -> None:
    with pytest.raises(RecipeError, match=r"storage\.root: not set; give --out"):
        execute.execute(CLEAN, again(recipe, "storage.root=null"), {}, (), None)


def test_a_damaged_input_stops_the_next_stage(corpus: MadeArtifact, recipe: Recipe, tmp_path: Path) -> None:
    (Path(corpus.uri) / "stats.json").write_text("{}")

    with pytest.raises(IntegrityError, match=r"stats\.json: differs from its manifest"):
        execute.execute(STAGES["tokenizer"], recipe, {"corpus": corpus.uri}, (), None)

    assert not partials(tmp_path)


def test_an_input_of_another_kind_stops_the_next_stage(corpus: MadeArtifact, recipe: Recipe) -> None:
    with pytest.raises(DataError, match="holds a corpus, not a model"):
        execute.execute(
            STAGES["finetune"],
            recipe,
            {"model": corpus.uri},
            (storage.built_in("az/helpdesk.jsonl").as_posix(),),
            None,
        )


def test_missing_inputs_are_named_as_flags(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = entry_point.main("pretrain", ["--recipe", "smoke", "--set", ONE_TEXT, "--corpus", str(tmp_path)])

    assert code == 2
    assert "pretrain: --tokenizer missing; give the URI of each artifact to read" in capsys.readouterr().err


def test_the_command_prints_the_uri_and_nothing_else(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = entry_point.main("clean", [*arguments(recipe, tmp_path), "--out", str(tmp_path / "out")])

    printed = capsys.readouterr()
    assert code == 0
    assert printed.out == f"{tmp_path / 'out'}\n"
    for line in printed.err.splitlines():
        assert json.loads(line)["stage"] == "clean"


def test_the_artifact_may_go_to_a_bucket_and_come_from_one(
    recipe: Recipe, raw: Path, bucket: str, tmp_path: Path
) -> None:
    s3.s3_client().upload_file(str(raw), bucket.removeprefix("s3://"), "raw/prose.jsonl")
    far = again(recipe, f"storage.root={bucket}/runs", f"clean.inputs=['{bucket}/raw/*.jsonl']")

    made = execute.execute(CLEAN, far, {}, (), None)
    found = execute.execute(CLEAN, far, {}, (), None)
    path, manifest = fetch(made.uri, "corpus")

    assert made.uri == f"{bucket}/runs/corpus/{manifest.key}"
    assert found.uri == made.uri
    assert len(list(read_documents(path, "train"))) > 5
    assert not list(Path(os.environ["ANADIL_WORK"]).glob("*/partial"))


def test_a_bucket_that_does_not_exist_is_no_place_to_write_and_no_input(recipe: Recipe, bucket: str) -> None:
    with pytest.raises(PreflightError, match=r"^s3://none-here/out: its bucket does not exist; create it"):
        execute.execute(CLEAN, recipe, {}, (), "s3://none-here/out")
    with pytest.raises(DataError, match=r"^s3://none-here/a\.jsonl: does not exist; check bucket and key"):
        execute.execute(CLEAN, recipe, {}, ("s3://none-here/a.jsonl",), f"{bucket}/out")


def test_an_upload_that_failed_is_repeated_without_the_work(
    recipe: Recipe, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    def cut(**_: object) -> None:
        raise EndpointConnectionError(endpoint_url="http://127.0.0.1")

    caplog.set_level("INFO", "anadil")
    events = s3.s3_client().meta.events
    events.register("before-call.s3.PutObject", cut)
    with pytest.raises(RetryableError, match="storage did not answer, run the same command again"):
        execute.execute(CLEAN, recipe, {}, (), f"{bucket}/out")
    events.unregister("before-call.s3.PutObject", cut)
    assert "14 documents in" in caplog.text
    caplog.clear()

    made = execute.execute(CLEAN, recipe, {}, (), f"{bucket}/out")

    assert made.uri == f"{bucket}/out"  # beside a local storage.root
    assert "14 documents in" not in caplog.text
    assert fetch(made.uri, "corpus")


def test_the_executor_input_of_kubeflow_pipelines_is_answered(recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "kfp"
    given = {
        "inputs": {"parameterValues": {"recipe": recipe.model_dump_json()}},
        "outputs": {
            "parameters": {"corpus": {"outputFile": str(out / "corpus" / "value")}},
            "artifacts": {
                "metrics": {
                    "artifacts": [
                        {
                            "name": "metrics",
                            "type": {"schemaTitle": "system.Metrics", "schemaVersion": "0.0.1"},
                            "uri": str(out / "metrics"),
                            "metadata": {},
                        }
                    ]
                }
            },
            "outputFile": str(out / "deep" / "executor_output.json"),
        },
    }

    code = entry_point.main("clean", ["--executor-input", json.dumps(given)])

    written = json.loads((out / "deep" / "executor_output.json").read_text())
    uri = (out / "corpus" / "value").read_text()
    assert code == 0
    assert written["parameterValues"] == {"corpus": uri}
    assert artifact.read_manifest(uri)
    [metrics] = written["artifacts"]["metrics"]["artifacts"]
    assert metrics["metadata"]["kept"] > 10
    assert metrics["uri"] == str(out / "metrics")
    assert metrics["type"]["schemaTitle"] == "system.Metrics"


@pytest.mark.parametrize(
    "text", ["no json", "[]", "{}", '{"inputs": {"parameterValues": {}}, "outputs": {}}']
)
def test_another_executor_input_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry_point.main("clean", ["--executor-input", text]) == 2
    assert "--executor-input: not what Kubeflow Pipelines passes" in capsys.readouterr().err


@pytest.mark.parametrize("stage", ["clean", "overlap", "encode"])
def test_a_source_that_the_recipe_lacks_is_refused_by_name(
    stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = parse_recipe(
        "sources: {web: {inputs: [w]}, en: {inputs: [e], language: en}}\n"
        "pretrain: {phases: [{trains: all, steps: 9, lr: 1.0e-3, mix: {web: .8, en: .2}}]}",
        "r.yaml",
    )
    values = {"recipe": recipe.model_dump_json(), "source": "eng", "tokenizer": str(tmp_path)}
    given = {"inputs": {"parameterValues": values}, "outputs": {}}

    # It is no step of a run, so that no record of one is asked for.
    assert entry_point.main(stage, ["--executor-input", json.dumps(given)]) == 2
    assert "sources: none is called 'eng' (web, en); did you mean 'en'?" in capsys.readouterr().err
