"""Delay of training when MLflow is killed, and of a stage's end when the server is silent.

    python -m benchmarks.faults.tracking [--steps 300] [--rounds 2]

A process takes steps of about 20 ms and tracks each, as pretrain does, with a sender beside it and a real server on
SQLite. Half-way the server is killed with SIGKILL. Then it comes back, the spool is sent, and what arrived is counted.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from tests.kit.http_server import Reply, http_server
from tests.kit.mlflow_server import MlflowServer, running

from anadil.recipe.load import parse_recipe
from anadil.runtime.tracking_spool import CLOSED, SPOOL, Tracker, run_sender, track_stage


def take_steps(tracker: Tracker, first: int, steps: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds of each step by the clock and of the CPU, and of its call of the tracker."""
    matrix = torch.randn(384, 384)
    clock, cpu, calls = [], [], []
    for step in range(first, first + steps):
        began, began_cpu = time.perf_counter(), time.process_time()
        for _ in range(8):
            matrix = torch.tanh(matrix @ matrix / 384)
        called = time.perf_counter()
        figures = dict.fromkeys(("loss", "lr", "grad_norm", "tokens_per_s", "time_share/step"), 1.0 / step)
        tracker.metrics(figures, step)
        done = time.perf_counter()
        clock.append(done - began)
        cpu.append(time.process_time() - began_cpu)
        calls.append(done - called)
    return clock, cpu, calls


def one_round(
    folder: Path, steps: int
) -> tuple[list[float], list[float], list[float], list[float], list[float]]:
    """Clock with and without the server, CPU with and without, calls without."""
    server = MlflowServer(folder=folder)
    spool = folder / "spool"
    with running(server):
        with run_sender(spool, server.uri, "benchmark", "run"):
            tracker = Tracker(spool / "pretrain.jsonl", "pretrain")
            tracker.start()
            tracker.files({"recipe.yaml": "language: az\n"})
            take_steps(tracker, 1, 50)
            while not (spool / "sent.json").exists():
                take_steps(Tracker(None), 1, 20)
            there = take_steps(tracker, 51, steps)
            server.kill()
            killed = take_steps(tracker, 51 + steps, steps)
            tracker.files({"report.html": "<h1>report</h1>"})
            tracker.end("FINISHED")
            ended = time.monotonic()
        print(f"end of the run, server killed: {time.monotonic() - ended:.2f} s")
        server.start()
        with run_sender(folder / "next", server.uri, "benchmark", "next"):
            (folder / "next" / CLOSED).touch()
            (folder / "next" / "x.jsonl").write_text('{"kind": "run tags", "values": {}}\n')
            while not (spool / "done").exists():
                time.sleep(0.2)
        client = server.client()
        runs = client.search_runs(["1"])
        [run] = [each for each in runs if each.info.run_name == "pretrain"]
        history = client.get_metric_history(run.info.run_id, "train/loss")
        files = [each.path for each in client.list_artifacts(run.data.tags["mlflow.parentRunId"])]
        lost = set(range(1, 51 + 2 * steps)) - {each.step for each in history}
        print(f"after replay: {len(history)} of {50 + 2 * steps} points, {len(lost)} lost, artifacts {files}")
    return (*there, *killed)


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--rounds", type=int, default=2)
    given = options.parse_args()
    torch.set_num_threads(1)
    parts: list[list[float]] = [[] for _ in range(6)]
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for part, times in zip(parts, one_round(Path(folder), given.steps), strict=True):
                part.extend(times)
    names = ("step by the clock", "step, CPU time", "of it the tracker's call")
    for name, there, killed in zip(names, parts[:3], parts[3:], strict=True):
        first, second = statistics.median(there), statistics.median(killed)
        print(f"{name}: {first * 1e3:.3f} ms, killed {second * 1e3:.3f} ms ({second / first - 1:+.2%})")
    share = statistics.mean(parts[5]) / statistics.mean(parts[3])
    print(f"calls while it is killed: {share:.2%} of the time, longest {max(parts[5]) * 1e3:.2f} ms")
    with http_server(lambda _: Reply(delay_s=60)) as port, tempfile.TemporaryDirectory() as folder:
        recipe = parse_recipe("", "r", [f"tracking.uri=http://127.0.0.1:{port}"])
        with track_stage("pretrain", recipe, Path(folder)) as tracker:
            take_steps(tracker, 1, 50)
            ended = time.monotonic()
        print(
            f"end of a stage, silent server: {time.monotonic() - ended:.2f} s; spool kept: {(Path(folder) / SPOOL).is_dir()}"
        )


if __name__ == "__main__":
    main()
