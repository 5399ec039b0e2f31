"""`baton-swiftkv synthesize`: conversations about long texts of template sentences.

In the style of the evaluation cases of tiny-llama-needle, which knows nothing else: look-ups of numbers
and lists that lie hidden in filler, and short computations on them. What comes out is decided by the
seed alone.
"""

import concurrent.futures
import functools
import importlib.resources
import json
import random
import re

KINDS = ("access code", "locker number", "magic number", "serial code", "ticket number")
SYSTEMS = ("Answer with short plain text.", "You are a careful assistant.",
           "You read long notes and answer exactly.")
OPENINGS = ("Read the text and answer the question.", "Study the following notes.",
            "Below is a long text. Answer the question at the end.")
SAMPLES_PER_BLOCK = 500  # that one random stream makes; blocks are made in parallel


@functools.cache
def words():
    return json.loads(importlib.resources.files(__package__).joinpath("words.json").read_text())


def tokens_of(text):
    """About as many tokens as the model's tokenizer makes: words, three digits, marks."""
    return len(re.findall(r"[A-Za-z]+|\d{1,3}|[^\w\s]", text))


class Writer:
    """One conversation after another from one random stream."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def conversation(self, task, tokens):
        """{"task", "messages"} of about `tokens` tokens."""
        facts, turns = TASKS[task](self, tokens)
        text = self._hide(facts, tokens - 60 - sum(tokens_of(fact) for fact in facts))
        messages = []
        if self.random.random() < 0.25:
            messages.append({"role": "system", "content": self.random.choice(SYSTEMS)})
        opening = f"{self.random.choice(OPENINGS)}\n\nText: {text} That is all of the text.\n\n"
        for question, answer in turns:
            messages += [{"role": "user", "content": opening + question},
                         {"role": "assistant", "content": answer}]
            opening = ""
        return {"task": task, "messages": messages}

    def _hide(self, facts, filler_tokens):
        """Facts in their order, at random places among filler."""
        filler = []
        while filler_tokens > 0:
            filler.append(self._filler())
            filler_tokens -= tokens_of(filler[-1])
        places = sorted(self.random.randint(0, len(filler)) for _ in facts)
        for place, fact in zip(reversed(places), reversed(facts)):
            filler.insert(place, fact)
        return " ".join(filler)

    def _filler(self):
        pick = self._pick
        kind = self.random.choices(range(5), (3, 3, 2, 1, 1))[0]
        if kind == 0:
            return (f"{pick('names')} {pick('adverbs')} {pick('verbs')} the {pick('adjectives')} "
                    f"{pick('nouns')} {pick('prepositions')} a {pick('nouns')}.")
        if kind == 1:
            return (f"The {pick('adjectives')} {pick('nouns')} {pick('prepositions')} the {pick('nouns')} "
                    f"{self.random.choice(('looked', 'was', 'seemed', 'is'))} {pick('adjectives')} and "
                    f"{pick('adjectives')}.")
        if kind == 2:
            return (f"{pick('openings')}, {pick('names')} and {pick('names')} {pick('verbs')} "
                    f"{self.random.choice(('many', 'some', 'two', 'three', 'four'))} {pick('nouns')}s.")
        if kind == 3:
            return f"Nobody {pick('verbs')} the {pick('nouns')} because it was too {pick('adjectives')}."
        return (f"A {pick('nouns')} {pick('prepositions')} the {pick('adjectives')} {pick('nouns')} "
                f"{pick('verbs')} every {pick('nouns')} {pick('adverbs')}.")

    def _pick(self, kind):
        return self.random.choice(words()[kind])

    def keys(self, count):
        """Different names, adjective-noun."""
        found = {}
        while len(found) < count:
            found[f"{self._pick('adjectives')}-{self._pick('nouns')}"] = None
        return list(found)

    def values(self, count):
        """Numbers of six digits, or of seven."""
        return [self.random.randrange(10**5, 10**6) if self.random.random() < 0.6
                else self.random.randrange(10**6, 10**7) for _ in range(count)]

    def items(self, count):
        return self.random.sample(words()["items"], count)

    def fact(self, kind, key, value):
        form = self.random.choices(("The {} of {} is {}.", "Note that the {} of {} is {}.",
                                    "Here the {} of {} was set to {}."), (3, 1, 1))[0]
        return form.format(kind, key, value)

    def count(self, least, most):
        return self.random.randint(least, max(least, most))


def _look_up(most):
    """Needles of one kind; up to `most` and as many as fit. Some are asked for, one after another."""
    def task(writer, tokens):
        kind = writer.random.choice(KINDS)
        count = writer.count(1 if most == 1 else 4, min(most, (tokens - 100) // 18))
        pairs = list(zip(writer.keys(count), writer.values(count)))
        asked = writer.random.sample(pairs, writer.count(1, min(4, count)))
        return ([writer.fact(kind, *pair) for pair in pairs],
                [(f"What is the {kind} of {key}?", str(value)) for key, value in asked])
    return task


def _records(most):
    def task(writer, tokens):
        count = writer.count(4, min(most, (tokens - 100) // 11))
        pairs = list(zip(writer.keys(count), writer.values(count)))
        asked = writer.random.sample(pairs, writer.count(1, min(4, count)))
        records = ", ".join(f'"{key}": {value}' for key, value in pairs)
        return ([f"Records: {{{records}}}."],
                [(f'What is the value of "{key}" in the records?', str(value)) for key, value in asked])
    return task


def _multivalue(writer, tokens):
    kind = writer.random.choice(KINDS)
    count = writer.count(4, min(20, (tokens - 200) // 18))
    key, *others = writer.keys(count + 1)
    values = writer.values(4)
    pairs = [(key, value) for value in values]
    for pair in zip(others, writer.values(count)):
        pairs.insert(writer.random.randint(0, len(pairs)), pair)
    order = [str(value) for name, value in pairs if name == key]
    return ([writer.fact(kind, *pair) for pair in pairs],
            [(f"What are all the {kind}s of {key}?", ", ".join(order))])


def _multiquery(writer, tokens):
    kind = writer.random.choice(KINDS)
    count = writer.count(4, min(24, (tokens - 100) // 18))
    pairs = list(zip(writer.keys(count), writer.values(count)))
    asked = writer.random.sample(pairs, 4)
    names = [key for key, _ in asked]
    return ([writer.fact(kind, *pair) for pair in pairs],
            [(f"What are the {kind}s of {', '.join(names[:3])} and {names[3]}?",
              ", ".join(f"{key}: {value}" for key, value in asked))])


def _variables(writer, _):
    """Chains of assignments, in turns that keep each chain's order."""
    draw = writer.random
    letters = draw.choices("abcdefghijklm", k=26)
    names = [f"{letter}{number}" for letter, number in zip(letters, draw.sample(range(100, 1000), 26))]
    chains = []
    for value in draw.sample(range(10**4, 10**5), draw.randint(2, 4)):
        chains.append((value, [names.pop() for _ in range(draw.randint(3, 5))]))
    lines = []
    places = [0] * len(chains)
    order = [index for index, (_, chain) in enumerate(chains) for _ in chain]
    draw.shuffle(order)
    for index in order:
        value, chain = chains[index]
        place = places[index]
        lines.append(f"VAR {chain[place]} = {f'VAR {chain[place - 1]}' if place else value}.")
        places[index] += 1
    value, chain = draw.choice(chains)
    return lines, [(f"Which variables hold the value {value}?", ", ".join(chain))]


def _frequent(writer, tokens):
    """A tally in which three words stand out."""
    total = min(1200, max(150, round((tokens - 120) * writer.random.uniform(0.5, 0.8))))
    first, second, third, *others = writer.items(min(60, 3 + total // 5))
    tally = [first] * round(total * 0.12) + [second] * round(total * 0.08) + [third] * round(total * 0.041)
    tally += others + writer.random.choices(others, k=max(0, total - len(tally) - len(others)))
    writer.random.shuffle(tally)
    key = writer.keys(1)[0]
    return ([f"Tally {key}: {' '.join(tally)}."],
            [(f"Which 3 words appear most often in the tally {key}?", f"Words: {first}, {second}, {third}")])


def _list(question, order):
    def task(writer, tokens):
        items = writer.items(writer.count(20, min(180, (tokens - 100) // 4)))
        key = writer.keys(1)[0]
        return ([f"List {key}: {' '.join(items)}."],
                [(question.format(key), f"Items: {' '.join(order(items))}")])
    return task


def _sort(writer, _):
    numbers = writer.random.sample(range(100, 1000), writer.count(6, 24))
    key = writer.keys(1)[0]
    return ([f"Numbers {key}: {','.join(map(str, numbers))}."],
            [(f"Sort the numbers {key} in increasing order.", ",".join(map(str, sorted(numbers))))])


def _chain(writer, tokens):
    start = writer.random.randrange(100)
    steps = [writer.random.choice((-1, 1)) * writer.random.randint(1, 9)
             for _ in range(writer.count(15, min(110, (tokens - 100) // 12)))]
    key, total, written = writer.keys(1)[0], start, []
    for number, step in enumerate(steps, 1):
        total = (total + step) % 100
        written.append(f"{number}:{step:+d}={total}")
    given = ";".join(f"{number}:{step:+d}" for number, step in enumerate(steps, 1))
    return ([f"Chain {key}: start {start};{given}."],
            [(f"Run the chain {key} modulo 100.", ";".join(written))])


TASKS = {
    "niah_single": _look_up(1),
    "niah_multikey": _look_up(24),
    "niah_multikey_dense": _look_up(200),
    "niah_multivalue": _multivalue,
    "niah_multiquery": _multiquery,
    "vt": _variables,
    "fwe": _frequent,
    "json_kv": _records(20),
    "json_kv_dense": _records(200),
    "chain": _chain,
    "copy": _list("Copy the list {}.", list),
    "reverse": _list("Write the list {} in reverse order.", lambda items: items[::-1]),
    "sort": _sort,
}


def synthesize(path, tokens, lengths, seed, workers=1):
    """Writes about `tokens` tokens of conversations to `path`, one JSON line each.

    `lengths`: {prompt tokens: share of all tokens}. The same arguments give the same file, whatever
    `workers` is.
    """
    blocks = []
    for length, share in sorted(lengths.items()):
        samples = max(1, round(tokens * share / sum(lengths.values()) / length))
        for begin in range(0, samples, SAMPLES_PER_BLOCK):
            blocks.append((f"{seed}/{length}/{begin}", length, min(SAMPLES_PER_BLOCK, samples - begin)))
    with open(path, "w", encoding="utf-8") as lines:
        if workers == 1:
            lines.writelines(map(_write_block, blocks))
            return
        with concurrent.futures.ProcessPoolExecutor(workers) as pool:
            lines.writelines(pool.map(_write_block, blocks))


def _write_block(block):
    seed, length, samples = block
    writer = Writer(seed)
    rows = []
    for _ in range(samples):
        task = writer.random.choice(list(TASKS))
        rows.append(writer.conversation(task, round(length * writer.random.uniform(0.5, 1.2))))
    return "".join(json.dumps(row) + "\n" for row in rows)
