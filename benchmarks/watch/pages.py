"""First paint of the pages with a corpus of a million documents, and the memory of the server after all of them.

    python -m benchmarks.watch.pages --work /tmp/pages [--documents 1000000] [--loads 5]

A corpus with the columns of a real one (115) is written once, with a text for every second document; its numbers are
drawn. A server of its own process serves it. A headless Chromium opens each page several times, each time without a cache.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

from tests.kit.browser import Page, browser
from tests.kit.watched_corpus import RULE_NAMES, STATISTICS, make_watched_corpus, seal_corpus
from tests.kit.watched_model import put_trained
from tests.kit.watching import put_live, put_record, put_training

from anadil.runtime.run_record import StepRecord
from anadil.text.corpus import Document, write_documents

COLUMNS = 115
OTHER_COLUMNS = 10
"""Columns of a row that are no statistic and no verdict."""
TEXT = "Xəzər dənizinin sahilində yerləşən şəhər ölkənin ən böyük limanıdır. "
RUN, TRAINED, LIVE = "20260101-120000-1", "20260101-120000-3", "20260102-120000-1"
LOGGED = 5_000
"""Lines of the training that the page of a run draws."""


def make(work: Path, documents: int) -> None:
    """Write the corpus, a trained model and a run in progress, unless they are there."""
    corpus = work / "corpus/0a1b"
    if (corpus / "manifest.json").is_file():
        return
    others = COLUMNS - OTHER_COLUMNS - len(RULE_NAMES) - len(STATISTICS)
    make_watched_corpus(
        corpus, documents, statistics=(*STATISTICS, *(f"other_{number}" for number in range(others)))
    )
    draw = random.Random(7)  # noqa: S311  no secret
    # Text that packs as real text does: a thousand equal sentences would be one long piece of memory.
    words = ["".join(draw.choices("aəbcçdeiıklmnorsştuüz", k=draw.randint(2, 10))) for _ in range(5_000)]
    texts = (
        Document(
            id=f"{number:032x}",
            text=f"{TEXT}{' '.join(draw.choices(words, k=100))}",
            source=f"a:{number}",
            url="",
            lang="az",
        )
        for number in range(0, documents, 2)
    )
    write_documents(corpus, "train", texts)
    write_documents(corpus, "heldout", [])
    seal_corpus(corpus)
    step = StepRecord(stage="clean", status="finished", uri=str(corpus))
    put_record(work, RUN, steps={"clean": step}, stages=("clean",))
    put_trained(work, TEXT)
    put_training(work, LIVE, LOGGED)


def paint_ms(page: Page, address: str) -> float:
    """Time from the request to the first contentful paint."""
    page.open(address)
    assert "Nothing to show" not in str(page.value("document.title")), address
    page.wait("performance.getEntriesByName('first-contentful-paint').length > 0")
    return float(page.value("performance.getEntriesByName('first-contentful-paint')[0].startTime"))


def memory_mb(pid: int) -> float:
    """Most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) / 1000


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--loads", type=int, default=5)
    options = parser.parse_args()
    work: Path = options.work
    make(work, options.documents)
    put_live(work, run=LIVE)
    data = f"/run/{RUN}/data/corpus"
    pages = {
        "runs": "/", "run in progress": f"/run/{LIVE}", "documents": data, "of one rule": f"{data}?reason=mixed",
        "of one host": f"{data}?host=xeber7.az", "by domain": f"{data}?by=domain", "histogram": f"{data}?statistic=chars",
        "largest": f"{data}?statistic=chars&order=largest", "one document": f"{data}/document/0-0-2",
        "answers": f"/run/{TRAINED}/answers",
    }  # fmt: skip
    command = [sys.executable, "-m", "anadil", "watch", "--work", str(work), "--port", "0", "--no-open"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server,
        browser() as page,
    ):
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        page.open(address)
        page.call("Network.setCacheDisabled", cacheDisabled=True)
        root = address.partition("/?")[0]
        print("| page | first load, ms | median, ms | most, ms | memory so far, MB |\n|---|---|---|---|---|")
        for name, path in pages.items():
            times = [paint_ms(page, f"{root}{path}") for _ in range(options.loads)]
            cells = (times[0], statistics.median(times), max(times), memory_mb(server.pid))
            print(f"| {name} | {' | '.join(f'{cell:.0f}' for cell in cells)} |")
        server.terminate()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
