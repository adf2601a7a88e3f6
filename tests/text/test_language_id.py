import hashlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from anadil.core.errors import IntegrityError, PreflightError
from anadil.text import fasttext_model
from anadil.text.language import load_language
from anadil.text.language_data import Language, LanguageModel
from anadil.text.language_id import identify_language
from anadil.text.language_pack import Identification, LanguagePack, to_language


class FakeModel:
    """What `fasttext.load_model` gives, that knows one word."""

    def predict(self, text: str, k: int) -> tuple[tuple[str, ...], list[float]]:
        assert "\n" not in text, "predict processes one line at a time"
        return (("__label__qaa_Latn" if "zum" in text else "__label__eng_Latn",), [1.0])


@pytest.fixture
def language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Language:
    """A language that a model of the user's knows."""
    fasttext_model.load_fasttext.cache_clear()
    monkeypatch.setitem(sys.modules, "fasttext", SimpleNamespace(load_model=lambda _: FakeModel()))
    model = tmp_path / "model.bin"
    model.write_bytes(b"weights")
    table = LanguageModel(
        path=str(model), label="__label__qaa_Latn", sha256=hashlib.sha256(b"weights").hexdigest()
    )
    pack = LanguagePack(code="qaa", name="X", script="Latn", identification=Identification(model=table))
    return to_language(pack)


def test_a_model_of_the_user_decides(language: Language) -> None:
    found = [identify_language(text, language).is_language for text in ("du zum\nla", "the house")]

    assert found == [True, False]


def test_another_file_than_the_pack_was_made_with_is_refused(language: Language) -> None:
    assert language.model is not None
    Path(language.model.path).write_bytes(b"others")

    with pytest.raises(IntegrityError, match="is not the one that the pack was made with"):
        identify_language("du zum", language)


def test_a_model_without_its_package_is_refused_with_the_remedy(
    language: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fasttext", None)

    with pytest.raises(PreflightError, match="pip install fasttext-predict"):
        identify_language("du zum", language)


def test_a_language_without_a_pack_is_identified() -> None:
    kazakh = load_language("kk")
    text = "Қазақстан Республикасы Орталық Азияда орналасқан мемлекет, оның астанасы Астана қаласы."

    assert identify_language(text, kazakh).is_language
    assert not identify_language(
        "Кыргызстан Борбордук Азияда жайгашкан мамлекет, борбору Бишкек.", kazakh
    ).is_language
    assert identify_language(text, load_language("kk")).code == "kk"


def test_where_cld2_is_not_sure_something_else_has_to_agree() -> None:
    found = identify_language("Washington Examiner цитир", load_language("en"))

    assert (found.code, found.is_reliable, found.is_language) == ("en", False, False)
