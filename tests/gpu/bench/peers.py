"""Decode attention of PyTorch at the shapes of gpu_attention_bench.

    python3 tests/gpu/bench/peers.py [--quick]

One JSON row for each shape and each back end of scaled_dot_product_attention, over contiguous bf16
keys and values [rows, kv_heads, tokens, head_dim] of four layers in turn; fields are those of
tests/gpu/bench/measure.h. `us` is the time of a call in a CUDA graph, which Python does not slow
down, or of `us_eager`, calls one by one, where that is less or no graph could be made. A back end
that refuses a shape has a row with the reason in `failed`, and the status stays 0.
"""

import argparse
import json
import statistics
import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

LAYERS = 4
STEPS = 16
REPEATS = 5
HEAD_DIM = 128
QUICK_SIZES = [(64, 8192)]  # rows, tokens
SIZES = QUICK_SIZES + [(8, 65536), (1, 2048), (1, 32768), (16, 32768)]
HEADS = [(8, 4), (4, 7)]  # KV heads and their query heads: Llama-3.1-8B, Qwen2.5-7B
BACKENDS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
]


def random_values(*shape):
    """bf16 values spread evenly over [-2, 2] on the device."""
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").uniform_(-2.0, 2.0)


def make_problem(rows, tokens, kv_heads, group):
    """One query for each row, and (keys, values) of each layer."""
    q = random_values(rows, kv_heads * group, 1, HEAD_DIM)
    kv_shape = (rows, kv_heads, tokens, HEAD_DIM)
    return q, [(random_values(*kv_shape), random_values(*kv_shape)) for _ in range(LAYERS)]


def run_steps(backend, q, layers):
    """All calls of one repeat."""
    with sdpa_kernel(backend):
        for _ in range(STEPS):
            for k, v in layers:
                scaled_dot_product_attention(q, k, v, enable_gqa=True)


def median_us(repeat):
    """Median microseconds of a call; `repeat` gives the device the work of all calls."""
    repeat()
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        repeat()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / (STEPS * LAYERS))
    return statistics.median(times)


def graph_us(backend, q, layers):
    """The same with the calls in a CUDA graph; None where the back end cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run_steps(backend, q, layers)
        return median_us(graph.replay)
    except RuntimeError:
        return None


def measure(backend, q, layers):
    """The measured fields of a row, or `failed`."""
    with warnings.catch_warnings(record=True) as reasons:
        warnings.simplefilter("always")
        try:
            eager = median_us(lambda: run_steps(backend, q, layers))
        except RuntimeError as error:
            texts = [str(error)] + [str(reason.message) for reason in reasons]
            return {"failed": " ".join(" ".join(texts).split())}
    in_graph = graph_us(backend, q, layers)
    us = eager if in_graph is None else min(eager, in_graph)
    size = sum(part.nbytes for part in layers[0])
    rate = size / (us * 1e-6)
    return {
        "us": round(us, 2),
        "us_eager": round(eager, 2),
        "bytes": size,
        "gb_per_s": round(rate * 1e-9, 1),
        "share_of_4250": round(rate / 4.25e12, 3),
    }


def measure_shape(rows, tokens, kv_heads, group):
    """Prints the rows of one shape."""
    q, layers = make_problem(rows, tokens, kv_heads, group)
    for backend in BACKENDS:
        row = {
            "op": "scaled_dot_product_attention",
            "format": "dense bf16",
            "variant": backend.name,
            "rows": rows,
            "tokens": tokens,
            "kv_heads": kv_heads,
            "group": group,
            "head_dim": HEAD_DIM,
        }
        print(json.dumps(row | measure(backend, q, layers)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one size alone")
    quick = parser.parse_args().quick
    print(json.dumps({"bench": "peers", "torch": torch.__version__, "cuda": torch.version.cuda,
                      "cudnn": torch.backends.cudnn.version()}), flush=True)
    for rows, tokens in QUICK_SIZES if quick else SIZES:
        for kv_heads, group in HEADS:
            measure_shape(rows, tokens, kv_heads, group)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    with torch.no_grad():
        main()
