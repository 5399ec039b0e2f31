"""The generator of training data: right answers, nothing of the evaluation."""

import collections
import gzip
import json
import re

from baton_swiftkv.synthetic import TASKS, Writer, synthesize, tokens_of
from baton_swiftkv.tokenizer import load_tokenizer
from support import MODELS, NEEDLE, FolderTest


def conversations(task, count=20, tokens=600):
    writer = Writer(f"test/{task}")
    return [writer.conversation(task, tokens) for _ in range(count)]


def turns(row):
    """[(question, answer)] and the text."""
    said = [message for message in row["messages"] if message["role"] != "system"]
    text = said[0]["content"].split("\n\n")[1]
    return [(user["content"].split("\n\n")[-1], answer["content"])
            for user, answer in zip(said[::2], said[1::2])], text


class SyntheticTest(FolderTest):
    def test_look_ups_have_the_value_that_the_text_gives(self):
        for task in ("niah_single", "niah_multikey", "niah_multikey_dense", "json_kv", "json_kv_dense"):
            for row in conversations(task):
                pairs, text = turns(row)
                for question, answer in pairs:
                    key = re.search(r"[a-z]+-[a-z]+", question)[0]
                    self.assertRegex(text, rf"{key}\"?(: | is | was set to ){answer}\b")

    def test_lists_are_copied_turned_and_sorted(self):
        for task, order in (("copy", list), ("reverse", lambda items: items[::-1]), ("sort", sorted)):
            for row in conversations(task):
                (_, answer), = turns(row)[0]
                given = re.search(r"(?:List|Numbers) \S+: ([^.]+)\.", turns(row)[1])[1]
                separator = "," if task == "sort" else " "
                self.assertEqual(answer.removeprefix("Items: ").split(separator),
                                 list(order(given.split(separator))))

    def test_chains_and_variables_follow_from_the_text(self):
        for row in conversations("chain"):
            (_, answer), = turns(row)[0]
            total = int(re.search(r"start (\d+);", turns(row)[1])[1])
            for step in answer.split(";"):
                change, result = re.fullmatch(r"\d+:([+-]\d)=(\d+)", step).groups()
                total = (total + int(change)) % 100
                self.assertEqual(int(result), total)
        for row in conversations("vt"):
            (question, answer), = turns(row)[0]
            held, values = [], {}
            for name, value in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", turns(row)[1]):
                values[name] = values.get(value, value)
                held += [name] if values[name] == re.search(r"\d{5}", question)[0] else []
            self.assertEqual(answer.split(", "), held)

    def test_words_that_stand_out_are_the_most_frequent(self):
        for row in conversations("fwe", tokens=1500):
            (_, answer), = turns(row)[0]
            counts = collections.Counter(re.search(r"Tally \S+: ([^.]+)\.", turns(row)[1])[1].split())
            self.assertEqual(answer.removeprefix("Words: ").split(", "),
                             [word for word, _ in counts.most_common(3)])

    def test_several_values_keep_their_order(self):
        for row in conversations("niah_multivalue"):
            (question, answer), = turns(row)[0]
            key = re.search(r"[a-z]+-[a-z]+", question)[0]
            self.assertEqual(answer.split(", "), re.findall(rf"{key} (?:is|was set to) (\d+)", turns(row)[1]))

    def test_lengths_are_about_what_was_asked_for(self):
        tokenizer = load_tokenizer(NEEDLE)
        for task in TASKS:
            for row in conversations(task, 3, 1000):
                text = tokenizer.apply_chat_template(row["messages"], tokenize=False)
                tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
                self.assertTrue(300 < tokens < 1500, f"{task}: {tokens}")
                self.assertLess(abs(tokens_of(text) / tokens - 1), 0.25)

    def test_the_same_seed_gives_the_same_file(self):
        paths = [self.folder / name for name in "abc"]
        for path, seed, workers in zip(paths, (1, 1, 2), (1, 2, 1)):
            synthesize(path, 30_000, {256: 1.0, 512: 1.0}, seed, workers)
        self.assertEqual(paths[0].read_bytes(), paths[1].read_bytes())
        self.assertNotEqual(paths[0].read_bytes(), paths[2].read_bytes())

    def test_no_pair_of_key_and_value_is_one_of_the_evaluation(self):
        pairs = re.compile(r"([a-z]+-[a-z]+)\"?(?::| is| was set to) (\d{6,7})")
        public = set()
        for path in sorted((MODELS / "eval").glob("*.jsonl*")):
            with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as lines:
                for line in lines:
                    for message in json.loads(line)["messages"]:
                        public |= set(pairs.findall(message["content"]))
        self.assertGreater(len(public), 5000)
        synthesize(self.folder / "data", 500_000, {512: 1.0}, 20261)
        self.assertFalse(public & set(pairs.findall((self.folder / "data").read_text())))
