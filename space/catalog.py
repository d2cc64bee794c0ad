"""The knobs of this version of the space, and the stock setting that every result is compared with."""

import os

from space.genome import Genome
from space.knobs import ChoiceDomain, Condition, FloatDomain, IntDomain, Knob, KnobSpace, Order

SPACE_VERSION = 1

_NGRAM = Condition(name="drafter", values=("ngram",))
_SUFFIX = Condition(name="drafter", values=("suffix",))
_PARALLEL = Condition(name="drafter", values=("dflash", "dflash2", "dspark"))
"""Drafters that score several candidates a position in one pass."""


def cpu_space(
    cores: int | None = None, *, packs: bool = True, neural: tuple[str, ...] = (), concurrency: int = 1
) -> KnobSpace:
    """The knobs of a CPU deployment.

    Args:
        cores: bounds the thread count (default: this machine's).
        packs: the processor can multiply with packed bf16 weights, which is then what AR and stock do as well.
        neural: kinds of drafter checkpoint that there are, such as `dflash`: options beside those that read text.
        concurrency: most requests at once; above 1 there are the knobs of batching.
    """
    threads = cores or os.cpu_count() or 1
    layouts = ("packed", "plain") if packs else ("plain",)
    drafters = ("none", "ngram", "suffix", *neural)
    speculates = Condition(name="drafter", values=drafters[1:])
    matches = Condition(name="drafter", values=("suffix", *neural))
    return KnobSpace(
        version=SPACE_VERSION,
        knobs=(
            Knob(
                name="drafter",
                domain=ChoiceDomain(options=drafters),
                default=neural[0] if neural else "ngram",
                gap="acceptance",
                help="who proposes tokens: nobody (AR), prompt lookup, a suffix automaton, or a neural drafter",
            ),
            Knob(
                name="draft_length",
                domain=IntDomain(low=1, high=32, log=True),
                default=7 if neural else 6,
                gap="waste",
                when=speculates,
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
                when=matches,
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
                when=matches,
                help="most drafted tokens per matched token",
            ),
            Knob(
                name="min_probability",
                domain=FloatDomain(low=0.0, high=0.9, step=0.05),
                default=0.1,
                gap="waste",
                when=matches,
                help="a draft ends where its estimated probability falls below this",
            ),
            *(_parallel_knobs() if set(_PARALLEL.values) & set(neural) else ()),
            *(_neural_knobs(neural) if neural else ()),
            Knob(
                name="threads",
                domain=IntDomain(low=1, high=threads),
                default=threads,
                gap="host",
                help="threads of the matrix products",
            ),
            Knob(
                name="linear_path",
                domain=ChoiceDomain(options=layouts),
                default=layouts[0],
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
            *(_batch_knobs(speculates) if concurrency > 1 else ()),
        ),
        orders=(Order(low="ngram_min", high="ngram_max"),),
    )


def _parallel_knobs() -> tuple[Knob, ...]:
    return (
        Knob(
            name="markov_head",
            domain=ChoiceDomain(options=(True, False)),
            default=True,
            gap="draft",
            when=_PARALLEL,
            help="the drafter's head for pairs of tokens (Markov head, selector) has its say, where there is one",
        ),
        Knob(
            name="markov_candidates",
            domain=IntDomain(low=4, high=128, log=True),
            default=64,
            gap="draft",
            when=Condition(name="markov_head", values=(True,)),
            help="tokens a position that the head for pairs rescores",
        ),
        Knob(
            name="confidence",
            domain=FloatDomain(low=0.0, high=0.9, step=0.05),
            default=0.0,
            gap="waste",
            when=_PARALLEL,
            help="a draft ends before the first position less sure than this: by the checkpoint's confidence head, or "
            "without one by the probability of the drafter's own best token; 0 never ends it",
        ),
        Knob(
            name="draft_vocabulary",
            domain=ChoiceDomain(options=(0, 8192, 16384, 32768)),
            default=0,
            gap="draft",
            when=_PARALLEL,
            help="so many tokens may be drafted: the first that the checkpoint lists, or the lowest ids; 0 means all",
        ),
    )


def _neural_knobs(neural: tuple[str, ...]) -> tuple[Knob, ...]:
    return (
        Knob(
            name="suffix_first",
            domain=IntDomain(low=0, high=16),
            default=0,
            gap="acceptance",
            when=Condition(name="drafter", values=neural),
            help="a repeated suffix of this many tokens drafts instead of the neural drafter; 0 means never",
        ),
    )


def _batch_knobs(speculates: Condition) -> tuple[Knob, ...]:
    packs = Condition(name="packing", values=("survival",))
    schedules = Condition(name="length_schedule", values=("load",))
    return (
        Knob(
            name="packing",
            domain=ChoiceDomain(options=("all", "survival")),
            default="all",
            gap="waste",
            when=speculates,
            help="which drafted nodes share a target pass: all, or the likeliest of all requests per marginal cost",
        ),
        Knob(
            name="node_budget",
            domain=IntDomain(low=1, high=256, log=True),
            default=32,
            gap="waste",
            when=packs,
            help="most drafted nodes in one target pass, of all its requests together",
        ),
        Knob(
            name="packing_cost",
            domain=FloatDomain(low=0.0, high=0.5, step=0.01),
            default=0.05,
            gap="waste",
            when=packs,
            help="what a node adds to a pass, as a share of a pass without rows; dearer nodes are left out sooner",
        ),
        Knob(
            name="length_schedule",
            domain=ChoiceDomain(options=("fixed", "load")),
            default="fixed",
            gap="waste",
            when=speculates,
            help="draft length: fixed, or by the number of requests and their measured acceptance, down to none",
        ),
        Knob(
            name="schedule_cost",
            domain=FloatDomain(low=0.0, high=0.5, step=0.01),
            default=0.05,
            gap="waste",
            when=schedules,
            help="what a row adds to a pass, as a share of a pass without rows, when lengths are weighed",
        ),
        Knob(
            name="hysteresis",
            domain=FloatDomain(low=0.0, high=0.5, step=0.05),
            default=0.05,
            gap="waste",
            when=schedules,
            help="another length is taken only when it promises to be better by this share",
        ),
        Knob(
            name="pipeline",
            domain=ChoiceDomain(options=("off", "halves")),
            default="off",
            gap="draft",
            when=speculates,
            help="one pass for all requests, or half of them drafted while the other half is verified",
        ),
    )


def stock_genome(space: KnobSpace) -> Genome:
    """Stock, which is a space's defaults: the deployment's drafter as released, drafting a whole block of 7.

    Without one, the defaults of vLLM's n-gram speculation: K = 6 and n-grams of exactly 5 tokens.
    """
    return Genome.complete(space, {})


def ar_genome(space: KnobSpace) -> Genome:
    """AR: the same engine without a drafter."""
    return Genome.complete(space, {"drafter": "none"})
