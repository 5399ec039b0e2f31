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
# Longest wait for a request that nobody cancels.
WHOLE_SECONDS = 300


class Load:
    """Requests of `clients` clients at once until told to stop. Every request of number i is a
    function of the seed and i: its KV policy, prompt, answer length, sampling and fate. Of three,
    one is read to its end, one has a deadline and one loses its client, both at any moment of the
    first `patience` seconds."""

    def __init__(self, router, policies, seed, clients, most_words, most_tokens, patience):
        self._router = router
        self._policies = policies
        self._seed = seed
        self._clients = clients
        self._most_words = most_words
        self._most_tokens = most_tokens
        self._patience = patience
        self._next = 0
        self._lock = threading.Lock()
        self.outcomes = collections.Counter()
        # Whole answers by KV policy.
        self.whole = collections.Counter()
        # What must not happen, in words.
        self.errors = []

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
        policy = dice.choice(self._policies)
        tokens = dice.randint(1, self._most_tokens)
        # Lengths of every magnitude.
        words = round(self._most_words ** dice.uniform(0.3, 1.0))
        moment = dice.uniform(0.0, self._patience)
        fate = dice.choice(("whole", "deadline", "gone"))
        flags = [f"--kv={policy}", f"--max_tokens={tokens}", "--ignore_eos", "--prompt_file=-",
                 f"--temperature={dice.choice((0, 0, 0.8))}", "--top_k=40", f"--seed={number}"]
        if fate == "deadline":
            flags.append(f"--timeout={moment:.3f}s")
        client = subprocess.Popen(
            [stack.BINARIES / "baton-client", "generate", f"--router={self._router}", *flags],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _, report = client.communicate(" ".join(dice.choices(WORDS, k=words)),
                                           moment if fate == "gone" else WHOLE_SECONDS)
        except subprocess.TimeoutExpired:
            client.kill()
            client.communicate()
            if fate != "gone":
                self._fail(number, f"no end after {WHOLE_SECONDS} s")
            return "disconnected"
        return self._judge(number, policy, tokens, client.returncode, report)

    def _judge(self, number, policy, tokens, status, report):
        """The outcome of a request whose client saw its end."""
        if status != 0:
            for code in EXPECTED_CODES:
                if code in report:
                    return code
            self._fail(number, f"{policy}: {report.strip()}")
            return "failed"
        completion = re.search(r"^ *completion +(\d+) tokens", report, re.MULTILINE)
        if completion is None or int(completion[1]) != tokens:
            self._fail(number, f"{policy}: OK, but not {tokens} tokens: {report.strip()}")
            return "truncated"
        with self._lock:
            self.whole[policy] += 1
        return "whole"

    def _fail(self, number, text):
        with self._lock:
            self.errors.append(f"request {number} of seed {self._seed}: {text}")
