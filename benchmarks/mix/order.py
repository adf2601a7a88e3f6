"""Order of a training on several sources: realised shares, kills and resumes, cost of losses by source.

python benchmarks/mix/order.py [--kills 20] [--seed 0]

Shares come from the order alone. Kills are SIGKILL to all processes of a small training on three sources, at a moment
drawn evenly from the life of an uninterrupted run; the next start has 1, 2 or 4 processes.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[2]))
from tests.kit.fault_injection import run
from tests.kit.llama import small_llama
from tests.kit.pretraining import in_child, losses, make_model, make_tokenizer_artifact
from tests.kit.ranks import variables_of_ranks
from tests.kit.sources import PHASES, TEXTS, make_source_corpora, make_sources_job, make_sources_recipe
from tests.kit.tokens import tokens_of_corpus

from anadil.estimate.schedule import WINDOW, SourceSize, schedule_of
from anadil.model.process_group import Group
from anadil.pretrain.data.order import TrainingData, sizes_of
from anadil.pretrain.parallel.mesh import Mesh
from anadil.pretrain.parallel.parallelize import parallelize
from anadil.pretrain.trainer import Trainer
from anadil.recipe.pretrain import Pretrain

MIXES: dict[str, dict[str, float]] = {
    "80, 10, 5, 5 %": {"web": 0.8, "en": 0.1, "code": 0.05, "pairs": 0.05},
    "99, 1 %": {"web": 0.99, "en": 0.01},
    "1/3 each": {"web": 1, "en": 1, "code": 1},
    "997, 1, 1, 1 per mille": {"web": 0.997, "en": 0.001, "code": 0.001, "pairs": 0.001},
    "8 sources, 12.5 % each": {f"s{number}": 1 for number in range(8)},
    "8 sources, 1 to 71 %": {f"s{number}": share for number, share in enumerate((71, 11, 7, 5, 3, 1, 1, 1))},
}
MEANS = (2040, 1990, 1900, 2030, 2048, 1950, 2000, 2010)
"""Mean tokens of a sequence of 2,048, by source, so that shares of sequences are not whole."""
SEQUENCES = 20_000
PROCESSES = (1, 2, 4)
STEPS = 24
STUCK_S = 240.0


def shares() -> None:
    """Print the worst error of a share over all windows, in sequences' and in tokens' shares."""
    print(
        f"| mix | worst share of tokens in any {WINDOW:,} sequences, off by | over {SEQUENCES:,} |\n|---|---|---|"
    )
    for name, mix in MIXES.items():
        sizes = {
            source: SourceSize(sequences=10**9, targets=10**9 * mean, max_epochs=4)
            for source, mean in zip(mix, MEANS, strict=False)
        }
        phase = {"trains": "all", "steps": SEQUENCES, "lr": 1, "mix": mix}
        schedule = schedule_of(Pretrain.model_validate({"phases": [phase], "batch_size": 1}), sizes)
        order = np.array([schedule.place_of(number)[0] for number in range(SEQUENCES)])
        tokens = np.array(MEANS)[order]
        asked = [
            float(Fraction(str(share)) / sum(Fraction(str(each)) for each in mix.values()))
            for share in mix.values()
        ]
        total = np.convolve(tokens, np.ones(WINDOW), "valid")
        worst = max(
            np.abs(np.convolve(tokens * (order == source), np.ones(WINDOW), "valid") / total - share).max()
            for source, share in enumerate(asked)
        )
        whole = max(
            abs(tokens[order == source].sum() / tokens.sum() - share) for source, share in enumerate(asked)
        )
        print(f"| {name} | {100 * worst:.3f} % | {100 * whole:.4f} % |")


class Runs:
    """Small trainings on three sources in one directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_source_corpora(folder)
        make_tokenizer_artifact(folder / "tokenizer")
        make_model(folder / "model")
        phases = [PHASES[0], {**PHASES[1], "steps": STEPS - PHASES[0]["steps"]}]
        self.recipe = make_sources_recipe(folder / "model", phases=phases, batch_size=8, checkpoint_every=2)

    def start(self, name: str, processes: int) -> list[int]:
        """Start a run, or resume it; ids of its processes."""
        job = make_sources_job(self.folder, self.recipe, name)

        def work() -> None:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)
            job.stop.listen()
            run(job)

        ranks = variables_of_ranks(processes) if processes > 1 else [{}]
        return [in_child(work, variables) for variables in ranks]

    def ended(self, children: list[int], seconds: float) -> bool:
        """Wait for processes; kill all of them if they run longer."""
        end = time.monotonic() + seconds
        left = set(children)
        while left and time.monotonic() < end:
            for child in tuple(left):
                if os.waitpid(child, os.WNOHANG)[0]:
                    left.remove(child)
            time.sleep(0.005)
        for child in left:
            os.kill(child, signal.SIGKILL)
        for child in left:
            os.waitpid(child, 0)
        return not left

    def whole(self, processes: int) -> float:
        """Make the uninterrupted run; seconds of its life."""
        begun = time.monotonic()
        if not self.ended(self.start(f"whole-{processes}", processes), STUCK_S):
            sys.exit(f"the uninterrupted run of {processes} processes hangs")
        return time.monotonic() - begun

    def losses(self, name: str) -> dict[int, float]:
        """Loss by step of a finished run."""
        return losses(self.folder / name / "out")


def kills(num: int, seed: int) -> bool:
    """Print how runs that were killed compare with uninterrupted ones; True if all are as they should be."""
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory(prefix="anadil-mix-") as folder:
        runs = Runs(Path(folder))
        life = {processes: runs.whole(processes) for processes in PROCESSES}
        wholes = {processes: runs.losses(f"whole-{processes}") for processes in PROCESSES}
        counts: Counter[str] = Counter()
        steps, worst = [], 0.0
        number = 0
        while len(steps) < num:
            # In turn: the same number of processes after the kill, and another.
            first = PROCESSES[len(steps) // 2 % 3]
            then = first if len(steps) % 2 == 0 else PROCESSES[(len(steps) // 2 + 1) % 3]
            name, number = f"run-{number}", number + 1
            if runs.ended(runs.start(name, first), float(random.uniform(0, 1)) * life[first]):
                counts["ended before their moment, not counted"] += 1
                continue
            saved = sorted((Path(folder) / name / "work/checkpoints").glob("step-????????"))
            steps.append(int(saved[-1].name[5:]) if saved else 0)
            if not runs.ended(runs.start(name, then), STUCK_S):
                sys.exit(f"{name}: hangs")
            resumed, expected = runs.losses(name), wholes[first]
            if first == then:
                counts[
                    "same processes, bit-equal" if resumed == expected else "same processes, NOT equal"
                ] += 1
            else:
                counts["other processes"] += 1
                worst = max(worst, *(abs(resumed[step] / loss - 1) for step, loss in expected.items()))
        spread = max(
            abs(wholes[processes][step] / loss - 1)
            for processes in PROCESSES
            for step, loss in wholes[1].items()
        )
    print(f"\nlife of an uninterrupted run, s, by processes: { ({n: round(s, 1) for n, s in life.items()}) }")
    print(f"kills: {num}; newest checkpoint at the kill: {sorted(steps)}")
    print(dict(counts))
    print(
        f"other processes: losses off by at most {worst:.1e}; uninterrupted runs of 1, 2 and 4 processes by {spread:.1e}"
    )
    return not counts["same processes, NOT equal"] and worst < 1e-6


def cost(pairs: int) -> None:
    """Print the time of a step with and without losses by source, in turn."""
    with tempfile.TemporaryDirectory(prefix="anadil-mix-") as folder:
        root = Path(folder)
        make_source_corpora(root)
        make_tokenizer_artifact(root / "tokenizer")
        phase = {**PHASES[1], "steps": 100}
        recipe = make_sources_recipe(
            root, batch_size=8, micro_batch_size=4, sequence_length=128, phases=[phase]
        )
        packed = {
            name: tokens_of_corpus(
                root / f"corpus.{name}", root / "tokenizer", root / "work", length=128
            ).packed
            for name in sorted(TEXTS)
        }
        schedule = schedule_of(recipe.pretrain, sizes_of(recipe, packed))
        model = small_llama(
            seed=1,
            vocab_size=8_000,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
        )
        net = parallelize(model, recipe.pretrain, Mesh(), torch.device("cpu"))
        trainer = Trainer(net, TrainingData(sources=packed, schedule=schedule), recipe, Group())
        trainer.begin_phase(0)
        seconds: dict[bool, list[float]] = {True: [], False: []}
        batches = trainer.batches(0)
        for number in range(pairs + 1):
            for with_sources in (True, False) if number % 2 else (False, True):
                begun = time.process_time()
                each = batches if with_sources else [replace(batch, sources=None) for batch in batches]
                trainer.gradients(0, each)
                if number:
                    seconds[with_sources].append(time.process_time() - begun)
        begun = time.process_time()
        for step in range(50):
            trainer.batches(step)
        making = (time.process_time() - begun) / 50
    ratios = [a / b for a, b in zip(seconds[True], seconds[False], strict=True)]
    print(
        f"\nCPU s of a step with losses by source over one without, median of {pairs}: {statistics.median(ratios):.4f} "
        f"({statistics.median(seconds[False]):.3f} s); making its batches {making:.4f} s"
    )


def main() -> int:
    """Measure and print; 1 if a loss differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    shares()
    cost(given.pairs)
    return 0 if kills(given.kills, given.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
