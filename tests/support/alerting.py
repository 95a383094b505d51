"""A real Prometheus that evaluates the alerts of the chart on the operator's own page."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from helm import NAMESPACE, Helm
from tonnage_lab import assets
from tonnage_lab.processes import ProcessGroup, answers, free_ports

PROGRAM = assets.find("prometheus", assets.asset_paths())


def rules_of_chart(home: Path, **values: Any) -> dict[str, Any]:
    """Return the rules as the chart renders them; ``home``: where Helm may write."""
    helm = Helm(program=assets.ensure(["helm"])["helm"], home=home)
    manifests = helm.template(prometheusRule={"create": True, **values})
    [rule] = [each for each in manifests if each["kind"] == "PrometheusRule"]
    spec: dict[str, Any] = rule["spec"]
    return spec


@contextmanager
def alerting(
    folder: Path, target: str, rules: dict[str, Any], *, every: str = "1s"
) -> Iterator[str]:
    """Start Prometheus as the chart's PodMonitor configures it; yield its address."""
    (port,) = free_ports(1)
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    job = {
        "job_name": "tonnage",
        "honor_labels": True,
        "static_configs": [
            {"targets": [target.removeprefix("http://")], "labels": {"namespace": NAMESPACE}}
        ],
    }
    all_every = {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every}
    configuration = {"global": all_every, "rule_files": ["rules.yaml"], "scrape_configs": [job]}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    group = ProcessGroup(logs=folder)
    url = f"http://127.0.0.1:{port}"
    command = [
        str(PROGRAM), f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]  # fmt: skip
    group.start("prometheus", command)
    try:
        group.wait_until(
            answers(f"{url}/-/ready"), what="Prometheus", timeout_s=60, needs=("prometheus",)
        )
        yield url
    finally:
        group.stop_all()
