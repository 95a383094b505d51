"""vLLM for CPU starts with what is rendered, and answers: the oldest and the newest there are.

    TONNAGE_REAL_VLLM=1 pytest tests/proof/test_real_engines.py

Each is installed once, 6 GB of packages. What a CPU cannot show: the kernels of GPUs, and flags of
formats and parallelism that only they have; ``README.md`` has those, from the engines' sources.
"""

import itertools
import json
import math
import os
import random
import re
import socket
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import requests
from proof_real import rendered, start_engine, started
from proof_sources import installed

from fleet_builders import SITE, a_model_over_nodes, a_sizing
from tonnage.manifests.arguments import argument_pairs
from tonnage.manifests.children import deployment
from tonnage_lab import vllm_cpu, vllm_site
from tonnage_lab.assets import cache_folder
from tonnage_lab.processes import free_ports, wait_until

pytestmark = pytest.mark.skipif(
    os.environ.get("TONNAGE_REAL_VLLM") != "1", reason="set TONNAGE_REAL_VLLM=1 to start engines"
)
LISTS = {"oldest": vllm_cpu.OLDEST_PACKAGES, "newest": vllm_cpu.PACKAGES}


@pytest.fixture(params=["bfloat16", "float16"])
def config(request: pytest.FixtureRequest) -> str:
    return json.dumps(
        json.loads(vllm_site.MODEL_CONFIG.read_text()) | {"torch_dtype": request.param}
    )


@pytest.fixture(params=LISTS)
def served(request: pytest.FixtureRequest, config: str, tmp_path: Path) -> Iterator[str]:
    """Start the engine with the container's command, arguments and environment; yield its URL."""
    packages = LISTS[request.param]
    template = rendered(vllm_cpu.version(packages), config)
    with started(template, config, packages, tmp_path) as url:
        yield url


def test_who_comes_while_too_many_prompt_tokens_wait_is_refused_and_counted(tmp_path: Path) -> None:
    packages = vllm_cpu.PACKAGES
    config = vllm_site.MODEL_CONFIG.read_text()
    template = rendered(vllm_cpu.version(packages), config, admission="inTime")
    (container,) = template["spec"]["containers"]
    most = int(dict(argument_pairs(container["args"]))["--max-num-queued-tokens"])

    def ask(url: str, prompt_tokens: int, tokens: int) -> requests.Response:
        asked = {
            "model": "tonnage-lab/llama-cpu", "prompt": [5] * prompt_tokens, "max_tokens": tokens,
            "ignore_eos": True,
        }  # fmt: skip
        return requests.post(f"{url}/v1/completions", json=asked, timeout=300)

    def counted(url: str, series: str) -> float:
        page = requests.get(f"{url}/metrics", timeout=60).text
        lines = [line for line in page.splitlines() if line.startswith("vllm:" + series)]
        return sum(float(line.split()[-1]) for line in lines if "queued_reqs" not in line)

    with (
        started(template, config, packages, tmp_path, "--max-num-seqs", "1") as url,
        ThreadPoolExecutor() as pool,
    ):
        running = pool.submit(ask, url, 3, 1000)
        soon = partial(wait_until, timeout_s=60, needs={})
        soon(lambda: counted(url, "num_requests_running{") == 1, what="a running one")
        taken = [pool.submit(ask, url, most // 2 + 1, 5) for _ in range(2)]
        soon(lambda: counted(url, "num_requests_waiting{") == 2, what="a queue")
        refused = ask(url, 3, 5)
        assert not running.done()
        assert [each.result().status_code for each in (running, *taken)] == [200] * 3
        again = ask(url, 3, 5)
        rejections = counted(url, "admission_rejections_total{")

    assert refused.status_code == 503
    assert "prefill token backlog limit" in refused.text
    assert again.status_code == 200
    assert rejections == 1


CONTEXTUAL: Mapping[str, Any] = {
    "torch_dtype": "float16", "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4,
}  # fmt: skip
"""Over the lab's model: one whose weights can be written here. Those of ``--load-format=dummy`` are
so small that an answer depends on the last token alone, whatever the cache holds."""
PROMPT_TOKENS, ANSWER_TOKENS = 300, 5


def weights_of(config: Mapping[str, Any]) -> dict[str, Sequence[int]]:
    """Return the shapes of a Llama's weights, by name."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    embedding = (config["vocab_size"], hidden)
    found: dict[str, Sequence[int]] = {
        "model.embed_tokens.weight": embedding, "model.norm.weight": (hidden,),
        "lm_head.weight": embedding,
    }  # fmt: skip
    for number in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }  # fmt: skip
        found |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    return found


def write_checkpoint(config: Mapping[str, Any], file: Path) -> None:
    """Write random weights of a size that lets each layer, and each token before, count."""
    chance = random.Random(1)  # noqa: S311
    header: dict[str, Any] = {}
    data = bytearray()
    for name, shape in weights_of(config).items():
        begin, number = len(data), math.prod(shape)
        deviation = 2 / math.sqrt(shape[-1])
        values = (
            [1.0] * number
            if len(shape) == 1
            else [chance.gauss(0, deviation) for _ in range(number)]
        )
        data += struct.pack(f"<{number}e", *values)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    file.parent.mkdir(parents=True)
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def with_checkpoint(folder: Path) -> str:
    """Write a checkpoint whose answers hang on all of a prompt, and return its config.json."""
    config = json.loads(vllm_site.MODEL_CONFIG.read_text()) | CONTEXTUAL
    write_checkpoint(config, folder / "cache/vllm/models/tonnage-lab/llama-cpu/model.safetensors")
    return json.dumps(config)


def random_prompts(number: int, seed: int) -> list[list[int]]:
    chance = random.Random(seed)  # noqa: S311
    return [
        [chance.randrange(3, CONTEXTUAL["vocab_size"]) for _ in range(PROMPT_TOKENS)]
        for _ in range(number)
    ]


@pytest.fixture(scope="module")
def nixl() -> Path:
    """Return the folder of what hands caches over: an image has it, vLLM for CPU does not."""
    try:
        return installed(Path(__file__).parent / "nixl-packages.txt", cache_folder() / "proof")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"NIXL cannot be installed: {error.stderr or error}")


def answer(url: str, prompt: Sequence[int], **more: Any) -> dict[str, Any]:
    asked = {
        "model": "tonnage-lab/llama-cpu", "prompt": prompt, "max_tokens": ANSWER_TOKENS,
        "temperature": 0, "ignore_eos": True, "detokenize": False, "return_token_ids": True, **more,
    }  # fmt: skip
    said = requests.post(f"{url}/v1/completions", json=asked, timeout=300)
    assert said.status_code == 200, said.text
    return dict(said.json())


def tokens_of(said: Mapping[str, Any]) -> list[int]:
    return list(said["choices"][0]["token_ids"])


def read_first(prefill: str, prompt: Sequence[int]) -> Any:
    """Let an engine read a prompt, as vLLM's proxy does; return what to tell the other one."""
    nobody = ("engine_id", "block_ids", "host", "port")
    asked: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
    asked |= {f"remote_{name}": None for name in nobody}
    said = answer(prefill, prompt, max_tokens=1, stream=False, kv_transfer_params=asked)
    return said["kv_transfer_params"]


def prompt_tokens(url: str) -> Counter[str]:
    """Return the prompt tokens that an engine has counted, by their source."""
    page = requests.get(f"{url}/metrics", timeout=30).text
    found = re.findall(r"^vllm:prompt_tokens_by_source_total{(.*)} (.*)$", page, re.MULTILINE)
    return Counter({labels.split('source="')[1].split('"')[0]: float(n) for labels, n in found})


def figure(page: str, name: str) -> float:
    """Return the one series of a page whose name, or name and labels, begin so."""
    (found,) = re.findall(rf"^{name}.* (\S+)$", page, re.MULTILINE)
    return float(found)


def waiting(url: str, reason: str) -> float:
    page = requests.get(f"{url}/metrics", timeout=30).text
    return figure(page, rf'vllm:num_requests_waiting_by_reason{{.*reason="{reason}"')


def is_closed(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return False
    except OSError:
        return True


def test_decode_takes_the_cache_of_a_prompt_and_computes_it_once_prefill_is_gone(
    nixl: Path, tmp_path: Path
) -> None:
    """Both with what is rendered for their role: on loopback only the ports have to differ.

    The counter says that all of a prompt was taken. Its last token is computed again all the same.
    """
    prompt, other, late = random_prompts(3, seed=2)
    other[-1] = prompt[-1]
    packages = vllm_cpu.PACKAGES
    config = with_checkpoint(tmp_path)
    ports = dict(zip(("prefill", "decode"), free_ports(2), strict=True))

    def engine(role: str) -> AbstractContextManager[str]:
        template = rendered(vllm_cpu.version(packages), config, role=role)
        variables = {
            "PYTHONPATH": str(nixl),
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(ports[role]),
        }
        return started(
            template, config, packages, tmp_path, "--load-format=safetensors",
            name=role, variables=variables,
        )  # fmt: skip

    with engine("decode") as decode:
        with engine("prefill") as prefill:
            alone = {
                each: tokens_of(answer(prefill, each)) for each in map(tuple, (prompt, other, late))
            }
            given = read_first(prefill, prompt)
            before = prompt_tokens(decode)
            taken = tokens_of(answer(decode, prompt, kv_transfer_params=given))
            by_transfer = prompt_tokens(decode) - before
            left_late, left_other = read_first(prefill, late), read_first(prefill, other)
        before = prompt_tokens(decode)
        taken_from_the_ending = tokens_of(answer(decode, other, kv_transfer_params=left_other))
        by_the_ending = prompt_tokens(decode) - before
        wait_until(  # it keeps a cache that nobody has taken for 30 s
            partial(is_closed, ports["prefill"]), what="the end of prefill", timeout_s=120, needs={}
        )
        before = prompt_tokens(decode)
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(answer, decode, late, kv_transfer_params=left_late)
            deferred = [waiting(decode, "deferred")]
            while wait([asked], timeout=0.2).not_done:
                deferred.append(waiting(decode, "deferred"))
        computed = tokens_of(asked.result())
        by_computing = prompt_tokens(decode) - before

    assert taken == alone[tuple(prompt)] != alone[tuple(other)]
    assert by_transfer == {"external_kv_transfer": PROMPT_TOKENS}
    assert taken_from_the_ending == alone[tuple(other)]
    assert by_the_ending == {"external_kv_transfer": PROMPT_TOKENS}
    assert computed == alone[tuple(late)]
    assert by_computing == {"local_compute": PROMPT_TOKENS}
    assert max(deferred) == 1


COPYING: Final = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "HostCacheOnCpu", "spec_module_path": "host_cache_on_cpu",
    },
}  # fmt: skip
"""What vLLM makes of the rendered flags, but for the copies."""
BLOCK_TOKENS: Final = 128
"""Of vLLM for CPU."""


def test_a_prompt_that_left_the_gpu_cache_is_read_from_host_memory(tmp_path: Path) -> None:
    """With the flags that are rendered, and a cache of eight blocks in front of it."""
    prompt, *others = random_prompts(5, seed=3)
    packages = vllm_cpu.PACKAGES
    config = with_checkpoint(tmp_path)
    version = vllm_cpu.version(packages)
    template = rendered(version, config, model={"kvOffload": {"gib": 1}})
    further = (
        "--load-format=safetensors", "--num-gpu-blocks-override", "8", "--max-model-len", "512",
        "--kv-transfer-config", json.dumps(COPYING),
    )  # fmt: skip
    variables = {"PYTHONPATH": str(Path(__file__).parent)}

    with started(template, config, packages, tmp_path, *further, variables=variables) as url:
        first = tokens_of(answer(url, prompt))
        at_first = +prompt_tokens(url)
        for each in others:
            answer(url, each)
        before = prompt_tokens(url)
        again = tokens_of(answer(url, prompt))
        by_again = prompt_tokens(url) - before
        page = requests.get(f"{url}/metrics", timeout=30).text

    held = PROMPT_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS
    assert "--kv-offloading-size" in template["spec"]["containers"][0]["args"]
    assert again == first
    assert at_first == {"local_compute": PROMPT_TOKENS}
    assert by_again == {"external_kv_transfer": held, "local_compute": PROMPT_TOKENS - held}
    assert figure(page, "vllm:external_prefix_cache_hits_total") == held
    assert figure(page, "vllm:prefix_cache_hits_total") == 0
    assert figure(page, 'vllm:prompt_tokens_cached_by_source_total{.*source="host"') == held
    assert figure(page, "vllm:kv_offload_load_bytes_total") > 0


JOINING: Final = ("--data-parallel-size", "--nnodes", "--node-rank", "--master-addr",
                  "--master-port", "--headless")  # fmt: skip
"""What makes one engine of the processes on several nodes."""


def joining(template: str, here: Mapping[str, str]) -> list[str]:
    """Return the arguments by which a pod of sixteen data-parallel ranks on two nodes joins.

    ``here``: by what is rendered, what it is on this machine.
    """
    hardware = {"gpu": "H100", "parallelism": {"data": 16}, "nodeLink": "400Gb/s"}
    model = a_model_over_nodes(hardware=hardware)
    manifest = deployment(model, a_sizing(model), SITE)
    (container,) = manifest["spec"]["leaderWorkerTemplate"][template]["spec"]["containers"]
    pairs = dict(argument_pairs(container["args"]))
    valued = {name: here.get(value, value) for name, value in pairs.items() if name in JOINING}
    headless = ["--headless"] if valued.pop("--headless", None) is not None else []
    return [*itertools.chain.from_iterable(valued.items()), *headless]


def test_data_parallel_ranks_on_two_nodes_are_one_engine(tmp_path: Path) -> None:
    """On loopback, a rank on each; the experts of a model are beyond vLLM for CPU."""
    packages, config = vllm_cpu.PACKAGES, vllm_site.MODEL_CONFIG.read_text()
    template = rendered(vllm_cpu.version(packages), config)
    here = {"16": "2", "$(LWS_WORKER_INDEX)": "1", "$(LWS_LEADER_ADDRESS)": "127.0.0.1"}
    leader, worker = (joining(f"{each}Template", here) for each in ("leader", "worker"))
    asked = {
        "model": "tonnage-lab/llama-cpu", "prompt": [1, 5, 6], "max_tokens": 5,
        "ignore_eos": True, "detokenize": False,
    }  # fmt: skip
    folder = tmp_path / "worker"
    folder.mkdir()
    group, _ = start_engine(template, config, packages, folder, *worker, name="worker")
    try:
        with (
            started(template, config, packages, tmp_path, *leader) as url,
            ThreadPoolExecutor(8) as pool,
        ):
            ask = partial(requests.post, f"{url}/v1/completions", json=asked, timeout=120)
            codes = list(pool.map(lambda _: ask().status_code, range(16)))
            page = requests.get(f"{url}/metrics", timeout=30).text
    finally:
        group.stop_all()

    of_ranks = [figure(page, f'vllm:generation_tokens_total{{engine="{rank}"') for rank in (0, 1)]
    assert worker[-1] == "--headless" != leader[-1]
    assert codes == [200] * 16
    assert sum(of_ranks) == 16 * 5
    assert min(of_ranks) > 0


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
