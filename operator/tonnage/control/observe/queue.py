"""Which queue the engines of an object get, where its spec leaves that open. Pure."""

from dataclasses import replace
from typing import NamedTuple

from tonnage.api.objects import ModelDeployment
from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.state import ModelState
from tonnage.manifests.children import recorded_queue, spec_digest
from tonnage.sizing.expected import FCFS, queue_of, with_queue


class Settled(NamedTuple):
    """An object whose spec names the queue of its engines."""

    model: ModelDeployment
    note: str = ""
    """Why it is this one; empty: its spec named it."""
    next_queue: str | None = None
    """That comes with the next change of the template; None: it is this one."""


def settle_queue(
    model: ModelDeployment, made_from: str | None, our_digest: str | None = None
) -> Settled:
    """Return an object with its queue: pods that run first come first served go on so.

    Another queue alone replaces no pod. ``made_from``: the spec that the pods that run were made
    from, as recorded; None: none run. ``our_digest``: of the spec of the last template of ours that
    ran; a queue that it had is not given up because somebody put an older template in its place.
    """
    spec, queue = model.spec, queue_of(model.spec)
    if spec.engine is None or spec.engine.queue != "auto" or spec.topology:
        return Settled(model)
    settled = Settled(replace(model, spec=with_queue(spec, queue.name)), f"{queue}")
    is_running = made_from is None or recorded_queue(made_from) == queue.name
    if queue.name == FCFS or is_running or our_digest == spec_digest(settled.model):
        return settled
    note = f"{FCFS} as the pods run; the next change that replaces them brings {queue.name}"
    return Settled(replace(model, spec=with_queue(spec, FCFS)), note, queue.name)


def with_settled_queue(state: ModelState, known: ObjectMemory | None) -> ModelState:
    """Return the object as ``settle_queue`` does, by what runs of it; ``known``: of before."""
    if not isinstance(state.model, ModelDeployment):
        return state
    live, ours = state.deployment, known.writers.digest if known else None
    settled = settle_queue(state.model, None if live is None else live.made_from or "", ours)
    return replace(
        state, model=settled.model, queue_note=settled.note, next_queue=settled.next_queue
    )
