"""The measurements for GPUs (tests/gpu/training) run to their end, small and on the CPU."""

import json
import pathlib
import subprocess
import sys
import tarfile

from baton_swiftkv.shape import read_shape
from support import CHECKOUT, NEEDLE, FolderTest

BENCH = CHECKOUT / "tests/gpu/bench"


def rows_of(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def run(name, *flags):
    command = [sys.executable, BENCH / name, "--device", "cpu", *map(str, flags)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"{name} ended with {done.returncode}: {done.stderr}")


class BenchTest(FolderTest):
    def test_recovery_leaves_models_answers_and_rows(self):
        out = self.folder / "out"
        run("recovery.py", "--out", out, "--work", self.folder / "work", "--groups", "2,3", "--steps", 2,
            "--tokens", 40000, "--longest", 512, "--packs", 1, "--sequence-length", 1024, "--held-out", 2,
            "--lengths", 512, "--limit", 1, "--workers", 1, "--cached-tokens", 5000)
        rows = rows_of(out / "recovery.jsonl")
        self.assertEqual([(row["stage"], row.get("group")) for row in rows if row.get("whole", True)],
                         [("machine", None), ("data", None), ("tokenized", None), ("distill", 2),
                          ("distill", 3), ("teacher", None), ("after", 2), ("before", 2), ("after", 3),
                          ("before", 3)])
        whole = [row for row in rows if row.get("whole")]
        self.assertEqual({row["cases"] for row in whole}, {14})
        self.assertEqual({row["teacher_correct"] for row in whole}, {rows[5]["teacher_correct"]})
        self.assertEqual(len(rows_of(out / "answers.jsonl")), 2 * 14)
        self.assertIn("<svg", (out / "losses.svg").read_text())
        self.assertIn("## g = 3", (out / "recovery.md").read_text())
        self.check_model(out / "recovery-g2.tar.gz")

    def check_model(self, archive):
        """With the teacher's files it is a model again."""
        with tarfile.open(archive) as packed:
            packed.extractall(self.folder, filter="data")
        model = self.folder / "g2"
        weights = json.loads((model / "model.safetensors.index.json").read_text())["weight_map"]
        missing = {name for name in weights.values() if not (model / name).exists()}
        self.assertEqual(missing, {"model-00001-of-00002.safetensors"})
        self.assertEqual(read_shape(model).group_size, 2)
        self.assertTrue((NEEDLE / "tokenizer.json").exists() and not (model / "tokenizer.json").exists())

    def test_throughput_has_distillation_first_and_fine_tuning_second(self):
        run("distillation.py", "--tiny", "--out", self.folder / "rows.jsonl")
        rows = rows_of(self.folder / "rows.jsonl")
        self.assertEqual([row["mode"] for row in rows[:2]], ["distill", "finetune"])
        self.assertEqual([row for row in rows if "failed" in row], [])
        self.assertTrue(all(row["tokens_per_s"] > 0 for row in rows))
