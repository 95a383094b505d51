"""What nobody watches and objects name: ConfigMaps of files, claims of caches, foreign workloads.

Each is read by name, once for all who name it, and kept a while: of a config.json, a MiB of which
any number of objects may name, the shape that it says alone. What is missing is looked for again.
"""

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

from tonnage.api.objects import InvalidSpecError, ModelDeployment, parse_model_deployment
from tonnage.api.spec import Spec
from tonnage.api.status import Reason
from tonnage.catalog.gpu import CatalogError
from tonnage.catalog.models import overrides_in, read_model_config, with_second_file
from tonnage.catalog.shape import ModelShape
from tonnage.cluster.calls import WorldError
from tonnage.cluster.kube import CONFIG_MAPS, KubeApi, Resource
from tonnage.cluster.pages import MOST_OBJECT_BYTES
from tonnage.control.input.state import NO_CONFIG, DeploymentView, ModelView
from tonnage.control.input.times import age_s
from tonnage.control.size.fair_order import round_robin
from tonnage.fleet.children import RESOURCES
from tonnage.fleet.logs import Line
from tonnage.fleet.pods import Object
from tonnage.fleet.store import Key
from tonnage.fleet.views import deployment_view
from tonnage.manifests.names import DEPLOYMENT, GROUPS, Workload
from tonnage.redaction import redacted
from tonnage.units import MIB

MOST_CHARACTERS: Final = 8 * MIB
"""Of manifests that are kept parsed, some ten times as much memory: 10,000 of the usual size."""
TOO_LARGE: Final = (
    "metadata: the ModelDeployment has more than 256 KiB as JSON and is not read: take finalizers, "
    "ownerReferences, annotations, labels, managedFields or parts of the spec out of it"
)
Parsed = ModelDeployment | InvalidSpecError


@dataclass(slots=True, kw_only=True)
class ManifestCache:
    """What the manifests of the last tick said.

    A version that was replaced is forgotten at once: who edits a spec every second fills nothing.
    """

    most_characters: int = MOST_CHARACTERS
    _specs: WeakValueDictionary[str, Spec] = field(default_factory=WeakValueDictionary)
    """By their JSON: objects that ask for the same have one, and what is kept with it."""
    _known: dict[str, Parsed] = field(default_factory=dict)

    def parse(self, views: Iterable[ModelView]) -> Mapping[str, Parsed]:
        """Return what each object's manifest says, by UID."""
        found, kept = dict[str, Parsed](), dict[str, Parsed]()
        room = self.most_characters
        for view in views:
            if view.is_oversized:
                found[view.uid] = InvalidSpecError(TOO_LARGE)
                continue
            known = self._known.get(view.manifest)
            if known is None:
                known = parse_manifest(view.manifest)
                if isinstance(known, ModelDeployment):
                    spec = self._specs.setdefault(known.spec.model_dump_json(), known.spec)
                    known = replace(known, spec=spec)
            found[view.uid] = known
            room -= len(view.manifest)
            if room >= 0:
                kept[view.manifest] = known
        self._known = kept
        return found


def parse_manifest(manifest: str) -> Parsed:
    """Return what a manifest says, or why it is none: without frames, and what may be a secret.

    Where the pod template is the only mistake, the rest is read: replicas that run are scaled on.
    """
    read = json.loads(manifest)
    try:
        return parse_model_deployment(read, tolerate_unknown=True)
    except InvalidSpecError as error:
        why = redacted(str(error))
    match read:
        case {"spec": {"pods": {"template": _, **pods}, **spec}}:
            rest = read | {"spec": spec | {"pods": pods}}
            with suppress(InvalidSpecError):
                return replace(parse_model_deployment(rest, tolerate_unknown=True), problem=why)
    return InvalidSpecError(why)


LOG = logging.getLogger("tonnage.references")
AGE_S: Final = 300.0
"""What is there is read again after this time."""
MOST_READS: Final = 5.0
"""Of what is missing in a namespace, in a tick: who names thousands waits, and nobody else."""
MOST_BYTES: Final = MIB
"""Of a config.json: as much as a ConfigMap holds. Lists of quantized modules take the most."""

ConfigPlace = tuple[str, str, str, str, str]
"""(namespace, ConfigMap, key, name of the model)."""
ReadConfig = ModelShape | Reason
"""What a config.json says, or why there is none."""
At = TypeVar("At", bound=tuple[str, ...])
Part = TypeVar("Part")


@dataclass(slots=True, kw_only=True)
class Referenced(Generic[At, Part]):
    """A part of each object that was read, by place; what nobody names any more is forgotten."""

    kube: KubeApi
    resource: Resource
    part: Callable[[At, Object], Part | None]
    tick_s: float
    is_missing: Callable[[Part | None], bool] = lambda part: part is None
    """Whether somebody has yet to bring it, or to mend it."""
    unread: Callable[[At, WorldError], Part | None] = lambda *_: None
    """What is known of what never could be read."""
    _read: dict[At, tuple[float, Part | None]] = field(default_factory=dict)
    num_missing: Counter[str] = field(default_factory=Counter)
    """By namespace."""

    def forget(self, named: Container[At | None]) -> None:
        """Keep nothing but what these places hold."""
        self._read = {place: each for place, each in self._read.items() if place in named}
        missing = (place[0] for place, (_, part) in self._read.items() if self.is_missing(part))
        self.num_missing = Counter(missing)

    def of(self, place: At | None, now_s: float, *, is_news: bool = False) -> Part | None:
        """Return what stands there; None: nothing, or that is not known. ``is_news``: read it."""
        if place is None:
            return None
        at_s, part = self._read.get(place, (-math.inf, None))
        again_s = 0.0 if is_news else AGE_S
        if self.is_missing(part) and not is_news:
            ticks = max(1.0, self.num_missing[place[0]] / MOST_READS)
            again_s = min(AGE_S, ticks * self.tick_s)
        if at_s != now_s and age_s(at_s, now_s) >= again_s:
            part = self._look(place, part)
            self._read[place] = now_s, part
        return part

    def _look(self, place: At, known: Part | None) -> Part | None:
        try:
            return self.part(place, self.kube.get(self.resource.path(place[0], place[1])) or {})
        except WorldError as error:
            LOG.warning(Line("not read", object="/".join(place[:2]), message=str(error)))
            # What was read last holds until it can be read again.
            return self.unread(place, error) if self.is_missing(known) else known


@dataclass(slots=True, kw_only=True)
class ModelConfigs:
    """Shapes of models that config.json files say; of another spec each is read at once."""

    kube: KubeApi
    tick_s: float
    _files: Referenced[ConfigPlace, ReadConfig] = field(init=False)
    _asked_for: dict[str, int] = field(default_factory=dict)
    """By UID, the generation of the spec that it was last read for."""

    def __post_init__(self) -> None:
        self._files = Referenced(
            kube=self.kube,
            resource=CONFIG_MAPS,
            part=config_in,
            tick_s=self.tick_s,
            is_missing=lambda found: not isinstance(found, ModelShape),
            unread=lambda place, error: Reason(NO_CONFIG, f"ConfigMap {place[1]}: {error}"),
        )

    def forget(self, uids: Container[str], places: Iterable[ConfigPlace]) -> None:
        """Keep nothing but what these objects name."""
        self._asked_for = {uid: each for uid, each in self._asked_for.items() if uid in uids}
        self._files.forget(set(places))

    def of(self, view: ModelView, model: ModelDeployment, now_s: float) -> ReadConfig | None:
        """Return the shape for a spec that refers to a ConfigMap, or why there is none."""
        is_news = self._asked_for.get(view.uid) != view.generation
        found = self._files.of(place_of(model), now_s, is_news=is_news)
        if found is not None:
            self._asked_for[view.uid] = view.generation
        return found


def config_in(place: ConfigPlace, config_map: Object) -> ReadConfig:
    """Return the shape that a key of a ConfigMap says, or why there is none."""
    namespace, name, key, model_id, overrides = place
    data = config_map.get("data") or {}
    text = data.get(key)
    if text is None:
        return Reason(NO_CONFIG, f"ConfigMap {name} has no key {key} in {namespace}")
    num_bytes = len(text.encode("utf-8", "surrogatepass"))
    if num_bytes > MOST_BYTES:
        of = f"{key} of ConfigMap {name} in {namespace}"
        return Reason(NO_CONFIG, f"{of} has {num_bytes} bytes; at most {MOST_BYTES} are read")
    return shape_of(text, model_id, overrides, data.get)


def place_of(model: ModelDeployment) -> ConfigPlace | None:
    """Return where the config.json of a spec stands, if it refers to one."""
    source = model.spec.model.config
    if source is None:
        return None
    reference, engine = source.config_map_key_ref, model.spec.engine
    overrides = overrides_in(engine.args if engine else ())
    return model.namespace, reference.name, reference.key, model.spec.model.id, overrides


def shape_of(
    text: str, model_id: str, overrides: str, beside: Callable[[str], str | None]
) -> ReadConfig:
    """Return the shape that a config.json says, or why it says none.

    ``beside``: a further file by its name, which may say how the weights are quantized.
    """
    try:
        return read_model_config(with_second_file(text, beside), name=model_id, overrides=overrides)
    except CatalogError as error:
        return Reason(type(error).__name__.removesuffix("Error"), str(error))


def access_modes(_: Key, claim: Object) -> tuple[str, ...] | None:
    """Return how a claim may be mounted: that never changes, but it may be made anew."""
    return tuple((claim.get("spec") or {}).get("accessModes") or ()) or None


def data_of(_: Key, config_map: Object) -> Mapping[str, str] | None:
    return config_map.get("data") if config_map else None


def claim_of(model: ModelDeployment) -> Key | None:
    claim = model.spec.pods.model_cache_claim if model.spec.pods else None
    return (model.namespace, claim) if claim else None


TAKEN_LOG: Final = logging.getLogger("tonnage.taken")
MOST_LOOKS: Final = 10
"""In a tick, each of which may be tried several times."""
ABSENT_S: Final = 300.0
"""After which a name is looked up again under which nothing stood."""
NEVER: Final = (-math.inf, None)


@dataclass(slots=True, kw_only=True)
class UnlabelledWorkloads:
    """Workloads of a name that an object needs and that no watch shows, since they lack our label.

    Somebody else's, or one of ours that lost it, as last read. A few are read in a tick, in turn by
    namespace: anybody may put thousands in the way of objects of theirs.
    """

    kube: KubeApi
    names: set[Key]
    """That something is known to stand under: whoever meets one adds it."""
    oversized: dict[Key, int] = field(default_factory=dict)
    """Of these the bytes of what is too large for more than its name to be kept."""
    _read: dict[Key, tuple[float, DeploymentView | None]] = field(default_factory=dict)

    def look(self, needed: Set[Key], now_s: float, *, has_groups: bool = False) -> None:
        """Read a few again; what no object needs that no watch shows is forgotten."""
        self.names &= needed
        self.oversized = {key: each for key, each in self.oversized.items() if key in needed}
        self._read = {key: each for key, each in self._read.items() if key in needed}
        for key in self._in_turn(needed, now_s)[:MOST_LOOKS]:
            found = self.of(key)
            try:
                found = self._looked_up(key, (DEPLOYMENT, GROUPS) if has_groups else (DEPLOYMENT,))
            except WorldError as error:
                TAKEN_LOG.warning(Line("not read", object="/".join(key), message=str(error)))
                break  # the others fare no better, and each is tried for a while
            except Exception:  # anybody may make one: it must not stop the others
                TAKEN_LOG.exception(Line("its workload cannot be read", object="/".join(key)))
            finally:
                self._read[key] = (now_s, found)
            if found is None and key not in self.oversized:
                self.names.discard(key)
            else:
                self.names.add(key)

    def _looked_up(self, key: Key, workloads: Iterable[Workload]) -> DeploymentView | None:
        self.oversized.pop(key, None)
        found = ((each, self.kube.get(RESOURCES[each.kind].path(*key))) for each in workloads)
        workload, body = next((each for each in found if each[1] is not None), (DEPLOYMENT, None))
        if body is None:
            return None
        num_bytes = len(json.dumps(body, ensure_ascii=False).encode(errors="replace"))
        if num_bytes > MOST_OBJECT_BYTES:
            self.oversized[key] = num_bytes
            return None
        return deployment_view(body, workload)

    def _in_turn(self, needed: Set[Key], now_s: float) -> list[Key]:
        """Return, of each namespace, what was read longest ago, then the next."""
        read_s = {key: self._read.get(key, NEVER)[0] for key in needed}
        due = (k for k in needed if k in self.names or age_s(read_s[k], now_s) >= ABSENT_S)
        oldest = sorted(due, key=lambda key: (read_s[key], key))
        return round_robin(oldest, namespace=itemgetter(0))

    def of(self, key: Key) -> DeploymentView | None:
        return self._read.get(key, NEVER)[1]
