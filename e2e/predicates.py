"""Random small worlds of nodes and pods, raw, for what may be scheduled where: the same seed gives the same worlds.

A world is alone on a shared plane: its pods select its nodes by a label of its own, and topology keys carry its name.
"""

from __future__ import annotations

from random import Random
from typing import Any

Json = dict[str, Any]

GPU = "example.com/gpu"
NAMESPACES = {"gold": {"tier": "gold"}, "lead": {"tier": "lead"}}
APPS = ("web", "db")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
THEMES = ("mixed", "ports", "affinity", "against", "spread", "volumes")
"""What most pods of a world demand: with too many demands at once no single one decides."""
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
BEARS_ALL = [{"operator": "Exists"}]


class World:
    """``nodes`` and ``pods`` (which are bound, some on their way out), and ``probes``, whose place is in question.

    ``claims``, ``volumes`` and ``csi_nodes``: in worlds of that theme there are some.
    """

    def __init__(self, seed: int) -> None:
        self.name = f"w{seed}"
        self._random = Random(seed)
        self._theme = THEMES[seed % len(THEMES)]
        self.nodes = [self._node(i) for i in range(self._random.randint(3, 5))]
        self.claims: list[Json] = []
        self.volumes: list[Json] = []
        self.csi_nodes: list[Json] = []
        if self._theme == "volumes":
            self._add_volumes()
        self.pods = [self._bound(i) for i in range(self._random.randint(1, 7))]
        self.probes = [self._probe(i) for i in range(3)]
        self.probes += [self._pinned(i, node) for i, node in enumerate(self.nodes)]

    @property
    def zone(self) -> str:
        return f"{self.name}.test/zone"

    @property
    def host(self) -> str:
        return f"{self.name}.test/host"

    def _chance(self, one_in: int) -> bool:
        return self._random.randrange(one_in) == 0

    def _wants(self, demand: str, one_in: int) -> bool:
        """Whether a pod makes the demand: most do where it is the world's theme, few where another one is."""
        if self._theme == demand:
            return not self._chance(4)
        return self._chance(one_in if self._theme == "mixed" else 3 * one_in)

    def _node(self, i: int) -> Json:
        name, r = f"{self.name}-n{i}", self._random
        labels = {"world": self.name, self.host: name}
        if not self._chance(6):
            labels[self.zone] = r.choice("ab")
        if self._chance(3):
            labels["topology.kubernetes.io/zone"] = r.choice("ab")
        if self._chance(2):
            labels["rank"] = str(r.randint(0, 4))
        amounts = {"cpu": str(r.randint(1, 6)), "memory": "8Gi", "pods": str(r.choice([1, 3, 110, 110]))}
        if self._theme != "mixed":
            amounts |= {"cpu": "16", "pods": "110"}
        if not self._chance(3):
            amounts[GPU] = str(r.randint(0, 2))  # none: every device of the node is sick
        spec: Json = {}
        if self._chance(5):
            spec["taints"] = [{"key": "kept", "value": r.choice("xy"), "effect": r.choice(EFFECTS)}]
        if self._chance(12 if self._theme == "mixed" else 30):
            spec["unschedulable"] = True
        annotations = {"trigate.dev/unready": "tested"} if self._chance(12 if self._theme == "mixed" else 30) else {}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
            "spec": spec,
            "status": {"capacity": amounts, "allocatable": amounts},
        }

    def _add_volumes(self) -> None:
        """Claims in both namespaces: bound ones for many pods or one, and one that is not bound."""
        r = self._random
        for namespace in NAMESPACES:
            for i in range(2):
                name, bound = f"{self.name}-{namespace}-{i}", i > 0 or not self._chance(3)
                modes = [r.choice(["ReadWriteMany", "ReadWriteMany", "ReadWriteMany", "ReadWriteOncePod"])]
                size = {"storage": "1Gi"}
                self.claims.append(
                    {
                        "apiVersion": "v1",
                        "kind": "PersistentVolumeClaim",
                        "metadata": {"name": name, "namespace": namespace},
                        "spec": {
                            "accessModes": modes,
                            "resources": {"requests": size},
                            "storageClassName": "",
                            **({"volumeName": name} if bound else {}),
                        },
                    }
                )
                if bound:
                    self.volumes.append(self._volume(name, namespace, modes, size))
        for node in self.nodes:
            if self._chance(2):
                limit = {
                    "name": "csi.test",
                    "nodeID": "n",
                    "topologyKeys": [],
                    "allocatable": {"count": r.randint(0, 3)},
                }
                metadata = {"name": node["metadata"]["name"]}
                csi_node = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": metadata}
                self.csi_nodes.append({**csi_node, "spec": {"drivers": [limit]}})

    def _volume(self, name: str, namespace: str, modes: list[str], size: Json) -> Json:
        spec: Json = {
            "accessModes": modes,
            "capacity": size,
            "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": namespace, "name": name},
            "csi": {"driver": "csi.test", "volumeHandle": name},
        }
        if self._chance(4):
            test = {"key": self.zone, "operator": "In", "values": [self._random.choice("ab")]}
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [test]}]}}
        labels = {"topology.kubernetes.io/zone": self._random.choice(["a", "b", "a__b"])} if self._chance(4) else {}
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
        }

    def _use_claims(self, pod: Json) -> None:
        """Let the pod use one or two of its namespace's claims, or one that is not there."""
        own = [c["metadata"]["name"] for c in self.claims if c["metadata"]["namespace"] == pod["metadata"]["namespace"]]
        if self._chance(10):
            own = [f"{self.name}-missing"]
        chosen = self._random.sample(own, min(len(own), self._random.randint(1, 2)))
        pod["spec"]["volumes"] = [
            {"name": f"v{i}", "persistentVolumeClaim": {"claimName": name}} for i, name in enumerate(chosen)
        ]

    def _pod(self, name: str, containers: list[Json], **spec: Any) -> Json:
        labels = {"world": self.name} | ({"app": self._random.choice(APPS)} if not self._chance(8) else {})
        namespace = self._random.choice(list(NAMESPACES))
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{self.name}-{name}", "namespace": namespace, "labels": labels},
            "spec": {"terminationGracePeriodSeconds": 3600, "containers": containers, **spec},
        }

    def _bound(self, i: int) -> Json:
        spec: Json = {"nodeName": self._random.choice(self.nodes)["metadata"]["name"], "tolerations": BEARS_ALL}
        if self._wants("against", 3):
            spec["affinity"] = {"podAntiAffinity": {REQUIRED: [self._term()]}}
        pod = self._pod(f"p{i}", [self._container("main")], **spec)
        if self.claims and self._wants("volumes", 2):
            self._use_claims(pod)
        if self._chance(5):
            pod["metadata"]["annotations"] = {"trigate.dev/terminate-for": "3600"}
        return pod

    def _container(self, name: str) -> Json:
        r = self._random
        container: Json = {"name": name, "image": "none"}
        asked: Json = {}
        if not self._chance(3):
            asked["cpu"] = r.choice(["500m", "1", "2"])
        limits = {GPU: str(r.randint(0, 1))} if self._chance(3 if self._theme == "mixed" else 9) else {}
        container["resources"] = {"requests": {**asked, **limits}, "limits": limits}
        if self._wants("ports", 3):
            container["ports"] = [self._port()]
        return container

    def _port(self) -> Json:
        r = self._random
        port: Json = {"containerPort": r.choice([80, 81]), "protocol": r.choice(["TCP", "TCP", "UDP"])}
        if not self._chance(4):
            port["hostPort"] = port["containerPort"]
            if self._chance(2):
                port["hostIP"] = r.choice(["10.0.0.1", "10.0.0.2", "0.0.0.0"])
        return port

    def _selector(self) -> Json | None:
        r = self._random
        return r.choice(
            [
                {"matchLabels": {"app": r.choice(APPS)}},
                {"matchLabels": {"app": r.choice(APPS)}},
                {"matchLabels": {"app": r.choice(APPS)}},
                {"matchExpressions": [{"key": "app", "operator": "In", "values": list(APPS)}]},
                {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [r.choice(APPS)]}]},
                {"matchExpressions": [{"key": "app", "operator": r.choice(["Exists", "DoesNotExist"])}]},
                {},
                None,
            ]
        )

    def _term(self) -> Json:
        r = self._random
        term: Json = {"topologyKey": r.choice([self.zone, self.host])}
        selector = self._selector()
        if selector is not None:
            term["labelSelector"] = selector
            if self._chance(6):
                term[r.choice(["matchLabelKeys", "mismatchLabelKeys"])] = ["app"]
                term["labelSelector"] = {}
        if self._chance(4):
            term["namespaces"] = r.choice([["gold"], ["lead"], ["gold", "lead"], ["none"]])
        if self._chance(4):
            term["namespaceSelector"] = r.choice([{}, {"matchLabels": {"tier": r.choice(["gold", "lead", "tin"])}}])
        return term

    def _spread(self) -> Json:
        r = self._random
        constraint: Json = {
            "topologyKey": r.choice([self.zone, self.host]),
            "maxSkew": r.randint(1, 2),
            "whenUnsatisfiable": r.choice(["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"]),
        }
        selector = self._selector()
        if selector is not None:
            constraint["labelSelector"] = selector
        if constraint["whenUnsatisfiable"] == "DoNotSchedule" and self._chance(3):
            constraint["minDomains"] = r.randint(1, 3)
        for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if self._chance(3):
                constraint[policy] = r.choice(["Honor", "Ignore"])
        if selector is not None and self._chance(4):
            constraint["matchLabelKeys"] = ["app"]
            constraint["labelSelector"] = {}
        return constraint

    def _probe(self, i: int) -> Json:
        containers = [self._container(name) for name in ("main", "side")[: self._random.choice([1, 1, 2])]]
        if len(containers) > 1 and "ports" in containers[0]:
            containers[1].pop("ports", None)  # no pod may ask for one port twice
        pod = self._pod(f"probe{i}", containers, nodeSelector={"world": self.name})
        spec = pod["spec"]
        self._add_init_containers(spec)
        affinity: Json = {}
        if self._chance(5):
            affinity["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": [self._node_term() for _ in range(2)]}}
        if self._wants("affinity", 5):
            affinity["podAffinity"] = {REQUIRED: [self._term() for _ in range(self._random.randint(1, 2))]}
        if self._wants("against", 4):
            affinity["podAntiAffinity"] = {REQUIRED: [self._term()]}
        if affinity:
            spec["affinity"] = affinity
        if self._wants("spread", 2):
            chosen = {c["topologyKey"]: c for c in (self._spread() for _ in range(self._random.randint(1, 2)))}
            spec["topologySpreadConstraints"] = list(chosen.values())
        if self._chance(3):
            spec["tolerations"] = [self._toleration()]
        if self.claims and self._wants("volumes", 2):
            self._use_claims(pod)
        if self._chance(10) and "initContainers" not in spec:
            spec["hostNetwork"] = True
            for container in containers:
                for port in container.get("ports", ()):
                    port.pop("hostIP", None)
                    port["hostPort"] = port["containerPort"]
        return pod

    def _add_init_containers(self, spec: Json) -> None:
        if self._chance(4):
            setup = {**self._container("setup"), "ports": []}
            if self._chance(2):
                setup = {**setup, "name": "sidecar", "restartPolicy": "Always"}
            spec["initContainers"] = [setup]
        if self._chance(6):
            spec["resources"] = {"requests": {"cpu": "4"}}

    def _node_term(self) -> Json:
        r = self._random
        value = str(r.randint(0, 4))
        tests = [
            {"key": "rank", "operator": "In", "values": [value, "9"]},
            {"key": "rank", "operator": "NotIn", "values": [value]},
            {"key": "rank", "operator": r.choice(["Exists", "DoesNotExist"])},
            {"key": "rank", "operator": r.choice(["Gt", "Lt"]), "values": [value]},
            {"key": self.zone, "operator": "In", "values": [r.choice("ab")]},
        ]
        term: Json = {"matchExpressions": r.sample(tests, r.randint(1, 2))}
        if self._chance(5):
            named = {"key": "metadata.name", "operator": r.choice(["In", "NotIn"])}
            term["matchFields"] = [{**named, "values": [r.choice(self.nodes)["metadata"]["name"]]}]
        return term

    def _toleration(self) -> Json:
        r = self._random
        return r.choice(
            [
                {"key": "kept", "operator": "Exists"},
                {"key": "kept", "operator": "Equal", "value": r.choice("xy")},
                {"key": "kept", "value": "x", "effect": r.choice(EFFECTS)},
                {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
                {"key": "other", "operator": "Exists"},
            ]
        )

    def _pinned(self, i: int, node: Json) -> Json:
        """The first probe once more, at one node only: so the whole set of its nodes is asked for."""
        first = self.probes[0]
        spec = {**first["spec"], "nodeSelector": {**first["spec"]["nodeSelector"], self.host: node["metadata"]["name"]}}
        metadata = {**first["metadata"], "name": f"{self.name}-pinned{i}"}
        return {**first, "metadata": metadata, "spec": spec}
