"""Golden message sequences: the recipes, the text files under ``fixtures/golden``, and the first difference.

A golden is derived from a script by the protocol's own rule (``WireProtocol.expected_messages``), never recorded from a
server. The files exist to be reviewed: one line a message, the request first. A change of the rule shows as a change
of the files, and a change of a server shows as a difference from them.
"""

from __future__ import annotations

import importlib.resources
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_grpc_conformance import registry
from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.script import (
    Prompt,
    Script,
    StopText,
    Token,
    one_by_one,
    pieces,
    scored,
    script,
    side_by_side,
    tokens,
)
from pytest_grpc_conformance.protocols.base import Message, Request, WireProtocol

SIZES = (1, 17, 257)
"""Tokens that a request yields (per sequence: the second sequence of a pair is about half as long)."""
PROMPT = (11, 12, 13, 14, 15)
MODEL = "fake-model"
EOS = frozenset({2})
START_SECONDS = 60.0
"""How long a process of ours may take to start and to answer, beside what a hung server may take."""


REMEDY = "restore it, or write it anew with pytest --grpc-update-golden and review what changed"


class BrokenGolden(Exception):
    """A golden file is missing or cannot be read; the message names it and says what to do."""

    tells_all = True


@dataclass(frozen=True, slots=True)
class Recipe:
    """One golden: a request and the script behind it."""

    protocol: str
    shape: str
    size: int
    request: Request
    script: Script

    @property
    def name(self) -> str:
        return f"{self.shape}-{self.size}"

    @property
    def file(self) -> str:
        """The file's path below ``fixtures/golden``."""
        return f"{self.protocol}/{self.name}.textproto"


def _plain(size: int) -> tuple[Request, Script]:
    return _request(size), script(one_by_one(tokens(size)))


def _logprobs(size: int) -> tuple[Request, Script]:
    prompt = scored((Token(i) for i in PROMPT), candidates=2)
    first = Token(PROMPT[0])
    return (
        _request(size).but(logprobs=2, prompt_logprobs=2),
        script(one_by_one(scored(tokens(size), candidates=3)), prompt=(first, *prompt[1:])),
    )


def _two_sequences(size: int) -> tuple[Request, Script]:
    shorter = tokens(size // 2 + 1, start=50_000)
    return _request(size).but(num_sequences=2, temperature=1.0), script(side_by_side(tokens(size), shorter))


def _stop_string(size: int) -> tuple[Request, Script]:
    stop = StopText("<end>")
    told = (*tokens(size), *pieces("<en", "d> more", start=90_000))
    return _request(size + 10).but(stops=(stop,)), script(one_by_one(told))


def _split_characters(size: int) -> tuple[Request, Script]:
    # One byte a token splits characters of 2, 3 and 4 bytes and a combining mark; the end may be incomplete.
    stream = ("\u00e9\u4e16\U0001f600e\u0301 " * (size // 10 + 1)).encode()[:size]
    return _request(size), script(one_by_one(pieces(*(stream[i : i + 1] for i in range(size)))))


def _non_streaming(size: int) -> tuple[Request, Script]:
    request, plain = _plain(size)
    return request.but(streaming=False), plain


def _request(max_tokens: int) -> Request:
    return Request("golden", PROMPT, max_tokens=max_tokens, model=MODEL)


SHAPES: dict[str, dict[str, Callable[[int], tuple[Request, Script]]]] = {
    "openengine": {
        "plain": _plain,
        "logprobs": _logprobs,
        "two-sequences": _two_sequences,
        "stop-string": _stop_string,
        "split-characters": _split_characters,
    },
    "smg": {
        "streaming": _plain,
        "non-streaming": _non_streaming,
        "logprobs": _logprobs,
        "two-sequences": _two_sequences,
    },
}


def recipes(protocol: str) -> Iterator[Recipe]:
    """The goldens of a protocol; none for a protocol that we have no goldens for."""
    for shape, make in SHAPES.get(protocol, {}).items():
        for size in SIZES:
            yield Recipe(protocol, shape, size, *make(size))


@dataclass(frozen=True, slots=True)
class Golden:
    """What a golden file holds."""

    file: str
    request: Message
    messages: tuple[Message, ...]


def derive(recipe: Recipe) -> Golden:
    """The golden of a recipe, by rule."""
    wire = registry.protocol(recipe.protocol)
    played = course(recipe.script, recipe.request.parameters(), EOS)
    prompt = Prompt(PROMPT)
    messages = wire.expected_messages(recipe.request, prompt, recipe.script, played)
    return Golden(recipe.file, wire.to_message(recipe.request, model=MODEL), tuple(messages))


# The files.

_HEAD = """\
# {title}: {name}
# Derived from a script by rule; write it anew with pytest --grpc-update-golden and review what changed.
# One line a message in protobuf text format: the request, then each response in order.
"""


def render(golden: Golden, title: str, name: str) -> str:
    """The text of a golden file."""
    from google.protobuf import text_format

    messages = (golden.request, *golden.messages)
    lines = [text_format.MessageToString(message, as_utf8=True, as_one_line=True) for message in messages]
    return _HEAD.format(title=title, name=name) + "\n".join(lines) + "\n"


def folder() -> Path:
    """Where the golden files lie."""
    return Path(str(importlib.resources.files("pytest_grpc_conformance.fixtures") / "golden"))


def load(recipe: Recipe) -> Golden:
    """The golden file of a recipe. Raises ``BrokenGolden``, also when the file and the rule disagree."""
    path = folder() / recipe.file
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise BrokenGolden(f"golden {path} is missing; {REMEDY}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BrokenGolden(f"golden {path} cannot be read ({error}); {REMEDY}") from error
    wire = registry.protocol(recipe.protocol)
    golden, derived = parse(text, wire, recipe.file), derive(recipe)
    wanted = [message.SerializeToString(deterministic=True) for message in derived.messages]
    difference = first_difference(golden, wanted, wire.generate.response)
    if difference is None and golden.request != derived.request:
        difference = field_difference(golden.request, derived.request, f"{golden.file}, the request, field ")
    if difference is not None:
        # Whatever a server answers, it cannot be told from this file who is wrong.
        raise BrokenGolden(
            f"golden {difference.where}: the file has {difference.expected}, the rule {difference.observed}; {REMEDY}"
        )
    return golden


def parse(text: str, wire: WireProtocol, file: str) -> Golden:
    """A golden from the text of its file. Raises ``BrokenGolden``."""
    # Not by splitlines(), which also splits at separators that text may hold.
    lines = [(at, line) for at, line in enumerate(text.split("\n"), 1) if line and not line.startswith("#")]
    if not lines:
        raise BrokenGolden(f"golden {file} holds no messages; {REMEDY}")
    request = _message(lines[0], wire.generate.request, file)
    return Golden(file, request, tuple(_message(line, wire.generate.response, file) for line in lines[1:]))


def _message(numbered: tuple[int, str], kind: type[Any], file: str) -> Message:
    from google.protobuf import text_format

    at, line = numbered
    try:
        return text_format.Parse(line, kind())
    except text_format.ParseError as error:
        raise BrokenGolden(f"golden {file}, line {at}, is not a {kind.__name__} ({error}); {REMEDY}") from error


def write(recipe: Recipe) -> str | None:
    """Write a recipe's file by the rule; what changed, in one line, or ``None`` when nothing did."""
    path = folder() / recipe.file
    text = render(derive(recipe), registry.protocol(recipe.protocol).title, recipe.name)
    before = path.read_text("utf-8", "replace") if path.exists() else None
    if before == text:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    if before is None:
        return f"golden {recipe.file} is new, with {len(text.splitlines())} lines"
    old, new = before.split("\n"), text.split("\n")
    at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    return f"golden {recipe.file} changed from line {at + 1} on: {_line(old, at)} -> {_line(new, at)}"


def _line(lines: Sequence[str], at: int) -> str:
    return f"{lines[at]:.120}" if at < len(lines) else "(no line)"


# Differences.


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where an answer departs from a golden."""

    where: str
    expected: str
    observed: str


def first_difference(golden: Golden, answers: Sequence[bytes], kind: type[Any]) -> Difference | None:
    """The first message and field in which raw answers differ from a golden, in content or only in bytes."""
    for at, message in enumerate(golden.messages):
        where = f"{golden.file}, message {at + 1} of {len(golden.messages)}"
        if at >= len(answers):
            return Difference(where, _words(message), "no further message")
        wanted = message.SerializeToString(deterministic=True)
        if answers[at] == wanted:
            continue
        observed = kind.FromString(answers[at])
        field = field_difference(message, observed)
        if field is None:
            return _byte_difference(where, wanted, answers[at])
        return Difference(f"{where}, field {field.where}", field.expected, field.observed)
    if len(answers) > len(golden.messages):
        extra = kind.FromString(answers[len(golden.messages)])
        where = f"{golden.file}, after its {len(golden.messages)} messages"
        return Difference(where, "the end of the stream", _words(extra))
    return None


def _byte_difference(where: str, wanted: bytes, got: bytes) -> Difference:
    first = next((i for i, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b), min(len(wanted), len(got)))
    shown = slice(first, first + 16)
    where = f"{where}, same content but other bytes from byte {first} on"
    return Difference(where, wanted[shown].hex() or "the end", got[shown].hex() or "the end")


def field_difference(expected: Message, observed: Message, path: str = "") -> Difference | None:
    """The first field, by number, in which two messages of one type differ, with its path.

    ``None`` for messages that differ in unknown fields only, and for equal ones.
    """
    for field in sorted(expected.DESCRIPTOR.fields, key=lambda field: field.number):
        difference = _difference(_value(expected, field), _value(observed, field), path + field.name)
        if difference is not None:
            return difference
    return None


def _value(message: Message, field: Any) -> Any:
    """A list for a repeated field, a dictionary for a map, ``None`` for a field with presence that is absent."""
    value = getattr(message, field.name)
    if hasattr(value, "MergeFrom") and not _is_message(value):
        return dict(value) if hasattr(value, "keys") else list(value)
    if field.has_presence and not message.HasField(field.name):
        return None
    return value


def _difference(ours: Any, theirs: Any, path: str) -> Difference | None:
    if isinstance(ours, list):
        return _list_difference(ours, theirs, path)
    if _is_message(ours) and _is_message(theirs):
        return field_difference(ours, theirs, f"{path}.")
    return None if ours == theirs else Difference(path, _words(ours), _words(theirs))


def _list_difference(ours: list[Any], theirs: list[Any], path: str) -> Difference | None:
    for at, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        difference = _difference(one, other, f"{path}[{at}]")
        if difference is not None:
            return difference
    if len(ours) == len(theirs):
        return None
    at = min(len(ours), len(theirs))
    return Difference(f"{path}[{at}]", _item(ours, at), _item(theirs, at))


def _item(items: list[Any], at: int) -> str:
    return _words(items[at]) if at < len(items) else f"no entry after {at}"


def _is_message(value: Any) -> bool:
    return hasattr(value, "DESCRIPTOR")


def _words(value: Any) -> str:
    from google.protobuf import text_format

    if value is None:
        return "absent"
    if _is_message(value):
        return "{ " + text_format.MessageToString(value, as_utf8=True, as_one_line=True) + " }"
    return repr(value)


# The other protobuf back end.


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered to the request of a golden: raw messages, and the status or what came in its place."""

    messages: tuple[bytes, ...]
    status: str


class OtherBackend(RuntimeError):
    """The process with the other protobuf back end did not do its work; the message has its last lines."""


def backend() -> str:
    """The protobuf back end of this process: ``"upb"`` (C) or ``"python"``."""
    from google.protobuf.internal import api_implementation

    return str(api_implementation.Type())


def answers_in_other_backend(
    protocol: str, server: str, plan: str | None, timeout: float
) -> tuple[str, dict[str, Answer] | None]:
    """The name of the back end that this process does not use, and what a server answers in a process that does.

    By the file of each golden; ``None`` when that back end cannot be had. Raises ``OtherBackend``.
    """
    other = "python" if backend() != "python" else "upb"
    command = [sys.executable, "-m", "pytest_grpc_conformance.golden_process"]
    command += ["--protocol", protocol, "--server", server, "--timeout", str(timeout)]
    command += ["--target", plan] if plan else []
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": other},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_SECONDS + timeout,
        )
    except subprocess.TimeoutExpired as error:
        raise OtherBackend(f"{' '.join(command)} did not end within {error.timeout:g} s") from error
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).splitlines()[-8:])
        raise OtherBackend(f"{' '.join(command)} ended with exit code {done.returncode}:\n{tail}")
    told = json.loads(done.stdout)
    if told["backend"] != other:
        return other, None
    return other, {
        file: Answer(tuple(map(bytes.fromhex, answer["messages"])), answer["status"])
        for file, answer in told["answers"].items()
    }
