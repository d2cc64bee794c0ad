"""The time of one step by part, for a device, a target, a drafter, a system and a load.

A roofline a part: bytes over attained bandwidth against FLOPs over attained matrix rate, combined as the root of the
sum of squares, since loads and products overlap only in part near the ridge. Launches and host time come on top.
The roofline is Williams, Waterman and Patterson's (2009). autotune/calibrate.py fits scales to step logs.
"""

import math
from dataclasses import dataclass, replace

from autotune.overheads import Overheads, on_curve
from space.hardware import HardwareProfile
from space.shapes import BF16, FP32, DrafterShape, ModelShape

PARTS = ("draft", "weights", "attention", "head", "sampling", "launch", "host")
PREFILL_CHUNK = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one step is asked to do; all requests of the batch are alike.

    nodes: drafted tokens a request that the target verifies; 0 is AR.
    context: committed tokens a request whose keys and values are read.
    committed: tokens a request that a step commits on average (tau): a neural drafter takes in as many.
    neural: the nodes come from the neural drafter, not from text.
    draft_head: share of the target's output table that drafting multiplies with (a pruned draft vocabulary).
    """

    batch: int
    nodes: int
    context: float
    committed: float = 1.0
    neural: bool = False
    draft_head: float = 1.0

    @property
    def rows(self) -> int:
        """Rows of the target's pass: the anchor and the nodes of every request."""
        return self.batch * (1 + self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one step by part. `draft` has the drafter's own bytes, head and products, but not its launches."""

    draft: float = 0.0
    weights: float = 0.0
    attention: float = 0.0
    head: float = 0.0
    sampling: float = 0.0
    launch: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return math.fsum(getattr(self, name) for name in PARTS)

    @property
    def verify(self) -> float:
        """Seconds of the target's pass alone, as the step log counts it; launches and host are not divided."""
        return self.weights + self.attention + self.head + self.sampling


def _scaled(step: StepTime, factor: float) -> StepTime:
    return StepTime(**{name: factor * getattr(step, name) for name in PARTS})


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Predicts steps of one deployment under one system."""

    hardware: HardwareProfile
    target: ModelShape
    drafter: DrafterShape | None
    system: Overheads

    def step(self, load: Load) -> StepTime:
        """Seconds by part of a step under this load."""
        if not self.system.halves or load.batch < 2:
            return self._step(load)
        # Two half batches: each is verified while the other drafts, so a draft costs only what verify does not hide.
        half = self._step(replace(load, batch=math.ceil(load.batch / 2)))
        return _scaled(replace(half, draft=half.draft - min(half.draft, half.verify)), 2.0)

    def tokens_per_second(self, load: Load) -> float:
        """Tokens that the batch commits a second, prefill left out."""
        return load.batch * load.committed / self.step(load).total

    def prefill(self, batch: int, prompt: int) -> float:
        """Seconds to process the prompts of a batch, in chunks of PREFILL_CHUNK rows; one head row a request."""
        rows, seconds = batch * prompt, 0.0
        while rows > 0:
            chunk = min(rows, PREFILL_CHUNK)
            seconds += self._product(self.target.body_parameters, chunk) + self.target_launch
            rows -= chunk
        return seconds + self._product(self.target.head_parameters, batch)

    def run(self, *, batch: int, prompt: int, tokens: int, nodes: int = 0, tau: float = 1.0) -> float:
        """Seconds until each request of a batch has `tokens` new tokens: prefill, then steps at the mean context."""
        load = Load(batch=batch, nodes=nodes, context=prompt + tokens / 2, committed=tau, neural=nodes > 0)
        return self.prefill(batch, prompt) + (tokens - 1) / tau * self.step(load).total

    def memory(self, batch: int, context: int) -> float:
        """Bytes of weights, caches and recurrent states that must fit on the device."""
        drafter = (self.drafter.parameters, self.drafter.kv_bytes_per_token) if self.drafter else (0, 0)
        weights = (self.target.parameters + drafter[0]) * BF16 * self.system.weight_bytes
        return weights + batch * (context * (self.target.kv_bytes_per_token + drafter[1]) + self.target.state_bytes)

    def _step(self, load: Load) -> StepTime:
        system, rows = self.system, self.system.padded(load.rows)
        neural = load.neural and self.drafter is not None and load.nodes > 0
        drafting = load.nodes > 0
        return StepTime(
            draft=self._draft(load) if neural else 0.0,
            weights=self._product(self.target.body_parameters, rows),
            attention=self._attention(load),
            head=self._product(self.target.head_parameters, rows),
            sampling=self._logits(rows),
            launch=self.target_launch + (self._launches(self._draft_layers) if neural else 0.0),
            host=system.host + system.host_row * load.batch + (system.speculation_host if drafting else 0.0),
        )

    @property
    def target_launch(self) -> float:
        """Seconds of the launches of the target's own layers."""
        return self._launches(self.target.layers)

    @property
    def _draft_layers(self) -> int:
        return self.drafter.layers if self.drafter else 0

    def _product(self, parameters: int, rows: float) -> float:
        """Matrix products of so many parameters with `rows` rows."""
        measured = self.hardware.streaming_rate(max(1, round(rows)))
        if measured is not None:
            return parameters * BF16 * self.system.weight_bytes / (measured * self.system.read_share)
        factor = on_curve(self.system.matrix_factor, rows)
        reading = parameters * BF16 * self.system.weight_bytes
        reading /= self.hardware.read_bandwidth.value * self.system.read_share
        return factor * math.hypot(reading, self._arithmetic(2.0 * parameters * rows))

    def _arithmetic(self, flops: float) -> float:
        return flops / (self.hardware.matrix_rate.value * self.system.matrix_share)

    def _attention(self, load: Load) -> float:
        """Keys and values are read once a request; scores and sums cost two products a row each."""
        target, rate = self.target, self.hardware.read_bandwidth.value * self.system.kv_share
        length = load.context + load.nodes
        # A recurrent state is read, and written back, once a step.
        reading = load.batch * (length * target.kv_bytes_per_token + 2.0 * target.state_bytes) / rate
        flops = 4.0 * load.rows * length * target.attention_layers * target.heads * target.head_dim
        return math.hypot(reading, self._arithmetic(flops))

    def _logits(self, rows: int) -> float:
        return self.system.logits_passes * rows * self.target.vocab * FP32 / self.hardware.read_bandwidth.value

    def _draft(self, load: Load) -> float:
        """One pass of the block, the injection of what was committed, and the target's head over the drafted rows."""
        drafter, drafted = self.drafter, load.batch * min(load.nodes, self.drafter.longest if self.drafter else 0)
        if drafter is None:
            return 0.0
        rows = self.system.padded(load.batch + drafted)
        cache = load.batch * load.context * drafter.kv_bytes_per_token
        return (
            self._product(drafter.layer_parameters, rows)
            + self._product(drafter.injection_parameters, load.batch * load.committed)
            + self._product(drafter.markov_parameters, drafted)
            + load.draft_head * (self._product(self.target.head_parameters, drafted) + self._logits(drafted) / 2.0)
            + cache / (self.hardware.read_bandwidth.value * self.system.kv_share)
        )

    def _launches(self, layers: int) -> float:
        system = self.system
        each = system.matrix_kernels * system.matrix_launch + system.small_kernels * system.small_launch
        return self.hardware.launch.value * layers * each
