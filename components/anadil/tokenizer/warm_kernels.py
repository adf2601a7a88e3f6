"""`python -m anadil.tokenizer.warm_kernels`: compile all kernels now, so that no process of an image has to.

Code is compiled for the processor at hand; an image sets `NUMBA_CPU_NAME` when it is built and when it runs.
"""

import sys

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from anadil.tokenizer.bpe import continue_merges, train_vocabulary
from anadil.tokenizer.kernels.compiled import KERNELS
from anadil.tokenizer.pretokens import count_texts
from anadil.tokenizer.word_counts import sum_counts


def warm_kernels() -> None:
    """Call each kernel once; what it is called with later has the same types."""
    cutter = Tokenizer(BPE())
    cutter.pre_tokenizer = ByteLevel(add_prefix_space=False)
    # More different words than there is room for at first, so that tables grow.
    table = count_texts(cutter, [" ".join(map(str, range(70_000))), "kitab kitab"])
    trained = train_vocabulary(sum_counts([table, table]), 300, 2)
    vocab, merges = trained.cut(280)
    continue_merges(Tokenizer(BPE(vocab=vocab, merges=merges)), {"kitab": 5, "kitablar": 3}, 5, 2)


if __name__ == "__main__":
    warm_kernels()
    sys.stdout.write(f"{KERNELS.folder}\n")
