"""Deployment files: the shipped one is read; bad input is answered by key, value and what is allowed."""

import pytest

from space.deployment import Deployment, find_deployment, read_deployment, shipped_names
from space.errors import InputError
from space.hardware import find_profile
from space.shapes import find_drafter, find_model

GOOD = """
name = "mine"
description = "a test"
[target]
source = "embedded:smollm2-135m"
[hardware]
device = "cpu"
[workload]
max_tokens = 32
"""
CUDA = """
name = "theirs"
description = "a test"
[target]
source = "somebody/some-model"
shape = "llama-3.1-8b"
[hardware]
device = "cuda"
profile = "rtx4090"
[workload]
concurrency = [1, 8]
"""


@pytest.fixture
def write(tmp_path):
    def _write(text):
        path = tmp_path / "mine.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return _write


def test_every_shipped_deployment_is_valid_and_named_like_its_file():
    assert "cpu-smollm2" in shipped_names()
    for name in shipped_names():
        assert find_deployment(name).name == name


def test_a_file_is_found_by_its_path(write):
    assert find_deployment(str(write(GOOD))).workload.max_tokens == 32


def test_the_signature_follows_the_content_and_not_the_name_or_budget(write):
    first = read_deployment(write(GOOD)).signature
    assert read_deployment(write(GOOD.replace("mine", "yours").replace("a test", "x"))).signature == first
    assert read_deployment(write(GOOD + "[budget]\nseconds = 5\n")).signature == first
    assert read_deployment(write(GOOD.replace("32", "33"))).signature != first


def test_how_tokens_are_chosen_decides_a_result(write):
    greedy = read_deployment(write(GOOD))
    assert "top_k" not in greedy.content()["workload"]
    assert read_deployment(write(GOOD + "temperature = 0\n")).signature == greedy.signature
    warm = read_deployment(write(GOOD + "temperature = 0.7\n"))
    narrow = read_deployment(write(GOOD + "temperature = 0.7\ntop_p = 0.9\n"))
    assert len({greedy.signature, warm.signature, narrow.signature}) == 3
    assert (narrow.workload.temperature, narrow.workload.top_p, narrow.regime) == (0.7, 0.9, 1)
    assert read_deployment(write(GOOD + "concurrency = [8]\n")).regime == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "mine"\ndescription = \n', r"mine\.toml is not valid TOML: Invalid value \(at line 2, column 15\)"),
        ('name = "mine"\ndescription = "a', r"Unterminated string \(at end of document, line 2\)"),
        (b'name = "\xff"', r"not UTF-8 text at byte 8"),
        (GOOD.replace("max_tokens", "max_token"), "unknown key workload.max_token; did you mean 'max_tokens'"),
        (GOOD + "qqq = 1\n", r"unknown key workload\.qqq\. Known here: prompts, max_tokens"),
        ("nmae = 'x'\n" + GOOD, "unknown key nmae; did you mean 'name'"),
        (GOOD.replace("[hardware]", "[hardwear]"), "hardware: field required|unknown key hardwear"),
        (GOOD.replace('source = "embedded:smollm2-135m"', ""), r"target\.source: field required"),
        (GOOD.replace("32", "2"), r"workload\.max_tokens = 2: input should be greater than or equal to 8"),
        (GOOD.replace("32", "'many'"), r"workload\.max_tokens = 'many': input should be a valid integer"),
        (GOOD + "temperature = -0.7\n", r"workload\.temperature"),
        (GOOD + "temperature = 2.1\n", r"workload\.temperature.* = 2\.1: input should be"),
        (GOOD + "top_k = 5\n", "top_k and top_p have no effect at temperature 0: give a temperature or leave them out"),
        (GOOD + "temperature = 1\ntop_p = 0\n", r"workload\.top_p = 0: input should be greater than 0"),
        (GOOD.replace('"cpu"', '"tpu"'), r"hardware\.device = 'tpu': input should be 'cpu' or 'cuda'"),
        (
            GOOD.replace('"cpu"', '"cpu"\nprofile = "h200"'),
            r"hardware\.profile = 'h200': allowed with device 'cuda' only",
        ),
        (GOOD.replace('"cpu"', '"cuda"'), r"hardware\.profile is missing: device 'cuda' needs it to plan"),
        (CUDA.replace("rtx4090", "rtx4080"), r"unknown hardware profile 'rtx4080'; did you mean 'rtx4090'"),
        (CUDA.replace("llama-3.1-8b", "llama-8b"), r"unknown model shape 'llama-8b'; did you mean"),
        (CUDA.replace('shape = "llama-3.1-8b"', ""), r"target\.shape is missing"),
        (CUDA + '[drafter]\nsource = "x"\n', r"drafter\.shape is missing"),
        (CUDA + '[drafter]\nsource = "x"\nshpe = "y"\n', r"unknown key drafter\.shpe; did you mean 'shape'"),
        (CUDA + '[drafter]\nsource = "x"\nshape = "y"\n', r"unknown drafter shape 'y'"),
        (CUDA.replace("[1, 8]", "[8, 1]"), r"workload\.concurrency = \[8, 1\]: allowed are regimes that rise"),
        (CUDA.replace("[1, 8]", "[]"), r"workload\.concurrency"),
        (
            CUDA.replace("[1, 8]", "[1, 512]"),
            r"workload\.concurrency\.1 = 512: input should be less than or equal to 256",
        ),
        (CUDA + "[objective]\nweights = [1.0]\n", r"objective\.weights has 1 values and workload\.concurrency 2"),
        (CUDA + "[objective]\nweights = [1.0, 0]\n", r"objective\.weights\.1 = 0: input should be greater than 0"),
        (GOOD + "concurrency = [1, 8]\n", r"workload\.concurrency"),
        (GOOD + "concurrency = [0]\n", r"workload\.concurrency\.0 = 0: input should be greater than or equal to 1"),
        (GOOD + "concurrency = [65]\n", r"workload\.concurrency = \[65\]: allowed is one regime up to 64 on a CPU"),
        (GOOD.replace('"mine"', '"My Deployment"'), "name = 'My Deployment': string should match pattern"),
        (GOOD + "[budget]\nseconds = 0\n", r"budget\.seconds = 0: input should be greater than 0"),
        ("target = 3\n" + GOOD.replace("[target]", "[other]"), "target = 3"),
    ],
)
def test_a_bad_file_is_answered_in_at_most_three_lines(write, text, message):
    with pytest.raises(InputError, match=message) as caught:
        read_deployment(write(text))
    assert len(str(caught.value).splitlines()) <= 3


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*absent\.toml: No such file"):
        find_deployment(str(tmp_path / "absent.toml"))
    with pytest.raises(InputError, match="cannot read .*: Is a directory"):
        read_deployment(tmp_path)


def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(InputError, match="unknown deployment 'cpu-smolm2'; did you mean 'cpu-smollm2'"):
        find_deployment("cpu-smolm2")
    with pytest.raises(InputError, match=r"unknown deployment 'zzz'\.\nShipped: cpu-smollm2"):
        find_deployment("zzz")


@pytest.mark.parametrize("text", ["x = " + "1" * 5000, "x = " + "[" * 100_000], ids=["digits", "nesting"])
def test_absurd_documents_are_refused(tmp_path, text):
    path = tmp_path / "absurd.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"absurd\.toml"):
        read_deployment(path)


def test_what_a_cpu_deployment_does_not_say_is_not_in_its_content():
    content = find_deployment("cpu-smollm2").content()
    assert set(content) == {"target", "drafter", "hardware", "workload"}, "runs of before would no longer continue"
    assert content["hardware"] == {"device": "cpu"}
    assert set(content["target"]) == {"source", "max_context"}
    assert set(content["drafter"]) == {"source"}


def test_the_shipped_gpu_deployments_fit_their_devices():
    planned = [d for d in map(find_deployment, shipped_names()) if d.hardware.device == "cuda"]
    names = {d.name for d in planned}
    assert names == {"rtx4090-llama", "rtx4090-qwen3", "h200-llama", "h200-qwen3", "h200-qwen35", "h200-smollm2-8b"}
    for deployment in planned:
        assert deployment.workload.concurrency == (1, 8, 32)
        memory = find_profile(deployment.hardware.profile).memory.value
        target, drafter = find_model(deployment.target.shape), find_drafter(deployment.drafter.shape)
        caches = 32 * 512 * (target.kv_bytes_per_token + drafter.kv_bytes_per_token) + 32 * target.state_bytes
        assert 2 * (target.parameters + drafter.parameters) + caches < memory


def test_one_regime_of_a_deployment(write):
    deployment = read_deployment(write(CUDA + "[objective]\nweights = [3.0, 1.0]\n"))
    part = deployment.at(8)
    assert (part.name, part.workload.concurrency, part.objective) == ("theirs.b8", (8,), None)
    assert part.signature != deployment.signature
    assert [deployment.weight(regime) for regime in (1, 8)] == [0.75, 0.25]
    assert part.weight(8) == 1.0
    assert Deployment.model_validate(part.model_dump()) == part
