"""The text of a stream: whole characters only, every blank, nothing twice, wherever the engine cuts its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.script import (
    Script,
    StopText,
    in_steps,
    one_by_one,
    pieces,
    script,
    side_by_side,
    tokens,
)
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import Request, TokensEvent
from pytest_grpc_conformance.protocols.collected import Collected
from pytest_grpc_conformance.targets.base import Target

COUNTS = pytest.mark.parametrize("count", [1, 17, 257, 4096], ids=lambda count: f"tokens={count}")
REPLACEMENT = "\ufffd"
CHARACTERS = {"two": "\u00e9", "three": "\u4e16", "four": "\U0001f600", "mark": "e\u0301"}
"""Characters of two, three and four bytes, and a letter with a combining mark."""


def _cuts(data: bytes) -> Iterator[list[bytes]]:
    """Every way to cut the bytes into two or more pieces."""
    for mask in range(1, 2 ** (len(data) - 1)):
        edges = [0, *(at for at in range(1, len(data)) if mask >> (at - 1) & 1), len(data)]
        yield [data[start:end] for start, end in pairwise(edges)]


SPLITS = [
    pytest.param(cut, id=f"{name}={'+'.join(str(len(piece)) for piece in cut)}")
    for name, character in CHARACTERS.items()
    for cut in _cuts(character.encode())
]
ENDS = [
    pytest.param(character.encode()[:kept], id=f"{name}={kept}")
    for name, character in CHARACTERS.items()
    if name != "mark"
    for kept in range(1, len(character.encode()))
]


def _whole(target: Target, told: Script, request: Request) -> Collected:
    """The whole answer to a request whose script is released from the start."""
    return asserts.succeeded(target.play(told, request), request)


def _deltas(collected: Collected) -> list[str]:
    return [item.event.text or "" for item in collected.received if isinstance(item.event, TokensEvent)]


# Every delta once, in order.


@requirement("OE-TOK-003", needs=(SCRIPTED,))
@COUNTS
def test_text_comes_in_order_with_nothing_lost_or_doubled(grpc_target: Target, count: int) -> None:
    """The server MUST send text that joins to the decoded output of the sequence."""
    told = tokens(count)
    collected = _whole(grpc_target, script(one_by_one(told)), Request("text"))
    asserts.text("".join(token.piece.decode() for token in told), collected.sequences[0].text, "the stream")


@requirement("OE-TOK-002", needs=(SCRIPTED,))
@pytest.mark.parametrize(
    "told",
    [("abcdef", "gh", "ijk"), ("a", "", "bcdefgh", "", "", "i"), ("x", "x", "x", "x"), ("ab", "abab", "ab")],
    ids=["falling", "with-empty", "alike", "repeating"],
)
def test_text_of_deltas_of_mixed_sizes_comes_once(grpc_target: Target, told: tuple[str, ...]) -> None:
    """The server MUST send in each delta only text that it has not sent before."""
    collected = _whole(grpc_target, script(one_by_one(pieces(*told))), Request("sizes"))
    asserts.text("".join(told), collected.sequences[0].text, "the stream")


@requirement("OE-TOK-002", "OE-TOK-003", needs=(SCRIPTED,))
@pytest.mark.parametrize("sizes", [[5, 1, 0, 3], [0, 9], [2, 7]], ids=["mixed", "empty-first", "two-steps"])
def test_text_of_steps_of_several_tokens_is_whole(grpc_target: Target, sizes: list[int]) -> None:
    """The server MUST send the text of every token, however many tokens an engine step has."""
    told = tokens(9)
    collected = _whole(grpc_target, script(in_steps(told, sizes)), Request("steps"))
    asserts.text("".join(token.piece.decode() for token in told), collected.sequences[0].text, "the stream")


@requirement("OE-TOK-010", needs=(SCRIPTED,))
def test_each_sequence_has_text_of_its_own(grpc_target: Target) -> None:
    """The server MUST keep the text of each sequence by itself."""
    ours, theirs = "\u00e9 one", "\u4e16 two and more"
    halves = [pieces(*(text.encode()[at : at + 1] for at in range(len(text.encode())))) for text in (ours, theirs)]
    request = Request("own-text", num_sequences=2, temperature=1.0)
    collected = _whole(grpc_target, script(side_by_side(*halves)), request)
    asserts.text(ours, collected.sequences[0].text, "sequence 0")
    asserts.text(theirs, collected.sequences[1].text, "sequence 1")


@requirement("OE-TOK-004", needs=(SCRIPTED,))
def test_token_without_text_is_a_token(grpc_target: Target) -> None:
    """The server MUST send a record for a token that has no text."""
    told = pieces("", "a", "", "", "b", "")
    collected = _whole(grpc_target, script(one_by_one(told)), Request("silent"))
    asserts.token_ids(told, collected.sequences[0].tokens, "the token messages")


@requirement("OE-TOK-013", needs=(SCRIPTED,))
@pytest.mark.parametrize(
    "told",
    [("Hello", " world", " !"), (" ", " ", "a"), ("a", " ", " "), ("a", "\n", "\n\n", "\tb"), ("\u3000a", "\u00a0b")],
    ids=["words", "blank-first", "blank-last", "lines", "wide"],
)
def test_blanks_are_kept(grpc_target: Target, told: tuple[str, ...]) -> None:
    """The server SHOULD keep the blanks with which a piece of text begins or ends."""
    collected = _whole(grpc_target, script(one_by_one(pieces(*told))), Request("blanks"))
    asserts.text("".join(told), collected.sequences[0].text, "the stream")


@requirement("OE-TOK-003", needs=(SCRIPTED,))
@pytest.mark.parametrize(
    "text",
    ["a\0b", "a\u2028b\r\n", "\ufeffa", "a\ufffdb", "\U0001f468\u200d\U0001f469", "\u0623\u200e%s{}\\"],
    ids=["nul", "lines", "mark-first", "replacement", "joined", "right-to-left"],
)
def test_unusual_characters_are_kept(grpc_target: Target, text: str) -> None:
    """The server MUST send every character of the output as it is."""
    collected = _whole(grpc_target, script(one_by_one(pieces(*text))), Request("unusual"))
    asserts.text(text, collected.sequences[0].text, "the stream")


# Characters that span tokens.


@requirement("OE-TOK-003", needs=(SCRIPTED,))
@pytest.mark.parametrize("cut", SPLITS)
def test_character_cut_by_tokens_arrives_whole(grpc_target: Target, cut: list[bytes]) -> None:
    """The server MUST send a character whole and once when several tokens make it up."""
    told = pieces("a\u4e16", *cut, "b", *cut)
    request = Request("cut")
    collected = _whole(grpc_target, script(one_by_one(told)), request)
    expected = course(script(one_by_one(told)), request.parameters()).outcome[0]
    asserts.sequence(collected.sequences[0], expected, 0, request, grpc_target.protocol)


@requirement("OE-TOK-005", needs=(SCRIPTED,))
@pytest.mark.parametrize("cut", SPLITS)
def test_no_delta_shows_a_part_of_a_character(grpc_target: Target, cut: list[bytes]) -> None:
    """The server MUST NOT show a character before all of its bytes are there."""
    collected = _whole(grpc_target, script(one_by_one(pieces("a", *cut, *cut, "b"))), Request("parts"))
    broken = [delta for delta in _deltas(collected) if REPLACEMENT in delta]
    asserts.equal("the deltas with a replacement character", [], broken)


@requirement("OE-TOK-002", needs=(SCRIPTED,))
def test_text_before_a_cut_character_comes_once(grpc_target: Target) -> None:
    """The server MUST NOT send the text before a character again once the character is complete."""
    half, rest = "\U0001f600".encode()[:2], "\U0001f600".encode()[2:]
    told = pieces("A \u4e16".encode() + half, rest + b"a" + half, rest + b"b")
    collected = _whole(grpc_target, script(one_by_one(told)), Request("before"))
    asserts.text("A \u4e16\U0001f600a\U0001f600b", collected.sequences[0].text, "the stream")


@requirement("OE-TOK-006", needs=(SCRIPTED,))
@pytest.mark.parametrize("rest", ENDS)
def test_incomplete_character_does_not_block_the_end(grpc_target: Target, rest: bytes) -> None:
    """The server SHOULD drop an incomplete last character or show U+FFFD for it, and finish in any case."""
    told = pieces("a", *(rest[at : at + 1] for at in range(len(rest))))
    request = Request("incomplete", max_tokens=len(told))
    collected = _whole(grpc_target, script(one_by_one(told)), request)
    sequence, expected = collected.sequences[0], course(script(one_by_one(told)), request.parameters())
    asserts.token_ids(told, sequence.tokens, "the token messages")
    asserts.finished(sequence.finishes[0], expected.outcome[0].finish, grpc_target.protocol, "the sequence")
    asserts.usage(collected, expected, request, grpc_target.protocol)
    asserts.equal("the text without replacement characters", "a", sequence.text.rstrip(REPLACEMENT))


# Text that is withheld for another reason.


@requirement("OE-TOK-007", needs=(SCRIPTED,))
@pytest.mark.parametrize(
    ("told", "stop"),
    [(("a", "x", "y"), "xyz"), (("a", " <", "|", "en"), "<|end|>"), (("\u00e9", "\u4e16"), "\u4e16\u4e16")],
    ids=["letters", "marker", "wide"],
)
def test_withheld_text_comes_before_the_end(grpc_target: Target, told: tuple[str, ...], stop: str) -> None:
    """The server MUST send text that it held back as a possible stop when the output ends without one."""
    request = Request("withheld", stops=(StopText(stop),))
    collected = _whole(grpc_target, script(one_by_one(pieces(*told))), request)
    asserts.text("".join(told), collected.sequences[0].text, "the stream")
    asserts.token_ids(pieces(*told), collected.sequences[0].tokens, "the token messages")
