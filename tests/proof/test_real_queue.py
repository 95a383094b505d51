"""The queue's module in real vLLM for CPU: it changes who is admitted first, and nothing else.

    TONNAGE_REAL_VLLM=1 pytest tests/proof/test_real_queue.py

Two engines with one slot each, one with the module, are asked the same: 0.20 and the newest.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import requests
from proof_real import TTFT_S, rendered, started

from tonnage.units import MIB
from tonnage_lab import vllm_cpu, vllm_entry, vllm_site
from tonnage_lab.processes import wait_until

pytestmark = pytest.mark.skipif(
    os.environ.get("TONNAGE_REAL_VLLM") != "1", reason="set TONNAGE_REAL_VLLM=1 to start engines"
)
LISTS: Final = {
    "0.20": Path(__file__).parent / "vllm-cpu-0.20-packages.txt", "0.32": vllm_cpu.PACKAGES
}  # fmt: skip
QUEUES: Final = ("fcfs", "newestFirst")
LIMIT_S: Final = 0.9 * TTFT_S
ASKED: Final[Mapping[str, Any]] = {
    "model": "tonnage-lab/llama-cpu", "prompt": [1, 5, 6], "max_tokens": 5, "temperature": 0,
    "ignore_eos": True, "detokenize": False, "return_token_ids": True,
}  # fmt: skip
NUM_BODIES: Final = 100


@pytest.fixture(scope="module", params=LISTS)
def urls(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Start an engine with each queue, on a core of its own; yield their URLs."""
    packages, config = LISTS[request.param], vllm_site.MODEL_CONFIG.read_text()
    with ExitStack() as stack:
        found = {}
        for number, queue in enumerate(QUEUES):
            template = rendered(vllm_cpu.version(packages), config, queue=queue)
            folder = tmp_path_factory.mktemp(queue)
            found[queue] = stack.enter_context(
                started(
                    template,
                    config,
                    packages,
                    folder,
                    "--max-num-seqs",
                    "1",
                    variables={vllm_entry.GPUS: str(number)},
                )
            )
        yield found


def counted(url: str, name: str) -> float:
    """Return the sum of the series whose name begins so."""
    page = requests.get(f"{url}/metrics", timeout=60).text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))


def await_count(url: str, name: str, number: int) -> None:
    wait_until(
        lambda: counted(url, f"vllm:num_requests_{name}{{") == number,
        what=f"{number} {name}", timeout_s=120, needs={},
    )  # fmt: skip


def running(url: str) -> requests.Response:
    """Begin a stream that takes the slot until it is closed."""
    asked = {**ASKED, "stream": True, "max_tokens": 1000}
    answer = requests.post(f"{url}/v1/completions", json=asked, stream=True, timeout=300)
    await_count(url, "running", 1)
    return answer


@pytest.mark.parametrize("queue", QUEUES)
def test_who_is_admitted_first(urls: Mapping[str, str], queue: str) -> None:
    url, order = urls[queue], list[str]()

    def ask(name: str) -> None:
        answer = requests.post(f"{url}/v1/completions", json=ASKED, timeout=300)
        assert answer.json()["usage"]["completion_tokens"] == ASKED["max_tokens"]
        order.append(name)

    with ThreadPoolExecutor() as pool, running(url) as before:
        asked = []
        for name in ("first", "second", "of the newest"):
            time.sleep(1.1 * LIMIT_S if name == "of the newest" else LIMIT_S / 20)
            asked.append(pool.submit(ask, name))
        await_count(url, "waiting", 3)
        before.close()
        for each in asked:
            each.result()

    newest_first, in_order = (
        ["of the newest", "first", "second"],
        ["first", "second", "of the newest"],
    )
    assert order == (newest_first if queue == "newestFirst" else in_order)


def test_streams_that_begin_in_time_are_of_one_class(
    urls: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As the server's own line says, which begins a class where the last token is old."""
    files = tmp_path_factory.getbasetemp().glob("newestFirst*/tonnage/tonnage_queue.line")
    line = max(files, key=lambda file: file.stat().st_mtime)

    def newest_class_after(pause_s: float) -> float:
        time.sleep(pause_s)
        asked = {**ASKED, "stream": True}
        url = f"{urls['newestFirst']}/v1/completions"
        assert requests.post(url, json=asked, timeout=300).text.endswith("data: [DONE]\n\n")
        return float(memoryview(line.read_bytes()).cast("d")[0])

    first = newest_class_after(2 * LIMIT_S)
    assert [newest_class_after(0.6 * LIMIT_S) for _ in range(5)] == [first] * 5
    assert newest_class_after(1.2 * LIMIT_S) == first + 1


def without_names(body: Any) -> Any:
    """Return what is answered without what no two answers have alike."""
    match body:
        case dict():
            names = ("id", "created", "model", "root", "system_fingerprint")
            return {key: without_names(each) for key, each in body.items() if key not in names}
        case list():
            return [without_names(each) for each in body]
        case str():
            return re.sub(r"(body\W+)\d+", r"\1N", body)  # where JSON ends: behind the priority
        case _:
            return body


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/health", b""),
        ("GET", "/version", b""),
        ("GET", "/v1/models", b""),
        ("GET", "/nowhere", b""),
        ("POST", "/v1/completions", json.dumps(ASKED).encode()),
        ("POST", "/v1/completions", b'\xef\xbb\xbf \n{"prompt": [1, 5]' + b', "max_tokens": 2}'),
        ("POST", "/v1/completions", json.dumps({**ASKED, "prompt": [[1, 5], [6, 7]]}).encode()),
        ("POST", "/v1/completions", json.dumps({**ASKED, "max_tokens": -1}).encode()),
        ("POST", "/v1/completions", json.dumps({**ASKED, "prompt": [7] * 99_999}).encode()),
        ("POST", "/v1/completions", b'{"prompt": [1'),
        ("POST", "/v1/completions", b"{}"),
        ("POST", "/v1/completions", b"[]"),
        ("POST", "/v1/completions", b""),
        ("DELETE", "/v1/completions", b""),
    ],
)
def test_answers_and_refusals_are_the_same(
    urls: Mapping[str, str], method: str, path: str, body: bytes
) -> None:
    def answered(queue: str) -> tuple[int, str | None, Any]:
        said = requests.request(
            method, f"{urls[queue]}{path}", data=body, timeout=300,
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
        kind = said.headers.get("content-type")
        return said.status_code, kind, without_names(said.json()) if said.text else ""

    fcfs, newest_first = map(answered, QUEUES)
    assert fcfs == newest_first


def test_the_metrics_page_has_the_same_series(urls: Mapping[str, str]) -> None:
    pages = [requests.get(f"{urls[queue]}/metrics", timeout=60) for queue in QUEUES]

    def series(page: requests.Response) -> set[str]:
        return {
            line.partition("{")[0].split()[0] for line in page.text.splitlines() if line[0] != "#"
        }

    fcfs, newest_first = map(series, pages)
    assert {name for name in fcfs if name.startswith("vllm:")} <= newest_first
    assert pages[0].headers["content-type"] == pages[1].headers["content-type"]


@pytest.mark.parametrize("queue", QUEUES)
def test_a_stream_comes_token_by_token(urls: Mapping[str, str], queue: str) -> None:
    asked = {**ASKED, "stream": True, "max_tokens": 60}
    with requests.post(
        f"{urls[queue]}/v1/completions", json=asked, stream=True, timeout=300
    ) as answer:
        lines = (line for line in answer.iter_lines() if line)
        first = next(lines)
        num_running = counted(urls[queue], "vllm:num_requests_running{")
        *rest, last = lines

    tokens = [json.loads(each.removeprefix(b"data: "))["choices"] for each in [first, *rest]]
    assert num_running == 1
    assert sum(len(each["token_ids"] or ()) for choices in tokens for each in choices) == 60
    assert last == b"data: [DONE]"


@pytest.mark.parametrize("queue", QUEUES)
def test_who_goes_away_is_dropped_running_or_waiting(urls: Mapping[str, str], queue: str) -> None:
    url = urls[queue]
    ask = partial(requests.post, f"{url}/v1/completions", json=ASKED)
    with ThreadPoolExecutor() as pool, running(url) as first:
        gone = pool.submit(ask, timeout=3)
        await_count(url, "waiting", 1)
        assert isinstance(gone.exception(), requests.Timeout)
        await_count(url, "waiting", 0)
        still = counted(url, "vllm:num_requests_running{")
        first.close()
        await_count(url, "running", 0)

    assert still == 1
    assert ask(timeout=300).json()["usage"]["completion_tokens"] == ASKED["max_tokens"]


def test_no_body_stays_in_the_servers_memory(urls: Mapping[str, str]) -> None:
    """With half of as many as would show if each did."""
    body = json.dumps({**ASKED, "max_tokens": 1, "user": "x" * MIB}).encode()

    def chunks() -> Iterator[bytes]:
        yield from (body[at : at + 10_000] for at in range(0, len(body), 10_000))

    def ask(number: int) -> None:
        for _ in range(number):
            answer = requests.post(
                f"{urls['newestFirst']}/v1/completions", data=chunks(), timeout=300,
                headers={"Content-Type": "application/json"},
            )  # fmt: skip
            assert answer.status_code == 200, answer.text

    ask(20)
    before = counted(urls["newestFirst"], "process_resident_memory_bytes")
    ask(NUM_BODIES)
    after = counted(urls["newestFirst"], "process_resident_memory_bytes")

    assert before > 0
    assert after - before < NUM_BODIES / 2 * MIB
