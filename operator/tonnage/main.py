"""The operator, wired: Kopf's watches, the loop, the Lease and the probes. Registers and starts.

Kopf watches and writes nothing; one thread decides and writes. Watches that fail begin again. The
process is safe to be killed and started again at any moment.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from tonnage.catalog.gpu import GPU_FOLDER, read_gpus
from tonnage.cluster.calls import WorldError
from tonnage.cluster.kube import POD_MONITORS, KubeApi, load_client
from tonnage.cluster.lease import RENEW_S, Leadership
from tonnage.cluster.prometheus import Prometheus
from tonnage.cluster.ranges import ask_range
from tonnage.fleet.act import Writer
from tonnage.fleet.background import BackgroundTask, beside, unheard
from tonnage.fleet.calibration import CalibrationConfigMap
from tonnage.fleet.heartbeat import LOOP, WATCHES, Heartbeat, serve
from tonnage.fleet.lists import Lists, reads_groups
from tonnage.fleet.logs import Line, log_as
from tonnage.fleet.loop import Loop
from tonnage.fleet.observe import Observer
from tonnage.fleet.past import PastReader
from tonnage.fleet.settings_file import SettingsFile, read_calibrations, read_settings
from tonnage.fleet.store import Store
from tonnage.fleet.watches import (
    Watches,
    readable_namespaces,
    require_served,
    watch,
    when_reachable,
)
from tonnage.fleet.write_queue import WriteQueue
from tonnage.manifests.children import site_of
from tonnage.settings import Settings

LOG = logging.getLogger("tonnage.main")
SHORTEST_TICK_S = 1.0
"""Between two ticks, however often the store changes: our own writes come back in it."""
GATHER_S = 0.2
"""For what changes together, as by one apply: what comes after it waits for the next tick."""
END_S = 15.0
"""For each thread to end: a pod has 30 s, of which Kopf may take some."""


def build(settings: Settings, kube: KubeApi, leadership: Leadership) -> Loop:
    """Put the loop together."""
    folders = [GPU_FOLDER, *([Path(settings.catalog_folder)] if settings.catalog_folder else [])]
    site = site_of(settings, has_pod_monitors=kube.serves(POD_MONITORS))
    led = kube.with_fence(leadership.check)
    writer = Writer(
        kube=led, site=site, queue=WriteQueue(per_s=settings.writes_per_s, start=beside)
    )
    observer = Observer(
        kube=kube,
        ask=Prometheus(settings).ask,
        settings=settings,
        gpus=read_gpus(folders),
        site=site,
        calibration_files=read_calibrations(Path(settings.calibration_folder))
        if settings.calibration_folder
        else {},
        taken_names=writer.taken_names,
        start=beside,
    )
    store = Store()
    return Loop(
        store=store,
        observer=observer,
        writer=writer,
        calibration=CalibrationConfigMap(led, namespace=settings.operator_namespace),
        settings=settings,
        past=PastReader(ask=ask_range, settings=settings, start=beside),
        lists=Lists(
            store=store,
            kube=kube,
            namespaces=settings.namespaces,
            work=BackgroundTask(beside),
            has_pod_monitors=site.has_pod_monitors,
        ),
    )


def end_on_sigterm() -> None:
    """End on SIGTERM where no event loop listens for it: a container's first process has to ask."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())


def keep_deciding(
    loop: Loop,
    leadership: Leadership,
    heartbeat: Heartbeat,
    stop: threading.Event,
    look: Callable[[], None] = unheard,
) -> None:
    """Tick while we lead: at once when the store changed, else when the interval is over.

    ``look``: what is looked at between two ticks.
    """
    was_leading, reported = False, ""
    while not stop.is_set():
        leads = leadership.is_leader()
        heartbeat.leads.set(leads)
        reported = _tell_lead(leadership, leads=leads, before=reported)
        try:
            if leads and not was_leading:
                loop.start_leading()
            if was_leading and not leads:
                heartbeat.exporter.forget()
            was_leading = leads
            if leads:
                with heartbeat.tick_seconds.time():
                    loop.tick()
                heartbeat.held_objects.set(loop.num_held)
            heartbeat.beat()
            _tell_ready(heartbeat, leadership, leads=leads)
        except WorldError as error:
            heartbeat.beat()
            heartbeat.fail(is_server_away=error.is_overload)
            LOG.warning(Line("tick failed, the next one tries again", message=str(error)))
        except Exception:
            heartbeat.fail()
            LOG.exception("tick failed on an internal error")
        look()
        stop.wait(SHORTEST_TICK_S)
        interval_s = loop.pause_s() if leads else SHORTEST_TICK_S
        loop.store.changed.wait(max(0.0, interval_s - SHORTEST_TICK_S))
    if was_leading:
        _end(loop)


def _tell_ready(heartbeat: Heartbeat, leadership: Leadership, *, leads: bool) -> None:
    """Be ready after a tick, or to take the lead as soon as the Lease is free."""
    if leads or leadership.problem is None:
        heartbeat.note_ready()
    else:
        heartbeat.wait(is_server_away=leadership.is_unanswered)


def _end(loop: Loop) -> None:
    """Leave nothing undone that the next process cannot find out again."""
    try:
        loop.end()
    except Exception:
        LOG.exception("what was learned last was not saved")


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
    """Acquire and renew the Lease until asked to stop, then release it."""
    while not stop.is_set():
        _maintain(leadership)
        stop.wait(RENEW_S / 2)
    try:
        leadership.release()
    except WorldError as error:
        LOG.warning(Line("the Lease was not released", message=str(error)))


def _maintain(leadership: Leadership) -> None:
    try:
        leadership.maintain()
    except Exception:
        LOG.exception("the Lease was not renewed, on an internal error")


def _keep_watching(
    settings: Settings, kube: KubeApi, store: Store, identity: str, watches: Watches
) -> None:
    """Watch until SIGTERM."""

    def watch_all(namespaces: tuple[str, ...]) -> None:
        try:
            asyncio.run(watch(namespaces, store, identity, watches))
        finally:
            end_on_sigterm()  # the event loop took its handler along

    def find() -> tuple[str, ...]:
        when_reachable(lambda: require_served(kube))
        watches.has_groups = when_reachable(lambda: reads_groups(kube, settings.namespaces))
        return readable_namespaces(kube, settings, has_groups=watches.has_groups)

    watches.keep(find, watch_all)


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
        LOG.critical(Line("cannot start", message=str(error)))
        return 2
    # Releases in several namespaces may contend for one Lease. A container's process is number 1:
    # the next one of a pod has the identity of the one that ended, and does not wait for it.
    process = f"{os.environ.get('POD_NAME', socket.gethostname())}_{os.getpid()}"
    identity = f"{process}@{settings.operator_namespace}"
    leadership = Leadership(
        kube,
        namespace=settings.operator_namespace,
        identity=identity,
        cluster_class=None if settings.namespaces else settings.operator_class or "",
    )
    heartbeat, stop = Heartbeat(tick_s=settings.tick_s), threading.Event()
    server = serve(heartbeat, port=settings.probe_port)
    heartbeat.rest(LOOP)  # no loop is expected to beat until the API server is there
    edited = SettingsFile(settings_path, heartbeat.settings_valid)
    end_on_sigterm()
    loop = when_reachable(lambda: build(settings, kube, leadership))
    _maintain(leadership)  # the Lease of this pod's last process is ours at once, and so is a tick
    heartbeat.begin()
    loop.observer.tell = heartbeat.note_answers
    loop.tell, loop.step = heartbeat.exporter.note, heartbeat.step
    loop.gather = lambda: stop.wait(GATHER_S)
    known = {"version": metadata.version("tonnage"), "identity": identity}
    reported = settings.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    LOG.info(Line("started", **known, settings=reported))
    has_ended = threading.Event()
    deciding = threading.Thread(
        target=keep_deciding, args=(loop, leadership, heartbeat, stop, edited.look), name=LOOP
    )
    leading = threading.Thread(target=keep_leading, args=(leadership, has_ended), name="lease")
    for thread in (leading, deciding):
        thread.start()
    watches = Watches(beat=lambda: heartbeat.beat(WATCHES), rest=lambda: heartbeat.rest(WATCHES))
    loop.lists.readable, loop.lists.watch_groups = watches.note_readable, watches.note_groups

    try:
        _keep_watching(settings, kube, loop.store, identity, watches)
    finally:
        stop.set()
        loop.store.changed.set()
        deciding.join(timeout=END_S)
        has_ended.set()  # what the loop writes last, it writes while we lead
        leading.join(timeout=END_S)
        server.shutdown()
    return 0
