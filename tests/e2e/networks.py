"""The three services in two network namespaces that are joined by a link of a given rate: prefill and router in one,
decode in the other. The link `data` carries nothing but prefill and decode; the router reaches decode by `control`.
Interfaces have jumbo frames and no segmentation offload: what they count is what a network card would send, with the
headers of Ethernet, IP and TCP."""

import json
import os
import subprocess
import sys
import time

import stack

SKIPPED = 77
PROMPT_TOKENS = 2000
# Addresses by link.
PREFILL = {"data": "10.77.0.1", "control": "10.78.0.1"}
DECODE = {"data": "10.77.0.2", "control": "10.78.0.2"}
TLS = stack.CHECKOUT / "tests/data/tls"


def run(*command, **how):
    return subprocess.run(command, check=True, text=True, capture_output=True, **how).stdout


class Networks:
    """Two namespaces, named for their workers."""

    def __init__(self):
        self.prefill = f"baton-prefill-{os.getpid()}"
        self.decode = f"baton-decode-{os.getpid()}"

    def __enter__(self):
        try:
            for name in (self.prefill, self.decode):
                run("ip", "netns", "add", name)
                run("ip", "-n", name, "link", "set", "lo", "up")
            for link in ("data", "control"):
                run("ip", "-n", self.prefill, "link", "add", link, "mtu", "9000", "gso_max_segs", "1",
                    "type", "veth", "peer", "name", link, "mtu", "9000", "gso_max_segs", "1", "netns", self.decode)
                for name, addresses in ((self.prefill, PREFILL), (self.decode, DECODE)):
                    run("ip", "-n", name, "address", "add", f"{addresses[link]}/24", "dev", link)
                    run("ip", "-n", name, "link", "set", link, "up")
            self._await_carriers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in (self.prefill, self.decode):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def cut(self, on):
        """The data link loses its carrier."""
        run("ip", "-n", self.decode, "link", "set", "data", "down" if on else "up")

    def swallow(self, on):
        """Frames to decode go to an address that nobody has: no error and no answer."""
        neighbour = ["ip", "-n", self.prefill, "neigh"]
        if on:
            run(*neighbour, "replace", DECODE["data"], "lladdr", "02:00:00:00:00:99", "dev", "data", "nud", "permanent")
        else:
            run(*neighbour, "del", DECODE["data"], "dev", "data")

    def _await_carriers(self):
        """The kernel tells of a link that is up within a second or two; UCX takes no other."""
        deadline = time.monotonic() + 10
        while any("LOWER_UP" not in self._link(name, link)["flags"]
                  for name in (self.prefill, self.decode) for link in ("data", "control")):
            if time.monotonic() > deadline:
                raise RuntimeError("the links between the namespaces do not come up")
            time.sleep(0.05)

    @staticmethod
    def _link(name, link):
        return json.loads(run("ip", "-n", name, "-s", "-j", "link", "show", "dev", link))[0]

    def limit(self, rate):
        """The data link passes `rate` in either direction from now on."""
        for name in (self.prefill, self.decode):
            run("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", "data", "root",
                "tbf", "rate", rate, "burst", "256kb", "latency", "100ms")

    def sent_bytes(self):
        """What prefill has put on the data link."""
        return self._link(self.prefill, "data")["stats64"]["tx"]["bytes"]


class Services(stack.Stack):
    """The three services: prefill and router in one namespace, decode in the other."""

    def __init__(self, networks, model, transport):
        tls = transport.endswith("+tls")
        flags = [f"--tls_{what}={TLS / file}" for what, file in
                 (("cert", "worker.pem"), ("key", "worker.key"), ("ca", "ca.pem"))] if tls else []
        super().__init__(model, tls_flags=flags + (["--tls_server_name=localhost"] if tls else []))
        self._networks = networks
        self._transport = transport.removesuffix("+tls")

    def _start_workers(self):
        common = ["--threads=1", f"--transports={self._transport}"]
        ucx = [f"--ucx_listen={DECODE['data']}:7001", "--ucx_allowed_peers=10.77.0.0/24"]
        flags_of = {
            "prefill": [*common, "--listen=127.0.0.1:7000"],
            "decode": [*common, "--listen=0.0.0.0:7000", f"--advertise={DECODE['data']}:7000",
                       *(ucx if self._transport == "ucx" else [])]}
        for started in [self._start(name, flags) for name, flags in flags_of.items()]:
            self._await(started)
        return ["--prefill=127.0.0.1:7000", f"--decode={DECODE['control']}:7000"]

    def _before(self, name):
        namespace = self._networks.decode if name == "decode" else self._networks.prefill
        return ["ip", "netns", "exec", namespace, "env", "UCX_TLS=tcp", "UCX_NET_DEVICES=data",
                "UCX_TCP_CM_REUSEADDR=y"]

    def load(self, kv, requests, *flags):
        """As requests_of, with prompts of PROMPT_TOKENS."""
        return self.requests_of(kv, requests, PROMPT_TOKENS, *flags)

    def metrics(self, name):
        """{sample with labels: value} of a worker's /metrics."""
        address = self.service(name).metrics_address
        text = run(*self._before(name), sys.executable, "-c",
                   "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=10).read().decode())",
                   f"http://{address}/metrics")
        return stack.samples_of(text)

    def signal(self, name, number):
        """Sends a signal to a worker's process; `ip netns exec` and `env` have become it."""
        self.service(name).process.send_signal(number)

    def ended(self, name):
        """Whether a worker's process is gone."""
        return self.service(name).process.poll() is not None


def permitted():
    """Whether namespaces and rates can be made here; says why not."""
    try:
        with Networks() as networks:
            networks.limit("1gbit")
        return True
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        print(f"SKIPPED: no network namespaces or no tc here: {error}", file=sys.stderr)
        return False
