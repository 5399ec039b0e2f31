"""Samples from files, and which of their characters an assistant wrote."""

import dataclasses
import gzip
import json
import pathlib

import jinja2

from baton_swiftkv.errors import UserError


@dataclasses.dataclass
class Sample:
    """Either a conversation or plain text. `where` is for messages."""

    where: str
    messages: list | None = None
    text: str | None = None


def read_samples(paths):
    """Samples of JSONL files (`messages`, or `prompt`/`text`; gzip allowed), text files (one sample
    each) and data sets that Hugging Face's `datasets` saved to disk, in order."""
    for path in map(pathlib.Path, paths):
        if not path.exists():
            raise UserError(f"{path}: not found")
        if path.is_dir():
            yield from _data_set(path)
        elif path.name.removesuffix(".gz").endswith((".jsonl", ".json")):
            yield from _lines(path)
        else:
            yield Sample(str(path), text=path.read_text())


def _lines(path):
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                where = f"{path}:{number}"
                try:
                    yield _sample(json.loads(line), where)
                except ValueError as error:
                    raise UserError(f"{where}: not JSON ({error})") from None


def _data_set(path):
    try:
        import datasets
    except ImportError:
        raise UserError(f"{path}: a data set on disk needs the package `datasets`; pip install datasets, "
                        f"or export it to JSONL") from None
    loaded = datasets.load_from_disk(str(path))
    splits = loaded.values() if isinstance(loaded, datasets.DatasetDict) else [loaded]
    for split in splits:
        for number, row in enumerate(split):
            yield _sample(row, f"{path}[{number}]")


def _sample(row, where):
    """Takes the spellings that chat data sets use. Evaluation cases become conversations with their
    answer."""
    messages = row.get("messages") or row.get("conversations")
    if messages:
        messages = [_message(message, where) for message in messages]
        if "answer" in row and messages[-1]["role"] == "user":
            messages.append({"role": "assistant", "content": row["answer"]})
        return Sample(where, messages=messages)
    if isinstance(row.get("text"), str):
        return Sample(where, text=row["text"])
    raise UserError(f"{where}: has neither `messages` (a list of role and content) nor `text`; "
                    f"its fields are {', '.join(row)}")


_ROLES = {"human": "user", "gpt": "assistant"}


def _message(message, where):
    role = message.get("role") or message.get("from")
    content = message.get("content") if "content" in message else message.get("value")
    if not isinstance(role, str) or not isinstance(content, str):
        raise UserError(f"{where}: a message needs `role` and `content`, both text")
    return {"role": _ROLES.get(role, role), "content": content}


def render(tokenizer, messages):
    """(text, [(begin, end)]): the conversation in the model's chat format, and the characters of what
    the assistant wrote, with the marks that end its turns.

    A turn begins where the generation prompt ends. Returns None where a turn's place is unknown: if the
    assistant begins, the template refuses the conversation or a part of it (some want roles to alternate),
    or it shows earlier turns otherwise than it did when they were last (some drop reasoning).
    """
    if tokenizer.chat_template is None:
        raise UserError("the tokenizer has no chat template, which conversations need; "
                        "put a chat_template.jinja beside it, or use `text` samples")
    if messages[0]["role"] == "assistant":  # nothing comes before, and templates want a message
        return None
    try:
        return _with_spans(tokenizer, messages)
    except jinja2.TemplateSyntaxError as error:
        raise UserError(f"the tokenizer's chat template: {error}") from None
    except jinja2.TemplateError:
        return None


def _with_spans(tokenizer, messages):
    text = _apply(tokenizer, messages)
    spans = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = _apply(tokenizer, messages[:index], add_generation_prompt=True)
        through = _apply(tokenizer, messages[:index + 1])
        if not text.startswith(through) or not through.startswith(before):
            return None
        spans.append((len(before), len(through.rstrip())))
    return text, spans


def _apply(tokenizer, messages, **options):
    return tokenizer.apply_chat_template(messages, tokenize=False, **options)
