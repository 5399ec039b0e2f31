"""Distillation: what is trained, on which loss, and that a break changes nothing."""

import dataclasses
import os
import socket
import subprocess
import sys

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from baton_swiftkv.convert import convert
from baton_swiftkv.decoder import trained_names
from baton_swiftkv.distill import Manner, Settings, distill, schedule
from baton_swiftkv.errors import UserError
from baton_swiftkv.loading import load_decoder
from baton_swiftkv.metrics import read_metrics
from baton_swiftkv.modes import dense_logits
from baton_swiftkv.packing import make_batch
from baton_swiftkv.parallel import Processes
from baton_swiftkv.recovery import Recovery
from baton_swiftkv.shape import read_shape
from baton_swiftkv.tensors import TensorFiles
from support import FAMILIES, FolderTest, make_model, write_conversations

SETTINGS = Settings(sequence_length=64, packs_per_step=2, steps=8, learning_rate=3e-3, held_out=4, seed=5)
MANNER = Manner(checkpoint_every=3, evaluate_every=4)


class Killed(Exception):
    """Stands for a kill: nothing behind it runs."""


class DistillTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.data = write_conversations(self.folder / "chats.jsonl", 60)

    def prepare(self, family="llama", layers=2, group=1):
        self.teacher, self.model = self.folder / "teacher", self.folder / "model"
        make_model(family, self.teacher)
        convert(self.teacher, layers, group, self.model)

    def distill(self, name, settings=SETTINGS, manner=MANNER):
        with Processes("cpu") as processes:
            distill(self.model, self.teacher, [self.data], self.folder / name, settings, manner, processes)
        return self.curve(name)

    def curve(self, name):
        """Rows without what depends on the clock."""
        return [{key: value for key, value in row.items() if key != "tokens_per_s"}
                for row in read_metrics(self.folder / name / "metrics.jsonl")]

    def kill_at(self, step, name):
        """A run that ends in the middle of a step, without a word."""
        taken = []

        def update(optimizer, *_):
            taken.append(optimizer)
            if len(taken) == step:
                raise Killed

        hook = register_optimizer_step_pre_hook(update)
        try:
            with self.assertRaises(Killed):
                self.distill(name)
        finally:
            hook.remove()

    def test_every_family_learns(self):
        for family in FAMILIES:
            with self.subTest(family):
                self.prepare(family, group=2)
                curve = self.distill(family, dataclasses.replace(SETTINGS, steps=25))
                held_out = [row["held_out_kl"] for row in curve if "held_out_kl" in row]
                self.assertLess(held_out[-1], 0.7 * held_out[0])

    def test_only_upper_queries_keys_values_and_the_norm_change(self):
        self.prepare("qwen3", group=2)
        self.distill("out")
        before, after = TensorFiles(self.model), TensorFiles(self.folder / "out")
        self.assertEqual(set(before.files), set(after.files))
        changed = {name for name in before.files if not torch.equal(before[name], after[name])}
        trained = set(trained_names(load_decoder(read_shape(self.model), self.model)))
        self.assertEqual(changed, trained)
        self.assertEqual(len(trained), 2 * 2 + 3 + 1)  # queries and norms; keys, norm, values; norm

    def test_a_killed_run_goes_on_with_the_same_losses(self):
        self.prepare()
        whole = self.distill("whole")
        for step in (2, 5, 7):
            with self.subTest(killed_at=step):
                name = f"killed{step}"
                self.kill_at(step, name)
                self.assertEqual(self.distill(name), whole)
                for tensor in trained_names(load_decoder(read_shape(self.model), self.model)):
                    torch.testing.assert_close(TensorFiles(self.folder / name)[tensor],
                                               TensorFiles(self.folder / "whole")[tensor], atol=0, rtol=0)

    def test_a_cut_last_line_of_the_metrics_is_dropped(self):
        self.prepare()
        whole = self.distill("whole")
        self.kill_at(5, "killed")
        with open(self.folder / "killed/metrics.jsonl", "a") as lines:
            lines.write('{"step": 4, "lo')
        self.assertEqual(self.distill("killed"), whole)

    def test_going_on_with_other_settings_is_refused(self):
        self.prepare()
        self.kill_at(5, "killed")
        with self.assertRaisesRegex(UserError, "another learning_rate"):
            self.distill("killed", dataclasses.replace(SETTINGS, learning_rate=1e-3))

    def test_recomputation_and_gradient_sums_do_not_change_the_losses(self):
        self.prepare()
        kept = self.distill("kept", manner=dataclasses.replace(MANNER, recompute=False))
        again = self.distill("again")
        self.assert_like(kept, again, 1e-5)

    def test_two_processes_give_the_losses_of_one(self):
        self.prepare(group=2)
        alone = self.distill("alone")
        self.run_two("two")
        self.assert_like(self.curve("two"), alone, 1e-4)

    def test_two_processes_go_on_where_one_was_killed(self):
        self.prepare(group=2)
        alone = self.distill("alone")
        self.kill_at(5, "two")
        self.run_two("two")
        self.assert_like(self.curve("two"), alone, 1e-4)

    def run_two(self, name):
        """Under FSDP, over gloo."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        flags = ["--sequence-length=64", "--packs-per-step=2", "--steps=8", "--learning-rate=3e-3",
                 "--held-out=4", "--seed=5", "--checkpoint-every=3", "--evaluate-every=4", "--device=cpu"]
        command = [sys.executable, "-m", "baton_swiftkv", "distill", self.model, "--teacher", self.teacher,
                   "--data", self.data, "--out", self.folder / name, *flags]
        environment = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        running = [subprocess.Popen(command, env=environment | {"RANK": str(rank)}, text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank in (0, 1)]
        for process in running:
            output, _ = process.communicate(timeout=300)
            self.assertEqual(process.returncode, 0, output)

    def assert_like(self, curve, expected, tolerance):
        self.assertEqual([row.keys() for row in curve], [row.keys() for row in expected])
        for row, other in zip(curve, expected):
            for key, value in row.items():
                self.assertAlmostEqual(value, other[key], delta=tolerance * max(1, abs(value)), msg=key)

    def test_data_that_does_not_suffice_is_an_error(self):
        self.prepare()
        for change, message in ((dict(held_out=60), "none is left"),
                                (dict(packs_per_step=500, steps=None, epochs=1), "fewer than the 500")):
            with self.subTest(message), self.assertRaisesRegex(UserError, message):
                self.distill("out", dataclasses.replace(SETTINGS, **change))

    def test_activations_in_bf16_and_weights_in_fp32(self):
        self.prepare("qwen2", group=2)
        wide = self.distill("wide")
        narrow = self.distill("narrow", dataclasses.replace(SETTINGS, dtype="bfloat16"))
        self.assertAlmostEqual(narrow[-1]["held_out_kl"], wide[-1]["held_out_kl"],
                               delta=0.1 * wide[0]["held_out_kl"])
        with self.assertRaisesRegex(UserError, "bfloat16"):
            self.distill("out", dataclasses.replace(SETTINGS, dtype="float16"))

    def test_a_loss_that_is_no_number_ends_the_run(self):
        self.prepare()
        with self.assertRaisesRegex(UserError, "lower --learning-rate"):
            self.distill("out", dataclasses.replace(SETTINGS, learning_rate=1e30, clip_norm=1e30))

    def test_another_teacher_is_an_error(self):
        self.prepare()
        make_model("llama", self.folder / "other", seed=8)
        with Processes("cpu") as processes, self.assertRaisesRegex(UserError, "is not that of"):
            distill(self.model, self.folder / "other", [self.data], self.folder / "out", SETTINGS, MANNER,
                    processes)


class RecoveryTest(FolderTest):
    def test_loss_of_the_rows_that_count_is_that_of_all_layers_for_all_tokens(self):
        """Leaving out the student's other rows is exact; so is sharing the lower layers."""
        for family in FAMILIES:
            with self.subTest(family), torch.no_grad():
                make_model(family, self.folder / "teacher")
                convert(self.folder / "teacher", 2, 2, self.folder / "model")
                decoder = load_decoder(read_shape(self.folder / "model"), self.folder / "model")
                generator = torch.Generator().manual_seed(1)
                documents = []
                for length in (40, 1, 25):
                    ids = torch.randint(4096, (length,), generator=generator).numpy()
                    documents.append((ids, torch.rand(length, generator=generator).numpy() < 0.4))
                batch = make_batch(documents)
                sums = Recovery(decoder, temperature=2.0)(batch)
                teacher, student = (
                    (dense_logits(decoder, batch.ids, mode, [0, 40, 41, 66])[batch.rows] / 2).log_softmax(-1)
                    for mode in (False, True))
                expected = 4 * (teacher.exp() * (teacher - student)).sum()
                torch.testing.assert_close(sums.kl, expected, atol=1e-3, rtol=1e-4)
                self.assertEqual(sums.agreed, (teacher.argmax(-1) == student.argmax(-1)).sum())
                rows = Recovery(decoder, temperature=2.0).by_row(batch)
                expected = 4 * (teacher.exp() * (teacher - student)).sum(-1)
                torch.testing.assert_close(rows.kl, expected, atol=1e-4, rtol=1e-3)
                self.assertEqual(rows.agreed.sum(), sums.agreed)

    def test_hidden_error_is_part_of_the_loss_by_its_weight(self):
        make_model("llama", self.folder / "teacher")
        convert(self.folder / "teacher", 1, 1, self.folder / "model")
        decoder = load_decoder(read_shape(self.folder / "model"), self.folder / "model")
        batch = make_batch([(torch.arange(20).numpy(), torch.ones(20, dtype=bool).numpy())])
        recovery = Recovery(decoder, hidden_weight=0.5)
        sums = recovery(batch)
        self.assertGreater(sums.hidden, 0)
        torch.testing.assert_close(recovery.loss(sums), sums.kl + 0.5 * sums.hidden)

    def test_learning_rate_rises_and_falls(self):
        shares = [schedule(step, 100, Settings(warmup_share=0.1)) for step in range(100)]
        self.assertEqual(shares[9], 1.0)
        self.assertEqual(shares, sorted(shares[:10]) + sorted(shares[10:], reverse=True))
        self.assertLess(shares[-1], 0.01)
