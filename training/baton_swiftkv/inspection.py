"""`baton-swiftkv inspect`: what rewiring would save, what it would cost to recover, and how many layers to
keep full."""

import dataclasses
import itertools
import pathlib

import torch
from torch.nn import functional

from baton_swiftkv import cost, plots
from baton_swiftkv.conversations import read_samples
from baton_swiftkv.corpus import encode
from baton_swiftkv.decoder import Packed
from baton_swiftkv.errors import UserError
from baton_swiftkv.loading import load_decoder
from baton_swiftkv.shape import read_shape
from baton_swiftkv.spans import whole_documents
from baton_swiftkv.tensors import write_json
from baton_swiftkv.tokenizer import load_tokenizer

ENOUGH_SIMILARITY = 0.5  # what all models of the SwiftKV paper have at half depth
DISTILLED_TOKENS = 680e6  # of the paper's recipe
ASSUMED_FLOPS = 400e12  # of a GPU in training, bf16 on an H100 or H200
# The least share of full layers with published good results. Qwen loses 1 point at 25 % and 7 at 50 %.
LEAST_FULL_SHARE = {"llama": 0.5, "mistral": 0.5, "qwen2": 0.75, "qwen3": 0.75}


@dataclasses.dataclass
class Report:
    """`scores` is None without data: then `reason` rests on the family alone."""

    model: str
    shape: object
    prompt: int
    scores: list | None
    recommended: int
    reason: str

    def rows(self):
        """One for each number of full layers and each group size that divides the others."""
        shape = self.shape
        base = cost.prompt_flops(shape, self.prompt)
        for full in range(1, shape.layers):
            upper = shape.layers - full
            for group in (group for group in range(1, upper + 1) if upper % group == 0):
                stored = full + upper // group
                rewired = shape.with_swiftkv(full, group)
                flops = cost.prompt_flops(shape, self.prompt, full, upper // group)
                training = cost.training_flops(rewired, min(self.prompt, 2048))
                yield {"full_layers": full, "group": group,
                       "similarity": None if self.scores is None else self.scores[full],
                       "prompt_flops_saved": 1 - flops / base, "kv_saved": 1 - stored / shape.layers,
                       "kv_bytes_per_token": cost.kv_bytes(shape, stored),
                       "trained_parameters": cost.trained_parameters(shape, full, group),
                       "gpu_hours": DISTILLED_TOKENS * training / ASSUMED_FLOPS / 3600}

    def markdown(self):
        shape = self.shape
        lines = [_HEADING.format(
            model=self.model, family=shape.family.model_type, layers=shape.layers,
            billions=cost.parameters(shape) / 1e9, kv_bytes=cost.kv_bytes(shape, shape.layers),
            full=self.recommended, reason=self.reason, prompt=self.prompt,
            millions=DISTILLED_TOKENS / 1e6, teraflops=ASSUMED_FLOPS / 1e12)]
        lines += [_line(row) for row in self.rows()]
        return "\n".join(lines) + "\n"

    def save(self, folder):
        """inspect.md, inspect.json and, with data, similarity.svg."""
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "inspect.md").write_text(self.markdown())
        write_json(folder / "inspect.json", {"recommended": self.recommended, "reason": self.reason,
                                             "similarity": self.scores, "choices": list(self.rows())})
        if self.scores is not None:
            plots.similarity(self.scores, self.recommended, folder / "similarity.svg")


_HEADING = """\
# {model}

{family}, {layers} layers, {billions:.3g} billion parameters, {kv_bytes} bytes of keys and values per token
(bf16).

**Recommended: S = {full}, g = 1.** {reason} Groups save memory and bytes sent, hardly any computation: take
g = 2 where these are short (published loss: up to 1 point more).

Savings are of a prompt of {prompt} tokens against the plain model. GPU hours are those of {millions:.0f}
million tokens at {teraflops:.0f} TFLOP/s.

| S | g | similarity | prompt FLOP saved | KV saved | KV bytes per token | trained parameters | GPU hours |
| --- | --- | --- | --- | --- | --- | --- | --- |"""


def _line(row):
    similarity = "" if row["similarity"] is None else f"{row['similarity']:.3f}"
    return (f"| {row['full_layers']} | {row['group']} | {similarity} | {row['prompt_flops_saved']:.1%} | "
            f"{row['kv_saved']:.1%} | {row['kv_bytes_per_token']} | {row['trained_parameters'] / 1e6:.3g} M | "
            f"{row['gpu_hours']:.3g} |")


def inspect(model, data, samples, most_tokens, prompt, device):
    """The report on a plain model; `data` may be None."""
    shape = read_shape(model)
    if shape.rewired:
        raise UserError(f"{model}: is a SwiftKV model already; inspect what it was made from")
    scores = None
    if data:
        tokenizer = load_tokenizer(model)
        decoder = load_decoder(shape, model, device=device)
        scores = similarity_scores(decoder, _documents(tokenizer, data, samples, most_tokens), device)
    return Report(pathlib.Path(model).name, shape, prompt, scores, *recommend(shape, scores))


def _documents(tokenizer, data, samples, most_tokens):
    for sample in itertools.islice(read_samples(data), samples):
        ids, _ = encode(tokenizer, [sample])[0]
        if len(ids):
            yield torch.from_numpy(ids[:most_tokens]).long()


@torch.inference_mode()
def similarity_scores(decoder, documents, device):
    """SimScore of every layer: the cosine of its input and a later layer's, mean over tokens, then over the
    later layers; 1 for the last layer. scores[S] is of the state that S full layers hand on."""
    layers = decoder.shape.layers
    sums, tokens = torch.zeros(layers, layers, dtype=torch.float64), 0
    for ids in documents:
        inputs = layer_inputs(decoder, ids.to(device))
        for layer, state in enumerate(inputs):
            for later in range(layer + 1, layers):
                sums[layer, later] += functional.cosine_similarity(state, inputs[later], dim=-1).sum().cpu()
        tokens += len(ids)
    if not tokens:
        raise UserError("the data has no token to measure similarity on")
    means = sums / tokens
    return [1.0 if layer == layers - 1 else means[layer, layer + 1:].mean().item() for layer in range(layers)]


def layer_inputs(decoder, ids):
    """fp32 hidden states that enter each layer in plain mode."""
    context = Packed(whole_documents([0, len(ids)], ids.device))
    angles = decoder.angles(torch.arange(len(ids), device=ids.device))
    x = decoder.model.embed_tokens(ids)
    inputs = []
    for layer in decoder.model.layers:
        inputs.append(x.float())
        x = layer(x, angles, context)
    return inputs


def recommend(shape, scores):
    """(number of full layers, why)"""
    name, layers = shape.family.model_type, shape.layers
    share = LEAST_FULL_SHARE[name]
    least = max(1, min(layers - 1, -int(-layers * share // 1)))
    published = f"{share:.0%} of the layers is the least that has published good results for {name}"
    if scores is None:
        return least, f"{published}; give --data to see whether this model's layers are alike there."
    alike = next(full for full in range(1, layers) if min(scores[full:]) >= ENOUGH_SIMILARITY)
    if alike > least:
        return alike, (f"From there on layer inputs stay alike: similarity {scores[alike]:.2f}, at least "
                       f"{ENOUGH_SIMILARITY} (S = {least}, the least that is published for {name}, has "
                       f"{scores[least]:.2f}).")
    return least, (f"Similarity is {scores[least]:.2f} there, at least {ENOUGH_SIMILARITY}; it would allow "
                   f"S = {alike} (similarity {scores[alike]:.2f}), but {published}.")
