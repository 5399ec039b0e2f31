"""What convert and distill write is what Baton loads: the logits of `baton-lab` are PyTorch's.

Needs the binaries: $BATON_BINARIES, or build/release/bin of the checkout.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import unittest

import torch
from safetensors.torch import load_file

from baton_swiftkv.convert import convert
from baton_swiftkv.loading import load_decoder
from baton_swiftkv.modes import dense_logits
from baton_swiftkv.shape import read_shape
from support import CHECKOUT, FAMILIES, FolderTest, make_model

LAB = pathlib.Path(os.environ.get("BATON_BINARIES", CHECKOUT / "build/release/bin")) / "baton-lab"
TOKENS = 60  # more than Mistral's window and Llama's original context in these models


@unittest.skipUnless(LAB.exists(), f"{LAB} is not built")
class LabTest(FolderTest):
    def test_logits_of_every_family_and_group_are_those_of_pytorch(self):
        ids = torch.randint(4096, (TOKENS,), generator=torch.Generator().manual_seed(3))
        (self.folder / "ids.json").write_text(json.dumps(ids.tolist()))
        for family in FAMILIES:
            make_model(family, self.folder / family)
            for layers, group in ((3, 1), (2, 1), (2, 2), (1, 3)):
                with self.subTest(family, layers=layers, group=group), torch.no_grad():
                    model = self.folder / f"{family}-{layers}-{group}"
                    convert(self.folder / family, layers, group, model)
                    shape = dataclasses.replace(read_shape(model), dtype=torch.float32)
                    expected = dense_logits(load_decoder(shape, model), ids, True)
                    torch.testing.assert_close(self.lab_logits(model), expected, atol=1e-3, rtol=0)

    def lab_logits(self, model):
        out = self.folder / "logits.safetensors"
        subprocess.run([LAB, "logits", f"--model={model}", f"--input-ids={self.folder / 'ids.json'}",
                        f"--out={out}", "--compute=fp32", "--threads=1"], check=True, capture_output=True)
        return load_file(out)["logits"]
