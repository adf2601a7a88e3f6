"""Token ids in the base's generation settings, after its vocabulary was changed."""

import json
from pathlib import Path

import pytest

from anadil.pretrain.checkpoint.hf_export import clean_generation_settings

SETTINGS = {
    "do_sample": True,
    "temperature": 0.6,
    "eos_token_id": [4],
    "suppress_tokens": [1, 2],
    "begin_suppress_tokens": [2],
    "bad_words_ids": [[1, 3], [2], [1]],
    "force_words_ids": [[[1], [2]]],
    "forced_bos_token_id": 3,
    "forced_eos_token_id": 2,
    "forced_decoder_ids": [[1, 3], [2, 2]],
    "sequence_bias": [[[3], -5.0], [[2, 3], 1.5]],
}
ROWS = [[0], [1], [0, 3], [3], [5]]
"""Token 2 of the base is gone: what has its id is made of two others."""


def put(folder: Path, rows: object) -> None:
    (folder / "generation_config.json").write_text(json.dumps(SETTINGS))
    (folder / "embedding_map.json").write_text(json.dumps({"strategy": "replace", "rows": rows}))


def test_ids_that_other_tokens_have_now_go_and_the_others_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, ROWS)

    clean_generation_settings(tmp_path, tmp_path)

    assert json.loads((tmp_path / "generation_config.json").read_text()) == {
        "do_sample": True,
        "temperature": 0.6,
        "eos_token_id": [4],
        "suppress_tokens": [1],
        "bad_words_ids": [[1, 3], [1]],
        "forced_bos_token_id": 3,
        "forced_decoder_ids": [[1, 3]],
        "sequence_bias": [[[3], -5.0]],
    }
    assert "bad_words_ids, begin_suppress_tokens, force_words_ids, forced_decoder_ids" in caplog.text


def test_settings_of_a_vocabulary_that_stayed_are_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, None)
    caplog.set_level("INFO")

    clean_generation_settings(tmp_path, tmp_path)

    assert json.loads((tmp_path / "generation_config.json").read_text()) == SETTINGS
    assert caplog.messages == [
        "generation_config.json: the base's sampling is kept: do_sample True, temperature 0.6"
    ]
