"""The knobs of this version of the space, and the stock setting that every result is compared with."""

import os

from space.genome import Genome
from space.knobs import ChoiceDomain, Condition, FloatDomain, IntDomain, Knob, KnobSpace, Order

SPACE_VERSION = 1

_SPECULATES = Condition(name="drafter", values=("ngram", "suffix"))
_NGRAM = Condition(name="drafter", values=("ngram",))
_SUFFIX = Condition(name="drafter", values=("suffix",))


def cpu_space(cores: int | None = None) -> KnobSpace:
    """The knobs of a CPU deployment; `cores` bounds the thread count (default: this machine's)."""
    threads = cores or os.cpu_count() or 1
    return KnobSpace(
        version=SPACE_VERSION,
        knobs=(
            Knob(
                name="drafter",
                domain=ChoiceDomain(options=("none", "ngram", "suffix")),
                default="ngram",
                gap="acceptance",
                help="who proposes tokens: nobody (AR), prompt lookup, or a suffix automaton over prompt and output",
            ),
            Knob(
                name="draft_length",
                domain=IntDomain(low=1, high=32, log=True),
                default=6,
                gap="waste",
                when=_SPECULATES,
                help="most tokens drafted a step",
            ),
            Knob(
                name="ngram_max",
                domain=IntDomain(low=1, high=8),
                default=5,
                gap="acceptance",
                when=_NGRAM,
                help="longest n-gram looked up",
            ),
            Knob(
                name="ngram_min",
                domain=IntDomain(low=1, high=8),
                default=5,
                gap="acceptance",
                when=_NGRAM,
                help="shortest n-gram looked up",
            ),
            Knob(
                name="suffix_depth",
                domain=IntDomain(low=2, high=64, log=True),
                default=24,
                gap="acceptance",
                when=_SUFFIX,
                help="longest context suffix that is matched",
            ),
            Knob(
                name="suffix_min_match",
                domain=IntDomain(low=1, high=8),
                default=1,
                gap="waste",
                when=_SUFFIX,
                help="shortest match that drafts at all",
            ),
            Knob(
                name="suffix_factor",
                domain=FloatDomain(low=0.5, high=8.0, step=0.5),
                default=1.0,
                gap="waste",
                when=_SUFFIX,
                help="most drafted tokens per matched token",
            ),
            Knob(
                name="min_probability",
                domain=FloatDomain(low=0.0, high=0.9, step=0.05),
                default=0.1,
                gap="waste",
                when=_SUFFIX,
                help="a draft ends where its estimated probability falls below this",
            ),
            Knob(
                name="threads",
                domain=IntDomain(low=1, high=threads),
                default=threads,
                gap="host",
                help="threads of the matrix products",
            ),
            Knob(
                name="linear_path",
                domain=ChoiceDomain(options=("plain", "packed")),
                default="plain",
                gap="weights",
                help="weights row by row, or packed once into the layout of the CPU's matrix kernel",
            ),
            Knob(
                name="prefill_chunk",
                domain=ChoiceDomain(options=(64, 128, 256, 512)),
                default=256,
                gap="host",
                help="prompt rows in one forward pass",
            ),
        ),
        orders=(Order(low="ngram_min", high="ngram_max"),),
    )


def stock_genome(space: KnobSpace) -> Genome:
    """Stock: the defaults of vLLM's n-gram speculation, K = 6 and n-grams of exactly 5 tokens."""
    return Genome.complete(space, {"drafter": "ngram", "draft_length": 6, "ngram_max": 5, "ngram_min": 5})


def ar_genome(space: KnobSpace) -> Genome:
    """AR: the same engine without a drafter."""
    return Genome.complete(space, {"drafter": "none"})
