import json
import re
import shlex
from pathlib import Path

import pytest

from anadil.cli.main import main
from anadil.core.errors import PreflightError
from anadil.core.format import GIB, MIB, human_bytes
from anadil.core.stages import STAGES
from anadil.estimate.activations import saved_bytes
from anadil.estimate.fit import layout_fit
from anadil.estimate.instances import machine, this_machine
from anadil.estimate.layout import Kernels, Layout, Recompute, Work, layout_of, work_of
from anadil.estimate.model_shape import trained_shape
from anadil.preflight.memory import MAX_REMEDIES, check_finetune, check_fits
from anadil.preflight.services import check_shared
from anadil.recipe.load import load_recipe
from tests.kit.plans import ONE
from tests.plan.conftest import answers

A100 = "NVIDIA A100-SXM4-40GB, 40960"
WHOLE = ["pretrain.micro_batch_size=28", "pretrain.activation_checkpointing=none"]
LINE = re.compile(r"  ((?:--set \S+ ?)+) \((.+)\)")
COPIES = "pretrain.parallelism.shard=1"
"""A copy of the 1B model leaves no room on 40 GB for the recipe's micro-batch of 14."""
S3 = "s3://my-bucket/anadil"
MANY = "pretrain.parallelism={shard: 1, tensor: 8}"
COPIES_OF_ALL = "pretrain.parallelism={shard: 1}"
ARCHIVE = f"pretrain.copies.archive={S3}/archive"
NOWHERE = "cluster.work=null"
DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "guides/plan.md").read_text(encoding="utf-8")
MEMORY = (DOCS / "concepts/memory.md").read_text(encoding="utf-8")


def refused(name: str, overrides: list[str], *, here: bool) -> str:
    with pytest.raises(PreflightError) as error:
        check_fits(load_recipe(name, overrides), here=here)
    assert error.value.exit_code == 4
    return str(error.value)


def remedies(text: str) -> list[tuple[list[str], str]]:
    """Overrides and bytes of each line after the first."""
    found = [LINE.fullmatch(line) for line in text.splitlines()[1:]]
    return [(match[1].replace("--set ", "").split(), match[2]) for match in found if match]


def test_a_refusal_names_model_layout_need_and_device() -> None:
    text = refused("azerbaijani-1b", [COPIES], here=False)

    recipe, kind = load_recipe("azerbaijani-1b", [COPIES]), machine("p4d.24xlarge")
    need, _ = layout_fit(trained_shape(recipe), layout_of(recipe, kind, 2), work_of(recipe, kind), kind)
    assert text.splitlines()[0] == (
        "pretrain does not fit: meta-llama/Llama-3.2-1B (1.18B parameters), DDP 16, micro-batch 14 of "
        f"2,048 tokens, needs {human_bytes(need)} on a device that has 39.4 GiB (p4d.24xlarge, A100 40 GB); "
        "what fits instead:"
    )


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("azerbaijani-1b", [COPIES]),
        ("azerbaijani-1b", [COPIES, "pretrain.state=bf16", "pretrain.kernels=torch", "cluster.nodes=1"]),
        ("azerbaijani-8b", ["cluster.instance=g5.48xlarge"]),
        ("azerbaijani-8b", ["pretrain.parallelism={shard: 2, tensor: 4}", *WHOLE]),
        ("japanese-70b", ["cluster.nodes=2", "pretrain.parallelism.shard=16"]),
    ],
    ids=["1B", "1B, bf16", "8B on A10G", "8B, TP 4", "70B, few machines"],
)
def test_what_a_refusal_offers_fits_when_it_is_set(name: str, overrides: list[str]) -> None:
    text = refused(name, overrides, here=False)

    offered = remedies(text)

    assert 0 < len(offered) <= MAX_REMEDIES
    assert len(offered) == len(text.splitlines()) - 1
    for settings, need in offered:
        line = check_fits(load_recipe(name, [*overrides, *settings]), here=False)
        assert line.startswith(f"pretrain needs {need} of ")
        assert line.endswith("(fits)")


def test_what_is_offered_for_this_machine_fits_on_it(driver: Path) -> None:
    answers(driver, *[A100] * 8)
    text = refused("azerbaijani-1b", [COPIES], here=True)

    offered = remedies(text)

    assert "(local, A100 40 GB)" in text
    assert offered
    for settings, need in offered:
        line = check_fits(load_recipe("azerbaijani-1b", [COPIES, *settings]), here=True, then=())
        assert line == f"pretrain needs {need} of 39.4 GiB per device (fits)"


def test_a_model_that_no_setting_makes_fit_says_so(driver: Path) -> None:
    answers(driver, "NVIDIA A10G, 23028")

    text = refused("japanese-70b", [COPIES], here=True)

    assert text.endswith("; no setting makes it fit: take a smaller base.model or a larger machine")
    assert "\n" not in text


def test_a_machine_that_is_large_enough_says_one_line(driver: Path) -> None:
    line = check_fits(load_recipe("smoke"), here=True, then=())

    assert not driver.exists()
    assert re.fullmatch(r"pretrain needs [\d.]+ MiB of [\d.]+ GiB per device \(fits\)", line)


def test_a_stage_in_front_of_training_is_named_once() -> None:
    written = [
        "sources.own={written_by: base, tokens: 1M}",
        "pretrain.phases.1.mix={az: .8, en: .1, own: .1}",
    ]

    line = check_fits(load_recipe("smoke", written), here=True, then=STAGES)

    assert line.count("replay needs") == 1


def test_a_recipe_without_a_machine_type_is_for_this_machine(driver: Path) -> None:
    answers(driver, A100)
    recipe = load_recipe("smoke")

    assert recipe.cluster.instance is None
    assert check_fits(recipe, here=False) == check_fits(recipe, here=True)
    assert "of 39.4 GiB per device" in check_fits(recipe, here=False)


def test_a_tight_fit_is_no_refusal(driver: Path) -> None:
    answers(driver, "NVIDIA A100-SXM4-80GB, 81920")
    recipe = load_recipe("azerbaijani-1b", [COPIES, "pretrain.micro_batch_size=2"])
    kind = this_machine()
    need, word = layout_fit(trained_shape(recipe), layout_of(recipe, kind, 1), work_of(recipe, kind), kind)
    assert word == "fits"
    outside = 1.5 * GIB
    memory = (outside + (need - outside) / 0.965 + 0.6 * GIB) / MIB
    answers(driver, f"NVIDIA A100-SXM4-80GB, {memory:.0f}")

    assert check_fits(recipe, here=True, then=()).endswith("per device (tight)")


@pytest.mark.parametrize("name", ["azerbaijani-1b", "azerbaijani-8b", "japanese-1b", "japanese-70b"])
def test_a_shipped_recipe_fits_its_machines_and_has_a_place_for_its_checkpoints(name: str) -> None:
    recipe = load_recipe(name)

    assert check_fits(recipe, here=False).endswith("(fits)")
    check_shared(recipe, str(recipe.storage.root), recipe.cluster.backend)
    check_shared(recipe, str(recipe.storage.root), "trainjob")


def test_a_type_that_is_trained_but_not_planned_is_not_refused(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "vocab_size": 512,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "diffllama", **sizes}), encoding="utf-8")
    recipe = load_recipe("smoke", [f"base.model={tmp_path}"])
    settings = ("cluster.instance=p5.48xlarge", "pretrain.parallelism.pipeline=2", "pretrain.batch_size=64")
    cut = load_recipe("smoke", [f"base.model={tmp_path}", *settings])

    assert check_fits(recipe, here=True).startswith("the memory of pretrain is not checked: base.model")
    assert "'diffllama' is not planned" in check_finetune(recipe, here=True)
    with pytest.raises(
        PreflightError, match=r"pretrain\.parallelism\.pipeline: 2 is not proven for .* 'diffllama'"
    ):
        check_fits(cut, here=False)


def unshared(*overrides: str, backend: str = "pytorchjob") -> str:
    with pytest.raises(PreflightError) as error:
        check_shared(load_recipe("azerbaijani-1b", overrides), S3, backend)
    return str(error.value)


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ([], "pretrain.parallelism.shard=16"),
        ([MANY], "pretrain.parallelism.tensor=8"),
        ([COPIES_OF_ALL, ARCHIVE], "pretrain.copies.archive"),
        ([ARCHIVE], "pretrain.parallelism.shard=16, pretrain.copies.archive"),
    ],
)
def test_checkpoints_that_all_machines_need_have_to_have_a_place(settings: list[str], keys: str) -> None:
    text = unshared(*settings, NOWHERE)

    assert text == (
        f"cluster.work: not set, and beside {S3} each of the 2 machines (cluster.nodes) would keep checkpoints in its "
        f"own pod, but pretrain needs a directory that all machines see ({keys}); put cluster.work on a volume that "
        "they all mount, such as cluster.volumes=[{claim: fsx, path: /fsx}] and cluster.work=/fsx/work"
    )


def test_sagemaker_has_no_such_place_whatever_the_recipe_names() -> None:
    text = unshared(backend="sagemaker")

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
        ([NOWHERE, COPIES_OF_ALL], S3, "pytorchjob"),
        ([COPIES_OF_ALL], S3, "sagemaker"),
    ],
)
def test_machines_that_share_a_place_or_need_none_are_fine(
    settings: list[str], target: str, backend: str
) -> None:
    check_shared(load_recipe("azerbaijani-1b", settings), target, backend)


def test_machines_that_finetune_together_share_a_place_too() -> None:
    recipe = load_recipe("azerbaijani-1b", [NOWHERE, COPIES_OF_ALL, "finetune.batch_size=16"])

    with pytest.raises(PreflightError, match=r"but finetune needs a directory .*\(finetune\.batch_size=16\)"):
        check_shared(recipe, S3, "pytorchjob", "finetune", 2)
    check_shared(recipe, S3, "pytorchjob", "finetune", 1)


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
