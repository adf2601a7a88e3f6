"""What a user sees who gives bad input: a clear message, the right exit code, nothing half-done."""

import gzip
import json
import subprocess
import sys
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


def test_an_unknown_key_names_the_nearest_one(tmp_path: Path) -> None:
    words = ["run", "--work", str(tmp_path), "--set", "pretrain.batchsize=8"]
    command = [sys.executable, "-m", "anadil", *words]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert "pretrain.batchsize: unknown key; did you mean 'batch_size'? (got 8)" in done.stderr


def test_a_missing_file_is_told_before_anything_runs(run: Run, tmp_path: Path) -> None:
    code, messages = run(tmp_path, "finetune.inputs=[/nowhere/chats.jsonl]", stage="finetune")

    assert code == 3
    assert "finetune.inputs: no file matches '/nowhere/chats.jsonl'" in messages
    assert not (tmp_path / "corpus").exists()


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


def test_s3_without_credentials_says_how_to_give_them(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))

    code, messages = run(tmp_path / "work", "clean.inputs=['s3://bucket/raw/*.jsonl']")

    assert code == 4
    assert "s3://bucket/raw/: no AWS credentials; set AWS_PROFILE" in messages


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
