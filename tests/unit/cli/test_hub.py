"""``tonnage plan --hub`` against a hub on loopback."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tonnage.cli.console import Failure
from tonnage.cli.read.hub import config_from_hub

CONFIG = json.dumps({"model_type": "llama"})


@contextmanager
def a_hub(status, body, seen, **second):
    """A hub that has a config.json, and further files by the beginnings of their names."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, self.headers.get("Authorization")))
            name = self.path.rpartition("/")[2].removesuffix(".json")
            found = body if name == "config" else second.get(name)
            self.send_response(404 if found is None else status)
            self.end_headers()
            self.wfile.write((found or "").encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_the_config_of_an_unknown_model_is_fetched_at_its_revision():
    seen = []
    with a_hub(200, CONFIG, seen) as hub:
        environment = {"HF_ENDPOINT": hub, "HF_TOKEN": "hf_secret"}
        text = config_from_hub("nobody/new-model", "abc123", environment=environment)

    assert text == CONFIG
    assert seen[0] == ("/nobody/new-model/resolve/abc123/config.json", "Bearer hf_secret")
    assert [path.rpartition("/")[2] for path, _ in seen[1:]] == [
        "hf_quant_config.json",
        "quantize_config.json",
    ]


def test_a_second_file_of_the_hub_says_how_weights_are_quantized():
    second = json.dumps({"quantization": {"quant_algo": "NVFP4"}})
    with a_hub(200, CONFIG, [], hf_quant_config=second) as hub:
        text = config_from_hub("nobody/new", None, environment={"HF_ENDPOINT": hub})

    assert json.loads(text)["quantization_config"]["quantization"] == {"quant_algo": "NVFP4"}


def test_a_config_with_a_quantization_of_its_own_is_all_that_is_asked_for():
    seen, config = [], json.dumps({"quantization_config": {"quant_method": "fp8"}})
    with a_hub(200, config, seen, hf_quant_config="{}") as hub:
        text = config_from_hub("nobody/new", None, environment={"HF_ENDPOINT": hub})

    assert (text, len(seen)) == (config, 1)


def test_a_model_of_the_catalogue_asks_nobody():
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}

    assert config_from_hub("Qwen/Qwen3-8B", None, environment=nowhere) is None


def test_a_gated_model_says_what_opens_it():
    with a_hub(401, "", []) as hub, pytest.raises(Failure, match=r"401 .*needs HF_TOKEN"):
        config_from_hub("nobody/gated", None, environment={"HF_ENDPOINT": hub})


def test_a_hub_that_is_not_there_is_one_line():
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}

    with pytest.raises(Failure, match="cannot be reached: ConnectionError"):
        config_from_hub("nobody/new-model", None, environment=nowhere)


def test_an_endless_file_is_cut_off():
    with a_hub(200, "x" * (17 << 20), []) as hub, pytest.raises(Failure, match="exceeds"):
        config_from_hub("nobody/large", None, environment={"HF_ENDPOINT": hub})
