"""Tiny models of every family with random weights, as transformers writes them, and a data set."""

import json
import pathlib
import tempfile
import unittest

import torch
import transformers

transformers.utils.logging.disable_progress_bar()

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
MODELS = CHECKOUT / "tests/data/models"
NEEDLE = MODELS / "tiny-llama-needle"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")

_SIZES = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 4096, "max_position_embeddings": 512,
          "rope_theta": 10000.0, "tie_word_embeddings": False}
FAMILIES = {
    "llama": (transformers.LlamaConfig, {"rope_scaling": {
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}}),
    "qwen2": (transformers.Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (transformers.Qwen3Config, {"head_dim": 32}),
    "mistral": (transformers.MistralConfig, {"sliding_window": 24}),
}


class FolderTest(unittest.TestCase):
    """Every test has a folder of its own."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        torch.manual_seed(20261)


def reference_model(family, seed):
    """A model of transformers whose norms and biases matter."""
    kind, fields = FAMILIES[family]
    torch.manual_seed(seed)
    config = kind(**(_SIZES | fields), attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def make_model(family, folder, seed=7):
    """Its directory, with the tokenizer of tiny-llama-needle."""
    model = reference_model(family, seed)
    model.save_pretrained(folder)
    for name in TOKENIZER_FILES:
        (folder / name).write_bytes((NEEDLE / name).read_bytes())
    return model


def write_conversations(path, count, seed=0):
    """Short ones, of one or two turns."""
    generator = torch.Generator().manual_seed(seed)
    words = ["amber", "bridge", "canoe", "lantern", "river", "stone"]
    with open(path, "w", encoding="utf-8") as lines:
        for _ in range(count):
            draws = torch.randint(len(words), (12,), generator=generator).tolist()
            said = [words[draw] for draw in draws]
            messages = [{"role": "user", "content": " ".join(said[:5])},
                        {"role": "assistant", "content": " ".join(said[5:8])}]
            if draws[0] % 2:
                messages += [{"role": "user", "content": said[8]},
                             {"role": "assistant", "content": " ".join(said[9:])}]
            lines.write(json.dumps({"messages": messages}) + "\n")
    return path
