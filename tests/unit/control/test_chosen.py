"""Which flags are in force: those that run, unless the user's spec changed or somebody edited."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from fleet_builders import (
    NOW_S,
    SPEC,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_memory,
    a_model,
    a_pod_body,
    a_request_of,
    a_sizing,
    a_state,
    assessed,
    failures,
    first_replicas,
    managed_by,
    no_config,
    recorded_by,
    remembering,
    unmeasured,
    with_lengths,
)
from measured_builders import a_posterior
from tonnage.catalog.gpu import built_in_gpus
from tonnage.control.assess import size_object
from tonnage.control.decide.writers import with_written
from tonnage.control.input.sizing_cache import SizingCache
from tonnage.control.input.writers import Fate, WriteKind
from tonnage.control.report.status import report
from tonnage.control.size.question import question_of
from tonnage.estimate.calibration import Calibrations, Scope, memory_key, speed_key
from tonnage.estimate.demand import MeasuredLengths
from tonnage.estimate.posterior import MemoryReport
from tonnage.estimate.stored import dump, load
from tonnage.manifests.children import differs_in_pods, spec_digest, write_flags
from tonnage.sizing.options import Adapters
from tonnage.sizing.plan import size_with
from tonnage.sizing.provenance import Figure
from tonnage.sizing.search import gpus_taken, size
from tonnage.sizing.serving import goodput as searches
from tonnage.sizing.split import Parallelism

EXAMPLES = Path(__file__).parents[3] / "deploy" / "examples"
CHOSEN = a_sizing().flags
"""What the arithmetic chooses for ``a_model``."""
TARGET = {"engine": None, "scaleTarget": {"name": "my-vllm"}, "hardware": {"gpu": "H200"}}
TARGET_ARGUMENTS = [
    "--max-num-seqs=40",
    "--max-num-batched-tokens=8192",
    "--tensor-parallel-size=2",
    "--max-model-len=8192",
]


def running(flags, model=None, **metadata):
    """Our Deployment as it was made with these flags."""
    model = model or a_model()
    body = a_deployment_body(model, sizing=replace(a_sizing(model), flags=flags))
    body["metadata"] |= metadata
    return body


def a_target(arguments=None, *, image="vllm/vllm-openai:v0.33.0", **metadata):
    """Somebody's Deployment, opted in."""
    body = a_deployment_body(annotations={}, ownerReferences=[], name="my-vllm")
    body["metadata"] |= metadata
    [container] = body["spec"]["template"]["spec"]["containers"]
    container |= {"args": TARGET_ARGUMENTS if arguments is None else arguments, "image": image}
    return body


def a_target_state(live=None, **changes):
    return a_state(a_manifest(**TARGET), live=live or a_target(), **changes)


def corrected(found):
    """The memory after our template was applied."""
    return with_written(found.memory, found, scaled=None, template=Fate.DONE, now_s=NOW_S)


def edited(flags, *, slots):
    """A Deployment of ours, in the template of which somebody wrote another ``--max-num-seqs``."""
    body = running(flags)
    arguments = body["spec"]["template"]["spec"]["containers"][0]["args"]
    arguments[arguments.index("--max-num-seqs") + 1] = str(slots)
    body["metadata"]["managedFields"] += managed_by("kubectl-edit", "f:template")
    return body


class TestTheFirstPlan:
    def test_is_made_from_what_the_spec_expects(self):
        found = assessed(replicas=None)

        assert found.refusal is None
        assert found.sizing.flags == CHOSEN
        assert found.decision.replicas == first_replicas()
        assert found.template["metadata"]["name"] == "llama"
        assert found.template["metadata"]["annotations"]["tonnage.dev/spec-digest"] == spec_digest(
            a_model()
        )

    def test_without_a_demand_is_the_smallest_fleet(self):
        manifest = a_manifest(demand=None, scaling={"minReplicas": 2, "maxReplicas": 4})

        found = assessed(a_state(manifest, replicas=None))

        assert found.decision.replicas == 2
        assert found.decision.reasons[0].code == "NoDemand"


class TestTheSplitOfANewObject:
    """Two rates with a split each, of which the other takes as many GPUs or some per cent more."""

    TWO, FOUR = Parallelism(tensor=2), Parallelism(tensor=4)

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def own_searches(cls):
        """Ask as a new process does: a search begins where another one of its trial ended.

        So what it finds hangs on what was asked before, by a sixth of a per cent.
        """
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(searches, "known_of", cache(searches.known_of.__wrapped__))
            yield

    @pytest.fixture
    def rates(self):
        return self.found_rates()

    @classmethod
    @cache
    def found_rates(cls):
        """Return them: where the two change places moves with every constant of speed."""
        planned = ((rate, cls().planned(rate).sizing.parallelism) for rate in range(20, 80))
        wanted = (cls.TWO, cls.FOUR)
        return next((r, s) for (r, low), (s, high) in pairwise(planned) if (low, high) == wanted)

    def planned(self, requests_per_s, memory=None, **spec):
        tokens = {"promptTokens": {"mean": 4000, "p99": 7000}, "outputTokens": {"mean": 1000}}
        spec |= {
            "hardware": {"gpu": "H200"},
            "demand": {"requestsPerSecond": requests_per_s, **tokens},
            "engine": {"version": "0.33"},
        }
        scaling = {"maxReplicas": 100, "mode": "Recommend", **spec.pop("scaling", {})}
        state = a_state(a_manifest(scaling=scaling, **spec), replicas=None)
        return assessed(state, memory=memory or a_memory(state))

    def restarted(self, found):
        """Return the memory of the next process: what was stored."""
        uid = found.state.view.uid
        stored = load(dump(Calibrations(objects={uid: found.memory.posterior}))).calibrations
        return replace(a_memory(found.state), posterior=stored.objects[uid])

    def test_is_the_one_with_the_fewest_gpus_at_the_believed_speed(self, rates):
        for rate in rates:
            found = self.planned(rate)
            belief, split = found.chosen.belief, found.sizing.parallelism
            believed = belief.constants_at(belief.asked.middle)
            request = replace(found.sizing.request, flags=None, speed=believed)
            gpus = {each: gpus_taken(size_with(request, each)) for each in (self.TWO, self.FOUR)}
            assert gpus[split] == min(gpus.values())

    def test_stays_while_another_saves_five_percent_at_most(self, rates):
        low, high = rates
        more = self.planned(high, self.planned(low).memory).sizing
        back = self.planned(low, self.planned(high).memory).sizing

        assert (more.parallelism, back.parallelism) == (self.TWO, self.FOUR)
        assert gpus_taken(more) >= gpus_taken(self.planned(high).sizing)

    def test_is_the_one_that_is_created_ticks_later_in_another_process(self, rates):
        shown = self.planned(rates[0])
        created = self.planned(rates[1], self.restarted(shown), scaling={"mode": "Auto"})

        [container] = created.template["spec"]["template"]["spec"]["containers"]
        assert container["args"][container["args"].index("--tensor-parallel-size") + 1] == "2"

    def test_stays_while_the_api_server_refuses_what_is_made(self, rates):
        memory = self.planned(rates[0], scaling={"mode": "Auto"}).memory
        refused = remembering(memory, failures=failures(WriteKind.TEMPLATE))
        again = self.planned(rates[0], refused, scaling={"mode": "Auto"})
        more = self.planned(rates[1], again.memory, scaling={"mode": "Auto"})

        assert memory.posterior.planned_split is None  # it is made at once: nothing to store
        assert more.sizing.parallelism == self.TWO

    def test_is_another_one_that_saves_more(self, rates):
        few = self.planned(1, self.planned(rates[1]).memory)

        assert few.sizing.parallelism == Parallelism()

    def test_is_another_one_where_it_does_not_fit_any_more(self):
        model = {"id": "meta-llama/Llama-3.3-70B-Instruct"}
        found = self.planned(1, model=model)
        digest = spec_digest(found.chosen.model)
        posterior = replace(found.memory.posterior, planned_split=f"{digest} TP1")

        again = self.planned(1, replace(found.memory, posterior=posterior), model=model)

        assert again.sizing.parallelism == found.sizing.parallelism != Parallelism()

    def test_is_another_one_where_its_replicas_exceed_what_is_allowed(self, rates):
        most = {"maxReplicas": self.planned(rates[1]).sizing.replicas}
        few = self.planned(rates[1], self.planned(rates[0]).memory, scaling=most)

        assert few.sizing.parallelism == self.FOUR

    def test_of_a_changed_spec_is_searched_for_anew(self, rates):
        found = self.planned(rates[1], self.planned(rates[0]).memory, contextLength=16_384)

        anew = self.planned(rates[1], contextLength=16_384)
        assert found.sizing.parallelism == anew.sizing.parallelism

    @pytest.mark.parametrize("stored", ["", "TP2", "0 TP2", "x" * 200])
    def test_is_searched_for_where_what_is_stored_says_nothing(self, stored):
        state = a_state(replicas=None)
        posterior = replace(a_memory(state).posterior, planned_split=stored)

        found = assessed(state, memory=replace(a_memory(state), posterior=posterior))

        assert found.sizing.flags == CHOSEN


class TestLiveFlags:
    KEPT = replace(CHOSEN, max_num_seqs=50)

    def test_stay_while_the_spec_does(self):
        found = assessed(live=running(self.KEPT))

        assert found.sizing.flags == self.KEPT
        assert found.template is None

    def test_stay_when_the_catalogue_learns_better_figures(self):
        state = a_state(live=running(self.KEPT))
        gpus = built_in_gpus()
        faster = replace(gpus["H200"], memory_bytes_per_s=2 * gpus["H200"].memory_bytes_per_s)

        found = assessed(state, fleet=a_fleet(state, gpus={**gpus, "H200": faster}))

        assert found.sizing.request.gpu == faster
        assert found.sizing.flags == self.KEPT
        assert found.template is None

    def test_stay_when_the_speed_is_learned(self):
        state = a_state(live=running(self.KEPT))
        key = speed_key(a_sizing().request, self.KEPT)
        slow = Calibrations(speed={Scope("serving", key): a_posterior(bandwidth_efficiency=0.5)})

        found = assessed(state, fleet=a_fleet(state, calibrations=slow))

        assert found.sizing.request.speed.bandwidth_efficiency == 0.5
        assert found.sizing.flags == self.KEPT
        assert found.template is None

    def test_stay_when_the_traffic_has_other_lengths(self):
        state = a_state(live=running(self.KEPT))
        lengths = MeasuredLengths(prompt_tokens=100, output_tokens=50, cached_fraction=0)

        found = assessed(with_lengths(state), memory=a_memory(state, lengths=lengths))

        assert found.sizing.request.workload.prompt.mean_tokens == pytest.approx(100, rel=0.015)
        assert found.template is None

    def test_are_those_recorded_when_somebody_edits_the_arguments(self):
        body = running(self.KEPT)
        [container] = body["spec"]["template"]["spec"]["containers"]
        arguments = container["args"]
        arguments[arguments.index("--max-num-seqs") + 1] = "999"
        body["metadata"]["managedFields"] += managed_by("kubectl-edit", "f:template")

        assert assessed(live=body).sizing.flags == self.KEPT

    def test_are_those_recorded_until_the_correction_of_an_edit_is_seen(self):
        state = a_state(live=edited(self.KEPT, slots=7))
        first = assessed(state)

        unseen = assessed(state, memory=corrected(first))

        assert first.sizing.flags == unseen.sizing.flags == self.KEPT
        assert unseen.template is None
        unedited = assessed(a_state(live=running(self.KEPT))).decision.replicas
        assert first.decision.replicas == unseen.decision.replicas == unedited

    @pytest.mark.parametrize(("after_s", "slots"), [(45, 50), (90, 7)])
    def test_are_those_edited_where_the_correction_changed_nothing(self, after_s, slots):
        # A webhook makes the same of what is written: no generation comes of that.
        state = a_state(live=edited(self.KEPT, slots=7))
        first = assessed(state)

        later = a_fleet(state, now_s=NOW_S + after_s)
        found = assessed(state, fleet=later, memory=corrected(first))

        assert found.sizing.flags.max_num_seqs == slots

    @pytest.mark.parametrize("mode", ["Recommend", "Paused"])
    def test_are_those_edited_in_a_mode_that_corrects_nothing(self, mode):
        scaling = {"mode": mode, "minReplicas": 1, "maxReplicas": 8}
        state = a_state(a_manifest(scaling=scaling), live=edited(self.KEPT, slots=7))

        assert assessed(state).sizing.flags.max_num_seqs == 7

    def test_are_those_edited_while_the_edit_is_left(self):
        state = a_state(live=edited(self.KEPT, slots=7))
        memory = corrected(assessed(state))
        again = replace(state, deployment=replace(state.deployment, generation=9))

        found = assessed(again, memory=memory)

        assert found.sizing.flags.max_num_seqs == 7

    def test_are_those_edited_while_the_api_server_refuses_the_correction(self):
        state = a_state(live=edited(self.KEPT, slots=7))

        found = assessed(state, memory=a_memory(state, failures=failures(WriteKind.TEMPLATE)))

        assert found.sizing.flags.max_num_seqs == 7

    def test_are_those_of_the_arguments_when_somebody_edits_the_record(self):
        body = running(self.KEPT)
        forged = replace(self.KEPT, max_num_seqs=100)
        body["metadata"]["annotations"]["tonnage.dev/flags"] = write_flags(forged)

        found = assessed(live=body)

        assert found.sizing.flags == self.KEPT
        assert found.template is None

    def test_are_those_recorded_where_the_arguments_only_round_them(self):
        exact = replace(self.KEPT, gpu_memory_utilization=0.912345678)

        assert assessed(live=running(exact)).sizing.flags == exact

    @pytest.mark.parametrize("annotation", ["", "{", '{"maxNumSeqs": 0}'])
    def test_are_read_from_the_arguments_when_the_record_is_gone(self, annotation):
        body = running(self.KEPT)
        body["metadata"]["annotations"]["tonnage.dev/flags"] = annotation

        found = assessed(live=body)

        assert found.sizing.flags == self.KEPT
        assert found.template is None

    def test_that_cannot_be_read_anywhere_are_chosen_anew(self):
        body = running(self.KEPT)
        body["metadata"]["annotations"]["tonnage.dev/flags"] = ""
        body["spec"]["template"]["spec"]["containers"][0]["args"] = []

        found = assessed(live=body)

        assert found.sizing.flags == CHOSEN
        assert found.template is not None

    def test_of_a_learned_cache_are_sized_by_it(self):
        state = a_state(live=running(self.KEPT))
        key = memory_key(a_sizing().request, self.KEPT)
        known = Calibrations(memory={Scope("serving", key): MemoryReport(kv_tokens=123_456)})

        found = assessed(state, fleet=a_fleet(state, calibrations=known))

        assert found.sizing.kv_tokens == pytest.approx(123_456)


class TestLiveFlagsThatTheEstimateRefuses:
    """An upgrade with a stricter estimate must not freeze what runs."""

    TIGHT = replace(CHOSEN, gpu_memory_utilization=0.26)
    """36.3 GiB for 33 GiB of weights: by the estimate not one request fits."""

    def test_stay_and_scale_and_say_why(self):
        found = assessed(a_state(live=running(self.TIGHT), load=3))

        assert found.refusal is None
        assert found.sizing.flags == self.TIGHT
        assert found.template is None
        assert found.sizing.memory_ceiling_longest == pytest.approx(1)
        assert found.decision is not None

    def test_say_so_in_the_plan(self):
        state = a_state(live=running(self.TIGHT))

        told = report(assessed(state), a_fleet(state))

        codes = [each.code for each in told.status.plan.reasons]
        assert "MemoryEstimateBelowRunning" in codes

    def test_are_not_taken_to_hold_what_another_spec_asks(self):
        changed = a_manifest(contextLength=16_384, generation=2)

        found = assessed(a_state(changed, live=running(self.TIGHT)))

        assert found.sizing.flags != self.TIGHT


class TestAChangedSpec:
    def test_is_carried_out(self):
        live = a_deployment_body()

        found = assessed(a_state(a_manifest(contextLength=16_384, generation=2), live=live))

        assert found.template is not None
        assert "16384" in found.template["spec"]["template"]["spec"]["containers"][0]["args"]

    @pytest.mark.parametrize("num_seqs", [*range(20, 67, 4), 67])
    def test_changes_flags_only_for_a_gain_of_more_than_five_percent(self, num_seqs):
        live = replace(CHOSEN, max_num_seqs=num_seqs)
        slo = {"timeToFirstToken": {"p95": "2s"}, "timePerOutputToken": {"p95": "51ms"}}
        request = a_request_of(a_model(slo=slo))
        best = size(request).goodput_requests_per_s
        gain = best / size(replace(request, flags=live)).goodput_requests_per_s - 1

        found = assessed(a_state(a_manifest(slo=slo, generation=2), live=running(live)))

        assert (found.sizing.flags == live) is (gain <= 0.05)
        assert found.template is not None  # the record moves to the new spec in any case

    def test_takes_other_flags_when_the_old_ones_do_not_fit_any_more(self):
        # Weights of 16 bits need more than the one GPU that fp8 took.
        one_gpu = {"gpu": "H200", "gpusPerReplica": 1}
        before = a_model(hardware=one_gpu)
        wide = a_manifest(
            model={"id": "meta-llama/Llama-3.3-70B-Instruct"}, hardware={"gpu": "H200"}
        )

        found = assessed(a_state(wide, live=a_deployment_body(before)))

        assert found.refusal is None
        assert found.sizing.flags.parallelism.num_gpus > 1

    def test_takes_the_split_with_the_fewest_gpus_at_the_demand(self):
        four = a_model(hardware={"gpu": "H200", "gpusPerReplica": 4})
        demand = {
            "requestsPerSecond": "0.2",
            "promptTokens": {"mean": 1000},
            "outputTokens": {"mean": 200},
        }
        small = a_manifest(hardware={"gpu": "H200"}, demand=demand, generation=2)

        found = assessed(a_state(small, live=a_deployment_body(four)))

        assert found.sizing.flags.parallelism.num_gpus == 1

    def test_takes_the_split_that_serves_the_demand_within_max_replicas(self):
        one = a_model(hardware={"gpu": "H200", "gpusPerReplica": 1})
        demand = {
            "requestsPerSecond": 12,
            "promptTokens": {"mean": 1000},
            "outputTokens": {"mean": 200},
        }
        many = {"hardware": {"gpu": "H200"}, "demand": demand}
        most = size(
            replace(a_request_of(a_model(**many, scaling={"maxReplicas": 100})), num_gpus=1)
        )
        few = a_manifest(**many, scaling={"maxReplicas": most.replicas - 1}, generation=2)

        found = assessed(a_state(few, live=a_deployment_body(one)))

        assert most.replicas > 1
        assert found.sizing.flags.parallelism.num_gpus > 1
        assert found.sizing.replicas <= most.replicas - 1

    def test_of_the_gpus_per_replica_is_obeyed_whatever_is_gained(self):
        four = a_manifest(hardware={"gpu": "H200", "gpusPerReplica": 4}, generation=2)

        found = assessed(a_state(four, live=a_deployment_body()))

        assert found.sizing.flags.parallelism.num_gpus == 4

    def test_of_the_parallelism_is_obeyed_whatever_is_gained(self):
        sizes = {"tensor": 1, "pipeline": 2}
        piped = a_manifest(hardware={"gpu": "H200", "parallelism": sizes}, generation=2)

        found = assessed(a_state(piped, live=a_deployment_body()))

        assert CHOSEN.parallelism == Parallelism(tensor=2)
        assert found.sizing.parallelism == Parallelism(pipeline=2)
        assert found.template is not None

    def test_of_the_parallelism_to_what_runs_restarts_nothing(self):
        sizes = {"tensor": 2, "pipeline": 1, "data": 1}
        same = a_manifest(hardware={"gpu": "H200", "parallelism": sizes}, generation=2)

        found = assessed(a_state(same, live=a_deployment_body()))

        assert found.sizing.flags == CHOSEN

    def test_of_the_token_budget_is_obeyed_whatever_is_gained(self):
        engine = {"version": "0.33", "maxNumBatchedTokens": 6000}
        given = a_manifest(engine=engine, generation=2)

        found = assessed(a_state(given, live=a_deployment_body()))

        assert found.sizing.flags.max_num_batched_tokens == 6000
        assert found.template is not None

    @pytest.mark.parametrize(
        "change",
        [
            {"scaling": {"minReplicas": 2, "maxReplicas": 9}},
            {"demand": None},
        ],
    )
    def test_of_what_no_template_holds_restarts_nothing(self, change):
        found = assessed(a_state(a_manifest(**change), live=a_deployment_body()))

        assert found.template is None


class TestAChangeOfWhatPodsNeed:
    CHANGED = a_manifest(pods={"cpu": "3"}, generation=2)
    KEPT = replace(CHOSEN, max_num_seqs=50)

    def test_is_sized_with_the_flags_that_run_and_asks_nothing_that_was_not_asked(self):
        before = SizingCache()
        size_object(
            a_state(live=running(self.KEPT)), a_fleet(a_state()), a_memory(a_state()), before
        )
        changed = a_state(self.CHANGED, live=running(self.KEPT))
        asker = SizingCache(before.all_answers)

        found = size_object(changed, a_fleet(changed), a_memory(changed), asker)

        assert found.sizing.flags == self.KEPT
        assert found.chosen.needs_apply
        assert (before.num_searched > 0, asker.num_searched) == (True, 0)

    def test_is_carried_out(self):
        found = assessed(a_state(self.CHANGED, live=running(self.KEPT)))

        [container] = found.template["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["requests"]["cpu"] == "3"
        assert found.template["metadata"]["annotations"]["tonnage.dev/flags"] == write_flags(
            self.KEPT
        )

    def test_beside_another_change_asks_for_the_best_flags(self):
        both = a_manifest(pods={"cpu": "3"}, contextLength=16_384, generation=2)
        asker = SizingCache()

        state = a_state(both, live=running(self.KEPT))
        found = size_object(state, a_fleet(state), a_memory(state), asker)

        assert found.chosen.needs_apply
        assert asker.num_searched > 1

    def test_is_nothing_that_sizing_asks_about(self):
        spec = yaml.safe_load((EXAMPLES / "production-pods.yaml").read_text())["spec"]
        questions = []
        for pods in (spec["pods"], None):
            state = a_state(a_manifest(**spec | {"pods": pods}))
            found = unmeasured(state, a_memory(state))
            asked = question_of(state.model, found, a_fleet(state), SizingCache())
            questions.append((asked.request, asked.near))

        assert questions[0] == questions[1]

    def test_is_none_where_nobody_wrote_down_what_runs(self):
        for made_from in (None, "{", "[]", "7"):
            assert not differs_in_pods(a_model(pods={"cpu": "3"}), made_from)


class TestARole:
    MODEL = a_manifest(
        engine={"version": "0.33", "role": "decode"},
        hardware={"gpu": "H200", "parallelism": {"tensor": 2}},
        slo={"timePerOutputToken": {"p95": "50ms"}},
    )

    def computed(self, cached_fraction):
        """Return the prompt tokens that a plan takes decode to compute of each request."""
        state = a_state(self.MODEL)
        memory = a_memory(state)
        lengths = MeasuredLengths(
            prompt_tokens=4000, output_tokens=900, cached_fraction=cached_fraction
        )
        traffic = replace(memory.traffic, asked_lengths=lengths)
        found = unmeasured(state, replace(memory, traffic=traffic))
        asked = question_of(state.model, found, a_fleet(state), SizingCache())
        return asked.request.workload.new_prompt_tokens

    def test_whose_prompts_are_taken_computes_a_token_of_each(self):
        assert self.computed(0.99) == pytest.approx(1)

    @pytest.mark.parametrize("cached", [0.0, 0.5, 0.9])
    def test_that_computes_prompts_after_all_is_planned_for_them(self, cached):
        assert self.computed(cached) == pytest.approx(4000 * (1 - cached))


class TestAForeignEdit:
    def edited(self, flags, image="example.test/other:1"):
        body = running(flags)
        body["spec"]["template"]["spec"]["containers"][0]["image"] = image
        return body

    def test_is_undone_once_for_each_difference(self):
        state = a_state(live=self.edited(CHOSEN))
        first = assessed(state)
        again = assessed(state, memory=corrected(first))
        newer = self.edited(CHOSEN, "elsewhere/vllm:v0.33.0")
        a_minute_later = a_fleet(a_state(live=newer), now_s=NOW_S + 60)
        later = assessed(a_state(live=newer), memory=again.memory, fleet=a_minute_later)

        assert first.template is not None
        assert again.template is None
        assert later.template is not None

    def test_is_undone_to_the_flags_that_ran(self):
        kept = replace(CHOSEN, max_num_seqs=50)

        found = assessed(live=self.edited(kept))

        assert found.template["metadata"]["annotations"]["tonnage.dev/flags"] == write_flags(kept)

    def test_by_our_own_managers_is_none(self):
        ours = managed_by("tonnage", "f:template") + managed_by("tonnage-scale", "f:replicas")

        assert assessed(live=running(CHOSEN, managedFields=ours + recorded_by())).template is None


class TestAScaleTarget:
    def test_runs_with_its_own_flags_and_its_template_is_left_alone(self):
        found = assessed(a_target_state())

        assert found.refusal is None
        assert found.sizing.flags.max_num_seqs == 40
        assert found.sizing.flags.parallelism == Parallelism(tensor=2)
        assert found.template is None

    def test_is_read_from_its_arguments_and_not_from_an_annotation(self):
        # Our annotation on it says what once ran there, or what somebody wants us to believe.
        stale = {"tonnage.dev/flags": write_flags(replace(CHOSEN, max_num_seqs=999))}

        found = assessed(a_target_state(a_target(annotations=stale)))

        assert found.sizing.flags.max_num_seqs == 40

    def test_has_the_cache_that_its_arguments_give(self):
        given = [*TARGET_ARGUMENTS, "--kv-cache-memory-bytes=10G"]
        found = assessed(a_target_state(a_target(given)))

        assert found.sizing.flags.kv_cache_bytes == 10_737_418_240
        assert found.sizing.kv_tokens_range == (found.sizing.kv_tokens, found.sizing.kv_tokens)
        assert found.sizing.kv_tokens == 65_536  # of 163,840 bytes on each GPU

    def test_has_the_adapters_that_its_arguments_give(self):
        lora = ["--enable-lora", "--max-loras=8", "--max-lora-rank=64"]
        adapted, bare = (
            assessed(a_target_state(a_target([*TARGET_ARGUMENTS, *more]))).sizing
            for more in (lora, [])
        )

        assert adapted.request.adapters == Adapters(number=8, rank=64)
        assert adapted.budget.kv_pool_bytes < bare.budget.kv_pool_bytes

    @pytest.mark.parametrize(
        "arguments", [[], ["--max-num-batched-tokens=8192"], ["--max-num-seqs=1024"]]
    )
    def test_runs_with_what_vllm_takes_by_itself_where_flags_are_absent(self, arguments):
        found = assessed(a_target_state(a_target([*arguments])))

        assert found.sizing.flags.max_num_seqs == 1024
        assert found.sizing.flags.max_num_batched_tokens == 8192
        assert found.sizing.request.context_tokens == 131_072

    @pytest.mark.parametrize("arguments", [["--max-num-seqs=$(SEQS)"], ["m", "$(FLAGS)"]])
    def test_whose_flags_cannot_be_read_is_refused(self, arguments):
        found = assessed(a_target_state(a_target(arguments)))

        assert found.refusal.code == "FlagsUnknown"
        assert "my-vllm" in found.refusal.message

    @pytest.mark.parametrize("image", ["vllm:latest", "vllm", "vllm@sha256:abc", "host:5000/vllm"])
    def test_whose_image_names_no_version_is_refused(self, image):
        found = assessed(a_target_state(a_target(image=image)))

        assert found.refusal.code == "EngineVersionUnknown"

    HYBRID = TARGET | {"model": {"id": "Qwen/Qwen3.6-27B"}, "hardware": {"gpu": "H100-NVL"}}

    def test_that_vllm_refuses_after_loading_is_refused_until_a_pod_was_ready(self):
        arguments = ["--max-num-seqs=1024", "--max-num-batched-tokens=8192"]
        live = a_target(arguments=arguments, image="vllm/vllm-openai:v0.25.1")
        manifest = a_manifest(**self.HYBRID)
        starting = [a_pod_body("a", ready_for_s=None)]

        never = assessed(a_state(manifest, live=live, pods=starting, engines=()))
        ready = assessed(a_state(manifest, live=live, engines=()))

        assert never.refusal.code == "WillNotStart"
        assert "set --max-num-seqs to at most " in never.refusal.message
        assert ready.refusal is None

    def test_that_holds_no_request_does_not_fit_until_a_pod_was_ready(self):
        live = a_target(arguments=[*TARGET_ARGUMENTS, "--gpu-memory-utilization=0.26"])
        starting = [a_pod_body("a", ready_for_s=None)]

        never = assessed(a_target_state(live, pods=starting, engines=()))
        ready = assessed(a_target_state(live, engines=()))

        assert never.refusal.code == "DoesNotFit"
        assert ready.refusal is None

    def test_that_does_not_fit_names_the_assumptions_that_may_be_why(self):
        arguments = [*TARGET_ARGUMENTS, "--gpu-memory-utilization=0.26"]
        own = a_target(arguments=arguments, image="my.registry/team/vllm:v0.33.0")
        known = a_target(arguments=arguments, image="vllm/vllm-openai:v0.33.0")
        starting = [a_pod_body("a", ready_for_s=None)]
        said, plain = (
            assessed(a_target_state(live, pods=starting, engines=())).refusal.message
            for live in (own, known)
        )

        assert said.startswith(f"{plain}; assumed vLLM: the tag of my.registry/team/vllm:v0.33.0")
        assert said.endswith("scaleTarget.engineVersion replaces this")

    def test_of_too_old_a_version_is_refused(self):
        assert (
            assessed(a_target_state(a_target(image="vllm/vllm-openai:v0.5.0"))).refusal is not None
        )

    def test_that_is_not_opted_in_is_refused(self):
        closed = a_target(labels={})

        assert assessed(a_target_state(closed)).refusal.code == "TargetNotAllowed"

    def test_that_has_a_role_is_sized_for_its_part_of_each_request(self):
        connector = '--kv-transfer-config={"kv_connector":"NixlConnector","kv_role":"kv_both"}'
        slo = {"timeToFirstToken": {"p95": "1s"}}
        demand = SPEC["demand"] | {"cacheTransfer": "20ms"}
        sizings = {}
        for role in ("prefill", "decode"):
            asked = TARGET | {"scaleTarget": {"name": "my-vllm", "role": role}}
            manifest = a_manifest(**asked, slo=slo, demand=demand)
            live = a_target(
                arguments=[*TARGET_ARGUMENTS, connector], image="vllm/vllm-openai:v0.33.0"
            )
            sizings[role] = assessed(a_state(manifest, live=live, engines=())).sizing
        prefill, decode = (sizings[role].request for role in ("prefill", "decode"))

        assert (prefill.role, decode.role) == ("prefill", "decode")
        assert prefill.workload.output_tokens == 1
        assert decode.transfer_s == 0.02
        assert prefill.flags == decode.flags
        assert prefill.engine_digest != decode.engine_digest, "each learns its own speed"

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"image": "vllm/vllm-openai:v0.20.0"}, "needs engine.version 0.22"),
            ({}, "needs demand.cacheTransfer"),
        ],
    )
    def test_that_cannot_have_its_role_is_refused_by_name(self, changes, message):
        asked = TARGET | {"scaleTarget": {"name": "my-vllm", "role": "decode"}}
        live = a_target(**({"image": "vllm/vllm-openai:v0.33.0"} | changes))
        found = assessed(a_state(a_manifest(**asked), live=live))

        assert message in found.refusal.message

    def test_that_does_not_exist_is_refused(self):
        state = a_state(a_manifest(**TARGET), replicas=None)

        assert assessed(state).refusal.code == "TargetNotAllowed"

    def test_that_an_older_object_scales_is_refused(self):
        found = assessed(a_target_state(earlier_owner="first"))

        assert found.refusal.code == "ConflictingOwner"
        assert "first" in found.refusal.message


@pytest.mark.parametrize(
    ("given", "cache"),
    [
        (["--kv-cache-dtype", "auto", "--dtype", "bfloat16"], "bf16"),
        (["--kv-cache-dtype=bfloat16"], "bf16"),
        (["--dtype=float16"], "bf16"),
        (["--kv-cache-dtype", "fp8"], "fp8"),
        (["--kv_cache_dtype=fp8_e5m2"], "fp8"),
        (["--kv-cache-dtype", "int8_per_token_head"], "int8_per_token_head"),
        (["--kv-cache-dtype", "turboquant_4bit_nc"], "turboquant_4bit_nc"),
    ],
)
def test_a_scale_target_is_counted_with_the_cache_that_its_arguments_say(given, cache):
    live = a_target(arguments=[*TARGET_ARGUMENTS, *given])

    assert assessed(a_target_state(live)).sizing.request.kv_format == cache


@pytest.mark.parametrize("name", ["fp8_ds_mla", "octave_k3v4", "fp9"])
def test_a_scale_target_with_a_cache_that_its_engine_does_not_start_with_is_refused(name):
    live = a_target(arguments=[*TARGET_ARGUMENTS, "--kv-cache-dtype", name])
    found = assessed(a_target_state(live))

    assert found.refusal.code == "InvalidKvCache"
    assert f"--kv-cache-dtype {name}: " in found.refusal.message


def test_tokens_learned_of_a_cache_of_one_type_are_not_those_of_another():
    flags = ["--kv-cache-dtype", "nvfp4"]
    narrow = assessed(a_target_state(a_target(arguments=[*TARGET_ARGUMENTS, *flags]))).sizing
    wide = assessed(a_target_state(a_target(arguments=TARGET_ARGUMENTS))).sizing

    assert memory_key(narrow.request, narrow.flags) != memory_key(wide.request, wide.flags)


def test_a_cache_that_is_asked_for_goes_before_what_a_scale_targets_arguments_say():
    model = {"id": "meta-llama/Llama-3.3-70B-Instruct", "kvCache": "fp8"}
    state = a_state(a_manifest(**TARGET | {"model": model}), live=a_target())

    assert assessed(state).sizing.request.kv_format == "fp8"


class TestRefusals:
    def test_of_a_deployment_that_somebody_else_owns(self):
        foreign = a_deployment_body(ownerReferences=[])

        found = assessed(a_state(live=foreign))

        assert found.refusal.code == "NameConflict"
        assert found.template is None
        assert found.decision is None

    def test_of_a_deployment_of_an_earlier_namesake(self):
        # Deleted and made anew within a tick: the garbage collector has not come yet.
        state = a_state(a_manifest(uid="new"), live=a_deployment_body())

        assert assessed(state).refusal.code == "NameConflict"

    def test_of_a_missing_model_config(self):
        found = assessed(
            a_state(model_config=no_config("ConfigMap my-model has no key config.json"))
        )

        assert found.refusal.code == "ModelConfigMissing"

    @pytest.mark.parametrize(
        ("spec", "word"),
        [
            ({"hardware": {"gpu": "H900"}}, "H900"),
            ({"model": {"id": "nobody/nothing"}}, "nobody/nothing"),
            ({"engine": {"version": "0.1"}}, "0.1"),
            ({"hardware": {"gpu": "L4", "gpusPerReplica": 1}}, "GiB"),
            ({"slo": {"timePerOutputToken": {"p95": "1ms"}}}, "1.00 ms"),
        ],
    )
    def test_name_what_cannot_be_planned_and_leave_the_template_that_runs(self, spec, word):
        found = assessed(a_state(a_manifest(**spec), live=a_deployment_body()))

        assert word in found.refusal.message
        assert found.template is None

    def test_of_what_nothing_runs_for_ask_for_nothing(self):
        found = assessed(a_state(a_manifest(hardware={"gpu": "H900"}), replicas=None))

        assert (found.template, found.chosen, found.decision) == (None, None, None)


class TestMeasuredLengths:
    def request(self, **lengths):
        state = with_lengths(a_state(load=1))
        known = {"prompt_tokens": 4000, "output_tokens": 1000, "cached_fraction": 0} | lengths
        memory = a_memory(state, lengths=MeasuredLengths(**known))
        return assessed(state, memory=memory).sizing.request

    def test_replace_those_of_the_spec_and_say_so(self):
        request = self.request(prompt_tokens=3000, output_tokens=700, cached_fraction=0.5)

        workload = request.workload
        assert workload.prompt.mean_tokens == pytest.approx(3000, rel=0.015)
        assert workload.output_tokens == pytest.approx(700, rel=0.015)
        assert workload.cached_fraction == pytest.approx(0.5, rel=0.015)
        [lengths] = [each for each in request.inputs if each.name == "lengths"]
        assert lengths.origin == "measured"
        assert lengths.value == "3012 prompt (49% cached) + 708 output tokens"

    def test_are_taken_to_spread_as_the_spec_says_or_without_that_by_their_own_mean(self):
        request = self.request(prompt_tokens=3012, output_tokens=708, cached_fraction=0.49)
        [spread] = [each for each in request.inputs if each.name == "spread of lengths"]

        # The spec has a p99 of prompts alone; 707.7 ln 100 = 3259
        assert spread.value == "outputs exponential: p99 3259 tokens"

    def test_keep_the_spread_that_the_spec_gives(self):
        # 7,000 over 4,000, around 2,000.
        prompt = self.request(prompt_tokens=2000).workload.prompt
        assert prompt.p99_tokens / prompt.mean_tokens == pytest.approx(7000 / 4000)

    def test_like_those_of_the_spec_leave_it_as_it_is(self):
        workload = self.request(prompt_tokens=4100, output_tokens=980).workload

        assert (workload.prompt.mean_tokens, workload.output_tokens) == (4000, 1000)

    def test_no_prompt_is_taken_to_be_longer_than_the_maximum_length(self):
        # 7,000 over 4,000, around 6,000: 10,500 tokens do not fit into 8,192.
        assert self.request(prompt_tokens=6000).workload.prompt.p99_tokens == 8192


class TestOutOfReach:
    """What runs must not be frozen because no rate keeps the SLO any more."""

    STRICT: ClassVar = {"timeToFirstToken": {"p99": "1s"}}

    def overloaded(self):
        flags, sizing = CHOSEN, a_sizing()
        scope = Scope("serving", speed_key(sizing.request, flags))
        known = Calibrations(speed={scope: a_posterior(bandwidth_efficiency=0.25)})
        slo = {"timePerOutputToken": {"p95": "18ms"}}
        model = a_model(slo=slo)
        state = a_state(a_manifest(slo=slo), live=running(flags, model))
        return assessed(state, fleet=a_fleet(state, calibrations=known))

    def test_it_is_sized_for_throughput_and_says_why(self):
        found = self.overloaded()

        assert found.refusal is None
        assert found.decision is not None
        assert "timePerOutputToken" in found.chosen.problem

    def test_of_bursts_that_a_replica_bears_at_no_rate_the_most_that_it_does_are_planned_for(self):
        model = a_model(slo=self.STRICT)
        state = a_state(a_manifest(slo=self.STRICT), live=running(CHOSEN, model), load=1)
        found = [
            assessed(state, memory=a_memory(state, arrival_scv=scv)).chosen
            for scv in (1.0, 2.0, 4.0, 5.0, 8.0, 16.0)
        ]
        goodput = [each.sizing.goodput_requests_per_s for each in found]
        bursty = found[-1]

        told = {each.figure: each.value for each in bursty.sizing.request.inputs}

        assert bursty.problem is None
        assert "about the most that a replica bears" in told[Figure.ARRIVALS]
        assert 1 < bursty.sizing.request.arrival_scv < 16
        assert goodput == sorted(goodput, reverse=True)  # more bursts never take fewer replicas
        assert goodput[-1] < goodput[0]


def test_a_target_of_another_model_is_refused_and_that_of_another_operator_scaled():
    def controlled_by(kind):
        owner = {"kind": kind, "name": "b", "uid": "u", "controller": True}
        return assessed(a_state(a_manifest(**TARGET), live=a_target(ownerReferences=[owner])))

    found = controlled_by("ModelDeployment")

    assert found.refusal.code == "TargetNotAllowed"
    assert "is of ModelDeployment b" in found.refusal.message
    assert controlled_by("LLMInferenceService").decision is not None


def test_a_template_that_takes_more_gpus_than_the_budget_leaves_is_refused():
    wider = a_manifest(hardware={"gpu": "H200", "gpusPerReplica": 4}, generation=4)

    found = assessed(a_state(wider, live=running(CHOSEN)), free_gpus=3)

    assert found.refusal.code == "GPUBudget"
    assert "2 replicas would take 4 more GPUs" in found.refusal.message


def test_the_image_and_the_flags_are_part_of_the_key():
    eager = a_model(engine={"version": "0.33", "args": ["--enforce-eager"]})

    keys = {speed_key(s.request, s.flags) for s in (a_sizing(), a_sizing(eager))}

    assert len(keys) == 2


class TestABetterNumberOfSlots:
    """Few slots run; more are found to gain when the constants have stood for ten minutes."""

    RUNS = replace(CHOSEN, max_num_seqs=20)

    def after(
        self, seconds, before=None, *, bandwidth_efficiency=0.7, prompt_tokens=4000, runs=RUNS
    ):
        state = with_lengths(a_state(live=running(runs), load=1))
        scope = Scope("serving", speed_key(a_sizing().request, self.RUNS))
        learned = a_posterior(
            bandwidth_efficiency=bandwidth_efficiency,
            covariance=(0.0,) * 6,
            learned_at_s=NOW_S + seconds,
        )
        known = Calibrations(speed={scope: learned})
        fleet = a_fleet(state, now_s=NOW_S + seconds, calibrations=known)
        lengths = MeasuredLengths(
            prompt_tokens=prompt_tokens, output_tokens=1000, cached_fraction=0.0
        )
        memory = before.memory if before else a_memory(state)
        return assessed(
            state,
            fleet=fleet,
            memory=replace(memory, traffic=replace(memory.traffic, lengths=lengths)),
        )

    def test_is_asked_for_once_the_constants_have_stood(self):
        first = self.after(0)

        assert first.chosen.better_max_num_seqs is None
        assert self.after(599, first).chosen.better_max_num_seqs is None
        assert self.after(600, first).chosen.better_max_num_seqs.flags.max_num_seqs > 20

    def test_is_not_asked_for_where_no_engine_started_with_more(self):
        cured = replace(self.RUNS, is_cured=True)
        found = self.after(600, self.after(0, runs=cured), runs=cured).chosen

        assert found.sizing.flags == cured
        assert found.better_max_num_seqs is None

    def test_stays_found_while_the_constants_move_a_little(self):
        # 3 % of the bandwidth are 1.5 % of a step: more than plans that have stood bear.
        found = self.after(600, self.after(0))
        moved = self.after(700, found, bandwidth_efficiency=0.721)

        assert moved.memory.sizing.asked_speed != found.memory.sizing.asked_speed
        assert moved.chosen.better_max_num_seqs == found.chosen.better_max_num_seqs

    def test_is_forgotten_with_constants_of_another_engine(self):
        found = self.after(600, self.after(0))

        assert self.after(700, found, bandwidth_efficiency=0.5).chosen.better_max_num_seqs is None

    def test_is_asked_for_anew_at_other_lengths(self):
        found = self.after(600, self.after(0))
        longer = self.after(700, found, prompt_tokens=6400).chosen

        assert longer.better_asked.at_s == NOW_S + 700
        assert longer.better_max_num_seqs.request.workload == longer.sizing.request.workload
        assert (
            longer.better_max_num_seqs.flags.max_num_seqs
            < found.chosen.better_max_num_seqs.flags.max_num_seqs
        )

    def test_stays_found_at_lengths_that_plans_take_for_the_same(self):
        found = self.after(600, self.after(0))
        same = self.after(700, found, prompt_tokens=4100).chosen

        assert same.better_asked.at_s == NOW_S + 600
        assert same.better_max_num_seqs == found.chosen.better_max_num_seqs
