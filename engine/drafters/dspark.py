"""DSpark: the DFlash body with a Markov head that ties the guesses together and a head that says how sure each is.

The anchor's row drafts too: row j predicts the token behind its own position, so K = block_size. Source: DSpark
(DeepSpec, arXiv 2607.05147); docs/drafter-formats.md has the layout.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.base import Lattice
from engine.drafters.dflash_body import DFlashConfig, DraftBody, DraftTables
from engine.drafters.lattice import best_first, greedy_walk, pair_lattice, row_lattice
from space.errors import EngineError

HEADS = ("vanilla", "gated", "rnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkConfig(DFlashConfig):
    """Shape of a DSpark drafter: `head_rank` 0 is no Markov head, `head_type` is one of HEADS.

    `confident`: there is a confidence head; `confidence_reads_previous`: it reads the previous token too.
    """

    head_rank: int = 0
    head_type: str = "vanilla"
    confident: bool = False
    confidence_reads_previous: bool = False

    def __post_init__(self) -> None:
        DFlashConfig.__post_init__(self)
        if self.confidence_reads_previous and not self.head_rank:
            raise EngineError("confidence_head_with_markov is True, but markov_rank is 0: there is no Markov head")


class MarkovHead(nn.Module):
    """Adds to each token's logit what the previous token says: W2 times a vector of the previous token."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        rank, hidden = config.head_rank, config.hidden_size
        self.rank = rank
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.table_size, bias=False)
        self.gate_proj = nn.Linear(hidden + rank, rank) if config.head_type == "gated" else None
        self.joint_proj = nn.Linear(2 * rank + hidden, 3 * rank) if config.head_type == "rnn" else None

    def forward(self, hidden: Tensor, before: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position.

        Args:
            hidden: the position's hidden state [hidden].
            before: token ids that may stand before it [n].
            state: what an rnn head remembers of the path up to there [rank].

        Returns:
            What W2 is applied to [n, rank], and the state behind each of `before` [n, rank].
        """
        said: Tensor = self.markov_w1(before)
        hidden, state = hidden.expand(len(before), -1), state.expand(len(before), -1)
        if self.gate_proj is not None:
            said = torch.sigmoid(self.gate_proj(torch.cat((hidden, said), -1))) * said
        if self.joint_proj is None:
            return said, state
        gate, fresh, out = self.joint_proj(torch.cat((state, said, hidden), -1)).chunk(3, -1)
        gate = torch.sigmoid(gate)
        return torch.tanh(out), gate * state + (1 - gate) * torch.tanh(fresh)


class ConfidenceHead(nn.Module):
    """The probability that a position's token is accepted once all before it are."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(config.hidden_size + config.head_rank * config.confidence_reads_previous, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Probabilities [K] float32 of features [K, n]; computed in float32, since thresholds are compared with it."""
        assert self.proj.bias is not None
        logits = F.linear(features.float(), self.proj.weight.float(), self.proj.bias.float())
        return torch.sigmoid(logits[:, 0])


class DSpark(DraftBody):
    """The body, a Markov head and a confidence head, each where the config has it."""

    config: DSparkConfig

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__(config)
        self.markov_head = MarkovHead(config) if config.head_rank else None
        self.confidence_head = ConfidenceHead(config) if config.confident else None

    def lattice(
        self, hidden: Tensor, anchor: Tensor, tables: DraftTables, candidates: int | None, width: int
    ) -> Lattice:
        """Candidates are the best by the head; edges are the Markov head's.

        An rnn head's state depends on the whole path: edges take the one of the greedy walk, so that they are exact
        along it and an estimate elsewhere.
        """
        logits, head = self.adjusted(F.linear(hidden, tables.head)), self.markov_head
        if head is None or candidates is None:
            rows = best_first(logits, width)
            found = row_lattice(rows, logits, tables.tokens(rows), width)
        else:
            rows = best_first(logits, candidates or logits.shape[-1])
            state = hidden.new_zeros(head.rank)

            def after(position: int, before: Tensor, path: Tensor) -> Tensor:
                nonlocal state
                said, states = head(hidden[position], before, state)
                state = states[path]
                bias = F.linear(said.float(), head.markov_w2.weight[rows[position]].float())
                return logits[position, rows[position]] + bias

            found = pair_lattice(tables.tokens(rows), anchor, after, width)
        return replace(found, confidence=self._confidence(hidden, anchor, found))

    def _confidence(self, hidden: Tensor, anchor: Tensor, found: Lattice) -> Tensor | None:
        """How sure each position of the greedy walk is [K]; None without a head for it."""
        if self.confidence_head is None:
            return None
        features = hidden
        if self.config.confidence_reads_previous and self.markov_head is not None:
            previous = torch.cat((anchor, greedy_walk(found)[0][:-1]))
            features = torch.cat((hidden, self.markov_head.markov_w1(previous)), -1)
        sure: Tensor = self.confidence_head(features)
        return sure
