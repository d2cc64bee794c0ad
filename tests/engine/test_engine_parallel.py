"""A DFlash drafter in the step loop: taps come out of the same pass, and no token changes."""

import pytest
import torch
from engine_helpers import NOISE, some_prompt

from engine.base import Request, Settings
from engine.drafters import make_drafter
from engine.drafters.dflash_files import save_drafter
from engine.drafters.dflash_packed import PackedSession
from engine.drafters.parallel import DFlashCheckpoint
from engine.loop import Decoder
from engine.stock import Stock
from engine.weights.source import BUNDLED_DRAFTER, drafter_folder
from space.errors import EngineError

PROMPT = some_prompt(40, 3)


@pytest.fixture
def speculating(tiny_model, tiny_dflash):
    return Decoder(tiny_model, 512, DFlashCheckpoint(tiny_dflash, tiny_model))


@pytest.mark.parametrize("suffix_first", [0, 2])
@pytest.mark.parametrize("vocabulary", [0, 128])
def test_tokens_are_those_of_stock(speculating, suffix_first, vocabulary):
    settings = Settings(
        drafter="dflash", draft_length=7, suffix_first=suffix_first, draft_vocabulary=vocabulary, suffix_factor=4.0
    )
    found = speculating.generate(Request(prompt=PROMPT, max_tokens=60), settings)
    assert max(found.log.drafted) <= (7 if suffix_first else 4), "a neural draft is at most the block of five"
    assert len(found.tokens) == 60
    assert max(Stock(speculating, threads=1).force(PROMPT, found.tokens).margins) < NOISE


def test_the_drafter_sees_the_taps_of_every_committed_position_but_the_newest(speculating, monkeypatch):
    """However many tokens a step commits, the context that was injected is what one pass over the text would give."""
    seen = []
    monkeypatch.setattr(PackedSession, "extend", lambda self, taps: seen.append(taps))
    monkeypatch.setattr(PackedSession, "propose", lambda self, anchor, limit, candidates: [anchor] * min(limit, 3))
    found = speculating.generate(Request(prompt=PROMPT, max_tokens=30), Settings(drafter="dflash", draft_length=3))
    text = (*PROMPT, *found.tokens)[:-1]
    speculating.cache.reset()
    positions = torch.arange(len(text))
    _, expected = speculating.model.forward_tapped(torch.tensor(text), positions, speculating.cache, taps=(0,))
    injected = torch.cat(seen)
    assert len(injected) == len(text)
    torch.testing.assert_close(injected.float(), expected.float(), atol=0.1, rtol=0.05)


def test_without_a_checkpoint_the_option_is_refused():
    with pytest.raises(EngineError, match=r"a neural drafter needs drafter.source"):
        make_drafter(Settings(drafter="dflash"))


def test_taps_are_asked_for(tiny_model, tiny_dflash):
    drafter = make_drafter(Settings(drafter="dflash", draft_length=3), DFlashCheckpoint(tiny_dflash, tiny_model))
    assert drafter.taps == (0,)
    with pytest.raises(EngineError, match="needs the target's taps"):
        drafter.extend([1, 2, 3])


def test_drafter_sources(tmp_path, tiny_dflash):
    save_drafter(tiny_dflash, tmp_path)
    assert drafter_folder(str(tmp_path)) == tmp_path
    assert (drafter_folder(BUNDLED_DRAFTER) / "model.safetensors").is_file()
    with pytest.raises(EngineError, match=r"drafter source .* is not here: give 'bundled:smollm2-135m-dflash'"):
        drafter_folder(str(tmp_path / "nowhere"))
