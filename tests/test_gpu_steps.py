"""`make gpu`: a lost machine loses one step, and nothing that failed is shown as if whole."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import measure
from benchmarks.gpu.measure import Step

FIGURES = {
    "anadil": [
        {"tokens_per_s": 12_345.6, "peak_mib": 512.0, "gpu_peak_mib": None, "planned": None, "graphs": 1}
    ]
}


def step(code: str, **more: Any) -> Step:
    return Step(shows="something", **{"minutes": 1, "on_gpu": (), "on_cpu": ("-c", code), **more})


def run(folder: Path, *more: str) -> tuple[int, dict[str, Any], str]:
    code = measure.main(["--device", "cpu", "--out", str(folder), *more])
    record = json.loads((folder / "cpu.json").read_text())
    return code, record["steps"], (folder / "cpu.md").read_text()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Step]:
    count = f"open({str(tmp_path / 'runs')!r}, 'a').write('x')"
    made = {
        "good": step(f"import json; {count}; print(json.dumps({FIGURES}).replace('None', 'null'))"),
        "bad": step("import sys; print('| half |'); sys.exit('out of memory')"),
    }
    monkeypatch.setattr(measure, "STEPS", made)
    # Uncommitted edits of another test are no other machine.
    monkeypatch.setattr(measure, "environment", lambda _: {**MACHINE})
    return made


MACHINE = {
    "card": "CPU", "devices": 0, "memory_gib": 0.0, "python": "3.11", "commit": "abc", "pinned": "2.13.0",
    "packages": {"torch": "2.13.0+cpu"},
}  # fmt: skip


@pytest.mark.usefixtures("steps")
def test_a_step_that_fails_keeps_the_others_figures_and_says_why(tmp_path: Path) -> None:
    code, done, page = run(tmp_path)

    assert code == 1
    assert done["good"]["figures"] == FIGURES
    assert (done["bad"]["finished"], done["bad"]["exit_code"]) == (False, 1)
    assert "| anadil | 12,346 |  | 0.50 |  | 1 |" in page
    assert "**It ended with exit code 1.**" in page
    assert "out of memory" in page
    assert "pins" not in page


def test_a_finished_step_is_repeated_for_another_machine_alone(
    steps: dict[str, Step], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        run(tmp_path)
    assert (tmp_path / "runs").read_text() == "x"

    run(tmp_path, "--again", "--only", "good")
    assert (tmp_path / "runs").read_text() == "xx"

    newer = {**MACHINE, "packages": {"torch": "2.14.0"}}
    monkeypatch.setattr(measure, "environment", lambda _: newer)
    _, done, page = run(tmp_path, "--only", "good")
    assert (tmp_path / "runs").read_text() == "xxx"
    assert list(done) == ["good"], "figures of other packages do not stand beside these"
    assert "**torch 2.14.0 ran, and the project pins 2.13.0.**" in page
    assert "Not run." in page
    assert len(steps) == 2


def ends(process: int) -> bool:
    """True if a process is gone, or a zombie, within ten seconds: the kernel ends it when it gets a CPU."""
    for _ in range(100):
        try:
            if "zombie" in Path("/proc", str(process), "status").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.1)
    return False


def test_a_step_that_hangs_ends_with_its_children(tmp_path: Path, steps: dict[str, Step]) -> None:
    child = tmp_path / "child"
    steps["hangs"] = step(
        "import subprocess, sys, time; "
        f"p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); open({str(child)!r}, 'w').write(str(p.pid)); "
        "time.sleep(60)",
        minutes=0.1,
    )

    code, done, page = run(tmp_path, "--only", "hangs")

    assert (code, done["hangs"]["exit_code"]) == (1, None)
    assert "It ran out of time." in page
    assert ends(int(child.read_text()))


def test_time_that_is_over_and_memory_that_lacks_are_said(tmp_path: Path, steps: dict[str, Step]) -> None:
    _, done, page = run(tmp_path, "--minutes", "0.1", "--only", "good")

    assert done["good"] == {"left_out": "no time was left; call again for this step alone"}
    assert "Left out: no time was left" in page
    small = {**MACHINE, "card": "NVIDIA T4", "devices": 1, "memory_gib": 15.6}
    reason = measure.reason_to_leave_out(step("", gib=40), small, 1_000)
    assert reason == "it takes a device of 40 GiB, and this one has 15.6 GiB"
    assert "good" in steps


def test_a_machine_without_a_gpu_is_told_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    assert measure.main(["--out", str(tmp_path / "out")]) == 2

    said = capsys.readouterr().err
    assert "--device cpu" in said
    assert f"no CUDA device for {', '.join(measure.STEPS)};" in said
    assert not (tmp_path / "out").exists()
