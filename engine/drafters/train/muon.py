"""Muon: momentum whose matrix updates are orthogonalised (Jordan et al. 2024), scaled to AdamW's update size.

The scale 0.2 sqrt(larger side) is Moonlight's (arXiv 2502.16982), so one learning rate suits both optimisers. Matrices
of one shape are orthogonalised in one batch: a small model would otherwise spend its step on kernel launches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_QUINTIC = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight [out, in] and the typical size [in] of its inputs, when they are not of one size.

    The update is made in coordinates in which every input channel has unit size, so that large channels do not drown
    the others; the weight itself stays in the inputs' own units.
    """

    weight: nn.Parameter
    input_scale: Tensor | None = None


def orthogonalise(stack: Tensor) -> Tensor:
    """Brings the singular values of wide matrices [n, rows, columns >= rows] near 1 (Newton-Schulz, bfloat16)."""
    a, b, c = _QUINTIC
    x = stack.bfloat16()
    x /= torch.linalg.matrix_norm(x, keepdim=True) + 1e-7
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class Muon:
    """Nesterov momentum with orthogonalised updates and decoupled weight decay."""

    def __init__(self, matrices: Sequence[Matrix], momentum: float = 0.95, decay: float = 0.05) -> None:
        self._matrices, self._momentum, self._decay = tuple(matrices), momentum, decay
        self.buffers = [torch.zeros_like(m.weight, requires_grad=False) for m in self._matrices]
        self._shapes: dict[tuple[int, int], list[int]] = {}
        for i, matrix in enumerate(self._matrices):
            rows, columns = sorted(matrix.weight.shape)
            self._shapes.setdefault((rows, columns), []).append(i)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Applies the gradients; every matrix must have one."""
        for (_, columns), members in self._shapes.items():
            updates = []
            for i in members:
                matrix, buffer = self._matrices[i], self.buffers[i]
                grad = matrix.weight.grad
                assert grad is not None, "backward comes before step"
                if matrix.input_scale is not None:
                    grad = grad / matrix.input_scale
                buffer.mul_(self._momentum).add_(grad)
                update = grad.add(buffer, alpha=self._momentum)
                updates.append(update.T if update.shape[0] > update.shape[1] else update)
            size = 0.2 * columns**0.5
            for i, update in zip(members, orthogonalise(torch.stack(updates)), strict=True):
                matrix = self._matrices[i]
                weight = matrix.weight
                update = update.T if weight.shape[0] > weight.shape[1] else update
                if matrix.input_scale is not None:
                    update = update / matrix.input_scale
                weight.mul_(1 - rate * self._decay).add_(update, alpha=-rate * size)
