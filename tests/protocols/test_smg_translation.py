"""Neutral requests out, neutral events in, and nothing that a server sends makes the translation raise."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated import trtllm_service_pb2 as pb

from pytest_grpc_conformance.engines.script import (
    Candidate,
    Finish,
    FinishReason,
    StopText,
    StopToken,
    Token,
)
from pytest_grpc_conformance.protocols.base import FinishEvent, Request, TokensEvent, UnknownEvent, Usage
from pytest_grpc_conformance.protocols.smg import SMG


def logprob(token_id: int, value: float, *alternatives: tuple[int, float]) -> Any:
    return pb.TokenLogprob(
        token_id=token_id,
        logprob=value,
        top_logprobs=[pb.TopLogprob(token_id=other, logprob=score) for other, score in alternatives],
    )


def complete(**fields: Any) -> Any:
    return pb.GenerateResponse(request_id="r", complete=pb.GenerateComplete(**fields))


def test_text_prompt_goes_out_as_one_id_per_byte() -> None:
    message = SMG.to_message(Request("r", prompt="aé"), model="ignored")
    assert list(message.tokenized.input_token_ids) == [3 + 0x61, 3 + 0xC3, 3 + 0xA9]
    assert message.tokenized.original_text == ""


def test_absent_fields_are_absent_on_the_wire() -> None:
    message = SMG.to_message(Request("r", max_tokens=None), model="m")
    assert message == pb.GenerateRequest(
        request_id="r",
        tokenized=pb.TokenizedInput(input_token_ids=[1, 2, 3]),
        sampling_config=pb.SamplingConfig(),
        output_config=pb.OutputConfig(),
        streaming=True,
    )


def test_chunk_becomes_tokens_with_their_scores() -> None:
    message = pb.GenerateResponse(
        request_id="r",
        chunk=pb.GenerateStreamChunk(
            token_ids=[0, 7],
            sequence_index=1,
            prompt_tokens=3,
            completion_tokens=5,
            cached_tokens=2,
            logprobs=[logprob(0, -0.5), logprob(7, -0.25, (9, -0.125), (7, -0.25))],
        ),
    )
    assert SMG.request_id_of(message) == "r"
    assert SMG.to_event(message) == TokensEvent(
        1,
        (
            Token(0, logprob=-0.5),
            Token(7, logprob=-0.25, candidates=(Candidate(9, -0.125, 1), Candidate(7, -0.25, 2))),
        ),
        usage=Usage(3, 5, 2),
    )


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([logprob(5, -1.0)], id="too-few"),
        pytest.param([logprob(5, -1.0), logprob(6, -1.0), logprob(6, -1.0)], id="too-many"),
        pytest.param([logprob(6, -1.0), logprob(5, -1.0)], id="other-order"),
    ],
)
def test_scores_that_do_not_fit_their_tokens_are_no_scores(entries: list[Any]) -> None:
    """So that a case that compares scores with a script sees the fault (F080)."""
    chunk = pb.GenerateStreamChunk(token_ids=[5, 6], logprobs=entries)
    event = SMG.to_event(pb.GenerateResponse(chunk=chunk))
    assert isinstance(event, TokensEvent)
    assert event.tokens == (Token(5), Token(6))


@pytest.mark.parametrize(
    ("fields", "finish"),
    [
        ({"finish_reason": "stop"}, Finish(FinishReason.STOP)),
        ({"finish_reason": "stop", "matched_stop_str": "x"}, Finish(FinishReason.STOP, StopText("x"))),
        ({"finish_reason": "stop_word", "matched_stop_str": ""}, Finish(FinishReason.STOP, StopText(""))),
        ({"finish_reason": "stop", "matched_token_id": 0}, Finish(FinishReason.STOP, StopToken(0))),
        ({"finish_reason": "length"}, Finish(FinishReason.LENGTH)),
        ({"finish_reason": "cancelled"}, Finish(FinishReason.CANCELLED)),
        ({"finish_reason": "length", "matched_token_id": 4}, Finish(FinishReason.LENGTH, StopToken(4))),
    ],
)
def test_finish_is_the_reason_and_what_matched(fields: dict[str, Any], finish: Finish) -> None:
    event = SMG.to_event(complete(sequence_index=2, output_token_ids=[1], completion_tokens=1, **fields))
    assert event == FinishEvent(2, finish, usage=Usage(0, 1, 0), output=(Token(1),))


@pytest.mark.parametrize("word", ["", "error", "STOP", "timeout"])
def test_unknown_finish_reason_stays_the_servers_word(word: str) -> None:
    event = SMG.to_event(complete(finish_reason=word))
    assert isinstance(event, FinishEvent)
    assert (event.finish, event.reason) == (None, word)


def test_first_prompt_entry_is_a_placeholder() -> None:
    event = SMG.to_event(complete(prompt_logprobs=[logprob(1, 0.0, (8, -1.0)), logprob(2, -0.5, (9, -0.25))]))
    assert isinstance(event, FinishEvent)
    assert event.prompt == (Token(1), Token(2, logprob=-0.5, candidates=(Candidate(9, -0.25, 1),)))


def test_old_error_member_is_an_unknown_event() -> None:
    """Field 4 is retired; a message with nothing else sets no member."""
    message = pb.GenerateResponse.FromString(b"\x0a\x01r\x22\x03\x0a\x01x")
    assert isinstance(SMG.to_event(message), UnknownEvent)
    assert SMG.request_id_of(message) == "r"


class Hostile:
    """Whatever is asked of it, it raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize(
    "message",
    [
        None,
        3,
        "text",
        b"",
        object(),
        Hostile(),
        pb.GenerateRequest(),
        pb.GenerateStreamChunk(),
        pb.GenerateResponse,
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_is_no_response_is_an_unknown_event(message: Any) -> None:
    assert isinstance(SMG.to_event(message), UnknownEvent)


@given(st.binary(max_size=64))
def test_any_bytes_that_parse_translate(raw: bytes) -> None:
    try:
        message = pb.GenerateResponse.FromString(raw)
    except Exception:
        return
    SMG.to_event(message)
    SMG.request_id_of(message)


uint32 = st.sampled_from([0, 1, 2**31, 2**32 - 1]) | st.integers(0, 2**32 - 1)
entries = st.lists(
    st.builds(logprob, uint32, st.floats(width=32), st.tuples(uint32, st.floats(width=32))),
    max_size=3,
)


@given(ids=st.lists(uint32, max_size=3), index=uint32, scores=entries, prompt=entries, reason=st.text(max_size=5))
def test_any_complete_translates(ids: list[int], index: int, scores: list[Any], prompt: list[Any], reason: str) -> None:
    event = SMG.to_event(
        complete(
            output_token_ids=ids,
            sequence_index=index,
            logprobs=scores,
            prompt_logprobs=prompt,
            finish_reason=reason,
        )
    )
    assert isinstance(event, FinishEvent)
    assert event.output is not None
    assert [token.id for token in event.output] == ids


def test_importing_the_protocol_loads_no_grpc() -> None:
    program = (
        "import sys; import pytest_grpc_conformance.protocols.smg; "
        "sys.exit(any(name in sys.modules for name in ('grpc', 'google.protobuf', 'smg_grpc_proto')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
