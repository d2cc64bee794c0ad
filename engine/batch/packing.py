"""Packed verification: which drafted nodes of all requests share one target pass.

The nodes likeliest to be reached and accepted, per marginal cost, are admitted one after the other while the expected
tokens per cost of the pass rise. Idea: confidence-scheduled verification of chains, DSpark (DeepSeek 2026); here a node
may be any tree's.

Admission never depends on the token that it admits. A node has an estimate, made from earlier steps or from the draft's
distribution before a token was drawn from it, and no token id. And a decision looks at the nodes that stand before it
only: a search for the best total would let a later node, whose estimate depends on the tokens before it, decide about
those. Where drafts are drawn at random, a rule that breaks this changes the distribution of the output: the draft that
verification sees is then no draw from q any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.models.config import LlamaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A drafted node that asks for a row.

    Args:
        owner: whose it is.
        index: its place among the owner's nodes; parents stand before their children.
        survival: the estimated probability that the node and those on the way to it are accepted: at most its
            parent's.
        cost: what its row costs, in rows without context; the same for all nodes of an owner.
    """

    owner: int
    index: int
    survival: float
    cost: float = 1.0


def row_cost(config: LlamaConfig, context: int) -> float:
    """What a row with `context` positions to read costs, in rows without: by multiplications."""
    attention = 2 * config.heads * config.head_dim * context
    projections = (2 * config.heads + 2 * config.kv_heads) * config.head_dim * config.hidden
    layer = projections + 3 * config.hidden * config.ffn
    return 1 + config.layers * attention / (config.layers * layer + config.hidden * config.vocab)


def pack(nodes: Sequence[Node], *, budget: int, row_share: float, fixed: Sequence[float]) -> list[Node]:
    """The admitted nodes, best first. With a node, its ancestors are admitted.

    Args:
        nodes: the drafted nodes of all requests.
        budget: most nodes in the pass.
        row_share: what a row without context adds to the pass, as a share of what the pass costs without rows.
        fixed: the costs of the rows that are there anyway, one a request: each yields one token.
    """
    tokens, cost = float(len(fixed)), 1 + row_share * sum(fixed)
    admitted = []
    for node in sorted(nodes, key=lambda node: (-node.survival / node.cost, node.index, node.owner))[:budget]:
        extra = row_share * node.cost
        if node.survival * cost < extra * tokens:
            break
        admitted.append(node)
        tokens, cost = tokens + node.survival, cost + extra
    return admitted
