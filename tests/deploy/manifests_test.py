#!/usr/bin/python3
"""deploy/kubernetes: that it parses, is what Kubernetes' API takes, hangs together, and asks of the binaries only what they have.

  tests/deploy/manifests_test.py Files|Schemas|Rendered|Binaries

Ends with 77 where what a part needs is not installed."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import manifests
from manifests import ARRANGEMENTS, CHECKOUT, KUBERNETES, Arrangement

sys.path.insert(0, str(CHECKOUT / "tests/e2e"))
import stack  # pylint: disable=wrong-import-position

MODEL = "tiny-llama-needle"
LOAD_TEST = KUBERNETES / "load-test"
# Made by the operator, not by the manifests; docs/kubernetes.md has to tell of them.
FROM_THE_OPERATOR = {"baton-model", "router-tls", "worker-tls"}
# What a process may take beyond --drain_timeout to end, seconds.
SHUTDOWN_SECONDS = 10
# Of custom resources there is no schema in Kubernetes itself.
CORE_GROUPS = ("v1", "apps/", "batch/", "autoscaling/", "policy/", "networking.k8s.io/")


class Files(unittest.TestCase):
    def test_every_file_parses_and_says_what_it_is(self):
        documents = manifests.documents()
        self.assertGreater(len(documents), 30)
        for path, document in documents:
            with self.subTest(path=path):
                if path == manifests.ADAPTER:
                    self.assertIn("rules", document)
                elif isinstance(document, list):
                    for operation in document:
                        self.assertIn(operation["op"], {"add", "remove", "replace"})
                        self.assertTrue(operation["path"].startswith("/"))
                else:
                    self.assertTrue(document["apiVersion"] and document["kind"])

    def test_kustomizations_name_files_that_exist_and_no_deprecated_field(self):
        current = {"apiVersion", "kind", "namespace", "labels", "resources", "components", "patches",
                   "images", "configMapGenerator"}
        for path, document in manifests.documents():
            if path.name != "kustomization.yaml":
                continue
            with self.subTest(path=path):
                self.assertLessEqual(set(document), current)
                named = document.get("resources", []) + document.get("components", [])
                named += [patch["path"] for patch in document.get("patches", []) if "path" in patch]
                named += [file.partition("=")[2] or file
                          for generator in document.get("configMapGenerator", [])
                          for file in generator["files"]]
                for name in named:
                    self.assertTrue((path.parent / name).exists(), name)

    def test_every_file_is_used(self):
        used = {KUBERNETES / "components/autoscaling/prometheus-adapter.yaml"}
        for path, document in manifests.documents():
            if path.name == "kustomization.yaml":
                used.add(path)
                used.update((path.parent / name).resolve() for name in document.get("resources", []))
                used.update(path.parent / patch["path"] for patch in document.get("patches", [])
                            if "path" in patch)
                used.update(path.parent / (file.partition("=")[2] or file)
                            for generator in document.get("configMapGenerator", [])
                            for file in generator["files"])
        files = {path for path in KUBERNETES.rglob("*") if path.is_file()}
        self.assertEqual(files - used, set())

    def test_images_are_targets_of_the_dockerfile(self):
        text = (CHECKOUT / "docker/Dockerfile").read_text(encoding="utf-8")
        targets = {f"baton/{name}" for name in re.findall(r"^FROM \S+ AS (\S+)", text, re.M)}
        yaml_text = "".join(path.read_text(encoding="utf-8") for path in KUBERNETES.rglob("*.yaml"))
        images = set(re.findall(r"(?:image|newName|- name): (baton/\S+)", yaml_text))
        self.assertEqual(images, {"baton/router", "baton/worker-cpu", "baton/worker-cuda", "baton/tools"})
        self.assertLessEqual(images, targets)

    def test_commands_that_build_images_give_them_the_tag_of_the_manifests(self):
        made = {}
        for name in ("docker/Dockerfile", "docs/kubernetes.md"):
            text = (CHECKOUT / name).read_text(encoding="utf-8")
            made[name] = re.findall(r"docker build .*--target (\S+) +-t (\S+)", text)
            self.assertTrue(made[name], name)
            for target, image in made[name]:
                with self.subTest(file=name, target=target):
                    self.assertEqual(image.removeprefix("REGISTRY/"), f"baton/{target}:{base_tag()}")
        self.assertEqual({target for target, _ in made["docker/Dockerfile"]},
                         {"router", "worker-cpu", "worker-cuda", "tools"})

    def test_containers_run_what_their_image_holds(self):
        text = (CHECKOUT / "docker/Dockerfile").read_text(encoding="utf-8")
        held = {image: set(binaries.split())
                for image, binaries in re.findall(r"/images/(\w+) (baton-[a-z -]+)", text)}
        for path, document in manifests.documents():
            if isinstance(document, dict) and document.get("kind") in manifests.WORKLOADS:
                if "base" not in path.parts:
                    continue
                pod = document["spec"]["template"]["spec"]
                for container in pod["initContainers"] + pod["containers"]:
                    image = container["image"].removeprefix("baton/").removesuffix("-cpu")
                    self.assertIn(container["command"][0], held[image])

    def test_metrics_are_families_of_the_registry(self):
        families = exported_families()
        named = set()
        for path in KUBERNETES.rglob("*.yaml"):
            text = path.read_text(encoding="utf-8")
            named.update(re.findall(r"\bbaton_[a-z_]+", text))
        derived = set(manifests.adapter_rules()[0]) - families
        self.assertEqual(derived, {"baton_kv_pages_used_ratio"})
        self.assertEqual(named - families - derived, set())

    def test_metrics_of_autoscalers_are_rules_of_the_adapter(self):
        pods, external = manifests.adapter_rules()
        for path, document in manifests.documents():
            if not isinstance(document, dict) or document.get("kind") != "HorizontalPodAutoscaler":
                continue
            for metric in document["spec"]["metrics"]:
                with self.subTest(path=path, metric=metric):
                    if metric["type"] == "Pods":
                        self.assertIn(metric["pods"]["metric"]["name"], pods)
                    elif metric["type"] == "External":
                        self.assertIn(metric["external"]["metric"]["name"], external)
                    else:
                        self.assertEqual(metric["type"], "ContainerResource")


class Schemas(unittest.TestCase):
    def setUp(self):
        try:
            import kubernetes_validate  # pylint: disable=import-outside-toplevel
        except ImportError:
            self.skipTest("PyPI's kubernetes-validate is not installed")
        self.validate = kubernetes_validate.validate
        self.version = kubernetes_validate.latest_version()

    def check(self, objects, least):
        core = [item for item in objects if item["apiVersion"].startswith(CORE_GROUPS)]
        self.assertGreaterEqual(len(core), least)
        for item in core:
            with self.subTest(kind=item["kind"], name=item["metadata"]["name"]):
                self.validate(item, self.version, strict=True)

    def test_base_and_components_are_objects_of_the_api(self):
        self.check([document for path, document in manifests.documents()
                    if "overlays" not in path.parts and isinstance(document, dict)
                    and path != manifests.ADAPTER], 15)

    def test_rendered_arrangements_are_objects_of_the_api(self):
        if manifests.renderer() is None:
            self.skipTest("neither kustomize nor kubectl 1.22 is installed")
        for folder in ARRANGEMENTS:
            self.check(manifests.render(folder), 10)
        self.check(manifests.render(LOAD_TEST), 4)


class Rendered(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if manifests.renderer() is None:
            raise unittest.SkipTest("neither kustomize nor kubectl 1.22 is installed")
        cls.arrangements = {folder.name: Arrangement(manifests.render(folder)) for folder in ARRANGEMENTS}

    def each(self):
        for name, arrangement in self.arrangements.items():
            with self.subTest(arrangement=name):
                yield arrangement

    def each_workload(self):
        for arrangement in self.each():
            for workload in arrangement.workloads():
                with self.subTest(workload=workload["metadata"]["name"]):
                    yield arrangement, workload

    def test_an_arrangement_has_its_roles(self):
        roles = {name: {item["metadata"]["name"] for item in arrangement.workloads()}
                 for name, arrangement in self.arrangements.items()}
        both = {"router", "prefill", "decode"}
        self.assertEqual(roles, {"base": both, "cpu-dev": both, "multi-node": both,
                                 "gpu": {"router", "decode"}})
        for name, arrangement in self.arrangements.items():
            flags = arrangement.flags(arrangement.named("StatefulSet", "decode"))
            self.assertEqual(flags.get("role", "decode"), "both" if name == "gpu" else "decode")

    def test_every_object_is_in_the_namespace(self):
        for arrangement in self.each():
            for item in arrangement.objects:
                if item["kind"] != "Namespace":
                    self.assertEqual(item["metadata"]["namespace"], "baton")

    def test_every_image_has_the_tag_of_the_base(self):
        for name, objects in [*((name, arrangement.objects) for name, arrangement in self.arrangements.items()),
                              ("load-test", manifests.render(LOAD_TEST))]:
            with self.subTest(arrangement=name):
                self.assertEqual({image.partition(":")[2] for image in images_of(objects)}, {base_tag()})

    def test_docs_load_the_images_of_the_small_cluster_into_kind(self):
        page = (CHECKOUT / "docs/kubernetes.md").read_text(encoding="utf-8")
        [loaded] = re.findall(r"^kind load docker-image (.*?) *(?:#.*)?$", page, re.M)
        self.assertEqual(set(loaded.split()), images_of(self.arrangements["cpu-dev"].objects))

    def test_what_pods_mount_exists(self):
        for arrangement, workload in self.each_workload():
            pod = workload["spec"]["template"]["spec"]
            for volume in pod["volumes"]:
                if "configMap" in volume:
                    self.assertIsNotNone(arrangement.named("ConfigMap", volume["configMap"]["name"]))
                elif "secret" in volume:
                    self.assertIn(volume["secret"]["secretName"], FROM_THE_OPERATOR)
                elif "persistentVolumeClaim" in volume:
                    self.assertIn(volume["persistentVolumeClaim"]["claimName"], FROM_THE_OPERATOR)
                else:
                    self.assertIn("emptyDir", volume)
            volumes = {volume["name"] for volume in pod["volumes"]}
            for container in pod["initContainers"] + pod["containers"]:
                mounts = {mount["name"] for mount in container["volumeMounts"]}
                self.assertLessEqual(mounts, volumes)

    def test_no_config_map_is_left_over(self):
        for arrangement in self.each():
            used = {volume["configMap"]["name"] for workload in arrangement.workloads()
                    for volume in workload["spec"]["template"]["spec"]["volumes"] if "configMap" in volume}
            for item in arrangement.of("ConfigMap"):
                labels = item["metadata"].get("labels", {})
                self.assertTrue(item["metadata"]["name"] in used or "grafana_dashboard" in labels, item["metadata"])

    def test_what_the_operator_makes_is_documented(self):
        page = (CHECKOUT / "docs/kubernetes.md").read_text(encoding="utf-8")
        for name in FROM_THE_OPERATOR:
            self.assertIn(f"`{name}`", page)

    def test_processes_listen_where_ports_and_probes_say(self):
        for arrangement, workload in self.each_workload():
            flags, ports = arrangement.flags(workload), manifests.ports(workload)
            self.assertEqual(flags["listen"], f"0.0.0.0:{ports['grpc']}")
            self.assertEqual(flags["metrics_listen"], f"0.0.0.0:{ports['metrics']}")
            if workload["metadata"]["name"] != "router":
                self.assertEqual(flags["advertise"], f"$(POD_IP):{ports['grpc']}")
            container = workload["spec"]["template"]["spec"]["containers"][0]
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if "grpc" in container[probe]:
                    self.assertEqual(container[probe]["grpc"]["port"], ports["grpc"])
                else:
                    command = container[probe]["exec"]["command"]
                    self.assertIn(f"--router=127.0.0.1:{ports['grpc']}", command)

    def test_services_lead_to_ports_of_pods(self):
        for arrangement in self.each():
            for service in arrangement.of("Service"):
                pods = arrangement.pods({"matchLabels": service["spec"]["selector"]})
                self.assertEqual([pod["metadata"]["name"] for pod in pods], [service["metadata"]["name"]])
                for port in service["spec"]["ports"]:
                    self.assertIn(port["targetPort"], manifests.ports(pods[0]))

    def test_the_router_discovers_the_workers_that_there_are(self):
        for arrangement in self.each():
            flags = arrangement.flags(arrangement.named("Deployment", "router"))
            found = set()
            for name in ("prefill", "decode"):
                if name not in flags:
                    continue
                service, port = re.fullmatch(r"dns:///([a-z]+):(\d+)", flags[name]).groups()
                self.assertEqual(service, name)
                target = arrangement.named("Service", service)["spec"]
                # The name's addresses are the pods': the port is theirs.
                self.assertEqual(target["clusterIP"], "None")
                [pods] = arrangement.pods({"matchLabels": target["selector"]})
                self.assertEqual(int(port), manifests.ports(pods)["grpc"])
                found.add(name)
            self.assertEqual(found | {"router"}, {item["metadata"]["name"] for item in arrangement.workloads()})

    def test_selectors_of_the_rest_take_pods_and_their_ports(self):
        for arrangement in self.each():
            for item in arrangement.of("PodDisruptionBudget", "PodMonitor"):
                pods = arrangement.pods(item["spec"]["selector"])
                self.assertTrue(pods, item["metadata"]["name"])
                for endpoint in item["spec"].get("podMetricsEndpoints", []):
                    self.assertTrue(all(endpoint["port"] in manifests.ports(pod) for pod in pods))
            for policy in arrangement.of("NetworkPolicy"):
                subject = arrangement.pods(policy["spec"]["podSelector"])
                self.assertTrue(subject, policy["metadata"]["name"])
                for rule in policy["spec"].get("ingress", []):
                    self.check_ports(rule, subject)
                for rule in policy["spec"].get("egress", []):
                    peers = [pod for peer in rule["to"] if "namespaceSelector" not in peer
                             for pod in arrangement.pods(peer["podSelector"])]
                    self.check_ports(rule, peers)
            for scaler in arrangement.of("HorizontalPodAutoscaler"):
                target = scaler["spec"]["scaleTargetRef"]
                workload = arrangement.named(target["kind"], target["name"])
                self.assertNotIn("replicas", workload["spec"])
                self.assertEqual(workload["apiVersion"], target["apiVersion"])

    def check_ports(self, rule, pods):
        for port in rule["ports"]:
            if isinstance(port["port"], str):
                self.assertTrue(pods and all(port["port"] in manifests.ports(pod) for pod in pods))

    def test_pods_that_call_each_other_are_let_through(self):
        calls = {"router": {"prefill", "decode"}, "prefill": {"decode"}, "decode": set()}
        for arrangement in self.each():
            for caller in arrangement.workloads():
                for callee in arrangement.workloads():
                    names = caller["metadata"]["name"], callee["metadata"]["name"]
                    with self.subTest(calls=names):
                        wanted = names[1] in calls[names[0]]
                        self.assertEqual(allowed(arrangement, caller, callee, "egress"), wanted)
                        self.assertEqual(allowed(arrangement, caller, callee, "ingress"), wanted)

    def test_the_load_test_may_reach_what_it_calls(self):
        job, base = Arrangement(manifests.render(LOAD_TEST)), self.arrangements["base"]
        [pod] = [item["spec"]["template"] for item in job.of("Job")]
        labels = pod["metadata"]["labels"]
        service = base.named("Service", "router")["spec"]["ports"]
        arguments = " ".join(argument for container in pod["spec"]["initContainers"] + pod["spec"]["containers"]
                             for argument in container["args"])
        called = {int(port) for port in re.findall(r"router:(\d+)", arguments)}
        self.assertEqual(called, {port["port"] for port in service})
        router = base.named("Deployment", "router")["spec"]["template"]["metadata"]["labels"]
        names = {port["targetPort"] for port in service}
        policies = base.of("NetworkPolicy") + job.of("NetworkPolicy")
        for subject, other, direction, peers in ((labels, router, "egress", "to"), (router, labels, "ingress", "from")):
            reached = {port["port"] for policy in policies
                       if manifests.selects(policy["spec"]["podSelector"], subject)
                       for rule in policy["spec"].get(direction, [])
                       if any("podSelector" in peer and manifests.selects(peer["podSelector"], other)
                              for peer in rule[peers])
                       for port in rule["ports"]}
            self.assertLessEqual(names, reached, direction)
        # It is no part of Baton to disruption budgets, monitors and the denial of everything.
        self.assertNotEqual(labels["app.kubernetes.io/name"], router["app.kubernetes.io/name"])

    def test_the_load_test_has_time_and_runs_without_rights(self):
        job = Arrangement(manifests.render(LOAD_TEST))
        [spec] = [item["spec"] for item in job.of("Job")]
        pod = spec["template"]["spec"]
        flags = manifests.read_flags((LOAD_TEST / "flags").read_text(encoding="utf-8"))
        wait = next(int(argument.partition("=")[2]) for argument in pod["initContainers"][0]["args"]
                    if argument.startswith("--wait="))
        self.assertGreater(spec["activeDeadlineSeconds"], wait + manifests.seconds(flags["duration"]) + 120)
        self.assertEqual(spec["backoffLimit"], 0)
        self.assertTrue(pod["securityContext"]["runAsNonRoot"])
        for container in pod["initContainers"] + pod["containers"]:
            self.assertTrue(container["securityContext"]["readOnlyRootFilesystem"])
            self.assertIn("memory", container["resources"]["limits"])
        [name] = [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
        self.assertIsNotNone(job.named("ConfigMap", name))

    def test_a_pod_has_time_to_drain(self):
        for arrangement, workload in self.each_workload():
            pod = workload["spec"]["template"]["spec"]
            hook = pod["containers"][0].get("lifecycle", {}).get("preStop", {})
            wait = float(hook["exec"]["command"][1]) if hook else 0
            needed = wait + manifests.seconds(arrangement.flags(workload)["drain_timeout"])
            self.assertGreaterEqual(pod["terminationGracePeriodSeconds"], needed + SHUTDOWN_SECONDS)

    def test_pods_run_without_rights_on_a_root_that_cannot_be_written(self):
        for _, workload in self.each_workload():
            pod = workload["spec"]["template"]["spec"]
            self.assertTrue(pod["securityContext"]["runAsNonRoot"])
            self.assertFalse(pod["automountServiceAccountToken"])
            for container in pod["initContainers"] + pod["containers"]:
                self.assertTrue(container["securityContext"]["readOnlyRootFilesystem"])
                self.assertEqual(container["securityContext"]["capabilities"]["drop"], ["ALL"])
                self.assertIn("memory", container["resources"]["limits"])

    def test_a_pool_fits_into_the_memory_of_its_pod(self):
        for arrangement, workload in self.each_workload():
            flags = arrangement.flags(workload)
            if "kv_pool_mib" in flags:
                limit = workload["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
                self.assertLess(int(flags["kv_pool_mib"]), int(limit.removesuffix("Gi")) << 10)


def allowed(arrangement, caller, callee, direction):
    """Whether the policies let `caller` reach the port grpc of `callee`, on the caller's or the callee's side."""
    subject, other = (caller, callee) if direction == "egress" else (callee, caller)
    labels = [item["spec"]["template"]["metadata"]["labels"] for item in (subject, other)]
    peers = "to" if direction == "egress" else "from"
    for policy in arrangement.of("NetworkPolicy"):
        if not manifests.selects(policy["spec"]["podSelector"], labels[0]):
            continue
        for rule in policy["spec"].get(direction, []):
            if {"port": "grpc"} in [{"port": port["port"]} for port in rule["ports"]] and any(
                    "podSelector" in peer and "namespaceSelector" not in peer
                    and manifests.selects(peer["podSelector"], labels[1]) for peer in rule[peers]):
                return True
    return False


def base_tag():
    [kustomization] = [document for path, document in manifests.documents()
                       if path == KUBERNETES / "base/kustomization.yaml"]
    [tag] = {image["newTag"] for image in kustomization["images"]}
    return tag


def images_of(objects):
    """Those of every container of rendered objects."""
    pods = [item["spec"]["template"]["spec"] for item in objects if item["kind"] in manifests.WORKLOADS | {"Job"}]
    return {container["image"] for pod in pods for container in pod["initContainers"] + pod["containers"]}


def exported_families():
    """The names of the one list of what Baton exports."""
    text = (CHECKOUT / "common/metrics/metric_families.h").read_text(encoding="utf-8")
    return set(re.findall(r'"(baton_\w+)"', text))


def help_flags(binary):
    answer = subprocess.run([stack.BINARIES / binary, "--help"], capture_output=True, text=True, check=False)
    return set(re.findall(r"^ +--(\w+) \(", answer.stdout, re.M)) | {"flagfile"}


class Binaries(unittest.TestCase):
    def test_every_flag_of_a_file_exists_and_has_a_value_that_is_taken(self):
        files = manifests.flags_files()
        self.assertGreaterEqual(len(files), 8)
        for path, role in files.items():
            for binary in ["prefill", "decode"] if role == "worker" else [role]:
                with self.subTest(path=path, binary=binary):
                    answer = subprocess.run(
                        [stack.BINARIES / f"baton-{binary}", f"--flagfile={path}"],
                        capture_output=True, text=True, check=False, timeout=60)
                    # All flags were read; what is missing is the model.
                    self.assertIn("model", answer.stderr)
                    self.assertNotIn("ERROR: ", answer.stderr)

    def test_every_flag_of_a_command_line_exists(self):
        known = {binary: help_flags(binary) for binary in
                 ("baton-router", "baton-prefill", "baton-decode", "baton-client", "baton-loadtest",
                  "baton-lab")}
        everywhere = set.intersection(*(known[f"baton-{role}"] for role in ("router", "prefill", "decode")))
        checked = 0
        for path, document in manifests.documents():
            for binary, arguments in command_lines(document):
                flags = {argument[2:].partition("=")[0] for argument in arguments if argument.startswith("--")}
                with self.subTest(path=path, binary=binary):
                    self.assertLessEqual(flags, known[binary] if binary else everywhere)
                checked += len(flags)
        self.assertGreater(checked, 30)

    def test_probes_and_autoscalers_ask_for_what_a_running_stack_has(self):
        flags = KUBERNETES / "overlays/cpu-dev/worker.flags"
        with stack.Stack(MODEL, [f"--flagfile={flags}"]) as services:
            by_role = {service.name: service for service in services.services}
            for role, service in by_role.items():
                for name in probed_names():
                    with self.subTest(role=role, health=name):
                        subprocess.run([stack.BINARIES / "baton-client", "health", "--wait=30",
                                        f"--router={service.address}", f"--service={name}"],
                                       check=True, stdout=subprocess.DEVNULL)
            metrics = {role: service.metrics() for role, service in by_role.items()}
        checked = 0
        pods, external = manifests.adapter_rules()
        for _, document in manifests.documents():
            if not isinstance(document, dict) or document.get("kind") != "HorizontalPodAutoscaler":
                continue
            role = document["spec"]["scaleTargetRef"]["name"]
            for metric in document["spec"]["metrics"]:
                if metric["type"] == "Pods":
                    self.assertIn(pods[metric["pods"]["metric"]["name"]], metrics[role])
                    checked += 1
                elif metric["type"] == "External":
                    role_label = metric["external"]["metric"]["selector"]["matchLabels"]["role"]
                    family = metrics[role_label][external[metric["external"]["metric"]["name"]]]
                    self.assertTrue(all(f'role="{role_label}"' in labels for labels in family))
                    checked += 1
        self.assertGreaterEqual(checked, 4)
        self.assertTrue(any('state="free"' in labels for labels in metrics["decode"]["baton_kv_pages"]))
        self.assertEqual(services.exit_codes, [0, 0, 0])

    def test_the_load_test_runs_against_a_running_stack(self):
        [job] = [document for path, document in manifests.documents() if path == LOAD_TEST / "job.yaml"]
        pod = job["spec"]["template"]["spec"]
        small = KUBERNETES / "overlays/cpu-dev/worker.flags"
        with stack.Stack(MODEL, [f"--flagfile={small}"]) as services, tempfile.TemporaryDirectory() as results:
            places = {"router:8000": services.router, "router:8001": services.services[-1].metrics_address,
                      "/etc/baton/flags": str(LOAD_TEST / "flags"), "/results": results}
            for container in pod["initContainers"] + pod["containers"]:
                arguments = container["args"]
                for place, here in places.items():
                    arguments = [argument.replace(place, here) for argument in arguments]
                if container["name"] == "load-test":
                    arguments += ["--duration=2s", "--warmup=0"]
                subprocess.run([stack.BINARIES / container["command"][0], *arguments], check=True, timeout=100,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.assertTrue((pathlib.Path(results) / "report.html").exists())

    def test_the_component_tls_fits_together_in_a_running_stack(self):
        certificates = CHECKOUT / "tests/data/tls"
        # Of the tests' certificate: files and the one name that it carries.
        replaced = {"/etc/baton-tls/tls.crt": certificates / "worker.pem",
                    "/etc/baton-tls/tls.key": certificates / "worker.key",
                    "/etc/baton-tls/ca.crt": certificates / "ca.pem"}

        def local(argument):
            for path, file in replaced.items():
                argument = argument.replace(path, str(file))
            return re.sub("(?<=--tls_server_name=).*", "localhost", argument)

        def lines(name):
            [patch] = [document for path, document in manifests.documents()
                       if path == KUBERNETES / f"components/tls/{name}.yaml"]
            flags = [local(item["value"]) for item in patch if item["path"].endswith("/args/-")]
            probes = [item["value"]["command"] for item in patch if item["path"].endswith("Probe/exec")]
            return flags, probes

        flags, router_probes = lines("router")
        worker_flags, worker_probes = lines("worker")
        self.assertEqual(flags, worker_flags)
        self.assertEqual(len(flags), 4)
        small = KUBERNETES / "overlays/cpu-dev/worker.flags"
        with stack.Stack(MODEL, [f"--flagfile={small}"], tls_flags=flags) as services:
            for service in services.services:
                probes = router_probes if service.name == "router" else worker_probes
                self.assertEqual(len(probes), 3)
                for probe in probes:
                    arguments = [local(argument).replace("127.0.0.1:8000", service.address)
                                 for argument in probe[1:]]
                    with self.subTest(service=service.name, probe=arguments):
                        subprocess.run([stack.BINARIES / probe[0], *arguments], check=True,
                                       stdout=subprocess.DEVNULL)
                        plain = [item for item in arguments if not item.startswith("--tls")]
                        refused = subprocess.run([stack.BINARIES / probe[0], *plain], check=False,
                                                 capture_output=True)
                        self.assertNotEqual(refused.returncode, 0)


def probed_names():
    names = set()
    for _, document in manifests.documents():
        text = str(document)
        names.update(re.findall(r"'service': '(\w+)'", text))
        names.update(re.findall(r"--service=(\w+)", text))
    return names


def command_lines(document):
    """[(binary, arguments)] in a document; binary is None for arguments that a patch gives to several."""
    if isinstance(document, list):  # JSON patch
        for operation in document:
            value = operation.get("value")
            if isinstance(value, str) and value.startswith("--"):
                yield None, [value]
            elif isinstance(value, dict) and "command" in value:
                yield from own_command(value)
        return
    pod = document.get("spec", {}).get("template", {}).get("spec", {}) if document.get("kind") in \
        manifests.WORKLOADS else {}
    for container in pod.get("initContainers", []) + pod.get("containers", []):
        if "command" in container or "args" in container:
            yield from own_command(container)


def own_command(container):
    """Arguments without a command are an error: the images of workers hold two services."""
    line = container["command"] + container.get("args", [])
    if line[0].startswith("baton-"):
        yield line[0], line[1:]


if __name__ == "__main__":
    sys.exit(manifests.run_part(globals()[sys.argv[1]]))
