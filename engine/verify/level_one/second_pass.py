"""A second draft pass, conditioned on the best path of the first one, where a step may draft beyond one block."""

from engine.base import ParallelDrafter
from engine.verify.candidates import WIDTH, Candidates, LatticeCandidates, Prolonged, best_path
from engine.verify.level_one.base import LevelOne


class SecondPass(LevelOne):
    """Lets the drafter draft once more behind its own first block, as if the block's best path were committed."""

    def prolong(self, lattice: LatticeCandidates, drafter: ParallelDrafter, limit: int) -> Candidates:
        """The lattice with a second one behind its best path; just the lattice where the limit leaves no room."""
        room = limit - lattice.positions
        if not lattice.positions or room <= 0:
            return lattice
        _, taken = best_path(lattice, lattice.positions)
        path = [token for _, token, _ in taken]
        return Prolonged(lattice, LatticeCandidates.of(drafter.lattice(room, WIDTH, path)))
