"""The page of streams into kernels: who says what, from the messages of every RPC that is a dialogue."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor_pb2 import MethodDescriptorProto

from docs.generator.markdown import first_sentence, label, line, mermaid, table
from docs.generator.protos import Contract
from retinue.manager.server.authorization import METHODS
from retinue.manager.server.call_limits import DEFAULT_STREAM_LIMIT, STREAM_LIMITS

_PUBLIC = "retinue.manager.v1"


def page(contract: Contract) -> str:
    """Returns the whole page."""
    parts = [
        """# Streams into kernels

What is exchanged with a kernel goes client → manager → agent → kernel and back. Each hop takes a message when it has passed on the one before;
when one part goes, all go ([architecture](../architecture.md#streams-into-kernels)). What a stream begins with is drawn before the loop.

"""
    ]
    for file in contract.files:
        if file.descriptor.package != _PUBLIC:
            continue
        for service, _ in file.services():
            for method, comment in file.methods(service):
                if not method.client_streaming:
                    continue
                reference = f"[{service.name}](api/{file.page}#{method.name.lower()})"
                parts.append(
                    f"## {method.name}\n\n{line(first_sentence(comment))}. In full: {reference}.\n\n"
                    + _terms(f"/{_PUBLIC}.{service.name}/{method.name}")
                    + f"{_diagram(contract, method)}\n{_meanings(contract, method)}\n"
                )
    return "".join(parts).rstrip() + "\n"


def _terms(name: str) -> str:
    access = METHODS[name].name.lower() if name in METHODS else "no caller"
    limit = STREAM_LIMITS.get(name, DEFAULT_STREAM_LIMIT)
    return (
        f"Open to: {access}. Each user may have {limit} of them open at a time, with each replica of the manager.\n\n"
    )


def _meanings(contract: Contract, method: MethodDescriptorProto) -> str:
    rows = [("client", *row) for row in _rows(contract, method.input_type)]
    rows += [("manager", *row) for row in _rows(contract, method.output_type)]
    return table(["from", "message", "meaning"], rows)


def _says(contract: Contract, name: str) -> Iterator[tuple[str, str]]:
    """Yields the variants of a message: its fields and their comments, in order."""
    file, message, place = contract.message(name)
    for field, comment in file.fields(message, place):
        yield field.name, comment


def _rows(contract: Contract, name: str) -> list[tuple[str, str]]:
    return [(f"`{field}`", line(comment)) for field, comment in _says(contract, name)]


def _diagram(contract: Contract, method: MethodDescriptorProto) -> str:
    lines = ["sequenceDiagram", "    participant C as client", "    participant M as manager"]
    lines += ["    participant A as agent", "    participant K as kernel"]
    requests, answers = (list(_says(contract, name)) for name in (method.input_type, method.output_type))

    def to_kernel(field: str, comment: str) -> str:
        return f"    C->>K: {field}: {label(first_sentence(comment))}"

    def to_client(field: str, comment: str) -> str:
        return f"    K-->>C: {field}: {label(first_sentence(comment))}"

    first, *requests = requests
    lines += [
        f"    C->>M: {first[0]}: {label(first_sentence(first[1]))}",
        "    M->>A: on a connection of its own",
        "    A->>K: opened",
    ]
    lines += ["    loop in any order" + (", in both directions" if method.server_streaming else "")]
    lines += [f"    {to_kernel(*one)}" for one in requests]
    responses = [f"    {to_client(*one)}" for one in answers]
    lines += [*responses, "    end"] if method.server_streaming else ["    end", *responses]
    return mermaid("\n".join(lines))
