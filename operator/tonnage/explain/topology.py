"""What a plan is asked beside: roles apart, and a cache in the host's memory."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tonnage.api.hardware import ROLES
from tonnage.api.spec import Spec
from tonnage.explain.report import round_estimate
from tonnage.explain.words import Answer
from tonnage.sizing.expected import hands_over
from tonnage.sizing.offload import break_even_bytes_per_s, host_cache_gib
from tonnage.sizing.plan import Sizing
from tonnage.sizing.roles import Comparison, Divided, Rank
from tonnage.units import count_of, format_bytes, format_s, format_si, significant

RUN_APART: Final = "spec.topology runs both, behind a proxy of yours"
NOT_RUN: Final = "the operator runs no roles of a model with windows or states"


def roles_verdict(found: Comparison, *, link_is_assumed: bool) -> tuple[Answer, dict[str, Any]]:
    """Return whether roles apart cost less, and why: in words and as data."""
    apart, message = found.divided, _weighed(found)
    lines = _role_lines(apart, link_is_assumed=link_is_assumed) if apart else ()
    question = "Would prefill and decode apart cost less?"
    verdict = "Apart" if found.is_apart else "Unified"
    return Answer(question=question, answer=message, lines=tuple(lines)), {
        "verdict": verdict if found.is_weighed else "NotWeighed",
        "message": message,
        "unified": {"replicas": found.replicas, **_cost_figures(found.rank)},
        **({"apart": _apart_figures(apart, link_is_assumed)} if apart else {}),
    }


def _weighed(found: Comparison) -> str:
    if not found.is_weighed:
        return f"not weighed: {found.refusal}"
    if found.divided is None:
        return f"no: {found.refusal}"
    prefill, decode = found.divided.replicas
    currency = found.unified.request.gpu.price.currency
    apart = f"{prefill} prefill + {count_of(decode, 'decode replica')}"
    both = f"{count_of(found.replicas, 'replica')} for both {_cost(found.rank, currency)}"
    if found.is_short:
        most = found.unified.request.max_replicas
        both = f"one fleet needs {found.replicas}, maxReplicas allows {most}"
    cost = _cost(found.divided.rank, currency)
    how = RUN_APART if hands_over(found.unified.request.shape) else NOT_RUN
    return f"{'yes' if found.is_apart else 'no'}: {apart} {cost}, {both}; {how}"


def _cost(rank: Rank, currency: str) -> str:
    (has_no_price, amount), num_gpus = rank
    if has_no_price:
        return f"take {count_of(num_gpus, 'GPU')}"
    return f"({count_of(num_gpus, 'GPU')}) cost {amount:.2f} {currency} per hour"


def _role_lines(apart: Divided, *, link_is_assumed: bool) -> Iterator[str]:
    for name, number, sizing in _roles(apart):
        flags = sizing.flags
        yield (
            f"{name}: {number} x {flags.parallelism}, max-num-seqs {flags.max_num_seqs}, "
            f"max-num-batched-tokens {flags.max_num_batched_tokens}; each keeps its part of the "
            f"targets up to {significant(sizing.goodput_requests_per_s)} requests/s"
        )
    node = count_of(apart.decode.request.gpu.gpus_per_node, "GPU")
    origin = f"assumed: as within a node of {node}; --kv-link says otherwise"
    yield (
        f"transfer: {format_bytes(apart.sent_bytes)} per prompt and prefill GPU in "
        f"{format_s(apart.sent_bytes / apart.link_bytes_per_s)} over "
        f"{format_si(apart.link_bytes_per_s, 'B/s')} per GPU "
        f"({origin if link_is_assumed else 'given'})"
    )
    yield str(apart)


def _roles(apart: Divided) -> Iterator[tuple[str, int, Sizing]]:
    yield from zip(ROLES, apart.replicas, (apart.prefill, apart.decode), strict=True)


def _cost_figures(rank: Rank) -> dict[str, Any]:
    (has_no_price, amount), num_gpus = rank
    return {"gpus": num_gpus, **({} if has_no_price else {"costPerHour": amount})}


def _apart_figures(apart: Divided, link_is_assumed: bool) -> dict[str, Any]:
    roles = {
        name: {
            "replicas": number,
            "parallelism": str(sizing.parallelism),
            "maxNumSeqs": sizing.flags.max_num_seqs,
            "maxNumBatchedTokens": sizing.flags.max_num_batched_tokens,
        }
        for name, number, sizing in _roles(apart)
    }
    return {
        **_cost_figures(apart.rank),
        **roles,
        "linkBytesPerSecond": apart.link_bytes_per_s,
        "linkIsAssumed": link_is_assumed,
        "transferSeconds": round_estimate(apart.sent_bytes / apart.link_bytes_per_s),
        "decodeTimeToFirstTokenSeconds": round_estimate(apart.decode_s),
    }


def offload_answer(spec: Spec, sizing: Sizing, figures: Mapping[str, Any]) -> Answer:
    """Return whether a cache in the host's memory is worth it, and why."""
    given = spec.model.kv_offload
    rate = format_si(break_even_bytes_per_s(sizing), "B/s")
    beats = f"reading beats computing where a GPU reads more than {rate} from the host"
    lines = [beats] if figures.get("isWorthIt") else []
    if given is not None and sizing.request.has_host_cache:
        gib = host_cache_gib(given, sizing)
        lines.insert(0, f"model.kvOffload gives each replica {gib} GiB")
    return Answer(
        question="Is a KV cache in host memory worth it?",
        answer=figures["message"],
        lines=tuple(lines),
    )
