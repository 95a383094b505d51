"""What is asked beside a plan: roles apart, and a cache in host memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tonnage.cli.commands.options import option, parsed
from tonnage.cli.console import Failure
from tonnage.cli.results.planning import Planned, Refused
from tonnage.sizing.plan import OnSearch
from tonnage.units import bytes_per_second

if TYPE_CHECKING:
    from tonnage.cli.results.planning import Verdict

TABLES: Final = ("csv", "markdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolesAsked:
    """The options of roles apart."""

    # fmt: off
    disaggregated: bool = option("--disaggregated", is_flag=True,
        help="Compare prefill and decode on separate replicas with one fleet for both.")
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
        if self.kv_link is not None and not self.disaggregated:
            raise Failure("--kv-link is between roles: it needs --disaggregated")
        if self.disaggregated and form in TABLES:
            raise Failure(f"-o {form} cannot show --disaggregated; use text, json or yaml")

    def answered(self, answer: Planned | Refused, on_search: OnSearch) -> Planned | Refused:
        """Return a plan with what is asked beside it."""
        if isinstance(answer, Refused):
            return answer
        return replace(answer, verdicts=dict(self._verdicts(answer, on_search)))

    def _verdicts(self, planned: Planned, on_search: OnSearch) -> Iterator[tuple[str, "Verdict"]]:
        sizing, spec = planned.sizing, planned.deployment.spec
        if self.disaggregated:
            yield "rolesApart", self._roles(planned, on_search)
        if spec.model.kv_offload is not None:
            from tonnage.explain.offload import offload_figures  # noqa: PLC0415  (where it is asked)
            from tonnage.explain.topology import offload_answer  # noqa: PLC0415
            from tonnage.sizing.offload import held_at  # noqa: PLC0415

            held = held_at(sizing, planned.replicas)
            if figures := offload_figures(
                spec, sizing, held_fraction=held, why=planned.why_offload
            ):
                yield "kvOffload", (offload_answer(spec, sizing, figures), figures)

    def _roles(self, planned: Planned, on_search: OnSearch) -> "Verdict":
        """Return whether roles apart cost less than the replicas that both together need."""
        from tonnage.explain import topology as words  # noqa: PLC0415  (only where it is asked)
        from tonnage.sizing.roles import weigh_roles  # noqa: PLC0415

        sizing = planned.sizing
        is_assumed = self.kv_link is None and not sizing.request.nodes.has_link
        link = self.kv_link or sizing.request.other_node_bytes_per_s
        replicas = max(planned.replicas, sizing.replicas)
        found = weigh_roles(sizing, replicas, link, on_search=on_search)
        return (
            words.roles_answer(found, link_is_assumed=is_assumed),
            words.roles_figures(found, link_is_assumed=is_assumed),
        )
