"""Response messages to neutral events, whatever the server sent; and how light the import is."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from pytest_grpc_conformance.engines.script import (
    Candidate,
    EndOfSequence,
    Finish,
    FinishReason,
    StopText,
    StopToken,
    Token,
)
from pytest_grpc_conformance.protocols.base import (
    ErrorEvent,
    Event,
    FinishEvent,
    PromptEvent,
    Request,
    TokensEvent,
    UnknownEvent,
    Usage,
)
from pytest_grpc_conformance.protocols.openengine import OPENENGINE
from pytest_grpc_conformance.protocols.openengine.bindings import generation_pb2 as pb


def event(text: str) -> Event:
    return OPENENGINE.to_event(text_format.Parse(text, pb.GenerateResponse()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("token {}", TokensEvent(None, (), "")),
        ("token { output_index: 0 text: 'a' }", TokensEvent(0, (), "a")),
        (
            "token { output_index: 1 tokens { token_id: 0 } tokens { token_id: 5 token: 'x' logprob: 0 rank: 0 "
            "candidates { token_id: 7 logprob: -1.5 rank: 2 } candidates {} } }",
            TokensEvent(
                1,
                (Token(0), Token(5, b"x", 0.0, 0, (Candidate(7, -1.5, 2), Candidate(0, 0.0, 0)))),
                "",
            ),
        ),
        ("prompt { tokens { token_id: 1 logprob: -inf } }", PromptEvent((Token(1, b"", -math.inf),))),
        ("prompt {}", PromptEvent(())),
        ("finished {}", FinishEvent(None, None, "UNSPECIFIED")),
        ("finished { output_index: 0 reason: 99 }", FinishEvent(0, None, "99")),
        ("finished { output_index: 0 reason: -1 }", FinishEvent(0, None, "-1")),
        ("finished { reason: FINISH_REASON_STOP }", FinishEvent(None, Finish(FinishReason.STOP))),
        (
            "finished { reason: FINISH_REASON_STOP stop_match {} }",
            FinishEvent(None, Finish(FinishReason.STOP)),
        ),
        (
            "finished { output_index: 2 reason: FINISH_REASON_STOP stop_match { eos_token_id: 0 } }",
            FinishEvent(2, Finish(FinishReason.STOP, EndOfSequence(0))),
        ),
        (
            "finished { reason: FINISH_REASON_STOP stop_match { stop_token_id: 0 } }",
            FinishEvent(None, Finish(FinishReason.STOP, StopToken(0))),
        ),
        (
            "finished { reason: FINISH_REASON_LENGTH stop_match { stop_text: '' } } usage { prompt_tokens: 3 }",
            FinishEvent(None, Finish(FinishReason.LENGTH, StopText("")), usage=Usage(3, 0, None, 0)),
        ),
        (
            "finished { reason: FINISH_REASON_CANCELLED } "
            "usage { prompt_tokens: 1 completion_tokens: 2 total_tokens: 4 cached_prompt_tokens: 0 }",
            FinishEvent(None, Finish(FinishReason.CANCELLED), usage=Usage(1, 2, 0, 4)),
        ),
        (
            "error { code: ERROR_CODE_KV_TRANSFER_FAILED message: 'm' retryable: true }",
            ErrorEvent("KV_TRANSFER_FAILED", "m", True),
        ),
        ("error {} usage {}", ErrorEvent("UNSPECIFIED", "", False, Usage(0, 0, None, 0))),
        ("error { code: 4711 }", ErrorEvent("4711", "", False)),
    ],
)
def test_events(text: str, expected: Event) -> None:
    assert event(text) == expected


def test_no_event_at_all() -> None:
    assert isinstance(event(""), UnknownEvent)
    carried = event("usage { prompt_tokens: 1 }")
    assert isinstance(carried, UnknownEvent)
    assert carried.usage == Usage(1, 0, None, 0)


def test_a_member_without_a_neutral_form() -> None:
    unknown = event("prefill_ready { kv_session { session_id: '1' } }")
    assert isinstance(unknown, UnknownEvent)
    assert "prefill_ready" in unknown.description


@pytest.mark.parametrize("message", [None, 1, "text", object(), pb.Usage()])
def test_what_is_no_response(message: object) -> None:
    assert isinstance(OPENENGINE.to_event(message), UnknownEvent)
    assert OPENENGINE.request_id_of(message) == ""


@given(st.binary(max_size=60))
def test_any_bytes_that_parse_give_an_event(raw: bytes) -> None:
    message = pb.GenerateResponse()
    try:
        message.ParseFromString(raw)
    except Exception:
        return
    OPENENGINE.to_event(message)
    OPENENGINE.request_id_of(message)


def test_absent_fields_make_no_submessage() -> None:
    message = OPENENGINE.to_message(Request("r", max_tokens=None), model="m")
    assert [field.name for field, _ in message.ListFields()] == ["request_id", "model", "token_ids"]
    assert OPENENGINE.to_message(Request("r", model=""), model="m").model == ""


def test_zeros_are_present() -> None:
    request = Request("r", prompt=(), temperature=0.0, num_sequences=0, logprobs=0, include_stop=False)
    message = OPENENGINE.to_message(request, model="m")
    assert message.WhichOneof("input") == "token_ids"
    assert message.sampling.HasField("temperature")
    assert message.sampling.HasField("num_sequences")
    assert message.stopping.HasField("include_stop_in_output")
    assert not message.stopping.HasField("ignore_eos")
    assert message.response.output_candidates.WhichOneof("selection") == "top_n"


def test_stops_keep_their_order() -> None:
    message = OPENENGINE.to_message(Request("r", stops=(StopToken(0), StopText("a"), StopToken(3))), model="m")
    kinds = [condition.WhichOneof("condition") for condition in message.stopping.conditions]
    assert kinds == ["stop_token_id", "stop_text", "stop_token_id"]


def test_importing_the_protocol_loads_neither_grpc_nor_bindings() -> None:
    program = (
        "import sys; from pytest_grpc_conformance.protocols.openengine import OPENENGINE; OPENENGINE.traits; "
        "print([name for name in sys.modules if name.split('.')[0] in ('grpc', 'google') or 'bindings' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
