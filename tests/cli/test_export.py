from pathlib import Path

import pytest

from anadil.cli import main
from anadil.runtime.job import Job
from tests.kit.pretraining import (
    generations,
    make_corpus,
    make_job,
    make_model,
    make_recipe,
    make_tokenizer_artifact,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, list[str]]:
    """A run with checkpoints, and the command that exports one of them but for tokenizer and place."""
    from anadil.pretrain.run import run

    folder = tmp_path_factory.mktemp("trained")
    make_corpus(folder / "corpus")
    make_tokenizer_artifact(folder / "tokenizer")
    base = make_model(folder / "model")
    job = make_job(folder, make_recipe(base))
    run(job)
    return job, ["export", str(generations(job)[0]), "--set", f"base.model={base}"]


def test_a_checkpoint_becomes_a_model_directory_and_a_second_export_overwrites_nothing(
    trained: tuple[Job, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    from anadil.model.load import load_model, load_tokenizer

    job, command = trained
    tokenizer = job.out.parents[1] / "tokenizer"
    arguments = [*command, "--tokenizer", str(tokenizer), "--out", str(tmp_path / "exported")]

    codes = [main.main(arguments), main.main(arguments)]

    printed = capsys.readouterr()
    assert codes == [0, 3]
    assert printed.out == f"{tmp_path / 'exported'}\n"
    assert "holds files that are no artifact" in printed.err
    assert len(load_tokenizer(tmp_path / "exported")) == 300
    exported, result = load_model(tmp_path / "exported"), load_model(job.out)
    for one, other in zip(exported.parameters(), result.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not (tmp_path / "exported.partial").exists()


@pytest.mark.parametrize(
    ("has_tokenizer", "code", "reason"),
    [
        (True, 3, "other: is not the tokenizer that"),
        (False, 2, "is a checkpoint; give --recipe and --tokenizer of its run"),
    ],
)
def test_a_checkpoint_with_another_tokenizer_or_none_is_refused(
    has_tokenizer: bool, code: int, reason: str, trained: tuple[Job, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    make_tokenizer_artifact(tmp_path / "other", vocab_size=290)
    more = ["--tokenizer", str(tmp_path / "other")] if has_tokenizer else []

    assert main.main([*trained[1], *more, "--out", str(tmp_path / "exported")]) == code

    assert reason in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
