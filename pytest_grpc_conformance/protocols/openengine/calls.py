"""The control calls that the suite makes as a client, over a ``grpc.Channel``."""

from __future__ import annotations

from typing import Any

import grpc

from pytest_grpc_conformance.protocols.base import AbortAnswer, Health
from pytest_grpc_conformance.protocols.openengine.bindings import (
    lifecycle_pb2,
    openengine_pb2_grpc,
    server_pb2,
)
from pytest_grpc_conformance.protocols.openengine.translation import word

_ANSWERS = {
    lifecycle_pb2.ABORT_STATUS_ABORTED: AbortAnswer.ABORTED,
    lifecycle_pb2.ABORT_STATUS_ALREADY_FINISHED: AbortAnswer.ALREADY_FINISHED,
}


def abort(channel: Any, request_id: str, timeout: float) -> AbortAnswer:
    """Abort one request by its id. Raises ``grpc.RpcError`` for every status but OK and NOT_FOUND."""
    return _abort(channel, lifecycle_pb2.AbortRequest(request_id=request_id), timeout)


def abort_all(channel: Any, timeout: float) -> AbortAnswer:
    """Abort every request. Raises ``grpc.RpcError`` for every status but OK and NOT_FOUND."""
    request = lifecycle_pb2.AbortRequest()
    request.all_requests.SetInParent()
    return _abort(channel, request, timeout)


def _abort(channel: Any, request: lifecycle_pb2.AbortRequest, timeout: float) -> AbortAnswer:
    try:
        response = openengine_pb2_grpc.ControlStub(channel).Abort(request, timeout=timeout)
    except grpc.RpcError as error:
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.NOT_FOUND:
            return AbortAnswer.NOT_FOUND
        raise
    return _ANSWERS.get(response.status, AbortAnswer.UNSPECIFIED)


def health(channel: Any, timeout: float) -> Health:
    """The light check.

    ``READY`` alone counts as serving; the words are the state and the checks that are not ready.
    """
    response = openengine_pb2_grpc.ControlStub(channel).Health(lifecycle_pb2.HealthRequest(), timeout=timeout)
    words = [_state(response.state)]
    words += [
        f"{check.name} {_state(check.state)}"
        for check in response.checks
        if check.state != lifecycle_pb2.HEALTH_STATE_READY
    ]
    return Health(response.state == lifecycle_pb2.HEALTH_STATE_READY, ", ".join(words))


def model_name(channel: Any, timeout: float) -> str:
    """The first of the server's ``supported_models``, or an empty string."""
    info = openengine_pb2_grpc.ControlStub(channel).GetServerInfo(server_pb2.GetServerInfoRequest(), timeout=timeout)
    return next(iter(info.supported_models), "")


def _state(number: int) -> str:
    return word(lifecycle_pb2.HealthState, number)
