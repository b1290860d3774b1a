"""The first difference between a golden and an answer is named by message and field."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_grpc_conformance import golden
from pytest_grpc_conformance.golden import Difference, field_difference, first_difference
from pytest_grpc_conformance.protocols.openengine.bindings import generation_pb2 as pb

UNKNOWN_FIELD = b"\xc0\xbb\x3a\x01"
"""Field 120,000, a varint of 1."""


def _tokens(*ids: int, text: str = "x", index: int = 0, logprob: float | None = None) -> Any:
    infos = [pb.TokenInfo(token_id=token_id, logprob=logprob) for token_id in ids]
    return pb.GenerateResponse(request_id="r", token=pb.TokenOutput(output_index=index, tokens=infos, text=text))


def _finished() -> Any:
    finished = pb.GenerationFinished(output_index=0, reason=pb.FINISH_REASON_LENGTH)
    return pb.GenerateResponse(request_id="r", finished=finished, usage=pb.Usage(prompt_tokens=3))


def _golden(*messages: Any) -> golden.Golden:
    return golden.Golden("file", pb.GenerateRequest(), messages)


def _first(expected: list[Any], answers: list[Any]) -> Difference | None:
    raw = [answer if isinstance(answer, bytes) else answer.SerializeToString() for answer in answers]
    return first_difference(_golden(*expected), raw, pb.GenerateResponse)


def test_equal_messages_have_no_difference() -> None:
    assert _first([_tokens(1), _finished()], [_tokens(1), _finished()]) is None
    assert _first([], []) is None


def test_first_message_and_field_are_named() -> None:
    found = _first([_tokens(1), _tokens(2), _finished()], [_tokens(1), _tokens(3, text="y"), _tokens(9)])
    assert found == Difference("file, message 2 of 3, field token.tokens[0].token_id", "2", "3")


def test_missing_message_is_a_difference() -> None:
    found = _first([_tokens(1), _finished()], [_tokens(1)])
    assert found is not None
    assert (found.where, found.observed) == ("file, message 2 of 2", "no further message")
    assert "FINISH_REASON_LENGTH" in found.expected


def test_extra_message_is_a_difference() -> None:
    found = _first([_finished()], [_finished(), _tokens(7)])
    assert found is not None
    assert (found.where, found.expected) == ("file, after its 1 messages", "the end of the stream")
    assert "token_id: 7" in found.observed


def test_other_bytes_with_the_same_content_are_a_difference() -> None:
    # Field 1 twice: the last one counts.
    answer = b"\x0a\x01q" + _finished().SerializeToString()
    found = _first([_finished()], [answer])
    assert found is not None
    assert found.where == "file, message 1 of 1, same content but other bytes from byte 2 on"
    assert found.expected.startswith("72")
    assert found.observed.startswith("71")


def test_bytes_that_only_follow_are_a_difference() -> None:
    found = _first([_finished()], [_finished().SerializeToString() + UNKNOWN_FIELD])
    assert found is not None
    assert "same content but other bytes" in found.where
    assert (found.expected, found.observed) == ("the end", UNKNOWN_FIELD.hex())


@pytest.mark.parametrize(
    ("expected", "observed", "difference"),
    [
        pytest.param(
            _tokens(1, 2, 3), _tokens(1, 2), Difference("token.tokens[2]", "{ token_id: 3 }", "no entry after 2"),
            id="entry-missing",
        ),
        pytest.param(
            _tokens(1), _tokens(1, 0), Difference("token.tokens[1]", "no entry after 1", "{  }"), id="entry-extra"
        ),
        pytest.param(
            _tokens(1, 2), _tokens(1, 2, logprob=-1.0), Difference("token.tokens[0].logprob", "absent", "-1.0"),
            id="present",
        ),
        pytest.param(
            pb.GenerateResponse(token=pb.TokenOutput(output_index=0)),
            pb.GenerateResponse(token=pb.TokenOutput()),
            Difference("token.output_index", "0", "absent"),
            id="zero-is-not-absent",
        ),
        pytest.param(
            pb.GenerateResponse(usage=pb.Usage()),
            pb.GenerateResponse(),
            Difference("usage", "{  }", "absent"),
            id="empty-is-not-absent",
        ),
        pytest.param(
            pb.GenerateResponse(finished=pb.GenerationFinished(reason=pb.FINISH_REASON_LENGTH)),
            pb.GenerateResponse(finished=pb.GenerationFinished(reason=pb.FINISH_REASON_CANCELLED)),
            Difference("finished.reason", str(int(pb.FINISH_REASON_LENGTH)), str(int(pb.FINISH_REASON_CANCELLED))),
            id="enum",
        ),
        pytest.param(
            _tokens(1),
            pb.GenerateResponse(request_id="r"),
            Difference("token", "{ output_index: 0 tokens { token_id: 1 } text: \"x\" }", "absent"),
            id="other-member",
        ),
    ],
)  # fmt: skip
def test_field_is_named(expected: Any, observed: Any, difference: Difference) -> None:
    assert field_difference(expected, observed) == difference


def test_unknown_field_hides_no_later_difference() -> None:
    observed = _tokens(1, text="other")
    observed.token.tokens[0].MergeFromString(UNKNOWN_FIELD)
    assert field_difference(_tokens(1), observed) == Difference("token.text", "'x'", "'other'")


def test_unknown_fields_alone_are_no_field_difference() -> None:
    observed = _tokens(1)
    observed.token.MergeFromString(UNKNOWN_FIELD)
    assert field_difference(_tokens(1), observed) is None


def test_map_entries_are_compared() -> None:
    one, other = pb.GenerateRequest(), pb.GenerateRequest()
    one.extra["k"], other.extra["k"] = 1, 2
    found = field_difference(one, other)
    assert found is not None
    assert found.where == "extra.fields"


def test_oneof_members_are_compared_by_presence() -> None:
    found = _first([_tokens(1)], [_finished()])
    assert found is not None
    assert found.where == "file, message 1 of 1, field token"
    assert found.observed == "absent"
