"""Prefill and decode of Llama-3.1-8B's shape in Hugging Face transformers: the dense peer, end to end.

    python3 tests/gpu/bench/transformers_peer.py [--quick] [--seconds N] [--device cuda|cpu] [--tiny]

bf16 weights are random and made on the device. `prefill` is one forward pass of whole prompts, eager,
with a growing cache, which lets it use the flash kernel. `decode` is a step of rows whose static cache
is filled with random numbers up to `tokens`, the last place left free for the step's own: from token
ids on the host to the most likely next ones on the host, `compiled` (torch.compile with CUDA graphs,
whole graph) and `eager`. One JSON row each: median `ms` of all steps or passes, `tokens_per_s`, for
decode `bytes` (weights, keys and values once), `share_of_4250` (of 4250 GB/s), `first_s` (with the
compilation), and `difference` from the logits of the eager step, as a share of their norm. A case that fails, for memory
above all, has a row with the reason in `failed`; so has one that no time was left for after
`--seconds`. The status is 0 if any case was measured.
"""

import argparse
import gc
import json
import statistics
import sys
import time

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

LLAMA_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "vocab_size": 128256, "max_position_embeddings": 131072}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256,
        "max_position_embeddings": 131072}
PREFILLS = [(1, 2048), (1, 8192), (1, 32768), (8, 8192)]  # rows, tokens
# The most important first: each takes a compilation.
DECODES = [(1, 2048), (8, 8192), (27, 8192), (8, 32768), (27, 32768)]
QUICK = [(1, 2048)]
WARM_UPS = 3
PASSES = 5
STEPS = 20


class Peer:
    """A model with random weights on a device."""

    def __init__(self, shape, device):
        self.device = device
        config = LlamaConfig(**shape, rms_norm_eps=1e-5, rope_theta=500000.0,
                             tie_word_embeddings=False, attn_implementation="sdpa")
        torch.manual_seed(20240528)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(device):
            self.model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
        self.config = config

    def weight_bytes(self):
        """Of what a step reads: all but the embedding."""
        embedding = self.model.get_input_embeddings().weight.nbytes
        return sum(weight.nbytes for weight in self.model.parameters()) - embedding

    def kv_bytes(self, rows, tokens):
        config = self.config
        return (rows * tokens * config.num_hidden_layers * 2 * config.num_key_value_heads *
                config.head_dim * 2)

    def random_ids(self, rows, tokens):
        return torch.randint(self.config.vocab_size, (rows, tokens))

    def filled_cache(self, rows, tokens):
        """A static cache of `tokens` places with random numbers in all of them."""
        cache = StaticCache(config=self.config, max_cache_len=tokens)
        cache.early_initialization(rows, self.config.num_key_value_heads, self.config.head_dim,
                                   torch.bfloat16, torch.device(self.device))
        for layer in cache.layers:
            layer.keys.normal_()
            layer.values.normal_()
        return cache

    def synchronize(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def free(self):
        gc.collect()
        torch._dynamo.reset()
        if self.device == "cuda":
            torch.cuda.empty_cache()


def rewind(cache, tokens):
    """The next step's token is at place `tokens` - 1."""
    for layer in cache.layers:
        layer.cumulative_length.fill_(tokens - 1)


def prefill(peer, rows, tokens):
    """The measured fields of a row."""
    ids = peer.random_ids(rows, tokens)

    def run():
        begin = time.perf_counter()
        out = peer.model(input_ids=ids.to(peer.device), use_cache=True, logits_to_keep=1)
        out.logits[:, -1].argmax(-1).tolist()
        return time.perf_counter() - begin

    run()
    seconds = statistics.median(run() for _ in range(PASSES))
    return {"ms": round(seconds * 1e3, 3), "tokens_per_s": round(rows * tokens / seconds, 1)}


def timed_steps(peer, step, cache, ids, tokens):
    """(logits of the first step, its seconds, median seconds of the others); all of them stand at
    the same place."""
    times = []
    logits = None
    for _ in range(1 + WARM_UPS + STEPS):
        rewind(cache, tokens)
        peer.synchronize()
        begin = time.perf_counter()
        torch.compiler.cudagraph_mark_step_begin()
        tokens_chosen, step_logits = step(ids.to(peer.device))
        tokens_chosen.tolist()
        times.append(time.perf_counter() - begin)
        logits = step_logits.clone() if logits is None else logits
    return logits, times[0], statistics.median(times[1 + WARM_UPS:])


def decode(peer, rows, tokens):
    """Yields (mode, the measured fields of its row)."""
    cache = peer.filled_cache(rows, tokens)
    ids = peer.random_ids(rows, 1)

    def step(ids):
        out = peer.model(input_ids=ids, past_key_values=cache, use_cache=True)
        logits = out.logits[:, -1].float()
        return logits.argmax(-1), logits

    wanted = None
    for mode in ("eager", "compiled"):
        run = step
        if mode == "compiled":
            run = torch.compile(step, mode="reduce-overhead", fullgraph=True, dynamic=False)
        logits, first_seconds, seconds = timed_steps(peer, run, cache, ids, tokens)
        wanted = logits if wanted is None else wanted
        size = peer.weight_bytes() + peer.kv_bytes(rows, tokens)
        yield mode, {
            "ms": round(seconds * 1e3, 3),
            "tokens_per_s": round(rows / seconds, 1),
            "bytes": size,
            "share_of_4250": round(size / seconds / 4.25e12, 3),
            "first_s": round(first_seconds, 1),
            "difference": round(float((logits - wanted).norm() / wanted.norm()), 5),
        }


class Report:
    """Prints rows; counts those that were measured."""

    def __init__(self, model, seconds):
        self._model = model
        self._until = time.monotonic() + seconds
        self.measured = 0

    def run(self, what, peer, rows, tokens, cases):
        """`cases` yields (mode, fields); its failure is a row too."""
        row = {"bench": "transformers", "model": self._model, "what": what, "rows": rows,
               "tokens": tokens}
        if time.monotonic() > self._until:
            self._print(row | {"failed": "no time left"})
            return
        try:
            for mode, fields in cases(peer, rows, tokens):
                self._print(row | {"mode": mode} | fields)
                self.measured += 1
        except Exception as error:
            self._print(row | {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]})
        peer.free()

    @staticmethod
    def _print(row):
        print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one row of 2,048 tokens alone")
    parser.add_argument("--seconds", type=float, default=360.0, help="no case begins later")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of two small layers")
    options = parser.parse_args()
    begin = time.monotonic()
    peer = Peer(TINY if options.tiny else LLAMA_8B, options.device)
    peer.synchronize()
    print(json.dumps({"bench": "peer", "transformers": transformers.__version__,
                      "torch": torch.__version__, "cuda": torch.version.cuda,
                      "load_s": round(time.monotonic() - begin, 1)}), flush=True)
    report = Report("tiny" if options.tiny else "Llama-3.1-8B", options.seconds)
    for rows, tokens in QUICK if options.quick else PREFILLS:
        report.run("prefill", peer, rows, tokens,
                   lambda *case: iter([("eager", prefill(*case))]))
    for rows, tokens in QUICK if options.quick else DECODES:
        report.run("decode", peer, rows, tokens, decode)
    sys.exit(0 if report.measured else 1)


if __name__ == "__main__":
    with torch.no_grad():
        main()
