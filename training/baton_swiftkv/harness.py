"""Tasks of lm-eval-harness on both modes, if the package is installed."""

import torch
from torch.nn import functional

from baton_swiftkv.decoder import Packed
from baton_swiftkv.errors import UserError
from baton_swiftkv.generate import greedy
from baton_swiftkv.packing import make_batch


def run_harness(decoder, tokenizer, options):
    """{"task metric": {"teacher": value, "student": value}}"""
    try:
        import lm_eval
        from lm_eval.api.model import LM
    except ImportError:
        raise UserError("--harness needs lm-eval-harness: pip install lm-eval") from None

    class Model(Answers, LM):
        pass

    results = {}
    for mode in ("teacher", "student"):
        found = lm_eval.simple_evaluate(Model(decoder, tokenizer, mode == "student"), tasks=options.harness,
                                        limit=options.limit)
        for task, metrics in found["results"].items():
            for metric, value in metrics.items():
                if isinstance(value, float) and "stderr" not in metric:
                    results.setdefault(f"{task} {metric}", {})[mode] = float(value)
    return results


class Answers:
    """The three questions that the harness asks a model."""

    def __init__(self, decoder, tokenizer, rewired):
        super().__init__()
        self._decoder, self._tokenizer, self._rewired = decoder, tokenizer, rewired
        self._device = decoder.model.embed_tokens.weight.device

    def loglikelihood(self, requests):
        """[(log-probability of the continuation, whether it is the greedy one)]"""
        return [self._score(*self._encode_pair(*request.args)) for request in requests]

    def loglikelihood_rolling(self, requests):
        begin = self._tokenizer.bos_token_id
        begin = self._tokenizer.eos_token_id if begin is None else begin
        return [self._score([begin], self._encode(request.args[0]))[0] for request in requests]

    def generate_until(self, requests):
        """The text up to the first of the strings that end it."""
        answers = []
        for request in requests:
            context, settings = request.args
            until = settings.get("until") or []
            ids, = greedy(self._decoder, [self._encode(context)], [settings.get("max_gen_toks", 256)],
                          {self._tokenizer.eos_token_id}, self._rewired)
            text = self._tokenizer.decode(ids, skip_special_tokens=True)
            for end in [until] if isinstance(until, str) else until:
                text = text.split(end)[0]
            answers.append(text)
        return answers

    def _encode(self, text):
        return self._tokenizer(text, add_special_tokens=True)["input_ids"]

    def _encode_pair(self, context, continuation):
        """The whole is tokenized at once, and cut where the context ends."""
        both = self._encode(context + continuation)
        before = len(self._encode(context)) if context else min(1, len(both) - 1)
        return both[:before], both[before:]

    @torch.inference_mode()
    def _score(self, context, continuation):
        ids = torch.tensor(context + continuation).numpy()
        learned = torch.arange(len(ids)).numpy() >= len(context)
        batch = make_batch([(ids, learned)], device=self._device)
        logits = self._logits(batch).float()
        scores = functional.log_softmax(logits, -1).gather(1, batch.targets[:, None])
        return scores.sum().item(), bool((logits.argmax(-1) == batch.targets).all())

    def _logits(self, batch):
        """Of the rows that predict the continuation."""
        decoder = self._decoder
        context = Packed(batch.documents)
        angles = decoder.angles(batch.positions)
        x = decoder.lower(batch.ids, angles, context)
        groups = decoder.fan_out(x, angles, context) if self._rewired else None
        return decoder.logits(decoder.upper(x, angles, context, groups)[1].index_select(0, batch.rows))
