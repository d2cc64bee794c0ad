"""Genomes become settings: the engine and the catalogue know the same knobs."""

import random
from dataclasses import asdict, fields

import pytest
import torch

from engine.base import Settings
from engine.batch.decoder import PACKINGS, PIPELINES, SCHEDULES
from engine.drafters import make_drafter
from engine.drafters.parallel import DFlashCheckpoint
from engine.models.linear import Linear
from space.catalog import ar_genome, cpu_space, stock_genome
from space.errors import EngineError
from space.knobs import names

SPACE = cpu_space(cores=4, neural=("dflash",), concurrency=8)
TEXT_ONLY = cpu_space(cores=4)


def test_engine_and_catalogue_have_the_same_knobs():
    assert {field.name for field in fields(Settings)} == set(names(SPACE.knobs))


@pytest.mark.parametrize("seed", range(40))
def test_every_sampled_genome_becomes_settings_and_a_drafter(seed, tiny_model, tiny_dflash):
    knobs = SPACE.sample(random.Random(seed))
    settings = Settings.from_knobs(knobs)
    assert {name: asdict(settings)[name] for name in knobs} == knobs
    drafter = make_drafter(settings, DFlashCheckpoint(tiny_dflash, tiny_model))
    assert (drafter is None) == (settings.drafter == "none")
    if drafter is not None:
        text = [1, 2, 3] * 5
        drafter.extend(text, torch.randn(len(text) - 1, 64).bfloat16() if drafter.taps else None)
        assert len(drafter.propose(settings.draft_length)) <= settings.draft_length


def test_every_option_of_the_catalogue_exists_in_the_engine(tiny_model, tiny_dflash):
    for name in SPACE.knob("drafter").domain.options:
        make_drafter(Settings(drafter=name), DFlashCheckpoint(tiny_dflash, tiny_model))
    assert SPACE.knob("linear_path").domain.options == ("packed", "plain")
    with pytest.raises(EngineError, match="allowed is plain or packed"):
        Linear(None).use("other")


def test_every_way_of_batching_in_the_catalogue_exists_in_the_engine():
    known = {"packing": PACKINGS, "length_schedule": SCHEDULES, "pipeline": PIPELINES}
    assert {name: SPACE.knob(name).domain.options for name in known} == known


def test_batching_has_knobs_only_where_there_is_a_batch():
    batched = set(names(SPACE.knobs)) - set(names(cpu_space(cores=4, neural=("dflash",)).knobs))
    assert batched == {
        "packing",
        "node_budget",
        "packing_cost",
        "length_schedule",
        "schedule_cost",
        "hysteresis",
        "pipeline",
    }


def test_stock_and_ar():
    released = Settings.from_knobs(stock_genome(SPACE).knobs)
    assert (released.drafter, released.draft_length, released.draft_vocabulary) == ("dflash", 7, 0)
    stock = Settings.from_knobs(stock_genome(TEXT_ONLY).knobs)
    assert (stock.drafter, stock.draft_length, stock.ngram_max, stock.ngram_min) == ("ngram", 6, 5, 5)
    assert Settings.from_knobs(ar_genome(SPACE).knobs).drafter == Settings().drafter == "none"


def test_an_unknown_knob_is_refused():
    with pytest.raises(EngineError, match="the engine has no knob beams, width; it has .*draft_length"):
        Settings.from_knobs({"drafter": "ngram", "width": 3, "beams": 2})
