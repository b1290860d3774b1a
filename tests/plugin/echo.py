"""A servicer of a user's, without generated code, and the names under which pytest-grpc's users give it."""

from __future__ import annotations

ECHO = '''
import asyncio
import threading

import grpc


class Echo:
    """Async methods, as servers on grpc.aio have them."""

    async def Call(self, request, context):
        await asyncio.sleep(0)
        return b"async " + request

    async def Count(self, request, context):
        for number in range(int(request)):
            yield str(number).encode()


class SyncEcho:
    """Blocking methods, as servers on threads have them."""

    def Call(self, request, context):
        assert threading.current_thread() is not threading.main_thread()
        return b"sync " + request

    def Count(self, request, context):
        for number in range(int(request)):
            yield str(number).encode()


def add_echo(servicer, server, name="t.Echo"):
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                name,
                {
                    "Call": grpc.unary_unary_rpc_method_handler(servicer.Call),
                    "Count": grpc.unary_stream_rpc_method_handler(servicer.Count),
                },
            ),
        )
    )


class EchoStub:
    def __init__(self, channel, name="t.Echo"):
        self.Call = channel.unary_unary(f"/{name}/Call")
        self.Count = channel.unary_stream(f"/{name}/Count")
'''
"""The module ``echo``."""

FIXTURES = """
import pytest

import echo


@pytest.fixture(scope="module")
def grpc_add_to_server():
    return echo.add_echo


@pytest.fixture(scope="module")
def grpc_servicer():
    return echo.Echo()


@pytest.fixture(scope="module")
def grpc_stub_cls():
    return echo.EchoStub
"""
"""What a test module of pytest-grpc's users begins with."""
