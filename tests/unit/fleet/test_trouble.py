"""What the kubelet writes of containers that do not start, and what is told of it."""

import pytest

from fleet_builders import a_pod_body
from tonnage.fleet.pods import pod_view, trouble_of

ENDED = {
    "reason": "Error",
    "exitCode": 1,
    "message": "INFO loading weights\nRuntimeError: Engine core initialization failed\n",
}
LAST_LINE = "exit code 1: RuntimeError: Engine core initialization failed"


def waiting(reason, message="", **more):
    return {"name": "vllm", "state": {"waiting": {"reason": reason, "message": message}}} | more


def of(*containers, init=()):
    return trouble_of({"containerStatuses": containers, "initContainerStatuses": init}, {})


@pytest.mark.parametrize(
    "reason",
    [
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "InvalidImageName",
    ],
)
def test_reasons_of_the_kubelet_keep_their_names_and_words(reason):
    assert of(waiting(reason, 'secret "a" not found')) == (reason, 'secret "a" not found')


def test_a_reason_that_is_not_known_is_told_with_its_name():
    found = of(waiting("SignatureValidationFailed", "no signature"))

    assert found == ("PodsFailing", "SignatureValidationFailed: no signature")


def test_an_image_that_is_pulled_again_and_again_stays_the_same_trouble():
    # As Kubernetes 1.32 and later alternate.
    cause = 'failed to pull and unpack image "docker.io/a:v9": not found'
    backing_off = f'Back-off pulling image "a:v9": ErrImagePull: {cause}'

    found = {
        of(waiting("ErrImagePull", cause)),
        of(waiting("ImagePullBackOff", backing_off)),
    }

    assert found == {("ImagePullBackOff", cause)}


def test_a_container_that_crashes_again_and_again_stays_the_same_trouble():
    told = "back-off {} restarting failed container=vllm pod=llama-5d-x_serving(uid)"
    moments = [
        waiting(
            "CrashLoopBackOff",
            told.format(wait),
            lastState={"terminated": ENDED | {"finishedAt": wait}},
            restartCount=number,
        )
        for number, wait in enumerate(["10s", "2m40s", "5m0s"], start=1)
    ]
    again = {
        "name": "vllm",
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        "lastState": {"terminated": ENDED},
        "ready": False,
        "restartCount": 4,
    }

    ended = {"name": "vllm", "state": {"terminated": ENDED}, "restartCount": 4}

    found = {of(each) for each in (*moments, again, ended)}

    assert found == {("CrashLoopBackOff", LAST_LINE)}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("ERROR {day} {time} [core.py:396] No free memory", "ERROR [core.py:396] No free memory"),
        ("ERROR {day} {time}.123 [core.py:396] gone", "ERROR [core.py:396] gone"),
        ("[rank0]:[W{day_written}{time}.845 NCCL.cpp:1250] x", "[rank0]:[NCCL.cpp:1250] x"),
        ("2026-{day} {time},123 ValueError: 12 of 34:56", "ValueError: 12 of 34:56"),
        ("2026-{day}T{time}Z ValueError: 0-1", "ValueError: 0-1"),
    ],
)  # fmt: skip
def test_the_time_in_a_last_line_makes_no_other_trouble(line, told):
    # Without a termination message of its own the kubelet takes the last lines of the log.
    days = [("11-23", "1123 ", "23:51:20"), ("11-24", "1124 ", "00:02:31")]
    found = {
        of({"name": "vllm", "state": {"terminated": ENDED | {"message": line.format(
            day=day, day_written=written, time=time)}}})
        for day, written, time in days
    }  # fmt: skip

    assert found == {("CrashLoopBackOff", f"exit code 1: {told}")}


@pytest.mark.parametrize(
    "changes",
    [{"restartCount": 1}, {"ready": True}, {"restartCount": 0, "lastState": {}}],
    ids=["once more", "ready again", "the first time"],
)
def test_a_container_that_runs_is_on_its_way(changes):
    running = {
        "name": "vllm",
        "state": {"running": {}},
        "lastState": {"terminated": ENDED},
        "ready": False,
        "restartCount": 4,
    }

    assert of(running | changes) is None


def test_a_container_that_cannot_be_run_is_told_by_what_the_runtime_said():
    # The kubelet says StartError of it while it waits for the next try.
    said = 'exec: "vllm": executable file not found in $PATH: unknown'
    start = {"reason": "StartError", "exitCode": 128, "message": said}

    found = of(waiting("CrashLoopBackOff", "back-off 40s", lastState={"terminated": start}))

    assert found == ("CrashLoopBackOff", f"StartError, exit code 128: {said}")


def test_an_init_container_is_named():
    failing = waiting("CreateContainerConfigError", 'secret "a" not found') | {"name": "fetch"}

    found = of(waiting("PodInitializing"), init=[failing])

    assert found == (
        "CreateContainerConfigError",
        'init container fetch: secret "a" not found',
    )


def test_an_init_container_that_is_done_is_no_trouble():
    done = {"name": "fetch", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}}

    assert of(waiting("PodInitializing"), init=[done]) is None


def test_what_the_kubelet_says_is_one_short_printable_line():
    found = of(waiting("CreateContainerError", "a\n\tb\x1b[31m " + "no " * 5000))

    assert found.message.startswith("a [redacted] no no")
    assert len(found.message) == 200
    assert found.message.endswith("...")
    assert found.message.isprintable()


def test_the_view_of_a_pod_is_the_same_while_its_back_off_grows():
    def seen(wait, restarts):
        crash = waiting(
            "CrashLoopBackOff",
            f"back-off {wait} restarting failed container",
            lastState={"terminated": ENDED},
            restartCount=restarts,
        )
        return pod_view(a_pod_body("a", ready_for_s=None, containerStatuses=[crash]))

    assert seen("10s", 1) == seen("5m0s", 9)
