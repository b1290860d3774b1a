"""What the reference servicer makes of a request: parameters with presence kept, or a refusal with the right
code."""

from __future__ import annotations

import math
from collections.abc import Callable

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import StopText, StopToken
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.protocols.openengine.bindings import generation_pb2 as pb
from pytest_grpc_conformance.protocols.openengine.request_mapping import (
    MAX_NUM_SEQUENCES,
    MAX_TOP_N,
    Refused,
    check_metadata,
    check_prompt,
    read_request,
)
from pytest_grpc_conformance.protocols.openengine.translation import to_message

INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNSUPPORTED = grpc.StatusCode.UNIMPLEMENTED

Change = Callable[[pb.GenerateRequest], object]


def message(**fields: object) -> pb.GenerateRequest:
    built = pb.GenerateRequest(request_id="r", model="m")
    built.token_ids.ids.extend([1, 2])
    built.MergeFrom(pb.GenerateRequest(**fields))  # type: ignore[arg-type]
    return built


def read(**fields: object) -> GenerationParameters:
    return read_request(message(**fields), "m").parameters


def test_a_bare_request_leaves_everything_to_the_engine() -> None:
    assert read() == GenerationParameters()


def test_explicit_zeros_stay() -> None:
    parameters = read(
        sampling={"temperature": 0.0, "top_p": 0.0, "top_k": 0, "min_p": 0.0, "seed": 0},
        stopping={"min_tokens": 0, "ignore_eos": False, "include_stop_in_output": False},
    )
    assert parameters == GenerationParameters(temperature=0.0, top_p=0.0, top_k=0, min_p=0.0, seed=0, min_tokens=0)


def test_every_value_arrives_as_sent() -> None:
    parameters = read(
        sampling={
            "temperature": 0.1,
            "top_p": 0.2,
            "top_k": -1,
            "min_p": 0.3,
            "frequency_penalty": -0.4,
            "presence_penalty": 2.5,
            "repetition_penalty": 1.1,
            "seed": 2**64 - 1,
            "num_sequences": 3,
        },
        stopping={
            "max_tokens": 2**32 - 1,
            "min_tokens": 4,
            "ignore_eos": True,
            "include_stop_in_output": True,
            "conditions": [
                {"stop_text": "a"},
                {"stop_token_id": 0},
                {"stop_text": "b"},
                {"stop_token_id": 2**32 - 1},
            ],
        },
    )
    assert parameters == GenerationParameters(
        max_tokens=2**32 - 1,
        min_tokens=4,
        num_sequences=3,
        temperature=0.1,
        top_p=0.2,
        top_k=-1,
        min_p=0.3,
        frequency_penalty=-0.4,
        presence_penalty=2.5,
        repetition_penalty=1.1,
        seed=2**64 - 1,
        stop_texts=("a", "b"),
        stop_token_ids=(0, 2**32 - 1),
        include_stop=True,
        ignore_eos=True,
    )


@pytest.mark.parametrize(
    ("response", "logprobs", "prompt_logprobs"),
    [
        ({}, None, None),
        ({"return_output_logprobs": True}, 0, None),
        ({"return_output_logprobs": True, "output_candidates": {}}, 0, None),
        ({"return_output_logprobs": True, "output_candidates": {"top_n": 0}}, 0, None),
        ({"return_output_logprobs": True, "output_candidates": {"top_n": MAX_TOP_N}}, MAX_TOP_N, None),
        ({"return_prompt_logprobs": True, "prompt_candidates": {"top_n": 3}}, None, 3),
        ({"return_prompt_logprobs": True, "return_output_logprobs": True, "prompt_logprob_start": 0}, 0, 0),
        # Without its flag a selection has no effect, whatever it says.
        ({"output_candidates": {"top_n": 3}, "prompt_candidates": {"all": {}}}, None, None),
        ({"return_output_logprobs": False, "output_candidates": {"token_ids": {"ids": [1]}}}, None, None),
    ],
)
def test_scores(response: dict[str, object], logprobs: int | None, prompt_logprobs: int | None) -> None:
    parameters = read(response=response)
    assert (parameters.logprobs, parameters.prompt_logprobs) == (logprobs, prompt_logprobs)


@pytest.mark.parametrize(
    "fields",
    [
        {"kv": {}},
        {"kv": {"bypass_prefix_cache": False}},
        {"kv": {"cache_salt": ""}},
        {"guided": {}},
        {"extra": {}},
        {"extra": {"zz_unknown": {"a": [1, True, None]}}},
        {"lora_name": ""},
        {"sampling": {"num_sequences": MAX_NUM_SEQUENCES}},
        {"stopping": {"max_tokens": 1, "min_tokens": 2}},
    ],
)
def test_accepted(fields: dict[str, object]) -> None:
    read(**fields)


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        *((INVALID, {"sampling": {"temperature": value}}) for value in (-1.0, -1e-9, math.nan, math.inf)),
        *((INVALID, {"sampling": {"top_p": value}}) for value in (1.5, -0.1, math.nan, -math.inf)),
        *((INVALID, {"sampling": {"min_p": value}}) for value in (1.01, -0.1, math.nan)),
        *((INVALID, {"sampling": {"repetition_penalty": value}}) for value in (0.0, -1.0, math.inf)),
        *((INVALID, {"sampling": {"frequency_penalty": value}}) for value in (math.nan, math.inf)),
        *((INVALID, {"sampling": {"presence_penalty": value}}) for value in (math.nan, -math.inf)),
        (INVALID, {"sampling": {"top_k": -2}}),
        (INVALID, {"sampling": {"num_sequences": 0}}),
        (INVALID, {"sampling": {"num_sequences": MAX_NUM_SEQUENCES + 1}}),
        (INVALID, {"stopping": {"max_tokens": 0}}),
        (INVALID, {"stopping": {"conditions": [{}]}}),
        (INVALID, {"stopping": {"conditions": [{"stop_text": "a"}, {"stop_text": ""}]}}),
        (INVALID, {"response": {"return_output_logprobs": True, "output_candidates": {"top_n": MAX_TOP_N + 1}}}),
        (INVALID, {"response": {"return_prompt_logprobs": True, "prompt_candidates": {"top_n": MAX_TOP_N + 1}}}),
        (UNSUPPORTED, {"response": {"return_output_logprobs": True, "output_candidates": {"all": {}}}}),
        (UNSUPPORTED, {"response": {"return_output_logprobs": True, "output_candidates": {"token_ids": {}}}}),
        (UNSUPPORTED, {"response": {"return_prompt_logprobs": True, "prompt_candidates": {"all": {}}}}),
        (UNSUPPORTED, {"response": {"prompt_logprob_start": 1}}),
        (UNSUPPORTED, {"media": [{}]}),
        (UNSUPPORTED, {"lora_name": "adapter"}),
        (UNSUPPORTED, {"guided": {"json_object": {}}}),
        (UNSUPPORTED, {"guided": {"regex": ""}}),
        (UNSUPPORTED, {"guided": {"backend": "no_such_backend"}}),
        (UNSUPPORTED, {"kv": {"session": {}}}),
        (UNSUPPORTED, {"kv": {"bypass_prefix_cache": True}}),
        (UNSUPPORTED, {"kv": {"cache_salt": "salt"}}),
    ],
)
def test_refused(code: grpc.StatusCode, fields: dict[str, object]) -> None:
    with pytest.raises(Refused) as caught:
        read(**fields)
    assert caught.value.code is code
    assert caught.value.details


@pytest.mark.parametrize(
    ("code", "change"),
    [
        (INVALID, lambda request: request.ClearField("request_id")),
        (INVALID, lambda request: request.ClearField("model")),
        (grpc.StatusCode.NOT_FOUND, lambda request: setattr(request, "model", "x" * 100_000)),
        (INVALID, lambda request: request.ClearField("token_ids")),
        (INVALID, lambda request: request.token_ids.ClearField("ids")),
        (INVALID, lambda request: setattr(request, "prompt", "")),
    ],
)
def test_refused_identity_and_input(code: grpc.StatusCode, change: Change) -> None:
    request = message()
    change(request)
    with pytest.raises(Refused) as caught:
        read_request(request, "m")
    assert caught.value.code is code
    assert len(caught.value.details) < 200


@pytest.mark.parametrize(
    ("token_ids", "fine"),
    [
        ([], False),
        ([0], True),
        ([999] * 64, True),
        ([1] * 65, False),
        ([1, 1000], False),
        ([2**32 - 1], False),
    ],
)
def test_prompt_limits(token_ids: list[int], fine: bool) -> None:
    engine = ScriptedEngine(max_context_tokens=64, vocabulary_size=1000)
    if fine:
        check_prompt(token_ids, engine)
    else:
        with pytest.raises(Refused) as caught:
            check_prompt(token_ids, engine)
        assert caught.value.code is INVALID


RANK, PRIORITY, ROUTING = "openengine-target-dp-rank", "openengine-priority", "openengine-routing-key"


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        [(RANK, "0")],
        [(RANK, "000")],
        *([(PRIORITY, value)] for value in ("0", "-5", "2147483647", "-2147483648")),
        [(ROUTING, "any value")],
        [(RANK, "0"), (PRIORITY, "1"), (ROUTING, "k")],
        [("x-tenant", "a"), ("x-tenant", "a"), ("blob-bin", b"\xff")],
        [("openengine-zz", "1"), ("traceparent", "garbage"), ("tracestate", "")],
    ],
)
def test_metadata_accepted(metadata: list[tuple[str, str | bytes]] | None) -> None:
    check_metadata(metadata)


@pytest.mark.parametrize(
    "metadata",
    [
        *([(RANK, value)] for value in ("", "abc", "-1", "1.5", "0x1", "+0", "1_0", " 0", "0 ", "\u0660", "0\n")),
        # In range as a number, but there is one rank only.
        *([(RANK, value)] for value in ("1", "4294967295", "4294967296", "9" * 5000)),
        *([(PRIORITY, value)] for value in ("", "high", "2147483648", "-2147483649", "1e3", "+1", "1_0", " 1")),
        *([(PRIORITY, value)] for value in ("--1", "-", "\u00b2", "1" * 5000)),
        [(ROUTING, "")],
        [(ROUTING, "é")],
        *([(key, "0"), ("x", "y"), (key, "0")] for key in (RANK, PRIORITY, ROUTING)),
    ],
)
def test_metadata_refused(metadata: list[tuple[str, str | bytes]]) -> None:
    with pytest.raises(Refused) as caught:
        check_metadata(metadata)
    assert caught.value.code is INVALID


def maybe(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | values


UINT32 = st.integers(0, 2**32 - 1)
REQUESTS = st.builds(
    Request,
    request_id=st.text(min_size=1, max_size=5),
    prompt=st.text(min_size=1, max_size=5) | st.lists(UINT32, min_size=1, max_size=5).map(tuple),
    max_tokens=maybe(st.integers(1, 2**32 - 1)),
    min_tokens=maybe(UINT32),
    num_sequences=maybe(st.integers(1, MAX_NUM_SEQUENCES)),
    temperature=maybe(st.floats(0, 10)),
    top_p=maybe(st.floats(0, 1)),
    top_k=maybe(st.integers(-1, 2**31 - 1)),
    seed=maybe(st.integers(0, 2**64 - 1)),
    stops=st.lists(st.builds(StopText, st.text(min_size=1, max_size=4)) | st.builds(StopToken, UINT32)).map(tuple),
    include_stop=maybe(st.booleans()),
    ignore_eos=maybe(st.booleans()),
    logprobs=maybe(st.integers(0, MAX_TOP_N)),
    prompt_logprobs=maybe(st.integers(0, MAX_TOP_N)),
    model=st.none() | st.just("m"),
)


@given(REQUESTS)
def test_a_neutral_request_reaches_the_engine_as_it_is(request_: Request) -> None:
    wanted = read_request(to_message(request_, model="m"), "m")
    assert wanted.request_id == request_.request_id
    assert wanted.input == request_.prompt
    assert wanted.parameters == request_.parameters()
