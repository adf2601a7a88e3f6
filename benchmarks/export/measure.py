"""Export held against its readers: token ids of real text, logits, memory and time of a larger model.

    python benchmarks/export/measure.py TOKENIZER [TEXT.jsonl ...]

TOKENIZER is a Hugging Face tokenizer directory of Llama 3's kind, such as that of meta-llama/Llama-3.2-1B; a text is a line
with a key `text`. Needs the extras `laptop` and `dev`, and for transformers 4 a registry or the environment of
`tests/model/test_transformers_4.py`.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tests.kit.llama_3 import SHAPE, mixed_documents
from tests.kit.llama_cpp import opened
from tests.kit.transformers_4 import python_with_4, read_by_4
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from anadil.model.load import encode_texts, load_tokenizer, save_model
from anadil.release.export.gguf_file import write_gguf

DOCUMENTS = 1_000
TOKENS = 512
LARGE = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
}
"""Half of Llama 3.2 1B's layers."""


def main() -> None:
    """Print the figures as Markdown rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("texts", type=Path, nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        token_ids(options.tokenizer, options.texts, Path(folder))
        for spread in (0.02, 0.1):
            logits(options.tokenizer, Path(folder) / str(spread), spread)
        memory(options.tokenizer, Path(folder))


def make(folder: Path, tokenizer: Path, dtype: torch.dtype, **shape: Any) -> Path:
    """A random Llama with a tokenizer, as this program writes it."""
    size = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab_size()
    torch.manual_seed(1)
    with torch.device("cpu"):
        torch.set_default_dtype(dtype)
        model = LlamaForCausalLM(LlamaConfig(**{**SHAPE, "vocab_size": size, **shape}))
        torch.set_default_dtype(torch.float32)
    save_model(model, tokenizer, folder, dtype)
    return folder


def token_ids(tokenizer: Path, texts: list[Path], folder: Path) -> None:
    """Documents of which llama.cpp makes other tokens than we do."""
    directory = make(folder / "ids", tokenizer, torch.float32, num_hidden_layers=1, hidden_size=64)
    write_gguf(directory, folder / "ids.gguf", name="ids", precision="q8_0")
    ours = load_tokenizer(directory)
    sources = {"mixed scripts, emoji and any code points": mixed_documents(DOCUMENTS)}
    for file in texts:
        with file.open(encoding="utf-8") as lines:
            sources[file.name] = [json.loads(line)["text"] for line in itertools.islice(lines, DOCUMENTS)]
    with opened(folder / "ids.gguf") as model:
        for name, documents in sources.items():
            expected = encode_texts(ours, documents)
            other = sum(model.encode(text) != ids for text, ids in zip(documents, expected, strict=True))
            print(f"| {name} | {len(documents):,} | {sum(map(len, expected)):,} | {other} |", flush=True)


def logits(tokenizer: Path, folder: Path, spread: float) -> None:
    """Largest difference of logits from transformers 5 in FP32, by loader and format.

    Args:
        tokenizer: Of the model.
        folder: For files.
        spread: Standard deviation of the weights; a Llama begins with 0.02.
    """
    directory = make(folder / "logits", tokenizer, torch.float32, initializer_range=spread)
    ids = torch.randint(0, 100_000, (1, TOKENS), generator=torch.Generator().manual_seed(4))
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        ours = model(input_ids=ids).logits
        row(f"{spread}: hf", "transformers 5, FP64", ours[0], model.double()(input_ids=ids).logits[0])
    read_by_4(python_with_4(), [directory], ids, folder)
    theirs = torch.load(directory / "logits.pt", weights_only=True)
    row(f"{spread}: hf", "transformers 4.57", ours[0], theirs[0])
    for precision in ("fp32", "fp16", "bf16", "q8_0"):
        file = folder / f"{precision}.gguf"
        write_gguf(directory, file, name="logits", precision=precision)
        with opened(file) as loaded:
            row(
                f"{spread}: gguf, {precision}",
                "llama.cpp",
                ours[0],
                torch.from_numpy(loaded.logits(ids[0].tolist())),
            )
        file.unlink()


def row(form: str, loader: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """One line of the table."""
    same = (ours.argmax(-1) == theirs.argmax(-1)).float().mean()
    difference = (ours - theirs).abs()
    print(
        f"| {form} | {loader} | {difference.max():.1e} | {difference.mean():.1e} | {same:.1%} |", flush=True
    )


def memory(tokenizer: Path, folder: Path) -> None:
    """Peak memory of writing a larger model, in a process of its own: all, and without the pages of mapped files."""
    directory = make(folder / "large", tokenizer, torch.bfloat16, **LARGE)
    size = (directory / "model.safetensors").stat().st_size
    code = (
        "import sys; from pathlib import Path; from anadil.release.export.gguf_file import write_gguf; "
        "write_gguf(Path(sys.argv[1]), Path(sys.argv[2]), name='x', precision=sys.argv[3])"
    )
    out = folder / "large.gguf"
    for precision in ("bf16", "q8_0", "fp32"):
        child = subprocess.Popen([sys.executable, "-c", code, str(directory), str(out), precision])
        peaks = {"VmHWM": 0, "RssAnon": 0}
        while child.poll() is None:
            for line in Path(f"/proc/{child.pid}/status").read_text(encoding="utf-8").splitlines():
                name, _, rest = line.partition(":")
                if name in peaks:
                    peaks[name] = max(peaks[name], int(rest.split()[0]))
            time.sleep(0.02)
        whole, anonymous = (each / 1024**2 for each in peaks.values())
        print(
            f"| {size / 1e9:.2f} GB | {precision} | {out.stat().st_size / 1e9:.2f} GB | {whole:.2f} GiB | {anonymous:.2f} GiB |",
            flush=True,
        )
        out.unlink()


if __name__ == "__main__":
    main()
