"""Chain verification: the target's own choices decide; a draft only decides how many come at once.

The choices are argmaxes, or draws (engine/verify/sampling.py).
"""

from collections.abc import Sequence


def greedy_chain(draft: Sequence[int], choices: Sequence[int]) -> list[int]:
    """Returns the tokens to commit: the drafted prefix that the target chose too, and the target's next token.

    Args:
        draft: [k] drafted tokens.
        choices: [k + 1] the target's choice after the last committed token and after each drafted one.
    """
    accepted = 0
    while accepted < len(draft) and draft[accepted] == choices[accepted]:
        accepted += 1
    return [*draft[:accepted], choices[accepted]]
