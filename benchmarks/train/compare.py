"""Anadil's trainer beside transformers' Trainer and TRL's SFTTrainer: tokens, memory, losses.

Each trainer runs in a process of its own on the same weights, sequences and optimizer settings;
repetitions take turns, so that what else the machine does falls on all of them.

OMP_NUM_THREADS=1 python benchmarks/train/compare.py
OMP_NUM_THREADS=1 python benchmarks/train/compare.py --precision bf16 --batch 1 --steps 1 --warmup 1
python benchmarks/train/compare.py --device cuda   # Llama 3.2 1B in BF16
python benchmarks/train/compare.py --device cuda --largest
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from given import Given, config_of

from anadil.core.format import GIB
from anadil.estimate.instances import this_machine
from anadil.estimate.layout import Layout, Work
from anadil.estimate.memory import peak_memory
from anadil.estimate.model_shape import KNOWN, shape_from
from anadil.estimate.speed import speed

ONE = Path(__file__).with_name("one.py")
OURS, THEIRS = "anadil", "transformers"
TRAINERS = (OURS, THEIRS, "trl")
WITH_LIGER_OR_NOT = ("anadil-torch", "transformers-liger")
"""On a GPU Liger's kernels are anadil's default and not transformers'; here it is the other way round."""
COMPILED = ("anadil-compile", "anadil-fp8")
"""Rows that run where they are named."""
NO_TORCHTITAN = (
    "torchtitan is left out: the Trainer of 0.3.0 takes one step with torch 2.13.0, and then asks torch.distributed for "
    "set_timeout, which that torch lacks"
)
OUT_OF_MEMORY = ("out of memory", "cublas_status_alloc_failed")
CONTEXT = 2_048
ON_GPU = "meta-llama/Llama-3.2-1B"
MOST = 256
"""Largest batch that is tried."""
Figures = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    """The command line; sizes default to those of `Given`, or on a GPU to those of Llama 3.2 1B."""
    arguments = argparse.ArgumentParser(description="Compare trainers on the same steps.")
    arguments.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments.add_argument("--precision", choices=("fp32", "bf16"), help="fp32 on a CPU, bf16 on a GPU")
    text = f"default: {' '.join(TRAINERS)}; on a GPU also {' '.join(WITH_LIGER_OR_NOT)}"
    arguments.add_argument(
        "--trainers", nargs="+", choices=(*TRAINERS, *WITH_LIGER_OR_NOT, *COMPILED), help=text
    )
    for name in ("vocabulary", "hidden", "intermediate", "layers", "batch", "length", "warmup", "steps"):
        arguments.add_argument(f"--{name}", type=int)
    arguments.add_argument("--model", default=ON_GPU, help="whose sizes a GPU gets; default: %(default)s")
    arguments.add_argument("--text", nargs="+", help="documents as JSON lines, instead of the built-in ones")
    arguments.add_argument("--repeat", type=int, default=3, help="runs of each trainer")
    arguments.add_argument("--largest", action="store_true", help="find the largest batch that fits instead")
    arguments.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return arguments


def given_of(asked: argparse.Namespace) -> Given:
    """Settings that each trainer is given."""
    given = Given()
    if asked.device == "cuda":
        shape = shape_from(KNOWN[asked.model], asked.model)
        given = Given(
            device="cuda",
            precision="bf16",
            vocabulary=shape.vocabulary,
            hidden=shape.hidden,
            intermediate=shape.intermediate,
            layers=shape.layers,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            tied=shape.tied,
            length=CONTEXT,
            steps=10,
            warmup=3,
        )
    chosen = {name: value for name, value in vars(asked).items() if name in Given.__slots__ and value}
    if asked.text:
        chosen["text"] = tuple(asked.text)
    return replace(given, **chosen)


def run(name: str, given: Given) -> Figures:
    """The figures of one run of a trainer.

    Raises:
        CalledProcessError: It failed; what it said is on stderr.
    """
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    # transformers takes all GPUs (DataParallel), anadil one: each trainer gets the first that is visible.
    environment["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    done = subprocess.run(
        [sys.executable, str(ONE), name, given.dumps()],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        sys.stderr.write(done.stderr)
        done.check_returncode()
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def planned(name: str, given: Given) -> Figures | None:
    """The planner's rate and memory for one of anadil's rows that compute in BF16 or FP32."""
    if not name.startswith(OURS) or name == "anadil-fp8":
        return None
    machine, on_gpu = this_machine(), given.device == "cuda"
    shape = shape_from(config_of(given).to_dict(), name)
    work = Work(
        sequence_length=given.length,
        compute="bf16" if given.precision == "bf16" else "fp32",
        kernels="liger" if on_gpu and name != "anadil-torch" else "torch",
    )
    layout = Layout(micro_batch_size=given.batch)
    return {
        "tokens_per_s": speed(shape, layout, work, machine, 1).tokens_per_s,
        "peak_gib": peak_memory(shape, layout, work).allocated / GIB,
    }


def median(runs: list[Figures], name: str) -> float:
    """Median of one figure over the runs of a trainer."""
    return float(statistics.median(run[name] for run in runs))


def difference(ours: Figures, theirs: Figures) -> float:
    """The largest difference of two loss curves, as a share of the loss."""
    pairs = zip(ours["losses"], theirs["losses"], strict=True)
    return float(max(abs(one - other) / other for one, other in pairs))


def table(runs: dict[str, list[Figures]], given: Given) -> str:
    """A Markdown table; ratios are medians over pairs of runs that followed each other."""
    on_gpu = given.device == "cuda"
    rate = "tokens_per_s" if on_gpu else "tokens_per_cpu_s"
    peak = "gpu_peak_mib" if on_gpu else "peak_mib"
    reference = runs.get(THEIRS) or next(iter(runs.values()))
    head = ["trainer", "tokens/CPU s", "tokens/s", "x", "peak MiB", "x", "over libraries MiB", "loss differs"]
    lines = [f"| {' | '.join([*head, 'MFU %'] if on_gpu else head)} |"]
    lines.append("|" + "---|" * (len(head) + on_gpu))
    for name, each in runs.items():
        pairs = list(zip(each, reference, strict=True))
        cells = [
            name,
            f"{median(each, 'tokens_per_cpu_s'):.0f}",
            f"{median(each, 'tokens_per_s'):.0f}",
            f"{statistics.median(one[rate] / other[rate] for one, other in pairs):.2f}",
            f"{median(each, peak):.0f}",
            f"{statistics.median(one[peak] / other[peak] for one, other in pairs):.2f}",
            f"{median(each, 'over_baseline_mib'):.0f}",
            f"{max(difference(one, other) for one, other in pairs):.1e}",
        ]
        if on_gpu:
            cells.append(f"{100 * utilization(median(each, 'tokens_per_s'), given):.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def utilization(tokens_per_s: float, given: Given) -> float:
    """MFU of the model on this machine's device, by the peaks of the planner's table.

    Counts 6 FLOPs a parameter and token and 12 * layers * hidden * context for attention.

    Source: Chowdhery et al. 2022, "PaLM", arXiv:2204.02311, appendix B.
    """
    shape = shape_from(config_of(given).to_dict(), ON_GPU)
    flops_per_token = 6 * shape.parameters + 12 * shape.layers * shape.hidden * given.length
    return tokens_per_s * flops_per_token / this_machine().flops_bf16


def largest_batch(name: str, given: Given) -> int:
    """The most sequences of a step that fit on the device: doubled until one fails, then halved in."""

    def fits(batch: int) -> bool:
        try:
            run(name, replace(given, batch=batch, warmup=1, steps=1))
        except subprocess.CalledProcessError as error:
            if not any(word in error.stderr.lower() for word in OUT_OF_MEMORY):
                raise
            return False
        return True

    good, bad = 0, 1
    while bad <= MOST and fits(bad):
        good, bad = bad, 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def main() -> int:
    """Print the comparison; the exit code is 1 if a trainer is left out."""
    asked = parser().parse_args()
    given = given_of(asked)
    names = asked.trainers or [*TRAINERS, *(WITH_LIGER_OR_NOT if asked.device == "cuda" else ())]
    print(NO_TORCHTITAN, file=sys.stderr)
    if asked.largest:
        print("| trainer | largest batch |\n|---|---|")
        for name in names:
            print(f"| {name} | {largest_batch(name, given)} |", flush=True)
        return 0
    runs: dict[str, list[Figures]] = {name: [] for name in names}
    for number in range(asked.repeat):
        for name in list(runs):
            try:
                runs[name].append(run(name, given) | {"planned": planned(name, given)})
            except subprocess.CalledProcessError as error:
                # The others' figures cost minutes.
                print(f"{name} is left out: {error}", file=sys.stderr)
                del runs[name]
                continue
            print(f"run {number + 1} of {name}: {shown(runs[name][-1])}", file=sys.stderr)
    if runs:
        print(json.dumps(runs) if asked.output == "json" else table(runs, given))
    return int(len(runs) < len(names))


def shown(figures: Figures) -> str:
    """One run, for whoever waits."""
    return f"{figures['tokens_per_cpu_s']:.0f} tokens/CPU s, {figures['peak_mib']:.0f} MiB"


if __name__ == "__main__":
    sys.exit(main())
