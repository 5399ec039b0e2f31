"""What has to hold of running services before, during and after a load (soak, churn). Rows are printed as JSON."""

import json
import time

import stack

# Every KV format that every device has.
POLICIES = ("dense;fp8;diffkv;diffkv:al=0,every=16;shadowkv;"
            "shadowkv:rank=64,chunk=1,sel=q2,budget=0.03125,outliers=0,local=32")
# Longest time from the end of the load to idle services: a lease's life and some.
IDLE_SECONDS = 30
# Memory may grow by so much of itself, or so many MiB, from the first minute to the last.
GROWTH_SHARE = 0.05
GROWTH_MIB = 32
PROBES_OF_LENGTH = {"512": 3, "2048": 1}
# Gauges that tell whom a service has met, or when it began, and not what it holds.
FACTS = ("process_start_time_seconds", "baton_kv_transport_info{", "baton_kv_landing_bytes{")
POOLS = ("baton_kv_pages{", "baton_kv_format_pool_bytes{")
BEGIN = time.monotonic()


def print_row(bench, **fields):
    at_seconds = round(time.monotonic() - BEGIN, 1)
    print(json.dumps({"bench": bench, "at_seconds": at_seconds} | fields), flush=True)


class Checks:
    """The checks on a running stack, which is idle when this is made. Borrows it and the folder."""

    def __init__(self, bench, services, policies, folder):
        self._bench = bench
        self._stack = services
        self._policies = policies
        self._folder = folder
        self._subset = probe_cases(folder)
        self._tokens = {}
        self._idle = gauges_of(services)
        if not all(any(sample.startswith(pool) for sample in gauges) for name, gauges in self._idle.items()
                   if name != "router" for pool in POOLS):
            raise RuntimeError("a worker tells nothing of its pools")
        self.errors = []

    def row(self, **fields):
        print_row(self._bench, **fields)

    def probe(self, moment):
        """Greedy answers, one at a time; they have to be those of the first moment."""
        different = []
        for policy in self._policies:
            out = self._folder / f"{moment}.jsonl"
            rows, _ = stack.client_eval(self._stack, out, f"--subset={self._subset}",
                                        f"--kv={policy}")
            out.unlink()
            tokens = {case: row["token_ids"] for case, row in rows.items()}
            want = self._tokens.setdefault(policy, tokens)
            different += [f"{policy} {case}" for case in want if tokens.get(case) != want[case]]
        self.row(check="same tokens", moment=moment, policies=len(self._policies),
                 cases=len(self._policies) * sum(PROBES_OF_LENGTH.values()), different=different)
        self.errors += [f"other tokens at the {moment}: {case}" for case in different]

    def await_idle(self, moment):
        """Every gauge of every service has to be again what it was before the load."""
        waited, held = await_idle(self._stack, self._idle)
        gauges = sum(map(len, self._idle.values()))
        self.row(check="idle", moment=moment, seconds=round(waited, 1), gauges=gauges, held=held)
        self.errors += [f"{name} holds {what} at the {moment}" for name, what in held.items()]

    def check_memory(self, watch, window_seconds):
        for name, windows in watch.growth(window_seconds):
            first, last = windows[1], windows[-1]
            flat = last - first <= max(GROWTH_MIB, GROWTH_SHARE * first)
            self.row(check="memory", of=name, first_mib=round(first, 1), last_mib=round(last, 1),
                     windows_mib=[round(mib) for mib in windows], window_seconds=window_seconds, flat=flat)
            if not flat:
                self.errors.append(f"memory of {name} grew from {first:.0f} to {last:.0f} MiB")

    def check_counters(self):
        for service in self._stack.services:
            failures = sum(service.metrics()["baton_kv_chunk_checksum_failures_total"].values())
            if failures:
                self.errors.append(f"{service.name}: {failures:.0f} checksum failures")

    def report(self, requests):
        """Rows of what became of a load's requests."""
        self.row(check="requests", **requests.outcomes)
        self.row(check="whole answers", **requests.whole)
        self.errors += requests.errors
        self.errors += [f"{policy}: no whole answer" for policy in self._policies if not requests.whole[policy]]

    def conclude(self, seed):
        """Prints what did not hold; returns the status for the shell."""
        for error in self.errors:
            print("DID NOT HOLD", error)
        self.row(check="all", held=not self.errors, errors=len(self.errors), seed=seed)
        return 1 if self.errors else 0


def gauges_of(services):
    """{service: {gauge: value}} of a running stack's gauges that tell what is held."""
    return {service.name: {sample: value for sample, value in service.gauges().items() if not sample.startswith(FACTS)}
            for service in services.services}


def drift(idle, now):
    """{gauge: (idle, now)} of those that differ."""
    return {gauge: (idle.get(gauge, 0), now.get(gauge, 0)) for gauge in idle | now
            if idle.get(gauge, 0) != now.get(gauge, 0)}


def await_idle(services, idle):
    """(seconds, {service: drift}): how long it took until all gauges were those of when the stack was idle, and which
    still are others when nobody waits any longer."""
    begin = time.monotonic()
    while True:
        held = {name: drift(idle[name], now) for name, now in gauges_of(services).items()}
        waited = time.monotonic() - begin
        if not any(held.values()) or waited > IDLE_SECONDS:
            return waited, {name: what for name, what in held.items() if what}
        time.sleep(0.1)


def probe_cases(folder):
    """A subset file of a few short cases."""
    left = dict(PROBES_OF_LENGTH)
    chosen = []
    for case in (stack.CHECKOUT / "tests/e2e/subset_120.txt").read_text().split():
        length = case.split("-")[2] if case.count("-") == 3 else ""
        if left.get(length, 0) > 0:
            left[length] -= 1
            chosen.append(case)
    subset = folder / "probes"
    subset.write_text("\n".join(chosen) + "\n")
    return subset


def add_load_options(parser):
    """Flags of the load that soak and churn share."""
    parser.add_argument("--model", default=stack.SHIPPED[0])
    parser.add_argument("--kv", default="", help="KV policies; default: of the device")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of each worker")
    parser.add_argument("--clients", type=int, default=8, help="requests at once")
    parser.add_argument("--words", type=int, default=1500, help="of the longest prompt")
    parser.add_argument("--tokens", type=int, default=200, help="of the longest answer")
    parser.add_argument("--patience", type=float, default=2.0,
                        help="seconds in which clients give up")
    parser.add_argument("--pool-mib", type=int, default=64,
                        help="of dense pages; half as much for each other format")
    parser.add_argument("--seed", type=int, default=20240917)
    parser.add_argument("--worker-flags", default="", help="more flags of the workers")


def pool_flags(options):
    """Flags of workers with the pools that --pool-mib and --worker-flags ask for."""
    return [f"--threads={options.threads}", f"--kv_pool_mib={options.pool_mib}",
            *(f"--{name}_pool_mib={options.pool_mib // 2}" for name in ("fp8", "diffkv", "shadowkv")),
            *options.worker_flags.split()]
