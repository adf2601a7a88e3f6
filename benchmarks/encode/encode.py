"""MB of text that the stage `encode` takes a CPU second, beside what the encoder takes alone.

python benchmarks/encode/encode.py --text 'DIR/*.jsonl' --tokenizer DIR [--megabytes 60]

One file of a corpus is encoded in this process, so that the CPU time of all is counted. "Alone" is the text in memory;
"read and encoded" reads the same file of the corpus and keeps nothing.
"""

import argparse
import glob
import json
import tempfile
import time
from pathlib import Path

from anadil.artifacts import artifact
from anadil.runtime.executors.processes import Processes
from anadil.text.corpus import Document, document_files, read_file, text_batches, write_documents
from anadil.text.encoder import Encoder
from anadil.tokens import make_tokens
from anadil.tokens.encode_file import BATCH_CHARS, document_tokenizer
from anadil.tokens.settings import Settings

REPEATS = 3


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", required=True, help="glob of .jsonl files with a key `text`")
    parser.add_argument("--tokenizer", type=Path, required=True, help="Hugging Face tokenizer directory")
    parser.add_argument(
        "--megabytes", type=int, default=60, help="text to encode, repeated where there is less"
    )
    options = parser.parse_args()
    names = sorted(glob.glob(options.text))  # noqa: PTH207  Path.glob takes no absolute pattern
    lines = [line for name in names for line in Path(name).read_text(encoding="utf-8").split("\n") if line]
    own = [json.loads(line)["text"] for line in lines]
    size = sum(len(text.encode()) for text in own)
    texts = own * max(1, options.megabytes * 10**6 // size)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{len(texts):,} documents, {megabytes:.1f} MB of text")
    # As in a corpus of many files, which has a process for each CPU.
    make_tokens.num_cores = lambda: 1
    encoder = Encoder(document_tokenizer(options.tokenizer)[0])
    encoder.check(())
    with tempfile.TemporaryDirectory() as place:
        corpus = Path(place) / "corpus"
        write_documents(
            corpus,
            "train",
            (Document(id="0" * 32, text=text, source="a", url="", lang="az") for text in texts),
        )
        artifact.seal(corpus, kind="corpus", origin={})
        best: dict[str, float] = {}
        for number in range(REPEATS):
            for name, seconds in _run(
                texts, corpus, options.tokenizer, encoder, Path(place) / str(number)
            ).items():
                best[name] = min(seconds, best.get(name, seconds))
    for name, seconds in best.items():
        print(
            f"{name}: {megabytes / seconds:.1f} MB a CPU second, {best['alone'] / seconds:.1%} of the encoder alone"
        )


def _run(texts: list[str], corpus: Path, tokenizer: Path, encoder: Encoder, work: Path) -> dict[str, float]:
    """CPU seconds of each way."""
    seconds = {}
    started = time.process_time()
    for batch in text_batches(texts, BATCH_CHARS):
        encoder.encode(batch)
    seconds["alone"] = time.process_time() - started
    started = time.process_time()
    for file in document_files(corpus, "train"):
        for batch in text_batches((document.text for document in read_file(file)), BATCH_CHARS):
            encoder.encode(batch)
    seconds["read and encoded"] = time.process_time() - started
    out = work / "out"
    out.mkdir(parents=True)
    settings = Settings(
        corpus=corpus, corpus_digest=work.name, tokenizer=tokenizer, tokenizer_digest="t", language="az",
        sequence_length=2_048,
    )  # fmt: skip
    started = time.process_time()
    with Processes(1) as executor:
        _, entries = make_tokens.make_tokens(settings, out, work, executor)
    artifact.seal(out, kind="tokens", origin={}, entries=entries)
    seconds["stage"] = time.process_time() - started
    return seconds


if __name__ == "__main__":
    main()
