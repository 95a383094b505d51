"""The operator's image, built here and started as the chart starts it."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from site_lab import a_model, show, until
from tonnage.units import MB, MIB
from tonnage_lab import controlplane
from tonnage_lab.kind import images
from tonnage_lab.kind.images import docker
from tonnage_lab.processes import LabError, free_ports

CRDS = Path(__file__).parents[2] / "crds"
CHART_USER = 65532
RANDOM_USER = 1_000_730_000
"""Such as OpenShift gives: in no passwd file."""
NUM_OBJECTS = 20
MOST_IMAGE_BYTES = 250 * MB
MOST_READY_S = 10.0
MOST_RESIDENT_BYTES = 150 * MIB
SETTLED_TICKS = 10
TMP = "/tmp:size=64m"  # noqa: S108  (in the container)


@pytest.fixture(scope="module")
def image() -> str:
    return images.operator()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory, programs):
    """A control plane on loopback with objects to plan for; no operator yet."""
    made = controlplane.start(tmp_path_factory.mktemp("plane"), programs=programs, crds=CRDS)
    try:
        kubectl = made.kubectl
        kubectl("create", "namespace", "tonnage-system")
        objects = [a_model(f"model-{number}") for number in range(NUM_OBJECTS)]
        kubectl.apply({**each, "metadata": {**each["metadata"], "namespace": "default"}}
                      for each in objects)  # fmt: skip
        yield made
    finally:
        made.stop()


class Container:
    """The operator's, with what the chart's pod has: read-only files, no capabilities, a /tmp."""

    def __init__(self, plane, folder: Path, user: int) -> None:
        (self.port,) = free_ports(1)
        settings = {"prometheusUrl": "http://127.0.0.1:9", "probePort": self.port, "tickS": 1,
                    "operatorNamespace": "tonnage-system"}  # fmt: skip
        folder.mkdir(exist_ok=True)
        (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
        (folder / "kubeconfig").write_text(plane.kubeconfig.read_text())
        for path in (folder, *folder.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        self.began_s = time.monotonic()
        self.id = docker(
            "run", "--detach", "--network", "host", "--user", f"{user}:{user}", "--read-only",
            "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--tmpfs", TMP,
            "--volume", f"{folder}:/etc/tonnage:ro", "--env", "KUBECONFIG=/etc/tonnage/kubeconfig",
            images.OPERATOR, "run", "--config", "/etc/tonnage/settings.yaml",
        ).strip()  # fmt: skip

    def get(self, path: str) -> str | None:
        """Return what the operator answers with success; None where it does not."""
        with requests.Session() as session:
            session.trust_env = False
            try:
                answer = session.get(f"http://127.0.0.1:{self.port}{path}", timeout=2)
            except requests.RequestException:
                return None
            return answer.text if answer.ok else None

    def num_ticks(self) -> int:
        found = [line for line in (self.get("/metrics") or "").splitlines()
                 if line.startswith("tonnage_tick_seconds_count ")]  # fmt: skip
        return int(float(found[0].split()[1])) if found else 0

    def log(self) -> str:
        return docker("logs", self.id)

    def resident_bytes(self) -> int:
        """Return what lies in memory of its processes, shared pages included."""
        pids = docker("top", self.id, "-o", "pid").split()[1:]
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
        lines = [line for text in texts for line in text.splitlines() if line.startswith("VmRSS")]
        return sum(int(line.split()[1]) for line in lines) * 1024

    def remove(self) -> None:
        docker("rm", "--force", self.id)


@pytest.fixture(params=[CHART_USER, RANDOM_USER], ids=["the chart's user", "any user"])
def started(request, plane, image, tmp_path):
    made = Container(plane, tmp_path / "settings", request.param)
    yield made
    made.remove()


def labels(image: str) -> dict[str, Any]:
    return dict(json.loads(docker("inspect", "--format", "{{json .Config.Labels}}", image)))


def test_it_is_small(image, request, tmp_path):
    found_bytes = int(docker("inspect", "--format", "{{.Size}}", image))
    show(request.config, "image", {"image_mb": round(found_bytes / MB)}, tmp_path)

    assert found_bytes <= MOST_IMAGE_BYTES


def test_it_says_what_it_is_and_carries_its_licence(image):
    said = labels(image)
    licence = docker("run", "--rm", "--network", "none", "--entrypoint", "python", image,
                          "-c", "print(open('/licenses/LICENSE').read())")  # fmt: skip

    assert said["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert said["org.opencontainers.image.base.name"]
    assert "Apache License" in licence


def test_nothing_that_installs_software_is_left(image):
    with pytest.raises(LabError):
        docker("run", "--rm", "--network", "none", "--entrypoint", "pip", image, "--version")


def test_it_is_ready_in_time_and_stays_small_as_any_user(started: Container, request, tmp_path):
    until(lambda: started.get("/readyz"), "the operator is Ready", told=started.log)
    ready_s = time.monotonic() - started.began_s
    until(lambda: started.num_ticks() >= SETTLED_TICKS, "it decides", told=started.log)
    resident_bytes = started.resident_bytes()
    figures = {"ready_s": round(ready_s, 1), "resident_mib": round(resident_bytes / MIB)}
    show(request.config, f"image, {request.node.callspec.id}", figures, tmp_path)

    assert ready_s <= MOST_READY_S
    assert resident_bytes <= MOST_RESIDENT_BYTES
