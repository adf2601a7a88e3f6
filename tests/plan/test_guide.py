"""What the guide and the page about memory show is what the program does."""

import json
import re
import shlex
from pathlib import Path

import pytest

from anadil.cli import main
from anadil.plan.activations import kept
from anadil.plan.layout import Kernels, Layout, Recompute, Work
from anadil.plan.machine import machine
from anadil.plan.shape import KNOWN, shape_from

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "guides/plan.md").read_text(encoding="utf-8")
MEMORY = (DOCS / "concepts/memory.md").read_text(encoding="utf-8")
ONE = shape_from(KNOWN["meta-llama/Llama-3.2-1B"], "1B")


def test_the_example_of_a_price_file_is_one(tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text(re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)[0], encoding="utf-8")

    p5, rack = machine("p5.48xlarge", prices), machine("rack", prices)

    assert (p5.on_demand, p5.training_plan, p5.devices) == (57.2, 48.5, 8)
    assert p5.checked == "on demand 2026-11-20, our account; training plan not checked"
    assert (rack.device, rack.devices, rack.on_demand) == ("H100", 8, None)


def test_the_layout_that_the_guide_tries_is_one_that_the_trainer_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANADIL_CACHE", str(tmp_path))
    command = next(line for line in GUIDE.splitlines() if "--set pretrain.micro_batch_size" in line)
    main(["recipe", "copy", "azerbaijani-1b", "my.yaml"])
    capsys.readouterr()

    code = main([*shlex.split(command)[1:], "-o", "json"])

    plan = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (plan["from"], plan["layout"]["name"]) == ("recipe", "DDP 16")
    assert {phase["memory"]["verdict"] for phase in plan["phases"]} == {"fits"}


@pytest.mark.parametrize("kernels", ["torch", "liger"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_the_table_of_activations_is_what_is_computed(kernels: Kernels, recompute: Recompute) -> None:
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", MEMORY, re.MULTILINE)
    terms = next(row[2:] for row in rows if row[1] == recompute and row[0].lower() in (kernels, "both"))
    layout = Layout(recompute=recompute)

    found = [
        kept(ONE, Work(sequence_length=2_048, state=state, kernels=kernels), layout)
        for state in ("bf16", "fp32")
    ]

    assert found == [_value(each) for each in terms]


def _value(terms: str) -> float:
    """Bytes of a sum such as 20h + 4k + 8."""
    widths = {"h": ONE.hidden, "k": ONE.kv_width, "f": ONE.intermediate, "H": ONE.heads, "": 1}
    return float(sum(int(count) * widths[unit] for count, unit in re.findall(r"(\d+)([a-zH]?)", terms)))


def test_a_mask_costs_what_the_page_says() -> None:
    work = Work(sequence_length=2_048)
    packed = Work(sequence_length=2_048, packed=True)

    more = kept(ONE, packed, Layout()) - kept(ONE, work, Layout())

    assert "4 (h - k) + 2S more" in MEMORY
    assert more == 4 * (ONE.hidden - ONE.kv_width) + 2 * 2_048
