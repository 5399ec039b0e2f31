"""A load client that shares no code with Baton: Python, grpcio's asyncio interface and protoc's Python output. It
replays a trace in the form of baton-loadtest's --trace and measures what comes back."""

import asyncio
import importlib
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import grpc

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
PROTO = "proto/baton/inference/v1/inference.proto"
METHOD = "/baton.inference.v1.Inference/GenerateStream"
DEADLINE_SECONDS = 300


def messages():
    """The module of the API's messages, made by protoc."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["protoc", f"-I{CHECKOUT}", f"--python_out={folder}", PROTO], check=True, cwd=CHECKOUT)
        sys.path.insert(0, folder)
        try:
            return importlib.import_module("proto.baton.inference.v1.inference_pb2")
        finally:
            sys.path.remove(folder)


def read_trace(path):
    """[(seconds from the first, prompt tokens, answer tokens)] of a JSONL trace."""
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    first = rows[0]["timestamp"]
    return [((row["timestamp"] - first) / 1000, row["input_length"], row["output_length"]) for row in rows]


class Record:
    """What one request gave; times in seconds, by this client's clock but for server_*."""

    def __init__(self):
        self.late = 0.0  # sent after it was due
        self.ttft = self.e2e = None
        self.gaps = []
        self.tokens = 0
        self.usage = None
        self.error = ""


async def ask(pb, call, request, due, start):
    record = Record()
    await asyncio.sleep(max(0.0, start + due - time.monotonic()))
    sent = time.monotonic()
    record.late = sent - start - due
    last = None
    try:
        async for message in call(request, timeout=DEADLINE_SECONDS):
            now = time.monotonic()
            kind = message.WhichOneof("event")
            if kind == "delta" and message.delta.token_ids:
                if record.ttft is None:
                    record.ttft = now - sent
                else:
                    # Tokens that come in one message share the gap before it.
                    count = len(message.delta.token_ids)
                    record.gaps += [(now - last) / count] * count
                last = now
                record.tokens += len(message.delta.token_ids)
            elif kind == "usage":
                record.usage = message.usage
        record.e2e = time.monotonic() - sent
        if record.usage is None:
            record.error = "INCOMPLETE"
    except grpc.aio.AioRpcError as error:
        record.error = error.code().name
    return record


async def replay_all(pb, router, trace, seed):
    ids = random.Random(seed)
    requests = []
    for _, prompt_tokens, answer_tokens in trace:
        request = pb.GenerateRequest()
        request.token_ids.ids.extend(ids.randrange(260, 1000) for _ in range(prompt_tokens))
        request.stopping.max_tokens = answer_tokens
        request.stopping.ignore_eos = True
        requests.append(request)
    async with grpc.aio.insecure_channel(router) as channel:
        call = channel.unary_stream(METHOD, request_serializer=pb.GenerateRequest.SerializeToString,
                                    response_deserializer=pb.GenerateStreamResponse.FromString)
        await channel.channel_ready()
        start = time.monotonic() + 0.2
        return await asyncio.gather(*(ask(pb, call, request, due, start)
                                      for request, (due, _, _) in zip(requests, trace)))


def replay(router, trace, seed=1):
    """Sends the trace's requests at their times to host:port; a Record for each, in order."""
    return asyncio.run(replay_all(messages(), router, trace, seed))
