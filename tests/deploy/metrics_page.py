"""docs/metrics.md, from what running services answer to a scrape."""

import re

import monitoring

CODES = {"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
         "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
         "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}
CONSTANT = {"model_name", "role"}
OF_HISTOGRAMS = {"le", "quantile"}
# Their values depend on flags and requests, not on the program.
OPEN = {"format", "transport", "version", "block_size", "num_gpu_blocks"}
# By the first of these words in a name.
UNITS = {"seconds": "s", "bytes": "bytes", "tokens": "tokens", "pages": "pages", "slots": "slots",
         "requests": "requests", "sessions": "conversations", "turns": "turns", "entries": "entries", "leases": "leases",
         "workers": "workers", "spans": "spans",
         "info": "1", "ready": "0 or 1", "perc": "0 to 1", "scrapes": "scrapes", "latencies": "µs"}

HEAD = """\
# Metrics

Every service answers `GET /metrics` on `--metrics_listen` with Prometheus' text. All metrics carry the labels `model_name` and `role` (router, prefill, decode, or both);
no request, prompt or address is ever a label. Names end in their unit, in seconds and bytes; counters end in `_total`. A worker of `--role=both` exports what prefill and decode export.
What to do with them: [alerts](alerts.md), and the dashboards of `deploy/monitoring`.

Counters of faults are there from the start, at 0. `baton_kv_landing_*` are exported by workers with the transport `ucx` only, `baton_kv_retained_*` by role prefill. A stage that a role does not have is not exported, and histograms
of workers begin with their first request.

This page is written by `BATON_UPDATE_GOLDENS=1 tests/deploy/monitoring_test.py Live`, from the answers of running services, and a test compares the two.
"""
OURS = """
## Baton's

| metric | type | labels | unit | from | is |
|---|---|---|---|---|---|
"""
VALUES = """
## Values of labels

`format` is a KV format ([kv-formats.md](kv-formats.md)), `transport` is `grpc`, `ipc`, `ipc/device` (from GPU to GPU), `nccl` or what UCX selected (`ucx/tcp`, `ucx/rc_mlx5`, ...).

| metric | label | from | values |
|---|---|---|---|
"""
BUCKETS = """
## Buckets

Upper bounds in seconds; the rules' objectives have to be among them.

| histograms | bounds |
|---|---|
"""
ALIASES = """
## Names of vLLM

With `--vllm_metrics` the same values under the names that dashboards for vLLM and the Gateway API inference extension read (all of the latter's but that of LoRA adapters, which Baton has not). Histograms have the buckets
of ours; times of prefill and decode are the stages `prefill_forward` and `decode`.

| metric | type | labels | unit | from | is |
|---|---|---|---|---|---|
"""
SERVER = """
## Of the HTTP server

Of the server of `/metrics`, under the names of prometheus-cpp's, without the constant labels. Latencies are of scrapes.

| metric | type | labels | unit | from | is |
|---|---|---|---|---|---|
"""


class Family:
    """What the services export under one name."""

    def __init__(self, name, kind):
        self.name = name
        self.kind = kind
        self.help = ""
        self.roles = []
        self.values = {}  # {label: {role: values}}
        self.bounds = []

    def add(self, role, labels):
        if role not in self.roles:
            self.roles.append(role)
        for label, value in labels.items():
            self.values.setdefault(label, {}).setdefault(role, set()).add(value)
            if label == "le" and value not in self.bounds:
                self.bounds.append(value)

    def row(self):
        labels = ", ".join(f"`{label}`" for label in sorted(set(self.values) - CONSTANT - OF_HISTOGRAMS))
        unit = next((unit for word, unit in UNITS.items() if word in re.split("[_:]", self.name)), "events")
        return f"| `{self.name}` | {self.kind} | {labels} | {unit} | {', '.join(self.roles)} | {self.help} |\n"


def families(expositions):
    """[Family] by name, from {role: [texts of its /metrics]}."""
    found = {}
    for role, texts in expositions.items():
        for text in texts:
            for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M):
                found.setdefault(name, Family(name, kind))
            for name, words in re.findall(r"^# HELP (\S+) (.*)$", text, re.M):
                found[name].help = words
            for sample, labels in monitoring.read_samples(text):
                name = sample if sample in found else re.sub("_(bucket|sum|count)$", "", sample)
                found[name].add(role, labels)
    return [found[name] for name in sorted(found)]


def values_rows(family):
    """A row for each label with a fixed set of values; roles with the same values share it."""
    for label in sorted(set(family.values) - CONSTANT - OF_HISTOGRAMS - OPEN):
        rows = {}
        for role, values in family.values[label].items():
            text = ", ".join(f"`{value}`" for value in sorted(values))
            if CODES - {"OK"} <= values:
                text = "gRPC status codes" + ("" if "OK" in values else " but `OK`")
            rows.setdefault(text, []).append(role)
        for text, roles in rows.items():
            yield f"| `{family.name}` | `{label}` | {', '.join(roles)} | {text} |\n"


def bucket_rows(histograms):
    rows = {}
    for family in histograms:
        bounds = " ".join(bound for bound in family.bounds if bound != "+Inf")
        rows.setdefault(bounds, []).append(f"`{family.name}`")
    for bounds, names in rows.items():
        yield f"| {', '.join(names)} | {bounds} |\n"


def page(expositions):
    """The page's text, from {role: [texts of its /metrics]}."""
    every = families(expositions)
    ours = [family for family in every if family.name.startswith(("baton_", "process_"))]
    return "".join([
        HEAD, OURS, *(family.row() for family in ours),
        VALUES, *(row for family in ours for row in values_rows(family)),
        BUCKETS, *bucket_rows([family for family in ours if family.kind == "histogram"]),
        ALIASES, *(family.row() for family in every if family.name.startswith("vllm:")),
        SERVER, *(family.row() for family in every if family.name.startswith("exposer_")),
    ])
