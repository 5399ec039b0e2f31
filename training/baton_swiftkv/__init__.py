"""SwiftKV for checkpoints of the Llama, Qwen2, Qwen3 and Mistral families: what a rewired model saves,
how it is made, how its knowledge is recovered by distillation, and what it lost."""

__version__ = "0.1.0"
