"""No secret comes through, wherever it stands; what a bug report needs does."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.cli.answers.redaction import REDACTED, redact, redacted_text

HIDDEN = "s3cr3t-value-17"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----"


def pod(**container):
    return {"spec": {"template": {"spec": {"containers": [{"name": "vllm"} | container]}}}}


HIDING = {
    "a variable": pod(env=[{"name": "HF_TOKEN", "value": HIDDEN}]),
    "a variable of a harmless name": pod(env=[{"name": "A", "value": HIDDEN}]),
    "a reference to a Secret": pod(
        env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": HIDDEN, "key": HIDDEN}}}]
    ),
    "all of a Secret": pod(envFrom=[{"secretRef": {"name": HIDDEN}}]),
    "a pull secret": {"spec": {"imagePullSecrets": [{"name": HIDDEN}]}},
    "a ServiceAccount's": {"kind": "ServiceAccount", "secrets": [{"name": HIDDEN}]},
    "a volume": {"volumes": [{"name": "a", "secret": {"secretName": HIDDEN}}]},
    "a field of our own": {"spec": {"pods": {"huggingFaceTokenSecret": HIDDEN}}},
    "one that names a key too": {"spec": {"pods": {"apiKeySecret": {"name": HIDDEN, "key": "k"}}}},
    "the spec that pods were made from": {
        "metadata": {
            "annotations": {
                "tonnage.dev/spec": json.dumps(
                    {
                        "pods": {
                            "huggingFaceTokenSecret": {"name": HIDDEN},
                            "imagePullSecrets": [{"name": HIDDEN}],
                            "env": [{"name": "A", "secretKeyRef": {"name": HIDDEN, "key": "k"}}],
                        }
                    }
                )
            }
        }
    },
    "what stands in its place": {"metadata": {"annotations": {"tonnage.dev/spec": HIDDEN}}},
    "a Secret": {"kind": "Secret", "data": {"a": HIDDEN}, "stringData": {"b": HIDDEN}},
    "a flag": pod(args=["--model=x", f"--api-key={HIDDEN}"]),
    "a flag and its value": pod(args=["--api-key", HIDDEN, "--port", "8000"]),
    "a flag of another name": pod(args=["--hf-token", HIDDEN]),
    "a shell": pod(command=["sh", "-c", f"export HF_TOKEN={HIDDEN}; vllm --api-key {HIDDEN} x"]),
    "the manifest that was applied": {
        "metadata": {
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": HIDDEN},
            "managedFields": [HIDDEN],
        }
    },
    "an annotation": {"metadata": {"annotations": {"team.example/password": HIDDEN}}},
    "JSON in a string": {"data": {"a": json.dumps({"api_key": HIDDEN, "token": HIDDEN})}},
    "a header in a probe": {"httpHeaders": [{"authorization": f"Bearer {HIDDEN}"}]},
    "an address": {"data": {"settings.yaml": f"prometheusUrl: http://me:{HIDDEN}@host:9090"}},
}


@pytest.mark.parametrize("value", HIDING.values(), ids=HIDING)
def test_a_secret_does_not_come_through_in_an_object(value):
    assert HIDDEN in json.dumps(value)

    assert HIDDEN not in json.dumps(redact(value))


@pytest.mark.parametrize(
    "line",
    [
        f"Authorization: Bearer {HIDDEN}",
        f"authorization: Basic {HIDDEN}=",
        f"GET https://user:{HIDDEN}@host/path",
        f"GET /v1?api_key={HIDDEN}&x=1",
        f"token={HIDDEN} x",
        f'{{"password": "{HIDDEN} and more {HIDDEN}"}}',
        f"PASSWORD='{HIDDEN} {HIDDEN}'",
        f"vllm serve x --hf-token {HIDDEN}",
    ],
)
def test_a_secret_does_not_come_through_in_a_log(line):
    assert HIDDEN not in redacted_text(line)
    assert REDACTED in redacted_text(line)


@pytest.mark.parametrize(
    "credential",
    [
        JWT,
        PEM,
        PEM.partition("-----END")[0],
        "hf_abcdefghijklmnop",
        "sk-abcdefghijklmnop",
        "ghp_abcdefghijklmnop",
        "AKIAABCDEFGHIJKLMNOP",
    ],
)
def test_what_looks_like_a_credential_goes_wherever_it_stands(credential):
    assert redacted_text(f"before {credential} after").startswith(f"before {REDACTED}")
    assert credential not in json.dumps(redact({"status": {"message": [f"x {credential}"]}}))


KEPT = {
    "metadata": {"name": "llama", "labels": {"tonnage.dev/managed": "true"}},
    "spec": {
        "demand": {"promptTokens": {"mean": 4000}, "outputTokens": {"mean": 1000}},
        "slo": {"timeToFirstToken": {"p95": "2s"}, "timePerOutputToken": {"p95": "50ms"}},
        "automountServiceAccountToken": False,
        "args": ["--max-num-seqs=48", "--max-num-batched-tokens", "8192", "--revision", "6f6073b"],
    },
    "status": {
        "estimate": {"kvTokens": 593354, "usdPerMillionTokens": 0.5},
        "plan": {"limitedBy": "TimePerOutputToken", "reasons": [{"code": "Demand"}]},
        "conditions": [{"type": "SLOMet", "message": "TTFT: 50.0% within the limit, target 95%"}],
    },
}


def test_what_a_bug_report_needs_stays():
    assert redact(KEPT) == KEPT


@pytest.mark.parametrize(
    "line",
    [
        "time=2026-11-21T03:00:00.000+00:00 level=INFO event=decision wanted=4",
        'message="4000 prompt tokens, 1000 output tokens, max-num-seqs 48"',
        'tonnage_calibration{namespace="serving",constant="StepTime"} 1.1',
        '{"time_to_first_token":[0.001,0.0025],"time_per_output_token":[0.01]}',
        "vllm:time_to_first_token_seconds_sum 3",
        "Prometheus: http://prometheus-operated.monitoring:9090 ConnectTimeout",
    ],
)
def test_lines_without_a_secret_stay_as_they_are(line):
    assert redacted_text(line) == line


def test_the_spec_that_pods_were_made_from_stays():
    text = json.dumps({"contextLength": 8192, "pods": {"memory": "64Gi"}})
    metadata = {"annotations": {"tonnage.dev/spec": text}}

    assert redact({"metadata": metadata}) == {"metadata": metadata}


def test_the_name_of_a_variable_stays_and_says_that_it_is_set():
    [container] = redact(pod(env=[{"name": "A", "value": "x"}]))["spec"]["template"]["spec"][
        "containers"
    ]

    assert container["env"] == [{"name": "A", "value": REDACTED}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_any_object_is_taken_and_left_the_same_the_second_time(value):
    once = redact({"spec": value})

    assert redact(once) == once
