"""Machine types: the table, a file over it, and the machine at hand."""

import os
import re
from pathlib import Path

import pytest

from anadil.core.errors import RecipeError
from anadil.core.format import GIB, MIB
from anadil.estimate.instances import (
    DRIVER_BYTES,
    Machine,
    cpu_speed,
    machine,
    machines,
    ram_bytes,
    this_machine,
)
from tests.plan.conftest import answers

V1 = {"memory/job/memory.limit_in_bytes": 64 * MIB, "memory/memory.limit_in_bytes": 2**63 - 4096}


def prices(folder: Path, text: str) -> Path:
    path = folder / "prices.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(folder: Path, text: str) -> str:
    with pytest.raises(RecipeError) as caught:
        machines(prices(folder, text))
    return str(caught.value).replace(str(folder), "")


def test_bandwidths_of_a_p5_are_of_one_direction_and_in_bytes() -> None:
    p5 = machine("p5.48xlarge")

    assert (p5.device, p5.devices, p5.efa) == ("H100", 8, 32)
    assert p5.nvlink == 450e9
    assert p5.network == 400e9
    assert p5.hbm == 3.35e12
    assert p5.memory_bytes == pytest.approx(79.1 * GIB, abs=1)
    assert p5.on_demand == 55.04
    assert p5.checked == "on demand 2026-11-09, price comparison by GPU-hour (6.88 x 8)"


def test_a_price_that_is_not_known_is_none_and_devices_without_nvlink_talk_over_pcie() -> None:
    assert (machine("p5e.48xlarge").on_demand, machine("p5e.48xlarge").checked) == (None, "")
    assert machine("p4d.24xlarge").memory_bytes == int(39.4 * GIB)
    assert machine("g6e.48xlarge").nvlink == 31.5e9


@pytest.mark.parametrize("each", machines(), ids=lambda each: each.name)
def test_every_type_of_the_table_has_what_a_plan_divides_by(each: Machine) -> None:
    rates = (each.flops_bf16, each.hbm, each.nvlink, each.network)

    assert min(rates) > 0
    assert each.memory_bytes > 20 * GIB
    assert each.on_demand is None or 1 < each.on_demand < 200


def test_an_unknown_type_is_named_with_the_nearest_and_all_others() -> None:
    with pytest.raises(RecipeError) as caught:
        machine("p5.48xlrge")

    assert str(caught.value) == (
        "cluster.instance: unknown machine type 'p5.48xlrge'; did you mean 'p5.48xlarge'? Known are "
        "p4d.24xlarge, p4de.24xlarge, p5.48xlarge, p5e.48xlarge, p5en.48xlarge, p6-b200.48xlarge, "
        "p6-b300.48xlarge, g5.xlarge, g5.48xlarge, g6e.48xlarge; describe another one in a file for --prices"
    )


def test_a_file_changes_only_the_cells_that_it_gives(tmp_path: Path) -> None:
    path = prices(
        tmp_path,
        "p5.48xlarge:\n  training_plan: {usd_per_hour: 31.46, checked: 2026-11-20, source: quote 17}\n",
    )

    p5 = machine("p5.48xlarge", path)

    assert (p5.training_plan, p5.on_demand, p5.nvlink) == (31.46, 55.04, 450e9)
    assert p5.checked.endswith("; training plan 2026-11-20, quote 17")
    assert machine("p4d.24xlarge", path) == machine("p4d.24xlarge")


def test_a_new_price_does_not_keep_the_old_date(tmp_path: Path) -> None:
    p5 = machine("p5.48xlarge", prices(tmp_path, "p5.48xlarge: {on_demand: 40}"))

    assert p5.on_demand == 40
    assert p5.checked == "on demand not checked"


def test_every_mistake_of_a_file_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    text = """p5.48xlarge:
  devices: eight
  vcpu: 192
  on_demand: -1
  spot: {usd: 20}
p5en.48xlarge:
  on_demand: {usd_per_hour: 60, checked: last week}
p4d.24xlarg:
  on_demand: 20
g5.xlarge: cheap
"""

    told = mistakes(tmp_path, text)

    lines = told.splitlines()
    assert lines[0] == "/prices.yaml: 8 mistakes"
    assert '  line 2: p5.48xlarge.devices: must be a whole number (got "eight")' in lines
    assert any(
        line.startswith("  line 3: p5.48xlarge.vcpu: unknown key; did you mean 'vcpus'? Keys are device, ")
        for line in lines
    )
    assert "  line 4: p5.48xlarge.on_demand.usd_per_hour: must be above 0 (got -1)" in lines
    assert '  line 5: p5.48xlarge.spot.usd_per_hour: is missing (got {"usd": 20})' in lines
    assert any(line.startswith("  line 5: p5.48xlarge.spot.usd: unknown key") for line in lines)
    assert (
        "  line 7: p5en.48xlarge.on_demand.checked: write the date as 2026-11-09 or 2026-11 "
        '(got "last week")' in lines
    )
    assert any(
        re.fullmatch(
            r"  line 8: p4d.24xlarg: not in the table; did you mean 'p4d.24xlarge'\? "
            r"A new type needs device, .*ram_gib",
            line,
        )
        for line in lines
    )
    assert any(line.startswith("  line 10: g5.xlarge: must be a table of keys") for line in lines)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- p5.48xlarge\n", "holds list, not a table of machine types"),
        ("p5.48xlarge: {on_demand: 1, on_demand: 2}", "key 'on_demand' is given twice"),
        ("p5.48xlarge: {on_demand: .inf}", "must be"),
        ("p5.48xlarge: {on_demand: true}", "must be"),
        ("p5.48xlarge: {bf16_tflops: 0}", "must be above 0"),
        ("p5.48xlarge: {hbm_gb_per_s: null}", "must be a number (got null)"),
        ("p5.48xlarge: [", "not YAML"),
        (
            "p5.48xlarge: {on_demand: 60.5}\nml.p5.48xlarge: {on_demand: 70.5}",
            "ml.p5.48xlarge and p5.48xlarge are one machine type; leave one of the two out",
        ),
    ],
)
def test_a_file_that_cannot_be_a_table_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    told = mistakes(tmp_path, text)

    assert told.startswith("/prices.yaml: ")
    assert reason in told


def test_a_file_that_is_not_there_is_a_recipe_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"--prices .*none\.yaml: cannot be read"):
        machines(tmp_path / "none.yaml")


def groups(folder: Path, membership: str, limits: dict[str, object]) -> int:
    """Bytes of memory under a tree of control groups."""
    for name, text in limits.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="ascii")
    own = folder / "own"
    own.write_text(membership, encoding="ascii")
    return ram_bytes(folder / "cgroup", own)


@pytest.mark.parametrize(
    ("membership", "limits"),
    [
        ("0::/pod/app\n", {"pod/app/memory.max": "max", "pod/memory.max": 64 * MIB, "memory.max": 128 * MIB}),
        ("0::/host/only\n", {"memory.max": 64 * MIB}),
        ("5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n", V1),
        ("0::/pod\n", {"../memory.max": 32 * MIB, "memory.max": 64 * MIB}),
    ],
    ids=["least above", "path of the host", "version 1", "file above the tree"],
)
def test_the_memory_of_a_container_is_the_least_limit_above_it(
    tmp_path: Path, membership: str, limits: dict[str, object]
) -> None:
    assert groups(tmp_path, membership, limits) == 64 * MIB


def test_a_machine_without_a_gpu_is_its_cpu(driver: Path) -> None:
    here = this_machine()

    assert not driver.exists()
    assert (here.name, here.device, here.devices) == ("local", "CPU", 1)
    assert here.memory_bytes == here.ram_bytes == ram_bytes()
    assert (here.flops_bf16, here.hbm) == cpu_speed()
    assert (here.on_demand, here.network) == (None, 0)


def test_gpus_that_the_table_knows_have_its_peaks_and_their_own_memory(driver: Path) -> None:
    answers(driver, *["NVIDIA A100-SXM4-80GB, 81920"] * 2)

    here = this_machine()

    assert (here.device, here.devices, here.flops_bf16) == ("A100 80 GB", 2, 312e12)
    assert here.hbm == machine("p4de.24xlarge").hbm
    assert here.memory_bytes == 81_920 * MIB - DRIVER_BYTES


@pytest.mark.parametrize("name", ["NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA GeForce RTX 4090"])
def test_the_speed_of_a_gpu_that_the_table_does_not_know_is_not_made_up(
    driver: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    answers(driver, f"{name}, 24564")

    here = this_machine()

    assert here.device == name.removeprefix("NVIDIA ")
    assert (here.flops_bf16, here.hbm, here.nvlink) == (0, 0, 0)
    assert here.memory_bytes == 24_564 * MIB - DRIVER_BYTES
    assert "its speed is not known, so no time can be predicted" in caplog.text


def test_a_driver_that_fails_leaves_the_cpu_and_says_so(
    driver: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers(driver, "NVIDIA-SMI has failed because it could not communicate with the driver", code=9)

    here = this_machine()

    assert here.device == "CPU"
    assert "nvidia-smi does not answer" in caplog.text


def test_only_visible_gpus_are_asked_for(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(driver, "NVIDIA H200, 143771")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")

    assert this_machine().device == "H200"

    assert driver.with_name("nvidia-smi.asked").read_text() == "--id=3\n"


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_do_not_count(driver: Path, monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    answers(driver, "NVIDIA H200, 143771")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)

    assert this_machine().device == "CPU"


def test_sagemaker_and_hyperpod_call_a_type_by_another_name(tmp_path: Path) -> None:
    assert machine("ml.p5.48xlarge") == machine("p5.48xlarge")
    with pytest.raises(
        RecipeError, match=r"unknown machine type 'ml\.p5\.48xlarg'; did you mean 'p5\.48xlarge'"
    ):
        machine("ml.p5.48xlarg")

    given = prices(tmp_path, "ml.p5.48xlarge: {on_demand: 60.5}\n")

    assert machine("p5.48xlarge", given).on_demand == machine("ml.p5.48xlarge", given).on_demand == 60.5
    assert [each.name for each in machines(given)] == [each.name for each in machines()]


def test_where_a_process_has_no_set_of_cpus_all_count(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 12)

    assert not driver.exists()
    assert this_machine().vcpus == 12
