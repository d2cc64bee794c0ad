"""Compiles a CUDA kernel of this project for the CPU (`cuda_emulator.h`) and runs it on torch tensors."""

import ctypes
import hashlib
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

COMPILER = shutil.which("g++")
_COPIES = ["shared_address", "copy16", "stream16", "stream_policy", "copy_commit", "copy_wait", "read16"]
_ARITHMETIC = ["mma", "wgmma", "pin", "select_bits", "scale_pair", "to_bf16"]
_REPLACED = [*_COPIES, *_ARITHMETIC, "cluster_arrive", "cluster_wait", "send"]


def _without_function(source: str, name: str) -> str:
    """Removes the definition of a device function."""
    found = re.search(rf"(template <int N> )?__device__ __forceinline__ [\w ]+ {name}\([^)]*\) \{{", source)
    if found is None:
        return source
    end, depth = found.end(), 1
    while depth:
        depth += {"{": 1, "}": -1}.get(source[end], 0)
        end += 1
    return source[: found.start()] + source[end:]


def translate(source: str) -> str:
    """CUDA to C++: PTX helpers come from the header, other PTX (fences) is dropped."""
    for name in _REPLACED:
        source = _without_function(source, name)
    source = re.sub(r"#define \w+\([^)]*\)\s*\\\n(.*\\\n)*.*\n", "", source)  # macros over several lines hold PTX
    source = re.sub(r"asm volatile\(.*?\);", ";", source, flags=re.DOTALL)
    source = re.sub(
        r"extern __shared__ (__align__\(\d+\) )?uint4 shared\[\];", "uint4* shared = now->block->shared;", source
    )
    return source.replace("#pragma unroll", "//")


class Emulated:
    """The kernels of one source with one set of macros."""

    def __init__(self, source: str, macros: Mapping[str, int], folder: Path) -> None:
        header = Path(__file__).with_name("cuda_emulator.h")
        lines = [*(f"#define {k} {v}" for k, v in macros.items()), f'#include "{header}"', translate(source)]
        text = "\n".join(lines)
        for name in re.findall(r'extern "C"\s+__global__ void __launch_bounds__\([^\n]*\)\s*(\w+)\(', source):
            parameters = re.search(rf"\b{name}\((.*?)\) \{{", source, flags=re.DOTALL)
            assert parameters is not None
            names = re.findall(r"(\w+)(?:,|$)", parameters.group(1).replace("\n", " "))
            typed = parameters.group(1).replace("__restrict__", "")
            text += f'\nextern "C" void run_{name}(int blocks_, int cluster_, int threads_, int bytes_, {typed}) {{'
            text += f"launch(blocks_, cluster_, threads_, bytes_, [=] {{ {name}({', '.join(names)}); }}); }}"
        stem = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
        stem.with_suffix(".cpp").write_text(text)
        command = [str(COMPILER), "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-o", f"{stem}.so", f"{stem}.cpp"]
        subprocess.run(command, check=True)
        self._library = ctypes.CDLL(f"{stem}.so")

    def run(self, name: str, shape: tuple[int, int, int, int], arguments: Sequence[torch.Tensor | int | None]) -> None:
        """Runs a kernel: `shape` is blocks, blocks in a cluster, threads in a block, bytes of shared memory."""
        values = [
            ctypes.c_int(a) if isinstance(a, int) else ctypes.c_void_p(None if a is None else a.data_ptr())
            for a in arguments
        ]
        getattr(self._library, f"run_{name}")(*(ctypes.c_int(n) for n in shape), *values)
