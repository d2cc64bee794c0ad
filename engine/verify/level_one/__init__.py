"""Level one of two-level verification: one file a kind, and the registry."""

from collections.abc import Callable, Mapping

from engine.base import Settings
from engine.verify.level_one.agreement import SuffixProlonging, SuffixPruning
from engine.verify.level_one.base import LevelOne
from engine.verify.level_one.margin import MarginPruning
from engine.verify.level_one.second_pass import SecondPass

LEVEL_ONE: Mapping[str, Callable[[Settings], LevelOne]] = {
    "none": lambda _: LevelOne(),
    "margin": lambda s: MarginPruning(s.survival_floor),
    "second_pass": lambda _: SecondPass(),
    "suffix_prune": SuffixPruning,
    "suffix_prolong": SuffixProlonging,
}
