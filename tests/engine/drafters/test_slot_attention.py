"""The Triton kernel against plain torch: in Triton's interpreter on a CPU (float32), and on a GPU when there is one."""

import os
import subprocess
import sys

import pytest
import torch

from engine.drafters.train.slot_attention import plain_slot_attention, slot_attention

SHAPES = [(5, 2, 3, 16, 130), (3, 1, 1, 32, 64), (4, 3, 3, 64, 72)]  # slots, kv heads, group, size, length


def inputs(shape: tuple[int, ...], device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    slots, kv_heads, groups, size, length = shape
    generator = torch.Generator().manual_seed(sum(shape))
    q = torch.randn(slots, kv_heads, groups, size, generator=generator)
    k, v = torch.randn(2, slots, kv_heads, length, size, generator=generator)
    positions = torch.randint(0, length, (slots,), generator=generator)
    positions[0], positions[1] = length - 1, 0
    k[1, :, 1:], v[1, :, 1:] = torch.nan, torch.nan  # what lies past the position is never read
    return [*(t.to(device, dtype) for t in (q, k, v)), positions.to(device)]


@pytest.mark.parametrize("shape", SHAPES)
def test_plain_version_sees_each_slots_own_length(shape: tuple[int, ...]) -> None:
    q, k, v, positions = inputs(shape, "cpu", torch.float64)
    k, v = k.nan_to_num(9.0), v.nan_to_num(9.0)
    out = plain_slot_attention(q, k, v, positions)
    for slot, last in enumerate(positions.tolist()):
        scores = q[slot] @ k[slot, :, : last + 1].mT * q.shape[-1] ** -0.5
        torch.testing.assert_close(out[slot], scores.softmax(-1) @ v[slot, :, : last + 1])


def check(device: str, dtype: torch.dtype, tolerance: float) -> None:
    from engine.drafters.train.slot_attention_triton import fused_slot_attention

    for shape in SHAPES:
        q, k, v, positions = inputs(shape, device, dtype)
        exact = plain_slot_attention(*(t.double().nan_to_num() for t in (q, k, v)), positions)
        found = fused_slot_attention(q, k, v, positions).double()
        assert (found - exact).norm() / exact.norm() < tolerance


def test_kernel_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    code = "import torch, tests.engine.drafters.test_slot_attention as t; t.check('cpu', torch.float32, 1e-5)"
    # Triton decides at import whether it interprets, so this needs a process of its own.
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_kernel_on_the_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU on this machine")
    check("cuda", torch.bfloat16, 1e-2)
    q, k, v, positions = inputs(SHAPES[2], "cuda", torch.bfloat16)
    assert slot_attention(q, k, v, positions).isfinite().all()
