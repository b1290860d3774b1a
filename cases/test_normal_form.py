"""The text of a stream keeps its Unicode form: characters that look alike are not made the same."""

from __future__ import annotations

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.script import one_by_one, pieces, script
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.targets.base import Target


@requirement("OE-TOK-003", needs=(SCRIPTED,))
@pytest.mark.parametrize(
    "told",
    [
        ("cafe\u0301", "!"),
        ("cafe", "\u0301", "!"),
        ("e\u0323\u0301", "\u1100", "\u1161"),
        ("caf\u00e9", "\uac00"),
        ("\ufb01n", " \u212b\u2126", "\u00b2"),
    ],
    ids=["one-token", "split", "marks-and-syllable", "composed", "compatible"],
)
def test_text_keeps_its_normal_form(grpc_target: Target, told: tuple[str, ...]) -> None:
    """The server MUST NOT compose, decompose or replace characters of the text that the engine gives."""
    request = Request("form")
    collected = asserts.succeeded(grpc_target.play(script(one_by_one(pieces(*told))), request), request)
    asserts.text("".join(told), collected.sequences[0].text, "the stream")
