"""The three services as processes on loopback ports, for the scripts of this folder."""

import collections
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
BINARIES = pathlib.Path(os.environ.get("BATON_BINARIES", CHECKOUT / "build/release/bin"))
MODELS = CHECKOUT / "tests/data/models"
CASES = MODELS / "eval"
SHIPPED = [
    "tiny-llama-needle",
    "tiny-llama-needle-swiftkv-l6",
    "tiny-llama-needle-swiftkv-l6-across2",
]
START_SECONDS = 120
# Of a service's log, its end, when it does not start.
LOG_CHARACTERS = 4000


class Service:
    """A service process that listens, by name. One that is restarted is another one."""

    def __init__(self, name, process, ports):
        self.name = name
        self.role = role_of(name)
        self.process = process
        self.address = f"127.0.0.1:{ports['grpc']}"
        self.metrics_address = f"127.0.0.1:{ports['metrics']}"

    def exposition(self):
        """The text of its /metrics."""
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=10) as response:
            return response.read().decode()

    def metrics(self):
        """{family: {labels as text: value}} of its /metrics."""
        families = collections.defaultdict(dict)
        for sample, value in samples_of(self.exposition()).items():
            family, _, labels = sample.partition("{")
            families[family][labels.rstrip("}")] = value
        return families

    def gauges(self):
        """{sample with its labels: value} of the gauges among its /metrics."""
        text = self.exposition()
        families = set(re.findall(r"^# TYPE (\S+) gauge$", text, re.MULTILINE))
        return {sample: value for sample, value in samples_of(text).items() if sample.partition("{")[0] in families}


def samples_of(exposition):
    """{sample with its labels: value} of the text of a /metrics."""
    lines = (line.rsplit(" ", 1) for line in exposition.splitlines() if line and not line.startswith("#"))
    return {sample: float(value) for sample, value in lines}


class Stack:
    """with Stack(model, worker_flags) as stack: stack.router is host:port, stack.services are all
    that run, the router last.

    `model` is a folder of tests/data/models or a path. With one_worker a single worker, or `workers` of them, prefills
    and decodes (--role=both); else there are `workers` of each role, or (prefill, decode) of them, named prefill and
    decode, or prefill-0, prefill-1... if there are several. `tls_flags` go to every process and to the client,
    `role_flags` ({role: flags}) to the workers of a role. With `gpus`, such as (0, 1), prefill workers see the one GPU
    and decode workers the other; with as many as there are workers each sees its own, prefill workers the first ones."""

    def __init__(self, model, worker_flags=(), one_worker=False, tls_flags=(), router_flags=(), workers=1, gpus=(),
                 role_flags=None):
        self._model = model
        self._router_flags = list(router_flags)
        self._worker_flags = list(worker_flags)
        self._role_flags = role_flags or {}
        self._one_worker = one_worker
        counts = (workers, workers) if isinstance(workers, int) else workers
        self._workers = {"decode": workers} if one_worker else dict(zip(("prefill", "decode"), counts))
        self._tls_flags = list(tls_flags)
        self._gpu_of = self._gpus_by_name(gpus)
        self._folder = tempfile.TemporaryDirectory(prefix="baton-stack-")
        self._processes = []
        self._flags_of = {}
        self.services = []
        self.router = None
        # Of the processes, once stopped.
        self.exit_codes = []
        self.logs = ""

    def __enter__(self):
        try:
            self.router = self._await(
                self._start("router", self._start_workers() + self._router_flags))
            subprocess.run(
                [*self._before("client"), BINARIES / "baton-client", "health", "--router", self.router,
                 f"--wait={START_SECONDS}", *self._tls_flags],
                check=True, stdout=subprocess.DEVNULL)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.exit_codes = [process.returncode for process in self._processes]
        self.logs = "".join(path.read_text(errors="replace") for path in
                            sorted(pathlib.Path(self._folder.name).glob("*.log")))
        self._folder.cleanup()

    def service(self, name):
        """The newest service of this name."""
        return next(service for service in self.services if service.name == name)

    def requests_of(self, kv, requests, prompt_tokens, *flags):
        """What baton-loadtest writes of each of `requests`, one after the other, of eight tokens each."""
        with tempfile.TemporaryDirectory(prefix="baton-load-") as folder:
            subprocess.run(
                [*self._before("loadtest"), BINARIES / "baton-loadtest", "run", f"--router={self.router}",
                 "--concurrency=1", f"--requests={requests}", f"--input={prompt_tokens}", "--output=8", f"--kv={kv}",
                 "--token_times", f"--out={folder}", *self._tls_flags, *flags],
                check=True, stdout=subprocess.DEVNULL)
            lines = (pathlib.Path(folder) / "requests.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def restart(self, name):
        """Starts a service anew at its address; kills it first if it still runs. RuntimeError when it does not
        start, as when somebody else has got its port meanwhile; then it may be tried again."""
        old = self.service(name)
        old.process.kill()
        old.process.wait()
        (pathlib.Path(self._folder.name) / f"{name}.json").unlink(missing_ok=True)
        started = self._start(name, self._flags_of[name], old.address, old.metrics_address)
        if old.process in self._processes:
            self._processes.remove(old.process)
        self._await(started)

    def _start_workers(self):
        """Returns the flags that tell the router where they are."""
        started = {role: [self._start(name, self._flags_of_role(role)) for name in self._names(role)]
                   for role in reversed(self._workers)}
        return [f"--{role}={','.join(map(self._await, workers))}" for role, workers in started.items()]

    def _names(self, role):
        count = self._workers[role]
        return [role] if count == 1 else [f"{role}-{i}" for i in range(count)]

    def _flags_of_role(self, role):
        return [*(["--role=both"] if self._one_worker else []), *self._worker_flags, *self._role_flags.get(role, ())]

    def _gpus_by_name(self, gpus):
        names = {role: self._names(role) for role in self._workers}
        if len(gpus) == sum(map(len, names.values())):
            return dict(zip(itertools.chain(*names.values()), gpus))
        return {name: gpu for role, gpu in zip(names, gpus) for name in names[role]}

    def _before(self, name):
        """Words that go before the command of a process: where it runs."""
        gpu = self._gpu_of.get(name)
        return [] if gpu is None else ["env", f"CUDA_VISIBLE_DEVICES={gpu}"]

    def _start(self, name, flags, listen="127.0.0.1:0", metrics_listen="127.0.0.1:0"):
        port_file = pathlib.Path(self._folder.name) / f"{name}.json"
        self._flags_of[name] = flags
        with open(port_file.with_suffix(".log"), "ab") as log:
            process = subprocess.Popen(
                [*self._before(name), BINARIES / f"baton-{role_of(name)}", f"--model={MODELS / self._model}",
                 f"--port_file={port_file}", f"--listen={listen}",
                 f"--metrics_listen={metrics_listen}", *self._tls_flags, *flags],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._processes.append(process)
        return port_file, process

    def _await(self, started):
        """Waits until it listens; returns where."""
        port_file, process = started
        deadline = time.monotonic() + START_SECONDS
        while not port_file.exists() or port_file.stat().st_size == 0:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                self._processes.remove(process)
                raise RuntimeError(port_file.with_suffix(".log").read_text()[-LOG_CHARACTERS:])
            time.sleep(0.05)
        service = Service(port_file.stem, process, json.loads(port_file.read_text()))
        known = [other.name for other in self.services]
        if service.name in known:
            self.services[known.index(service.name)] = service
        else:
            self.services.append(service)
        return service.address


def role_of(name):
    """prefill of prefill-3; the binary is called after it."""
    return name.partition("-")[0]


def shaped_model(model, changes, folder):
    """A folder of the model's tokenizer and of its configuration with other numbers (KEY=NUMBER,...), without
    weights: for workers with --random_weights or --simulate."""
    source = MODELS / model
    shaped = folder / "model"
    shaped.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                 "generation_config.json"):
        shutil.copy(source / name, shaped)
    config = json.loads((source / "config.json").read_text())
    for change in changes.split(","):
        key, number = change.split("=")
        config[key] = int(number)
    (shaped / "config.json").write_text(json.dumps(config))
    return shaped


def client_eval(stack, out, *flags):
    """Runs baton-client eval; returns (rows by case id, seconds)."""
    begin = time.monotonic()
    subprocess.run(
        [BINARIES / "baton-client", "eval", f"--router={stack.router}", f"--cases={CASES}",
         f"--out={out}", *flags],
        check=True, stdout=subprocess.DEVNULL)
    return read_rows(out), time.monotonic() - begin


def read_rows(path):
    with open(path, encoding="utf-8") as file:
        return {row["id"]: row for row in map(json.loads, file)}
