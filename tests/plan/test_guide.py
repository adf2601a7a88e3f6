"""What the guide and the page about memory show is what the program does."""

import json
import re
import shlex
from pathlib import Path

import pytest

from anadil.cli.main import main
from anadil.plan.activations import saved_bytes
from anadil.plan.instances import machine
from anadil.plan.layout import Kernels, Layout, Recompute, Work
from tests.kit.plans import ONE

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "guides/plan.md").read_text(encoding="utf-8")
MEMORY = (DOCS / "concepts/memory.md").read_text(encoding="utf-8")


def test_the_example_of_a_price_file_is_one(tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text(re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)[0], encoding="utf-8")

    p5, rack = machine("p5.48xlarge", prices), machine("rack", prices)

    assert (p5.on_demand, p5.training_plan, p5.devices) == (57.2, 48.5, 8)
    assert p5.checked == "on demand 2026-11-20, our account; training plan not checked"
    assert (rack.device, rack.devices, rack.on_demand) == ("H100", 8, None)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The guide's `my.yaml`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANADIL_CACHE", str(tmp_path))
    main(["recipe", "copy", "azerbaijani-1b", "my.yaml"])
    capsys.readouterr()


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("command", "code"),
    [("anadil plan my.yaml", 0), ("anadil plan my.yaml --instance g5.xlarge --nodes 1", 4)],
)
def test_what_the_guide_shows_is_what_is_printed(
    command: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    begins = "my. Fits" if code == 0 else "error: pretrain does not fit"
    (shown,) = re.findall(rf"```text\n({begins}.*?)```", GUIDE, re.DOTALL)

    found = main(shlex.split(command)[1:])

    captured = capsys.readouterr()
    assert f"{command}\n" in GUIDE
    assert found == code
    assert " ".join(shown.split()) in " ".join((captured.out + captured.err).split())


@pytest.mark.usefixtures("mine")
def test_the_layout_that_the_guide_tries_is_one_of_those_that_it_chooses_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = next(line for line in GUIDE.splitlines() if "--set pretrain.parallelism" in line)
    main(["plan", "my.yaml", "-o", "json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["search"]["best"]}

    code = main([*shlex.split(command)[1:], "-o", "json"])

    plan = json.loads(capsys.readouterr().out)
    row = rows["HSDP 2 x 8"]
    assert code == 0
    assert "as here of `HSDP 2 x 8`" in GUIDE
    assert (plan["from"], plan["layout"]["name"]) == ("recipe", "HSDP 2 x 8")
    assert {key: row[key] for key in plan["layout"] if key in row} == {
        key: value for key, value in plan["layout"].items() if key in row
    }
    assert {phase["memory"]["verdict"] for phase in plan["phases"]} == {"fits"}


@pytest.mark.parametrize("kernels", ["torch", "liger"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_the_table_of_activations_is_what_is_computed(kernels: Kernels, recompute: Recompute) -> None:
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", MEMORY, re.MULTILINE)
    terms = next(row[2:] for row in rows if row[1] == recompute and row[0].lower() in (kernels, "both"))
    layout = Layout(recompute=recompute)

    found = [
        saved_bytes(ONE, Work(sequence_length=2_048, state=state, kernels=kernels), layout)
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

    more = saved_bytes(ONE, packed, Layout()) - saved_bytes(ONE, work, Layout())

    assert "A mask, as transformers makes one, would cost 4 (h - k) + 2S more" in MEMORY
    assert more == 4 * (ONE.hidden - ONE.kv_width) + 2 * 2_048
