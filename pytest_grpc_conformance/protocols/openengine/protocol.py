"""OpenEngine v1 as a ``WireProtocol``.

grpc and the bindings are imported when something is first asked of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pytest_grpc_conformance.engines.base import Engine
from pytest_grpc_conformance.engines.course import Course
from pytest_grpc_conformance.engines.script import Prompt, Script
from pytest_grpc_conformance.protocols.base import (
    AbortAnswer,
    Event,
    Health,
    Message,
    Method,
    Registration,
    Request,
    Traits,
    WireProtocol,
)


class OpenEngine(WireProtocol):
    """OpenEngine v1 (package ``openengine.v1``, schema revision 1)."""

    name: ClassVar[str] = "openengine"
    title: ClassVar[str] = "OpenEngine v1"
    requirement_prefix: ClassVar[str] = "OE-"
    traits: ClassVar[Traits] = Traits(
        carries_text=True,
        errors_in_band=True,
        repeats_output=False,
        usage_per_sequence=False,
        usage_on_tokens=False,
        prompt_event=True,
        ranks=True,
        reports_eos=True,
        float32_scores=False,
        unary_switch=False,
        # The protocol fixes no code for it (the reference servicer says ALREADY_EXISTS).
        duplicate_id_codes=frozenset(),
        features={
            "text_prompt": True,
            "token_prompt": True,
            "min_tokens": True,
            "num_sequences": True,
            "seed": True,
            "stop_text": True,
            "stop_token": True,
            "include_stop": True,
            "ignore_eos": True,
            "logprobs": True,
            "prompt_logprobs": True,
            "abort": True,
            "health": True,
        },
    )

    @property
    def generate(self) -> Method:
        from pytest_grpc_conformance.protocols.openengine.bindings import generation_pb2

        return Method(
            "/openengine.v1.Inference/Generate",
            generation_pb2.GenerateRequest,
            generation_pb2.GenerateResponse,
            streaming=True,
        )

    def to_message(self, request: Request, *, model: str) -> Message:
        from pytest_grpc_conformance.protocols.openengine.translation import to_message

        return to_message(request, model=model)

    def to_event(self, message: Message) -> Event:
        from pytest_grpc_conformance.protocols.openengine.translation import to_event

        return to_event(message)

    def request_id_of(self, message: Message) -> str:
        return str(getattr(message, "request_id", ""))

    def abort(self, channel: Any, request_id: str, timeout: float) -> AbortAnswer:
        from pytest_grpc_conformance.protocols.openengine import calls

        return calls.abort(channel, request_id, timeout)

    def abort_all(self, channel: Any, timeout: float) -> AbortAnswer:
        from pytest_grpc_conformance.protocols.openengine import calls

        return calls.abort_all(channel, timeout)

    def health(self, channel: Any, timeout: float) -> Health:
        from pytest_grpc_conformance.protocols.openengine import calls

        return calls.health(channel, timeout)

    def model_name(self, channel: Any, timeout: float) -> str:
        from pytest_grpc_conformance.protocols.openengine import calls

        return calls.model_name(channel, timeout)

    def servicers(self, engine: Engine) -> Sequence[Registration]:
        """Inference and Control; ``state`` of both is one object, whose ``draining`` refuses new work."""
        from pytest_grpc_conformance.protocols.openengine.bindings import openengine_pb2_grpc
        from pytest_grpc_conformance.protocols.openengine.control import ControlServicer
        from pytest_grpc_conformance.protocols.openengine.servicer import InferenceServicer
        from pytest_grpc_conformance.protocols.openengine.state import ServerState

        state = ServerState(engine)
        return [
            Registration(InferenceServicer(state), openengine_pb2_grpc.add_InferenceServicer_to_server),
            Registration(ControlServicer(state), openengine_pb2_grpc.add_ControlServicer_to_server),
        ]

    def expected_messages(self, request: Request, prompt: Prompt, script: Script, course: Course) -> list[Message]:
        from pytest_grpc_conformance.protocols.openengine.expected import expected_messages

        return list(expected_messages(request, prompt, script, course))


OPENENGINE = OpenEngine()
