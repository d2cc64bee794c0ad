"""Run-time compilation: the cache and its errors anywhere, real compilation where NVRTC is there."""

import ctypes
from pathlib import Path

import pytest

from kernels import nvrtc
from kernels.skinny import Variant, defines, source
from space.errors import EngineError


def nvrtc_is_there() -> bool:
    try:
        nvrtc._nvrtc()
    except EngineError:
        return False
    return True


needs_nvrtc = pytest.mark.skipif(not nvrtc_is_there(), reason="needs NVRTC, which comes with a CUDA build of torch")


class FakeCompiler:
    """Counts compilations and answers with fixed bytes."""

    compiled = 0

    def nvrtcVersion(self, major: object, minor: object) -> int:  # noqa: N802
        return 0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCompiler:
    compiler = FakeCompiler()

    def compile_once(rtc: FakeCompiler, text: str, options: list[str]) -> bytes:
        rtc.compiled += 1
        return f"{text} {options}".encode()

    monkeypatch.setattr(nvrtc, "_nvrtc", lambda: compiler)
    monkeypatch.setattr(nvrtc, "_compile", compile_once)
    monkeypatch.setenv("SPECPILOT_KERNEL_CACHE", str(tmp_path))
    return compiler


def test_a_kernel_is_compiled_once(fake: FakeCompiler, tmp_path: Path) -> None:
    first = nvrtc.compile_source("a", "sm_90a", {"N": 1})
    assert nvrtc.compile_source("a", "sm_90a", {"N": 1}) == first
    assert fake.compiled == 1
    others = {
        nvrtc.compile_source("b", "sm_90a", {"N": 1}),
        nvrtc.compile_source("a", "sm_89", {"N": 1}),
        nvrtc.compile_source("a", "sm_90a", {"N": 2}),
    }
    assert len(others | {first}) == 4
    assert len(list(tmp_path.iterdir())) == 4


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPECPILOT_KERNEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert nvrtc.cache_folder() == tmp_path / "specpilot" / "kernels"


@pytest.mark.skipif(nvrtc_is_there(), reason="needs a machine without NVRTC")
def test_a_missing_compiler_is_named() -> None:
    with pytest.raises(EngineError, match="libnvrtc was not found"):
        nvrtc.compile_source("", "sm_90a", {})


def test_launch_structures_have_the_drivers_sizes() -> None:
    assert ctypes.sizeof(nvrtc._LaunchAttribute) == 72
    assert ctypes.sizeof(nvrtc._LaunchConfig) == 56


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_89", "sm_90a"])
@pytest.mark.parametrize("token_tiles", [1, 2, 4, 8])
@pytest.mark.parametrize("packed", [True, False])
def test_kernels_compile(
    arch: str, token_tiles: int, packed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPECPILOT_KERNEL_CACHE", str(tmp_path))
    hopper = arch == "sm_90a"
    for wide, cluster in [(False, 1)] + [(True, 1), (True, 4)] * hopper:
        variant = Variant(
            wide=wide,
            packed=packed,
            token_tiles=token_tiles,
            warps=8,
            stages=4,
            slices=cluster,
            overlap=hopper,
            cluster=cluster,
        )
        assert nvrtc.compile_source(source(wide), arch, defines(variant, float_out=False, argmax=True))


@needs_nvrtc
def test_a_refused_source_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECPILOT_KERNEL_CACHE", str(tmp_path))
    with pytest.raises(EngineError, match="does not compile.*error"):
        nvrtc.compile_source("not C++", "sm_90a", {})
