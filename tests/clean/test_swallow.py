import json
import os
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anadil.clean.filters.judge import Judge
from anadil.clean.kernels.columns import COLUMN
from anadil.text.filter_rules import RULES, RuleName
from anadil.text.language import load_language
from tests.kit.reference_statistics import swallow_keeps, swallow_repetition
from tests.kit.texts import JAPANESE, MORE_JAPANESE

DATA = os.environ.get("ANADIL_DATA", "")
OF_SWALLOW: set[RuleName] = {
    "short", "kana", "sentence_length", "ellipsis_sentences", "duplicate_sentences", "top_char_ngram",
    "duplicate_char_ngrams",
}  # fmt: skip
ja = load_language("ja")
JUDGE = Judge(ja, modes={rule.name: "report" for rule in RULES if rule.name not in OF_SWALLOW})
SENTENCES = [f"{sentence}。" for sentence in (JAPANESE + MORE_JAPANESE).split("。") if sentence]
PIECES = (
    *SENTENCES, *SENTENCES, "\n", "\n\n", "！", "！！", "そうだった…", "それは・", "カタカナノモジバカリ。", "abc def ghi jkl. ", "、" * 9,
    "東京都千代田区霞が関一丁目" * 6, "Ｘ．Ｙ，",
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), min_size=8, max_size=40))
def test_verdicts_are_those_of_the_published_rules(pieces: list[str]) -> None:
    text = "".join(pieces).strip("\n") or "。"

    assert (JUDGE.judge([text]).reasons == [None]) == swallow_keeps(text)


@pytest.mark.parametrize("order", range(2, 11))
def test_repetition_of_characters_is_that_of_the_published_rules(order: int) -> None:
    text = "".join(random.Random(order).choices("あいう", k=500))
    column = f"top_char_{order}gram" if order < 5 else f"duplicate_char_{order}grams"

    judged = JUDGE.judge([text])

    assert judged.statistics[0, COLUMN[column]] == pytest.approx(swallow_repetition(text, order))


@pytest.mark.skipif(not DATA, reason="set ANADIL_DATA to the directory with ja/")
def test_verdicts_on_real_documents_are_those_of_the_published_rules() -> None:
    files = sorted(Path(DATA, "ja").glob("*.jsonl"))
    texts = [
        ja.normalize(json.loads(line)["text"])[:3_000]
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()[::4]
    ]

    kept = [reason is None for reason in Judge(ja).judge(texts).reasons]

    # Other rules than Swallow's drop some, too.
    assert texts
    assert sum(a == swallow_keeps(text) for a, text in zip(kept, texts, strict=True)) >= 0.99 * len(texts)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SENTENCES[0] * 3, "short"),
        ("\n".join(["".join(SENTENCES)] * 2), "duplicate_sentences"),
        ("".join(SENTENCES).replace("。", "、"), "sentence_length"),
        ("".join(SENTENCES).replace("。", "…。\n").replace("…。", "…"), "ellipsis_sentences"),
        ("。".join(re.findall(".{30}", "".join(map(chr, range(0x4E00, 0x5800))))), "kana"),
    ],
)
def test_what_swallow_drops_is_dropped_with_its_reason(text: str, reason: str) -> None:
    assert JUDGE.judge([text]).reasons == [reason]


def test_blank_lines_are_no_lines_that_repeat() -> None:
    assert JUDGE.judge(["\n\n".join(SENTENCES)]).reasons == [None]
