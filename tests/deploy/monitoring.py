"""deploy/monitoring: its rules and dashboards as queries, what live services export, and a Prometheus to ask."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
MONITORING = CHECKOUT / "deploy/monitoring"
RULES = MONITORING / "prometheus-rule.yaml"
# Labels that Prometheus adds to what it scrapes, or keeps of alerts.
FROM_PROMETHEUS = {"instance", "job", "namespace", "alertname"}
BUILT_IN = {"up", "ALERTS"}
START_SECONDS = 60

sys.path.insert(0, str(MONITORING / "dashboards"))
import generate  # pylint: disable=wrong-import-position

_SELECTOR = re.compile(r"(?<![\w:])(baton[\w:]+|process_\w+|up|ALERTS)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


class Query:
    """An expression of PromQL, what it asks for, and the labels that its legend or its texts show."""

    def __init__(self, where, text, shown=()):
        self.where = where
        self.text = text
        self.selectors = [(name, _MATCHER.findall(matchers)) for name, matchers in _SELECTOR.findall(text)]
        self.grouping = {label.strip() for group in _GROUPING.findall(text) for label in group.split(",")}
        self.shown = set(shown)


def groups():
    return yaml.safe_load(RULES.read_text(encoding="utf-8"))["spec"]["groups"]


def rules(kind):
    """The rules that have `kind`: record or alert."""
    return [rule for group in groups() for rule in group["rules"] if kind in rule]


def recorded():
    """{series: its labels} of what the rules record."""
    series = {}
    for rule in rules("record"):
        query = Query(rule["record"], rule["expr"])
        labels = set(query.grouping) | set(rule.get("labels", {}))
        for name, _ in query.selectors:
            labels |= series.get(name, set())
        series.setdefault(rule["record"], set()).update(labels)
    return series


def rule_queries():
    for rule in rules("record"):
        yield Query(rule["record"], rule["expr"])
    for rule in rules("alert"):
        texts = " ".join(rule["annotations"].values())
        yield Query(rule["alert"], rule["expr"], re.findall(r"\$labels\.(\w+)", texts))


def dashboards():
    """{name: dashboard} as committed."""
    return {path.name: json.loads(path.read_text(encoding="utf-8"))
            for path in sorted((MONITORING / "dashboards").glob("*.json"))}


def dashboard_queries(interval="1m"):
    """Of every panel and variable, with everything chosen that can be chosen."""
    for name, board in dashboards().items():
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                text = re.sub(r"\$(namespace|model|instance)", ".*", target["expr"])
                yield Query(f"{name}: {panel['title']}", text.replace("$__rate_interval", interval),
                            re.findall(r"{{(\w+)}}", target["legendFormat"]))
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                text, _, label = variable["definition"].removeprefix("label_values(").rpartition(",")
                yield Query(f"{name}: {variable['label']}", re.sub(r"\$\w+", ".*", text), [label.strip(" )")])


def generated_dashboards():
    """{path: text} that the generator would write."""
    return generate.texts()


def read_samples(exposition):
    """[(series, {label: value})] of the text of a /metrics."""
    lines = [line for line in exposition.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0].partition("{")[0],
             dict(re.findall(r'(\w+)="([^"]*)"', line.partition("{")[2]))) for line in lines]


def accepts(matchers, labels):
    """Whether the matchers of a selector take a series with `labels`."""
    for name, operator, value in matchers:
        actual = labels.get(name, "")
        equal = re.fullmatch(value, actual) is not None if operator.endswith("~") else value == actual
        if equal == operator.startswith("!"):
            return False
    return True


class Prometheus:
    """with Prometheus(targets) as prometheus: a Debian one, on a free port, told by deploy/monitoring/configure
    of `targets` ({name: host:port}). Scrapes every second and lets alerts fire without delay."""

    def __init__(self, targets):
        self._targets = targets
        self._folder = tempfile.TemporaryDirectory(prefix="baton-prometheus-")
        self._process = None
        self.url = None  # http://host:port

    @staticmethod
    def installed():
        return shutil.which("prometheus") is not None and shutil.which("promtool") is not None

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=START_SECONDS)
        self._folder.cleanup()

    def ask(self, what, **parameters):
        """The data of an answer of its API, as ask("query", query="up")."""
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as response:
            return json.load(response)["data"]

    def query(self, text):
        """[(labels, value)] of an instant query; raises with what is wrong with it."""
        try:
            return [(item["metric"], float(item["value"][1]))
                    for item in self.ask("query", query=text)["result"]]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{text}: {error.read().decode()}") from error

    def firing(self):
        """{(alert, instance or empty)} of what fires."""
        return {(alert["labels"]["alertname"], alert["labels"].get("instance", ""))
                for alert in self.ask("alerts")["alerts"] if alert["state"] == "firing"}

    def _start(self):
        folder = pathlib.Path(self._folder.name)
        configure(folder, self._targets)
        change(folder / "prometheus.yml", r"_interval: 15s", "_interval: 1s")
        change(folder / "baton-rules.yml", r"\bfor: \w+", "for: 0s")
        log = folder / "log"
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                 f"--web.console.templates={folder}/consoles", "--web.listen-address=127.0.0.1:0"],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        deadline = time.monotonic() + START_SECONDS
        while self.url is None:
            found = re.search(r'"Listening on" address=(\S+)', log.read_text())
            self.url = f"http://{found[1]}" if found else None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text())
            time.sleep(0.05)


def configure(folder, targets):
    """What deploy/monitoring/configure writes for {name: host:port}."""
    subprocess.run([MONITORING / "configure", folder, *(f"{name}={address}" for name, address in targets.items())],
                   check=True)


def change(path, pattern, replacement):
    """Replaces in a file; what it replaces has to be there."""
    text, count = re.subn(pattern, replacement, path.read_text(encoding="utf-8"))
    if count == 0:
        raise ValueError(f"{path} has no {pattern}")
    path.write_text(text, encoding="utf-8")


def await_that(condition, seconds=120):
    """Calls `condition` until it is true; its last value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return value
