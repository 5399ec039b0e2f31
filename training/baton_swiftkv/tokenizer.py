"""The tokenizer of a model directory."""

from baton_swiftkv.errors import UserError


def load_tokenizer(directory):
    """A fast tokenizer, whose tokens know their place in the text."""
    import transformers
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{directory}: no tokenizer that transformers can load ({error})") from None
    if not tokenizer.is_fast:
        raise UserError(f"{directory}: the tokenizer has no tokenizer.json, which places of tokens need")
    return tokenizer
