"""Generations of one process: what comes back, what is refused, what is kept."""

import logging
import os
import pickle
import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import collect_env

from anadil import artifact
from anadil.errors import IntegrityError, PreflightError, RecipeError, RetryableError
from anadil.pretrain.checkpoints import checkpoints as module
from anadil.pretrain.checkpoints import generation
from anadil.pretrain.checkpoints.checkpoints import Checkpoints
from anadil.pretrain.checkpoints.memory import MemoryCopies
from anadil.pretrain.checkpoints.metadata import read_metadata
from anadil.pretrain.checkpoints.state import State
from anadil.pretrain.checkpoints.tensors import write_tensors
from anadil.pretrain.parallel.group import Group

ORIGIN = {"recipe seed": "7", "input tokens": "abc"}
NAME = "model.embed_tokens.weight"

Make = Callable[..., Checkpoints]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes `Checkpoints` of one process in `tmp_path/checkpoints`, and closes them."""
    made = []

    def build(origin: dict[str, str] = ORIGIN, keep: int = 3, **more: Any) -> Checkpoints:
        made.append(Checkpoints(tmp_path / "checkpoints", Group(), origin, keep, **more))
        return made[-1]

    yield build
    for checkpoints in made:
        checkpoints.close()


def tensors_of(step: int) -> dict[str, torch.Tensor]:
    """Parameters and moments as training has them after a step."""
    random_numbers = torch.Generator().manual_seed(step)
    weight = torch.randn(12, 4, generator=random_numbers)
    return {
        NAME: weight,
        "model.norm.weight": torch.randn(4, generator=random_numbers).bfloat16(),
        f"step {NAME}": torch.tensor(float(step)),
        f"exp_avg {NAME}": weight * 0.1,
        f"exp_avg_sq {NAME}": weight.square(),
    }


def state_of(step: int) -> State:
    return State(step=step, tokens=step * 100, seconds=step / 2)


def save(checkpoints: Checkpoints, *steps: int) -> None:
    for step in steps:
        checkpoints.save(state_of(step), tensors_of(step))
    checkpoints.wait()


def loaded(checkpoints: Checkpoints) -> tuple[State, dict[str, torch.Tensor]]:
    found = checkpoints.newest()
    assert found is not None
    tensors = {name: torch.zeros_like(tensor) for name, tensor in tensors_of(0).items()}
    checkpoints.load(found, tensors)
    return found.state, tensors


def assert_newest(checkpoints: Checkpoints, step: int) -> None:
    state, tensors = loaded(checkpoints)
    assert state == state_of(step)
    expected = tensors_of(step)
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def forge(path: Path) -> None:
    """Make the manifest agree with the files, as an attacker who can write there would."""
    manifest = artifact.read_manifest(str(path))
    assert manifest is not None
    entries = {name: artifact.describe(path / name) for name in manifest.files}
    (path / "manifest.json").write_text(generation.sealed(replace(manifest, files=entries)))


def test_an_empty_directory_holds_no_checkpoint(make: Make) -> None:
    assert make().newest() is None


def test_what_is_saved_comes_back_bit_by_bit(make: Make) -> None:
    save(make(), 5)

    assert_newest(make(), 5)


def test_training_may_go_on_while_a_checkpoint_is_written(make: Make) -> None:
    checkpoints = make()
    tensors = tensors_of(1)

    checkpoints.save(state_of(1), tensors)
    for tensor in tensors.values():
        tensor.zero_()
    checkpoints.wait()

    assert_newest(checkpoints, 1)


def test_the_memory_of_one_checkpoint_serves_the_next(make: Make) -> None:
    checkpoints = make()
    tensors = tensors_of(1)

    for step in (1, 2):
        for name, tensor in tensors_of(step).items():
            tensors[name].copy_(tensor)
        checkpoints.save(state_of(step), tensors)
    checkpoints.wait()

    assert_newest(checkpoints, 2)


def test_what_was_left_out_comes_back(make: Make) -> None:
    checkpoints = make()
    state = State(step=9, tokens=1, seconds=2.5, anomalies={"phase": 0, "left_out": [[4, 7]]})
    checkpoints.save(state, tensors_of(9))
    checkpoints.wait()

    found = checkpoints.newest()

    assert found is not None
    assert found.state == state


def test_at_a_phase_border_there_are_parameters_only(make: Make) -> None:
    checkpoints = make()
    parameters = {name: tensor for name, tensor in tensors_of(4).items() if " " not in name}
    checkpoints.save(state_of(4), parameters)

    found_by = make()
    checkpoints.wait()
    found = found_by.newest()

    assert found is not None
    assert found.names == parameters.keys()
    with pytest.raises(IntegrityError, match=r"holds 2 tensors, but not exp_avg model\.embed.* and 2 more"):
        found_by.load(found, tensors_of(0))


def test_part_of_a_checkpoint_can_be_loaded(make: Make) -> None:
    checkpoints = make()
    save(checkpoints, 3)
    weight = torch.zeros(12, 4)

    found = checkpoints.newest()
    assert found is not None
    checkpoints.load(found, {NAME: weight})

    assert torch.equal(weight, tensors_of(3)[NAME])


def test_another_shape_is_refused(make: Make) -> None:
    checkpoints = make()
    save(checkpoints, 3)
    found = checkpoints.newest()
    assert found is not None

    with pytest.raises(
        IntegrityError, match=r"float32 \[12, 4\] there and torch.float32 \[14, 4\] in the model"
    ):
        checkpoints.load(found, {NAME: torch.zeros(14, 4)})


def test_equal_states_give_equal_bytes(make: Make, tmp_path: Path) -> None:
    checkpoints = make()
    save(checkpoints, 3)
    first = (tmp_path / "checkpoints/step-00000003/manifest.json").read_bytes()

    save(checkpoints, 3)

    assert (tmp_path / "checkpoints/step-00000003/manifest.json").read_bytes() == first


def test_the_newest_generations_are_kept(make: Make, tmp_path: Path) -> None:
    checkpoints = make(keep=2)

    save(checkpoints, 2, 4, 6, 8)

    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step-00000006",
        "step-00000008",
    ]


def test_a_generation_that_is_being_read_is_not_removed(make: Make, tmp_path: Path) -> None:
    checkpoints = make(keep=1)
    save(checkpoints, 1)

    with generation.held(tmp_path / "checkpoints/step-00000001"):
        save(checkpoints, 2)
        during = generation.steps(tmp_path / "checkpoints")
    save(checkpoints, 3)

    assert during == [2, 1]
    assert generation.steps(tmp_path / "checkpoints") == [3]


def test_a_step_saved_again_after_a_roll_back_replaces_the_old_one(make: Make, tmp_path: Path) -> None:
    checkpoints = make(keep=1)
    save(checkpoints, 4)

    checkpoints.save(state_of(4), {**tensors_of(4), NAME: torch.ones(12, 4)})
    checkpoints.wait()

    assert torch.equal(loaded(checkpoints)[1][NAME], torch.ones(12, 4))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000004"]


def test_what_a_killed_process_left_is_cleared_away(make: Make, tmp_path: Path) -> None:
    checkpoints = make()
    save(checkpoints, 2, 4, 6)
    folder = tmp_path / "checkpoints"
    (folder / "step-00000008.partial").mkdir()
    (folder / "step-00000002").rename(folder / "step-00000002.removed")
    (folder / "step-00000006").rename(folder / "step-00000006.old")

    assert_newest(checkpoints, 6)

    assert sorted(path.name for path in folder.iterdir()) == ["step-00000004", "step-00000006"]


def test_a_generation_without_manifest_does_not_count(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = make()
    save(checkpoints, 2, 4)
    (tmp_path / "checkpoints/step-00000004/manifest.json").unlink()

    assert_newest(checkpoints, 2)

    assert "step-00000004: has no manifest.json, so it does not count" in caplog.text


def flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def flips_found(checkpoints: Checkpoints, folder: Path, trials: int, seed: int = 0) -> int:
    """Flip one random bit of the newest of two generations, `trials` times; how often it was noticed."""
    numbers = random.Random(seed)
    found = 0
    newest = folder / "step-00000004"
    for _ in range(trials):
        files = sorted(newest.iterdir())
        at = numbers.randrange(sum(file.stat().st_size for file in files) * 8)
        for file in files:
            size = file.stat().st_size * 8
            if at < size:
                flip(file, at)
                break
            at -= size
        taken = checkpoints.newest()
        found += taken is not None and taken.state.step == 2
        for aside in folder.glob("*.damaged"):
            aside.rename(newest)
        flip(file, at)
    return found


def test_single_flipped_bits_are_found(make: Make, tmp_path: Path) -> None:
    checkpoints = make()
    save(checkpoints, 2, 4)

    assert flips_found(checkpoints, tmp_path / "checkpoints", trials=50) == 50

    assert_newest(checkpoints, 4)


@pytest.mark.slow
def test_two_hundred_flipped_bits_are_found(make: Make, tmp_path: Path) -> None:
    checkpoints = make()
    save(checkpoints, 2, 4)

    assert flips_found(checkpoints, tmp_path / "checkpoints", trials=200, seed=1) == 200


def truncate(path: Path) -> None:
    os.truncate(path / "__0_0.distcp", 1000)


def fill_with_zeros(path: Path) -> None:
    file = path / "__0_0.distcp"
    file.write_bytes(bytes(file.stat().st_size))


def lose_a_file(path: Path) -> None:
    (path / "__0_0.distcp").unlink()


def lose_metadata(path: Path) -> None:
    (path / ".metadata").unlink()


def add_a_file(path: Path) -> None:
    (path / "__1_0.distcp").write_bytes(b"")


def swap_a_file(path: Path) -> None:
    (path / "__0_0.distcp").write_bytes((path.with_name("step-00000002") / "__0_0.distcp").read_bytes())


def change_the_state(path: Path) -> None:
    (path / "state.json").write_text(state_of(5).to_json())


def spoil_the_manifest(path: Path) -> None:
    (path / "manifest.json").write_text("{")


def be_another_step(path: Path) -> None:
    manifest = artifact.read_manifest(str(path))
    assert manifest is not None
    (path / "manifest.json").write_text(generation.sealed(replace(manifest, records={"step": 2})))


def change_the_manifest(path: Path) -> None:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"tokens": 400', '"tokens": 500'))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, "__0_0.distcp: has not the"),
        (fill_with_zeros, "__0_0.distcp: differs from its manifest"),
        (lose_a_file, "__0_0.distcp: missing, but its manifest names it"),
        (lose_metadata, ".metadata: missing, but its manifest names it"),
        (add_a_file, "__1_0.distcp: not in its manifest"),
        (swap_a_file, "__0_0.distcp: differs from its manifest"),
        (change_the_state, "state.json: differs from its manifest"),
        (spoil_the_manifest, "no manifest of this program"),
        (be_another_step, "its manifest is that of step 2"),
        (change_the_manifest, "manifest.json: is not as it was written"),
    ],
)
def test_a_damaged_generation_is_set_aside_and_the_one_before_taken(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None], words: str
) -> None:
    checkpoints = make()
    save(checkpoints, 2, 4)
    damage(tmp_path / "checkpoints/step-00000004")

    assert_newest(checkpoints, 2)

    assert words in caplog.text
    assert "damaged checkpoint set aside as" in caplog.text
    assert (tmp_path / "checkpoints/step-00000004.damaged").is_dir()


def test_a_generation_under_the_name_of_a_later_step_is_refused(make: Make, tmp_path: Path) -> None:
    checkpoints = make()
    save(checkpoints, 2, 4)
    folder = tmp_path / "checkpoints"
    (folder / "step-00000002").rename(folder / "step-00000006")

    assert_newest(checkpoints, 4)


def test_a_run_with_other_settings_is_told_what_differs(make: Make) -> None:
    save(make(), 2)

    with pytest.raises(RecipeError, match=r"other settings \(recipe seed 7 -> 8\); restore them"):
        make(origin={**ORIGIN, "recipe seed": "8"}).newest()


class Payload:
    """Touches a file when it is unpickled as pickle does it."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.canary}",)


class TorchPayload(Payload):
    """The same through a function of torch, whose names a checkpoint does hold."""

    def __reduce__(self) -> tuple[Any, ...]:
        return collect_env.run, (f"touch {self.canary}",)


class BuiltinPayload(Payload):
    """The same through a function of Python, which old protocols call `__builtin__`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({str(self.canary)!r}, 'w')",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("payload", [Payload, BuiltinPayload])
@pytest.mark.parametrize("forged", [False, True])
def test_metadata_that_would_run_code_is_refused(
    make: Make, tmp_path: Path, payload: type[Payload], forged: bool, protocol: int
) -> None:
    checkpoints = make()
    save(checkpoints, 2, 4)
    path, canary = tmp_path / "checkpoints/step-00000004", tmp_path / "canary"
    (path / ".metadata").write_bytes(pickle.dumps(payload(canary), protocol))
    if forged:
        forge(path)

    with pytest.raises(
        IntegrityError, match=r"\.metadata: asks to load .* somebody has changed it"
    ) as refused:
        checkpoints.newest()

    assert refused.value.exit_code == 5
    assert not canary.exists()


def test_metadata_that_would_run_code_of_torch_is_refused(make: Make, tmp_path: Path) -> None:
    checkpoints = make()
    save(checkpoints, 4)
    path, canary = tmp_path / "checkpoints/step-00000004", tmp_path / "canary"
    (path / ".metadata").write_bytes(pickle.dumps(TorchPayload(canary)))
    forge(path)

    with pytest.raises(IntegrityError, match=r"asks to load torch\.utils\.collect_env\.run"):
        checkpoints.newest()

    assert not canary.exists()


def test_a_payload_inside_real_metadata_is_refused(make: Make, tmp_path: Path) -> None:
    checkpoints = make()
    save(checkpoints, 4)
    path, canary = tmp_path / "checkpoints/step-00000004", tmp_path / "canary"
    content = pickle.loads((path / ".metadata").read_bytes())
    content.planner_data = Payload(canary)
    (path / ".metadata").write_bytes(pickle.dumps(content))
    forge(path)

    with pytest.raises(IntegrityError, match=r"asks to load posix\.system"):
        checkpoints.newest()

    assert not canary.exists()


def test_metadata_may_not_point_out_of_its_checkpoint(make: Make, tmp_path: Path) -> None:
    checkpoints = make()
    save(checkpoints, 4)
    path = tmp_path / "checkpoints/step-00000004"
    content = pickle.loads((path / ".metadata").read_bytes())
    for place in content.storage_data.values():
        place.relative_path = "../step-00000002/__0_0.distcp"
    (path / ".metadata").write_bytes(pickle.dumps(content))
    forge(path)

    with pytest.raises(IntegrityError, match=r"lies in '\.\./step-00000002/__0_0\.distcp'"):
        checkpoints.newest()


@pytest.mark.parametrize("content", [b"", b"\x80\x04.", b"(lp0\n.", pickle.dumps({"a": 1}), b"\x80\x04N."])
def test_metadata_of_another_kind_is_refused(make: Make, tmp_path: Path, content: bytes) -> None:
    save(make(), 4)
    path = tmp_path / "checkpoints/step-00000004"
    (path / ".metadata").write_bytes(content)

    with pytest.raises(IntegrityError, match="it is no checkpoint metadata"):
        read_metadata(path, {"__0_0.distcp"})


def test_pickled_tensors_are_read_as_weights_only(make: Make, tmp_path: Path) -> None:
    checkpoints = make()
    save(checkpoints, 4)
    path, canary = tmp_path / "checkpoints/step-00000004", tmp_path / "canary"
    content = pickle.loads((path / ".metadata").read_bytes())
    file = path / "__0_0.distcp"
    before = file.stat().st_size
    with file.open("ab") as end:
        torch.save(Payload(canary), end)
    for place in content.storage_data.values():
        place.offset, place.length = before, file.stat().st_size - before
    (path / ".metadata").write_bytes(pickle.dumps(content))
    forge(path)
    found = checkpoints.newest()
    assert found is not None

    with pytest.raises(IntegrityError, match="cannot be read"):
        checkpoints.load(found, {NAME: torch.zeros(12, 4)})

    assert not canary.exists()


def test_a_save_waits_for_the_one_before(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, running, most = write_tensors, [0], [0]

    def slow(*arguments: Any) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        threading.Event().wait(1.2)
        real(*arguments)
        running[0] -= 1

    monkeypatch.setattr(module, "write_tensors", slow)
    checkpoints = make()

    first = checkpoints.save(state_of(2), tensors_of(2))
    second = checkpoints.save(state_of(4), tensors_of(4))
    checkpoints.close()

    assert first < 0.6
    assert second > 0.9
    assert checkpoints.seconds == pytest.approx(first + second)
    assert most == [1]
    assert "for the checkpoint of step 2; raise pretrain.checkpoint_every" in caplog.text
    monkeypatch.undo()
    assert_newest(make(), 4)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    place = tmp_path / "checkpoints"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", place], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_leaves_the_generation_before(make: Make, small_disk: Path) -> None:
    checkpoints = make()
    save(checkpoints, 2)
    large = {**tensors_of(4), NAME: torch.ones(1000, 100)}

    checkpoints.save(state_of(4), large)

    with pytest.raises(
        PreflightError, match=r"disk full .* checkpoint of step 4 is not written and the one before"
    ):
        checkpoints.wait()
    assert [path.name for path in small_disk.iterdir()] == ["step-00000002"]
    assert_newest(checkpoints, 2)
    save(checkpoints, 6)  # the next one may fit again
    assert_newest(checkpoints, 6)


def test_a_disk_that_fails_is_worth_another_try(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    checkpoints = make()
    save(checkpoints, 2)
    monkeypatch.setattr(os, "fsync", fail)
    checkpoints.save(state_of(4), tensors_of(4))

    with pytest.raises(RetryableError, match=r"Input/output error.* step 4 is not written"):
        checkpoints.save(state_of(5), tensors_of(5))

    monkeypatch.undo()
    assert_newest(checkpoints, 2)


def test_a_disk_of_the_machine_that_fails_does_not_stop_training(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = make(own=True, optional=True)
    save(checkpoints, 2)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))

    save(checkpoints, 4)

    monkeypatch.undo()
    assert "the checkpoint of step 4 is not written" in caplog.text
    assert_newest(checkpoints, 2)


def test_whoever_waits_for_a_checkpoint_is_told_when_it_is_sealed(make: Make) -> None:
    told: list[State] = []

    save(make(on_saved=told.append), 3)

    assert told == [state_of(3)]


def test_a_roll_back_restores_what_was_copied() -> None:
    copies = MemoryCopies(keep=2)
    tensors = tensors_of(1)
    for step in (1, 2, 3):
        for name, tensor in tensors_of(step).items():
            tensors[name].copy_(tensor)
        copies.save(state_of(step), tensors)

    kept = copies.states
    copies.restore(state_of(2), tensors)

    assert kept == [state_of(3), state_of(2)]
    assert copies.states == [state_of(2)]
    assert all(torch.equal(tensors[name], tensor) for name, tensor in tensors_of(2).items())


def test_a_copy_in_memory_does_not_follow_training() -> None:
    copies = MemoryCopies(keep=1)
    tensors = tensors_of(1)
    copies.save(state_of(1), tensors)

    for tensor in tensors.values():
        tensor.zero_()
    copies.restore(state_of(1), tensors)

    assert all(torch.equal(tensors[name], tensor) for name, tensor in tensors_of(1).items())


def test_close_writes_what_is_left(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    checkpoints = make()
    checkpoints.save(state_of(1), tensors_of(1))

    checkpoints.close()

    assert_newest(make(), 1)
