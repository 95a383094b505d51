"""vLLM for CPU starts with what is rendered, and answers: the oldest and the newest there are.

    TONNAGE_REAL_VLLM=1 pytest tests/proof/test_real_engines.py

Each is installed once, 6 GB of packages. What a CPU cannot show: the kernels of GPUs, and flags of
formats and parallelism that only they have; ``README.md`` has those, from the engines' sources.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from tonnage.api.objects import parse_model_deployment
from tonnage.manifests.children import Site, deployment
from tonnage.manifests.names import QUEUE_ANNOTATION
from tonnage_lab import vllm_cpu, vllm_entry, vllm_site
from tonnage_lab.cpu_class import CoreFigures
from tonnage_lab.processes import ProcessGroup, answers, free_ports

pytestmark = pytest.mark.skipif(
    os.environ.get("TONNAGE_REAL_VLLM") != "1", reason="set TONNAGE_REAL_VLLM=1 to start engines"
)
A_CORE = CoreFigures(read_bytes_per_s=16e9, copy_bytes_per_s=6e9, bf16_flop_per_s=90e9)
READY_S = 900.0
LISTS = {"oldest": vllm_cpu.OLDEST_PACKAGES, "newest": vllm_cpu.PACKAGES}


QUEUES = ("fcfs", "newestFirst")
TTFT_S = 2


def rendered(version: str, config: str, queue: str = "fcfs") -> dict[str, Any]:
    """Return the pod template that the operator would write for this model on this version."""
    real = vllm_site.site_of(Path(sys.executable), A_CORE, num_cores=2)
    manifest = dict(real.manifest)
    minor = ".".join(version.split(".")[:2])
    args = ["--load-format=dummy", "--enforce-eager"]
    engine = {"version": minor, "args": args, "queue": queue}
    slo = {"timeToFirstToken": {"p95": f"{TTFT_S}s"}}
    manifest["spec"] = {**manifest["spec"], "engine": engine, "slo": slo}
    made = parse_model_deployment(manifest)
    sizing = vllm_site.cpu_class.fitting(
        made.spec, config, real.gpu, kv_bytes=vllm_site.KV_SPACE_GIB * 2**30
    )[1]
    site = Site(has_pod_monitors=False, scrape_interval_s=5)
    return dict(deployment(made, sizing, site)["spec"]["template"])


@pytest.fixture(params=["bfloat16", "float16"])
def config(request: pytest.FixtureRequest) -> str:
    return json.dumps(
        json.loads(vllm_site.MODEL_CONFIG.read_text()) | {"torch_dtype": request.param}
    )


@contextmanager
def started(
    template: dict[str, Any], config: str, packages: Path, folder: Path, *more: str
) -> Iterator[str]:
    """Start vLLM as the template says, with further arguments, and yield its URL."""
    python = vllm_cpu.ensure(packages=packages)
    (folder / "config.json").write_text(config)
    (port,) = free_ports(1)
    (container,) = template["spec"]["containers"]
    program, *command = container["command"]
    assert program == "vllm"
    if module := template["metadata"].get("annotations", {}).get(QUEUE_ANNOTATION):
        (folder / "tonnage").mkdir()
        (folder / "tonnage/tonnage_queue.py").write_text(module)
    here = {"/cache": str(folder / "cache"), "/etc/tonnage": str(folder / "tonnage")}
    environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    for theirs, ours in here.items():
        environment = {name: each.replace(theirs, ours) for name, each in environment.items()}
    group = ProcessGroup(logs=folder)
    group.start(
        "vllm",
        [python, "-P", vllm_entry.__file__, *command, *container["args"], *more,
         "--host", "127.0.0.1", "--port", str(port)],
        environment={
            **environment,
            vllm_entry.MODEL_CONFIG: str(folder / "config.json"),
            vllm_entry.KV_SPACE_GIB: str(vllm_site.KV_SPACE_GIB),
            vllm_entry.GPUS: "0",
        },
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        group.wait_until(answers(f"{url}/health"), what="vLLM", timeout_s=READY_S, needs=("vllm",))
        yield url
    finally:
        group.stop_all()


@pytest.fixture(params=LISTS)
def served(request: pytest.FixtureRequest, config: str, tmp_path: Path) -> Iterator[str]:
    """Start the engine with the container's command, arguments and environment; yield its URL."""
    packages = LISTS[request.param]
    template = rendered(vllm_cpu.version(packages), config)
    with started(template, config, packages, tmp_path) as url:
        yield url


@pytest.mark.parametrize("queue", QUEUES)
def test_who_is_admitted_first(queue: str, tmp_path: Path) -> None:
    """On the newest: the oldest is refused for its priorities."""
    packages = vllm_cpu.PACKAGES
    config = vllm_site.MODEL_CONFIG.read_text()
    template = rendered(vllm_cpu.version(packages), config, queue)
    order: list[str] = []

    def ask(url: str, name: str, tokens: int) -> None:
        asked = {
            "model": "tonnage-lab/llama-cpu", "prompt": [1, 5, 6], "max_tokens": tokens,
            "ignore_eos": True,
        }  # fmt: skip
        answer = requests.post(f"{url}/v1/completions", json=asked, timeout=300)
        assert answer.json()["usage"]["completion_tokens"] == tokens
        order.append(name)

    with (
        started(template, config, packages, tmp_path, "--max-num-seqs", "1") as url,
        ThreadPoolExecutor() as pool,
    ):
        time.sleep(TTFT_S - time.time() % TTFT_S)  # the first two arrive in one stretch
        asked = [pool.submit(ask, url, "running", 1000)]
        for name in ("first", "second", "of the newest"):
            time.sleep(TTFT_S if name == "of the newest" else 0.3)
            asked.append(pool.submit(ask, url, name, 5))
        for each in asked:
            each.result()

    newest_first = ["running", "of the newest", "first", "second"]
    in_order = ["running", "first", "second", "of the newest"]
    assert order == (newest_first if queue == "newestFirst" else in_order)


def test_it_starts_in_the_checkpoints_own_type_and_answers(served: str) -> None:
    asked = {
        "model": "tonnage-lab/llama-cpu", "prompt": [1, 5, 6], "max_tokens": 5,
        "ignore_eos": True, "detokenize": False,
    }  # fmt: skip
    answer = requests.post(f"{served}/v1/completions", json=asked, timeout=120)
    page = requests.get(f"{served}/metrics", timeout=30).text
    (cache,) = [each for each in page.splitlines() if each.startswith("vllm:cache_config_info{")]

    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 5
    assert 'cache_dtype="auto"' in cache
