"""CUDA C++ kernels without a CUDA toolkit: compiled by the NVRTC that torch ships, launched through the driver.

Triton would be the first choice, but it gives no say over which thread holds which element of an operand; the skinny
products need that.
"""

import contextlib
import ctypes
import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

from space.errors import EngineError

_MAX_SHARED_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CLUSTER_ATTRIBUTE = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_OVERLAP_ATTRIBUTE = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

Argument = torch.Tensor | int | None


class _LaunchAttribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16)]


class _LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("count", ctypes.c_uint),
    ]


def cache_folder() -> Path:
    """Where compiled kernels are kept: SPECPILOT_KERNEL_CACHE, or a folder in the user's cache."""
    chosen = os.environ.get("SPECPILOT_KERNEL_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specpilot" / "kernels"


@cache
def _nvrtc() -> ctypes.CDLL:
    site = Path(torch.__file__).parent.parent
    for path in sorted(site.glob("nvidia/*/lib/libnvrtc.so.*")):
        for part in sorted(path.parent.glob("libnvrtc-builtins.so.*")):
            ctypes.CDLL(str(part))  # NVRTC asks for it by name, and its own folder is not searched
        return ctypes.CDLL(str(path))
    for name in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise EngineError(
        "libnvrtc was not found: the GPU kernels are compiled at first use by the NVRTC of a CUDA build of torch; "
        "install one, or choose weight_format=bf16"
    )


def compile_source(source: str, arch: str, defines: Mapping[str, int]) -> bytes:
    """Compiles CUDA C++ to a cubin, or takes it from the cache.

    Args:
        source: The program.
        arch: Target such as `sm_90a`.
        defines: Macros of this variant.

    Raises:
        EngineError: NVRTC is missing or refuses the source; the message holds its first complaint.
    """
    rtc = _nvrtc()
    version = (ctypes.c_int(), ctypes.c_int())
    rtc.nvrtcVersion(ctypes.byref(version[0]), ctypes.byref(version[1]))
    options = [f"--gpu-architecture={arch}", "--std=c++17", *(f"-D{k}={v}" for k, v in sorted(defines.items()))]
    key = hashlib.sha256("\0".join([source, *options, f"{version[0].value}.{version[1].value}"]).encode()).hexdigest()
    path = cache_folder() / f"{key}.cubin"
    if path.is_file():
        return path.read_bytes()
    cubin = _compile(rtc, source, options)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(cubin)
    Path(file.name).replace(path)
    return cubin


def _compile(rtc: ctypes.CDLL, source: str, options: Sequence[str]) -> bytes:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    rtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    flags = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = rtc.nvrtcCompileProgram(program, len(options), flags)
    try:
        if failed:
            rtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            rtc.nvrtcGetProgramLog(program, log)
            lines = [line for line in log.value.decode(errors="replace").splitlines() if "error" in line]
            raise EngineError(f"a GPU kernel does not compile ({' '.join(options)}): {(lines or ['no message'])[0]}")
        rtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        rtc.nvrtcGetCUBIN(program, cubin)
        return cubin.raw
    finally:
        rtc.nvrtcDestroyProgram(ctypes.byref(program))


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(code: int, what: str) -> None:
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise EngineError(f"the CUDA driver refused to {what}: {(text.value or b'unknown error').decode()} ({code})")


class Kernel:
    """One compiled function on the current device."""

    def __init__(self, cubin: bytes, name: str, *, block: int, shared: int = 0, cluster: int = 1) -> None:
        """Loads a function.

        Args:
            cubin: What `compile_source` returned.
            name: The function.
            block: Threads a block.
            shared: Dynamic shared memory a block, in bytes.
            cluster: Blocks in a cluster.
        """
        torch.cuda.current_stream()  # makes torch's context the current one
        self.name, self.block, self.shared, self.cluster = name, block, shared, cluster
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(_driver().cuModuleLoadData(ctypes.byref(self._module), cubin), f"load {name}")
        _check(_driver().cuModuleGetFunction(ctypes.byref(self._function), self._module, name.encode()), f"find {name}")
        _check(
            _driver().cuFuncSetAttribute(self._function, _MAX_SHARED_ATTRIBUTE, shared), f"give {name} {shared} bytes"
        )

    def resident_clusters(self) -> int:
        """How many clusters run at the same time on the whole GPU."""
        count = ctypes.c_int()
        config = self._config(self.cluster, overlap=False, stream=0)
        code = _driver().cuOccupancyMaxActiveClusters(ctypes.byref(count), self._function, ctypes.byref(config))
        _check(code, f"count the clusters of {self.name}")
        return count.value

    def launch(self, grid: int, arguments: Sequence[Argument], *, overlap: bool) -> None:
        """Queues the kernel on torch's current stream.

        Args:
            grid: Thread blocks.
            arguments: Tensors (passed as addresses), 32-bit integers, or None for a null pointer.
            overlap: The kernel may start before the one ahead of it has ended, and itself waits for its results.
        """
        values = [
            ctypes.c_int(a) if isinstance(a, int) else ctypes.c_void_p(None if a is None else a.data_ptr())
            for a in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        config = self._config(grid, overlap=overlap, stream=torch.cuda.current_stream().cuda_stream)
        code = _driver().cuLaunchKernelEx(ctypes.byref(config), self._function, pointers, None)
        _check(code, f"launch {self.name}")

    def _config(self, grid: int, *, overlap: bool, stream: int) -> _LaunchConfig:
        wanted = []
        if self.cluster > 1:
            wanted.append(_LaunchAttribute(id=_CLUSTER_ATTRIBUTE, value=(self.cluster, 1, 1)))
        if overlap:
            wanted.append(_LaunchAttribute(id=_OVERLAP_ATTRIBUTE, value=(1,)))
        return _LaunchConfig(
            grid=(grid, 1, 1),
            block=(self.block, 1, 1),
            shared=self.shared,
            stream=stream,
            attributes=(_LaunchAttribute * 2)(*wanted),
            count=len(wanted),
        )
