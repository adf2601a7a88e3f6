"""Does the fast encoder give the chosen tokenizer's ids for every word of the corpus?

Training encodes by it, and compares a sample of its documents only.
"""

from collections.abc import Iterator

from tokenizers import Tokenizer

from anadil.core.progress import track
from anadil.runtime.signals import Stop
from anadil.text.byte_symbols import to_text
from anadil.text.encoder import Encoder
from anadil.tokenizer.word_counts import WordCounts

WORDS_PER_LOOK = 10_000
"""Words after which the stage looks whether it is to stop."""

EncoderCheck = dict[str, bool | int | str]


def check_encoder(tokenizer: Tokenizer, table: WordCounts, stop: Stop) -> EncoderCheck:
    """Compare both encoders on every different word of a table; it ends with the first difference.

    Returns:
        `fast`: whether there is a fast way for this tokenizer, and it gives the same ids; `compared_words`;
        `difference`: the word for which it does not, with what follows from it, or empty.
    """
    encoder, num_words = Encoder(tokenizer), 0

    def words() -> Iterator[str]:
        nonlocal num_words
        for word in track(map(to_text, table.pretokens()), "comparing encoders", len(table)):
            if num_words % WORDS_PER_LOOK == 0:
                stop.check()
            num_words += 1
            yield word

    encoder.check(words())
    return {"fast": encoder.is_fast, "compared_words": num_words, "difference": encoder.difference}
