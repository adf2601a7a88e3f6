"""`python -m anadil.clean.warm_kernels`: compile all kernels now, so that no process of an image has to.

Code is compiled for the processor at hand; an image sets `NUMBA_CPU_NAME` when it is built and when it runs.
"""

import sys

from anadil.clean.kernels.characters import characters_of
from anadil.clean.kernels.compiled import KERNELS
from anadil.clean.kernels.minhash import MinHash
from anadil.clean.kernels.ng_words import NgWords
from anadil.clean.kernels.sentence_kernel import sentences_of
from anadil.clean.kernels.statistics import Statistics
from anadil.text.language import load_language


def warm_kernels() -> None:
    """Call each kernel once; what it is called with later has the same types."""
    language = load_language("az")
    Statistics(language).measure(["bir iki"])
    minhash = MinHash(language, bands=1, rows=1, shingle=1)
    minhash.band_keys("bir iki")
    minhash.shingles("bir iki")
    sentences_of(["bir iki"], language)
    NgWords(["bir"], characters_of(language)).shares(["bir iki"])


if __name__ == "__main__":
    warm_kernels()
    sys.stdout.write(f"{KERNELS.folder}\n")
