"""Which words a container gives to vLLM's server.

The forms are those of the manifests of KServe (a script with ``eval``), production-stack, llm-d
and of vLLM's own example of a LeaderWorkerSet, and of reports such as vllm#41368.
"""

import contextlib
import time
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.manifests.command import (
    API_SERVER,
    COMMAND_LINE,
    MOST_CHARS,
    MOST_SCRIPTS,
    MOST_WORDS,
    CommandError,
    Surroundings,
    engine_words,
)

KSERVE = """if [ "$KSERVE_INFER_ROCE" = "true" ]; then
  echo "Trying to infer RoCE configs ... "
  NICS=$(ls /sys/class/infiniband | grep "mlx5")
fi
eval "vllm serve \\
  /mnt/models \\
  --served-model-name "llama" \\
  --port 8000 \\
  ${VLLM_ADDITIONAL_ARGS} \\
  --enable-ssl-refresh"
"""
GROUP = (
    "bash /vllm-workspace/examples/online_serving/multi-node-serving.sh leader "
    "--ray_cluster_size=$(LWS_GROUP_SIZE); python3 -m vllm.entrypoints.openai.api_server "
    "--port 8080 --model m --tensor-parallel-size 8 --pipeline_parallel_size $(LWS_GROUP_SIZE)"
)


def env(**values):
    return [{"name": name, "value": value} for name, value in values.items()]


def secret(name):
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


def script(text, *rest, by=("/bin/sh", "-c"), **container):
    return {"command": [*by, text, *rest], **container}


def words(container, **around):
    return " ".join(engine_words(container, Surroundings(**around)))


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({"command": ["vllm", "serve"], "args": ["m", "-tp", "2"]}, "m -tp 2"),
        ({"command": ["/usr/bin/vllm", "serve", "m"]}, "m"),
        ({"args": ["--model", "m"]}, "--model m"),
        ({"command": ["python3", "-m", API_SERVER], "args": ["--a"]}, "--a"),
        ({"command": ["numactl", "-N0", "vllm", "serve", "m"]}, "m"),
        ({"command": ["/start"], "args": ["--max_num_seqs=1", "--max-num-batched-tokens=9"]},
         "--max_num_seqs=1 --max-num-batched-tokens=9"),
        ({"command": ["python3", "-m", COMMAND_LINE, "serve", "m"]}, "m"),
        (script("env A=1 vllm serve m"), "m"),
        (script("cd /x && A=1 && vllm serve m $A"), "m 1"),
        (script("vllm serve $MODEL_ID --a", env=[secret("MODEL_ID")]), "$MODEL_ID --a"),
        (script("vllm serve m --a 1"), "m --a 1"),
        (script("exec vllm serve m", by=("bash", "-c")), "m"),
        (script("set -euo pipefail\nexec vllm serve m \\\n  --a 1 # why\n"), "m --a 1"),
        (script("vllm serve m --a 1", by=("bash", "-lc")), "m --a 1"),
        (script("cd /x && HF_HOME=/y vllm serve m 2>&1 | tee /tmp/log"), "m"),
        (script("vllm serve m > /dev/null --a 1 &\nwait"), "m --a 1"),
        (script("bash -c 'vllm serve \"m\"'"), "m"),
        (script("vllm serve m \"$@\"", "--", "--a", "1 2"), "m --a 1 2"),
        (script("vllm serve m \"$@\""), "m"),
        (script("vllm serve m --c '{\"a\": \"$B\"}'"), 'm --c {"a": "$B"}'),
        (script("vllm serve $MODEL --port=$PORT", env=env(MODEL="m")), "m --port=$PORT"),
        (script("echo vllm serve x; vllm serve m"), "m"),
        (script("A=1; unset A; vllm serve m -tp ${A:-2}"), "m -tp 2"),
        (script("A=2 bash -c 'vllm serve m -tp $A'", env=env(A="1")), "m -tp 2"),
        (script("export A=2; bash -c 'vllm serve m -tp $A'"), "m -tp 2"),
        (script(": ${A:=1}; vllm serve m -tp $A", env=env(A="2")), "m -tp 2"),
        (script(". /venv/bin/activate; vllm serve m -tp $A", env=env(A="2")), "m -tp 2"),
        (script("set -euo pipefail; vllm serve m \"$@\"", "-", "--a"), "m --a"),
        (script("printf x; read B; vllm serve m -tp $A", env=env(A="2")), "m -tp 2"),
        (script("A='--a 1'; A+=' --b'; vllm serve m $A"), "m --a 1 --b"),
        (script("export A=2 && vllm serve m -tp ${A:-4} -pp ${B:-3}"), "m -tp 2 -pp 3"),
        (script("vllm serve m ${EXTRA} --z", env=env(EXTRA="--a 1  --b")), "m --a 1 --b --z"),
        (script("vllm serve m \"${A}\"", env=env(A="1 2")), "m 1 2"),
        (script(KSERVE, env=env(VLLM_ADDITIONAL_ARGS="--kv-transfer-config '{\"a\":\"b\"}'")),
         '/mnt/models --served-model-name llama --port 8000 --kv-transfer-config {"a":"b"} '
         "--enable-ssl-refresh"),
        (script(KSERVE),
         "/mnt/models --served-model-name llama --port 8000 --enable-ssl-refresh"),
        ({"args": ["--model", "$(MODEL)", "--x", "$$(MODEL)"], "env": env(MODEL="m")},
         "--model m --x $(MODEL)"),
        ({"args": ["--model=$(B)"], "env": env(A="m", B="$(A)-8B")}, "--model=m-8B"),
        ({"args": ["--model", "$(MODEL)", "--port", "$(PORT)"], "env": [secret("PORT")]},
         "--model $(MODEL) --port $(PORT)"),
        (script("vllm serve m -dp $((LWS_GROUP_SIZE * DP_LOCAL)) --x $((7/2-1))",
                env=env(DP_LOCAL="8")), "m -dp 24 --x 2"),
        (script("R=$(( ${LWS_WORKER_INDEX:-0} * 4 )); vllm serve m -dpr $R"), "m -dpr 0"),
        (script("vllm serve m -dp $((A * 2)) -tp $((2**9)) -pp $((1/0))"),
         "m -dp $((A * 2)) -tp $((2**9)) -pp $((1/0))"),
        (script(GROUP),
         "--port 8080 --model m --tensor-parallel-size 8 --pipeline_parallel_size 3"),
    ],
)  # fmt: skip
def test_the_words_that_vllm_gets(container, expected):
    assert words(container, variables={"LWS_GROUP_SIZE": "3"}) == expected


@pytest.mark.parametrize(
    ("container", "named"),
    [
        (script("vllm serve m $EXTRA", env=[secret("EXTRA")]), "$EXTRA may hold flags"),
        (script("vllm serve m $EXTRA", envFrom=[{"secretRef": {"name": "s"}}]), "$EXTRA"),
        (script("vllm serve m $(cat /args)"), "$(...) may hold flags"),
        (script("vllm serve m `cat /args`"), "`...` may hold flags"),
        (script("vllm serve m --enable-lora $EXTRA", env=[secret("EXTRA")]), "$EXTRA"),
        (script("[ -n x ] && A=--a; vllm serve m $A"), "$A may hold flags"),
        (script("if x; then A=--a; fi; vllm serve m $A"), "$A may hold flags"),
        (script("grep x /y && A=--a; vllm serve m $A"), "$A may hold flags"),
        (script("vllm serve m $MODEL", env=[secret("MODEL")]), "$MODEL may hold flags"),
        (script("vllm serve $MODEL_ARGS", env=[secret("MODEL_ARGS")]), "$MODEL_ARGS may hold"),
        ({"command": ["python3", "-m", COMMAND_LINE, "bench"]}, "starts vLLM's server"),
        (script("A=$(nproc); vllm serve m $A"), "$A may hold flags"),
        (script("source /env; vllm serve m $A"), "$A may hold flags"),
        (script("read A; vllm serve m $A"), "$A may hold flags"),
        (script('A=(--a); vllm serve m "${A[@]}"'), "${A[@]} may hold flags"),
        (script("vllm serve ${ALL_ARGS}", env=[secret("ALL_ARGS")]), "${ALL_ARGS}"),
        ({"args": ["m", "$(A)", "--b"], "env": [secret("A")]}, "$(A) may hold flags"),
        (script("if x; then vllm serve a; else vllm serve b; fi"), "in 2 places"),
        (script("./start.sh --max-num-seqs 4"), "what sh gives to it is unknown"),
        ({"command": ["python", "app.py"]}, "what python gives to it is unknown"),
        ({"args": ["serve"]}, "what its image gives to it is unknown"),
        (script("eval 'A=\"--max-num-seqs 8\"'; vllm serve m $A", env=env(A="--b")),
         "$A may hold flags, and its value is not in the manifest (eval in its script"),
        (script("B=1 eval x; vllm serve m $A", env=env(A="--b")), "(eval in its script"),
        (script("source /env && vllm serve m $A", env=env(A="--b")), "(source in its script"),
        (script(". /env; vllm serve m $A", env=env(A="--b")), "(. in its script"),
        (script("A=; : ${A:=--a}; vllm serve m $A"), "(:= in its script"),
        (script("A=; : \"${A=--a}\"; vllm serve m $A"), "(:= in its script"),
        (script("printf -v A %s --b; vllm serve m $A", env=env(A="--a")), "(printf in its"),
        (script("let A=8; vllm serve m $A", env=env(A="--a")), "(let in its script"),
        (script("B=$((A=8)); vllm serve m $A", env=env(A="--a")), "(((...)) in its script"),
        (script("((A++)); vllm serve m $A", env=env(A="1")), "(((...)) in its script"),
        (script("mapfile -t A < /f; vllm serve m $A", env=env(A="--a")), "(mapfile in its"),
        (script("readarray A < /f; vllm serve m $A", env=env(A="--a")), "(readarray in its"),
        (script("IFS= read -r A; vllm serve m $A", env=env(A="--a")), "(read in its script"),
        (script("read -aA; vllm serve m $A", env=env(A="--a")), "(read in its script"),
        (script("export $(cat /e); vllm serve m $A", env=env(A="--a")), "(export in its"),
        (script("unset A; vllm serve m $A", env=env(A="--a")), "(unset in its script"),
        (script("set -- --a; vllm serve m \"$@\""), "$@ may hold flags"),
        (script("shift; vllm serve m $*", "-", "--a"), "$* may hold flags"),
        (script("f() { vllm serve m \"$@\"; }; f --max-num-seqs 8"), "$@ may hold flags"),
        (script("(A=--b); vllm serve m $A", env=env(A="--a")), "$A may hold flags"),
        (script("A=(--a 1); vllm serve m $A"), "$A may hold flags"),
        (script("env A=--b; vllm serve m $A", env=env(A="--a")), "$A may hold flags"),
        (script("A=--a; sh -c 'vllm serve m $A'"), "$A may hold flags"),
        (script("IFS=,; vllm serve m $A", env=env(A="--a,--b")), "sets IFS"),
        (script("vllm serve m $A"), "$A may hold flags"),
        (script("vllm serve m -x 1 ${A}"), "${A} may hold flags"),
        (script("vllm serve m $((${A:-2} * 2))", env=[secret("A")]), "$(...) may hold flags"),
        (script("cat /f | xargs vllm serve m"), "xargs gives words to vLLM's server"),
        (script("cat /f | nice /usr/bin/xargs -n9 vllm serve m"), "xargs gives words"),
        (script("vllm serve m --config <(cat /f)"), "words from another command: <(...)"),
        (script("x\nvllm serve m > >(tee /log)"), ">(...), in line 2"),
        (script("vllm serve 'm"), "a quote without an end"),
        (script("cat <<E\nvllm serve m\nE\n"), "text of its own"),
        (script("eval " * 9 + "vllm serve m"), "shells in shells"),
        (script("A=aaaaaaaaaa; " + "A=$A$A; " * 40 + "vllm serve m"), "characters"),
        ({"args": ["x" * (MOST_CHARS + 1)]}, "characters"),
        ({"args": ["--a=$(A9)"], "env": env(A="aaaaaaaaaa") + [
            {"name": f"A{i + 1}", "value": f"$(A{i or ''})" * 99} for i in range(9)]},
         "characters"),
        ({"command": ["vllm", "serve", "--config", "/c.yaml"]}, "--config /c.yaml is in the image"),
    ],
)  # fmt: skip
def test_what_hides_flags_is_named(container, named):
    with pytest.raises(CommandError) as caught:
        words(container)

    assert named in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "x\ncat > f <<EOF\nSECRET\nEOF\nvllm serve m",
        "cat <<< SECRET; vllm serve m",
        "vllm serve m 'SECRET",
        'vllm serve m "SECRET',
        "vllm serve m --enable-lora ${ARGS:=--api-key SECRET}",
        "vllm serve m ${ARGS:+--api-key} ${ARGS:?SECRET}",
        "vllm serve m $(curl -H SECRET)",
        "vllm serve m `curl -H SECRET`",
        "vllm serve m $A--api-key=SECRET",
        "vllm serve m $'SECRET'",
        'vllm serve m $"SECRET"',
        "vllm serve m > >(tee SECRET)",
        "cat SECRET | xargs vllm serve m --api-key SECRET",
        "IFS=SECRET; vllm serve m",
        "eval 'A=SECRET'; vllm serve m $A",
    ],
)
def test_no_message_shows_a_value_or_a_script(text):
    with pytest.raises(CommandError) as caught:
        words(script(text))

    assert "SECRET" not in str(caught.value)


def test_a_place_in_a_script_is_its_line():
    with pytest.raises(CommandError, match=r"text of its own \(<<\), in line 3$"):
        words(script("set -e\n\ncat > f <<EOF\nhf_AbCd\nEOF\n"))


@pytest.mark.parametrize(
    ("container", "named"),
    [
        (script("eval '$A';" * 8,
                env=env(A="eval " + "eval '$B';" * 8, B="x " * 16_000)), "characters"),
        (script("eval '$A';" * 10, env=env(A="x " * 16_000)), "characters"),
        (script("eval '$A';" * 40, env=env(A="x")), f"{MOST_SCRIPTS} scripts"),
        (script("sh -c x;" * 99), f"{MOST_SCRIPTS} scripts"),
        (script("x $A;" * 999, env=env(A=" " * 9_999)), "characters"),
        ({"args": [""] * 40_000}, f"{MOST_WORDS:,} words"),
        (script("vllm serve m", env=[
            *env(a="x" * 32_000), *({"name": f"b{i}", "value": "$(a)y"} for i in range(6_000))]),
         "its variables that name others"),
        (script("A+=x;" * 99, env=env(A="x" * 9_999)), "characters"),
    ],
)  # fmt: skip
def test_a_container_is_read_within_one_limit(container, named):
    with pytest.raises(CommandError, match=named):
        words(container)


class TestAFileOfFlags:
    CONTAINER: ClassVar = {
        "command": ["vllm", "serve", "m", "--config", "/etc/vllm/c.yaml", "--max-num-seqs", "9"],
        "volumeMounts": [{"name": "c", "mountPath": "/etc/vllm"}],
    }
    VOLUMES: ClassVar = {"c": {"name": "c", "configMap": {"name": "flags"}}}

    def test_stands_before_other_flags_so_that_these_win(self):
        text = (
            "max-num-seqs: 4\nenforce-eager: true\nlora-modules: [a, b]\n"
            "compilation-config:\n  x: 1\n"
        )
        found = words(self.CONTAINER, volumes=self.VOLUMES, config_maps={"flags": {"c.yaml": text}})

        assert found == (
            '--max-num-seqs 4 --enforce-eager --lora-modules a b --compilation-config {"x": 1} m '
            "--max-num-seqs 9"
        )

    def test_may_be_one_key_of_a_map_under_another_name(self):
        container = self.CONTAINER | {
            "volumeMounts": [
                {"name": "c", "mountPath": "/etc/vllm/c.yaml", "subPath": "flags.yaml"}
            ]
        }
        items = [{"key": "f", "path": "flags.yaml"}]
        volumes = {"c": {"name": "c", "configMap": {"name": "flags", "items": items}}}
        found = words(container, volumes=volumes, config_maps={"flags": {"f": "a: 1"}})

        assert found == "--a 1 m --max-num-seqs 9"

    def test_and_variables_of_a_map_are_read(self):
        container = script("vllm serve m $P_A $B")
        container["envFrom"] = [{"prefix": "P_", "configMapRef": {"name": "flags"}}]
        reference = {"name": "flags", "key": "A"}
        container["env"] = [{"name": "B", "valueFrom": {"configMapKeyRef": reference}}]

        assert words(container, config_maps={"flags": {"A": "--a"}}) == "m --a --a"

    def test_that_is_not_known_is_asked_for_by_name(self):
        with pytest.raises(CommandError, match="ConfigMap flags, of which it cannot be read"):
            words(self.CONTAINER, volumes=self.VOLUMES)

    @pytest.mark.parametrize(
        "text",
        [
            "[",
            "a",
            "- 1",
            "&a [*a]",
            "a: &a {b: *a}",
            "a: 2026-13-45",
            "a: {b: 2026-01-01}",
            "[" * 9_999,
            "a: 1\n" * 9_999,
        ],
    )
    def test_that_is_no_mapping_is_refused(self, text):
        with pytest.raises(CommandError, match="--config"):
            words(self.CONTAINER, volumes=self.VOLUMES, config_maps={"flags": {"c.yaml": text}})


@given(
    st.lists(
        st.sampled_from(
            ["vllm", "serve", " ", "\n", "'", '"', "$", "${", "}", "$(", ")", "`", "\\", ";", "&&",
             "A=1", "$A", "${A:-", "#", "<", ">", "|", "eval", "sh -c", "if", "--a", "\0", "é"]
        ),
        max_size=40,
    ).map("".join),
)  # fmt: skip
def test_no_text_breaks_the_reader(text):
    for container in (script(text), {"args": [text]}, script("eval", env=env(A=text))):
        with contextlib.suppress(CommandError):
            assert all(isinstance(word, str) for word in engine_words(container, Surroundings()))


@pytest.mark.parametrize(
    "part", ['"', "$(", "a", "1", "#\n", "$A", "`", "\\", "${", "vllm serve x;", "'", "(", "A=a "]
)
def test_no_long_text_takes_long(part):
    text = (part * MOST_CHARS)[: MOST_CHARS - 9]
    began_s = time.process_time()
    with contextlib.suppress(CommandError):
        engine_words(script(text), Surroundings())

    assert time.process_time() - began_s < 2
