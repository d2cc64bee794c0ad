"""The knobs of a planning run: how tokens are decided (decoded for real by a stand-in) and how a step would be run.

The second kind are mechanisms whose effect the cost model knows (autotune/mechanisms.py); each is lossless by nature:
it changes how fast the same arithmetic runs or how rows are arranged, never which token is committed.
"""

from dataclasses import replace

from space.catalog import cpu_space
from space.genome import Genome
from space.knobs import ChoiceDomain, IntDomain, Knob, KnobSpace
from space.shapes import find_drafter

MACHINE_KNOBS = ("threads", "linear_path", "prefill_chunk")
"""Knobs that fit an engine to a processor: of no meaning for the device that is planned for."""

STAND_IN_DRAFTER = "dflash-smollm2-135m"


def _mechanism(name: str, options: tuple[str, ...], gap: str, text: str) -> Knob:
    return Knob(name=name, domain=ChoiceDomain(options=options), default=options[0], gap=gap, help=text)


MECHANISMS: tuple[Knob, ...] = (
    _mechanism(
        "weight_path",
        ("bf16-library", "bf16-skinny", "w12-skinny"),
        "weights",
        "cuBLAS, kernels made for few rows, or those over weights packed losslessly to 12 bits",
    ),
    _mechanism(
        "step_graph", ("pieces", "whole"), "host", "graphs with the host between draft and verify, or one a step"
    ),
    _mechanism(
        "fused_kernels", ("separate", "fused"), "host", "norms, rotation and argmax on their own, or inside products"
    ),
    _mechanism("attention_kernel", ("library", "split"), "weights", "the library's attention, or split along the keys"),
    _mechanism(
        "verify_rows", ("filled", "packed"), "waste", "every request verifies as many rows, or only what it drafted"
    ),
    _mechanism("pipeline", ("off", "halves"), "draft", "draft, then verify; or half of the batch drafts meanwhile"),
)
MECHANISM_NAMES = tuple(knob.name for knob in MECHANISMS)


def planned_space() -> KnobSpace:
    """The space of a planning run; its defaults are stock: the neural drafter at its longest, nothing else changed."""
    longest = find_drafter(STAND_IN_DRAFTER).longest
    space = cpu_space(1, packs=False, neural=("dflash",))
    knobs = []
    for knob in space.knobs:
        if knob.name == "drafter":
            knob = replace(knob, default="dflash")
        elif knob.name == "draft_length":
            knob = replace(knob, domain=IntDomain(low=1, high=2 * longest, log=True), default=longest)
        if knob.name not in MACHINE_KNOBS:
            knobs.append(knob)
    return KnobSpace(version=space.version, knobs=(*knobs, *MECHANISMS), orders=space.orders)


def planned_stock(space: KnobSpace) -> Genome:
    """Stock of a planning run: the released drafter at its own length, as vLLM runs it. These are the defaults."""
    return Genome.complete(space, {"drafter": "dflash", "draft_length": find_drafter(STAND_IN_DRAFTER).longest})


def planned_ar(space: KnobSpace) -> Genome:
    """AR of a planning run: one token a step, as vLLM runs it."""
    return Genome.complete(space, {"drafter": "none"})
