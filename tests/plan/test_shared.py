import pytest

from anadil.core.errors import PreflightError
from anadil.preflight.services import check_shared
from anadil.recipe.load import load_recipe

S3 = "s3://my-bucket/anadil"
MANY = "pretrain.parallelism={shard: 1, tensor: 8}"
COPIES = "pretrain.parallelism={shard: 1}"
ARCHIVE = f"pretrain.copies.archive={S3}/archive"
NOWHERE = "cluster.work=null"


def refused(*overrides: str, backend: str = "pytorchjob") -> str:
    with pytest.raises(PreflightError) as error:
        check_shared(load_recipe("azerbaijani-1b", overrides), S3, backend)
    return str(error.value)


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ([], "pretrain.parallelism.shard=16"),
        ([MANY], "pretrain.parallelism.tensor=8"),
        ([COPIES, ARCHIVE], "pretrain.copies.archive"),
        ([ARCHIVE], "pretrain.parallelism.shard=16, pretrain.copies.archive"),
    ],
)
def test_checkpoints_that_all_machines_need_have_to_have_a_place(settings: list[str], keys: str) -> None:
    text = refused(*settings, NOWHERE)

    assert text == (
        f"cluster.work: not set, and beside {S3} each of the 2 machines (cluster.nodes) would keep checkpoints in its "
        f"own pod, but pretrain needs a directory that all machines see ({keys}); put cluster.work on a volume that "
        "they all mount, such as cluster.volumes=[{claim: fsx, path: /fsx}] and cluster.work=/fsx/work"
    )


def test_sagemaker_has_no_such_place_whatever_the_recipe_names() -> None:
    text = refused(backend="sagemaker")

    assert text == (
        "cluster.backend: sagemaker gives each of the 2 machines (cluster.nodes) a checkpoint directory of its own, "
        "but pretrain needs one that all machines see (pretrain.parallelism.shard=16); set cluster.nodes=1, or "
        "cluster.backend=pytorchjob, or leave those keys out"
    )


@pytest.mark.parametrize(
    ("settings", "target", "backend"),
    [
        ([], S3, "trainjob"),
        ([NOWHERE], "/fsx/anadil", "pytorchjob"),
        ([NOWHERE], S3, "local"),
        ([NOWHERE, "cluster.nodes=1", ARCHIVE], S3, "pytorchjob"),
        ([NOWHERE, COPIES], S3, "pytorchjob"),
        ([COPIES], S3, "sagemaker"),
    ],
)
def test_machines_that_share_a_place_or_need_none_are_fine(
    settings: list[str], target: str, backend: str
) -> None:
    check_shared(load_recipe("azerbaijani-1b", settings), target, backend)


@pytest.mark.parametrize("name", ["azerbaijani-1b", "azerbaijani-8b", "japanese-1b", "japanese-70b"])
def test_a_shipped_recipe_has_a_place_for_its_checkpoints(name: str) -> None:
    recipe = load_recipe(name)

    check_shared(recipe, str(recipe.storage.root), recipe.cluster.backend)
    check_shared(recipe, str(recipe.storage.root), "trainjob")


def test_machines_that_finetune_together_share_a_place_too() -> None:
    recipe = load_recipe("azerbaijani-1b", [NOWHERE, COPIES, "finetune.batch_size=16"])

    with pytest.raises(PreflightError, match=r"but finetune needs a directory .*\(finetune\.batch_size=16\)"):
        check_shared(recipe, S3, "pytorchjob", "finetune", 2)
    check_shared(recipe, S3, "pytorchjob", "finetune", 1)
