#!/usr/bin/python3
"""deploy/monitoring: that its parts agree with each other and with docs/alerts.md, that every alert fires on what it
is for, and that running services export what dashboards, rules and docs/ name.

  tests/deploy/monitoring_test.py Files|Grafana|Rules|Live|Prometheus|Consoles

With BATON_UPDATE_GOLDENS=1 Live writes docs/metrics.md. Ends with 77 where what a part needs is not installed."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import unittest

import yaml

import browser
import manifests
import metrics_page
import monitoring
from monitoring import CHECKOUT, MONITORING

sys.path.insert(0, str(CHECKOUT / "tests/e2e"))
import stack  # pylint: disable=wrong-import-position

MODEL = "tiny-llama-needle"
PAGE = CHECKOUT / "docs/metrics.md"
RUNBOOK = "docs/alerts.md"
SCENARIOS = pathlib.Path(__file__).with_name("alerts.yaml")


def anchor(heading):
    """GitHub's, of a heading of one word."""
    return heading.strip().lower()


def overlap(one, other):
    """Whether two panels' places meet."""
    one, other = one["gridPos"], other["gridPos"]
    return (one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
            and one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"])


def differences(written, read, path=""):
    """Paths of what is in `written` and not the same in `read`, which may have more fields."""
    if isinstance(written, dict) and isinstance(read, dict):
        for key, value in written.items():
            yield from differences(value, read[key], f"{path}/{key}") if key in read else [f"{path}/{key}"]
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for number, (one, other) in enumerate(zip(written, read)):
            yield from differences(one, other, f"{path}/{number}")
    elif written != read:
        yield path


class Files(unittest.TestCase):
    def test_dashboards_are_what_the_generator_writes(self):
        generated = monitoring.generated_dashboards()
        self.assertEqual({path.name for path in generated}, set(monitoring.dashboards()))
        for path, text in generated.items():
            self.assertEqual(path.read_text(encoding="utf-8"), text, f"run {MONITORING}/dashboards/generate.py")

    def test_dashboards_can_be_read(self):
        for name, board in monitoring.dashboards().items():
            panels = board["panels"]
            titles = [panel["title"] for panel in panels if panel["type"] != "row"]
            self.assertEqual(len(titles), len(set(titles)), titles)
            for number, panel in enumerate(panels):
                with self.subTest(dashboard=name, panel=panel["title"]):
                    self.assertLessEqual(panel["gridPos"]["x"] + panel["gridPos"]["w"], 24)
                    self.assertFalse([other["title"] for other in panels[:number] if overlap(panel, other)])
                    if panel["type"] != "row":
                        self.assertTrue(panel["fieldConfig"]["defaults"]["unit"])
                        legends = [target["legendFormat"] for target in panel["targets"]]
                        self.assertEqual(len(legends), len(set(legends)))

    def test_dashboards_can_be_imported(self):
        """Grafana takes uids of 40 characters, asks for one name of a panel and of a query, and leaves variables that
        a dashboard does not have as they stand in its queries."""
        uids = [board["uid"] for board in monitoring.dashboards().values()]
        self.assertEqual(len(uids), len(set(uids)), uids)
        for name, board in monitoring.dashboards().items():
            with self.subTest(dashboard=name):
                self.assertRegex(board["uid"], r"^[a-z0-9_-]{1,40}$")
                self.assertNotIn("id", board)
                ids = [panel["id"] for panel in board["panels"]]
                self.assertEqual(ids, list(range(1, len(ids) + 1)))
                for panel in board["panels"]:
                    queries = [target["refId"] for target in panel.get("targets", [])]
                    self.assertEqual(len(queries), len(set(queries)), panel["title"])
                named = set(re.findall(r"\$\{?(\w+)", json.dumps(board))) - {"__all", "__rate_interval"}
                self.assertEqual(named, {variable["name"] for variable in board["templating"]["list"]})

    def test_dashboards_are_all_in_the_config_map_and_fit(self):
        kustomization = yaml.safe_load((MONITORING / "kustomization.yaml").read_text(encoding="utf-8"))
        [generator] = kustomization["configMapGenerator"]
        files = [MONITORING / file for file in generator["files"]]
        self.assertEqual({file.name for file in files}, set(monitoring.dashboards()))
        # `kubectl apply` keeps a copy of the object in an annotation, which may have 256 KiB.
        self.assertLess(len(json.dumps([file.read_text(encoding="utf-8") for file in files])), 224 << 10)

    def test_recorded_series_are_recorded_and_used(self):
        series = monitoring.recorded()
        queries = [*monitoring.rule_queries(), *monitoring.dashboard_queries()]
        named = {name for query in queries for name, _ in query.selectors if ":" in name}
        self.assertEqual(named, set(series))

    def test_no_query_joins_series_by_the_models_name(self):
        """A router and its workers may call it differently."""
        for query in [*monitoring.rule_queries(), *monitoring.dashboard_queries()]:
            with self.subTest(where=query.where):
                joined = re.findall(r"\bon\s*\(([^)]*)\)", query.text)
                self.assertFalse([labels for labels in joined if "model_name" in labels], query.text)

    def test_every_alert_says_what_is_wrong_and_where_to_read_on(self):
        for alert in monitoring.rules("alert"):
            with self.subTest(alert=alert["alert"]):
                self.assertIn(alert["labels"]["severity"], {"critical", "warning"})
                self.assertEqual(set(alert["annotations"]), {"summary", "description", "runbook_url"})
                self.assertEqual(alert["annotations"]["runbook_url"], f"{RUNBOOK}#{anchor(alert['alert'])}")

    def test_the_runbook_has_a_section_for_every_alert(self):
        text = (CHECKOUT / RUNBOOK).read_text(encoding="utf-8")
        headings = re.findall(r"^### (Baton\w+)$", text, re.M)
        self.assertEqual(sorted(headings), sorted(alert["alert"] for alert in monitoring.rules("alert")))

    def test_every_alert_is_tried_when_it_has_to_fire_and_when_not(self):
        tried = {}
        for scenario in yaml.safe_load(SCENARIOS.read_text(encoding="utf-8"))["tests"]:
            for case in scenario["alert_rule_test"]:
                tried.setdefault(case["alertname"], set()).add(bool(case["exp_alerts"]))
        self.assertEqual(tried, {alert["alert"]: {True, False} for alert in monitoring.rules("alert")})

    def test_the_pod_monitor_gives_the_job_that_rules_ask_for(self):
        [monitor] = [document for path, document in manifests.documents() if path.name == "pod-monitor.yaml"]
        job = monitor["spec"]["selector"]["matchLabels"][monitor["spec"]["jobLabel"]]
        [local] = yaml.safe_load((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
        self.assertEqual(local["job_name"], job)
        asked = {value for query in monitoring.rule_queries() for _, matchers in query.selectors
                 for label, _, value in matchers if label == "job"}
        self.assertEqual(asked, {job})

    def test_configure_refuses_targets_that_are_none(self):
        with tempfile.TemporaryDirectory() as folder:
            for target in ("router", "router=", "router=host", 'a"b=host:1', "router=host:port"):
                answer = subprocess.run([MONITORING / "configure", folder, target], capture_output=True, check=False)
                self.assertEqual(answer.returncode, 2, target)
                self.assertEqual(list(pathlib.Path(folder).iterdir()), [])


class Grafana(unittest.TestCase):
    """Against Grafana's own schema, in the version of the library that is installed (there is one for each from 10.1
    to 11.6): what it does not know or understands otherwise does not come back out of its types."""

    # Fields of the data source, which the library leaves to it.
    OF_PROMETHEUS = re.compile(r"/templating/list/\d+/definition|/annotations/list/\d+/(title|text)Format")

    def setUp(self):
        try:
            from grafana_foundation_sdk.cog import encoder, plugins  # pylint: disable=import-outside-toplevel
            from grafana_foundation_sdk.models import dashboard  # pylint: disable=import-outside-toplevel
        except ImportError:
            self.skipTest("PyPI's grafana-foundation-sdk is not installed")
        plugins.register_default_plugins()
        self.understood = lambda board: json.loads(
            json.dumps(dashboard.Dashboard.from_json(board), cls=encoder.JSONEncoder))

    def test_dashboards_are_understood_as_they_are_written(self):
        for name, board in monitoring.dashboards().items():
            lost = [path for path in differences(board, self.understood(board)) if not self.OF_PROMETHEUS.fullmatch(path)]
            self.assertEqual(lost, [], name)


class Rules(unittest.TestCase):
    def setUp(self):
        if not monitoring.Prometheus.installed():
            self.skipTest("promtool is not installed: deploy/local/install --monitoring")
        folder = tempfile.TemporaryDirectory(prefix="baton-rules-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def promtool(self, *arguments):
        answer = subprocess.run(["promtool", *arguments], cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)

    def test_configure_writes_what_prometheus_takes(self):
        monitoring.configure(self.folder, {"router": "127.0.0.1:1", "ns/prefill-0": "[::1]:2"})
        self.promtool("check", "config", "prometheus.yml")

    def test_alerts_fire_on_what_they_are_for(self):
        groups = monitoring.groups()
        # promtool compares every annotation, word for word; those that are the same for all samples are left out.
        for rule in (rule for group in groups for rule in group["rules"] if "alert" in rule):
            rule["annotations"] = {"summary": rule["annotations"]["summary"]}
        (self.folder / "baton-rules.yml").write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
        (self.folder / "alerts.yaml").write_text(SCENARIOS.read_text(encoding="utf-8"), encoding="utf-8")
        self.promtool("test", "rules", "alerts.yaml")


def ask(services, prompt, *flags):
    """The answer to a prompt, without sampling."""
    answer = subprocess.run(
        [stack.BINARIES / "baton-client", "generate", f"--router={services.router}", f"--prompt={prompt}",
         "--temperature=0", "--max_tokens=8", "--ignore_eos", *flags], check=True, capture_output=True, text=True)
    return answer.stdout.rstrip("\n")


def traffic(services):
    """Conversations whose second turn goes on from kept KV, and a request in another KV format. Several: an answer
    whose text does not give its tokens again is not gone on with."""
    prompt = "The grass is green." + " The sky is blue." * 30
    for talk in ("one", "two", "three"):
        begin = f"{prompt} This is talk {talk}."
        answer = ask(services, begin, f"--session={talk}")
        ask(services, f"{begin}{answer} And", f"--session={talk}")
    ask(services, prompt, "--kv=fp8")


@contextlib.contextmanager
def flowing_traffic(services):
    """Traffic again and again until the end."""
    ended = threading.Event()

    def flow():
        while not ended.is_set():
            traffic(services)

    with concurrent.futures.ThreadPoolExecutor() as executor:
        flowing = executor.submit(flow)
        try:
            yield
        finally:
            ended.set()
        flowing.result()


class Live(unittest.TestCase):
    """What the services export over gRPC and, in builds that have it, over UCX; vLLM's names included."""

    @classmethod
    def setUpClass(cls):
        cls.expositions = {"router": [], "prefill": [], "decode": []}
        cls.scrape([])
        try:
            cls.scrape(["--transports=ucx"])
            cls.ucx = True
        except RuntimeError as error:
            if "ucx" not in str(error):
                raise
            cls.ucx = False
        cls.series = [(name, labels | {"instance": role, "job": "baton", "namespace": ""})
                      for role, texts in cls.expositions.items() for text in texts
                      for name, labels in monitoring.read_samples(text)]
        cls.labels = {}
        for name, labels in cls.series:
            cls.labels.setdefault(name, set()).update(labels)
            cls.labels.setdefault(re.sub("_(bucket|sum|count)$", "", name), set()).update(labels)

    @classmethod
    def scrape(cls, flags):
        with stack.Stack(MODEL, [*flags, "--vllm_metrics"], router_flags=["--vllm_metrics"]) as services:
            traffic(services)
            for service in services.services:
                cls.expositions[service.name].append(service.exposition())

    def test_queries_name_series_and_labels_that_there_are(self):
        recorded = monitoring.recorded()
        checked = 0
        for query in [*monitoring.rule_queries(), *monitoring.dashboard_queries()]:
            labels = set(monitoring.FROM_PROMETHEUS)
            with self.subTest(where=query.where, query=query.text):
                if "_landing_" in query.text and not self.ucx:
                    self.skipTest("this build has no ucx")
                self.assertTrue(query.selectors)
                for name, matchers in query.selectors:
                    checked += 1
                    if name in monitoring.BUILT_IN:
                        continue
                    if name in recorded:
                        labels |= recorded[name]
                        self.assertLessEqual({label for label, _, _ in matchers}, labels)
                        continue
                    self.assertIn(name, self.labels)
                    labels |= self.labels[name]
                    self.assertTrue(any(series == name and monitoring.accepts(matchers, its)
                                        for series, its in self.series), f"nothing is {name} {matchers}")
                self.assertLessEqual(query.grouping | query.shown, labels)
        self.assertGreater(checked, 150)

    def test_docs_name_metrics_and_labels_that_there_are(self):
        derived = set(manifests.adapter_rules()[0])
        for path in [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]:
            text = path.read_text(encoding="utf-8")
            for name, labels in re.findall(r"`((?:baton_|vllm:)\w+)(?:\{([\w,]+)\})?`", text):
                with self.subTest(page=path.name, metric=name):
                    if name in derived or name.startswith("baton_kv_landing") and not self.ucx:
                        continue
                    self.assertIn(name, self.labels)
                    self.assertLessEqual({label for label in labels.split(",") if label}, self.labels[name])

    def test_the_page_of_metrics_is_what_services_export(self):
        if not self.ucx:
            self.skipTest("this build has no ucx, whose metrics the page has")
        text = metrics_page.page(self.expositions)
        for family in re.findall(r'"(baton_\w+)"', (CHECKOUT / "common/metrics/metric_families.h").read_text()):
            self.assertIn(f"| `{family}` |", text)
        if os.environ.get("BATON_UPDATE_GOLDENS"):
            PAGE.write_text(text, encoding="utf-8")
        self.maxDiff = None
        self.assertEqual(PAGE.read_text(encoding="utf-8"), text)


class Prometheus(unittest.TestCase):
    """A real one, which scrapes a running stack."""

    def setUp(self):
        if not monitoring.Prometheus.installed():
            self.skipTest("prometheus is not installed: deploy/local/install --monitoring")

    def test_it_answers_the_dashboards_and_tells_of_a_lost_worker(self):
        with stack.Stack(MODEL) as services:
            by_name = {service.name: service for service in services.services}
            with monitoring.Prometheus(
                    {name: service.metrics_address for name, service in by_name.items()}) as prometheus:
                self.assertTrue(monitoring.await_that(lambda: len(prometheus.query("up == 1")) == 3))
                traffic(services)
                self.check_dashboards(prometheus, services)
                wanted = {("BatonDown", "decode"), ("BatonUnavailable", ""), ("BatonResumesFail", "")}
                self.assertEqual(prometheus.firing() & wanted, set())
                self.lose_decode_in_the_middle_of_an_answer(services, by_name["decode"])
                self.assertTrue(monitoring.await_that(lambda: wanted <= prometheus.firing()), prometheus.firing())

    def lose_decode_in_the_middle_of_an_answer(self, services, decode):
        with subprocess.Popen([stack.BINARIES / "baton-client", "generate", f"--router={services.router}",
                               "--prompt=Green and", "--max_tokens=30000", "--ignore_eos"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as client:
            self.assertTrue(client.stdout.read(1))
            decode.process.kill()
            client.stdout.read()
        self.assertNotEqual(client.returncode, 0)

    def check_dashboards(self, prometheus, services):
        """Every query has an answer; those of rates need two scrapes with traffic between them."""
        waiting = list(monitoring.dashboard_queries(interval="30s"))
        # Of a transport that this stack does not use.
        waiting = [query for query in waiting if "_landing_" not in query.text]
        self.assertGreater(len(waiting), 100)

        def answered():
            ask(services, "Green and")
            waiting[:] = [query for query in waiting if not prometheus.query(query.text)]
            return not waiting

        monitoring.await_that(answered)
        self.assertEqual([(query.where, query.text) for query in waiting], [])


class Consoles(unittest.TestCase):
    """The dashboards as pages of Prometheus, in a headless Chromium."""

    # Of a transport that this stack does not use.
    EMPTY = {"Landing slots (ucx)", "Landing memory (ucx)"}

    def setUp(self):
        if not monitoring.Prometheus.installed():
            self.skipTest("prometheus is not installed: deploy/local/install --monitoring")
        if browser.CHROMIUM is None:
            self.skipTest("chromium is not installed")

    def test_every_panel_shows_data_of_a_running_stack(self):
        with stack.Stack(MODEL) as services:
            targets = {service.name: service.metrics_address for service in services.services}
            with monitoring.Prometheus(targets) as prometheus:
                self.assertTrue(monitoring.await_that(lambda: len(prometheus.query("up == 1")) == 3))
                # Rates are of traffic between scrapes, and quantiles are none when it is long over.
                with flowing_traffic(services):
                    for name in monitoring.dashboards():
                        with self.subTest(dashboard=name), browser.Browser() as page:
                            self.check(page, prometheus.url, name.removesuffix(".json"))

    def check(self, page, url, name):
        page.open(f"{url}/consoles/{name}.html")
        titles = [panel["title"] for panel in monitoring.dashboards()[f"{name}.json"]["panels"] if panel["type"] != "row"]
        empty = [title for title in titles if title in self.EMPTY]
        page.wait_for(f"document.querySelectorAll('section[data-state=data]').length === {len(titles) - len(empty)}")
        self.assertEqual(page.evaluate("[...document.querySelectorAll('section')].map(part => part.ariaLabel)"), titles)
        self.assertEqual(page.evaluate("[...document.querySelectorAll('section[data-state=none]')]"
                                       ".map(part => part.ariaLabel)"), empty)
        links = page.evaluate("[...document.querySelectorAll('nav a')].map(link => link.getAttribute('href'))")
        self.assertEqual(set(links), {other.replace(".json", ".html") for other in monitoring.dashboards()})
        self.assertNotIn("{{", page.evaluate("document.body.innerText"))
        self.assertEqual(page.complaints, [])
        if folder := os.environ.get("BATON_SCREENSHOTS"):
            page.screenshot(pathlib.Path(folder) / f"console-{name}.png")


if __name__ == "__main__":
    sys.exit(manifests.run_part(globals()[sys.argv[1]]))
