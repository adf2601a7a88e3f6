"""What of cleaning is compiled to machine code."""

from pathlib import Path

from anadil.core.compiled import Kernels

KERNELS = Kernels(
    Path(__file__).parent,
    (
        "characters", "columns", "line_kernel", "minhash", "ng_words", "ngram_kernel", "sentence_kernel",
        "text_kernel", "word_kernel",
    ),
)  # fmt: skip
compiled = KERNELS.compiled
