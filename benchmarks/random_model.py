"""A tokenizer and a Llama with random weights, the same in every process: what benchmarks compare programs on."""

from collections.abc import Sequence
from typing import Any

LEARNED_TOKENS = 8_000
"""Rows of the tokenizer. The model's further rows cost as those of a large vocabulary do, and no text has them."""


def tokenizer_of(texts: Sequence[str], control: Sequence[str]) -> Any:
    """Byte-level BPE, learned from some texts; the first control token begins a text, the second ends it and pads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=LEARNED_TOKENS,
        special_tokens=list(control),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=control[0], eos_token=control[1], pad_token=control[1]
    )


def model_of(*, vocabulary: int, hidden: int, layers: int, context: int, seed: int, **more: Any) -> Any:
    """A Llama of these sizes, with heads of 64.

    Args:
        vocabulary: Rows of the tied embedding.
        hidden: Width; the inner layers are four times as wide.
        layers: How many.
        context: Most tokens of a text.
        seed: Of the weights.
        more: Further settings of transformers' LlamaConfig.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=more.pop("intermediate_size", 4 * hidden),
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        **more,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)
