"""A merge that is killed while it writes leaves nothing that looks whole; the next start writes all of it."""

import os
import shutil
import signal
from pathlib import Path

from anadil.artifacts import artifact
from anadil.core.stages import STAGES
from anadil.model import safetensors_files
from anadil.recipe.load import parse_recipe
from anadil.runtime.execute import execute
from tests.kit.merging import make_models, tensors_of
from tests.kit.pretraining import in_child


def test_a_killed_merge_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    models = make_models(tmp_path / "models")
    artifact.seal(shutil.copytree(models.model, tmp_path / "model"), kind="model", origin={})
    recipe = parse_recipe(
        f"base: {{model: {models.base}}}\nmerge: {{base_share: 0.5}}\nstorage: {{root: {tmp_path}}}\ntracking: {{uri: 'off'}}",
        "r.yaml",
    )
    inputs = {"model": str(tmp_path / "model"), "tokenizer": str(models.tokenizer)}
    out, written = tmp_path / "out", []

    def merge() -> None:
        execute(STAGES["merge"], recipe, inputs, (), str(out))

    def merge_until_the_fifth_tensor() -> None:
        real = safetensors_files._bytes

        def counted(*given: object) -> object:
            written.append(given)
            if len(written) == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given)  # type: ignore[arg-type]

        safetensors_files._bytes = counted  # type: ignore[assignment]
        merge()

    code = os.waitstatus_to_exitcode(os.waitpid(in_child(merge_until_the_fifth_tensor), 0)[1])
    left = [path.name for path in tmp_path.rglob("*.safetensors") if "out" in str(path)]
    assert code == -signal.SIGKILL
    assert left  # it was killed while it wrote
    assert not out.exists()

    merge()

    assert artifact.finished_manifest(str(out), "merged").files.keys() >= {"model.safetensors", "merge.json"}
    half = {
        name: 0.5 * each + 0.5 * tensors_of(models.base)[name]
        for name, each in tensors_of(models.model).items()
    }
    assert all((each == half[name]).all() for name, each in tensors_of(out).items())
