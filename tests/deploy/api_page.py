"""The reference part of docs/api.md, from the descriptors of the protos that clients and operators call."""

import pathlib
import re
import subprocess
import tempfile

from google.protobuf import descriptor_pb2

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
PROTOS = ["proto/baton/inference/v1/inference.proto", "proto/baton/worker/v1/control.proto"]
# What comes before this line is written by hand.
MARK = "<!-- From here on written by tests/deploy/api_test.py out of the protos. -->\n"
HEAD = """
## Reference

Numbers are those on the wire. An `optional` field tells unset from zero; of the fields of one `oneof` at most one is set.
"""
Field = descriptor_pb2.FieldDescriptorProto
SCALARS = {getattr(Field, name): name.removeprefix("TYPE_").lower()
           for name in dir(Field) if name.startswith("TYPE_")}
# Numbers of descriptor.proto's fields, of which paths of comments are made.
MESSAGES, ENUMS, SERVICES = 4, 5, 6


def descriptors(files=None):
    """FileDescriptorSet of the protos and all that they import, with comments."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "set"
        subprocess.run(["protoc", f"--proto_path={CHECKOUT}", "--include_imports", "--include_source_info",
                        f"--descriptor_set_out={out}", *(files or PROTOS)], check=True)
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def text_of(comment):
    """A comment as one line of a Markdown table."""
    return " ".join(comment.split()).replace("|", "\\|").replace("<", "&lt;")


class File:
    """One proto as Markdown."""

    def __init__(self, descriptor):
        self.proto = descriptor
        self.comments = {tuple(place.path): text_of(place.leading_comments or place.trailing_comments)
                         for place in descriptor.source_code_info.location}
        self.maps = {f".{descriptor.package}.{message.name}.{nested.name}": nested
                     for message in descriptor.message_type for nested in message.nested_type
                     if nested.options.map_entry}

    def comment(self, *path):
        return self.comments.get(path, "")

    def type_name(self, field):
        if field.type_name in self.maps:
            key, value = self.maps[field.type_name].field
            return f"map<{self.type_name(key)}, {self.type_name(value)}>"
        if not field.type_name:
            return SCALARS[field.type]
        name = field.type_name.removeprefix(f".{self.proto.package}.")
        return name if name.startswith(".") else f"[{name}](#{name.lower()})"

    def field_row(self, message, field, path):
        name = self.type_name(field).lstrip(".")
        if field.label == Field.LABEL_REPEATED and field.type_name not in self.maps:
            name = f"repeated {name}"
        elif field.proto3_optional:
            name = f"optional {name}"
        elif field.HasField("oneof_index"):
            name += f", oneof {message.oneof_decl[field.oneof_index].name}"
        return f"| `{field.name}` | {field.number} | {name} | {self.comment(*path)} |\n"

    def lines(self):
        for number, service in enumerate(self.proto.service):
            yield f"\n### {self.proto.package}.{service.name}\n\n{self.comment(SERVICES, number)}\n"
            yield "\n| call | takes | gives | does |\n|---|---|---|---|\n"
            for index, method in enumerate(service.method):
                kinds = ["stream " if stream else "" for stream in (method.client_streaming, method.server_streaming)]
                types = [self.type_name(Field(type_name=name)) for name in (method.input_type, method.output_type)]
                yield (f"| `{method.name}` | {kinds[0]}{types[0]} | {kinds[1]}{types[1]} | "
                       f"{self.comment(SERVICES, number, 2, index)} |\n")
        for number, message in enumerate(self.proto.message_type):
            yield f"\n#### {message.name}\n"
            if comment := self.comment(MESSAGES, number):
                yield f"\n{comment}\n"
            if not message.field:
                yield "\nHas no fields.\n"
                continue
            yield "\n| field | number | type | is |\n|---|---|---|---|\n"
            for index, field in enumerate(message.field):
                yield self.field_row(message, field, (MESSAGES, number, 2, index))
        for number, enum in enumerate(self.proto.enum_type):
            yield f"\n#### {enum.name}\n\n| value | number | is |\n|---|---|---|\n"
            for index, value in enumerate(enum.value):
                yield f"| `{value.name}` | {value.number} | {self.comment(ENUMS, number, 2, index)} |\n"


def page(by_hand):
    """The whole page, from its text by hand (with or without what was generated before)."""
    files = {file.name: file for file in descriptors().file}
    reference = "".join(line for name in PROTOS for line in File(files[name]).lines())
    return by_hand.partition(MARK)[0] + MARK + HEAD + reference


def examples(text, language):
    """The fenced blocks of one language on a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
