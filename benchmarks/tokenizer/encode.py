"""How many megabytes of text a CPU second turns into token ids, and whether they are those of tokenizers.

python benchmarks/tokenizer/encode.py --text DIR --tokenizer tokenizer.json... [--trained 32000 100000] [--megabytes 4]

DIR holds a folder for each language (az, ja, en) with .jsonl files that have a key `text`. Each `--trained` size is a
byte-level BPE with Llama 3's pattern, trained on half of the documents; all are measured on the other half. One thread;
the libraries take turns, and the fastest of three rounds counts. Ids of every document are compared.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from anadil.text.cut_patterns import LLAMA_3_REGEX
from anadil.text.encoder import Encoder

LANGUAGES = ("az", "ja", "en")
ROUNDS = 3
BATCH = 64
Encode = Callable[[Sequence[str]], object]


def main() -> None:
    """Print a row for each tokenizer and language."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, nargs="*", default=[])
    parser.add_argument("--trained", type=int, nargs="*", default=[])
    parser.add_argument("--megabytes", type=float, default=4.0, help="text of each language")
    options = parser.parse_args()
    print(f"{cpu_name()}, load {os.getloadavg()[0]:.1f}")
    print("| tokenizer | text | MB | start, s | tokenizers | anadil | x | ids |")
    print("|---|---|---:|---:|---:|---:|---:|---|")
    texts = {language: documents(options.text / language) for language in LANGUAGES}
    for name, tokenizer in opened(options.tokenizer, options.trained, texts):
        for language in LANGUAGES:
            compare(name, tokenizer, language, up_to(texts[language][1::2], options.megabytes * 1e6))


def documents(folder: Path) -> list[str]:
    """The texts of a language, those of each file spread over the whole."""
    lines = [
        line
        for file in sorted(folder.glob("*.jsonl"))
        for line in file.read_text(encoding="utf-8").split("\n")
    ]
    return [json.loads(line)["text"] for step in range(7) for line in lines[step::7] if line]


def up_to(texts: Sequence[str], num_bytes: float) -> list[str]:
    """The first texts, of so many bytes."""
    chosen, size = [], 0
    for text in texts:
        chosen.append(text)
        size += len(text.encode())
        if size >= num_bytes:
            break
    return chosen


def opened(
    files: Sequence[Path], sizes: Sequence[int], texts: dict[str, list[str]]
) -> Iterator[tuple[str, Tokenizer]]:
    """The tokenizers to measure, by name."""
    for file in files:
        yield file.parent.name, Tokenizer.from_file(str(file))
    for size in sizes:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA_3_REGEX), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=0,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator((text for own in texts.values() for text in own[::2]), trainer)
        yield f"trained, {tokenizer.get_vocab_size():,}", tokenizer


def compare(name: str, tokenizer: Tokenizer, language: str, texts: list[str]) -> None:
    """Print the row of one tokenizer and one language."""
    tokenizer.encode_special_tokens = True
    encoder = Encoder(tokenizer)
    begun = time.process_time()
    encoder.check(())
    start = time.process_time() - begun
    ways: dict[str, Encode] = {
        "tokenizers": lambda some: tokenizer.encode_batch_fast(some, add_special_tokens=False),
        "anadil": encoder.encode,
    }
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    rates = dict.fromkeys(ways, 0.0)
    for _ in range(ROUNDS):
        for way, encode in ways.items():
            begun = time.process_time()
            for at in range(0, len(texts), BATCH):
                encode(texts[at : at + BATCH])
            rates[way] = max(rates[way], megabytes / (time.process_time() - begun))
    exact = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    differing = sum(
        ids.tolist() != expected for ids, expected in zip(encoder.encode(texts), exact, strict=True)
    )
    print(
        f"| {name} | {language} | {megabytes:.1f} | {start:.1f} | {rates['tokenizers']:.1f} "
        f"| {rates['anadil']:.1f} | {rates['anadil'] / rates['tokenizers']:.1f} "
        f"| {f'{differing} differ' if differing else 'equal'}{'' if encoder.is_fast else ', by tokenizers'} |",
        flush=True,
    )


def cpu_name() -> str:
    """The processor's name for itself."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown CPU")


if __name__ == "__main__":
    main()
