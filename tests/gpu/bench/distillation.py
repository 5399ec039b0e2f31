"""Tokens per second and memory of distillation in the shapes of Llama-3.1-8B, beside full fine-tuning.

    PYTHONPATH=training python3 tests/gpu/bench/distillation.py [--out FILE] [--tiny] [--device cuda|cpu]
        [--seconds N]
    PYTHONPATH=training torchrun --nproc-per-node 2 tests/gpu/bench/distillation.py ...    # FSDP

Random weights and tokens; documents of 1,024 tokens in packs of 8,192. `distill`: 16 of 32 layers full,
g = 1; `learned_share` of a document's tokens, at its end, are an assistant's. `finetune`: the plain model,
all weights, next-token loss, AdamW whose states have the weights' type (bf16: the least memory it can
have), every layer recomputed in the backward pass. One JSON row each: median `step_s` behind two warm-up
steps, `tokens_per_s` over all GPUs, `peak_gib` of one GPU, `tflop_per_s` of one GPU by formula,
`hours_680m` for 680 million tokens on these GPUs. A case that fails, for memory above all, has a row with
the reason in `failed`.
"""

import argparse
import dataclasses
import gc
import json
import statistics
import time

import numpy as np
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from baton_swiftkv.cost import training_flops
from baton_swiftkv.decoder import Packed
from baton_swiftkv.loading import empty_decoder
from baton_swiftkv.packing import make_batch
from baton_swiftkv.parallel import Processes
from baton_swiftkv.recovery import Recovery
from baton_swiftkv.shape import SUFFIX, shape_of

LLAMA_8B = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
            "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "num_key_value_layers": 16}
TINY = LLAMA_8B | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "head_dim": 16,
                   "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
                   "num_key_value_layers": 2, "dtype": "float32"}
DOCUMENT = 1024
WARM_UPS = 2
STEPS = 5
PAPER_TOKENS = 680e6


def batch_of(shape, tokens, learned_share, device, seed):
    random = np.random.default_rng(seed)
    learned = np.arange(DOCUMENT) >= DOCUMENT * (1 - learned_share)
    return make_batch([(random.integers(shape.vocabulary, size=DOCUMENT), learned)
                       for _ in range(tokens // DOCUMENT)], device=device)


def decoder_of(shape, processes, trained_dtype, trained):
    """Random weights that leave activations as they are in size."""
    decoder = empty_decoder(shape, processes.device, trained_dtype, processes.shard)
    torch.manual_seed(20241 + processes.rank)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            local.fill_(1.0) if "norm" in name else local.normal_(std=0.02)
            parameter.requires_grad_(trained(name))
    return decoder


def distill_step(decoder, recompute):
    recovery = Recovery(decoder, recompute=recompute)
    return lambda batch: (recovery(batch).kl / len(batch.rows)).backward()


def finetune_step(decoder, _):
    def loss(decoder, batch):
        context = Packed(batch.documents)
        angles = decoder.angles(batch.positions)
        x = decoder.model.embed_tokens(batch.ids)
        for layer in decoder.model.layers:
            x = checkpoint(layer, x, angles, context, use_reentrant=False)
        x = x.index_select(0, batch.rows)
        parts = zip(x.split(2048), batch.targets.split(2048))
        return sum(checkpoint(head_loss, decoder, *part, use_reentrant=False) for part in parts) / len(x)
    return lambda batch: decoder(loss, batch).backward()


def head_loss(decoder, x, targets):
    return functional.cross_entropy(decoder.logits(x).float(), targets, reduction="sum")


def timed(step, optimizer, batches, processes):
    """Median seconds of a step."""
    seconds = []
    for batch in batches:
        processes.wait()
        synchronize(processes)
        begin = time.perf_counter()
        step(batch)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronize(processes)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[WARM_UPS:])


def synchronize(processes):
    if processes.device.type == "cuda":
        torch.cuda.synchronize()


def measure(mode, config, processes, tokens, learned_share=1.0, recompute=True):
    """The fields of a row."""
    shape = shape_of(config)
    cuda = processes.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    if mode == "distill":
        decoder = decoder_of(shape, processes, torch.float32, lambda name: SUFFIX in name)
        step = distill_step(decoder, recompute)
    else:
        shape = dataclasses.replace(shape, full_layers=shape.layers)
        decoder = decoder_of(shape, processes, None, lambda name: True)
        step = finetune_step(decoder, recompute)
    trained = [parameter for parameter in decoder.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=cuda)
    batches = [batch_of(shape, tokens, learned_share, processes.device, seed * 97 + processes.rank)
               for seed in range(WARM_UPS + STEPS)]
    seconds = timed(step, optimizer, batches, processes)
    all_tokens = tokens * processes.count
    flops = training_flops(shape, DOCUMENT, learned_share, recompute, full=mode != "distill")
    return {"step_s": round(seconds, 4), "tokens_per_s": round(all_tokens / seconds, 1),
            "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if cuda else None,
            "tflop_per_s": round(flops * tokens / seconds / 1e12, 1),
            "trained_parameters": sum(parameter.numel() for parameter in trained),
            "hours_680m": round(PAPER_TOKENS * seconds / all_tokens / 3600, 2)}


def cases(tokens):
    yield {"mode": "distill", "tokens": tokens, "learned_share": 1.0, "recompute": True}
    yield {"mode": "finetune", "tokens": tokens}
    yield {"mode": "distill", "tokens": tokens, "learned_share": 0.5, "recompute": True}
    yield {"mode": "distill", "tokens": tokens, "learned_share": 1.0, "recompute": False}
    yield {"mode": "distill", "tokens": tokens, "learned_share": 0.5, "recompute": False}
    yield {"mode": "distill", "tokens": 2 * tokens, "learned_share": 1.0, "recompute": True}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--seconds", type=float, default=400)
    return parser.parse_args()


def main():
    options = parse()
    begin = time.perf_counter()
    with Processes(options.device) as processes:
        for case in cases(2048 if options.tiny else 8192):
            late, = processes.sum(time.perf_counter() - begin > options.seconds)
            row = {"bench": "distillation", "gpus": processes.count, **case}
            try:
                row |= {"failed": "no time left"} if late else measure(
                    config=TINY if options.tiny else LLAMA_8B, processes=processes, **case)
            except RuntimeError as error:
                row["failed"] = str(error).split("\n")[0]
            gc.collect()
            if processes.device.type == "cuda":
                row["device"] = torch.cuda.get_device_name()
                torch.cuda.empty_cache()
            if processes.first:
                print(json.dumps(row), flush=True)
                if options.out:
                    with open(options.out, "a", encoding="utf-8") as rows:
                        rows.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
