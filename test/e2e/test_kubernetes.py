"""The manifests of package/kubernetes: rendered, checked by schemas, and their very command lines started here."""
import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from server import until

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "package/kubernetes"
OVERLAYS = ["one", "replicas", "nodes", "kserve", "monitoring"]
CRDS = json.loads((ROOT / "test/data/kubernetes/crds.json").read_text())
USED = {"one": 4, "replicas": 8, "nodes": 4, "kserve": 3, "monitoring": 4}


@pytest.fixture(scope="session")
def rendered():
    """{overlay: its documents}"""
    assert shutil.which("kubectl"), "kubectl is missing: scripts/setup test"
    out = {}
    for name in OVERLAYS:
        done = subprocess.run(["kubectl", "kustomize", HERE / name], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        out[name] = list(yaml.safe_load_all(done.stdout))
    return out


def kind(documents, name):
    found = [d for d in documents if d["kind"] == name]
    assert len(found) == 1, name
    return found[0]


def pods(d):
    """The templates of pods in a document."""
    if d["kind"] == "Deployment":
        return [d["spec"]["template"]]
    if d["kind"] == "LeaderWorkerSet":
        t = d["spec"]["leaderWorkerTemplate"]
        return [t["leaderTemplate"], t["workerTemplate"]]
    if d["kind"].endswith("ServingRuntime"):
        return [{"spec": {"containers": d["spec"]["containers"]}}]
    return []


def check(d):
    key = f"{d['apiVersion']} {d['kind']}"
    if key in CRDS["kinds"]:
        schema = {**CRDS["kinds"][key], "definitions": CRDS["definitions"]}
        jsonschema.validate(d["spec"], schema)
        jsonschema.validate(d["metadata"], {**CRDS["definitions"]["meta"], "definitions": CRDS["definitions"]})
        assert set(d) == {"apiVersion", "kind", "metadata", "spec"}
    else:
        kubernetes_validate.validate(d, kubernetes_validate.latest_version(), strict=True)
    for p in pods(d):
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **p.get("metadata", {})},
                                      "spec": p["spec"]}, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_documents_are_valid(rendered, overlay):
    assert len(rendered[overlay]) == USED[overlay]
    for d in rendered[overlay]:
        check(d)


def test_the_check_refuses(rendered):
    pool = json.loads(json.dumps(kind(rendered["replicas"], "InferencePool")))
    pool["spec"]["targetPortNumber"] = 8000
    with pytest.raises(jsonschema.ValidationError):
        check(pool)
    deployment = json.loads(json.dumps(kind(rendered["one"], "Deployment")))
    deployment["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(Exception, match="readinesProbe"):
        check(deployment)


def labels_of(template):
    return template["metadata"]["labels"].items()


def test_documents_fit_together(rendered):
    for overlay in "one", "replicas":
        d = kind(rendered[overlay], "Deployment")
        template = d["spec"]["template"]
        assert d["spec"]["selector"]["matchLabels"].items() <= labels_of(template)
        assert kind(rendered[overlay], "Service")["spec"]["selector"].items() <= labels_of(template)
        assert dict(labels_of(template))["llm-d.ai/engine-type"] == "vllm"
        claims = {v["persistentVolumeClaim"]["claimName"] for v in template["spec"]["volumes"] if "persistentVolumeClaim" in v}
        assert claims == {kind(rendered[overlay], "PersistentVolumeClaim")["metadata"]["name"]}
    many = rendered["replicas"]
    template = kind(many, "Deployment")["spec"]["template"]
    pool = kind(many, "InferencePool")["spec"]
    ports = {p["containerPort"] for p in template["spec"]["containers"][0]["ports"]}
    assert pool["selector"]["matchLabels"].items() <= labels_of(template)
    assert {p["number"] for p in pool["targetPorts"]} <= ports == {8000, 9090, 5557, 5558}
    assert kind(many, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= labels_of(template)
    assert kind(many, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"] == kind(many, "Deployment")["metadata"]["name"]
    backend = kind(many, "HTTPRoute")["spec"]["rules"][0]["backendRefs"][0]
    assert backend["name"] == kind(many, "InferencePool")["metadata"]["name"]
    group = kind(rendered["nodes"], "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    ranks = 1
    for flag in "--tensor-parallel", "--pipeline":
        ranks *= int(next((a.split("=")[1] for a in group["workerTemplate"]["spec"]["containers"][0]["args"] if a.startswith(flag)), 1))
    assert ranks == group["size"]
    assert group["leaderTemplate"]["spec"]["containers"][0]["args"] == group["workerTemplate"]["spec"]["containers"][0]["args"]
    board = kind([d for d in rendered["monitoring"] if d["metadata"]["name"] == "quern-dashboard"], "ConfigMap")
    assert json.loads(board["data"]["grafana.json"]) == json.loads((ROOT / "doc/grafana.json").read_text())


def test_time_to_stop_suffices(rendered):
    """The drain, --grace and some seconds fit into what Kubernetes waits before it kills."""
    for template in [kind(rendered["one"], "Deployment")["spec"]["template"], *pods(kind(rendered["nodes"], "LeaderWorkerSet"))]:
        c = template["spec"]["containers"][0]
        drain = next((int(a.split("=")[1]) for a in c.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
                      if a.startswith("--most=")), 0)
        grace = next(int(a.split("=")[1]) for a in c["args"] if a.startswith("--grace="))
        assert drain + grace + 5 <= template["spec"]["terminationGracePeriodSeconds"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Pod:
    """A container of a manifest as a process here: paths, ports and addresses are others, all else is the manifest's."""

    def __init__(self, container, binary, folder, ports=None, env=None):
        self.container, self.binary = container, binary
        self.ports = ports or {p: free_port() for p in (8000, 9090, 5557, 5558)}
        self.paths = {"/mnt/models": str(folder / "models"), "/etc/quern": str(folder / "keys"), "/usr/bin/quern": str(binary)}
        words = [self.here(w) for w in container["command"] + container["args"]]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={"HOME": str(folder), **(env or {})})

    def here(self, word):
        for text, other in {**self.paths, "$(POD_IP)": "127.0.0.1", "{{.Name}}": "demo", "{{.Namespace}}": "team"}.items():
            word = word.replace(text, other)
        return re.sub(r"(?<=[:=])(8000|9090|5557|5558)$", lambda m: str(self.ports[int(m[1])]), word)

    def probe(self, which):
        """As a kubelet does: by address."""
        get = self.container[which]["httpGet"]
        port = {p["name"]: p["containerPort"] for p in self.container["ports"]}.get(get["port"], get["port"])
        c = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=30)
        try:
            c.request("GET", get["path"], headers={"Host": f"10.0.0.7:{port}"})
            return c.getresponse().status
        except OSError:
            return None

    def started(self):
        until(lambda: self.probe("startupProbe") == 200 or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.stderr.read()
        assert self.probe("readinessProbe") == self.probe("livenessProbe") == 200

    def ask(self, path, body=None, **headers):
        c = http.client.HTTPConnection("127.0.0.1", self.ports[8000], timeout=60)
        c.request("POST" if body else "GET", path, json.dumps(body) if body else None,
                  {"Content-Type": "application/json", **headers})
        reply = c.getresponse()
        return reply.status, json.loads(reply.read())

    def stop(self):
        """As a kubelet does."""
        hook = self.container["lifecycle"]["preStop"]["exec"]["command"]
        assert subprocess.run([self.here(w).replace("--least=5", "--least=0.2") for w in hook], timeout=60).returncode == 0
        assert self.probe("readinessProbe") == 503 and self.probe("livenessProbe") == 200
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0


@pytest.fixture
def mounts(tiny, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "model.gguf").symlink_to(tiny[0])
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "keys").write_text("alpha\n")
    return tmp_path


BODY = {"prompt": "x", "max_tokens": 3}


@pytest.mark.parametrize("overlay", ["one", "replicas"])
def test_the_command_lines_run(rendered, binary, mounts, overlay):
    p = Pod(pods(kind(rendered[overlay], "Deployment"))[0]["spec"]["containers"][0], binary, mounts)
    try:
        p.started()
        assert p.ask("/v1/completions", {**BODY, "model": "model"}, Authorization="Bearer alpha")[0] == 200
        assert p.ask("/v1/completions", BODY)[0] == 401
        c = http.client.HTTPConnection("127.0.0.1", p.ports[9090], timeout=30)
        c.request("GET", "/metrics")
        there = c.getresponse().read().decode()
        rules = kind(rendered["monitoring"], "PrometheusRule")["spec"]["groups"][0]["rules"]
        asked = {n for r in rules for n in re.findall(r"quern_\w+", r["expr"])}
        asked |= {m["pods"]["metric"]["name"] for m in kind(rendered["replicas"], "HorizontalPodAutoscaler")["spec"]["metrics"]}
        assert len(asked) > 5 and all(re.search(rf"^{n}\b", there, re.M) for n in asked)
        assert "vllm:num_requests_waiting" in there
        p.stop()
    finally:
        p.process.kill()


def test_the_command_line_of_kserve_runs(rendered, binary, mounts):
    runtimes = [kind(rendered["kserve"], k)["spec"] for k in ("ServingRuntime", "ClusterServingRuntime")]
    assert runtimes[0] == runtimes[1]
    p = Pod(runtimes[0]["containers"][0], binary, mounts)
    try:
        p.started()
        host = {"Host": "demo-predictor.team.svc.cluster.local"}
        for name in "demo", "team/demo":
            assert p.ask("/v1/completions", {**BODY, "model": name}, **host)[0] == 200
        assert p.ask("/v1/completions", BODY, Host="rebound.example")[0] == 403
        p.stop()
    finally:
        p.process.kill()


def test_the_command_lines_of_nodes_run(rendered, binary, mounts):
    group = kind(rendered["nodes"], "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    ports, ranks = {p: free_port() for p in (8000, 9090)}, []
    for i, template in enumerate([group["leaderTemplate"]] + [group["workerTemplate"]] * (group["size"] - 1)):
        env = {"LWS_WORKER_INDEX": str(i), "LWS_GROUP_SIZE": str(group["size"]), "LWS_LEADER_ADDRESS": "127.0.0.1",
               "QUERN_RANK_PORT": str(ports.setdefault("ranks", free_port())), "QUERN_RANK_KEY": "secret"}
        ranks.append(Pod(template["spec"]["containers"][0], binary, mounts, ports, env))
    try:
        ranks[0].started()
        status, reply = ranks[0].ask("/v1/completions", {**BODY, "model": "model"}, Authorization="Bearer alpha")
        assert status == 200 and reply["usage"]["completion_tokens"] == 3
        ranks[0].stop()
        assert all(r.process.wait(20) is not None for r in ranks)
    finally:
        for r in ranks:
            r.process.kill()
