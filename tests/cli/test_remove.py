import json
from pathlib import Path

import pytest

from anadil.artifacts import artifact, storage
from anadil.cli import main
from anadil.core.errors import IntegrityError
from anadil.core.stages import STAGES
from anadil.recipe.sections import Recipe
from anadil.runtime import execute
from anadil.runtime.planned_artifact import MadeArtifact


def test_a_damaged_artifact_is_not_reused_and_the_command_of_the_error_mends_it(
    corpus: MadeArtifact, recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    part = next(Path(corpus.uri).glob("train/*"))
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(IntegrityError) as refused:
        execute.execute(STAGES["clean"], recipe, {}, (), None)
    command = str(refused.value).partition("`anadil ")[2].partition("`")[0]

    code = main.main(command.split())

    assert f"{part}: size differs from the manifest" in str(refused.value)
    assert code == 0
    assert f"removed {corpus.uri}: " in capsys.readouterr().err
    assert execute.execute(STAGES["clean"], recipe, {}, (), None).manifest.digest == corpus.manifest.digest


def test_an_artifact_in_a_bucket_is_removed(corpus: MadeArtifact, bucket: str) -> None:
    uri = f"{bucket}/corpus/1"
    storage.store(uri).put_directory(Path(corpus.uri), uri)

    assert main.main(["remove", uri]) == 0

    assert storage.store(uri).files(uri) == []


def test_a_dry_run_removes_nothing(corpus: MadeArtifact, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["remove", "--dry-run", corpus.uri]) == 0

    assert f"would remove {corpus.uri}: " in capsys.readouterr().err
    assert artifact.read_manifest(corpus.uri)


@pytest.mark.parametrize(
    ("manifest", "code", "words"),
    [
        (None, 3, "no artifact there (no manifest.json); nothing is removed"),
        ("{}", 5, "no manifest of this program"),
        (
            json.dumps({"kind": "checkpoint", "key": "k", "origin": {}, "files": {}}),
            3,
            "holds a checkpoint, which is not an artifact of a stage; nothing is removed",
        ),
    ],
)
def test_somebodys_directory_is_never_removed(
    corpus: MadeArtifact, tmp_path: Path, capsys: pytest.CaptureFixture[str], manifest: str | None, code: int, words: str
) -> None:  # fmt: skip
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    if manifest:
        (home / "manifest.json").write_text(manifest)

    assert main.main(["remove", corpus.uri, str(home)]) == code

    assert words in capsys.readouterr().err
    assert (home / "thesis.txt").is_file()
    assert artifact.read_manifest(corpus.uri)
