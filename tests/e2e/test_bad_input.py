"""What a user sees who gives bad input: a clear message, the right exit code, nothing half-done."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from anadil.cli import main

TEXT = (
    "Bakı şəhəri Xəzər dənizinin sahilində yerləşir və ölkənin ən böyük şəhəridir. Burada çoxlu muzey, teatr "
    "və kitabxana var. Hər il minlərlə insan şəhəri görmək üçün uzaq yerlərdən gəlir, köhnə küçələrdə gəzir, "
    "çay içir və yerli xörəklərin dadına baxır. Axşamlar sahildə külək əsir, insanlar bulvarda söhbət edirlər. "
    "Uşaqlar üçün parklar da çoxdur, onlar orada oynayır və böyüklər isə kölgədə dincəlirlər."
)


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """`anadil run` with overrides: exit code and messages; never a traceback, never an output after a failure."""

    def start(work: Path, *settings: str, stage: str = "clean") -> tuple[int, str]:
        words = [word for setting in settings for word in ("--set", setting)]
        code = main.main(["run", "--work", str(work), "--until", stage, *words])
        out, messages = capfd.readouterr()
        assert "Traceback" not in messages
        assert not (code and out)
        return code, messages

    return start


def raw(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return f"clean.inputs=[{path}]"


def lines(count: int) -> str:
    return "".join(json.dumps({"text": f"{TEXT} Bu, {n} nömrəli mətndir."}) + "\n" for n in range(count))


@pytest.mark.matrix
def test_a_corpus_that_is_empty_after_cleaning_says_what_was_dropped(run: Run, tmp_path: Path) -> None:
    code, messages = run(
        tmp_path, raw(tmp_path / "short.jsonl", json.dumps({"text": "Salam, dünya."}) + "\n")
    )

    assert code == 3
    assert "corpus is empty after cleaning: 1 document in, dropped: short 1" in messages
    assert "clean.rules.min_words (50)" in messages
    assert not list(tmp_path.glob("corpus/*/manifest.json"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("bad.jsonl", lines(3) + '{"text": \n', "bad.jsonl:4"),
        ("bad.warc.gz", gzip.compress(b"this is no WARC record at all" * 50), "bad.warc.gz"),
    ],
)
def test_an_invalid_json_line_and_a_file_that_is_no_warc_are_named(
    run: Run, tmp_path: Path, name: str, content: str | bytes, words: str
) -> None:
    code, messages = run(tmp_path, raw(tmp_path / name, content))

    assert code == 3
    assert words in messages
    assert not list(tmp_path.glob("corpus/*/manifest.json"))


def test_chats_without_an_answer_are_refused_before_anything_runs(run: Run, tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    chats.write_text(
        json.dumps({"messages": [{"role": "user", "content": "Salam?"}]}) + "\n", encoding="utf-8"
    )

    code, messages = run(tmp_path / "work", f"finetune.inputs=[{chats}]", stage="finetune")

    assert code == 3
    assert "no_answer 1" in messages
    assert "chats.jsonl:1" in messages
    assert not (tmp_path / "work/corpus").exists()
