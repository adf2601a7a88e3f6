"""The command around a model: lines of a pipe, a person at a terminal. What the model does is in tests/release."""

import contextlib
import itertools
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anadil.cli.main import command_parser, main
from anadil.cli.models import chat as command
from anadil.cli.models.chat import MAX_LINE_BYTES, Lines, Terminal, answer_lines
from anadil.core.errors import DataError, RecipeError
from anadil.page.translation import Translation


class EchoModel:
    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def answers(self, questions: Sequence[str]) -> list[str | DataError]:
        self.batches.append(list(questions))
        return [DataError("too long") if "long" in each else each for each in questions]


class FakeChat:
    def __init__(self, pieces: Callable[[str], Iterator[str]]) -> None:
        self.pieces, self.resets, self.left_out = pieces, 0, 0
        self.asked: list[str] = []
        self.model = SimpleNamespace(writer=SimpleNamespace(ended=True))

    def ask(self, question: str) -> Iterator[str]:
        self.asked.append(question)
        return self.pieces(question)

    def reset(self) -> None:
        self.resets += 1


def piped(content: bytes) -> int:
    """The end of a pipe from which the content can be read."""
    reader, writer = os.pipe()

    def fill() -> None:
        with os.fdopen(writer, "wb") as stream:
            stream.write(content)

    threading.Thread(target=fill).start()
    return reader


def answered(content: bytes, capsys: pytest.CaptureFixture[str]) -> list[str]:
    answer_lines(EchoModel(), piped(content))  # type: ignore[arg-type]
    return capsys.readouterr().out.split("\n")[:-1]


def talk(chat: FakeChat, *lines: str | type[BaseException], texts: Translation | None = None) -> int:
    given = iter([*lines, EOFError])

    def read(_prompt: str) -> str:
        line = next(given)
        if isinstance(line, str):
            return line
        if line is KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)  # the signal comes meanwhile
        raise line

    return Terminal(chat, read, texts).run()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"bir", ["bir"]),
        (b"bir\n\nfour\r\n", ["bir", "", "four"]),
        (b"\n\n", ["", ""]),
        ("\ufeffə".encode() + b"\n" * 100 + "🧿".encode(), ["ə", *[""] * 99, "🧿"]),
    ],
)
def test_each_line_gets_exactly_one_line(
    content: bytes, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert answered(content, capsys) == expected


def test_what_would_end_a_line_is_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = "bir\niki\\n\r\x1b[2J\x85\u2028\tüç 🧿"
    monkeypatch.setattr(EchoModel, "answers", lambda _, questions: [answer for _ in questions])

    lines = answered(b"?\n", capsys)

    assert lines == ["bir\\niki\\\\n\\r\\x1b[2J\\x85\\u2028\tüç 🧿"]
    assert lines[0].splitlines() == lines


def test_a_line_that_cannot_be_answered_gets_an_empty_one_and_the_others_theirs(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    content = b"bir\n\xff\n" + b"a" * (MAX_LINE_BYTES * 3) + b"\nlong\niki\n" + b"b" * (MAX_LINE_BYTES + 1)

    with pytest.raises(DataError, match="4 of 6 lines were not answered"):
        answered(content, capsys)

    assert capsys.readouterr().out.split("\n") == ["bir", "", "", "", "iki", "", ""]
    assert "line 2: no UTF-8 at byte 0" in caplog.text
    assert "line 3: longer than 1,048,576 bytes" in caplog.text
    assert "line 4: too long" in caplog.text


def test_who_waits_for_an_answer_gets_it_and_lines_that_are_there_go_together() -> None:
    reader, writer = os.pipe()
    batches = Lines(reader).batches()
    os.write(writer, b"bir\nik")

    assert next(batches) == ["bir"]
    os.write(writer, b"i\n" + b"?\n" * 40)
    assert [len(next(batches)) for _ in range(2)] == [32, 9]
    os.close(writer)
    assert list(batches) == []


def test_a_line_without_an_end_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, held = Lines(0), []
    chunks = iter([b"a" * (1 << 16)] * 64 + [b"\nbir\n", b""])

    def read(*_: int) -> bytes:
        held.append(len(lines._buffer))
        return next(chunks)

    monkeypatch.setattr(command, "os", SimpleNamespace(read=read))
    monkeypatch.setattr(Lines, "_is_more", lambda _: True)
    (too_long, second) = (line for batch in lines.batches() for line in batch)

    assert isinstance(too_long, DataError)
    assert second == "bir"
    assert max(held) <= MAX_LINE_BYTES


def test_a_person_asks_and_reads(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    chat = FakeChat(lambda question: iter([f"{question}: ", "\x1b[2Jcavab\nsətir"]))

    code = talk(chat, "Salam!", "", "/reset", "/help", "/unknown", " /etc", "/exit", "after")

    out = capsys.readouterr().out
    assert code == 0
    assert chat.asked == ["Salam!", "/etc"]
    assert chat.resets == 1
    assert "Salam!: [2Jcavab\nsətir\n" in out  # no escape: the terminal is the person's
    assert "/reset  forget" in out
    assert "/unknown: no such command" in caplog.text


def test_an_interrupt_ends_the_answer_and_the_next_one_the_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def endless(_question: str) -> Iterator[str]:
        for number in itertools.count():
            if number == 3:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)
            yield f"{number} "

    chat = FakeChat(endless)

    assert talk(chat, "?", "??") == 0
    assert capsys.readouterr().out == "0 1 2 3  ...\n" * 2 + "\n"
    with pytest.raises(KeyboardInterrupt):
        talk(chat, "?", KeyboardInterrupt)


def test_one_interrupt_at_the_prompt_only_says_how_to_leave(capsys: pytest.CaptureFixture[str]) -> None:
    chat = FakeChat(lambda _: iter(["bəli"]))

    assert talk(chat, KeyboardInterrupt, "?") == 0
    assert "Ctrl-C once more, or /exit, leaves\nbəli" in capsys.readouterr().out
    with pytest.raises(KeyboardInterrupt):
        talk(chat, KeyboardInterrupt, KeyboardInterrupt)


def test_a_second_interrupt_ends_an_answer_that_does_not_come() -> None:
    def stuck(_question: str) -> Iterator[str]:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        yield "never"

    with pytest.raises(KeyboardInterrupt):
        talk(FakeChat(stuck), "?")


def test_turns_that_left_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    chat = FakeChat(lambda _: iter(["bəli"]))

    def ask(_question: str) -> Iterator[str]:
        chat.left_out += 2
        return iter(["bəli"])

    chat.ask = ask  # type: ignore[method-assign, assignment]
    with caplog.at_level("INFO", "anadil"):
        talk(chat, "1", "2", "3")

    assert caplog.text.count("no longer fit") == 1


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--temperature=nan", "no number from 0 up"),
        ("--max-tokens=0", "no whole number from 1 up"),
        ("--seed=x", "no whole number from 0 up"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    option: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        command_parser("chat").parse_args(["chat", "URI", option])

    assert error.value.code == 2
    assert words in capsys.readouterr().err


def test_a_system_turn_and_a_continuation_contradict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "URI", "--complete", "--system", "Qısa."]) == 2
    assert "leave one of them out" in capsys.readouterr().err


@pytest.mark.matrix
def test_in_a_terminal_it_streams_and_leaves_at_the_second_interrupt(tmp_path: Path) -> None:
    from tests.evaluate.conftest import TEMPLATE, tiny_model, train_tokenizer

    tokenizer: Any = train_tokenizer(320)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    tiny_model(len(tokenizer), max_positions=2048).save_pretrained(tmp_path)
    words = [sys.executable, "-m", "anadil", "chat", str(tmp_path)]
    lines = b"Salam\n" * 2000
    command = f"{' '.join(words)} --max-tokens 1 | head -n 1"
    piped = subprocess.run(command, shell=True, input=lines, capture_output=True, check=True)
    assert (piped.stdout.count(b"\n"), piped.stderr) == (1, b"")

    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*words, "--max-tokens", "2000"], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        shown = b""
        for until, send in ((b"> ", b"Salam\n"), (b"Salam\r\n", b""), (b"...", b"")):
            while until not in shown:
                shown += os.read(ours, 1 << 12)
            if until == b"Salam\r\n":
                while shown.endswith(until):
                    shown += os.read(ours, 1 << 12)
                process.send_signal(signal.SIGINT)
            if until == b"...":
                process.send_signal(signal.SIGINT)
            os.write(ours, send)
        # One that comes between the prompt and readline's wait is seen with the next key or signal only.
        for _ in range(6):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
                break
            process.send_signal(signal.SIGINT)
        assert process.poll() == 130
    os.close(ours)
    assert b"Traceback" not in shown


def test_the_chats_own_words_are_in_the_language_of_the_reader(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    chat = FakeChat(lambda _: iter(["a new chat"]))

    assert talk(chat, "/reset", "/help", "/what", "Salam", texts=Translation("az")) == 0

    assert [record.getMessage() for record in caplog.records] == [
        "Ana dilində danışan heç kim bu tərcüməni hələ oxumayıb.",
        "No native speaker has read this translation.",
        "yeni söhbət",
        "/what: belə əmr yoxdur; /help onları sadalayır",
    ]
    printed = capsys.readouterr().out
    assert "/exit   çıx, Ctrl-D kimi" in printed
    assert "a new chat" in printed  # the model's answer


@pytest.mark.parametrize("reader", ["az", "ja"])
def test_every_word_of_the_help_is_translated(reader: str) -> None:
    texts = Translation(reader)

    assert all(texts.known(line) not in (None, line) for line in command.HELP.split("\n"))


def test_a_reader_without_a_translation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="--reader tr: has no translation, take one of en, az, ja"):
        command.run_chat(command_parser("chat").parse_args(["chat", str(tmp_path), "--reader", "tr"]))
