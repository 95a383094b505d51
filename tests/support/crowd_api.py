"""The query API of Prometheus for a crowd of pods of few kinds, and cheap to ask.

An answer is laid out once for each set of pods. Later only its times move, and the count of
requests that ended: a figure that is asked for again is to the digit what it was.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from http_double import Asked, Reply
from measured_builders import an_engine
from query_api import Figures, QueryApi, compact
from tonnage.estimate.speed import busy_window, predicted_gap_s, predicted_prefill_s, prompt_shape
from tonnage.sizing.plan import Sizing

NOBODY = ("@namespace", "@pod")
RATE = 0.2
"""Requests/s of a pod: far from what it serves."""
STEPS = 20
"""Until figures and what is predicted of them agree."""
REST = {
    "preemptions": 0,
    "prefills": RATE,
    "ttft": dict.fromkeys(("1.0", "2.5", "+Inf"), RATE),
    "tpot": dict.fromkeys(("0.05", "+Inf"), RATE),
}
Pods = Iterable[tuple[str, str]]


def calm(sizing: Sizing) -> Figures:
    """Return what an engine reports that is as fast as its plan says: all its constants hold."""
    workload, speed = sizing.request.workload, {"gap_s": 0.02, "prefill_s": 0.1}
    tokens = RATE * workload.new_prompt_tokens
    gaps = RATE * (workload.output_tokens - 1)
    prompts = prompt_shape(workload, max_batched_tokens=sizing.flags.max_num_batched_tokens)
    for _ in range(STEPS):
        samples = an_engine(
            running=1,
            mean_running=1,
            computed_prompt_tokens_per_s=tokens,
            token_gaps_per_s=gaps,
            token_gap_s_per_s=gaps * speed["gap_s"],
            prefills_per_s=RATE,
            prefill_s_per_s=RATE * speed["prefill_s"],
        )
        window = busy_window(
            samples,
            window_s=60,
            context_tokens=workload.mean_context_tokens,
            prompts=prompts,
            flags=sizing.flags,
        )
        model = sizing.replica.model
        speed["gap_s"] = predicted_gap_s(model, window)
        speed["prefill_s"] = predicted_prefill_s(model, window)
    running = gaps * speed["gap_s"] + RATE * speed["prefill_s"]
    return REST | {
        "running": running,
        "token_gap_s": gaps * speed["gap_s"],
        "token_gaps": gaps,
        "prefill_s": RATE * speed["prefill_s"],
        "finished": RATE,
        "finished_prompt_tokens": RATE * workload.prompt.mean_tokens,
        "finished_output_tokens": RATE * workload.output_tokens,
        "started": RATE,
        "started_prompt_tokens": RATE * workload.prompt.mean_tokens,
        "computed_prompt_tokens": tokens,
    }


@dataclass(kw_only=True)
class CrowdApi(QueryApi):
    """Tells of every pod that it was shown last what its kind does."""

    kinds: Sequence[Figures]
    kind_of: Callable[[str], int] = lambda pod: 0
    """From the name of a pod to which of them it is."""
    clock: Callable[[], float] = time.time
    told_for_s: float = 0.0
    """For so long a question is answered by the same bytes: as between two scrapes."""
    _of_kinds: list[QueryApi] = field(default_factory=list)
    _told: dict[bytes, tuple[float, Reply]] = field(default_factory=dict)
    """When, and what, by question."""

    def __post_init__(self) -> None:
        self._of_kinds = [
            QueryApi(completions_per_s={NOBODY: RATE}, figures=figures, interval_s=self.interval_s)
            for figures in self.kinds
        ]

    def __call__(self, request: Asked) -> Reply:
        now_s = self.clock()
        if not request.body:  # of the past: its query is in the path
            return super().__call__(request)
        at_s, reply = self._told.get(request.body, (-math.inf, None))
        if reply is None or now_s - at_s >= self.told_for_s:
            self.now_s = now_s
            reply = super().__call__(request)
            self._told[request.body] = now_s, reply
        return reply

    def show(self, pods: Pods) -> None:
        """From now on tell of these, by (namespace, name)."""
        shown = dict.fromkeys(sorted(pods), RATE)
        if shown != self.completions_per_s:
            self.completions_per_s, self._told = shown, {}

    def reply(self, name: str, namespaces: tuple[str, ...] = (), **more: object) -> Reply:
        self.asked.clear()
        texts, (namespace, pod) = list[str](), NOBODY
        for each in self._of_kinds:
            each.now_s, each.windows_s = self.now_s, self.windows_s
            found = json.loads(each.reply(name).body)["data"]["result"]
            texts.append(",".join(map(compact, found)))
        told = (
            texts[self.kind_of(key[1])].replace(namespace, key[0]).replace(pod, key[1])
            for key in self.completions_per_s
            if not namespaces or key[0] in namespaces
        )
        data = f'{{"resultType":"matrix","result":[{",".join(filter(None, told))}]}}'
        return Reply(body=f'{{"status":"success","data":{data}}}'.encode())
