"""One container of a pod: started, probed, restarted and stopped as a kubelet would."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from tonnage_lab.runner import probes
from tonnage_lab.runner.environment import NotStartableError
from tonnage_lab.runner.node import rfc3339
from tonnage_lab.runner.probes import Probe, Target
from tonnage_lab.runner.process import ContainerProcess, Launch
from tonnage_lab.runner.sandbox import Sandbox
from tonnage_lab.runner.status import ContainerStatus, Running, Terminated, Waiting

logger = logging.getLogger(__name__)

Json = Mapping[str, Any]

RESTART_DELAYS_S: Final = (0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
"""A kubelet's: the first restart at once, then doubling up to five minutes."""
CALM_S: Final = 600.0
"""A container that ran so long is not in a crash loop any more."""
RETRY_S: Final = 2.0
"""Between tries to start what cannot be started."""


def timestamp() -> str:
    """Return the time as the API writes it."""
    return rfc3339(datetime.now(UTC))  # noqa: TID251 -- the runner is a kubelet, which has a clock


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probes:
    startup: Probe | None
    liveness: Probe | None
    readiness: Probe | None


class ContainerWorker:
    """Runs one container until it is told to stop or has ended for good."""

    def __init__(
        self,
        container: Json,
        sandbox: Sandbox,
        *,
        restart_count: int,
        on_change: Callable[[], None],
    ) -> None:
        self._container = container
        self._sandbox = sandbox
        self._on_change = on_change
        self._stop = asyncio.Event()
        self._process: ContainerProcess | None = None
        self._killing: asyncio.Task[None] | None = None
        self._num_failures = 0
        self.status = ContainerStatus(
            name=container["name"],
            image=container["image"],
            state=Waiting(reason="ContainerCreating"),
            restart_count=restart_count,
        )

    def _set(self, **changes: Any) -> None:
        status = replace(self.status, **changes)
        if status != self.status:
            self.status = status
            self._on_change()

    def wait_for(self, error: NotStartableError) -> None:
        """Show why the container does not run."""
        self._set(state=Waiting(reason=error.reason, message=str(error)))

    async def run(self) -> None:
        """Start it, and start it again as the pod's restart policy says."""
        while not self._stop.is_set():
            try:
                image = self._sandbox.image_of(self._container)
                wanted = self._probes(image.probe_period_scale)
                launch = await self._sandbox.launch(self._container, image)
                if self._stop.is_set():
                    return  # meanwhile: who stopped it found no process to signal
                process = self._start(launch)
            except NotStartableError as error:
                await self._show_and_retry(error)
                continue
            exit_code = await self._until_exit(process, wanted)
            if not self._restarts(exit_code):
                return
            await self._back_off()

    async def _show_and_retry(self, error: NotStartableError) -> None:
        """A pull that failed is shown as such once, and then as waiting for the next try."""
        state = self.status.state
        pulled_before = isinstance(state, Waiting) and "Image" in state.reason
        if error.reason == "ErrImagePull" and pulled_before:
            error = NotStartableError("ImagePullBackOff", str(error))
        self.wait_for(error)
        await self._pause(RETRY_S)

    async def _pause(self, duration_s: float) -> None:
        try:
            async with asyncio.timeout(duration_s):
                await self._stop.wait()
        except TimeoutError:
            return

    def _probes(self, period_scale: float) -> _Probes:
        def parsed(name: str) -> Probe | None:
            probe = self._container.get(name)
            if not probe:
                return None
            return probes.parse(
                probe,
                self._container,
                host=self._sandbox.probe_host,
                period_scale=period_scale,
            )

        return _Probes(
            startup=parsed("startupProbe"),
            liveness=parsed("livenessProbe"),
            readiness=parsed("readinessProbe"),
        )

    def _start(self, launch: Launch) -> ContainerProcess:
        self._process = ContainerProcess(launch)
        self._set(
            state=Running(started_at=timestamp()), container_id=f"process://{self._process.pid}"
        )
        return self._process

    async def _until_exit(self, process: ContainerProcess, wanted: _Probes) -> int:
        started_s = asyncio.get_running_loop().time()
        prober = asyncio.create_task(self._probe(process, wanted))
        exit_code = await process.exited
        prober.cancel()
        await asyncio.wait([prober])
        self._process = None
        state, policy = self.status.state, self._container.get("terminationMessagePolicy")
        reads_log = exit_code and policy == "FallbackToLogsOnError"
        self._set(
            state=Terminated(
                exit_code=exit_code,
                started_at=state.started_at if isinstance(state, Running) else timestamp(),
                finished_at=timestamp(),
                container_id=self.status.container_id,
                message=process.last_words() if reads_log else "",
            ),
            ready=False,
            started=False,
        )
        if asyncio.get_running_loop().time() - started_s > CALM_S:
            self._num_failures = 0
        return exit_code

    async def _probe(self, process: ContainerProcess, wanted: _Probes) -> None:
        if wanted.startup and not await probes.first_verdict(
            wanted.startup, self._check(process, wanted.startup)
        ):
            self._kill(process, "startup")
            return
        self._set(started=True, ready=wanted.readiness is None)
        async with asyncio.TaskGroup() as group:
            if wanted.liveness:
                check = self._check(process, wanted.liveness)
                group.create_task(probes.follow(wanted.liveness, check, self._on_alive(process)))
            if wanted.readiness:
                check = self._check(process, wanted.readiness)
                group.create_task(probes.follow(wanted.readiness, check, self._on_ready))

    def _on_ready(self, ready: bool) -> None:
        self._set(ready=ready)

    def _on_alive(self, process: ContainerProcess) -> Callable[[bool], None]:
        def note(alive: bool) -> None:
            if not alive:
                self._kill(process, "liveness")

        return note

    def _kill(self, process: ContainerProcess, probe: str) -> None:
        """Stop a container whose probe failed; ``run`` starts the next one."""
        logger.info("%s: %s probe failed", self._sandbox.log(self.status.name), probe)
        grace_s = self._sandbox.pod["spec"].get("terminationGracePeriodSeconds", 30)
        self._killing = asyncio.create_task(process.stop(grace_s))

    def _check(self, process: ContainerProcess, probe: Probe) -> probes.Check:
        async def check() -> bool:
            return await self._ask(process, probe.target, probe.timeout_s)

        return check

    async def _ask(
        self, process: ContainerProcess, target: Target, timeout_s: float | None
    ) -> bool:
        match target:
            case probes.HttpGet():
                session = self._sandbox.runtime.session
                return await probes.ask_http(session, target, timeout_s=timeout_s)
            case probes.TcpSocket():
                return await probes.ask_tcp(target, timeout_s=timeout_s)
            case probes.Exec():
                return await process.run_inside(target.command, timeout_s=timeout_s) == 0

    def _restarts(self, exit_code: int) -> bool:
        if self._stop.is_set():
            return False
        match self._sandbox.pod["spec"].get("restartPolicy", "Always"):
            case "Always":
                return True
            case "OnFailure":
                return exit_code != 0
            case _:
                return False

    async def _back_off(self) -> None:
        delay_s = RESTART_DELAYS_S[min(self._num_failures, len(RESTART_DELAYS_S) - 1)]
        delay_s *= self._sandbox.runtime.config.restart_delay_scale
        self._num_failures += 1
        last = self.status.state
        if delay_s:
            message = f"back-off {delay_s:g}s restarting failed container={self.status.name}"
            self._set(state=Waiting(reason="CrashLoopBackOff", message=message), last=last)
            await self._pause(delay_s)
        self._set(last=last, restart_count=self.status.restart_count + 1)

    async def stop(self, grace_s: float) -> None:
        """Run the preStop hook, then SIGTERM, then SIGKILL, all within the grace period."""
        self._stop.set()
        process = self._process
        if process is None:
            return
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + grace_s
        await self._pre_stop(process, grace_s)
        await process.stop(deadline_s - clock())

    def kill(self) -> None:
        """End it now."""
        if self._process:
            self._process.kill()

    async def _pre_stop(self, process: ContainerProcess, grace_s: float) -> None:
        hook = (self._container.get("lifecycle") or {}).get("preStop")
        if not hook:
            return
        limit_s = self._sandbox.runtime.config.pre_stop_limit_s
        limit_s = grace_s if limit_s is None else min(limit_s, grace_s)
        try:
            async with asyncio.timeout(limit_s):
                await self._run_hook(process, hook)
        except TimeoutError:
            logger.info("%s: preStop was cut off", self._sandbox.log(self.status.name))

    async def _run_hook(self, process: ContainerProcess, hook: Json) -> None:
        """Run a hook; the container's own end cuts it short."""
        if "sleep" in hook:
            await asyncio.wait([process.exited], timeout=hook["sleep"]["seconds"])
            return
        target = probes.parse_target(hook, self._container, host=self._sandbox.probe_host)
        await self._ask(process, target, None)
