import pytest
from tokenizers import Tokenizer

from anadil.artifacts.base_model import LLAMA_3_SPECIALS, tiny_text
from anadil.core.errors import DataError
from anadil.tokenizer import prune
from anadil.tokenizer.ban_list import unchanged_share
from anadil.tokenizer.candidate import extend_vocabulary
from anadil.tokenizer.embedding_map import embedding_rows
from anadil.tokenizer.extend_bpe import continue_merges
from anadil.tokenizer.pretokens import count_texts
from anadil.tokenizer.prune import pruned_base

from .conftest import SENTENCES

KEPT = tiny_text()[:20_000].splitlines()


def test_unused_tokens_leave_and_every_text_of_the_sample_is_cut_as_before(
    tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "LEAST_KEPT_BYTES", 10_000)
    words = count_texts(tiny, SENTENCES * 3)
    kept = count_texts(tiny, KEPT)

    pruned = pruned_base(tiny, words.items(), kept.items())
    extended = extend_vocabulary(pruned, continue_merges(pruned, words, 50, 2))

    size = pruned.get_vocab_size()
    assert size < 0.6 * tiny.get_vocab_size()
    assert unchanged_share(tiny, pruned, [*KEPT, *SENTENCES]) == 1
    assert sorted(pruned.get_vocab().values()) == list(range(size))
    assert [pruned.token_to_id(each) for each in LLAMA_3_SPECIALS] == list(range(size - 6, size))
    text = "日本語 слово any other text 😀"
    assert pruned.decode(pruned.encode(text, add_special_tokens=False).ids) == text
    for index, row in enumerate(embedding_rows(tiny, extended)):
        assert "".join(tiny.id_to_token(piece) or "" for piece in row) == extended.id_to_token(index)
        assert (len(row) == 1) == (index < size)


def test_a_short_sample_is_refused(tiny: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"tokenizer\.prune: the texts of tokenizer\.keep have 9 bytes"):
        pruned_base(tiny, [("kitab", 1)], [("the", 3)])
