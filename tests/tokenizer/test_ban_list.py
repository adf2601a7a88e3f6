from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from anadil.tokenizer.ban_list import BanList, unchanged_share
from anadil.tokenizer.candidate import extend_vocabulary
from anadil.tokenizer.extend_bpe import continue_merges
from anadil.tokenizer.pretokens import count_texts

from .conftest import SENTENCES

WORDS = st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=8)


@given(words=WORDS, token=st.text("abc", min_size=1, max_size=4))
def test_a_string_is_banned_if_and_only_if_it_is_part_of_a_pretoken(words: list[str], token: str) -> None:
    assert BanList(words)(token) == any(token in word for word in words)


def test_kept_texts_are_cut_as_before_though_the_corpus_holds_their_words(tiny: Tokenizer) -> None:
    kept = ["A handwritten newspaper.", "Kitabxanada newspapers of Bakı"]
    corpus = [*SENTENCES, *kept] * 20
    counts = count_texts(tiny, corpus)
    banned = BanList(dict(count_texts(tiny, kept).items()))

    merges = continue_merges(tiny, counts, 300, 2, banned)
    free = continue_merges(tiny, counts, 300, 2)

    assert unchanged_share(tiny, extend_vocabulary(tiny, merges), kept) == 1
    assert unchanged_share(tiny, extend_vocabulary(tiny, free), kept) == 0
    assert not any(banned(left + right) for left, right in merges)
