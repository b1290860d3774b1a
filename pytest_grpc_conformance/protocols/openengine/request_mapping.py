"""GenerateRequest and its metadata to what the engine is asked for, with all that can be refused on receipt.

Presence is kept: an absent field stays ``None`` (the engine's default), an explicit zero stays a zero. The
refusals say which field is at fault and never quote the client, whose values may be of any size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from pytest_grpc_conformance.engines.base import Engine
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.protocols.openengine.bindings import generation_pb2

MAX_NUM_SEQUENCES = 128
MAX_TOP_N = 100
DATA_PARALLEL_SIZE = 1

_INT32 = range(-(2**31), 2**31)
_UINT32 = range(2**32)
_SIGNED = re.compile(r"-?[0-9]+", re.ASCII)
_UNSIGNED = re.compile(r"[0-9]+", re.ASCII)
_LONGEST_NUMBER = 32
"""Digits that are parsed at all, leading zeros included; Python has a limit too, and raises above it."""


class Refused(Exception):
    """A request that is not accepted, with the gRPC status that says so."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a valid request asks for; its text prompt is still to be tokenized."""

    request_id: str
    input: str | tuple[int, ...]
    parameters: GenerationParameters


def read_request(request: generation_pb2.GenerateRequest, model: str) -> Wanted:
    """What the request asks for. Raises ``Refused``."""
    if not request.request_id:
        raise _invalid("request_id is required")
    if not request.model:
        raise _invalid("model is required")
    if request.model != model:
        raise Refused(grpc.StatusCode.NOT_FOUND, "no such model is served here")
    _check_unsupported(request)
    return Wanted(request.request_id, _read_input(request), _read_parameters(request))


def check_prompt(token_ids: Sequence[int], engine: Engine) -> None:
    """Raises ``Refused`` for a prompt that the engine's model cannot take."""
    if not token_ids:
        raise _invalid("the prompt is empty")
    if len(token_ids) > engine.max_context_tokens:
        raise _invalid(f"the prompt has {len(token_ids)} tokens, the limit is {engine.max_context_tokens}")
    if max(token_ids) >= engine.vocabulary_size:
        raise _invalid(f"token_ids holds an id outside the vocabulary of {engine.vocabulary_size}")


def check_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> None:
    """Raises ``Refused`` for OpenEngine keys that are malformed or repeated; other keys may be anything.

    A well-formed priority has no effect (``supports_priority`` is advertised as false), nor has a routing
    key.
    """
    seen = set()
    for key, value in metadata or ():
        check = _KEYS.get(key)
        if check is None:
            continue
        if key in seen:
            raise _invalid(f"metadata key {key} is repeated")
        seen.add(key)
        check(value if isinstance(value, str) else value.decode("latin-1"))


def _check_rank(value: str) -> None:
    rank = _number(value, _UNSIGNED, _UINT32)
    if rank is None:
        raise _invalid("openengine-target-dp-rank is not a base-10 uint32")
    if rank >= DATA_PARALLEL_SIZE:
        raise _invalid(
            f"openengine-target-dp-rank is outside the {DATA_PARALLEL_SIZE} data-parallel rank of this server"
        )


def _check_priority(value: str) -> None:
    if _number(value, _SIGNED, _INT32) is None:
        raise _invalid("openengine-priority is not a base-10 int32")


def _check_routing_key(value: str) -> None:
    if not value or not value.isascii():
        raise _invalid("openengine-routing-key is not a non-empty ASCII value")


_KEYS: dict[str, Callable[[str], None]] = {
    "openengine-target-dp-rank": _check_rank,
    "openengine-priority": _check_priority,
    "openengine-routing-key": _check_routing_key,
}


def _number(value: str, form: re.Pattern[str], domain: range) -> int | None:
    if len(value) > _LONGEST_NUMBER or not form.fullmatch(value):
        return None
    number = int(value)
    return number if number in domain else None


def _invalid(details: str) -> Refused:
    return Refused(grpc.StatusCode.INVALID_ARGUMENT, details)


def _unsupported(feature: str) -> Refused:
    return Refused(grpc.StatusCode.UNIMPLEMENTED, f"{feature} is not supported by this server")


def _check_unsupported(request: generation_pb2.GenerateRequest) -> None:
    if request.media:
        raise _unsupported("media")
    if request.lora_name:
        raise _unsupported("lora_name")
    if request.guided.WhichOneof("guide") is not None or request.guided.backend:
        raise _unsupported("guided decoding")
    if request.kv.HasField("session"):
        raise _unsupported("kv.session")
    if request.kv.bypass_prefix_cache:
        raise _unsupported("kv.bypass_prefix_cache")
    if request.kv.cache_salt:
        raise _unsupported("kv.cache_salt")
    if request.response.prompt_logprob_start:
        raise _unsupported("response.prompt_logprob_start above 0")


def _read_input(request: generation_pb2.GenerateRequest) -> str | tuple[int, ...]:
    member = request.WhichOneof("input")
    if member is None:
        raise _invalid("prompt or token_ids is required")
    given = request.prompt if member == "prompt" else tuple(request.token_ids.ids)
    if not given:
        raise _invalid(f"{member} is empty")
    return given


def _read_parameters(request: generation_pb2.GenerateRequest) -> GenerationParameters:
    sampling, stopping, response = request.sampling, request.stopping, request.response
    stop_texts, stop_token_ids = _read_stops(stopping)
    max_tokens = _present(stopping, "max_tokens")
    if max_tokens == 0:
        raise _invalid("stopping.max_tokens is 0")
    num_sequences = _present(sampling, "num_sequences")
    if num_sequences is not None and not 1 <= num_sequences <= MAX_NUM_SEQUENCES:
        raise _invalid(f"sampling.num_sequences is outside 1 to {MAX_NUM_SEQUENCES}")
    return GenerationParameters(
        max_tokens=max_tokens,
        min_tokens=_present(stopping, "min_tokens"),
        num_sequences=1 if num_sequences is None else num_sequences,
        **{name: _sampled(sampling, name) for name in _DOMAINS},
        seed=_present(sampling, "seed"),
        stop_texts=stop_texts,
        stop_token_ids=stop_token_ids,
        include_stop=stopping.include_stop_in_output,
        ignore_eos=stopping.ignore_eos,
        logprobs=_scores(response.return_output_logprobs, response.output_candidates, "output_candidates"),
        prompt_logprobs=_scores(response.return_prompt_logprobs, response.prompt_candidates, "prompt_candidates"),
    )


def _present(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


_DOMAINS: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda value: value >= 0, "at least 0"),
    "top_p": (lambda value: 0 <= value <= 1, "from 0 to 1"),
    "top_k": (lambda value: value >= -1, "at least -1"),
    "min_p": (lambda value: 0 <= value <= 1, "from 0 to 1"),
    "frequency_penalty": (lambda value: True, "finite"),
    "presence_penalty": (lambda value: True, "finite"),
    "repetition_penalty": (lambda value: value > 0, "above 0"),
}


def _sampled(sampling: generation_pb2.SamplingParams, name: str) -> Any:
    value = _present(sampling, name)
    inside, words = _DOMAINS[name]
    if value is not None and not (math.isfinite(value) and inside(value)):
        raise _invalid(f"sampling.{name} is not {words}")
    return value


def _read_stops(stopping: generation_pb2.StoppingOptions) -> tuple[tuple[str, ...], tuple[int, ...]]:
    texts, token_ids = [], []
    for condition in stopping.conditions:
        match condition.WhichOneof("condition"):
            case "stop_text" if condition.stop_text:
                texts.append(condition.stop_text)
            case "stop_text":
                raise _invalid("a stopping.conditions entry has an empty stop_text")
            case "stop_token_id":
                token_ids.append(condition.stop_token_id)
            case _:
                raise _invalid("a stopping.conditions entry sets no condition")
    return tuple(texts), tuple(token_ids)


def _scores(asked: bool, selection: generation_pb2.CandidateTokenSelection, field: str) -> int | None:
    """How many candidates beside each token's own score; ``None`` without the flag, whatever is selected."""
    if not asked:
        return None
    match selection.WhichOneof("selection"):
        case "top_n":
            if selection.top_n > MAX_TOP_N:
                raise _invalid(f"response.{field}.top_n is above {MAX_TOP_N}")
            return selection.top_n
        case None:
            return 0
        case member:
            raise _unsupported(f"response.{field}.{member}")
