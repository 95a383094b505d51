"""A real Prometheus that was given samples of the past at once."""

import subprocess
from contextlib import contextmanager

import pytest
import yaml

import debian_programs
from tonnage_lab import assets
from tonnage_lab.processes import ProcessGroup, answers, free_ports

PROGRAM, TOOL = assets.find("prometheus", assets.asset_paths()), debian_programs.find("promtool")
NEEDED = [
    pytest.mark.skipif(PROGRAM is None, reason="needs prometheus: python -m tonnage_lab builds it"),
    pytest.mark.skipif(TOOL is None, reason="promtool is neither here nor to be had"),
]


def line(name, labels, value, at_s):
    pairs = ",".join(f'{label}="{each}"' for label, each in labels.items())
    return f"{name}{{{pairs}}} {value:g} {at_s:.3f}\n"


@contextmanager
def prometheus_with(folder, families, *flags):
    """Yield the address of a Prometheus with these families: kind, name, lines by series."""
    text, data = folder / "fleet.openmetrics", folder / "data"
    with text.open("w") as file:
        for kind, name, lines in families:
            file.write(f"# TYPE {name} {kind}\n")
            file.writelines(lines)
        file.write("# EOF\n")
    told = ["tsdb", "create-blocks-from", "openmetrics", "--quiet", str(text), str(data)]
    subprocess.run([TOOL, *told], check=True, capture_output=True)  # noqa: S603
    configuration = folder / "prometheus.yaml"
    configuration.write_text(yaml.safe_dump({"global": {"scrape_interval": "15s"}}))
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    own = [f"--config.file={configuration}", f"--storage.tsdb.path={data}", "--log.level=warn"]
    group = ProcessGroup(logs=folder)
    group.start("prometheus", [PROGRAM, *own, *flags, f"--web.listen-address=127.0.0.1:{port}"])
    try:
        group.wait_until(
            answers(f"{address}/-/ready"), what="Prometheus", timeout_s=60, needs=("prometheus",)
        )
        yield address
    finally:
        group.stop_all()
