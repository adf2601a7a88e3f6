import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from anadil.artifacts.base_model import read_tokenizer
from anadil.artifacts.base_vocabulary import base_settings, read_base, require_changeable, require_end
from anadil.core.errors import DataError
from anadil.recipe.sections import Tokenizer as Settings
from tests.kit.base_styles import END, make_base_tokenizer


def changed(folder: Path, name: str, **keys: Any) -> None:
    """Set keys of a file of settings; None takes one out."""
    content = json.loads((folder / name).read_text(encoding="utf-8")) | keys
    kept = {key: value for key, value in content.items() if value is not None}
    (folder / name).write_text(json.dumps(kept), encoding="utf-8")


@pytest.mark.parametrize("style", ["gpt2", "gpt2 by ids"])
def test_a_token_that_only_the_settings_name_is_special(tmp_path: Path, style: str) -> None:
    folder = make_base_tokenizer(tmp_path, style)

    tokenizer = read_base(folder)

    assert not read_tokenizer(folder).get_added_tokens_decoder()
    [(index, token)] = tokenizer.get_added_tokens_decoder().items()
    assert (index, token.content, token.special) == (300, END, True)
    assert index not in tokenizer.encode(f"a{END} {END}").ids


def test_config_json_gives_the_roles_that_nothing_else_names(tmp_path: Path) -> None:
    folder = make_base_tokenizer(tmp_path, "gpt2 by ids")

    settings = base_settings(folder, read_base(folder))

    assert settings == {"model_max_length": 1024, "bos_token": END, "eos_token": END}


def test_of_several_ids_that_end_a_text_the_first_is_its_name_and_all_are_special(tmp_path: Path) -> None:
    folder = make_base_tokenizer(tmp_path, "bloom")
    changed(folder, "tokenizer_config.json", eos_token=None)
    changed(folder, "tokenizer.json", added_tokens=[])
    changed(folder, "config.json", eos_token_id=[3, 2], pad_token_id=-1)

    tokenizer = read_base(folder)

    assert base_settings(folder, tokenizer)["eos_token"] == "<pad>"
    assert set(tokenizer.get_added_tokens_decoder()) == {0, 1, 2, 3}


def test_a_role_that_the_settings_refuse_is_not_given_by_config_json(tmp_path: Path) -> None:
    folder = make_base_tokenizer(tmp_path, "qwen2")
    assert "bos_token_id" in json.loads((folder / "config.json").read_text(encoding="utf-8"))

    assert base_settings(folder, read_base(folder))["bos_token"] is None


def test_an_id_of_an_ordinary_token_names_nothing(tmp_path: Path) -> None:
    folder = make_base_tokenizer(tmp_path, "gpt2 by ids")
    merged = next(token for token, _ in _by_length(folder))
    changed(folder, "config.json", bos_token_id=1, eos_token_id=read_tokenizer(folder).token_to_id(merged))

    tokenizer = read_base(folder)

    assert not tokenizer.get_added_tokens_decoder()
    with pytest.raises(DataError, match=r"no file says which token ends a text; name it as eos_token in"):
        require_end(folder, tokenizer)


def test_the_usual_end_is_taken_where_a_tokenizer_lies_alone(tmp_path: Path) -> None:
    folder = make_base_tokenizer(tmp_path, "gpt2 by ids")
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).unlink()

    tokenizer = read_base(folder)

    assert [token.content for token in tokenizer.get_added_tokens_decoder().values()] == [END]
    assert base_settings(folder, tokenizer) == {"eos_token": END}
    require_end(folder, tokenizer)


def _by_length(folder: Path) -> list[tuple[str, int]]:
    vocabulary = read_tokenizer(folder).get_vocab()
    return sorted(((token, index) for token, index in vocabulary.items() if token != END), key=_length)


def _length(item: tuple[str, int]) -> int:
    return -len(item[0])


def test_a_role_whose_token_has_no_id_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_base_tokenizer(tmp_path, "gpt2")
    changed(folder, "tokenizer_config.json", pad_token={"content": "<pad>", "lstrip": False})

    assert "pad_token" not in base_settings(folder, read_base(folder))
    assert "pad_token is '<pad>', which its vocabulary lacks; left out" in caplog.text


def test_special_tokens_map_json_names_roles_too(tmp_path: Path) -> None:
    folder = make_base_tokenizer(tmp_path, "gpt2")
    (folder / "tokenizer_config.json").rename(folder / "special_tokens_map.json")

    assert base_settings(folder, read_base(folder))["eos_token"] == END


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (models.WordLevel({"kitab": 0}, unk_token="kitab"), "its model is WordLevel"),
        (models.BPE(byte_fallback=True), "it lacks 256 of the 256 tokens of bytes, such as <0x00>"),
        (models.BPE(), r"its pre-tokenizer does not write text as bytes \(ByteLevel\)"),
    ],
)
def test_a_base_of_another_kind_can_only_be_kept(model: models.Model, found: str) -> None:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()

    with pytest.raises(DataError, match=rf"cannot be changed: {found}\. extend, surgery and replace .* to"):
        require_changeable(tokenizer, "words", Settings(strategies=("extend",)))
    require_changeable(tokenizer, "words", Settings(strategies=("base",)))


def test_a_byte_level_base_without_all_bytes_can_be_changed() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)

    require_changeable(tokenizer, "letters", Settings(strategies=("extend",)))
