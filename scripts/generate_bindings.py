"""Write the OpenEngine v1 Python bindings from the .proto files.

    python scripts/generate_bindings.py            write them
    python scripts/generate_bindings.py --check    write nothing; exit 1 when a committed file is not current

The bindings live inside this package, but their descriptors keep the file names openengine/v1/*.proto. So
a process can hold somebody's own openengine.v1 bindings as well: the descriptor pool sees the same files.

Generated code runs on the grpcio it was made for and on later ones, so the oldest supported one makes it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, MethodDescriptorProto

TOOLS_VERSION = "1.81.1"
PACKAGE = "pytest_grpc_conformance.protocols.openengine.bindings"

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "pytest_grpc_conformance/protocols/openengine/proto"
BINDINGS = ROOT / PACKAGE.replace(".", "/")

# protoc writes Mapping without its types, which mypy --strict refuses.
BARE_MAPPINGS = '# mypy: disable-error-code="type-arg"\n'

ITERATION = ("AsyncIterator", "Awaitable", "Iterator")
TYPING = ("Any", "overload", "type_check_only")

CURRENT, DIFFERENT, CANNOT_GENERATE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the OpenEngine v1 bindings from the .proto files.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on a difference")
    check: bool = parser.parse_args(arguments).check

    installed = _installed_tools()
    if installed != TOOLS_VERSION:
        found = f"{installed} is installed" if installed else "it is not installed"
        print(f"generate_bindings needs grpcio-tools=={TOOLS_VERSION}, {found}", file=sys.stderr)
        return CANNOT_GENERATE

    generated = _generate()
    committed = {path.name: path.read_bytes() for path in BINDINGS.glob("*_pb2*.py*")}
    different = [name for name in sorted(generated | committed) if generated.get(name) != committed.get(name)]
    if check:
        if different:
            print(f"{(BINDINGS / different[0]).relative_to(ROOT)} is not current", file=sys.stderr)
            return DIFFERENT
        print(f"{len(generated)} files are current")
        return CURRENT

    for name in different:
        if name in generated:
            (BINDINGS / name).write_bytes(generated[name])
        else:
            (BINDINGS / name).unlink()
    print(f"{len(generated)} files, {len(different)} changed")
    return CURRENT


def _installed_tools() -> str | None:
    try:
        return metadata.version("grpcio-tools")
    except metadata.PackageNotFoundError:
        return None


def _generate() -> dict[str, bytes]:
    """What belongs into BINDINGS, by file name. Only a file with services gets a _pb2_grpc module."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet  # comes with grpcio-tools

    sources = sorted(path.relative_to(PROTO).as_posix() for path in PROTO.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        outputs = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
        schema_path = out / "schema.binpb"
        protoc = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTO}", *outputs]
        done = subprocess.run([*protoc, f"--descriptor_set_out={schema_path}", *sources], check=False)
        if done.returncode:
            raise SystemExit(CANNOT_GENERATE)  # protoc has said why
        schema = FileDescriptorSet.FromString(schema_path.read_bytes())

        texts: dict[str, str] = {}
        for file in schema.file:
            stem = file.name.removesuffix(".proto")
            name = Path(stem).name
            texts[f"{name}_pb2.py"] = _moved_into_package((out / f"{stem}_pb2.py").read_text("utf-8"))
            types = _moved_into_package((out / f"{stem}_pb2.pyi").read_text("utf-8"))
            texts[f"{name}_pb2.pyi"] = BARE_MAPPINGS + types
            if file.service:
                stubs = (out / f"{stem}_pb2_grpc.py").read_text("utf-8")
                texts[f"{name}_pb2_grpc.py"] = _moved_into_package(stubs)
                texts[f"{name}_pb2_grpc.pyi"] = "\n".join(_grpc_types(file, schema.file)) + "\n"
    return {name: text.encode() for name, text in texts.items()}


def _moved_into_package(text: str) -> str:
    """The same code for PACKAGE instead of openengine.v1. The descriptor in it stays as it is."""
    imports = r"^from openengine\.v1 import (?=\w+_pb2 as )"
    module = r"(?<=\(DESCRIPTOR, ')openengine\.v1(?=\.\w+_pb2', _globals\)$)"
    path = r"openengine/v1(?=/\w+_pb2_grpc\.py depends on)"
    text = re.sub(imports, f"from {PACKAGE} import ", text, flags=re.MULTILINE)
    text = re.sub(module, PACKAGE, text, flags=re.MULTILINE)
    return re.sub(path, PACKAGE.replace(".", "/"), text)


def _grpc_types(file: FileDescriptorProto, files: Sequence[FileDescriptorProto]) -> Iterator[str]:
    """Types for the generated stubs and servicers; grpcio-tools writes none.

    A stub on a grpc.aio channel has the type ...AsyncStub, which exists for type checkers only. A servicer
    may be written with or without asyncio. A server is Any: every library with grpcio's interface will do.
    """
    module_of = {
        f".{each.package}.{message.name}": f"_{Path(each.name).stem}_pb2"
        for each in files
        for message in each.message_type
    }

    def type_of(message: str) -> str:
        return f"{module_of[message]}.{message.rpartition('.')[2]}"

    def call(grpc: str, method: MethodDescriptorProto) -> str:
        shape = "UnaryStream" if method.server_streaming else "UnaryUnary"
        return f"{grpc}.{shape}MultiCallable[{type_of(method.input_type)}, {type_of(method.output_type)}]"

    def signature(method: MethodDescriptorProto) -> str:
        request, response = type_of(method.input_type), type_of(method.output_type)
        answer = f"{response} | _Awaitable[{response}]"
        if method.server_streaming:
            answer = f"_Iterator[{response}] | _AsyncIterator[{response}] | _Awaitable[None]"
        return f"    def {method.name}(self, request: {request}, context: _Any) -> {answer}: ..."

    methods = [method for service in file.service for method in service.method]
    used = {module_of[name] for method in methods for name in (method.input_type, method.output_type)}
    yield "# Generated by scripts/generate_bindings.py. DO NOT EDIT!"
    yield f"# source: {file.name}"
    for module, names in ("collections.abc", ITERATION), ("typing", TYPING):
        yield f"from {module} import " + ", ".join(f"{name} as _{name}" for name in names)
    yield ""
    yield "import grpc"
    yield "import grpc.aio"
    yield ""
    for module in sorted(used):
        yield f"from {PACKAGE} import {module[1:]} as {module}"
    for service in file.service:
        stub, async_stub, servicer = (service.name + kind for kind in ("Stub", "AsyncStub", "Servicer"))
        yield ""
        yield f"class {stub}:"
        for method in service.method:
            yield f"    {method.name}: {call('grpc', method)}"
        for channel, result in ("grpc.Channel", stub), ("grpc.aio.Channel", async_stub):
            yield "    @_overload"
            yield f"    def __new__(cls, channel: {channel}) -> {result}: ..."
        yield ""
        yield "@_type_check_only"
        yield f"class {async_stub}({stub}):"
        for method in service.method:
            yield f"    {method.name}: {call('grpc.aio', method)}  # type: ignore[assignment]"
        yield ""
        yield f"class {servicer}:"
        for method in service.method:
            yield signature(method)
        yield ""
        yield f"def add_{servicer}_to_server(servicer: {servicer}, server: _Any) -> None: ..."


if __name__ == "__main__":
    sys.exit(main())
