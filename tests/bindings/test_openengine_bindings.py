"""The OpenEngine bindings state the contract's facts and share a process with anybody's openengine.v1."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from pytest_grpc_conformance.protocols import openengine

OURS = "pytest_grpc_conformance.protocols.openengine.bindings"
THEIRS = "openengine.v1"
PROTO = Path(openengine.__file__).parent / "proto"
IMPORT_ROOT = Path(openengine.__file__).parents[3]

REPOSITORY = Path(__file__).parents[2]
SCRIPT = Path("scripts/generate_bindings.py")
TOOLS_VERSION = "1.81.1"

FACTS = Path(__file__).with_name("openengine_v1.txt").read_text("utf-8")
SCALARS = FieldDescriptorProto.Type.keys()
FILES = ("error", "kv", "generation", "server", "lifecycle", "lora", "model", "openengine")

# --- the descriptors are what the facts say -----------------------------------------------------------------


def test_facts_name_the_files_that_we_have() -> None:
    named = [line.split()[1] for line in FACTS.splitlines() if line.startswith("file ")]
    assert named == [f"openengine/v1/{file}.proto" for file in FILES]
    assert sorted(named) == sorted(path.relative_to(PROTO).as_posix() for path in PROTO.rglob("*.proto"))


@pytest.mark.parametrize("file", FILES)
def test_descriptor_states_the_facts(file: str) -> None:
    assert str(FileDescriptorProto.FromString(descriptor(file).serialized_pb)) == str(built_from_facts(file))


@pytest.mark.parametrize("file", FILES)
def test_descriptor_is_byte_for_byte_what_the_facts_give(file: str) -> None:
    assert descriptor(file).serialized_pb == built_from_facts(file).SerializeToString(deterministic=True)


@pytest.mark.parametrize("file", FILES)
def test_presence_is_kept_for_optional_fields_oneof_members_and_messages(file: str) -> None:
    messages = descriptor(file).message_types_by_name.values()
    found = {field.full_name: field.has_presence for message in messages for field in message.fields}
    facts = {
        f"openengine.v1.{message.name}.{field.name}": field.HasField("oneof_index")
        or (field.type == field.TYPE_MESSAGE and field.label != field.LABEL_REPEATED)
        for message in built_from_facts(file).message_type
        for field in message.field
    }
    assert found == facts


def descriptor(file: str) -> FileDescriptor:
    found: FileDescriptor = import_module(f"{OURS}.{file}_pb2").DESCRIPTOR
    return found


def built_from_facts(file: str) -> FileDescriptorProto:
    """The descriptor that the facts alone give, laid out as protoc lays it out."""
    path = f"openengine/v1/{file}.proto"
    (about,) = (part for part in FACTS.split("\nfile ")[1:] if part.startswith(f"{path}\n"))
    built = FileDescriptorProto(name=path, package="openengine.v1", syntax="proto3")
    for line in about.splitlines()[1:]:
        match line.split():
            case ["import", name]:
                built.dependency.append(name)
            case ["message", name]:
                built.message_type.add(name=name)
            case ["field", name, number, type_, label, *oneof]:
                add_field(built.message_type[-1], name, int(number), type_, label, *oneof)
            case ["enum", name]:
                built.enum_type.add(name=name)
            case ["value", name, number]:
                built.enum_type[-1].value.add(name=name, number=int(number))
            case ["service", name]:
                built.service.add(name=name)
            case ["method", name, request, answer, response]:
                types = {"input_type": full_name(request), "output_type": full_name(response)}
                streaming = {"stream": True, "unary": None}[answer]
                built.service[-1].method.add(name=name, **types, server_streaming=streaming)
            case [*words]:
                assert not words, f"not a fact: {line}"
    for message in built.message_type:
        add_oneofs_of_optional_fields(message)
    return built


def add_field(message: DescriptorProto, name: str, number: int, type_: str, label: str, *oneof: str) -> None:
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if label == "repeated" else field.LABEL_OPTIONAL
    if f"TYPE_{type_.upper()}" in SCALARS:
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{type_.upper()}")
    else:
        field.type = field.TYPE_ENUM if f"\nenum {type_}\n" in FACTS else field.TYPE_MESSAGE
        field.type_name = full_name(type_)
    if label == "optional":
        field.proto3_optional = True
    for each in oneof:
        names = [known.name for known in message.oneof_decl]
        if each not in names:
            message.oneof_decl.add(name=each)
        field.oneof_index = [*names, each].index(each)


def add_oneofs_of_optional_fields(message: DescriptorProto) -> None:
    """An optional field is alone in a oneof of its own; these follow the oneofs that the file declares."""
    for field in message.field:
        if field.proto3_optional:
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


def full_name(type_: str) -> str:
    return f".{type_}" if "." in type_ else f".openengine.v1.{type_}"


# --- our bindings beside somebody else's --------------------------------------------------------------------

# Arguments: protobuf back end, package to import first, package to import second, file names.
EXCHANGE = """
import sys
from importlib import import_module
from google.protobuf.internal import api_implementation

backend, first, second, *files = sys.argv[1:]
assert api_implementation.Type() == backend, api_implementation.Type()
one = {file: import_module(f"{first}.{file}_pb2") for file in files}
# Kept now: where two files differ, the python back end keeps the first and puts the second's bytes on it.
contract = {file: one[file].DESCRIPTOR.serialized_pb for file in files}
other = {file: import_module(f"{second}.{file}_pb2") for file in files}
import_module("pytest_grpc_conformance.protocols.openengine.bindings.openengine_pb2_grpc")

for file in files:
    assert one[file] is not other[file]
    assert other[file].DESCRIPTOR.serialized_pb == contract[file], file

for mine, theirs in (one, other), (other, one):
    sent = mine["generation"].GenerateRequest(request_id="r", prompt="", sampling={"temperature": 0.0})
    sent.extra.update({"list": [1, True, None], "object": {"text": "x"}})
    sent.kv.session.endpoints.add(host="h", port=1)
    got = theirs["generation"].GenerateRequest.FromString(sent.SerializeToString())
    assert got.WhichOneof("input") == "prompt"
    assert got.sampling.HasField("temperature") and not got.sampling.HasField("top_p")
    assert got.SerializeToString(deterministic=True) == sent.SerializeToString(deterministic=True)
    handed_over = theirs["lifecycle"].AbortRequest(kv_session=sent.kv.session)
    assert list(handed_over.kv_session.endpoints) == [theirs["kv"].KvEndpoint(host="h", port=1)]
print("exchanged")
"""

# A module that protoc could have written, for an environment without protoc.
MODULE = """
from google.protobuf import descriptor_pool
from google.protobuf.internal import builder
{imports}
DESCRIPTOR = descriptor_pool.Default().AddSerializedFile({serialized!r})
builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, __name__, globals())
"""

MADE_BY = ["facts", *(["protoc"] if importlib.util.find_spec("grpc_tools") else [])]


@pytest.fixture(scope="module", params=MADE_BY)
def their_bindings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to import openengine.v1 from: bindings of the same contract that know nothing of ours."""
    root = tmp_path_factory.mktemp("theirs")
    if request.param == "protoc":
        sources = [f"openengine/v1/{file}.proto" for file in FILES]
        protoc = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTO}", f"--python_out={root}"]
        subprocess.run([*protoc, *sources], check=True, timeout=60)
        return root
    package = root / "openengine/v1"
    package.mkdir(parents=True)
    for file in FILES:
        built = built_from_facts(file)
        modules = [name.removesuffix(".proto").replace("/", ".") + "_pb2" for name in built.dependency]
        imports = "\n".join(f"import {module}" for module in modules)
        text = MODULE.format(imports=imports, serialized=built.SerializeToString(deterministic=True))
        (package / f"{file}_pb2.py").write_text(text, "utf-8")
    return root


@pytest.mark.parametrize("backend", ["upb", "python"])
@pytest.mark.parametrize("order", [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours-first", "theirs-first"])
def test_both_sets_load_and_read_each_others_messages(
    their_bindings: Path, backend: str, order: tuple[str, str]
) -> None:
    assert python(EXCHANGE, backend, *order, *FILES, path=their_bindings, backend=backend) == "exchanged\n"


# Arguments: module names.
LOAD = """
import pickle, sys
from importlib import import_module

modules = {name: import_module(name) for name in sys.argv[1:]}
assert not [name for name in sys.modules if name.partition(".")[0] == "openengine"]
kv = modules["pytest_grpc_conformance.protocols.openengine.bindings.kv_pb2"]
assert kv.KvEndpoint.__module__ == kv.__name__
assert pickle.loads(pickle.dumps(kv.KvEndpoint(port=1))) == kv.KvEndpoint(port=1)
print("loaded")
"""


@pytest.mark.parametrize("backend", ["upb", "python"])
def test_an_unrelated_package_named_openengine_is_left_alone(tmp_path: Path, backend: str) -> None:
    unrelated = tmp_path / "openengine/__init__.py"
    unrelated.parent.mkdir()
    unrelated.write_text("raise AssertionError('imported by the bindings')\n", "utf-8")
    modules = [f"{OURS}.{file}_pb2" for file in FILES] + [f"{OURS}.openengine_pb2_grpc"]
    assert python(LOAD, *modules, path=tmp_path, backend=backend) == "loaded\n"


def python(code: str, *arguments: str, path: Path, backend: str) -> str:
    """Run code in a fresh interpreter that finds `path` and our package; a warning is an error."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(path), str(IMPORT_ROOT)]),
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": backend,
    }
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    done = subprocess.run(command, env=environment, cwd=path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- the committed files are the generated ones -------------------------------------------------------------


def installed_tools() -> str | None:
    try:
        return importlib.metadata.version("grpcio-tools")
    except importlib.metadata.PackageNotFoundError:
        return None


with_the_tools = pytest.mark.skipif(
    installed_tools() != TOOLS_VERSION, reason=f"generating needs grpcio-tools {TOOLS_VERSION}"
)


@with_the_tools
def test_check_says_that_the_committed_bindings_are_current() -> None:
    done = generate(REPOSITORY, "--check")
    assert (done.returncode, done.stderr) == (0, "")


@with_the_tools
@pytest.mark.parametrize("fault", ["changed", "missing", "left over"])
def test_check_names_the_first_file_that_differs(tmp_path: Path, fault: str) -> None:
    bindings = Path("pytest_grpc_conformance/protocols/openengine/bindings")
    for folder in (bindings.parent, SCRIPT.parent):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    first, second = tmp_path / bindings / "kv_pb2.py", tmp_path / bindings / "server_pb2.pyi"
    for path in first, second:
        if fault == "changed":
            path.write_text(path.read_text("utf-8") + "#\n", "utf-8")
        elif fault == "missing":
            path.unlink()
        else:
            path.rename(path.with_name(f"a_{path.name}"))
    named = bindings / ("a_kv_pb2.py" if fault == "left over" else "kv_pb2.py")
    done = generate(tmp_path, "--check")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{named} is not current\n")
    assert generate(tmp_path).returncode == 0
    assert generate(tmp_path, "--check").returncode == 0


@pytest.mark.parametrize("arguments", [[], ["--check"]], ids=["write", "check"])
def test_another_version_of_the_tools_is_refused_in_one_line(tmp_path: Path, arguments: list[str]) -> None:
    installed = tmp_path / "grpcio_tools-9.9.9.dist-info/METADATA"
    installed.parent.mkdir()
    installed.write_text("Metadata-Version: 2.1\nName: grpcio-tools\nVersion: 9.9.9\n", "utf-8")
    done = generate(REPOSITORY, *arguments, path=tmp_path)
    expected = f"generate_bindings needs grpcio-tools=={TOOLS_VERSION}, 9.9.9 is installed\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


@pytest.mark.parametrize("arguments", [[], ["--check"]], ids=["write", "check"])
def test_absent_tools_are_reported_in_one_line(arguments: list[str]) -> None:
    done = generate(REPOSITORY, *arguments, flags=["-I", "-S"])  # without site-packages
    expected = f"generate_bindings needs grpcio-tools=={TOOLS_VERSION}, it is not installed\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


def generate(
    root: Path, *arguments: str, flags: list[str] | None = None, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    command = [sys.executable, *(flags or []), str(root / SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
