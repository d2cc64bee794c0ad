"""Operators: what makes the next genome. One file an implementation, registered here by name."""

from collections.abc import Callable

from autotune.base import Operator
from autotune.operators.evolve import Crossover, Mutation
from autotune.operators.random_knobs import RandomKnobs
from autotune.operators.tpe import Tpe
from autotune.operators.union import Union
from autotune.parents import CellOf

REGISTRY: dict[str, Callable[[CellOf], Operator]] = {
    "random": lambda cell_of: RandomKnobs(),
    "mutate": Mutation,
    "crossover": Crossover,
    "tpe": lambda cell_of: Tpe(),
    "union": lambda cell_of: Union(),
}


def all_operators(cell_of: CellOf) -> tuple[Operator, ...]:
    """One of each registered operator; `cell_of` says which cell of the grid a descriptor belongs to."""
    return tuple(make(cell_of) for make in REGISTRY.values())
