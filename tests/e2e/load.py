"""Random requests to a router, of which many are cancelled or lose their client."""

import collections
import random
import re
import subprocess
import threading
import time

import stack

WORDS = ("amber basin cedar delta ember fjord grove harbor inlet juniper kernel lagoon meadow "
         "needle orchard prairie quarry river summit thicket upland valley willow zephyr").split()
# Ends that a request may have besides a whole answer: its deadline passed, or a queue or a pool had
# no room for it.
EXPECTED_CODES = ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "CANCELLED")
# What a request may be told when its workers were lost, and no others could go on in time (docs/api.md).
LOST = re.compile(r"(UNAVAILABLE|ABORTED): .*\(reason (NO_ENDPOINTS|DRAINING|PREFILL_LOST|DECODE_LOST)\b")
# Longest wait for a request that nobody cancels.
WHOLE_SECONDS = 300
# Prompts whose answers are known, and their share of the requests.
KNOWN = 24
KNOWN_SHARE = 0.25


class Load:
    """Requests of `clients` clients at once until told to stop. Every request of number i is a
    function of the seed and i: its KV policy, prompt, answer length, sampling and fate. Of three,
    one is read to its end, one has a deadline and one loses its client, both at any moment of the
    first `patience` seconds. After learn() some ask for a known answer instead, which has to be the same.
    With `losses` a request may be lost with its workers."""

    def __init__(self, router, policies, seed, clients, most_words, most_tokens, patience, losses=False):
        self._router = router
        self._policies = policies
        self._seed = seed
        self._clients = clients
        self._most_words = most_words
        self._most_tokens = most_tokens
        self._patience = patience
        self._losses = losses
        self._known = {}
        self._next = 0
        self._lock = threading.Lock()
        self.outcomes = collections.Counter()
        # Whole answers by KV policy.
        self.whole = collections.Counter()
        # What the lost ones were told, with N for numbers.
        self.lost = collections.Counter()
        # What must not happen, in words.
        self.errors = []

    def learn(self):
        """Asks for every known answer, one after the other; to be called while nothing disturbs them."""
        self._known = {index: self._ask_known(f"known {index}", index) for index in range(KNOWN)}
        self.errors += [f"known answer {index}: {outcome}"
                        for index, (outcome, _) in self._known.items() if outcome != "whole"]

    def run(self, seconds):
        """Blocks until `seconds` have passed and all requests have ended."""
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=self._work, args=(until,)) for _ in range(self._clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, until):
        while time.monotonic() < until:
            with self._lock:
                number = self._next
                self._next += 1
            try:
                outcome = self._request(number)
            except Exception as error:  # a thread that dies is an error, not a shorter run
                outcome = "error"
                self._fail(number, f"{type(error).__name__}: {error}")
            with self._lock:
                self.outcomes[outcome] += 1

    def _request(self, number):
        dice = random.Random(f"{self._seed} {number}")
        if self._known and dice.random() < KNOWN_SHARE:
            return self._repeat_known(number, dice.randrange(KNOWN))
        request, policy, tokens = self._draw(dice, number, dice.choice((0, 0, 0.8)))
        moment = dice.uniform(0.0, self._patience)
        fate = dice.choice(("whole", "deadline", "gone"))
        if fate == "deadline":
            request.append(f"--timeout={moment:.3f}s")
        return self._ask(number, policy, tokens, request, moment if fate == "gone" else None)[0]

    def _draw(self, dice, number, temperature):
        """(arguments and prompt of baton-client generate, KV policy, tokens of the answer)"""
        policy = dice.choice(self._policies)
        tokens = dice.randint(1, self._most_tokens)
        # Lengths of every magnitude.
        words = round(self._most_words ** dice.uniform(0.3, 1.0))
        return ([" ".join(dice.choices(WORDS, k=words)), f"--kv={policy}", f"--max_tokens={tokens}",
                 f"--temperature={temperature}", "--top_k=40", f"--seed={number}"], policy, tokens)

    def _repeat_known(self, number, index):
        outcome, text = self._ask_known(number, index)
        if outcome == "whole" and (outcome, text) != self._known[index]:
            self._fail(number, f"known answer {index}: {text!r}, but first {self._known[index]!r}")
            return "different"
        return f"known {outcome}"

    def _ask_known(self, number, index):
        """One greedy answer, the next with a seed."""
        request, policy, tokens = self._draw(random.Random(f"{self._seed} known {index}"), index,
                                             (0, 0.8)[index % 2])
        return self._ask(number, policy, tokens, request, None)

    def _ask(self, number, policy, tokens, request, gone_after):
        """(outcome, text of the answer) of a request whose client vanishes after `gone_after` seconds, if told."""
        prompt, *flags = request
        client = subprocess.Popen(
            [stack.BINARIES / "baton-client", "generate", f"--router={self._router}", "--ignore_eos",
             "--prompt_file=-", *flags],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace")
        try:
            text, report = client.communicate(prompt, WHOLE_SECONDS if gone_after is None else gone_after)
        except subprocess.TimeoutExpired:
            client.kill()
            client.communicate()
            if gone_after is None:
                self._fail(number, f"no end after {WHOLE_SECONDS} s")
            return "disconnected", ""
        return self._judge(number, policy, tokens, client.returncode, report), text

    def _judge(self, number, policy, tokens, status, report):
        """The outcome of a request whose client saw its end."""
        if status != 0:
            return self._judge_failure(number, policy, report)
        completion = re.search(r"^ *completion +(\d+) tokens", report, re.MULTILINE)
        if completion is None or int(completion[1]) != tokens:
            self._fail(number, f"{policy}: OK, but not {tokens} tokens: {report.strip()}")
            return "truncated"
        with self._lock:
            self.whole[policy] += 1
        return "whole"

    def _judge_failure(self, number, policy, report):
        lost = LOST.search(report)
        if lost and self._losses:
            with self._lock:
                self.lost[re.sub(r"\d+", "N", report.strip())] += 1
            return f"{lost[1]} {lost[2]}"
        for code in EXPECTED_CODES:
            if f"{code}: " in report:
                return code
        self._fail(number, f"{policy}: {report.strip()}")
        return "failed"

    def _fail(self, number, text):
        with self._lock:
            self.errors.append(f"request {number} of seed {self._seed}: {text}")
