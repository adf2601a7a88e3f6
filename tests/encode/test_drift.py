"""How the champion's tokenizer suits the text that came since."""

from pathlib import Path

import pytest

from anadil.encode.tokens_file import EarlierFacts
from tests.kit.pretraining import make_tokenizer_artifact
from tests.kit.weeks import facts_of, make_corpus, recipe_of, tokens_made

OWN = ("Bakı Azərbaycanın paytaxtıdır və ən böyük şəhəridir.", "Gəncə şəhəri Bakıdan sonra ikincidir.")
FOREIGN = ("Příliš žluťoučký kůň úpěl ďábelské ódy, řekl číšník.",)


def words_of(*texts: str) -> dict[str, int]:
    """Counts of a corpus as `clean` writes them."""
    return {
        "words_out": sum(len(text.split()) for text in texts),
        "bytes_out": sum(len(text.encode()) for text in texts),
    }


@pytest.mark.parametrize("new", [OWN[1:], FOREIGN], ids=["own", "foreign"])
def test_tokens_a_word_of_new_text_stand_beside_those_of_the_champions(
    tmp_path: Path, new: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    tokenizer = make_tokenizer_artifact(tmp_path / "tokenizer")
    first = make_corpus(tmp_path / "first", [OWN[:1]], stats=words_of(*OWN[:1]))
    second = make_corpus(tmp_path / "second", [OWN[:1], new], stats=words_of(*new))
    before = tokens_made(recipe_of(tmp_path / "root"), first, tokenizer)
    champion = {"corpus": str(first), "tokens": before.uri}

    made = tokens_made(recipe_of(tmp_path / "root", champion), second, tokenizer)

    facts, figures = facts_of(made), made.manifest.figures
    tokens = facts.tokens - facts.earlier.tokens
    earlier, later = (
        (facts.earlier.tokens - 2) / words_of(*OWN[:1])["words_out"],
        (tokens - 2) / words_of(*new)["words_out"],
    )
    assert figures["tokens_per_word_earlier"] == pytest.approx(earlier, abs=1e-3)
    assert figures["tokens_per_word_new"] == pytest.approx(later, abs=1e-3)
    assert figures["tokenizer_drift"] == pytest.approx(later / earlier - 1, abs=1e-4)
    assert figures["bytes_per_token_new"] == pytest.approx(
        words_of(*new)["bytes_out"] / (tokens - 2), abs=1e-3
    )
    assert (figures["new_documents"], figures["new_tokens"]) == (1, tokens)
    assert f"{later:.2f} tokens a word" in caplog.text
    assert ("anadil retrain --from-base" in caplog.text) == (new is FOREIGN)


def test_a_language_whose_words_are_not_counted_has_bytes_a_token(tmp_path: Path) -> None:
    tokenizer = make_tokenizer_artifact(tmp_path / "tokenizer")
    first, second = (make_corpus(tmp_path / name, [OWN[:1], FOREIGN][:n]) for n, name in ((1, "a"), (2, "b")))

    made = tokens_made(recipe_of(tmp_path / "root", {"corpus": str(first)}), second, tokenizer)

    figures = made.manifest.figures
    assert "tokens_per_word_new" not in figures
    ratio = float(figures["bytes_per_token_earlier"]) / float(figures["bytes_per_token_new"])
    assert figures["tokenizer_drift"] == pytest.approx(ratio - 1, abs=2e-3)


def test_a_run_without_a_champion_and_a_week_without_text_have_no_drift(tmp_path: Path) -> None:
    tokenizer = make_tokenizer_artifact(tmp_path / "tokenizer")
    corpus = make_corpus(tmp_path / "corpus", [OWN])
    plain = tokens_made(recipe_of(tmp_path / "root"), corpus, tokenizer)

    again = tokens_made(recipe_of(tmp_path / "root", {"corpus": str(corpus)}), corpus, tokenizer)

    assert facts_of(plain).earlier == EarlierFacts()
    assert "new_tokens" not in plain.manifest.figures
    assert again.manifest.figures["new_tokens"] == 0
    assert "tokenizer_drift" not in again.manifest.figures
