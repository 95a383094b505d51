"""An OpenAI-compatible endpoint that answers at once and counts as a test says."""

import json
from dataclasses import dataclass, field

from http_double import Asked, Reply, json_reply

MODEL = "meta-llama/Llama-3.2-1B"


@dataclass(kw_only=True)
class EndpointDouble:
    """Called for each request; a test changes what it is about."""

    models: tuple = ("m",)
    version: str | None = "0.33.0"
    max_model_len: int = 4096
    running: float = 0
    has_metrics: bool = True
    started: tuple = (1_700_000_000.0,)
    """When the process began: of several servers in turn, one for each reading."""
    engines: int = 1
    counted: float = 1.0
    """Of what is answered, that the engine counts."""
    others: int = 0
    """Requests of others that end between two readings."""
    cached: float = 0.0
    drafts: int = 0
    key: str | None = None
    failing: tuple = ()
    """Numbers of the requests that answer 500."""
    labels: str = ""
    answered: int = 0
    prompt_tokens: int = 0
    readings: int = 0
    prompts: list = field(default_factory=list)

    def __call__(self, asked: Asked) -> Reply:
        if self.key and asked.headers.get("Authorization") != f"Bearer {self.key}":
            return json_reply({"error": "no"}, status=401)
        match asked.path:
            case "/v1/models":
                return json_reply({"data": [self._model(name) for name in self.models]})
            case "/version":
                return json_reply({"version": self.version}, 200 if self.version else 404)
            case "/metrics":
                return Reply(body=self._page().encode()) if self.has_metrics else Reply(status=404)
            case "/v1/completions":
                return self._complete(asked.json())
        return Reply(status=404)

    def _model(self, name):
        return {"id": name, "root": "/models/x", "max_model_len": self.max_model_len}

    def _page(self):
        self.readings += 1
        begun = self.started[self.readings % len(self.started)]
        done = self.answered * self.counted + self.others * self.readings
        lines = [f"process_start_time_seconds {begun}"]
        for engine in range(self.engines):
            own = f'{{engine="{engine}",model_name="m"{self.labels}}}'
            share = 1 if engine == 0 else 0
            lines += [
                f"vllm:num_requests_running{own} {self.running * share}",
                f"vllm:num_requests_waiting{own} 0",
                f"vllm:request_success_total{own} {done * share}",
                f"vllm:prefix_cache_queries_total{own} {self.prompt_tokens * share}",
                f"vllm:prefix_cache_hits_total{own} {self.cached * self.prompt_tokens * share}",
                f"vllm:spec_decode_num_drafts_total{own} {self.drafts * share}",
                f'vllm:cache_config_info{{engine="{engine}",kv_cache_size_tokens="100000",'
                'gpu_memory_utilization="0.9"} 1',
            ]
        return "\n".join(lines) + "\n"

    def _complete(self, body):
        self.answered += 1
        if self.answered in self.failing:
            return json_reply({"error": "overloaded"}, status=500)
        self.prompts.append(tuple(body["prompt"]))
        self.prompt_tokens += len(body["prompt"])
        token = {"choices": [{"text": " x", "finish_reason": None}], "usage": None}
        number = body["max_tokens"]
        ending = {"choices": [], "usage": {"completion_tokens": number}}
        events = [*[json.dumps(token)] * number, json.dumps(ending), "[DONE]"]
        text = "".join(f"data: {event}\n\n" for event in events)
        return Reply(body=text.encode(), headers={"Content-Type": "text/event-stream"})
