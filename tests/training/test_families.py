"""Every family: the decoder is transformers' model, the rewired one is what the format says."""

import json

import torch
from safetensors import safe_open

from baton_swiftkv.convert import convert, identity_difference
from baton_swiftkv.errors import UserError
from baton_swiftkv.loading import load_decoder
from baton_swiftkv.modes import dense_logits
from baton_swiftkv.shape import read_shape, shape_of
from baton_swiftkv.tensors import TensorFiles
from support import FAMILIES, FolderTest, make_model

IDS = torch.randint(4096, (60,), generator=torch.Generator().manual_seed(3))


class FamiliesTest(FolderTest):
    def test_plain_mode_is_the_model_of_transformers(self):
        for family in FAMILIES:
            with self.subTest(family), torch.no_grad():
                source = self.folder / family
                expected = make_model(family, source)(IDS[None]).logits[0]
                decoder = load_decoder(read_shape(source), source)
                torch.testing.assert_close(dense_logits(decoder, IDS, False), expected, atol=2e-4, rtol=2e-4)

    def test_last_layer_rewired_is_the_same_model(self):
        for family in FAMILIES:
            with self.subTest(family):
                source, out = self.folder / family, self.folder / f"{family}-swiftkv"
                make_model(family, source)
                convert(source, 3, 1, out)
                self.assertLessEqual(identity_difference(out), 1e-5)

    def test_earlier_layers_rewired_are_not(self):
        make_model("llama", self.folder / "source")
        convert(self.folder / "source", 2, 2, self.folder / "out")
        self.assertGreater(identity_difference(self.folder / "out"), 1e-2)

    def test_queries_are_copied_and_keys_and_values_are_means_of_the_group(self):
        for family in FAMILIES:
            with self.subTest(family):
                source, out = self.folder / family, self.folder / f"{family}-swiftkv"
                make_model(family, source)
                convert(source, 2, 2, out)
                before, after = TensorFiles(source), TensorFiles(out)
                attention = "model.layers.{}.self_attn.{}"
                for layer in (2, 3):
                    torch.testing.assert_close(after[attention.format(layer, "q_proj_swiftkv.weight")],
                                               before[attention.format(layer, "q_proj.weight")])
                for part in "kv":
                    pair = [before[attention.format(layer, f"{part}_proj.weight")] for layer in (2, 3)]
                    torch.testing.assert_close(after[attention.format(2, f"{part}_proj_swiftkv.weight")],
                                               (pair[0] + pair[1]) / 2)
                    self.assertNotIn(attention.format(3, f"{part}_proj_swiftkv.weight"), after)
                torch.testing.assert_close(after["model.norm_swiftkv.weight"],
                                           before["model.layers.2.input_layernorm.weight"])

    def test_families_bring_their_biases_and_head_norms(self):
        suffixes = {"qwen2": "_proj_swiftkv.bias", "qwen3": "_norm_swiftkv.weight"}
        for family in FAMILIES:
            with self.subTest(family):
                make_model(family, self.folder / family)
                convert(self.folder / family, 2, 2, self.folder / "out")
                names = [name for name in TensorFiles(self.folder / "out").files if "_swiftkv" in name]
                extra = {name.rsplit(".", 2)[1][0] for name in names
                         if name.endswith(suffixes.get(family, "none"))}
                self.assertEqual(extra, {"qwen2": set("qkv"), "qwen3": set("qk")}.get(family, set()))

    def test_layout_is_the_published_one(self):
        make_model("qwen2", self.folder / "source")
        convert(self.folder / "source", 2, 1, self.folder / "out")
        config = json.loads((self.folder / "out/config.json").read_text())
        self.assertEqual(config["architectures"], ["Qwen2SwiftKVForCausalLM"])
        self.assertEqual(config["model_type"], "qwen2_swiftkv")
        self.assertEqual((config["num_key_value_layers"], config["key_value_group_size"]), (2, 1))
        self.assertTrue(config["swiftkv"])
        index = json.loads((self.folder / "out/model.safetensors.index.json").read_text())
        self.assertIn("model.layers.3.self_attn.k_proj.weight", index["weight_map"])
        total = 0
        for name, file in index["weight_map"].items():
            with safe_open(self.folder / "out" / file, framework="pt") as tensors:
                total += tensors.get_tensor(name).nbytes
        self.assertEqual(index["metadata"]["total_size"], total)
        self.assertTrue((self.folder / "out/tokenizer.json").exists())

    def test_links_instead_of_copies_give_the_same_model(self):
        make_model("llama", self.folder / "source")
        convert(self.folder / "source", 3, 1, self.folder / "out", link=True)
        self.assertTrue((self.folder / "out/model-00001-of-00002.safetensors").is_symlink())
        self.assertLessEqual(identity_difference(self.folder / "out"), 1e-5)

    def test_unknown_family_is_an_error_that_says_what_is_missing(self):
        with self.assertRaisesRegex(UserError, "phi3.*llama, qwen2, qwen3, mistral.*FAMILIES"):
            shape_of({"model_type": "phi3"})

    def test_refuses_what_it_can_not_do(self):
        make_model("llama", self.folder / "source")
        source, out = self.folder / "source", self.folder / "out"
        for layers, group, message in ((0, 1, "1 to 3"), (4, 1, "1 to 3"), (1, 2, "does not divide the 3")):
            with self.subTest(layers=layers), self.assertRaisesRegex(UserError, message):
                convert(source, layers, group, out)
        convert(source, 2, 1, out)
        with self.assertRaisesRegex(UserError, "SwiftKV model already"):
            convert(out, 2, 1, self.folder / "twice")
        with self.assertRaisesRegex(UserError, "not found"):
            convert(self.folder / "nothing", 2, 1, out)

    def test_rope_scaling_of_both_spellings(self):
        make_model("llama", self.folder)
        config = json.loads((self.folder / "config.json").read_text())
        old = {name: value for name, value in config.items() if name != "rope_parameters"}
        scaling = FAMILIES["llama"][1]["rope_scaling"]
        self.assertEqual(shape_of(config).rope,
                         shape_of(old | {"rope_theta": 10000.0, "rope_scaling": scaling}).rope)
        with self.assertRaisesRegex(UserError, "yarn"):
            shape_of(old | {"rope_scaling": {"type": "yarn"}})
