"""Samples, masks, packs."""

import gzip
import importlib.util
import itertools
import json
import unittest
from unittest import mock

import numpy as np
import torch

from baton_swiftkv import corpus as corpus_module
from baton_swiftkv.conversations import Sample, read_samples
from baton_swiftkv.corpus import encode, open_corpus
from baton_swiftkv.errors import UserError
from baton_swiftkv.packing import Plan, make_batch
from baton_swiftkv.spans import Spans, causal_mask, whole_documents
from baton_swiftkv.tokenizer import load_tokenizer
from support import NEEDLE, FolderTest, write_conversations

CHAT = [{"role": "user", "content": "What is x?"}, {"role": "assistant", "content": "45"},
        {"role": "user", "content": "And y?"}, {"role": "assistant", "content": "77, 8"}]


class MaskTest(FolderTest):
    @classmethod
    def setUpClass(cls):
        cls.tokenizer = load_tokenizer(NEEDLE)

    def learned_text(self, sample):
        ids, learned = encode(self.tokenizer, [sample])[0]
        return self.tokenizer.decode(ids[learned])

    def test_learned_are_the_assistants_words_and_the_ends_of_its_turns(self):
        self.assertEqual(self.learned_text(Sample("", messages=CHAT)), "45<|eot_id|>77, 8<|eot_id|>")

    def test_chats_have_one_begin_token_and_text_has_the_tokenizers_own(self):
        for sample in (Sample("", messages=CHAT), Sample("", text="plain text")):
            ids, _ = encode(self.tokenizer, [sample])[0]
            self.assertEqual(list(ids).count(self.tokenizer.bos_token_id), 1)

    def test_every_token_of_plain_text_is_learned(self):
        self.assertEqual(self.learned_text(Sample("", text="plain text")), "<|begin_of_text|>plain text")

    def test_rows_stand_one_before_what_they_predict(self):
        ids, learned = encode(self.tokenizer, [Sample("", messages=CHAT)])[0]
        batch = make_batch([(ids, learned)])
        self.assertEqual(self.tokenizer.decode(batch.targets), "45<|eot_id|>77, 8<|eot_id|>")
        self.assertTrue(learned[batch.rows + 1].all())
        self.assertEqual(len(batch.rows), learned.sum())

    def test_no_row_predicts_the_next_document(self):
        document = np.arange(5, dtype=np.int32), np.ones(5, bool)
        batch = make_batch([document, document])
        self.assertEqual(batch.rows.tolist(), [0, 1, 2, 3, 5, 6, 7, 8])
        joined = make_batch([document, document], joined=True)
        self.assertEqual(joined.rows.tolist(), list(range(9)))
        self.assertEqual(joined.positions.tolist(), list(range(10)))

    def test_template_that_changes_earlier_turns_leaves_the_sample_out(self):
        tokenizer = load_tokenizer(NEEDLE)
        tokenizer.chat_template = (
            "{% for m in messages %}{{ m['role'] + ': ' }}"
            "{{ 'thought ' if m['role'] == 'assistant' and loop.last else '' }}{{ m['content'] + '\\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}")
        ids, learned = encode(tokenizer, [Sample("", messages=CHAT)])[0]
        self.assertFalse(learned.any())
        ids, learned = encode(tokenizer, [Sample("", messages=CHAT[:2])])[0]
        self.assertEqual(tokenizer.decode(ids[learned]).strip(), "thought 45")

    def test_conversations_that_begin_with_the_assistant_are_left_out(self):
        (ids, learned), (_, others) = encode(
            self.tokenizer, [Sample("", messages=CHAT[1:]), Sample("", messages=CHAT)])
        self.assertEqual((len(ids), learned.any(), others.any()), (0, False, True))

    def test_conversations_that_the_template_refuses_are_left_out(self):
        tokenizer = load_tokenizer(NEEDLE)
        tokenizer.chat_template = (
            "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
            "{{ raise_exception('roles must alternate') }}{% endif %}"
            "{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}")
        (ids, learned), (_, others) = encode(
            tokenizer, [Sample("", messages=[CHAT[0], *CHAT]), Sample("", messages=CHAT)])
        self.assertEqual((len(ids), learned.any(), others.any()), (0, False, True))

    def test_a_template_that_can_not_be_parsed_is_named(self):
        tokenizer = load_tokenizer(NEEDLE)
        tokenizer.chat_template = "{% for m in messages %}"
        with self.assertRaisesRegex(UserError, "chat template: .*endfor"):
            encode(tokenizer, [Sample("", messages=CHAT)])


class SamplesTest(FolderTest):
    def test_reads_chats_text_and_cases_in_their_spellings(self):
        rows = [{"messages": CHAT}, {"text": "words"}, {"messages": CHAT[:1], "answer": "45"},
                {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}]
        path = self.folder / "rows.jsonl.gz"
        with gzip.open(path, "wt") as lines:
            lines.writelines(json.dumps(row) + "\n" for row in rows)
        (self.folder / "book.txt").write_text("a whole book")
        found = list(read_samples([path, self.folder / "book.txt"]))
        turns = [sample.messages and len(sample.messages) for sample in found]
        self.assertEqual(turns, [4, None, 2, 2, None])
        self.assertEqual(found[3].messages[1], {"role": "assistant", "content": "b"})
        self.assertEqual(found[4].text, "a whole book")

    @unittest.skipUnless(importlib.util.find_spec("datasets"), "the package datasets is not installed")
    def test_reads_data_sets_on_disk_with_and_without_splits(self):
        import datasets
        rows = datasets.Dataset.from_list([{"messages": CHAT}, {"messages": CHAT[:2]}])
        rows.save_to_disk(self.folder / "one")
        datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(self.folder / "two")
        found = list(read_samples([self.folder / "one", self.folder / "two"]))
        self.assertEqual([len(sample.messages) for sample in found], [4, 2] * 3)

    def test_bad_rows_are_named(self):
        path = self.folder / "rows.jsonl"
        for line, message in (("{", "rows.jsonl:1: not JSON"), ('{"a": 1}', ":1: .*its fields are a"),
                              ('{"messages": [{"role": 1}]}', "needs `role` and `content`")):
            path.write_text(line + "\n")
            with self.subTest(line), self.assertRaisesRegex(UserError, message):
                list(read_samples([path]))

    def test_corpus_is_made_once_and_again_when_the_data_changes(self):
        tokenizer = load_tokenizer(NEEDLE)
        path = write_conversations(self.folder / "chats.jsonl", 20)
        corpus = open_corpus(self.folder / "data", [path], tokenizer, 64)
        self.assertEqual((len(corpus), corpus.tokens), (20, corpus.lengths.sum()))
        made, = (self.folder / "data").glob("*/tokens.bin")
        time = made.stat().st_mtime_ns
        open_corpus(self.folder / "data", [path], tokenizer, 64)
        self.assertEqual([made], list((self.folder / "data").glob("*/tokens.bin")))
        self.assertEqual(made.stat().st_mtime_ns, time)
        write_conversations(path, 21)
        self.assertEqual(len(open_corpus(self.folder / "data", [path], tokenizer, 64)), 21)

    def test_corpora_of_one_folder_leave_each_other_alone(self):
        tokenizer = load_tokenizer(NEEDLE)
        path = write_conversations(self.folder / "chats.jsonl", 20)
        corpus = open_corpus(self.folder / "data", [path], tokenizer, 64)
        before = [corpus[number][0].tolist() for number in range(20)]
        shorter = open_corpus(self.folder / "data", [path], tokenizer, 20)
        self.assertLess(shorter.tokens, corpus.tokens)
        self.assertEqual([corpus[number][0].tolist() for number in range(20)], before)
        with mock.patch.object(corpus_module, "read_samples", side_effect=AssertionError("made again")):
            for most_tokens, found in ((64, corpus), (20, shorter)):
                again = open_corpus(self.folder / "data", [path], tokenizer, most_tokens)
                self.assertEqual(again.lengths.tolist(), found.lengths.tolist())

    def test_a_corpus_whose_making_ends_early_leaves_nothing(self):
        tokenizer = load_tokenizer(NEEDLE)
        path = write_conversations(self.folder / "chats.jsonl", 20)
        corpus = open_corpus(self.folder / "data", [path], tokenizer, 64)
        samples = [corpus[number][0].tolist() for number in range(20)]
        files = sorted((self.folder / "data").rglob("*"))

        def broken(paths):
            yield from itertools.islice(read_samples(paths), 10)
            raise KeyboardInterrupt

        with mock.patch.multiple(corpus_module, BATCH=4, read_samples=broken):
            self.assertRaises(KeyboardInterrupt, open_corpus, self.folder / "data", [path], tokenizer, 20)
        self.assertEqual(sorted((self.folder / "data").rglob("*")), files)
        corpus = open_corpus(self.folder / "data", [path], tokenizer, 64)
        self.assertEqual([corpus[number][0].tolist() for number in range(20)], samples)
        shorter = open_corpus(self.folder / "data", [path], tokenizer, 20)
        self.assertEqual((len(shorter), shorter.lengths.max()), (20, 20))

    def test_of_two_that_make_a_corpus_at_once_both_use_the_first_ones(self):
        tokenizer = load_tokenizer(NEEDLE)
        path = write_conversations(self.folder / "chats.jsonl", 20)
        first = {}

        def overtaken(paths):
            with mock.patch.object(corpus_module, "read_samples", read_samples):
                first["corpus"] = open_corpus(self.folder / "data", paths, tokenizer, 64)
            first["folder"], = (path for path in (self.folder / "data").iterdir() if path.suffix != ".tmp")
            first["file"] = (first["folder"] / "tokens.bin").stat().st_ino
            return read_samples(paths)

        with mock.patch.object(corpus_module, "read_samples", overtaken):
            corpus = open_corpus(self.folder / "data", [path], tokenizer, 64)
        self.assertEqual(list((self.folder / "data").iterdir()), [first["folder"]])
        self.assertEqual((first["folder"] / "tokens.bin").stat().st_ino, first["file"])
        self.assertEqual(corpus[19][0].tolist(), first["corpus"][19][0].tolist())

    def test_long_chats_are_cut_long_texts_divided_and_chats_without_an_answer_left_out(self):
        path = self.folder / "rows.jsonl"
        long_chat = [CHAT[0], {"role": "assistant", "content": "many words " * 40}]
        rows = [{"messages": CHAT[:1]}, {"messages": long_chat}, {"text": "many words " * 40}]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        corpus = open_corpus(self.folder / "data", [path], load_tokenizer(NEEDLE), 32)
        self.assertEqual(corpus.lengths[:-1].tolist(), [32] * (len(corpus) - 1))
        self.assertGreater(corpus.tokens, 32 + 80)
        self.assertEqual((corpus.facts["cut"], corpus.facts["left_out"]), (1, 1))


class PlanTest(FolderTest):
    lengths = np.random.default_rng(0).integers(5, 60, 500)

    def test_every_epoch_has_every_sample_once_and_no_pack_is_too_long(self):
        plan = Plan(self.lengths, 128, seed=1)
        for epoch in range(2):
            packs = [plan[number] for number in range(plan.packs_in(epoch), plan.packs_in(epoch + 1))]
            self.assertEqual(sorted(sample for pack in packs for sample in pack.samples), list(range(500)))
            self.assertLessEqual(max(self.lengths[list(pack.samples)].sum() for pack in packs), 128)
            self.assertGreater(self.lengths.sum() / (128 * len(packs)), 0.9)

    def test_a_pack_follows_from_seed_and_number_alone(self):
        once, again, other = (Plan(self.lengths, 128, seed) for seed in (1, 1, 2))
        later = again[300]
        self.assertEqual([once[number] for number in range(301)][-1], later)
        self.assertNotEqual([once[number] for number in range(9)], [other[number] for number in range(9)])

    def test_a_share_of_packs_is_joined(self):
        plan = Plan(self.lengths, 128, 1, long_share=0.5)
        joined = [plan[number].joined for number in range(plan.packs_in(1))]
        self.assertTrue(0.3 < sum(joined) / len(joined) < 0.7)


class SpansTest(FolderTest):
    def test_attention_stays_inside_documents(self):
        """Against one mask over everything."""
        queries, keys, values = (torch.randn(30, heads, 8) for heads in (4, 2, 2))
        for window in (None, 4):
            spans = whole_documents([0, 7, 8, 30], "cpu")
            found = spans.attend(queries, keys, values, window)
            for begin, end in ((0, 7), (7, 8), (8, 30)):
                changed = keys.clone()
                changed[:begin] = 0
                changed[end:] = 0
                again = spans.attend(queries, changed, values, window)
                torch.testing.assert_close(again[begin:end], found[begin:end])

    def test_some_rows_attend_as_they_do_among_all_rows(self):
        queries, keys, values = (torch.randn(30, heads, 8) for heads in (4, 2, 2))
        for window in (None, 4):
            whole = whole_documents([0, 12, 30], "cpu").attend(queries, keys, values, window)
            rows = torch.tensor([3, 4, 5, 11, 20, 21])
            runs = [(0, 3, 0, 6), (3, 4, 0, 12), (4, 6, 12, 22)]
            some = Spans(runs, "cpu").attend(queries[rows], keys, values, window)
            torch.testing.assert_close(some, whole[rows])

    def test_a_window_counts_the_query_itself(self):
        self.assertEqual(causal_mask(1, 5, 2, "cpu").tolist(), [[False, False, False, True, True]])
