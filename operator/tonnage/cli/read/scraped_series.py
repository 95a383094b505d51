"""Which series of engines there are in a Prometheus, and by which labels they name pods."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import product

import yaml
from pydantic import ValidationError

from tonnage.api.objects import describe_errors
from tonnage.cli.console import Failure
from tonnage.cli.read.live import Resource
from tonnage.cli.read.manifest import block
from tonnage.cluster.ranges import Steps, ask_range
from tonnage.estimate.metrics import RUNNING
from tonnage.settings import Settings
from tonnage.units import count_of

STEP_S = 60.0
"""So old the series are at most that are looked for."""
Form = tuple[str, str, str]
"""Of series: what stands before a metric's name, and the labels of namespace and pod."""


def prometheus_settings(given: Mapping[str, object], auth_file: str | None = None) -> Settings:
    """Return settings by their names in the chart; ``auth_file``: YAML of ``prometheusAuth``.

    Raises:
        Failure: they are not valid.
    """
    found = dict(given)
    try:
        if auth_file:
            with open(auth_file, encoding="utf-8") as opened:  # noqa: PTH123
                found["prometheusAuth"] = yaml.safe_load(opened)
        return Settings.model_validate(found)
    except ValidationError as error:
        raise Failure(f"--prometheus: {describe_errors(error, root='settings')}") from error
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise Failure(f"--prometheus: {error}") from error


def operator_settings(config_maps: Sequence[Resource], asked: Settings) -> Settings:
    """Return those that an operator has; of what cannot be read the defaults."""
    for each in config_maps:
        try:
            return Settings.model_validate(yaml.safe_load(block(each, "data")["settings.yaml"]))
        except (ValueError, KeyError, TypeError, yaml.YAMLError):
            continue
    return asked


def series_found(asked: Settings, operators: Settings, pods: Set[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each form of series that names one of these pods, (namespace, name).

    Raises:
        PrometheusError: there is no answer.
    """
    selector = ",".join(filter(None, (f'__name__=~".*{RUNNING}"', operators.prometheus_selector)))
    now = Steps(from_s=time.time() - STEP_S, step_s=STEP_S, number=1)
    namespaces, every = {namespace for namespace, _ in pods}, count_of(len(pods), "pod")
    by_form = defaultdict[Form, set[tuple[str, str]]](set)
    for labels, _ in ask_range(asked, f"{{{selector}}}", now):
        prefix = labels["__name__"].removesuffix(RUNNING)
        spaces = [label for label, value in labels.items() if value in namespaces]
        for space, name in product(spaces, labels):
            if (pod := (labels[space], labels[name])) in pods:
                by_form[prefix, space, name].add(pod)
    if not by_form:
        yield f"no series *{RUNNING} names one of {every} by two of its labels"
    for (prefix, space, name), named in sorted(by_form.items()):
        missing = []
        if prefix not in {"", *operators.series_prefixes}:
            missing.append(f"prefixes: [{prefix}]")
        if (space, name) not in operators.pod_labels:
            missing.append(f"labels: [{{namespace: {space}, pod: {name}}}]")
        more = (
            f"not read: set settings.otherSeries: {{{', '.join(missing)}}}" if missing else "read"
        )
        yield f"{prefix}vllm: by {space} and {name}: {len(named)} of {every}, {more}"
