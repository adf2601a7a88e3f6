"""How many tokens a CPU second writes: prompts in batches against one by one, and against transformers' generate().

OMP_NUM_THREADS=1 python benchmarks/evaluate/generation.py --text FILE.jsonl [--prompts 64] [--tokens 64] [--cache DIR]

Prompts are beginnings of 3 to 40 words of the file's documents. Each model writes greedy and sampled texts: `tiny`, as the
demo has it, and random Llamas of 20M and 124M parameters, whose texts do not end. One by one is the same program with room for
one prompt and one way of decoding in a batch. transformers' generate() gets the same prompts one by one, greedy only.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from anadil.evaluate.generate import DECODING_MODES, GeneratedText, GenerationPrompt, Mode, generate_texts
from anadil.model.decoding import open_decoder
from anadil.model.load import encode_text, load_model, load_tokenizer
from anadil.model.tiny import base_model
from anadil.recipe.sections import Base

RANDOM = {"random-20m": (20e6, 384), "random-124m": (124e6, 768)}
"""Parameters and width."""


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--words", type=int, default=40, help="of the longest prompt")
    parser.add_argument("--models", nargs="+", choices=["tiny", *RANDOM], default=["tiny", "random-20m"])
    parser.add_argument("--single", type=int, help="prompts that are also written one by one; all of them")
    parser.add_argument("--greedy", action="store_true", help="no samples, and no transformers")
    parser.add_argument("--cache", type=Path, help="where `tiny` is kept")
    options = parser.parse_args()
    cache = options.cache or Path(tempfile.mkdtemp())
    path = base_model(Base(model="tiny"), cache)
    tokenizer = load_tokenizer(path)
    prompts = beginnings(options.text, options.prompts, options.words)
    print(f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")
    print("| model | parameters | batched, tokens/CPU s | one by one | x | generate() | x | equal texts |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in options.models:
        model: Any = load_model(path) if name == "tiny" else random_llama(len(tokenizer), *RANDOM[name])
        compare(name, model, tokenizer, prompts, options)


def beginnings(file: Path, count: int, words: int) -> list[GenerationPrompt]:
    """Prompts from documents spread over the file."""
    texts = [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines()]
    chosen = texts[:: max(1, len(texts) // count)][:count]
    cut = [" ".join(text.split()[: 3 + (words - 3) * place // count]) for place, text in enumerate(chosen)]
    return [GenerationPrompt(text=text, kind="continuation") for text in cut]


def random_llama(num_ids: int, parameters: float, width: int) -> LlamaForCausalLM:
    """A Llama of about so many parameters, whatever the vocabulary."""
    torch.manual_seed(0)
    inner = width * 8 // 3
    layers = max(1, round((parameters - width * num_ids) / (4 * width**2 + 3 * width * inner)))
    config = LlamaConfig(
        vocab_size=num_ids, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=width // 64, max_position_embeddings=2_048, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def compare(
    name: str, model: Any, tokenizer: Any, prompts: list[GenerationPrompt], options: argparse.Namespace
) -> None:
    """Print the rates, and whether texts are equal."""
    modes: tuple[Mode, ...] = ("greedy",) if options.greedy else DECODING_MODES
    every = len(prompts) // (options.single or len(prompts))

    def write(some: list[GenerationPrompt], modes: tuple[Mode, ...] = modes) -> list[GeneratedText]:
        length = options.tokens
        return generate_texts(
            open_decoder(model, tokenizer),
            tokenizer,
            some,
            max_new_tokens=length,
            seed=0,
            name=name,
            modes=modes,
        )

    def one_by_one() -> list[GeneratedText]:
        return [text for prompt in prompts[::every] for mode in modes for text in write([prompt], (mode,))]

    write(prompts[:2])
    batched, batched_s = timed(lambda: write(prompts))
    single, single_s = timed(one_by_one)
    num_tokens = sum(text.num_tokens for text in batched)
    rates = num_tokens / batched_s, sum(text.num_tokens for text in single) / single_s
    peer = 0.0 if options.greedy else transformers_rate(model, tokenizer, prompts, options.tokens)
    same = [
        text for at in range(0, len(batched), every * len(modes)) for text in batched[at : at + len(modes)]
    ]
    equal = sum(a == b for a, b in zip(same, single, strict=True))
    print(
        f"| {name} | {model.num_parameters() / 1e6:.1f}M | {rates[0]:,.0f} | {rates[1]:,.0f} | {rates[0] / rates[1]:.1f} "
        f"| {peer:,.0f} | {rates[0] / peer if peer else 0:.1f} | {equal} of {len(single)} |",
        flush=True,
    )


def transformers_rate(model: Any, tokenizer: Any, prompts: list[GenerationPrompt], tokens: int) -> float:
    """Tokens per CPU second of generate(), greedy, one by one."""
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id

    def write() -> int:
        count = 0
        for prompt in prompts:
            ids = torch.tensor([[first, *encode_text(tokenizer, prompt.text)]])
            made = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, use_cache=True,
                pad_token_id=first,
            )  # fmt: skip
            count += made.shape[1] - ids.shape[1]
        return count

    with torch.inference_mode():
        count, seconds = timed(write)
    return count / seconds


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Result of a call, and the CPU seconds of all its threads."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


if __name__ == "__main__":
    main()
