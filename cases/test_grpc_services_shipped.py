"""grpcio's health and reflection servicers on a server library."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.protocols.openengine.bindings import openengine_pb2_grpc
from pytest_grpc_conformance.targets.base import NotApplicable
from pytest_grpc_conformance.targets.library import LibraryTarget

INFERENCE = "openengine.v1.Inference"


def _shipped(distribution: str, module: str) -> Any:
    """A module of a distribution that not every user of the suite has."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        reason = f"{distribution} cannot be imported ({error}); pip install {distribution}"
        raise NotApplicable("library-missing", reason) from error


class Health:
    """A health servicer of one flavour on a server, and a stub of its client."""

    def __init__(self, target: LibraryTarget, flavour: str) -> None:
        module = _shipped("grpcio-health-checking", "grpc_health.v1.health")
        code = _shipped("grpcio-health-checking", "grpc_health.v1.health_pb2_grpc")
        self._messages = _shipped("grpcio-health-checking", "grpc_health.v1.health_pb2")
        self._target = target
        self._servicer = module.aio.HealthServicer() if flavour == "aio" else module.HealthServicer()
        served = target.serve(register=[lambda server: code.add_HealthServicer_to_server(self._servicer, server)])
        self._stub = code.HealthStub(served.channel())

    def set(self, service: str, status: str) -> None:
        """Set a service's status on the server."""
        self._do(self._servicer.set, service, self._messages.HealthCheckResponse.ServingStatus.Value(status))

    def enter_graceful_shutdown(self) -> None:
        """Have the servicer say NOT_SERVING from now on."""
        self._do(self._servicer.enter_graceful_shutdown)

    def check(self, service: str) -> str:
        """The status of a service, or the code of the error."""
        try:
            response = self._stub.Check(self._request(service), timeout=self._target.timeout)
        except grpc.RpcError as error:
            return str(error.code().name)
        return self._name(response)

    def watch(self, service: str) -> Iterator[str]:
        """The statuses of a service as they come; the code of the error if the call ends with one."""
        call = self._stub.Watch(self._request(service), timeout=self._target.timeout)
        try:
            for response in call:
                yield self._name(response)
        except grpc.RpcError as error:
            yield str(error.code().name)
        finally:
            call.cancel()

    def _request(self, service: str) -> Any:
        return self._messages.HealthCheckRequest(service=service)

    def _name(self, response: Any) -> str:
        return str(self._messages.HealthCheckResponse.ServingStatus.Name(response.status))

    def _do(self, function: Any, *arguments: Any) -> None:
        async def do() -> None:
            done = function(*arguments)
            if done is not None:
                await done

        self._target.run(do())


@requirement("GRPC-SVC-01")
@pytest.mark.parametrize("flavour", ["aio", "sync"])
def test_health_check(grpc_library: LibraryTarget, flavour: str) -> None:
    """The server MUST answer Check with the status of a service, and NOT_FOUND for an unknown one."""
    health = Health(grpc_library, flavour)
    health.set("one", "SERVING")
    health.set("two", "NOT_SERVING")
    observed = {service: health.check(service) for service in ("", "one", "two", "unknown")}
    expected = {"": "SERVING", "one": "SERVING", "two": "NOT_SERVING", "unknown": "NOT_FOUND"}
    asserts.equal("the statuses of services", expected, observed)


@requirement("GRPC-SVC-02")
@pytest.mark.parametrize("service", ["known", "unknown"])
def test_health_watch(grpc_library: LibraryTarget, service: str) -> None:
    """The server MUST send a watcher the current status at once, and then each change of it."""
    health = Health(grpc_library, "aio")
    health.set("known", "SERVING")
    statuses = health.watch(service)
    observed = [next(statuses, "the end")]
    for status in ("NOT_SERVING", "SERVING"):
        health.set(service, status)
        observed.append(next(statuses, "the end"))
    statuses.close()  # type: ignore[attr-defined]
    first = "SERVING" if service == "known" else "SERVICE_UNKNOWN"
    asserts.equal("the statuses as they come", [first, "NOT_SERVING", "SERVING"], observed)


@requirement("GRPC-SVC-03")
@pytest.mark.parametrize("flavour", ["aio", "sync"])
def test_health_in_graceful_shutdown(grpc_library: LibraryTarget, flavour: str) -> None:
    """The server SHOULD carry both flavours of health servicer, also in graceful shutdown, as grpcio does."""

    def exchange(target: LibraryTarget) -> list[str]:
        health = Health(target, flavour)
        before = health.check("")
        health.enter_graceful_shutdown()
        health.set("", "SERVING")
        return [before, health.check("")]

    asserts.parity(grpc_library, exchange, expected=["SERVING", "NOT_SERVING"])


@requirement("GRPC-SVC-04")
@pytest.mark.parametrize("flavour", ["aio", "sync"])
def test_reflection(grpc_library: LibraryTarget, flavour: str) -> None:
    """The server SHOULD list services and find files by reflection, with NOT_FOUND inside the stream."""
    module = _shipped("grpcio-reflection", "grpc_reflection.v1alpha.reflection")
    code = _shipped("grpcio-reflection", "grpc_reflection.v1alpha.reflection_pb2_grpc")
    ask = _shipped("grpcio-reflection", "grpc_reflection.v1alpha.reflection_pb2").ServerReflectionRequest
    importlib.import_module("pytest_grpc_conformance.protocols.openengine.bindings.openengine_pb2")  # Describes it.
    servicer = (module.aio if flavour == "aio" else module).ReflectionServicer([INFERENCE])

    def register(server: Any) -> None:
        openengine_pb2_grpc.add_InferenceServicer_to_server(openengine_pb2_grpc.InferenceServicer(), server)
        code.add_ServerReflectionServicer_to_server(servicer, server)

    served = grpc_library.serve(register=[register])
    requests = [
        ask(list_services=""),
        ask(file_containing_symbol=INFERENCE),
        ask(file_containing_symbol="no.such.Symbol"),
        ask(list_services=""),
    ]
    call = code.ServerReflectionStub(served.channel()).ServerReflectionInfo(iter(requests), timeout=served.timeout)
    try:
        responses = list(call)
    except grpc.RpcError:
        responses = []
    asserts.equal("the status of the stream", "OK", call.code().name)
    kinds = [response.WhichOneof("message_response") for response in responses]
    listed, found, missing = "list_services_response", "file_descriptor_response", "error_response"
    asserts.equal("the responses", [listed, found, missing, listed], kinds)
    names = [service.name for service in responses[0].list_services_response.service]
    asserts.equal("the services", [INFERENCE], names)
    files = responses[1].file_descriptor_response.file_descriptor_proto
    asserts.true("a file has come for the symbol", any(b"Inference" in file for file in files), f"{len(files)} files")
    error = grpc.StatusCode.NOT_FOUND.value[0]
    asserts.equal("the error of an unknown symbol", error, responses[2].error_response.error_code)
