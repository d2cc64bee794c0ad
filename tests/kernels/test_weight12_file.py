"""The file of packed weights: what goes in comes out, and damage is named."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.weight12.convert import classes, convert
from kernels.weight12.file import Reader, Source, Writer
from kernels.weight12.format import PackedMatrix, pack, unpack
from space.errors import EngineError


def gaussian(rows: int, cols: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, cols, generator=generator) * 0.02).bfloat16()


def tensors() -> dict[str, torch.Tensor]:
    return {
        "model.layers.0.up.weight": gaussian(100, 256),
        "model.layers.1.up.weight": gaussian(112, 256, seed=1),
        "model.norm.weight": torch.ones(200, dtype=torch.bfloat16),
        "model.scale": torch.tensor(3.5),
        "model.empty": torch.zeros(0, 4),
        "model.noise.weight": torch.randint(-32768, 32767, (64, 64), dtype=torch.int16).view(torch.bfloat16),
        "model.ids": torch.arange(7),
    }


def write(path: Path) -> dict[str, torch.Tensor]:
    given = tensors()
    with Writer(path, given) as writer:
        for name, tensor in given.items():
            writer.add(Source.of(name, tensor))
    return given


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def offset_of(path: Path, key: str) -> int:
    data = path.read_bytes()
    room = int.from_bytes(data[:8], "little")
    return 8 + room + json.loads(data[8 : 8 + room])[key]["data_offsets"][0]


def test_everything_returns_bit_for_bit(tmp_path: Path) -> None:
    given = write(tmp_path / "w")
    reader = Reader(tmp_path / "w")
    packed = set()
    for name, tensor in given.items():
        loaded = reader.load(name)
        if isinstance(loaded, PackedMatrix):
            packed.add(name)
            loaded = unpack(loaded)
        assert loaded.dtype == tensor.dtype
        assert torch.equal(
            loaded.contiguous().view(-1).view(torch.uint8), tensor.contiguous().view(-1).view(torch.uint8)
        )
    assert packed == {"model.layers.0.up.weight", "model.layers.1.up.weight"}


def test_it_is_a_safetensors_file(tmp_path: Path) -> None:
    given = write(tmp_path / "w.safetensors")
    plain = load_file(tmp_path / "w.safetensors")
    assert torch.equal(plain["model.norm.weight"], given["model.norm.weight"])
    for part, tensor in pack(given["model.layers.0.up.weight"]).parts().items():
        assert torch.equal(plain[f"model.layers.0.up.weight.w12.{part}"], tensor)


def test_packing_in_pieces_writes_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "whole")
    monkeypatch.setattr("kernels.weight12.format.CHUNK_WEIGHTS", 16 * 256)
    torch.manual_seed(0)
    write(tmp_path / "pieces")
    name = "model.layers.1.up.weight"
    assert Reader(tmp_path / "whole").stored[name] == Reader(tmp_path / "pieces").stored[name]


@pytest.mark.parametrize("part", ["payload", "base", "starts"])
def test_a_flipped_bit_is_refused_with_the_tensor_named(tmp_path: Path, part: str) -> None:
    write(tmp_path / "w")
    flip(tmp_path / "w", offset_of(tmp_path / "w", f"model.layers.0.up.weight.w12.{part}"))
    reader = Reader(tmp_path / "w")
    with pytest.raises(EngineError, match=r"'model\.layers\.0\.up\.weight' is corrupt"):
        reader.load("model.layers.0.up.weight")
    assert isinstance(reader.load("model.layers.1.up.weight"), PackedMatrix)


def test_a_truncated_file_is_refused_with_the_tensor_named(tmp_path: Path) -> None:
    write(tmp_path / "w")
    data = (tmp_path / "w").read_bytes()
    (tmp_path / "w").write_bytes(data[: offset_of(tmp_path / "w", "model.norm.weight") + 5])
    with pytest.raises(EngineError, match=r"ends inside tensor 'model\.norm\.weight'"):
        Reader(tmp_path / "w")


def test_a_changed_shape_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "w")
    data = (tmp_path / "w").read_bytes()
    swapped = data.replace(b'\\"shape\\": [100, 256]', b'\\"shape\\": [100, 255]')
    assert swapped != data
    (tmp_path / "w").write_bytes(swapped)
    with pytest.raises(EngineError, match="corrupt"):
        Reader(tmp_path / "w").load("model.layers.0.up.weight")


def test_damaged_entries_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "w")
    data = (tmp_path / "w").read_bytes()
    (tmp_path / "w").write_bytes(data.replace(b'"shape": [200]', b'"shape": [201]'))
    with pytest.raises(EngineError, match=r"entry of tensor 'model\.norm\.weight' is damaged"):
        Reader(tmp_path / "w")


@pytest.mark.parametrize(
    "content", [b"", b"12345678", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"{}", b"\x02" + b"\0" * 7 + b"[]"]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(EngineError, match="w: (no readable|format is)"):
        Reader(tmp_path / "w")


def test_missing_files_and_tensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no readable"):
        Reader(tmp_path / "absent")
    write(tmp_path / "w")
    with pytest.raises(EngineError, match="no tensor 'x'"):
        Reader(tmp_path / "w").load("x")


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "w")
    data = (tmp_path / "w").read_bytes().replace(b'"version": "1"', b'"version": "2"')
    (tmp_path / "w").write_bytes(data)
    with pytest.raises(EngineError, match="version is 2, this program reads 1"):
        Reader(tmp_path / "w")


def store(path: Path, names: list[str], given: list[tuple[str, torch.Tensor]], stop: bool = False) -> None:
    with Writer(path, names) as writer:
        for name, tensor in given:
            writer.add(Source.of(name, tensor))
        if stop:
            raise RuntimeError("stop")


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"old")
    with pytest.raises(RuntimeError, match="stop"):
        store(tmp_path / "w", ["a"], [("a", gaussian(64, 64))], stop=True)
    assert (tmp_path / "w").read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [tmp_path / "w"]


def test_names_must_be_known_and_come_once(tmp_path: Path) -> None:
    one = torch.ones(3)
    with pytest.raises(EngineError, match="comes twice"):
        store(tmp_path / "w", ["a", "a"], [("a", one), ("a", one)])
    with pytest.raises(EngineError, match="not told of"):
        store(tmp_path / "w", [], [(f"a{number}", one) for number in range(20)])
    with pytest.raises(EngineError, match="complex64"):
        store(tmp_path / "w", ["a"], [("a", one.to(torch.complex64))])
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_converted_and_summed_up(tmp_path: Path) -> None:
    given = tensors()
    (tmp_path / "in").mkdir()
    save_file({k: v for k, v in given.items() if "1" not in k}, tmp_path / "in" / "a.safetensors")
    save_file({k: v for k, v in given.items() if "1" in k}, tmp_path / "in" / "b.safetensors")
    stored = convert(tmp_path / "in", tmp_path / "out")
    assert set(stored) == set(given)
    for file in ("a", "b"):
        reader = Reader(tmp_path / "out" / f"{file}.safetensors")
        for name in reader.stored:
            loaded = reader.load(name)
            loaded = unpack(loaded) if isinstance(loaded, PackedMatrix) else loaded
            assert torch.equal(loaded.view(-1).view(torch.uint8), given[name].view(-1).view(torch.uint8))
    by_name = {report.name: report for report in classes(stored)}
    up = by_name["model.layers.up.weight"]
    assert (up.tensors, up.packed) == (2, 2)
    assert 12 < up.bits < 16
    assert by_name["model.norm.weight"].bits == 16


def test_one_file_is_converted_or_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"holds no \*\.safetensors"):
        convert(tmp_path, tmp_path / "out")
    (tmp_path / "x.safetensors").write_bytes(b"none")
    with pytest.raises(EngineError, match="no readable safetensors"):
        convert(tmp_path / "x.safetensors", tmp_path / "y.safetensors")
    save_file(tensors(), tmp_path / "x.safetensors")
    convert(tmp_path / "x.safetensors", tmp_path / "y.safetensors")
    assert len(Reader(tmp_path / "y.safetensors").stored) == len(tensors())
