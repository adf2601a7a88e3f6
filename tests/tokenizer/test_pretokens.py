import pytest
from tokenizers import Tokenizer

from anadil.core.errors import DataError
from anadil.tokenizer.pretokens import count_pretokens


def test_pretokens_are_counted_in_byte_symbols_as_the_base_cuts_them(tiny: Tokenizer) -> None:
    found = count_pretokens(tiny, ["ev ev 2024", "ev"])

    assert dict(found.counts) == {"ev": 2, "Ġev": 1, "Ġ": 1, "202": 1, "4": 1}
    assert found.num_documents == 2


def test_pretokens_over_256_bytes_are_dropped_and_counted(
    tiny: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    found = count_pretokens(tiny, ["x" * 257 + " kitab " + "ə" * 128, "x" * 257])

    assert set(found.counts) == {"Ġkitab"}
    assert found.num_too_long == 3
    assert "left out 3 pretokens of more than 256 bytes" in caplog.text


def test_a_corpus_without_words_is_a_data_error(tiny: Tokenizer) -> None:
    with pytest.raises(DataError, match="the 1 train documents hold no words of at most 256 bytes"):
        count_pretokens(tiny, ["x" * 1_000_000])
