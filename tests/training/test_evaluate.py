"""Greedy answers, evaluation, inspection, the command line."""

import contextlib
import dataclasses
import io
import json

import torch

from baton_swiftkv import cost, evaluate, inspection
from baton_swiftkv.cli import main
from baton_swiftkv.convert import convert
from baton_swiftkv.errors import UserError
from baton_swiftkv.generate import greedy
from baton_swiftkv.harness import Answers
from baton_swiftkv.loading import load_decoder
from baton_swiftkv.modes import dense_logits
from baton_swiftkv.shape import read_shape, shape_of
from baton_swiftkv.tokenizer import load_tokenizer
from support import FAMILIES, MODELS, NEEDLE, FolderTest, make_model, write_conversations

LLAMA_8B = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}


def run(*arguments):
    """(status, standard output, standard error)"""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(argument) for argument in arguments])
    return status, out.getvalue(), err.getvalue()


class GreedyTest(FolderTest):
    def test_cached_answers_are_those_of_whole_passes(self):
        """Batches of different lengths, windows and groups among them."""
        generator = torch.Generator().manual_seed(1)
        prompts = [torch.randint(4096, (length,), generator=generator).tolist() for length in (30, 3, 41)]
        for family in FAMILIES:
            make_model(family, self.folder / family)
            convert(self.folder / family, 2, 2, self.folder / "out")
            decoder = load_decoder(read_shape(self.folder / "out"), self.folder / "out")
            for rewired in (False, True):
                with self.subTest(family, rewired=rewired):
                    answers = greedy(decoder, prompts, [6, 6, 4], {-1}, rewired)
                    self.assertEqual(answers, [self.by_whole_passes(decoder, prompt, most, rewired)
                                               for prompt, most in zip(prompts, (6, 6, 4))])

    @torch.inference_mode()
    def by_whole_passes(self, decoder, prompt, most, rewired):
        ids = list(prompt)
        for _ in range(most):
            ids.append(dense_logits(decoder, torch.tensor(ids), rewired)[-1].argmax().item())
        return ids[len(prompt):]

    def test_answers_go_on_alike_when_most_others_have_ended(self):
        """Ended ones leave the cache; the order of the others stays."""
        generator = torch.Generator().manual_seed(2)
        lengths = 9, 4, 30, 3, 17
        prompts = [torch.randint(4096, (length,), generator=generator).tolist() for length in lengths]
        most = [1, 8, 2, 5, 2]
        make_model("mistral", self.folder)
        decoder = load_decoder(read_shape(self.folder), self.folder)
        self.assertEqual(greedy(decoder, prompts, most, {-1}, False),
                         [self.by_whole_passes(decoder, *pair, False) for pair in zip(prompts, most)])

    def test_a_stop_token_ends_an_answer_and_is_no_part_of_it(self):
        make_model("llama", self.folder)
        decoder = load_decoder(read_shape(self.folder), self.folder)
        free, = greedy(decoder, [[1, 2, 3]], [5], {-1}, False)
        stopped, = greedy(decoder, [[1, 2, 3]], [5], {free[2]}, False)
        self.assertEqual(stopped, free[:free.index(free[2])])


class EvaluateTest(FolderTest):
    def test_shipped_model_answers_public_cases(self):
        status, out, err = run(
            "evaluate", MODELS / "tiny-llama-needle-swiftkv-l6-across2", "--teacher", NEEDLE, "--cases",
            MODELS / "eval/niah_single.jsonl", MODELS / "eval/json_kv.jsonl", "--lengths", 512, "--limit", 2,
            "--dtype", "float32", "--out", self.folder, "--device", "cpu")
        self.assertEqual(status, 0, err)
        self.assertIn("| niah_single | 100 / 100 |", out)
        numbers = json.loads((self.folder / "evaluation.json").read_text())
        whole, = [row for row in numbers["cases"] if row["task"] is None]
        self.assertEqual((whole["cases"], whole["teacher"], whole["student"]), (4, 4, 4))
        self.assertEqual(len((self.folder / "rows.jsonl").read_text().splitlines()), 4)
        self.assertIn("<svg", (self.folder / "evaluation.svg").read_text())

    def test_the_teacher_is_not_asked_again(self):
        """Its answers of another evaluation are taken as they are; a case that was not in there is asked."""
        tokenizer, model = load_tokenizer(NEEDLE), MODELS / "tiny-llama-needle-swiftkv-l6-across2"
        cases = evaluate.read_cases([MODELS / "eval/niah_single.jsonl"], tokenizer, [512], 3)
        shape = dataclasses.replace(read_shape(model), dtype=torch.float32)
        decoder = load_decoder(shape, model, NEEDLE)
        stops = evaluate.stop_ids(NEEDLE, tokenizer)
        first = evaluate.evaluate_cases(decoder, tokenizer, cases, stops, 4096, progress=False)
        rows = [json.loads(json.dumps(row)) for row in first[:2]]
        rows[0]["teacher"] |= {"output": "said before", "correct": False}
        path = self.folder / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        known = evaluate.read_teacher_answers(path)
        again = evaluate.evaluate_cases(decoder, tokenizer, cases, stops, 4096, known=known, progress=False)
        self.assertEqual([row["teacher"]["output"] for row in again],
                         ["said before"] + [row["teacher"]["output"] for row in first[1:]])
        self.assertEqual([row["teacher"]["seconds"] for row in again[:2]],
                         [row["teacher"]["seconds"] for row in first[:2]])
        for row, before in zip(again, first):
            self.assertAlmostEqual(row["kl"], before["kl"], places=5)
            self.assertEqual(row["agreed"], before["agreed"])

    def test_what_is_no_evaluation_is_refused(self):
        path = self.folder / "rows.jsonl"
        path.write_text('{"id": "a", "student": {}}\n')
        for name, message in ((path, "rows.jsonl:1: is no row"), (self.folder / "none", "none: not found")):
            with self.assertRaisesRegex(UserError, message):
                evaluate.read_teacher_answers(name)

    def test_text_gives_divergence_and_agreement(self):
        make_model("llama", self.folder / "teacher")
        data = write_conversations(self.folder / "chats.jsonl", 5)
        for layers, same in ((3, True), (1, False)):
            convert(self.folder / "teacher", layers, 1, self.folder / "model")
            status, out, err = run("evaluate", self.folder / "model", "--teacher", self.folder / "teacher",
                                   "--data", data, "--out", self.folder / "out", "--device", "cpu")
            self.assertEqual(status, 0, err)
            found = json.loads((self.folder / "out/evaluation.json").read_text())["data"]
            self.assertEqual(found["top1"] == 1.0 and found["kl"] < 1e-6, same)

    def test_harness_questions_are_answered_from_the_logits(self):
        make_model("llama", self.folder)
        decoder, tokenizer = load_decoder(read_shape(self.folder), self.folder), load_tokenizer(self.folder)
        answers = Answers(decoder, tokenizer, False)
        score, _ = answers.loglikelihood([Request("The amber river", " is wide")])[0]
        ids = tokenizer("The amber river is wide")["input_ids"]
        before = len(tokenizer("The amber river")["input_ids"])
        with torch.no_grad():
            logs = dense_logits(decoder, torch.tensor(ids), False).log_softmax(-1)
        expected = sum(logs[at - 1, ids[at]].item() for at in range(before, len(ids)))
        self.assertAlmostEqual(score, expected, places=3)
        text, = answers.generate_until([Request("The amber river", {"max_gen_toks": 4, "until": []})])
        end = text[1:3]
        cut, = answers.generate_until([Request("The amber river", {"max_gen_toks": 4, "until": [end]})])
        self.assertEqual(cut, text.split(end)[0])

    def test_errors_are_one_line(self):
        status, out, err = run("convert", self.folder / "none", "--layers", 1, "--out", self.folder / "out")
        self.assertEqual((status, out), (1, ""))
        self.assertRegex(err, "^baton-swiftkv: .*config.json: not found.*\n$")
        status, _, err = run("evaluate", NEEDLE, "--teacher", NEEDLE, "--out", self.folder)
        self.assertEqual(status, 1)
        self.assertIn("nothing to evaluate on", err)


class Request:
    """What the harness hands over."""

    def __init__(self, *args):
        self.args = args


class InspectTest(FolderTest):
    def test_savings_are_those_of_the_paper(self):
        """Llama-3.1-8B at 8,000 tokens: 75.8 %, 51.7 % and, with groups of 4, 50.4 % of the operations."""
        report = inspection.Report("8B", shape_of(LLAMA_8B), 8000, None, 16, "")
        saved = {(row["full_layers"], row["group"]): row for row in report.rows()}
        for choice, share in (((24, 1), 0.758), ((16, 1), 0.517), ((16, 4), 0.504)):
            self.assertAlmostEqual(1 - saved[choice]["prompt_flops_saved"], share, places=3)
        for choice, share in (((16, 1), 0), ((16, 2), 0.25), ((16, 4), 0.375), ((16, 8), 0.4375)):
            self.assertAlmostEqual(saved[choice]["kv_saved"], share)
        self.assertEqual(saved[16, 1]["trained_parameters"], 402_653_184 + 4096)
        self.assertEqual(saved[16, 1]["kv_bytes_per_token"], 128 * 1024)
        self.assertNotIn((16, 3), saved)

    def test_attention_and_linear_costs_are_those_of_the_fact_sheet(self):
        layer = cost.layer_cost(shape_of(LLAMA_8B))
        parts = layer.queries_output, layer.keys_values, layer.mlp
        self.assertEqual([round(part / 1e6, 1) for part in parts], [67.1, 16.8, 352.3])
        self.assertEqual(layer.attention_per_key, 16384)

    def test_similarity_is_of_layer_inputs(self):
        """A model whose layers do nothing has similarity 1 everywhere."""
        make_model("llama", self.folder)
        decoder = load_decoder(read_shape(self.folder), self.folder)
        documents = [torch.arange(10), torch.arange(20, 25)]
        scores = inspection.similarity_scores(decoder, documents, torch.device("cpu"))
        self.assertTrue(all(score < 1 for score in scores[:-1]))
        states = torch.cat([torch.stack(inspection.layer_inputs(decoder, ids)) for ids in documents], 1)
        expected = torch.stack([torch.cosine_similarity(states[1], states[later], dim=-1).mean()
                                for later in (2, 3)]).mean().item()
        self.assertAlmostEqual(scores[1], expected, places=5)
        with torch.no_grad():
            for layer in decoder.model.layers:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
        scores = inspection.similarity_scores(decoder, documents, torch.device("cpu"))
        self.assertTrue(all(abs(score - 1) < 1e-6 for score in scores))

    def test_recommendation_says_why(self):
        shape = shape_of(LLAMA_8B | {"num_hidden_layers": 4})
        for scores, full, reason in ((None, 2, "give --data"), ([.1, .6, .7, 1.], 2, "would allow S = 1"),
                                     ([.1, .2, .3, 1.], 3, "From there on")):
            found = inspection.recommend(shape, scores)
            self.assertEqual(found[0], full)
            self.assertIn(reason, found[1])
        qwen = dataclasses.replace(shape, family=dataclasses.replace(shape.family, model_type="qwen2"))
        self.assertEqual(inspection.recommend(qwen, None)[0], 3)

    def test_writes_table_and_plot(self):
        make_model("qwen3", self.folder / "model")
        data = write_conversations(self.folder / "chats.jsonl", 5)
        status, out, err = run("inspect", self.folder / "model", "--data", data, "--out", self.folder / "out",
                               "--device", "cpu")
        self.assertEqual(status, 0, err)
        self.assertIn("**Recommended: S = 3, g = 1.**", out)
        self.assertEqual((self.folder / "out/inspect.md").read_text() + "\n", out)
        self.assertIn("<svg", (self.folder / "out/similarity.svg").read_text())
        self.assertEqual(len(json.loads((self.folder / "out/inspect.json").read_text())["choices"]), 5)
