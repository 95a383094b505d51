"""A fleet of three that ends 240 requests in each minute, as Prometheus tells it."""

import re

from http_double import json_reply

PER_MINUTE, PODS = 240.0, 3
LADDER = {"1000.0": 0.25, "2000.0": 0.75, "5000.0": 1.0, "+Inf": 1.0}
MEAN_TOKENS = {"vllm:request_prompt_tokens": 1800, "vllm:request_generation_tokens": 1100}


def value_of(query):
    """Series of a query, as one figure."""
    metric, window_s = re.search(r"(vllm:\w+)\{[^}]*\}(?:\[(\d+)s\])?", query).groups()
    ended = PER_MINUTE * float(window_s or 0) / 60
    base = re.sub(r"_(bucket|sum)$", "", metric)
    if query.startswith("count"):
        return [({}, PODS)]
    if metric == "vllm:request_success_total":
        return [({"model_name": "meta-llama/Llama-3.1-8B-Instruct"}, ended)]
    if metric.endswith("_bucket"):
        return [({"le": le}, share * ended) for le, share in LADDER.items()]
    if metric.endswith("_sum"):
        return [({}, MEAN_TOKENS[base] * ended)]
    return [] if "rejections" in metric else [({}, 0.0)]


def fleet(asked, value_of=value_of):
    start, end, step = (float(asked.query[name]) for name in ("start", "end", "step"))
    times = [start + k * step for k in range(round((end - start) / step) + 1)]
    found = [
        {"metric": labels, "values": [[at_s, str(value)] for at_s in times]}
        for labels, value in value_of(asked.query["query"])
    ]
    return json_reply({"status": "success", "data": {"resultType": "matrix", "result": found}})
