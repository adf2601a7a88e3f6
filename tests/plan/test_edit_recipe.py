import errno
import json
import os
import re
import stat
from pathlib import Path

import pytest

from anadil.core.errors import RecipeError
from anadil.plan.edit_recipe import least_waste, recipe_settings, with_settings, write_layout
from anadil.plan.instances import machine, this_machine
from anadil.plan.layout import Layout
from anadil.plan.reliability import CheckpointPlan, checkpoint_interval, checkpoints_of
from anadil.recipe.load import load_recipe, shipped

LAYOUT = Layout(data=16, shard=8, micro_batch_size=7, micro_batches=2, recompute="selective")
SETTINGS = recipe_settings(LAYOUT, machine("p4d.24xlarge"), 2)
STRANGE = """\
# a file with habits of its own
language:   az        # aligned
base:
    model: 'tiny'     # four spaces
clean:
    inputs:
    - builtin:az/prose.jsonl
    - "builtin:az/generated.jsonl"   # no indent
tokenizer: { vocab_sizes: [ 50000,
                            75000 ] }

pretrain:
    phases:
      - {trains: all, steps: 10, lr: 1.50e-5}
    micro_batch_size:   4   # what fits here

    # nothing below
report:
    title: >-
      A long title
      in two lines

"""


def test_a_layout_becomes_the_keys_that_the_recipe_has_for_it() -> None:
    assert SETTINGS == {
        "pretrain.micro_batch_size": 7,
        "pretrain.activation_checkpointing": "selective",
        "pretrain.parallelism.shard": 8,
        "pretrain.parallelism.tensor": 1,
        "pretrain.parallelism.context": 1,
        "pretrain.parallelism.pipeline": 1,
        "cluster.instance": "p4d.24xlarge",
        "cluster.nodes": 2,
    }


def test_this_machine_is_not_written_into_a_recipe() -> None:
    assert "cluster.instance" not in recipe_settings(LAYOUT, this_machine(), 1)


@pytest.mark.parametrize("source", shipped(), ids=lambda path: path.stem)
def test_every_shipped_recipe_keeps_its_lines(source: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_bytes(source.read_bytes())
    settings = recipe_settings(LAYOUT, machine("p4d.24xlarge"), 2, 2_066)

    write_layout(mine, settings)

    changed = tuple(f"{key.split('.')[1]}:" for key in settings)
    before = [line for line in source.read_text().splitlines() if not line.strip().startswith(changed)]
    after = mine.read_text().splitlines()
    assert [line for line in after if line in before] == before
    assert re.findall("#.*", mine.read_text()) == re.findall("#.*", source.read_text())
    overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    assert load_recipe(str(mine)) == load_recipe(str(source), overrides)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_file_with_habits_of_its_own_keeps_them(newline: str) -> None:
    text = STRANGE.replace("\n", newline)

    changed = with_settings(text, SETTINGS, "mine.yaml")

    assert changed == text.replace("size:   4 ", "size:   7 ").replace(
        "fits here" + newline,
        "fits here\n    activation_checkpointing: selective\n    parallelism:\n        shard: 8\n"
        "        tensor: 1\n        context: 1\n        pipeline: 1\n".replace("\n", newline),
    ) + "cluster:\n    instance: p4d.24xlarge\n    nodes: 2\n".replace("\n", newline)


def test_the_second_time_changes_nothing(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(STRANGE)
    write_layout(mine, SETTINGS)
    text, inode = mine.read_text(), mine.stat().st_ino

    write_layout(mine, SETTINGS)

    assert (mine.read_text(), mine.stat().st_ino) == (text, inode)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "cluster:\n  nodes: 2\n"),
        ("# nothing yet\n", "# nothing yet\ncluster:\n  nodes: 2\n"),
        ("---\nseed: 1", "---\nseed: 1\ncluster:\n  nodes: 2"),
        ("cluster: {}\n", "cluster: {nodes: 2}\n"),
        ("cluster: {image: a, }\n", "cluster: {image: a, nodes: 2, }\n"),
        (
            "cluster: {\n  image: a,  # mine\n}\nseed: 1\n",
            "cluster: {\n  image: a,  # mine\n  nodes: 2,\n}\nseed: 1\n",
        ),
        (
            "cluster: {\n  image: a  # mine\n}\n",
            "cluster: {\n  image: a,  # mine\n  nodes: 2\n}\n",
        ),
        ("cluster:\n  nodes: 1  # one\nseed: 1\n", "cluster:\n  nodes: 2  # one\nseed: 1\n"),
        (
            "cluster:\n  image: a\n  # last\n\nseed: 1\n",
            "cluster:\n  image: a\n  nodes: 2\n  # last\n\nseed: 1\n",
        ),
        (
            "cluster:\n  image: >-\n    a\n\nseed: 1\n",
            "cluster:\n  image: >-\n    a\n\n  nodes: 2\nseed: 1\n",
        ),
        ("{language: az}", '{language: az, "cluster": {"nodes": 2}}'),
    ],
)
def test_a_key_goes_to_the_end_of_its_table(before: str, after: str) -> None:
    assert with_settings(before, {"cluster.nodes": 2}, "mine") == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("instance: 'p5.48xlarge' # c", "instance: 'p4d.24xlarge' # c"),
        ('instance: "p5.48xlarge"', 'instance: "p4d.24xlarge"'),
        ("instance:", "instance: p4d.24xlarge"),
        ("instance: null # c", "instance: p4d.24xlarge # c"),
        ("instance: >-\n    p5.48xlarge\n  nodes: 2", "instance: p4d.24xlarge\n  nodes: 2"),
        ("instance: 'p4d.24xlarge'", "instance: 'p4d.24xlarge'"),
    ],
)
def test_a_word_keeps_the_quotes_of_the_old_one(before: str, after: str) -> None:
    changed = with_settings(f"cluster:\n  {before}\n", {"cluster.instance": "p4d.24xlarge"}, "mine")

    assert changed == f"cluster:\n  {after}\n"


def test_a_word_that_reads_as_something_else_is_quoted() -> None:
    assert with_settings("", {"cluster.instance": "no"}, "mine") == 'cluster:\n  instance: "no"\n'


def test_json_stays_json(tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    data = {"language": "az", "pretrain": {"batch_size": 8, "micro_batch_size": 8}}
    mine.write_text(json.dumps(data, indent=4) + "\n")

    write_layout(mine, SETTINGS)

    text = mine.read_text()
    assert json.loads(text)["cluster"] == {"instance": "p4d.24xlarge", "nodes": 2}
    assert text.startswith('{\n    "language": "az",\n    "pretrain": {\n        "batch_size": 8,\n')
    assert load_recipe(str(mine)).pretrain.parallelism.shard == 8


def test_a_link_is_followed_and_permissions_stay(tmp_path: Path) -> None:
    mine, link = tmp_path / "mine.yaml", tmp_path / "link.yaml"
    mine.write_text("language: az\n")
    mine.chmod(0o640)
    link.symlink_to(mine)

    write_layout(link, {"cluster.nodes": 2})

    assert link.is_symlink()
    assert stat.S_IMODE(mine.stat().st_mode) == 0o640
    assert mine.read_text() == "language: az\ncluster:\n  nodes: 2\n"
    assert sorted(tmp_path.iterdir()) == [link, mine]


@pytest.mark.parametrize("name", ["smoke", "azerbaijani-1b"])
def test_a_shipped_recipe_is_not_changed(name: str, tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    file = next(path for path in shipped() if path.stem == name)
    link.symlink_to(file)

    for path in (Path(name), file, link):
        with pytest.raises(RecipeError, match=f"copy it first .anadil recipe copy {name} {name}-mine.yaml"):
            write_layout(path, SETTINGS)


def test_no_file_is_an_error_that_says_so() -> None:
    with pytest.raises(RecipeError, match=r"recipe nothing\.yaml: no such file to write to"):
        write_layout(Path("nothing.yaml"), SETTINGS)


@pytest.mark.parametrize(
    ("text", "settings", "says"),
    [
        ("languag: az\n", SETTINGS, "unknown key"),
        ("language: az\n", {"pretrain.micro_batch_size": 0}, "must be above 0"),
        (
            "~\n",
            {"cluster.nodes": 2},
            "cluster.nodes finds no place in it; write `cluster.nodes: 2`",
        ),
        ("language: az\n", {"cluster": 2}, "cluster"),
        ("pretrain: {phases: [{trains: all, steps: 1, lr: 1}]}\n", {"pretrain.phases": 2}, "table or a list"),
    ],
)
def test_a_mistake_leaves_the_file_as_it_was(
    text: str, settings: dict[str, object], says: str, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(text)

    with pytest.raises(RecipeError) as caught:
        write_layout(mine, settings)

    assert says in str(caught.value)
    assert mine.read_text() == text
    assert list(tmp_path.iterdir()) == [mine]


def test_the_distance_of_checkpoints_that_wastes_least_is_written() -> None:
    def checkpoints(step_s: float | None) -> CheckpointPlan:
        return checkpoints_of(1, 1, stall_s=1.0, mtbf_s=1e6, step_s=step_s, every=500, keep=1)

    every = least_waste(checkpoints(1.0), 20_000)

    assert every == round(checkpoint_interval(1.0, 1e6)) == 1_414
    assert least_waste(checkpoints(1.0), 1_000) == 1_000
    assert least_waste(checkpoints(None), 1_000) is None
    assert recipe_settings(LAYOUT, this_machine(), 1, every)["pretrain.checkpoint_every"] == 1_414


def test_a_file_that_is_no_text_is_an_error_that_names_it(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_bytes(b"language: \xff")

    with pytest.raises(RecipeError, match=r"recipe .*mine\.yaml: cannot be read: .*utf-8"):
        write_layout(mine, SETTINGS)


def test_a_full_disk_leaves_the_file_as_it_was_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    mine = tmp_path / "mine.yaml"
    mine.write_text("language: az\n")
    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(OSError, match="No space left"):
        write_layout(mine, SETTINGS)

    assert mine.read_text() == "language: az\n"
    assert list(tmp_path.iterdir()) == [mine]
