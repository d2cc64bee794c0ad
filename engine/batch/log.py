"""What a batch says about its passes: the material that a cost model is calibrated on."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class BatchLog:
    """One entry a target pass, in parallel lists.

    requests: how many requests took part.
    rows: rows of the pass: one a request, and the nodes.
    drafted: tokens that the drafters offered; nodes: how many of them were verified; accepted: how many were committed.
    context: committed positions that attention read, summed over the requests.
    draft_seconds: what drafting took; wait_seconds: how long the pass waited for it (all of it unless pipelined).
    verify_seconds: the pass itself, with the choice of tokens and the commit.
    prefill_rows, prefill_seconds: prompt tokens of the requests that joined since the pass before, and their time.
    """

    requests: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    draft_seconds: list[float] = field(default_factory=list)
    wait_seconds: list[float] = field(default_factory=list)
    verify_seconds: list[float] = field(default_factory=list)
    prefill_rows: list[int] = field(default_factory=list)
    prefill_seconds: list[float] = field(default_factory=list)
