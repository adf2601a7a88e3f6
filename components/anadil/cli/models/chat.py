"""`anadil chat`: talk to a finished model, in the terminal or through a pipe."""

import argparse
import logging
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from anadil.cli.options import number
from anadil.core.errors import INTERRUPTED, DataError, RecipeError
from anadil.core.format import CONTROLS, MIB
from anadil.page.translation import ENGLISH, Translation, languages
from anadil.preflight.this_machine import require_packages
from anadil.runtime.signals import handle_signals

if TYPE_CHECKING:
    from anadil.release.chat.conversation import Chat, ChatModel

log = logging.getLogger(__name__)

# Longest line that is read; no model's length has room for it.
MAX_LINE_BYTES = MIB
BATCH_LINES = 32  # Most lines of a pipe that are answered side by side.
HELP = """/reset  forget this chat and begin another
/help   these words
/exit   leave, as Ctrl-D does
Ctrl-C ends an answer, twice the program. A line that is to begin with / gets a blank before it."""
DESCRIPTION = """Talk to a finished model. In a terminal the answer is printed while it is generated. Of a pipe each line is a
question of its own, and each gets exactly one line: in an answer a backslash is written \\\\, a line break \\n and any
other control character \\xHH or \\uHHHH. A line that cannot be answered gets an empty one, a message on stderr, and
exit code 3 at the end."""
# Characters that would end a line or move a cursor, if answers are lines.
ESCAPES = {**CONTROLS, ord("\\"): "\\\\"}
# Characters that a model must not send to a terminal.
UNSEEN = dict.fromkeys(code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t")


def add_chat(command: argparse.ArgumentParser) -> None:
    """Put the command among those of `anadil`."""
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.description, command.epilog = DESCRIPTION, HELP
    help_text = "model, merged model or adapter, its directory, or models:/NAME@ALIAS of the registry"
    command.add_argument("model", metavar="URI", help=help_text)
    command.add_argument("--system", default="", metavar="TEXT", help="system prompt")
    command.add_argument("--complete", action="store_true", help="continue each text instead of answering it")
    help_text = "seed of the sampling (default: 0)"
    command.add_argument("--seed", type=number(0), default=0, metavar="N", help=help_text)
    help_text = "sampling temperature; 0 takes the likeliest token (default: 0.6)"
    command.add_argument("--temperature", type=number(0, whole=False), metavar="T", help=help_text)
    help_text = "maximum number of tokens of an answer (default: 512)"
    command.add_argument("--max-tokens", type=number(1), metavar="N", help=help_text)
    help_text = "maximum number of tokens of chat and answer (default: the model's, at most 8192)"
    command.add_argument("--context", type=number(1), metavar="N", help=help_text)
    help_text = "address of the registry of models:/ (default: MLFLOW_TRACKING_URI)"
    command.add_argument("--tracking", metavar="URI", help=help_text)
    help_text = "language of the chat's own words: en, az or ja (default: en)"
    command.add_argument("--reader", default=ENGLISH, metavar="LANGUAGE", help=help_text)
    command.set_defaults(command=run_chat)


def run_chat(options: argparse.Namespace) -> int:
    """Load the model and answer until the input ends."""
    if options.complete and options.system:
        raise RecipeError("--system is for a chat, and --complete continues a text; leave one of them out")
    if options.reader not in (known := languages()):
        raise RecipeError(f"--reader {options.reader}: has no translation, take one of {', '.join(known)}")
    require_packages("evaluate")
    from anadil.release.chat.conversation import Chat, ChatSettings, open_chat

    names = ("system", "complete", "seed", "temperature", "max_tokens", "context")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    try:
        model = open_chat(options.model, ChatSettings(**given), options.tracking)
        if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
            return answer_lines(model, sys.stdin.fileno() if sys.stdin else None)
        does = "it continues what you begin" if model.settings.complete else "ask it something"
        device = model.model.device.type
        texts = None if options.reader == ENGLISH else Translation(options.reader)
        terminal = Terminal(Chat(model), texts=texts)
        log.info("%s", terminal.say(f"{model.name} on {device}, {model.context:,} tokens; {does}, or /help"))
        return terminal.run()
    except KeyboardInterrupt:  # a person leaves, and nothing is to be resumed
        return INTERRUPTED


class Terminal:
    """A chat with a person; `read` shows a prompt and returns a line, or raises EOFError."""

    def __init__(
        self, chat: "Chat", read: Callable[[str], str] = input, texts: Translation | None = None
    ) -> None:
        self._chat, self._read, self._texts = chat, read, texts
        self._interrupts = 0  # Since the last line.
        self._answering = False

    def say(self, text: str) -> str:
        """Words of the program in the language of the person."""
        return "\n".join(map(self._texts.node, text.split("\n"))) if self._texts else text

    def run(self) -> int:
        """Ask and answer until the person leaves; the exit code."""
        for _, note in self._texts.notes() if self._texts else ():
            log.info("%s", note)
        with handle_signals({signal.SIGINT: self._interrupt}):
            while (line := self._line()) is not None:
                self._interrupts = 0
                word = line.strip()
                if word == "/exit":
                    return 0
                if word == "/reset":
                    self._chat.reset()
                    log.info("%s", self.say("a new chat"))
                elif word == "/help":
                    print(self.say(HELP))
                elif line.startswith("/"):
                    log.warning("%s", self.say(f"{word[:40]}: no such command; /help lists them"))
                elif word:
                    self._answer(line.removeprefix(" ") if line.startswith(" /") else line)
        print()
        return 0

    def _interrupt(self, _number: int, _frame: object) -> None:
        self._interrupts += 1
        if self._interrupts > 1 or not self._answering:
            raise KeyboardInterrupt

    def _line(self) -> str | None:
        """Text that the person writes; None at the end."""
        while True:
            try:
                return self._read("> ")
            except EOFError:
                return None
            except KeyboardInterrupt:
                if self._interrupts > 1:
                    raise
                print(f"\n{self.say('Ctrl-C once more, or /exit, leaves')}")
            except UnicodeDecodeError:
                log.warning("%s", self.say("this line is no UTF-8; write it again"))

    def _answer(self, question: str) -> None:
        self._answering = True
        left_out = self._chat.left_out
        try:
            for piece in self._chat.ask(question):
                sys.stdout.write(piece.translate(UNSEEN))
                sys.stdout.flush()
                if self._interrupts:
                    break
        except DataError as error:
            log.warning("%s", self.say(str(error)))
            return
        finally:
            self._answering = False
        print(" ..." if self._interrupts or not self._chat.model.writer.ended else "")
        if self._chat.left_out and not left_out:
            words = "the oldest turns no longer fit the model's length and are left out from here on; /reset starts over"
            log.info("%s", self.say(words))


def answer_lines(model: "ChatModel", descriptor: int | None) -> int:
    """Write a line for each line of the input, in order; the exit code."""
    # Only available lines form a batch, so a caller that waits for an answer before the next question gets it.
    failed = total = 0
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")
    for lines in Lines(descriptor).batches() if descriptor is not None else ():
        questions = [line if isinstance(line, str) else "" for line in lines]
        for line, answer in zip(lines, model.answers(questions), strict=True):
            total += 1
            fault = next((each for each in (line, answer) if isinstance(each, DataError)), None)
            if fault:
                failed += 1
                log.warning("line %d: %s", total, fault)
            print("" if fault else str(answer).translate(ESCAPES))
        if sys.stdout:  # None where the caller closed it
            sys.stdout.flush()
    if failed:
        raise DataError(f"{failed:,} of {total:,} lines were not answered; shorten or correct them")
    return 0


class Lines:
    """The lines of a pipe or file, in batches of those that are available."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray()
        self._too_long = False  # True if the buffer continues a line that is skipped.
        self._done = False

    def batches(self) -> Iterator[list[str | DataError]]:
        """Yield at least one line each, without its end; an error for a line that is too long or no UTF-8."""
        while not self._done:
            lines: list[str | DataError] = []
            while not self._done and len(lines) < BATCH_LINES and (not lines or self._is_more()):
                lines += self._take(BATCH_LINES - len(lines))
            if lines:
                yield lines

    def _is_more(self) -> bool:
        return b"\n" in self._buffer or bool(select.select([self._descriptor], [], [], 0)[0])

    def _take(self, most: int) -> Iterator[str | DataError]:
        if b"\n" not in self._buffer:
            content = os.read(self._descriptor, 1 << 16)
            self._done = not content
            self._buffer += content
        for _ in range(most):
            line, end, rest = self._buffer.partition(b"\n")
            if not end and not (self._done and (line or self._too_long)):
                break
            self._buffer = rest
            yield self._text(line)
        if b"\n" not in self._buffer and (self._too_long or len(self._buffer) > MAX_LINE_BYTES):
            self._too_long = True
            self._buffer.clear()

    def _text(self, line: bytearray) -> str | DataError:
        too_long, self._too_long = self._too_long or len(line) > MAX_LINE_BYTES, False
        if too_long:
            return DataError(f"longer than {MAX_LINE_BYTES:,} bytes, which no model's length has room for")
        try:
            return line.decode("utf-8").rstrip("\r").removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            return DataError(f"no UTF-8 at byte {error.start:,}; convert it")
