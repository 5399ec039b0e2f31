"""Tensors of a model directory: which file holds which, reading one by one, adding a shard."""

import json
import os
import pathlib
import shutil

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from baton_swiftkv.errors import UserError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class TensorFiles:
    """The tensors of a directory by name; only files that its index names are read."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self._open = {}
        index = self.directory / INDEX
        if index.exists():
            self.files = json.loads(index.read_text())["weight_map"]
        elif (self.directory / SINGLE).exists():
            self.files = dict.fromkeys(self._file(SINGLE).keys(), SINGLE)
        else:
            raise UserError(f"{self.directory}: neither {INDEX} nor {SINGLE} is there; "
                            f"other weight formats have to be converted to safetensors first")

    def __contains__(self, name):
        return name in self.files

    def __getitem__(self, name):
        if name not in self.files:
            raise UserError(f"{self.directory}: tensor {name} is missing")
        return self._file(self.files[name]).get_tensor(name)

    def _file(self, file):
        if file not in self._open:
            try:
                self._open[file] = safe_open(self.directory / file, framework="pt")
            except Exception as error:  # safetensors raises its own type, which it does not export
                raise UserError(f"{self.directory / file}: not readable as safetensors ({error})") from None
        return self._open[file]


def save_with_shard(source, out, config, names, added, link=False):
    """Writes `out`: the files of `source` that hold `names`, one more shard with the tensors `added`
    (by name), index, `config`, and everything else of `source` that is no weight.

    Files are copied as they are, or with `link` linked (symbolically, to their absolute path).
    """
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    files = TensorFiles(source)
    kept = [name for name in files.files if name in names]
    shards = sorted({files.files[name] for name in kept})
    final = {file: _shard_name(i, len(shards) + 1) for i, file in enumerate(shards)}
    for file, name in final.items():
        _bring(files.directory / file, out / name, link)
    last = _shard_name(len(shards), len(shards) + 1)
    save_file({name: tensor.contiguous() for name, tensor in added.items()}, out / last, {"format": "pt"})
    (out / last).chmod(0o644)  # safetensors leaves it to the owner alone; servers run as somebody else
    weight_map = {name: final[files.files[name]] for name in kept} | dict.fromkeys(added, last)
    write_json(out / INDEX, {"metadata": {"total_size": _total_bytes(out, weight_map)},
                             "weight_map": dict(sorted(weight_map.items()))})
    _bring_companions(files.directory, out)
    write_json(out / "config.json", config)


def write_json(path, value):
    """Whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(value, indent=2) + "\n")
    os.replace(temporary, path)


def _shard_name(index, count):
    return f"model-{index + 1:05}-of-{count:05}.safetensors"


def _bring(source, target, link):
    if target.is_symlink() or target.exists():
        target.unlink()
    if link:
        target.symlink_to(source.resolve())
    else:
        shutil.copyfile(source, target)


def _bring_companions(source, out):
    """Tokenizer, templates, licence."""
    for path in source.iterdir():
        weights = path.suffix in (".safetensors", ".bin", ".pth", ".pt") or path.name.endswith(".index.json")
        if path.is_file() and not weights and path.name != "config.json" and not path.name.startswith("."):
            _bring(path, out / path.name, False)


def _total_bytes(out, weight_map):
    total = 0
    for file in sorted(set(weight_map.values())):
        with safe_open(out / file, framework="pt") as tensors:
            for name in tensors.keys():
                if weight_map.get(name) == file:
                    view = tensors.get_slice(name)
                    total += _ITEM_BYTES.get(view.get_dtype(), 1) * _product(view.get_shape())
    return total


_ITEM_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}


def _product(sizes):
    return int(torch.tensor(sizes, dtype=torch.int64).prod())
