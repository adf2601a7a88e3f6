from pathlib import Path

import pytest

from tests.launch.golden import FOLDER, GOLDEN


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_manifest_is_the_kept_one(path: Path) -> None:
    assert GOLDEN[path]() == path.read_text(encoding="utf-8"), "run `make golden` and read the difference"


def test_no_kept_manifest_is_left_over() -> None:
    ours = {path for path in FOLDER.glob("*.yaml") if not path.stem.startswith("sagemaker")}

    assert ours == set(GOLDEN)
