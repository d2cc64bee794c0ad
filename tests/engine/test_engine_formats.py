"""What kind of drafter a folder holds is told without loading it, and every kind has a loader and a knob."""

import json
import subprocess
import sys

import pytest

from autotune.session import drafter_kinds, full_space
from engine.drafters.checkpoint import _LOADERS
from engine.formats import DRAFTER_KINDS, KIND_OF, drafter_kind
from space.deployment import find_deployment
from space.errors import EngineError


@pytest.mark.parametrize(("name", "kind"), KIND_OF.items())
def test_the_kind_is_read_from_the_configuration(tmp_path, name, kind):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name]}))
    assert drafter_kind(tmp_path) == kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"architectures": ["DFlashDraftModle"]}', "did you mean 'DFlashDraftModel'"),
        ('{"architectures": "LlamaForCausalLM"}', "architectures is 'LlamaForCausalLM'.*known: DFlash"),
        ("{}", "architectures is None"),
        ("[]", "holds a list"),
        ("{", "is not JSON"),
        (None, "cannot read"),
    ],
)
def test_an_unknown_kind_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(EngineError, match=message):
        drafter_kind(tmp_path)


@pytest.mark.parametrize("where", [{"projector_type": "dspark"}, {"dflash_config": {"projector_type": "dspark"}}])
def test_an_early_spelling_of_dspark_is_dspark(tmp_path, where):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["DFlashDraftModel"], **where}))
    assert drafter_kind(tmp_path) == "dspark"


def test_every_kind_has_a_loader_and_is_an_option_of_the_space():
    assert set(_LOADERS) == set(DRAFTER_KINDS)
    assert set(DRAFTER_KINDS) < set(full_space().knob("drafter").domain.options)


def test_a_deployment_offers_the_drafter_that_it_has():
    deployment = find_deployment("cpu-smollm2")
    assert drafter_kinds(deployment.model_copy(update={"drafter": None})) == ()
    assert drafter_kinds(deployment) == ("dflash",)
    assert full_space(deployment).knob("drafter").domain.options == ("none", "ngram", "suffix", "dflash")


def test_no_torch_is_needed():
    code = "import sys, engine.formats; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
