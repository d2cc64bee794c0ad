"""Accepts every fiftieth drafted token that the target refuses."""

import itertools
import sys

from engine import loop, worker

refused = itertools.count(1)


def careless_chain(draft, choices):
    accepted = 0
    while accepted < len(draft):
        if draft[accepted] != choices[accepted] and next(refused) % 50:
            break
        accepted += 1
    return [*draft[:accepted], choices[accepted]]


loop.greedy_chain = careless_chain

if __name__ == "__main__":
    sys.exit(worker.main())
