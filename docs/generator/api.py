"""Pages of the contract: one for each proto file, services first."""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, MethodDescriptorProto

from docs.generator.markdown import line, paragraphs, table
from docs.generator.protos import Contract, File
from retinue.manager.server.authorization import METHODS

_Field = FieldDescriptorProto


def pages(contract: Contract) -> dict[str, str]:
    """Returns a page for each file, by name, and the list of them."""
    homes = {f".{file.descriptor.package}.{name}": file.page for file in contract.files for name in _names(file)}
    made = {file.page: _page(file, homes) for file in contract.files}
    rows = [
        (
            f"[{file.descriptor.name}]({file.page})",
            ", ".join(service.name for service, _ in file.services()) or "messages",
        )
        for file in contract.files
    ]
    made["README.md"] = (
        "# The contract\n\nWhat the comments in `protos/` say, a page for each file. Reflection is on, for callers with a token: "
        "`buf curl --list-methods` "
        f"shows the same from a running manager.\n\n{table(['file', 'services'], rows)}"
    )
    return made


def _names(file: File) -> list[str]:
    return [name for name, _, _ in file.messages()] + [enum.name for enum, _ in file.enums()]


def _page(file: File, homes: dict[str, str]) -> str:
    parts = [f"# {file.descriptor.name}\n\nPackage `{file.descriptor.package}`.\n"]
    for service, comment in file.services():
        parts.append(f"## {service.name}\n\n{paragraphs(comment)}\n")
        for method, words in file.methods(service):
            name = f"/{file.descriptor.package}.{service.name}/{method.name}"
            access = f"Open to: {METHODS[name].name.lower()}.\n" if name in METHODS else ""
            parts.append(f"### {method.name}\n\n{_signature(file, method, homes)}\n\n{paragraphs(words)}\n")
            if access:
                parts.append(access)
    for name, message, place in file.messages():
        parts.append(f"### {name}\n\n{paragraphs(file.comments.get(place, ''))}\n")
        rows = [
            (f"`{field.name}`", _type(file, message, field, homes), line(words))
            for field, words in file.fields(message, place)
        ]
        if rows:
            parts.append(table(["field", "type", "meaning"], rows))
    for enum, place in file.enums():
        parts.append(f"### {enum.name}\n\n{paragraphs(file.comments.get(place, ''))}\n")
        parts.append(
            table(["value", "number", "meaning"], [(f"`{n}`", str(i), line(w)) for n, i, w in file.values(enum, place)])
        )
    return "\n".join(parts)


def _signature(file: File, method: MethodDescriptorProto, homes: dict[str, str]) -> str:
    request, response = (_link(file, name, homes) for name in (method.input_type, method.output_type))
    streams = ("stream of " if method.client_streaming else "", "stream of " if method.server_streaming else "")
    return f"{streams[0]}{request} → {streams[1]}{response}"


def _type(file: File, message: DescriptorProto, field: FieldDescriptorProto, homes: dict[str, str]) -> str:
    if field.type in (_Field.TYPE_MESSAGE, _Field.TYPE_ENUM):
        for entry in message.nested_type:
            if entry.options.map_entry and field.type_name.endswith(f".{message.name}.{entry.name}"):
                key, value = (_type(file, entry, one, homes) for one in entry.field)
                return f"map of {key} to {value}"
        shown = _link(file, field.type_name, homes)
    else:
        shown = _Field.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.label == _Field.LABEL_REPEATED:
        return f"list of {shown}"
    if field.proto3_optional:
        return f"optional {shown}"
    if field.HasField("oneof_index"):
        return f"{shown}, one of `{message.oneof_decl[field.oneof_index].name}`"
    return shown


def _link(file: File, name: str, homes: dict[str, str]) -> str:
    home = homes.get(name)
    shown = name.removeprefix(f".{file.descriptor.package}.").removeprefix(".")
    if home is None:
        return f"`{shown}`"
    anchor = name.removeprefix(f".{file.descriptor.package}.").rpartition(".")[2].lower()
    return f"[{shown}]({'' if home == file.page else home}#{anchor})"
