"""Tokenized samples in three flat files, mapped into memory.

`tokens` (int32), `learned` (uint8: 1 where a token was written by the assistant) and `offsets` (int64)
of samples. Made once and not changed; several processes read the same files.
"""

import hashlib
import itertools
import json
import pathlib
import secrets
import shutil

import numpy as np

from baton_swiftkv.conversations import read_samples, render
from baton_swiftkv.errors import UserError
from baton_swiftkv.tensors import write_json

BATCH = 1024  # samples tokenized at a time


class Corpus:
    """Samples by number. Immutable, so any number of threads and processes may read."""

    def __init__(self, directory):
        directory = pathlib.Path(directory)
        self.facts = json.loads((directory / "corpus.json").read_text())
        self._tokens = _map(directory / "tokens.bin", np.int32)
        self._learned = _map(directory / "learned.bin", np.uint8)
        self._offsets = np.fromfile(directory / "offsets.bin", np.int64)

    def __len__(self):
        return len(self._offsets) - 1

    @property
    def lengths(self):
        return np.diff(self._offsets)

    @property
    def tokens(self):
        return int(self._offsets[-1])

    def __getitem__(self, number):
        """(token ids, learned)"""
        part = slice(self._offsets[number], self._offsets[number + 1])
        return self._tokens[part], self._learned[part]


def open_corpus(directory, paths, tokenizer, most_tokens):
    """The corpus of these files, made in `directory` unless it is there already. Every fingerprint has a
    folder of its own there."""
    fingerprint = _fingerprint(paths, tokenizer, most_tokens)
    folder = pathlib.Path(directory) / fingerprint
    if not folder.exists():
        _make(folder, read_samples(paths), tokenizer, most_tokens, fingerprint)
    return Corpus(folder)


def _make(folder, *what):
    """Whole or not at all. Others may do the same at the same time; the first one's stays."""
    temporary = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.tmp")
    temporary.mkdir(parents=True)
    try:
        _build(temporary, *what)
        temporary.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _build(directory, samples, tokenizer, most_tokens, fingerprint):
    facts = {"fingerprint": fingerprint, "samples": 0, "tokens": 0, "learned_tokens": 0, "cut": 0,
             "left_out": 0}
    offsets = [0]
    with open(directory / "tokens.bin", "wb") as tokens, open(directory / "learned.bin", "wb") as learned:
        for batch in _batches(samples):
            for ids, marks in _pieces(batch, encode(tokenizer, batch), most_tokens, facts):
                if not marks[1:].any():
                    facts["left_out"] += 1
                    continue
                tokens.write(ids.astype(np.int32).tobytes())
                learned.write(marks.astype(np.uint8).tobytes())
                offsets.append(offsets[-1] + len(ids))
                facts["learned_tokens"] += int(marks.sum())
    if len(offsets) == 1:
        raise UserError("the data has no sample with an assistant's answer that fits")
    np.array(offsets, np.int64).tofile(directory / "offsets.bin")
    write_json(directory / "corpus.json",
               facts | {"samples": len(offsets) - 1, "tokens": offsets[-1]})


def _pieces(samples, encoded, most_tokens, facts):
    """Long texts become several samples; of long conversations the beginning is kept."""
    for sample, (ids, marks) in zip(samples, encoded):
        if sample.messages is None:
            for begin in range(0, len(ids), most_tokens):
                yield ids[begin:begin + most_tokens], marks[begin:begin + most_tokens]
        else:
            facts["cut"] += len(ids) > most_tokens
            yield ids[:most_tokens], marks[:most_tokens]


def encode(tokenizer, samples):
    """[(ids, learned)] of samples, in order. Of plain text every token is learned; what can't be rendered
    has no token."""
    rendered = [_rendered(tokenizer, sample) for sample in samples]
    plain = [sample.messages is None for sample in samples]
    results = [None] * len(samples)
    for special in (False, True):  # a rendered chat has its special tokens already
        chosen = [i for i, is_plain in enumerate(plain) if is_plain == special]
        if not chosen:
            continue
        encoded = tokenizer([rendered[i][0] for i in chosen], add_special_tokens=special,
                            return_attention_mask=False)
        for row, i in enumerate(chosen):
            ids = np.array(encoded["input_ids"][row], np.int32)
            results[i] = ids, _learned(encoded, row, len(ids), *rendered[i])
    return results


def _rendered(tokenizer, sample):
    if sample.messages is None:
        return sample.text, None
    return render(tokenizer, sample.messages) or ("", [])


def _learned(encoded, row, count, text, spans):
    """Tokens that begin inside one of the spans of characters; all of them without spans."""
    if spans is None:
        return np.ones(count, bool)
    marks = np.zeros(count, bool)
    for begin, end in spans:
        marks[_first_token(encoded, row, count, text, begin):
              _first_token(encoded, row, count, text, end)] = True
    return marks


def _first_token(encoded, row, count, text, place):
    """The first token at or behind a character; tokenizers may drop characters."""
    for character in range(place, len(text)):
        token = encoded.char_to_token(row, character)
        if token is not None:
            return token
    return count


def _batches(samples):
    samples = iter(samples)
    while batch := list(itertools.islice(samples, BATCH)):
        yield batch


def _fingerprint(paths, tokenizer, most_tokens):
    digest = hashlib.sha256()
    for path in sorted(map(pathlib.Path, paths)):
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if not file.exists():
                raise UserError(f"{file}: not found")
            digest.update(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}\n".encode())
    digest.update(repr((len(tokenizer), tokenizer.chat_template, most_tokens)).encode())
    return digest.hexdigest()[:16]


def _map(path, kind):
    return np.memmap(path, kind, "r") if path.stat().st_size else np.zeros(0, kind)
