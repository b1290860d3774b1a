"""What the suite's own parts cost, as ratios within one run: the fake engine alone against full servers.

Each server runs as ``grpc-conformance serve`` in a process of its own; this process is its client and says what it
cost. Rounds go in turn (engine, first server, second server, engine, ...), so a machine whose speed drifts slows all
of them alike.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from pytest_grpc_conformance import __version__, registry
from pytest_grpc_conformance.engines.gated import GatedEngine, Submission
from pytest_grpc_conformance.engines.script import Prompt
from pytest_grpc_conformance.protocols.base import Request, WireProtocol
from pytest_grpc_conformance.serve import default_script
from pytest_grpc_conformance.targets.launched import LaunchedProcess

ENGINE = "engine alone"


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """How much is measured. One token a step, all gates open."""

    protocol: str = "openengine"
    servers: tuple[str, ...] = ("grpcio", "pygrpc-native")
    requests: int = 64
    tokens: int = 128
    rounds: int = 5

    @property
    def tokens_per_round(self) -> int:
        return self.requests * self.tokens


@dataclass(slots=True)
class Series:
    """The rounds of one contestant: tokens per second, and CPU microseconds per token of producer and client."""

    tokens_per_second: list[float] = field(default_factory=list)
    server_cpu: list[float] = field(default_factory=list)
    client_cpu: list[float] = field(default_factory=list)

    def to_data(self) -> dict[str, Any]:
        """Medians with their ranges."""
        named = {
            "tokens_per_second": self.tokens_per_second,
            "server_cpu_us_per_token": self.server_cpu,
            "client_cpu_us_per_token": self.client_cpu,
        }
        return {
            name: {"median": round(statistics.median(v), 2), "range": [round(min(v), 2), round(max(v), 2)]}
            for name, v in named.items()
            if v
        }


def measure(options: BenchOptions) -> dict[str, Any]:
    """Run all rounds and return the figures, with what they were measured on. Raises ``TargetBroken``."""
    wire = registry.protocol(options.protocol)
    series = {name: Series() for name in (ENGINE, *options.servers)}
    processes = {name: _launch(options.protocol, name) for name in options.servers}
    try:
        for number in range(options.rounds + 1):
            kept = series if number else {name: Series() for name in series}  # The first round warms up.
            asyncio.run(_engine_round(options, kept[ENGINE]))
            for name, process in processes.items():
                asyncio.run(_server_round(options, wire, process, kept[name]))
    finally:
        for process in processes.values():
            process.stop()
    return _report(options, series)


def _launch(protocol: str, server: str) -> LaunchedProcess:
    command = [sys.executable, "-m", "pytest_grpc_conformance.cli", "serve", "--protocol", protocol, "--server", server]
    return LaunchedProcess(shlex.join(command), ready_timeout=30.0).start()


def _request(options: BenchOptions, number: int) -> Request:
    return Request(f"bench-{number}", max_tokens=options.tokens)


async def _engine_round(options: BenchOptions, series: Series) -> None:
    async def consume(number: int) -> None:
        request = _request(options, number)
        async for _ in engine.submit(request.request_id, Prompt((1, 2, 3)), request.parameters()):
            pass

    told = default_script(Submission("", Prompt((1,)), _request(options, 0).parameters()))
    with GatedEngine() as engine:
        for number in range(options.requests):
            engine.prepare(_request(options, number).request_id, told, open=True)
        began = time.perf_counter()
        await asyncio.gather(*(consume(number) for number in range(options.requests)))
        series.tokens_per_second.append(options.tokens_per_round / (time.perf_counter() - began))


async def _server_round(options: BenchOptions, wire: WireProtocol, process: LaunchedProcess, series: Series) -> None:
    import grpc.aio

    from pytest_grpc_conformance.protocols.client import CHANNEL_OPTIONS

    async with grpc.aio.insecure_channel(process.address, options=list(CHANNEL_OPTIONS)) as channel:
        await channel.channel_ready()
        method = wire.generate
        call = channel.unary_stream(method.path, method.request.SerializeToString, None)

        async def consume(number: int) -> int:
            message = wire.to_message(_request(options, number), model="fake-model")
            return sum([1 async for _ in call(message)])

        cpu_before, own_before, began = process.cpu_seconds(), time.process_time(), time.perf_counter()
        counts = await asyncio.gather(*(consume(number) for number in range(options.requests)))
        seconds = time.perf_counter() - began
        per_token = 1e6 / options.tokens_per_round
        series.tokens_per_second.append(options.tokens_per_round / seconds)
        series.server_cpu.append((process.cpu_seconds() - cpu_before) * per_token)
        series.client_cpu.append((time.process_time() - own_before) * per_token)
    short = [count for count in counts if count < options.tokens]
    if short:
        raise RuntimeError(f"{len(short)} streams ended early; the figures would be wrong")


def _report(options: BenchOptions, series: dict[str, Series]) -> dict[str, Any]:
    medians = {name: statistics.median(s.tokens_per_second) for name, s in series.items()}
    return {
        "protocol": options.protocol,
        "requests_at_once": options.requests,
        "tokens_per_request": options.tokens,
        "rounds": options.rounds,
        "series": {name: s.to_data() for name, s in series.items()},
        "engine_over_server": {name: round(medians[ENGINE] / medians[name], 1) for name in options.servers},
        "provenance": _provenance(),
    }


def _provenance() -> dict[str, Any]:
    from google.protobuf.internal import api_implementation

    names = ("grpcio", "pygrpc-native", "protobuf")
    return {
        "suite": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "clock": "time.perf_counter",
        "protobuf_back_end": api_implementation.Type(),
        **{name: _version(name) for name in names},
    }


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def render(report: dict[str, Any]) -> Sequence[str]:
    """The figures as lines for a terminal."""
    lines = [
        f"{report['protocol']}: {report['requests_at_once']} requests at once, "
        f"{report['tokens_per_request']} tokens each, "
        f"median of {report['rounds']} rounds (range)"
    ]
    for name, figures in report["series"].items():
        parts = [
            f"{f['median']:>12,} ({f['range'][0]:,} to {f['range'][1]:,}) {what.replace('_', ' ')}"
            for what, f in figures.items()
        ]
        lines += [f"{name if at == 0 else '':<16}{part}" for at, part in enumerate(parts)]
    for name, ratio in report["engine_over_server"].items():
        lines.append(f"the engine alone yields {ratio} times the tokens/s of the {name} server")
    return lines
