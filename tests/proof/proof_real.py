"""Starts vLLM for CPU with what the operator would render for it."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tonnage.api.objects import parse_model_deployment
from tonnage.manifests.children import Site, deployment
from tonnage_lab import vllm_cpu, vllm_entry, vllm_site
from tonnage_lab.cpu_class import CoreFigures
from tonnage_lab.processes import ProcessGroup, answers, free_ports

A_CORE: Final = CoreFigures(read_bytes_per_s=16e9, copy_bytes_per_s=6e9, bf16_flop_per_s=90e9)
READY_S: Final = 900.0
TTFT_S: Final = 2


def rendered(
    version: str, config: str, *, model: Mapping[str, Any] | None = None, **more: str
) -> dict[str, Any]:
    """Return the pod template that the operator would write for this model on this version.

    ``model``: further fields of ``spec.model``, others of ``spec.engine``.
    """
    real = vllm_site.site_of(Path(sys.executable), A_CORE, num_cores=2)
    manifest = dict(real.manifest)
    minor = ".".join(version.split(".")[:2])
    args = ["--load-format=dummy", "--enforce-eager"]
    slo = {"timeToFirstToken": {"p95": f"{TTFT_S}s"}}
    engine = {"version": minor, "args": args, **more}
    spec = manifest["spec"]
    if "role" in more:
        spec = spec | {
            "hardware": {**spec["hardware"], "parallelism": {"tensor": 1}},
            "demand": {**spec["demand"], "cacheTransfer": "20ms"},
        }
    manifest["spec"] = {
        **spec, "model": {**spec["model"], **(model or {})}, "engine": engine, "slo": slo,
    }  # fmt: skip
    made = parse_model_deployment(manifest)
    sizing = vllm_site.cpu_class.fitting(
        made.spec, config, real.gpu, kv_bytes=vllm_site.KV_SPACE_GIB * 2**30
    )[1]
    site = Site(has_pod_monitors=False, scrape_interval_s=5)
    return dict(deployment(made, sizing, site)["spec"]["template"])


def start_engine(  # noqa: PLR0913  (what an engine is started with)
    template: dict[str, Any],
    config: str,
    packages: Path,
    folder: Path,
    *more: str,
    name: str = "vllm",
    variables: Mapping[str, str] | None = None,
) -> tuple[ProcessGroup, str]:
    """Start vLLM as the template says, with further arguments and variables; return its URL too."""
    python = vllm_cpu.ensure(packages=packages)
    (folder / "config.json").write_text(config)
    (port,) = free_ports(1)
    (container,) = template["spec"]["containers"]
    program, serve = container["command"]
    assert program == "vllm"
    environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    cache = str(folder / "cache")
    environment = {name: each.replace("/cache", cache) for name, each in environment.items()}
    group = ProcessGroup(logs=folder)
    group.start(
        name,
        [python, "-P", vllm_entry.__file__, serve, *container["args"], *more,
         "--host", "127.0.0.1", "--port", str(port)],
        environment={
            **environment,
            vllm_entry.MODEL_CONFIG: str(folder / "config.json"),
            vllm_entry.KV_SPACE_GIB: str(vllm_site.KV_SPACE_GIB),
            vllm_entry.GPUS: "0",
            **(variables or {}),
        },
    )  # fmt: skip
    return group, f"http://127.0.0.1:{port}"


@contextmanager
def started(template: dict[str, Any], *what: Any, name: str = "vllm", **more: Any) -> Iterator[str]:
    """Start an engine, wait until it answers, and yield its URL."""
    group, url = start_engine(template, *what, name=name, **more)
    try:
        group.wait_until(answers(f"{url}/health"), what="vLLM", timeout_s=READY_S, needs=(name,))
        yield url
    finally:
        group.stop_all()
