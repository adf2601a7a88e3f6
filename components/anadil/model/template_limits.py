"""Limits of a base's chat template. It is a program, so it first writes some chats in a process of its own.

`python -m anadil.model.template_limits` is that process; it loads nothing but Jinja.
"""

import functools
import json
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from anadil.core.errors import DataError
from anadil.core.format import GIB, MIB, human_bytes
from anadil.core.processes import data_bytes, limit

Turns = tuple[tuple[str, str], ...]
CPU_S = 2
"""For a few short chats, which take a hundredth of a second."""
MEMORY_BYTES = GIB
"""Beyond what the process has when it begins to write."""
MAX_CHARS = 16 * MIB
"""Characters of a short chat as it is written."""
WALL_S = 30
"""On a machine that is busy with other things."""
SAMPLES = (
    (("user", "Salam, necəsən?"), ("assistant", "Yaxşıyam: 1 + 2 = 3.")),
    (("user", "Bir?"), ("assistant", "İki!"), ("user", "Üç (3)?"), ("assistant", "(Dörd)\n\n- beş")),
    (("system", "Qısa cavab ver."), ("user", "Salam!"), ("assistant", "Salam!")),
)
"""Chats on which a template is tried."""
LONG: Turns = tuple((role, "Salam, necəsən? " * 20) for _ in range(20) for role in ("user", "assistant"))
"""A template may count turns or characters."""
CHAT_CPU_S = 20
"""For any chat of the user's, whose turns no sample foresees, or for some of them together."""
MAX_TEMPLATE_CHARS = MIB
"""Published ones have up to some ten thousand; Jinja takes a minute to read 50 million."""
MAX_KEPT = 32
"""Templates whose answers are kept; a process meets two or three."""
TOO_MUCH = 77
"""Exit code of the process where memory, the length of a chat or the depth of calls is the limit."""
RAISED = (
    TemplateError, ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""By a template, which is a program."""

PLACES = "chat_template.jinja, or chat_template in tokenizer_config.json"


@functools.lru_cache(maxsize=MAX_KEPT)
def check_limits(template: str, name: str) -> None:
    """Refuse a template that takes minutes or gigabytes for short chats."""
    messages = [[{"role": role, "content": text} for role, text in chat] for chat in (*SAMPLES, LONG)]
    try_chats(template, name, messages, CPU_S, "a short chat")


def try_chats(
    template: str, name: str, chats: Sequence[Sequence[Mapping[str, str]]], cpu_s: int, words: str
) -> None:
    """Refuse a template that takes seconds or gigabytes for one of the chats, which `words` name, as far as `cpu_s` reach."""
    fault = f"has {len(template):,} characters, over {MAX_TEMPLATE_CHARS:,}"
    if len(template) <= MAX_TEMPLATE_CHARS:
        fault = _fault(template, chats, cpu_s, words)
    if fault:
        raise DataError(
            f"{name}: its chat template ({PLACES}) {fault}; correct it, or take another base.model"
        )


def _fault(template: str, chats: Sequence[Sequence[Mapping[str, str]]], cpu_s: int, words: str) -> str:
    # -P: no module of the current directory is imported.
    command = [sys.executable, "-P", "-m", "anadil.model.template_limits"]
    given = json.dumps([template, chats, CPU_S, cpu_s]).encode()
    try:
        done = subprocess.run(command, input=given, capture_output=True, check=False, timeout=WALL_S + cpu_s)
        code, said = done.returncode, done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    except subprocess.TimeoutExpired:
        code, said = TOO_MUCH, ""
    if code == TOO_MUCH or code < 0:  # a signal: out of CPU time
        return (
            f"takes more than {CPU_S} s, {human_bytes(MEMORY_BYTES)} of memory or {human_bytes(MAX_CHARS)} of text to write "
            f"{words}, or calls itself without end"
        )
    return f"cannot be tried ({said})" if code else ""


@contextmanager
def bounded_time() -> Iterator[None]:
    """Refuse a template that takes more than `CHAT_CPU_S` within the block, which no sample has shown.

    Signals reach the main thread alone; in others nothing is bounded.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPROF, _out_of_time)
    signal.setitimer(signal.ITIMER_PROF, CHAT_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _out_of_time(*_: object) -> None:
    raise DataError(
        f"the chat template of the base ({PLACES}) takes more than {CHAT_CPU_S} s to write one chat; correct it, or take "
        "another base.model"
    )


class _Generation(Extension):
    """`{% generation %}` of transformers, which marks what is trained."""

    tags = {"generation"}  # noqa: RUF012  as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _render(template: str, chats: Sequence[Sequence[Mapping[str, str]]], each_s: int) -> bool:
    """Write chats, also up to each turn, as `apply_chat_template` does; return True if all are short.

    Source: transformers, utils/chat_template_utils.py.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals |= {"raise_exception": _refuse, "strftime_now": time.strftime}
    compiled = environment.from_string(template)
    given: dict[str, Any] = dict.fromkeys(("tools", "documents"))
    for messages in chats:
        if time.process_time() > CHAT_CPU_S - CPU_S:
            break  # many long chats, none of which took long
        most = MAX_CHARS + sum(len(text) for message in messages for text in message.values())
        for end in range(1, len(messages) + 1):
            for opens in (False, True):
                signal.setitimer(signal.ITIMER_PROF, each_s)  # its signal ends the process
                try:
                    text = compiled.render(messages=messages[:end], add_generation_prompt=opens, **given)
                except RecursionError:
                    return False
                except RAISED:
                    continue  # this chat is left to its proof, the others may take long
                if len(text) > most:
                    return False
    return True


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _main() -> int:
    template, chats, each_s, cpu_s = json.load(sys.stdin)
    # A process that ends at a limit must not leave gigabytes of core file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + cpu_s)
    limit(resource.RLIMIT_DATA, data_bytes() + MEMORY_BYTES)
    try:
        return 0 if _render(template, chats, each_s) else TOO_MUCH
    except (MemoryError, RecursionError):
        return TOO_MUCH
    except RAISED:
        return 0  # it is left to its proof


if __name__ == "__main__":
    sys.exit(_main())
