"""The operator, wired: Kopf's watches, the loop, the Lease and the probes. Registers and starts.

Kopf watches and writes nothing; one thread decides and writes. Whatever of these ends, ends the
process: it is safe to be killed and started anew at any moment.
"""

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from http import HTTPStatus
from importlib import metadata
from pathlib import Path
from typing import Any

import kopf
import yaml
from pydantic import ValidationError

from tonnage.api.objects import describe_errors
from tonnage.catalog.gpu import GPU_FOLDER, read_gpus
from tonnage.cluster.errors import KubernetesError, WorldError
from tonnage.cluster.kube import MODEL_DEPLOYMENTS, POD_MONITORS, KubeApi, load_client
from tonnage.cluster.lease import RENEW_S, Leadership
from tonnage.cluster.prometheus import Prometheus
from tonnage.fleet.act import Writer
from tonnage.fleet.calibration import CalibrationConfigMap
from tonnage.fleet.calibration_folder import read_calibrations
from tonnage.fleet.heartbeat import Heartbeat, serve
from tonnage.fleet.limiter import Limiter
from tonnage.fleet.logs import Line, log_as
from tonnage.fleet.loop import Loop
from tonnage.fleet.observe import Observer
from tonnage.fleet.store import Kind, Store
from tonnage.fleet.watches import Watches
from tonnage.manifests.children import site_of
from tonnage.manifests.names import MANAGED_LABEL
from tonnage.settings import Settings

LOG = logging.getLogger("tonnage.main")
SHORTEST_TICK_S = 1.0
"""Between two ticks, however often the store changes: our own writes come back in it."""
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
WATCHED: tuple[tuple[Kind, str, str, str], ...] = (
    (Kind.MODEL, "tonnage.dev", "v1alpha1", "modeldeployments"),
    (Kind.DEPLOYMENT, "apps", "v1", "deployments"),
    (Kind.REPLICA_SET, "apps", "v1", "replicasets"),
    (Kind.POD, "", "v1", "pods"),
    (Kind.AUTOSCALER, "autoscaling", "v2", "horizontalpodautoscalers"),
)
SELECTED = ("deployments", "replicasets", "pods")


def register(registry: kopf.OperatorRegistry, store: Store) -> None:
    """Hand every watch event to the store. Nothing else is registered, so nothing is written."""
    kopf.on.login(registry=registry)(_login)
    kopf.on.startup(registry=registry)(_configure)
    for kind, group, version, plural in WATCHED:
        kopf.on.event(group, version, plural, registry=registry)(_noting(store, kind))


def _noting(store: Store, kind: Kind) -> Any:
    async def note(*, event: kopf.RawEvent, **_: Any) -> None:
        store.note(kind, event["type"], event["object"])

    return note


def _login(**kwargs: Any) -> Any:
    """Return how Kopf connects: as the pod's ServiceAccount, else by a kubeconfig.

    Kopf's own login in a pod takes the API server's DNS name; the address that the kubelet puts
    into the environment works without DNS too. Asked again after each 401: the token rotates.
    """
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    token = SERVICE_ACCOUNT / "token"
    if not host or not token.exists():
        return kopf.login_with_kubeconfig(**kwargs)
    address = f"[{host}]" if ":" in host else host
    return kopf.ConnectionInfo(
        server=f"https://{address}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}",
        ca_path=str(SERVICE_ACCOUNT / "ca.crt"),
        scheme="Bearer",
        token=token.read_text().strip(),
    )


async def _configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    """Set time-outs where Kopf has none, and turn off what would write or list too much."""
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 60
    settings.watching.connect_timeout = 10
    settings.watching.server_timeout = 540
    settings.watching.client_timeout = 600
    settings.watching.inactivity_timeout = 70
    settings.watching.reconnect_backoff = 1.0
    settings.watching.chunk_size = 500
    for plural in SELECTED:
        settings.watching.label_selectors[plural] = f"{MANAGED_LABEL}=true"


def read_settings(path: str) -> Settings:
    """Read the settings file.

    Raises:
        ValueError: no YAML mapping, or a field is unknown or out of bounds.
    """
    try:
        return Settings.model_validate(yaml.safe_load(Path(path).read_text()))
    except ValidationError as error:
        raise ValueError(f"{path}: {describe_errors(error, root='settings')}") from error
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {error}") from error


def build(settings: Settings, kube: KubeApi, leadership: Leadership) -> Loop:
    """Put the loop together."""
    folders = [GPU_FOLDER, *([Path(settings.catalog_folder)] if settings.catalog_folder else [])]
    site = site_of(settings, has_pod_monitors=kube.serves(POD_MONITORS))
    writer = Writer(
        kube=kube,
        may_write=leadership.is_leader,
        site=site,
        limiter=Limiter(per_s=settings.writes_per_s),
    )
    observer = Observer(
        kube=kube,
        ask=Prometheus(settings).ask,
        settings=settings,
        gpus=read_gpus(folders),
        has_pod_monitors=site.has_pod_monitors,
        calibration_files=read_calibrations(Path(settings.calibration_folder))
        if settings.calibration_folder
        else {},
        taken_names=writer.taken_names,
    )
    return Loop(
        store=Store(),
        observer=observer,
        writer=writer,
        calibration=CalibrationConfigMap(
            kube, namespace=settings.operator_namespace, may_write=leadership.is_leader
        ),
        settings=settings,
        kube=kube,
    )


def keep_deciding(
    loop: Loop, leadership: Leadership, heartbeat: Heartbeat, stop: threading.Event
) -> None:
    """Tick while we lead: at once when the store changed, else when the interval is over."""
    was_leading, told = False, ""
    while not stop.is_set():
        leads = leadership.is_leader()
        heartbeat.leads.set(leads)
        told = _tell_lead(leadership, leads=leads, before=told)
        try:
            if leads and not was_leading:
                loop.start_leading()
            if was_leading and not leads:
                heartbeat.exporter.forget()
            was_leading = leads
            if leads:
                loop.store.changed.clear()
                with heartbeat.tick_seconds.time():
                    loop.tick()
                heartbeat.evicted_calibrations.inc(loop.calibration.take_evicted())
            heartbeat.is_ready = leads or leadership.problem is None
            heartbeat.beat()
        except WorldError as error:
            heartbeat.is_ready = False
            heartbeat.failed_ticks.inc()
            heartbeat.beat()
            LOG.warning("tick failed, the next one tries again: %s", error)
        except Exception:
            heartbeat.is_ready = False
            heartbeat.failed_ticks.inc()
            LOG.exception("tick failed on an internal error")
        stop.wait(SHORTEST_TICK_S)
        interval_s = loop.pause_s() if leads else SHORTEST_TICK_S
        loop.store.changed.wait(max(0.0, interval_s - SHORTEST_TICK_S))


def _tell_lead(leadership: Leadership, *, leads: bool, before: str) -> str:
    """Write a line when we gain or lose the lead, or do not get it for another reason."""
    if leads:
        now = "leading"
    elif leadership.problem:
        now = f"not leading: {leadership.problem}"
    else:
        now = f"not leading: {leadership.holder or 'nobody'} holds the Lease"
    if now != before:
        LOG.info(Line(now))
    return now


def keep_leading(leadership: Leadership, stop: threading.Event) -> None:
    """Acquire and renew the Lease until told to stop, then let go of it."""
    while not stop.is_set():
        try:
            leadership.maintain()
        except Exception:
            LOG.exception("the Lease was not renewed, on an internal error")
        stop.wait(RENEW_S / 2)
    try:
        leadership.release()
    except WorldError as error:
        LOG.warning("the Lease was not released: %s", error)


def run(settings_path: str) -> int:
    """Run the operator until it is told to stop; return the exit status."""
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    log_as("text")
    try:
        settings = read_settings(settings_path)
        log_as(settings.log_format)
        kube = KubeApi(load_client())
    except (ValueError, WorldError) as error:
        LOG.critical("cannot start: %s", error)
        return 2
    identity = f"{os.environ.get('POD_NAME', socket.gethostname())}_{os.getpid()}"
    leadership = Leadership(kube, namespace=settings.operator_namespace, identity=identity)
    loop, heartbeat, stop = (
        _when_reachable(settings, kube, leadership),
        Heartbeat(),
        threading.Event(),
    )
    loop.observer.tell = heartbeat.note_answers
    loop.tell, loop.step = heartbeat.exporter.note, heartbeat.step
    server = serve(heartbeat, port=settings.probe_port)
    known = {"version": metadata.version("tonnage"), "identity": identity}
    LOG.info(Line("started", **known, settings=settings.model_dump_json(exclude_defaults=True)))
    threads = [
        threading.Thread(target=keep_leading, args=(leadership, stop), name="lease"),
        threading.Thread(
            target=keep_deciding, args=(loop, leadership, heartbeat, stop), name="loop"
        ),
    ]
    for thread in threads:
        thread.start()
    watches = Watches()
    loop.readable = watches.note_readable

    def watch(namespaces: tuple[str, ...]) -> None:
        asyncio.run(_watch(namespaces, loop.store, identity, watches))

    try:
        watches.keep(lambda: watched(kube, settings), watch)
    finally:
        stop.set()
        loop.store.changed.set()
        for thread in threads:
            thread.join(timeout=20)
        server.shutdown()
    return 0


def _when_reachable(settings: Settings, kube: KubeApi, leadership: Leadership) -> Loop:
    """Build the loop as soon as the API server answers."""
    while True:
        try:
            return build(settings, kube, leadership)
        except WorldError as error:
            LOG.warning("waiting for the API server: %s", error)
            time.sleep(SHORTEST_TICK_S)


def watched(kube: KubeApi, settings: Settings) -> tuple[str, ...]:
    """Return the namespaces to watch: without those that we have no right to.

    Kopf ends when one watch is refused. Where one is while we run, the next process leaves it out;
    when the lists of the loop tell that it may be read again, the watches begin anew. All of them,
    where none may be read.
    """

    def is_refused(namespace: str) -> bool:
        try:
            next(iter(kube.list(MODEL_DEPLOYMENTS.path(namespace))), None)
        except KubernetesError as error:
            LOG.warning("namespace=%s is not watched: %s", namespace, error)
            return error.status == HTTPStatus.FORBIDDEN
        return False

    found = tuple(each for each in settings.namespaces if not is_refused(each))
    return found or settings.namespaces


async def _watch(
    namespaces: tuple[str, ...], store: Store, identity: str, watches: Watches
) -> None:
    """Run Kopf until SIGTERM, until a watch fails for good, or until others are to be watched.

    Without an identity Kopf makes one of the user's name, which the uid of an image need not have.
    """
    registry = kopf.OperatorRegistry()
    register(registry, store)
    stop_flag = asyncio.Event()
    event_loop = asyncio.get_running_loop()

    def stop() -> None:
        watches.end()
        stop_flag.set()

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        event_loop.add_signal_handler(signal_number, stop)
    looking = asyncio.create_task(_stop_when(watches.stale, stop_flag))
    await kopf.operator(
        registry=registry,
        identity=identity,  # type: ignore[arg-type]  # Kopf does not export its NewType
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=stop_flag,
    )
    looking.cancel()


async def _stop_when(stale: threading.Event, stop_flag: asyncio.Event) -> None:
    while not stale.is_set():
        await asyncio.sleep(SHORTEST_TICK_S)
    LOG.info(Line("watching anew"))
    stop_flag.set()
