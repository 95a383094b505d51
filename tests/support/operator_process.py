"""The operator as a process of this machine, which a test may kill, stop and start as a kubelet."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import yaml

from tonnage.units import KIB
from tonnage_lab.processes import free_ports

RECIPE = Path(__file__).parents[2] / "deploy/Dockerfile"
QUICK = {"tickS": 1, "coldStartS": 2, "statusIntervalS": 1, "scaleDownWindowS": 3}


def allocator() -> dict[str, str]:
    """Return what the image says of the allocator; nothing where its library is not installed."""
    library = find_library("jemalloc")
    said = re.findall(r"\b(LD_PRELOAD|PYTHONMALLOC|MALLOC_CONF)=(\S+)", RECIPE.read_text())
    return {**dict(said), "LD_PRELOAD": library} if library else {}


@dataclass(kw_only=True)
class OperatorProcess:
    """What is started, again and again."""

    folder: Path
    name: str
    port: int
    num_starts: int = 0
    process: subprocess.Popen[bytes] | None = None
    codes: list[int] = field(default_factory=list)
    """With which the processes ended that no test ended."""

    @property
    def log_path(self) -> Path:
        return self.folder / f"{self.name}.log"

    def log(self) -> str:
        return self.log_path.read_text()

    def start(self) -> None:
        settings, kubeconfig = self.folder / "settings.yaml", self.folder / "kubeconfig"
        own = {"KUBECONFIG": str(kubeconfig), "POD_NAME": self.name}
        command = [sys.executable, "-m", "tonnage", "run", "--config", str(settings)]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own interpreter
                command, env=os.environ | allocator() | own, stdout=log, stderr=log
            )
        self.num_starts += 1

    def revive(self) -> bool:
        """Start it again where it has ended, as a kubelet does; tell whether it had."""
        if not self.has_ended():
            return False
        self.start()
        return True

    def has_ended(self) -> bool:
        """Tell whether it ended by itself since this was asked, and note with what."""
        if self.process is None or self.process.poll() is None:
            return False
        self.codes.append(self.process.returncode)
        self.process = None
        return True

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """As a crash would; it stays ended until it is started."""
        if not self.has_ended() and self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def end(self, *, timeout_s: float) -> int:
        """Ask it to end; return with what it did. It stays ended until it is started."""
        assert not self.has_ended(), self.codes
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout_s)
        self.process = None
        return code

    def peak_bytes(self) -> int:
        """Return the most memory that the process that runs has had."""
        assert self.process is not None
        told = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(each.split()[1]) * KIB for each in told if each.startswith("VmHWM"))

    def page(self, path: str) -> requests.Response:
        with requests.Session() as session:
            session.trust_env = False
            return session.get(f"http://127.0.0.1:{self.port}{path}", timeout=5)

    def probe(self, path: str) -> int:
        """Return the status of a probe; 0 where nobody answers."""
        try:
            return self.page(path).status_code
        except requests.RequestException:
            return 0


@contextmanager
def an_operator(
    folder: Path, *, name: str, kubeconfig: str, namespaces: tuple[str, ...], **settings: Any
) -> Iterator[OperatorProcess]:
    """Start one that serves these namespaces and keeps its Lease in the first of them."""
    (port,) = free_ports(1)
    (folder / "kubeconfig").write_text(kubeconfig)
    told = QUICK | {
        "prometheusUrl": "http://127.0.0.1:9",
        "probePort": port,
        "namespaces": list(namespaces),
    }
    told |= {"operatorNamespace": namespaces[0]} if namespaces else {}
    (folder / "settings.yaml").write_text(yaml.safe_dump(told | settings))
    made = OperatorProcess(folder=folder, name=name, port=port)
    made.start()
    try:
        yield made
    finally:
        if made.process is not None:
            made.send(signal.SIGCONT)
        made.kill()
