"""Requests that cannot be served: refused with the right status, before any message, and without a trace.

An option that a server does not know how to serve is refused as well: it is never accepted and then ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.script import Refusal, Token, one_by_one, script, tokens
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.protocols.collected import Collected
from pytest_grpc_conformance.targets.base import Target

TOLD = tokens(3)
Edit = Callable[[Any], object]
UNSUPPORTED_OPENENGINE: dict[str, Edit] = {
    "media": lambda message: message.media.add(modality=1, url="http://127.0.0.1/x.png"),
    "regex": lambda message: setattr(message.guided, "regex", "a+"),
    "json-schema": lambda message: setattr(message.guided, "json_schema", "{}"),
    "choice": lambda message: message.guided.choice.choices.append("yes"),
}
UNSUPPORTED_SMG: dict[str, Edit] = {
    "lora": lambda message: setattr(message.lora_config, "task_id", 1),
    "prompt-tuning": lambda message: setattr(message.prompt_tuning_config, "embedding_table", b"\0" * 4),
    "multimodal": lambda message: message.multimodal_input.image_data.append(b"\0"),
    "guided": lambda message: setattr(message.guided_decoding, "guide", "a+"),
    "context-only": lambda message: setattr(message.disaggregated_params, "request_type", 1),
    "ngrams": lambda message: setattr(message.sampling_config, "no_repeat_ngram_size", 2),
}
UNKNOWN_ROLE = b"\x18\x63"
"""A HealthRequest whose role is 99."""


def _message(target: Target, request: Request) -> Any:
    return target.protocol.to_message(request, model=target.model)


def _input_of(message: Any) -> str:
    """The name of the field that holds the prompt's token ids."""
    return "token_ids" if "token_ids" in message.DESCRIPTOR.fields_by_name else "tokenized"


def _answer(target: Target, request: Request, edit: Edit = lambda message: None) -> Collected:
    """The whole answer to a request after an edit of its message, whatever it is.

    A scripted engine would answer it, so that a server which lets it pass is seen to do so.
    """
    if SCRIPTED in target.capabilities:
        target.prepare(request.request_id, script(one_by_one(TOLD)), open=True)
    message = _message(target, request)
    edit(message)
    return asserts.ended(target.client.send(message, label=request.request_id))


def _served(target: Target, request_id: str) -> None:
    """A plain request is served."""
    request = Request(request_id, max_tokens=3)
    if SCRIPTED in target.capabilities:
        target.prepare(request_id, script(one_by_one(TOLD)), open=True)
    asserts.succeeded(target.generate(request), request)


# Requests that are invalid.


@requirement("OE-GEN-021", "OE-ERR-001", "SMG-GEN-006", "SMG-ERR-002")
def test_request_without_input_is_refused(grpc_target: Target) -> None:
    """The server MUST refuse a request without a prompt as invalid, before any message."""
    collected = _answer(grpc_target, Request("no-input"), lambda message: message.ClearField(_input_of(message)))
    asserts.refused(collected, "INVALID_ARGUMENT")


@requirement("SMG-GEN-007", "SMG-ERR-002")
def test_empty_prompt_is_refused(grpc_target: Target) -> None:
    """The server SHOULD refuse a prompt without token ids as invalid."""
    asserts.refused(_answer(grpc_target, Request("empty", ())), "INVALID_ARGUMENT")


@requirement("OE-GEN-022")
@pytest.mark.parametrize("prompt", ["", ()], ids=["text", "ids"])
def test_empty_prompt_does_no_harm(grpc_target: Target, prompt: str | tuple[int, ...]) -> None:
    """The server SHOULD refuse an empty prompt or serve it, and serve the next request in any case."""
    collected = _answer(grpc_target, Request("empty", prompt, max_tokens=3))
    if collected.status.ok:
        asserts.true("an accepted request is answered", bool(collected.received), "no message")
    else:
        asserts.refused(collected)
    _served(grpc_target, "next")


@requirement("OE-N-002", "OE-ERR-001")
def test_zero_sequences_are_refused(grpc_target: Target) -> None:
    """The server MUST refuse an explicit number of 0 sequences as invalid."""
    asserts.refused(_answer(grpc_target, Request("zero", num_sequences=0)), "INVALID_ARGUMENT")


@requirement("SMG-GEN-008", "SMG-ERR-002")
@pytest.mark.parametrize("limit", [0, None], ids=["zero", "absent"])
def test_request_without_token_limit_is_refused(grpc_target: Target, limit: int | None) -> None:
    """The server SHOULD refuse a token limit of 0, which is a missing one, as invalid."""
    asserts.refused(_answer(grpc_target, Request("limit", max_tokens=limit)), "INVALID_ARGUMENT")


@requirement("OE-GEN-025", "OE-ERR-001")
def test_unknown_model_is_refused(grpc_target: Target) -> None:
    """The server SHOULD refuse a request for a model that it does not serve as not found."""
    collected = _answer(grpc_target, Request("model", model="no-such-model"))
    asserts.refused(collected, "NOT_FOUND")


@requirement("OE-GEN-036", "SMG-ERR-002", needs=(SCRIPTED,))
@pytest.mark.parametrize("kind", ["ids", "text"])
def test_prompt_beyond_the_window_is_refused(grpc_target: Target, kind: str) -> None:
    """The server SHOULD refuse a prompt that is longer than the context window as invalid."""
    length = grpc_target.engine.max_context_tokens + 1
    prompt = (7,) * length if kind == "ids" else "x" * length
    asserts.refused(_answer(grpc_target, Request("long", prompt)), "INVALID_ARGUMENT")


@requirement("OE-GEN-033", "OE-ERR-001", "SMG-SMP-018", "SMG-ERR-002")
@pytest.mark.parametrize(
    ("name", "value"),
    [("top_p", 1.5), ("temperature", -1.0), ("temperature", float("nan")), ("min_p", 1.5)],
    ids=["top_p=1.5", "temperature=-1", "temperature=nan", "min_p=1.5"],
)
def test_sampling_value_outside_its_domain_is_refused(grpc_target: Target, name: str, value: float) -> None:
    """The server SHOULD refuse a sampling value outside its domain as invalid, before any message."""

    def edit(message: Any) -> None:
        part = message.sampling if hasattr(message, "sampling") else message.sampling_config
        setattr(part, name, value)

    asserts.refused(_answer(grpc_target, Request("domain"), edit), "INVALID_ARGUMENT")


@requirement("OE-STOP-015", "OE-ERR-001")
def test_stop_condition_without_member_is_refused(grpc_target: Target) -> None:
    """The server SHOULD refuse a stop condition that says neither a text nor a token."""
    collected = _answer(grpc_target, Request("member"), lambda message: message.stopping.conditions.add())
    asserts.refused(collected, "INVALID_ARGUMENT")


@requirement("SMG-LP-011", "SMG-ERR-002")
@pytest.mark.parametrize("kind", ["logprobs", "prompt_logprobs"])
def test_too_many_candidates_are_refused(grpc_target: Target, kind: str) -> None:
    """The server SHOULD refuse a number of candidates above its limit as invalid."""
    request = Request("candidates").but(**{kind: 2**31 - 1})
    asserts.refused(_answer(grpc_target, request), "INVALID_ARGUMENT")


@requirement("SMG-SMP-016", "SMG-ERR-002")
def test_embedding_bias_of_another_length_is_refused(grpc_target: Target) -> None:
    """The server SHOULD refuse an embedding bias whose length is not the vocabulary's as invalid."""
    collected = _answer(grpc_target, Request("bias"), lambda message: message.embedding_bias.extend([0.5, 0.5, 0.5]))
    asserts.refused(collected, "INVALID_ARGUMENT")


@requirement("OE-WIRE-007", "SMG-ERR-002")
def test_unknown_enum_number_crashes_nothing(grpc_target: Target) -> None:
    """The server SHOULD take an enum number that it does not know as unset or refuse it, and not crash."""

    def edit(message: Any) -> None:
        if hasattr(message, "media"):
            message.media.add(modality=99, url="http://127.0.0.1/x")
        else:
            message.guided_decoding.guide_type = 99
            message.guided_decoding.guide = "a+"

    collected = _answer(grpc_target, Request("enum", max_tokens=3), edit)
    asserts.status(collected, "OK", "INVALID_ARGUMENT", "UNIMPLEMENTED")
    _served(grpc_target, "next")


@requirement("OE-WIRE-007")
def test_unknown_role_in_a_health_check_is_no_role(grpc_target: Target) -> None:
    """The server SHOULD take a role that it does not know as no role when it is asked for its health."""
    channel: Any = grpc_target.client.channel
    check = channel.unary_unary("/openengine.v1.Control/Health")
    answer = check.future(UNKNOWN_ROLE, timeout=grpc_target.timeout)
    asserts.equal("the status of the health check", "OK", answer.code().name)


# What the engine sees of them, and what is left.


INVALID: dict[str, Edit] = {
    "no-input": lambda message: message.ClearField("token_ids"),
    "zero-sequences": lambda message: setattr(message.sampling, "num_sequences", 0),
    "unknown-model": lambda message: setattr(message, "model", "no-such-model"),
    "top_p": lambda message: setattr(message.sampling, "top_p", 1.5),
    "stop-condition": lambda message: message.stopping.conditions.add(),
    "media": UNSUPPORTED_OPENENGINE["media"],
}


@requirement("OE-ERR-007", "OE-ERR-001", needs=(SCRIPTED,))
@pytest.mark.parametrize("edit", INVALID.values(), ids=INVALID)
def test_invalid_request_does_not_reach_the_engine(grpc_target: Target, edit: Edit) -> None:
    """The server MUST refuse what it can check on receipt before it hands anything to the engine."""
    asserts.refused(_answer(grpc_target, Request("invalid"), edit))
    seen = [submission.request_id for submission in grpc_target.engine.submissions]
    asserts.equal("the requests that reached the engine", [], seen)


@requirement("OE-GEN-027", "OE-ERR-017", "SMG-ERR-005")
@pytest.mark.parametrize("connection", ["same", "new"])
def test_refused_request_leaves_nothing_behind(grpc_target: Target, connection: str) -> None:
    """The server SHOULD serve a good request after bad ones, also under the id of a bad one."""
    for _ in range(2):
        collected = _answer(grpc_target, Request("again"), lambda m: m.ClearField(_input_of(m)))
        asserts.refused(collected)
    client = grpc_target.client if connection == "same" else grpc_target.connect()
    request = Request("again", max_tokens=3)
    asserts.succeeded(client.generate(request), request)


# Requests that the engine refuses.


@requirement("OE-ERR-001", "SMG-ERR-001", needs=(SCRIPTED,))
@pytest.mark.parametrize("kind", ["invalid", "full", "down"])
def test_request_that_the_engine_refuses_gets_a_status_only(grpc_target: Target, kind: str) -> None:
    """The server MUST answer a request that its engine refuses with a status and no message."""
    grpc_target.prepare("refused", script(refusal=Refusal(kind)))
    asserts.refused(asserts.ended(grpc_target.generate(Request("refused"))))


@requirement("SMG-ERR-002", needs=(SCRIPTED,))
def test_request_that_the_engine_finds_invalid_is_invalid(grpc_target: Target) -> None:
    """The server SHOULD refuse a request as invalid when its engine does."""
    grpc_target.prepare("invalid", script(refusal=Refusal("invalid")))
    asserts.refused(asserts.ended(grpc_target.generate(Request("invalid"))), "INVALID_ARGUMENT")


@requirement("OE-ERR-013", "SMG-ERR-006", needs=(SCRIPTED,))
def test_full_engine_refuses_for_now(grpc_target: Target) -> None:
    """The server SHOULD refuse a request that its engine has no room for with a code that invites a retry."""
    grpc_target.prepare("full", script(refusal=Refusal("full")))
    collected = asserts.ended(grpc_target.generate(Request("full")))
    asserts.refused(collected, "RESOURCE_EXHAUSTED", "UNAVAILABLE")


@requirement("OE-GEN-027", "OE-ERR-017", "SMG-ERR-005", needs=(SCRIPTED,))
@pytest.mark.parametrize("kind", ["invalid", "full"])
def test_refusal_by_the_engine_leaves_nothing_behind(grpc_target: Target, kind: str) -> None:
    """The server SHOULD serve a request under the id of one that its engine has refused."""
    for _ in range(2):
        grpc_target.prepare("again", script(refusal=Refusal(kind)))
        asserts.refused(asserts.ended(grpc_target.generate(Request("again"))))
    _served(grpc_target, "again")


# Options that are honoured or refused, never ignored.


@requirement("OE-ERR-015", "OE-ERR-001", needs=(SCRIPTED,))
@pytest.mark.parametrize("edit", UNSUPPORTED_OPENENGINE.values(), ids=UNSUPPORTED_OPENENGINE)
def test_feature_that_is_not_there_is_unimplemented(grpc_target: Target, edit: Edit) -> None:
    """The server SHOULD refuse a feature that it lacks as unimplemented, so that a router can tell."""
    asserts.refused(_answer(grpc_target, Request("feature"), edit), "UNIMPLEMENTED")


@requirement("OE-ERR-015", "OE-ERR-001", needs=(SCRIPTED,))
def test_adapter_that_is_not_there_is_refused(grpc_target: Target) -> None:
    """The server SHOULD refuse a request for an adapter that it cannot apply."""
    collected = _answer(grpc_target, Request("lora"), lambda m: setattr(m, "lora_name", "no-such-adapter"))
    asserts.refused(collected, "UNIMPLEMENTED", "NOT_FOUND")


@requirement("SMG-GEN-021", needs=(SCRIPTED,))
@pytest.mark.parametrize("edit", UNSUPPORTED_SMG.values(), ids=UNSUPPORTED_SMG)
def test_part_that_cannot_be_honoured_is_refused(grpc_target: Target, edit: Edit) -> None:
    """The server SHOULD refuse a part of a request that it cannot honour, instead of dropping it."""
    asserts.refused(_answer(grpc_target, Request("part"), edit))


@requirement("SMG-SMP-005", needs=(SCRIPTED,))
def test_beam_search_is_done_or_refused(grpc_target: Target) -> None:
    """The server MUST not answer a request for beam search without one.

    The fake engine has no beam search, so that such a request has to be refused.
    """
    collected = _answer(grpc_target, Request("beams"), lambda m: setattr(m.sampling_config, "beam_width", 4))
    asserts.refused(collected)


@requirement("SMG-SMP-013", "SMG-SMP-014", needs=(SCRIPTED,))
@pytest.mark.parametrize("kind", ["ids", "texts"])
def test_forbidden_words_do_not_come(grpc_target: Target, kind: str) -> None:
    """The server MUST not send what the request forbids, and refuses the request if it cannot see to that."""

    def edit(message: Any) -> None:
        if kind == "ids":
            message.bad_token_ids.append(TOLD[1].id)
        else:
            message.bad.append(TOLD[1].piece.decode())

    collected = _answer(grpc_target, Request("forbidden"), edit)
    if collected.status.ok:
        ids = collected.sequences[0].token_ids if collected.sequences else ()
        asserts.true("the forbidden token does not come", TOLD[1].id not in ids, ids)
    else:
        asserts.refused(collected)


@requirement("SMG-CMP-011", "SMG-CMP-013")
@pytest.mark.parametrize("name", ["perf_metrics", "context_logits", "generation_logits"])
def test_data_that_was_asked_for_comes_or_is_refused(grpc_target: Target, name: str) -> None:
    """The server MUST send the metrics and logits that a request asks for, or refuse the request."""
    request = Request("asked", max_tokens=3)
    collected = _answer(grpc_target, request, lambda m: setattr(m.output_config, f"return_{name}", True))
    if collected.status.ok:
        asserts.ordered(collected, request, grpc_target.protocol)
        complete = collected.received[-1].message.complete
        asserts.true(f"{name} is there", complete.HasField(name), "absent")
    else:
        asserts.refused(collected)


@requirement("SMG-CMP-011", "SMG-CMP-013")
def test_data_that_nobody_asked_for_does_not_come(grpc_target: Target) -> None:
    """The server MUST send neither metrics nor logits that a request does not ask for."""
    request = Request("unasked", max_tokens=3)
    collected = _answer(grpc_target, request)
    asserts.ordered(collected, request, grpc_target.protocol)
    complete = collected.received[-1].message.complete
    names = ("perf_metrics", "context_logits", "generation_logits")
    asserts.equal("what is there", [], [name for name in names if complete.HasField(name)])


def _served_or_refused(target: Target, request: Request, edit: Edit) -> Sequence[Token]:
    """The output tokens of a request with an option that a server may refuse; none if it does."""
    collected = _answer(target, request, edit)
    if not collected.status.ok:
        asserts.refused(collected, "UNIMPLEMENTED")
        return ()
    asserts.ordered(collected, request, target.protocol)
    return collected.sequences[0].tokens


@requirement("OE-LP-013", "OE-ERR-015", needs=(SCRIPTED,))
def test_listed_candidates_come_or_are_refused(grpc_target: Target) -> None:
    """The server MUST score exactly the candidates that a request lists, or refuse the request."""

    def edit(message: Any) -> None:
        message.response.return_output_logprobs = True
        message.response.output_candidates.token_ids.ids.extend([7, 8])

    for token in _served_or_refused(grpc_target, Request("listed"), edit):
        asserts.equal("the candidates", {7, 8}, {candidate.token_id for candidate in token.candidates})


@requirement("OE-LP-014", "OE-ERR-015", needs=(SCRIPTED,))
def test_whole_vocabulary_comes_or_is_refused(grpc_target: Target) -> None:
    """The server MUST score the whole vocabulary when a request asks for it, or refuse the request."""

    def edit(message: Any) -> None:
        message.response.return_output_logprobs = True
        message.response.output_candidates.all.SetInParent()

    for token in _served_or_refused(grpc_target, Request("all"), edit):
        asserts.equal("the candidates", grpc_target.engine.vocabulary_size, len(token.candidates))
