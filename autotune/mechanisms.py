"""What each planned mechanism does to a system, and in words. A predicted effect is declared here with its ground.

Measured grounds are figures of this project on one H200 (docs/weight12.md); the others are assumptions and say so.
On another device both are a first guess.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from autotune.base import Proposal, Trial
from autotune.gaps import PACKED_BYTES
from autotune.history import Tried
from autotune.overheads import STOCK_VLLM, Curve, Overheads
from autotune.proposer import Proposer
from space.genome import Genome
from space.hardware import HardwareProfile
from space.knobs import Knobs

# Seconds of the four products of a Llama-8B layer over cuBLAS, summed, at 1, 8, 16, 32 and 64 rows. Beyond 64 rows a
# packed matrix is decoded first and multiplied by cuBLAS: 104 us more than the 57 of the largest matrix, and 1.6 times
# as long as bf16 at 512 rows.
_SKINNY: Curve = ((1, 0.885), (8, 0.896), (16, 1.0))
_PACKED_TIME: Curve = (
    (1, 0.690),
    (8, 0.707),
    (16, 0.800),
    (32, 0.878),
    (64, 1.145),
    (65, 2.80),
    (512, 1.60),
    (3000, 1.10),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """The effect of one option of one knob on a system, what it does in words, and what the effect rests on."""

    words: str
    ground: str
    apply: Callable[[Overheads, HardwareProfile], Overheads]


def _packed(system: Overheads, _: HardwareProfile) -> Overheads:
    kernels = tuple((rows, time / PACKED_BYTES) for rows, time in _PACKED_TIME)
    return replace(system, weight_bytes=PACKED_BYTES, matrix_factor=kernels)


def _whole(system: Overheads, hardware: HardwareProfile) -> Overheads:
    return replace(system, host=hardware.host_gap.value, speculation_host=0.0)


_EFFECTS: Mapping[tuple[str, str], Mechanism] = MappingProxyType(
    {
        ("weight_path", "w12-skinny"): Mechanism(
            words="weights packed losslessly to 12 bits, decoded inside the products",
            ground="measured on one H200 at 1 to 64 rows",
            apply=_packed,
        ),
        ("weight_path", "bf16-skinny"): Mechanism(
            words="matrix kernels made for few rows, cuBLAS from 16 rows on",
            ground="measured on one H200 at 1 to 16 rows",
            apply=lambda system, _: replace(system, matrix_factor=_SKINNY),
        ),
        ("step_graph", "whole"): Mechanism(
            words="draft, verification and commit as one CUDA graph",
            ground="assumption: the host's part of a speculative step goes, the profile's host gap stays",
            apply=_whole,
        ),
        ("fused_kernels", "fused"): Mechanism(
            words="norms, rotation and cache writes fused; argmax inside the head",
            ground="counted: two small kernels a layer stay of five; the head with argmax was measured on one H200",
            apply=lambda system, _: replace(system, small_kernels=2.0, logits_passes=0.0),
        ),
        ("attention_kernel", "split"): Mechanism(
            words="attention split along the keys",
            ground="assumption: 85 % of the read bandwidth instead of 60 %",
            apply=lambda system, _: replace(system, kv_share=0.85),
        ),
        ("verify_rows", "packed"): Mechanism(
            words="rows of all requests packed: only what was drafted is verified",
            ground="counted from the drafts of the stand-in",
            apply=lambda system, _: replace(system, sizes=()),
        ),
        ("pipeline", "halves"): Mechanism(
            words="one half of the batch drafts while the other is verified",
            ground="counted: two passes over the weights, the shorter of draft and verification hidden",
            apply=lambda system, _: replace(system, halves=True),
        ),
    }
)


def planned_system(knobs: Knobs, hardware: HardwareProfile) -> Overheads:
    """The system that a planning genome stands for: stock vLLM with the genome's mechanisms."""
    system = STOCK_VLLM
    for mechanism in _chosen(knobs):
        system = mechanism.apply(system, hardware)
    return system if system is STOCK_VLLM else replace(system, name="planned")


def in_words(genome: Genome) -> list[tuple[str, str]]:
    """The mechanisms of a genome, as (what it does, what its predicted effect rests on)."""
    return [(mechanism.words, mechanism.ground) for mechanism in _chosen(genome.knobs)]


def _chosen(knobs: Knobs) -> list[Mechanism]:
    return [effect for (name, option), effect in _EFFECTS.items() if knobs.get(name) == option]


def options_with_effect() -> set[tuple[str, str]]:
    """Every (knob, option) that an effect is declared for."""
    return set(_EFFECTS)


class MechanismsFirst(Proposer):
    """Proposes stock with one mechanism each, then those that helped together, before anything else.

    None of these needs tokens that are not decoded yet, so they are tried however slow this machine is.
    """

    def propose(self, history: Sequence[Trial], rng: random.Random) -> Proposal | None:
        """Returns the first single mechanism that was not tried, their union once, then what the search proposes."""
        tried = Tried.of(history)
        singles = [{}, *({name: option} for name, option in _EFFECTS)]
        genomes = (Genome.complete(self.space, single) for single in singles if self._free(single))
        left = next((genome for genome in genomes if genome not in tried), None)
        if left is not None:
            return Proposal(genome=left, parents=(), operator="seed")
        return self._first_union(history, rng) or super().propose(history, rng)

    def _free(self, knobs: Knobs) -> bool:
        return all(self.space.knob(name).domain.contains(value) for name, value in knobs.items())
