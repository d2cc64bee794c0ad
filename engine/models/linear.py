"""A matrix product with two weight layouts that give bit-equal results: plain rows, or oneDNN's packed blocks."""

import torch
from torch import Tensor
from torch.nn import functional

from space.errors import EngineError

_LONG_SUM = 1024
"""Above this inner size oneDNN splits the sum of a single row differently from that of several rows (measured on
AVX-512 bf16); such a row is multiplied twice, which costs no extra weight traffic and keeps AR and verify bit-equal."""


class Linear:
    """y = x W^T for a bf16 weight [out, in]. `use(path)` chooses the layout; packing happens once, on demand."""

    def __init__(self, weight: Tensor) -> None:
        """Takes the weight as it is, [out, in] bf16."""
        self.weight = weight
        self._packed: Tensor | None = None
        self._use_packed = False

    def use(self, path: str) -> None:
        """Chooses `plain` or `packed`. EngineError where this build of torch cannot pack."""
        if path not in ("plain", "packed"):
            raise EngineError(f"linear_path {path!r}: allowed is plain or packed")
        self._use_packed = path == "packed"
        if self._use_packed and self._packed is None:
            if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
                raise EngineError("linear_path 'packed' needs a torch build with oneDNN; use 'plain'")
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, 8)

    def __call__(self, x: Tensor) -> Tensor:
        """Multiplies [rows, in] bf16; returns [rows, out] bf16."""
        if x.shape[0] == 1 and x.shape[1] > _LONG_SUM:
            return self._multiply(x.expand(2, -1))[:1]
        return self._multiply(x)

    def _multiply(self, x: Tensor) -> Tensor:
        if self._use_packed:
            return torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")  # type: ignore[no-any-return]
        return functional.linear(x, self.weight)
