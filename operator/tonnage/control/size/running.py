"""An object as its engines run, where its spec asks for others that they cannot become yet."""

from dataclasses import replace

from tonnage.api.objects import ModelDeployment
from tonnage.catalog.models import overrides_in
from tonnage.control.input.state import ModelState
from tonnage.manifests.children import running_model, spec_digest


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
        config_problem=state.config_problem if config else None,
        claim_modes=state.claim_modes if claim else None,
    )


def _overrides_of(model: ModelDeployment) -> str:
    return overrides_in(model.spec.engine.args if model.spec.engine else ())


def _claim_of(model: ModelDeployment) -> str | None:
    return model.spec.pods.model_cache_claim if model.spec.pods else None
