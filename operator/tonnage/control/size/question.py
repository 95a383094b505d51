"""What one object asks of sizing, as specified or as it runs: by what is measured and believed."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from tonnage.api.hardware import ParallelSizes
from tonnage.api.objects import ModelDeployment
from tonnage.api.spec import Spec
from tonnage.api.status import Reason
from tonnage.catalog.gpu import Gpu
from tonnage.catalog.models import overrides_in
from tonnage.catalog.shape import ModelShape
from tonnage.control.input.sizing_cache import SizingCache
from tonnage.control.input.state import Assessment, Fleet, ModelState
from tonnage.control.learn.believed import asked_with, belief, near_posterior, with_known_cache
from tonnage.control.measure.remembered import lengths_of, near_lengths
from tonnage.control.observe.starting import has_started
from tonnage.estimate.demand import MeasuredLengths
from tonnage.estimate.planning_constants import Belief
from tonnage.estimate.posterior import SpeedPosterior
from tonnage.manifests.children import running_model, spec_digest
from tonnage.manifests.target import UNREAD, RefusedError, target_request, target_version
from tonnage.memoize import memoize
from tonnage.sizing.errors import SLOInfeasibleError
from tonnage.sizing.memory.prefix import with_whole_blocks
from tonnage.sizing.plan import Sizing
from tonnage.sizing.provenance import (
    Figure,
    Origin,
    arrivals_input,
    lengths_inputs,
    with_changed,
    without_figures,
)
from tonnage.sizing.request import Flags, SizingRequest, ask, look_up
from tonnage.sizing.resized import size_slow
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Lengths, Workload


def is_spec_ahead(state: ModelState) -> bool:
    """Tell whether our Deployment was made for another spec, or is yet to be made."""
    model, deployment = state.model, state.deployment
    if not isinstance(model, ModelDeployment) or model.spec.scale_target:
        return False
    return deployment is None or bool(model.problem) or deployment.digest != spec_digest(model)


def as_it_runs(state: ModelState) -> ModelState | None:
    """Return the state with the model that its pods were made for, and today's SLO and bounds.

    None: nothing of ours runs, or nobody recorded what it was made from so that it can be read. Or
    that names a ConfigMap or a claim that today's spec does not, so that nobody has read it.
    """
    wanted, live = state.model, state.deployment
    if not isinstance(wanted, ModelDeployment) or wanted.spec.scale_target:
        return None
    if live is None or live.owner_uid != state.view.uid:
        return None
    running = running_model(wanted, live.made_from)
    if running is None:
        return None
    config, claim = running.spec.model.config, _claim_of(running)
    if config and _overrides_of(running) != _overrides_of(wanted):
        return None
    if config not in {None, wanted.spec.model.config} or claim not in {None, _claim_of(wanted)}:
        return None
    return replace(
        state,
        model=running,
        model_config=state.model_config if config else None,
        claim_modes=state.claim_modes if claim else None,
    )


def _overrides_of(model: ModelDeployment) -> str:
    return overrides_in(model.spec.engine.args if model.spec.engine else ())


def _claim_of(model: ModelDeployment) -> str | None:
    return model.spec.pods.model_cache_claim if model.spec.pods else None


ALL_TAKEN = 0.98
"""Cached share of prompts from which on decode computes a token of each: at most 0.99 is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingQuestion:
    """What is asked for one object, and the cache that answers."""

    expected: SizingRequest
    """With the lengths that the spec expects, the prior's constants, and no flags."""
    model: ModelDeployment
    found: Assessment
    fleet: Fleet
    asker: SizingCache
    target_flags: Flags | None = None
    """That the workload of a scale target has."""
    _beliefs: dict[Flags | None, Belief] = field(default_factory=dict)

    @property
    def request(self) -> SizingRequest:
        """The same with the lengths that are measured, if any are."""
        measured = self.found.memory.traffic.asked_lengths
        return self.expected if measured is None else _with_lengths(self.expected, measured)

    @property
    def near(self) -> SizingRequest:
        """The same with lengths on a coarse grid: what is searched."""
        expected, measured = self.expected, self.found.memory.traffic.asked_lengths
        if measured is None:
            return expected
        return _with_lengths(expected, near_lengths(measured, lengths_of(expected.workload)))

    def belief(self, flags: Flags | None) -> Belief:
        """Return what is believed of engines with these flags, whatever the SLO and the bursts."""
        if flags not in self._beliefs:
            self._beliefs[flags] = belief(self.request, flags, self.found, self.fleet)
        return self._beliefs[flags]

    def size(self, flags: Flags | None, *, run: bool) -> Sizing:
        """Return the answer for engines with these flags; ``run``: they stay.

        Replicas are counted at the slow end of the range of speeds. Flags are chosen at its middle,
        since only a restart changes them. Where the slow end keeps the SLO at no rate, replicas are
        counted at the middle too.

        Raises:
            SizingError, SearchAbandonedError: as sizing does.
        """
        constants = self.belief(flags)
        slow, middle = constants.asked.slow, constants.asked.middle
        if not run:
            best, request = self._size(constants, middle, None), self.request
            return size_slow(best, self._with_beliefs(request, constants, slow), self.asker.size)
        try:
            return self._size(constants, slow, flags)
        except SLOInfeasibleError:
            return self._size(constants, middle, flags)

    def of_split(self, split: Parallelism) -> Self:
        """The same for one split alone."""
        sizes = ParallelSizes(
            tensor=split.tensor,
            pipeline=split.pipeline,
            data=split.data,
            expert=self.expected.sizes.expert,
        )
        return replace(self, expected=replace(self.expected, sizes=sizes))

    def best(self, running: Flags) -> Sizing:
        """Return the answer with the best flags for as many GPUs as those that run take.

        Raises:
            SizingError, SearchAbandonedError: as sizing does.
        """
        constants = self.belief(running)
        request = replace(self.near, num_gpus=running.parallelism.num_gpus)
        found = self.asker.size(
            self._with_beliefs(request, constants, self._near(constants, constants.asked.middle))
        )
        return self.size(found.flags, run=True)

    def _size(self, constants: Belief, posterior: SpeedPosterior, flags: Flags | None) -> Sizing:
        request = self._with_beliefs(self.request, constants, posterior, flags)
        if flags is None or request.slo.is_offline:
            return self.asker.size(request)

        def near() -> SizingRequest:
            return self._with_beliefs(self.near, constants, self._near(constants, posterior), flags)

        return self.asker.size(request, near=near)

    def _with_beliefs(
        self,
        request: SizingRequest,
        constants: Belief,
        posterior: SpeedPosterior,
        flags: Flags | None = None,
    ) -> SizingRequest:
        """Return the request with what is believed of the engines, and the flags that stay."""
        if flags is not None:
            tokens = min(flags.context_tokens or request.context_tokens, request.context_tokens)
            request = replace(request, context_tokens=tokens) if flags.context_tokens else request
            request = with_known_cache(request, flags, self.found, self.fleet)
        return asked_with(request, constants, posterior)

    def _near(self, constants: Belief, posterior: SpeedPosterior) -> SpeedPosterior:
        return near_posterior(posterior, constants.prior, share=self.fleet.settings.speed_range)


def question_of(
    model: ModelDeployment,
    found: Assessment,
    fleet: Fleet,
    asker: SizingCache,
    *,
    has_host_cache: bool | None = None,
) -> SizingQuestion:
    """Return what an object asks: its spec's figures, and those that are measured instead.

    ``has_host_cache``: where the spec leaves it open; None: as it runs.

    Raises:
        RefusedError, CatalogError, SizingError: what it names is unknown, or cannot be.
    """
    state, arrival_scv = found.state, found.memory.traffic.arrival_scv
    if has_host_cache is None:
        has_host_cache = state.has_host_cache
    target, shape = model.spec.scale_target, state.model_config
    engine = state.deployment.engine if state.deployment else UNREAD
    version = target_version(target, engine) if target else None
    if isinstance(shape, Reason):
        raise RefusedError(*shape)
    request = by_spec(model.spec, fleet.gpus, shape, version, has_host_cache)
    if target:
        request = target_request(request, model.spec, engine, has_started=has_started(state))
    request = with_whole_blocks(request)
    if arrival_scv is not None:
        request = with_arrivals(request, arrival_scv, False)
    return SizingQuestion(
        expected=replace(request, flags=None) if request.flags else request,
        model=model,
        found=found,
        fleet=fleet,
        asker=asker,
        target_flags=request.flags,
    )


@memoize
def by_spec(
    spec: Spec,
    gpus: Mapping[str, Gpu],
    shape: ModelShape | None,
    engine_version: str | None,
    has_host_cache: bool,
) -> SizingRequest:
    """Return what a spec alone asks for; ``has_host_cache``: where it leaves that open."""
    known = look_up(spec, gpus, shape=shape, engine_version=engine_version)
    return ask(spec, known, has_host_cache=has_host_cache)


@memoize
def with_arrivals(request: SizingRequest, arrival_scv: float, is_most: bool) -> SizingRequest:
    measured = arrivals_input(arrival_scv, request.routing, Origin.MEASURED, is_most=is_most)
    inputs = with_changed(request.inputs, measured)
    return replace(request, arrival_scv=arrival_scv, inputs=inputs)


@memoize
def _with_lengths(request: SizingRequest, lengths: MeasuredLengths) -> SizingRequest:
    """Return the request with these means, spread as the spec expects."""
    expected = request.workload
    p99_tokens = expected.prompt.p99_tokens
    if p99_tokens is not None:
        scaled = p99_tokens / expected.prompt.mean_tokens * lengths.prompt_tokens
        p99_tokens = min(scaled, float(request.context_tokens))
    workload = Workload(
        prompt=Lengths(
            mean_tokens=lengths.prompt_tokens,
            p99_tokens=p99_tokens,
            longest_tokens=request.context_tokens,
        ),
        output_tokens=lengths.output_tokens,
        cached_fraction=lengths.cached_fraction,
        output_second_moment=None
        if expected.output_second_moment is None
        else expected.output_second_moment * (lengths.output_tokens / expected.output_tokens) ** 2,
    )
    if request.role == "decode" and lengths.cached_fraction >= ALL_TAKEN:
        workload = workload.of_role("decode")
    others = without_figures(request.inputs, Figure.LENGTHS, Figure.SPREAD, Figure.PREFIX)
    measured = lengths_inputs(workload, Origin.MEASURED)
    return replace(request, workload=workload, inputs=(*measured, *others))
