"""What cases about the wire assert. Beside ``asserts.py`` the only place that raises ``Violation``.

SPEC rows are judged against their text. PARITY rows run the same exchange on grpcio in the same run and compare;
what may differ (order of header fields, frame boundaries, wording that no text fixes) is not in what is compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from pytest_grpc_conformance.asserts import equal, true, violation
from pytest_grpc_conformance.targets.library import LibraryTarget
from pytest_grpc_conformance.wire.answer import Answer
from pytest_grpc_conformance.wire.connection import RawConnection, WireSilence
from pytest_grpc_conformance.wire.frames import ErrorCode, error_name
from pytest_grpc_conformance.wire.seen import NotSeen

__all__ = [
    "answered",
    "closed",
    "connection_error",
    "ended_with",
    "equal",
    "fails",
    "owed",
    "parity",
    "seen",
    "settled",
    "still_serves",
    "stream_refused",
    "true",
    "violation",
]
T = TypeVar("T")
UNKNOWN: Any = object()
STATUS = {
    "OK": 0,
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "DATA_LOSS": 15,
    "UNAUTHENTICATED": 16,
}
"""The codes of gRPC's status document."""


@contextlib.contextmanager
def owed(what: str) -> Iterator[None]:
    """What is waited for inside is owed by the server: a wait that ends in vain is its violation."""
    try:
        yield
    except (WireSilence, NotSeen) as silence:
        violation(f"{what} did not come", what, str(silence))


def answered(connection: RawConnection, stream: int) -> Answer:
    """The whole answer on a stream; the server owes its end."""
    with owed(f"the end of stream {stream}"):
        return connection.answer(stream)


def ended_with(answer: Answer, *names: str) -> None:
    """The answer ends with trailers that carry one of these status codes, and ``:status`` is 200."""
    observed = answer.status
    if observed is None or observed not in {STATUS[name] for name in names} or answer.http_status != "200":
        violation("the call's status differs", f"{' or '.join(names)} in trailers, with :status 200", str(answer))


def fails(answer: Answer, *, besides: tuple[str, ...] = ()) -> None:
    """The call has ended, and not with OK: trailers with another code, an HTTP error, or RST_STREAM."""
    bad_http = answer.http_status not in (None, "200")
    failed = answer.reset not in (None, 0) or bad_http or answer.status not in (None, 0)
    if not failed and not (answer.closed and "closed" in besides):
        violation("the call did not fail", "a status other than OK, an HTTP error, or RST_STREAM", str(answer))


def stream_refused(answer: Answer) -> None:
    """A malformed request costs its own stream: RST_STREAM, an HTTP error status, or a gRPC error; not OK, and not
    the connection (RFC 9113, section 8.1.1)."""
    if answer.closed:
        violation("a malformed request cost the connection", "a stream error", str(answer))
    fails(answer)


def connection_error(connection: RawConnection, *codes: ErrorCode, probe: str | None = None) -> None:
    """The server ends the connection; if it says why, by GOAWAY, the code is one of these (RFC 9113, section 5.4.1).

    ``probe`` is the path of a method that echoes: a later call of it that succeeds shows at once, without waiting for
    an end that never comes, that the connection goes on.
    """
    if probe is not None:
        with owed("the end of the connection"):
            later = connection.unary(probe, b"later")
        if later.status == 0:
            violation("the connection goes on after a connection error", "the end of the connection", str(later))
    closed(connection)
    given = [frame.error_code for frame in connection.received.goaways() if frame.error_code]
    if given and codes and given[-1] not in codes:
        names = " or ".join(code.name for code in codes)
        violation("the connection error has another code", f"GOAWAY {names}", f"GOAWAY {error_name(given[-1])}")


def closed(connection: RawConnection) -> str:
    """The server ends the connection; how it did."""
    with owed("the end of the connection"):
        return connection.wait_closed()


def still_serves(connection: RawConnection, path: str) -> None:
    """The connection still carries a plain unary call to a method that echoes."""
    with owed("an answer to a later call on the same connection"):
        answer = connection.unary(path, b"still")
    if answer.status != 0 or answer.payloads != (b"still",):
        violation("a later call on the same connection failed", "OK with the echoed message", str(answer))


def settled(connection: RawConnection, streams: Sequence[int], later: str) -> list[Answer]:
    """What came on streams whose handlers wait for nothing, in the order given; one that the server has left open has
    not ``ended``.

    A call of ``later``, a method that echoes, comes after them: what is open a while after its answer stays so. The
    while is a tenth of the deadline, one second at least.
    """
    still_serves(connection, later)
    with contextlib.suppress(WireSilence):
        connection.wait(
            lambda: connection.closed or all(connection.received.ended(stream) for stream in streams),
            f"the end of {len(streams)} streams",
            max(1.0, connection.timeout / 10),
        )
    return [connection.so_far(stream) for stream in streams]


def seen(target: LibraryTarget, what: str, *, count: int = 1) -> list[Any]:
    """What the handler noted under a name; the server owes it."""
    with owed(f"{what!r} in the handler"):
        return target.seen.wait(what, target.timeout, count=count)


def parity(target: LibraryTarget, exchange: Callable[[LibraryTarget], T], *, expected: Any = UNKNOWN) -> T:
    """An exchange gives the same on the target as on grpcio, which runs it too; ``expected`` is what the row states.

    ``exchange`` serves and calls on the target that it is given, and returns plain data in the normal form. A wait in
    it that ends in vain is the target's violation; on grpcio it says that the row is no parity goal, and is reported
    as grpcio's own.
    """
    with owed("the end of the exchange"):
        observed = exchange(target)
    if target.is_oracle:
        if expected is not UNKNOWN and observed != expected:
            violation("grpcio does not do what the row says of it", expected, observed)
        return observed
    oracle = target.oracle()
    try:
        wanted = exchange(oracle)
    finally:
        oracle.close()
    if observed != wanted:
        violation("the exchange ends differently from grpcio's", wanted, observed)
    return observed
