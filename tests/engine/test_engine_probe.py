"""The probe runs the engine's own layers and gives figures of this machine that fit each other."""

import torch

from engine.probe import probe


def test_a_probe_of_small_layers():
    threads = torch.get_num_threads()
    try:
        found = probe(
            [(96, 64), (64, 96)], threads=1, linear_path="plain", row_counts=(1, 4), read_bytes=1 << 20, repeats=3
        )
    finally:
        torch.set_num_threads(threads)
    assert [rows for rows, _ in found.rows] == [1, 4]
    assert found.matrix_rate == max(rate * rows for rows, rate in found.rows)  # 2 FLOPs and 2 bytes a weight
    assert min(found.read_bandwidth, found.operator_seconds) > 0
    assert found.operator_seconds < 0.01
