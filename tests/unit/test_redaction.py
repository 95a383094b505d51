"""No secret comes through in text, however it is written; why an engine does not start does."""

# ruff: noqa: E501, RUF001  (messages are as programs write them)
import base64
import json

import pytest

from tonnage.redaction import REDACTED, is_name, names_in, names_said, redacted, redacted_line

AWS = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
PEM = "MIIEowIBAAKCAQEAx7Jt0fW3pZ9mYq"
BASE64 = base64.b64encode(b'{"password":"hunter2"}').decode()
HARMLESS = "model failed memory"
"""Words that are written in a sentence, and are none to write beside the name of a secret."""


def nested(value, depth=2):
    return nested(json.dumps({"a": value}), depth - 1) if depth else value


SECRETS = {
    "hf env": (
        "HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUvWx12 vllm serve",
        "hf_AbCdEfGhIjKlMnOpQrStUvWx12",
    ),
    "aws env": (f"AWS_SECRET_ACCESS_KEY={AWS}", AWS),
    "aws json": (json.dumps({"AWS_SECRET_ACCESS_KEY": AWS}), AWS),
    "-p and a word": ("mysql -u root -p hunter2 db", "hunter2"),
    "-p and a number": ("mysql -p 48151623 db", "48151623"),
    "in a sentence": ("the password is swordfish for now", "swordfish"),
    "a number in a sentence": ("your password is 48151623 now", "48151623"),
    "quoted phrase": (
        'password: "correct horse battery staple" other',
        "correct horse battery staple",
    ),
    "yaml phrase": ("password: correct horse battery staple", "correct horse battery staple"),
    "a harmless word": ("PASSWORD=failed", "failed"),
    "a harmless word of a flag": ("--api-key memory --port 8000", "memory"),
    "curl": ("curl -u admin:1234567 https://x", "1234567"),
    "bearer": ("Authorization: Bearer 123456789", "123456789"),
    "basic": ("authorization: Basic YWRtaW46aHVudGVyMg==", "YWRtaW46aHVudGVyMg=="),
    "url": ("connecting to postgres://admin:model@db:5432/x", "admin:model"),
    "in a query": ("GET /v1/models?sig=1234567&user=model", "1234567"),
    "pem": (f"-----BEGIN RSA PRIVATE KEY-----\n{PEM}\n{PEM}9\n-----END RSA PRIVATE KEY-----", PEM),
    "pem line": (f"-----BEGIN RSA PRIVATE KEY-----\\n{PEM}\\n-----END", PEM),
    "jwt": ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "c2lnbmF0dXJl"),
    "github": (
        "remote: ghp_0123456789abcdefghij0123456789abcdef denied",
        "ghp_0123456789abcdefghij0123456789abcdef",
    ),
    "slack": ("hook https://hooks.slack.com/services/T0001/B0002/abcdefgh", "T0001/B0002/abcdefgh"),
    "stripe": ("sk_live_0123456789abcdefghijklmn", "sk_live_0123456789abcdefghijklmn"),
    "json log": ('{"level": "info", "msg": "login ok", "password": "hunter2", "n": 3}', "hunter2"),
    "json log digits": ('{"level": "info", "pin": 481516, "n": 3}', "481516"),
    "json no space": ('{"level":"info","password":"4815162342","n":3}', "4815162342"),
    "json in json": (nested(json.dumps({"password": "48151623"})), "48151623"),
    "json in json phrase": (nested(json.dumps({"token": HARMLESS})), HARMLESS),
    "logfmt": ('level=info token=1234567 msg="x"', "1234567"),
    "logfmt phrase": ('level=info secret="model failed memory" x=1', "model failed memory"),
    "as in Go": ("api_key := 'model failed memory'", "model failed memory"),
    "around an equals sign": ("PASSWORD = 48151623", "48151623"),
    "arrow": ('{:password=>"memory failed"}', "memory failed"),
    "python dict": ("{'password': 'memory failed', 'a': 1}", "memory failed"),
    "base64": (f"data {BASE64}", BASE64),
    "hex": ("key 5f4dcc3b5aa765d61d8327deb882cf99", "5f4dcc3b5aa765d61d8327deb882cf99"),
    "uuid": ("client 3f2504e0-4f89-11d3-9a0c-0305e82c3301", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"),
    "mongo": ("mongodb+srv://tonnage:model@cluster0.example.net", "tonnage:model"),
    "redis": ("redis://:memory@cache:6379/0", ":memory@"),
    "odbc": ("Server=db;Uid=sa;Pwd=memory;Database=x", "memory"),
    "azure": ("AccountName=x;AccountKey=bW9kZWw=;EndpointSuffix=core", "bW9kZWw="),
    "x-api-key": ("-H 'x-api-key: model memory'", "model memory"),
    "cookie": ("Set-Cookie: session=12345678; Path=/", "12345678"),
    "-pWORD": ("mysql -phunter2", "hunter2"),
    "sshpass": ("sshpass -p 'model memory' ssh root@x", "model memory"),
    "flag eq": ("vllm serve m --api-key=12345678 --port 8000", "12345678"),
    "flag quoted": ('vllm serve m --api-key "model memory" --port 8000', "model memory"),
    "env export": ("export OPENAI_API_KEY=12345678", "12345678"),
    "google": (
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    ),
    "npm": ("//registry.npmjs.org/:_authToken=12345678", "12345678"),
    "netrc": ("machine hub login admin password memory12", "memory12"),
    "pgpass": ("db:5432:app:admin:hunter2", "hunter2"),
    "xml": ("<password>hunter2</password>", "hunter2"),
    "xml digits": ("<password>48151623</password>", "48151623"),
    "toml": ('password = "model memory"', "model memory"),
    "totp": ("otp: 481516", "481516"),
    "pin": ("enter pin 481516 to go on", "481516"),
    "in Cyrillic": ("пароль: тайна17", "тайна17"),
    "instead of letters": ("p@ssw0rd s3cr3t", "p@ssw0rd"),
    "traceback": ("KeyError: 'hf_abcdefghijklmnop'", "hf_abcdefghijklmnop"),
    "sentence": ("login failed for kim with Tr0ub4dor&3", "Tr0ub4dor&3"),
    "custom": ("X-Acme-Auth acme_live_77aa88bb99", "acme_live_77aa88bb99"),
    "argv": ("['vllm', 'serve', '--api-key', 'model memory']", "model memory"),
    "argv one": ("['vllm', 'serve', '--api-key', 'memory']", "'memory'"),
    "argv no space": ("['vllm','serve','--api-key','12345678']", "12345678"),
    "tabs": ("password\t48151623", "48151623"),
    "newline": ("password:\n  48151623", "48151623"),
    "urlenc": ("redirect%3Ftoken%3D48151623", "48151623"),
    "without a name beside it": ("planted-secret-17", "planted-secret-17"),
    "made of harmless words": ("use my-secret-password", "my-secret-password"),
    "hash": ("$2b$12$abcdefghijklmnopqrstuv", "$2b$12$abcdefghijklmnopqrstuv"),
    "ssh": ("ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQ", "AAAAB3NzaC1yc2EAAAADAQABAAABgQ"),
    "docker": ('{"auths":{"reg":{"auth":"bW9kZWw6bWVtb3J5"}}}', "bW9kZWw6bWVtb3J5"),
    "docker nosym": ('{"auths":{"reg":{"auth":"12345678"}}}', "12345678"),
    "kube": ("--token=12345678", "12345678"),
    "long": ("x" * 5000 + " 4815162342", "4815162342"),
    "gmail": ("abcd efgh ijkl mnop", "abcd efgh ijkl mnop"),
    "digits in name": ("GET /reset/48151623481516234815", "48151623481516234815"),
}


@pytest.mark.parametrize(("text", "secret"), SECRETS.values(), ids=SECRETS)
def test_a_secret_does_not_come_through(text, secret):
    assert secret in text

    told = redacted(text)

    assert secret not in told
    assert not any(part in told for part in secret.split() if not part.isalpha())


# Of the program, the kubelet, the scheduler and the API server; the time of a line is cut before.
STARTS = [
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine. See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
    "ValueError: Free memory on device cuda:0 (22.03/79.19 GiB) on startup is less than desired GPU memory utilization (0.92, 72.85 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 79.19 GiB of which 1.32 GiB is free. Including non-PyTorch memory, this process has 77.86 GiB memory in use. Of the allocated memory 74.12 GiB is allocated by PyTorch, and 1.14 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': 1}",
    "ValueError: Total number of attention heads (40) must be divisible by tensor parallel size (3).",
    "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (856). Each decode request requires one Mamba cache block, so CUDA graph capture cannot proceed.",
    "ValueError: User-specified max_model_len (131072) is greater than the derived max_model_len (max_position_embeddings=40960 or model_max_length=None in model's config.json).",
    "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has compute capability 7.5.",
    "ValueError: Model architectures ['Qwen3NextForCausalLM'] are not supported for now. Supported architectures: dict_keys(['LlamaForCausalLM', 'Qwen2ForCausalLM'])",
    "OSError: meta-llama/Llama-3.1-8B-Instruct is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
    "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-6721) Cannot access gated repo for url https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json. Access to model meta-llama/Llama-3.1-8B is restricted. You must have access to it and be authenticated to access it. Please log in.",
    "requests.exceptions.ConnectionError: (MaxRetryError('HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/models/Qwen/Qwen3-32B (Caused by NameResolutionError(Temporary failure in name resolution))'))",
    "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (llama-0.llama.serving, 29501).",
    "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
    "api_server.py: error: unrecognized arguments: --max-num-queued-tokens 65536",
    "vllm: error: argument --kv-cache-dtype: invalid choice: 'fp8_e4' (choose from 'auto', 'bfloat16', 'fp8', 'fp8_e4m3', 'fp8_e5m2')",
    "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
    "OSError: [Errno 28] No space left on device: '/root/.cache/huggingface/hub'",
    "RuntimeError: Data parallel master port 29501 is already in use",
    "AssertionError: Sleep mode is not supported on current platform.",
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
    "Value error, Model type `qwen3_next` is not recognized by Transformers; try upgrading with `pip install --upgrade transformers`",
    'File "/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/core.py", line 712, in run_engine_core',
    "RuntimeError: The NVIDIA driver on your system is too old (found version 12020).",
    "[rank0]:[NCCL.cpp:1250] WARNING: destroy_process_group() was not called before program exit, which can leak resources",
    "ERROR [core.py:396] No free memory",
    "ValueError: GGUF with dtype torch.bfloat16 is not supported. quantization method modelopt is not supported on current device, minimum capability: 89. Current capability: 80.",
    'failed to pull and unpack image "docker.io/vllm/vllm-openai:v0.99.0": failed to resolve reference "docker.io/vllm/vllm-openai:v0.99.0": docker.io/vllm/vllm-openai:v0.99.0: not found',
    'exec: "vllm": executable file not found in $PATH: unknown',
    'secret "hugging-face" not found',
    "couldn't find key token in Secret serving/hugging-face",
    "0/8 nodes are available: 3 Insufficient nvidia.com/gpu, 5 node(s) didn't match Pod's node affinity/selector. preemption: 0/8 nodes are available: 5 Preemption is not helpful for scheduling, 3 No preemption victims found for incoming pod.",
    "0/3 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: present}, 2 node(s) had volume node affinity conflict.",
    'persistentvolumeclaim "model-cache" not found',
    'MountVolume.SetUp failed for volume "cache" : rpc error: code = DeadlineExceeded desc = context deadline exceeded',
    'pods "llama" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=32, limited: requests.nvidia.com/gpu=32',
    'admission webhook "validation.gatekeeper.sh" denied the request: container image is not allowed',
    'Operation cannot be fulfilled on deployments.apps "llama": the object has been modified; please apply your changes to the latest version and try again',
]


@pytest.mark.parametrize("line", STARTS)
def test_why_an_engine_does_not_start_stays_as_it_is(line):
    assert redacted(line) == line


def test_names_that_are_known_stay_and_others_go():
    line = 'pods "qx7-abc" is forbidden: by zz9: qx7-abc, qx8-abc'

    assert redacted(line, {"qx7-abc"}) == (
        f'pods "qx7-abc" is forbidden: by {REDACTED}: qx7-abc, {REDACTED}'
    )


def test_a_name_that_is_known_does_not_show_what_is_assigned_beside_it():
    assert redacted("qx7?sig=12 qx7:token=ab1", {"qx7"}) == (
        f"qx7?{REDACTED}={REDACTED} qx7:token={REDACTED}"
    )


@pytest.mark.parametrize(
    "said",
    [
        'admission webhook "validate.kyvern0.svc-fail" denied the request',
        "is forbidden: exceeded quota: qx-17, requested: nvidia.com/gpu=2",
        "0/4 nodes are available: 1 node(s) had untolerated taint {qx: zz17}",
        'persistentvolumeclaim "qx-models" not found',
        'User "system:serviceaccount:tonnage-system:tonnage" cannot patch resource',
        'Apply failed with 1 conflict: conflict with "argocd-controller": .spec.replicas',
        "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }",
        "failed to fetch anonymous token: unexpected status: 401 Unauthorized",
        "spec.pods.imagePullSecrets: Too many: 9: must have at most 8 items",
    ],
)
def test_what_kubernetes_says_is_a_name_stays(said):
    assert redacted(said, names_said(said)) == said


@pytest.mark.parametrize(
    ("said", "secret"),
    [
        ('spec.env[0].value: Invalid value: "qx17zz": user is not zz17qx', "qx17zz"),
        ("registry login for user admin:hunter2 failed", "hunter2"),
        ('login for user "admin:hunter2" failed', "hunter2"),
        ("user sk-proj-4f9a8b7c6d5e", "sk-proj"),
        ("node glpat-abcdefghij1234567890", "glpat"),
        ('configmap "0123456789abcdef0123456789abcdef"', "0123456789"),
        ("webhook hunter2-s3cr3t-value was sent", "hunter2"),
        ("policy zebra99 does not do, password zebra99", "zebra99"),
    ],
)
def test_a_value_that_others_repeat_is_no_name(said, secret):
    said = f'admission webhook "v" denied the request: {said}'

    assert secret not in redacted(said, names_said(said))


@pytest.mark.parametrize(
    "text", ["first pin 4711", "pad secret 4711", "password for alice on host db is 4711"]
)
def test_a_number_after_the_name_of_a_secret_goes(text):
    assert "4711" not in redacted(text)


@pytest.mark.parametrize("secret", ["memory", "481516", "vllm"])
def test_a_word_a_number_or_a_known_name_stays_where_nothing_names_a_secret(secret):
    assert secret in redacted(f"loading {secret} failed", {"vllm"})


def test_names_are_those_of_an_object_and_of_what_it_refers_to_and_no_values():
    spec = {
        "containers": [
            {
                "name": "vllm",
                "image": "registry.example:5000/team/engine@sha256:" + "0a" * 32,
                "env": [
                    {"name": "A", "value": "left-out"},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "k"}}},
                ],
            }
        ],
        "volumes": [{"name": "weights", "persistentVolumeClaim": {"claimName": "qx7"}}],
    }

    assert set(names_in(spec)) == {
        "vllm", spec["containers"][0]["image"], "A", "B", "hub", "weights", "qx7",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "hf_" + "aB3" * 11,
        "AKIAABCDEFGHIJKLMNOP",
        "me:pw@host",
        "a b",
        "x" * 300,
        "",
        "3" + "c4" * 16,
    ],
)
def test_what_looks_like_a_credential_is_no_name(text):
    assert not is_name(text)


@pytest.mark.parametrize(
    "text", ["meta-llama/Llama-3.1-8B-Instruct", "NCCL_IB_HCA", "llama-7f9c5d-x2x4z", "a"]
)
def test_names_of_models_variables_and_pods_are_names(text):
    assert is_name(text)


@pytest.mark.parametrize("piece", ["a", "a_", "=", '"', "-", "password", "token= ", "eyJ", "\\"])
def test_of_a_line_no_more_than_a_limit_is_read(piece):
    assert len(redacted(piece * 100_000)) <= 1024


LEET = [
    "s3cr3t",
    "p4ssw0rd17",
    "m0d3l",
    "Tr0ub4dor&3",
    "aB3dE5gH",
    "hunter2",
    "kim.lee-17",
    "S3cr3tValue",
]


@pytest.mark.parametrize("secret", LEET)
def test_letters_among_digits_and_marks_are_no_words(secret):
    assert redacted(f"it is {secret} or so") == f"it is {REDACTED} or so"


def test_one_line_is_no_longer_than_asked_for():
    assert redacted_line("no\n" * 500, 20) == "no no no no no no..."
