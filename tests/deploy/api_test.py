#!/usr/bin/python3
"""docs/api.md: that its reference is what the protos say, and that its examples are right.

  tests/deploy/api_test.py Fresh|Examples|Live

Needs Debian's python3-protobuf, and python3-grpcio for Live, an independent client that asks a running stack by
reflection. With BATON_UPDATE_GOLDENS=1 Fresh writes the page. Ends with 77 where what a part needs is not installed."""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

import manifests
from manifests import CHECKOUT

sys.path.insert(0, str(CHECKOUT / "tests/e2e"))
import stack  # pylint: disable=wrong-import-position

try:
    from google.protobuf import descriptor_pool, json_format, message_factory

    import api_page
except ImportError:
    api_page = None
try:
    import grpc
except ImportError:
    grpc = None

PAGE = CHECKOUT / "docs/api.md"
BUILD = pathlib.Path(os.environ.get("BATON_BUILD", CHECKOUT / "build/release"))
MODEL = "tiny-llama-needle"
ADDRESS = "127.0.0.1:8000"  # of the examples
# What a client needs of grpc/reflection/v1alpha/reflection.proto.
REFLECTION = """
syntax = "proto3";
package grpc.reflection.v1alpha;
message ServerReflectionRequest {
  oneof message_request { string file_containing_symbol = 4; string list_services = 7; }
}
message ServerReflectionResponse {
  oneof message_response {
    FileDescriptorResponse file_descriptor_response = 4;
    ListServiceResponse list_services_response = 6;
  }
}
message FileDescriptorResponse { repeated bytes file_descriptor_proto = 1; }
message ListServiceResponse { repeated ServiceResponse service = 1; }
message ServiceResponse { string name = 1; }
"""


def need(*modules):
    if None in modules or not shutil.which("protoc"):
        raise unittest.SkipTest("protoc, python3-protobuf or python3-grpcio is not installed: deploy/local/install")


def pool_of(files):
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    return pool


def message_class(pool, name):
    return message_factory.MessageFactory(pool).GetPrototype(pool.FindMessageTypeByName(name))


def grpcurl_calls():
    """[(method, request as JSON or None)] of the page's grpcurl lines."""
    calls = []
    for block in api_page.examples(PAGE.read_text(encoding="utf-8"), "sh"):
        for command in block.replace("\\\n", " ").splitlines():
            words = shlex.split(command, comments=True)
            if words[:1] == ["grpcurl"]:
                data = words[words.index("-d") + 1] if "-d" in words else None
                calls.append((words[-1], data))
    return calls


class Fresh(unittest.TestCase):
    def test_reference_is_what_the_protos_say(self):
        need(api_page)
        text = PAGE.read_text(encoding="utf-8")
        wanted = api_page.page(text)
        if os.environ.get("BATON_UPDATE_GOLDENS"):
            PAGE.write_text(wanted, encoding="utf-8")
        elif text != wanted:
            self.fail(f"run BATON_UPDATE_GOLDENS=1 {__file__} Fresh")

    def test_every_link_of_the_reference_leads_somewhere(self):
        text = PAGE.read_text(encoding="utf-8")
        anchors = {re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-")
                   for head in re.findall(r"^#+ (.*)$", text, re.M)}
        self.assertEqual(set(re.findall(r"\]\(#([^)]*)\)", text)) - anchors, set())


class Examples(unittest.TestCase):
    def setUp(self):
        need(api_page)
        self.pool = pool_of(api_page.descriptors().file)

    def test_grpcurl_calls_are_methods_with_requests_of_their_type(self):
        calls = grpcurl_calls()
        self.assertGreaterEqual(len(calls), 4)
        for name, data in calls:
            if name == "list" or name.startswith("grpc."):
                continue
            with self.subTest(method=name):
                service, _, method = name.partition("/")
                descriptor = self.pool.FindServiceByName(service).FindMethodByName(method)
                if data is not None:
                    request = message_class(self.pool, descriptor.input_type.full_name)()
                    json_format.Parse(data, request, descriptor_pool=self.pool)

    def test_cpp_compiles(self):
        [code] = api_page.examples(PAGE.read_text(encoding="utf-8"), "cpp")
        generated = BUILD / "generated"
        if not generated.is_dir() or not shutil.which("g++"):
            self.skipTest("no g++, or no build with generated code")
        subprocess.run(["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++",
                        f"-I{generated}", "-"], input=code, text=True, check=True)


class Live(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        need(api_page, grpc)
        cls.stack = stack.Stack(MODEL)
        cls.stack.__enter__()
        cls.addClassCleanup(cls.stack.__exit__)
        cls.channel = grpc.insecure_channel(cls.stack.router)
        cls.addClassCleanup(cls.channel.close)
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "reflection.proto"
            file.write_text(REFLECTION, encoding="utf-8")
            subprocess.run(["protoc", f"--proto_path={folder}", f"--descriptor_set_out={file}.set", str(file)], check=True)
            files = api_page.descriptor_pb2.FileDescriptorSet.FromString(file.with_suffix(".proto.set").read_bytes())
        cls.reflection_pool = pool_of(files.file)

    def reflect(self, **request):
        """The answer of the router's reflection."""
        package = "grpc.reflection.v1alpha"
        ask = message_class(self.reflection_pool, f"{package}.ServerReflectionRequest")
        answer = message_class(self.reflection_pool, f"{package}.ServerReflectionResponse")
        call = self.channel.stream_stream(f"/{package}.ServerReflection/ServerReflectionInfo",
                                          request_serializer=ask.SerializeToString,
                                          response_deserializer=answer.FromString)
        return next(call(iter([ask(**request)]), timeout=30))

    def served_pool(self):
        """Descriptors as the router serves them, not as the checkout has them."""
        files = {}
        waiting = ["baton.inference.v1.Inference"]
        while waiting:
            answer = self.reflect(file_containing_symbol=waiting.pop())
            for data in answer.file_descriptor_response.file_descriptor_proto:
                file = api_page.descriptor_pb2.FileDescriptorProto.FromString(data)
                files[file.name] = file
            needed = {name for file in files.values() for name in file.dependency} - set(files)
            if "google/protobuf/duration.proto" in needed:
                waiting.append("google.protobuf.Duration")
        pool = descriptor_pool.DescriptorPool()
        for file in sorted(files.values(), key=lambda file: len(file.dependency)):
            pool.Add(file)
        return pool

    def test_reflection_lists_what_the_page_describes(self):
        names = {service.name for service in self.reflect(list_services="").list_services_response.service}
        self.assertIn("baton.inference.v1.Inference", names)
        served = self.served_pool().FindServiceByName("baton.inference.v1.Inference")
        text = PAGE.read_text(encoding="utf-8")
        for method in served.methods:
            self.assertIn(f"| `{method.name}` |", text)
            for message in (method.input_type, method.output_type):
                for field in message.fields:
                    self.assertIn(f"| `{field.name}` | {field.number} |", text)

    def test_grpcurl_requests_are_answered(self):
        pool = self.served_pool()
        for name, data in grpcurl_calls():
            service, _, method = name.partition("/")
            if service != "baton.inference.v1.Inference" or not method:
                continue
            with self.subTest(method=method):
                descriptor = pool.FindServiceByName(service).FindMethodByName(method)
                ask = message_class(pool, descriptor.input_type.full_name)
                answer = message_class(pool, descriptor.output_type.full_name)
                request = json_format.Parse(data or "{}", ask(), descriptor_pool=pool)
                streaming = method == "GenerateStream"
                make = self.channel.unary_stream if streaming else self.channel.unary_unary
                call = make(f"/{name}", request_serializer=ask.SerializeToString,
                            response_deserializer=answer.FromString)
                answers = list(call(request, timeout=60)) if streaming else [call(request, timeout=60)]
                self.assertTrue(json_format.MessageToDict(answers[-1]), name)

    def test_python_runs(self):
        [code] = api_page.examples(PAGE.read_text(encoding="utf-8"), "python")
        commands = [command for block in api_page.examples(PAGE.read_text(encoding="utf-8"), "sh")
                    for command in block.replace("\\\n", " ").splitlines() if command.startswith("protoc ")]
        with tempfile.TemporaryDirectory() as folder:
            for command in commands:
                subprocess.run(command.replace("OUT", shlex.quote(folder)), shell=True, check=True, cwd=CHECKOUT)
            answer = subprocess.run(
                ["/usr/bin/python3", "-c", code.replace(ADDRESS, self.stack.router)], check=True, text=True,
                stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": folder}, timeout=120)
        self.assertIn("completion tokens", answer.stdout)


if __name__ == "__main__":
    sys.exit(manifests.run_part(globals()[sys.argv[1]]))
