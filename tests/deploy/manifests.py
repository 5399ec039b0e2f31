"""The manifests of deploy/kubernetes: their files, what kustomize makes of them, and questions to both."""

import json
import pathlib
import re
import shutil
import subprocess
import unittest

import yaml

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
KUBERNETES = CHECKOUT / "deploy/kubernetes"
ARRANGEMENTS = [KUBERNETES / "base", *sorted((KUBERNETES / "overlays").iterdir())]
ADAPTER = KUBERNETES / "components/autoscaling/prometheus-adapter.yaml"
WORKLOADS = {"Deployment", "StatefulSet"}


def documents():
    """[(path, document)] of every YAML file."""
    return [(path, document) for path in sorted(KUBERNETES.rglob("*.yaml"))
            for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def flags_files():
    """{path: role or 'worker'} of every file of flags."""
    files = {path: path.parent.name for path in KUBERNETES.glob("base/*/flags")}
    files.update({path: path.stem for path in KUBERNETES.glob("overlays/*/*.flags")})
    return files


def read_flags(text):
    """{name: value} of a flag file."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.removeprefix("--").partition("=")[::2] for line in lines)


def renderer():
    """The command that renders a kustomization, or None; kubectl has labels and components from 1.22 on."""
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    if shutil.which("kubectl"):
        answer = subprocess.run(["kubectl", "version", "--client", "-o", "json"],
                                capture_output=True, text=True, check=False)
        try:
            version = json.loads(answer.stdout)["clientVersion"]
            numbers = int(version["major"]), int(re.match(r"\d+", version["minor"])[0])
        except (ValueError, KeyError, TypeError):
            return None
        return ["kubectl", "kustomize"] if numbers >= (1, 22) else None
    return None


def render(folder):
    """The objects of a kustomization; raises with what the renderer says."""
    answer = subprocess.run([*renderer(), str(folder)], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise RuntimeError(f"{folder}: {answer.stderr}")
    return [document for document in yaml.safe_load_all(answer.stdout) if document]


def seconds(text):
    """A duration of Abseil's flags, as 1m30s."""
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)([hms])", text))


def selects(selector, labels):
    """Whether a label selector takes `labels`."""
    selector = selector or {}
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for term in selector.get("matchExpressions", []):
        if term["operator"] != "In":
            raise ValueError(f"operator {term['operator']} is not looked at")
        if labels.get(term["key"]) not in term["values"]:
            return False
    return True


class Arrangement:
    """The objects of one rendered kustomization."""

    def __init__(self, objects):
        self.objects = objects

    def of(self, *kinds):
        return [item for item in self.objects if item["kind"] in kinds]

    def named(self, kind, name):
        return next((item for item in self.of(kind) if item["metadata"]["name"] == name), None)

    def workloads(self):
        return self.of(*WORKLOADS)

    def pods(self, selector):
        """The workloads whose pods a label selector takes."""
        return [item for item in self.workloads()
                if selects(selector, item["spec"]["template"]["metadata"]["labels"])]

    def flags(self, workload):
        """What a workload's process is told: the file of its ConfigMap, then its arguments."""
        pod = workload["spec"]["template"]["spec"]
        volume = next(item for item in pod["volumes"] if item["name"] == "flags")
        text = self.named("ConfigMap", volume["configMap"]["name"])["data"]["flags"]
        flags = read_flags(text)
        flags.update(read_flags("\n".join(pod["containers"][0]["args"])))
        return flags


def ports(workload):
    """{name: number} of a workload's container."""
    container = workload["spec"]["template"]["spec"]["containers"][0]
    return {port["name"]: port["containerPort"] for port in container["ports"]}


def adapter_rules():
    """({metric: its series} of pods, the same of external metrics) that prometheus-adapter makes."""
    rules = yaml.safe_load(ADAPTER.read_text(encoding="utf-8"))["rules"]

    def made(group):
        series = [re.match(r"baton_\w+", rule["seriesQuery"])[0] for rule in rules[group]]
        return {rule.get("name", {}).get("as", name): name
                for rule, name in zip(rules[group], series)}

    return made("custom"), made("external")


def run_part(tests):
    """Runs a class of tests; returns the status to end with, 77 where all of it is skipped."""
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(tests)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    # A class that is skipped as a whole counts as skipped once and as no test run.
    if result.wasSuccessful() and result.skipped and result.testsRun <= len(result.skipped):
        print(f"SKIPPED: {result.skipped[0][1]}")
        return 77
    return 0 if result.wasSuccessful() else 1
