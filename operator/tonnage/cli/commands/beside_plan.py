"""What is asked beside a plan: roles apart, of GPU classes too, and a cache in host memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import click

from tonnage.api.topology import Topology
from tonnage.cli.answers.planning import Planned, Refused
from tonnage.cli.commands.options import option, parsed
from tonnage.cli.console import Failure
from tonnage.cli.read.asked import Change
from tonnage.sizing.plan import Between, Sizing
from tonnage.units import bytes_per_second

if TYPE_CHECKING:
    from tonnage.cli.answers.planning import Verdict

TABLES: Final = ("csv", "markdown")


AUTO: Final = "auto"


def _gib(value: str) -> int | str:
    if value == AUTO:
        return value
    if not (value.isascii() and value.isdecimal()) or int(value) == 0:
        raise ValueError(f"{value!r} is neither a number of GiB nor auto")
    return int(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolesAsked:
    """The options of roles apart."""

    # fmt: off
    roles_apart: bool = option("--roles-apart", is_flag=True,
        help="Weigh prefill and decode apart against one fleet for both.")
    kv_link: float | None = option("--kv-link", metavar="RATE", callback=parsed(bytes_per_second),
        help="What a GPU moves to a replica of the other role, such as 50GB/s or 400Gb/s. Default: "
        "hardware.nodeLink, else the link between the GPUs of a node.")
    """Bytes per second of a GPU."""
    # fmt: on

    def check(self, form: str) -> None:
        """Refuse options that mean nothing without another, or in a form.

        Raises:
            Failure: one was given so.
        """
        if self.kv_link is not None and not self.roles_apart:
            raise Failure("--kv-link is between roles: it needs --roles-apart")
        if self.roles_apart:
            _check_form(form, "--roles-apart")

    def verdict(
        self, sizing: Sizing, replicas: int, between: Between, topology: Topology | None
    ) -> "Verdict":
        """Return whether roles apart cost less than so many replicas for both.

        ``topology``: of the spec, which may say what the link moves.
        """
        from tonnage.explain import topology as words  # noqa: PLC0415  (only where it is asked)
        from tonnage.sizing.roles import weigh_roles  # noqa: PLC0415

        of_spec = topology.kv_link_bytes_per_s if topology else None
        given = self.kv_link or of_spec
        is_assumed = given is None and not sizing.request.nodes.has_link
        link = given or sizing.request.other_node_bytes_per_s
        found = weigh_roles(sizing, replicas, link, between=between)
        return (
            words.roles_answer(found, link_is_assumed=is_assumed),
            words.roles_figures(found, link_is_assumed=is_assumed),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BesidePlan:
    """All options."""

    roles: RolesAsked
    # fmt: off
    kv_offload: int | str | None = option("--kv-offload", metavar="GIB|auto",
        callback=parsed(_gib),
        help="Give a replica a KV cache of so much host memory; auto: of what --working-set takes.")
    working_set: int | None = option("--working-set", type=click.IntRange(min=0), metavar="TOKENS",
        help="Say whether a KV cache in host memory is worth it: tokens of different prompts that "
        "later requests to a replica begin with again; 0: none. Alone it gives replicas one.")
    # fmt: on

    def check(self, form: str) -> None:
        """Refuse options that mean nothing without another, or in a form.

        Raises:
            Failure: one was given so.
        """
        self.roles.check(form)
        if self.working_set is not None:
            _check_form(form, "--working-set")

    def changes(self) -> Iterator[Change]:
        """Yield what the options say of fields of a spec; ``auto`` takes away what a file says."""
        if self.kv_offload is not None:
            gib = None if self.kv_offload == AUTO else self.kv_offload
            yield "model.kvOffload.gib", gib
        if self.working_set is not None:
            yield "model.kvOffload.workingSetTokens", self.working_set

    def answered(self, answer: Planned | Refused, between: Between) -> Planned | Refused:
        """Return a plan with what is asked beside it."""
        if isinstance(answer, Refused):
            return answer
        return replace(answer, verdicts=dict(self._verdicts(answer, between)))

    def _verdicts(self, planned: Planned, between: Between) -> Iterator[tuple[str, "Verdict"]]:
        sizing, spec = planned.sizing, planned.deployment.spec
        topology = spec.topology
        if self.roles.roles_apart or topology:
            replicas = max(planned.replicas, sizing.replicas)
            yield "rolesApart", self.roles.verdict(sizing, replicas, between, topology)
        if spec.model.kv_offload is not None:
            from tonnage.explain.offload import offload_figures  # noqa: PLC0415  (where it is asked)
            from tonnage.explain.topology import offload_answer  # noqa: PLC0415
            from tonnage.sizing.offload import held_at  # noqa: PLC0415

            held = held_at(sizing, planned.replicas)
            if figures := offload_figures(
                spec, sizing, held_fraction=held, why=planned.why_offload
            ):
                yield "kvOffload", (offload_answer(spec, sizing, figures), figures)


def _check_form(form: str, name: str) -> None:
    if form in TABLES:
        raise Failure(f"-o {form} has no column for {name}: text, json and yaml say it")
