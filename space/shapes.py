"""Model shapes by name: what a step must read and multiply. Parameters are counted from the shape, not looked up.

Sources are the public config.json files of the models and drafters. Norms, biases and convolutions are left out: all
of them together are under 0.1 % of the bytes of a step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from space.errors import InputError, nearest

BF16 = 2
FP32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """Gated DeltaNet layers that stand in for attention in a hybrid model; each keeps a matrix state a value head."""

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    def parameters(self, hidden: int) -> int:
        """Matrix parameters of one layer: projections of q, k, v, the gate z, the scalars a and b, and the output."""
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        return hidden * (2 * keys + 2 * values + 2 * self.value_heads) + values * hidden

    @property
    def state_bytes(self) -> int:
        """fp32 state of one request over all these layers."""
        return self.layers * self.value_heads * self.key_dim * self.value_dim * FP32


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder: `layers` counts all layers, of which `recurrent.layers` have no attention.

    `gated` models project an output gate beside the queries. `source` is where the shape is written down.
    """

    name: str
    source: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool = False
    gated: bool = False
    recurrent: Recurrent | None = None

    @property
    def attention_layers(self) -> int:
        """Layers that keep keys and values."""
        return self.layers - (self.recurrent.layers if self.recurrent else 0)

    @property
    def body_parameters(self) -> int:
        """Matrix parameters of all layers: read once a step, multiplied once a row."""
        queries = self.heads * self.head_dim * (2 if self.gated else 1)
        attention = (
            self.hidden * (queries + 2 * self.kv_heads * self.head_dim) + self.heads * self.head_dim * self.hidden
        )
        recurrent = self.recurrent.layers * self.recurrent.parameters(self.hidden) if self.recurrent else 0
        return self.attention_layers * attention + recurrent + self.layers * 3 * self.hidden * self.ffn

    @property
    def head_parameters(self) -> int:
        """The output table: read once a step even where it is the input table (tied)."""
        return self.hidden * self.vocab

    @property
    def parameters(self) -> int:
        """All matrix parameters, the input table included."""
        return self.body_parameters + self.head_parameters * (1 if self.tied else 2)

    @property
    def kv_bytes_per_token(self) -> int:
        """bf16 keys and values that one token adds."""
        return self.attention_layers * 2 * self.kv_heads * self.head_dim * BF16

    @property
    def state_bytes(self) -> int:
        """Recurrent state of one request; 0 without recurrent layers."""
        return self.recurrent.state_bytes if self.recurrent else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterShape:
    """A DFlash drafter: a few layers over `taps` tapped target layers; input and output tables are the target's.

    `block` rows are denoised at once, so it drafts at most block - 1 tokens. `markov_rank` 0 means no Markov head.
    """

    name: str
    source: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    taps: int
    block: int
    markov_rank: int = 0

    @property
    def longest(self) -> int:
        """Most tokens that one pass drafts."""
        return self.block - 1

    @property
    def layer_parameters(self) -> int:
        """Matrix parameters of all layers."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.ffn)

    @property
    def injection_parameters(self) -> int:
        """Multiplied once a committed token: the projection of the taps. Keys and values are the layers' own."""
        return self.taps * self.hidden * self.hidden

    @property
    def markov_parameters(self) -> int:
        """The tied Markov head, multiplied once a drafted token."""
        return 3 * self.hidden * self.markov_rank

    @property
    def parameters(self) -> int:
        """All matrix parameters of the checkpoint."""
        return self.layer_parameters + self.injection_parameters + self.markov_parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """bf16 keys and values that one committed token adds."""
        return self.layers * 2 * self.kv_heads * self.head_dim * BF16


_LLAMA_8B = ModelShape(
    name="llama-3.1-8b",
    source="config.json of meta-llama/Llama-3.1-8B-Instruct",
    hidden=4096,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn=14336,
    vocab=128256,
)
_QWEN3_8B = ModelShape(
    name="qwen3-8b",
    source="config.json of Qwen/Qwen3-8B",
    hidden=4096,
    layers=36,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn=12288,
    vocab=151936,
)

_MODELS = (
    _LLAMA_8B,
    _QWEN3_8B,
    replace(_QWEN3_8B, name="qwen3-4b", source="config.json of Qwen/Qwen3-4B", hidden=2560, ffn=9728, tied=True),
    ModelShape(
        name="qwen3.5-9b",
        source="text_config of Qwen/Qwen3.5-9B (the defaults of transformers' Qwen3_5TextConfig)",
        hidden=4096,
        layers=32,
        heads=16,
        kv_heads=4,
        head_dim=256,
        ffn=12288,
        vocab=248320,
        gated=True,
        recurrent=Recurrent(layers=24, key_heads=16, value_heads=32, key_dim=128, value_dim=128),
    ),
    ModelShape(
        name="smollm2-135m",
        source="config.json of HuggingFaceTB/SmolLM2-135M-Instruct",
        hidden=576,
        layers=30,
        heads=9,
        kv_heads=3,
        head_dim=64,
        ffn=1536,
        vocab=49152,
        tied=True,
    ),
    replace(
        _LLAMA_8B,
        name="smollm2-8b",
        source="SmolLM2-135M-Instruct widened to the bytes of Llama-3.1-8B: 64 query and 16 KV heads of 64",
        heads=64,
        kv_heads=16,
        head_dim=64,
    ),
)

_DFLASH_8B = DrafterShape(
    name="dflash-qwen3-8b",
    source="config.json of z-lab/Qwen3-8B-DFlash-b16",
    hidden=4096,
    layers=5,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn=12288,
    taps=5,
    block=16,
)
_BUNDLED = DrafterShape(
    name="dflash-smollm2-135m",
    source="engine/drafters/bundled/smollm2-135m-dflash/config.json",
    hidden=576,
    layers=4,
    heads=9,
    kv_heads=3,
    head_dim=64,
    ffn=1536,
    taps=5,
    block=8,
    markov_rank=256,
)

_DRAFTERS = (
    _DFLASH_8B,
    replace(
        _DFLASH_8B, name="dflash-qwen3-4b", source="config.json of z-lab/Qwen3-4B-DFlash-b16", hidden=2560, ffn=9728
    ),
    replace(_DFLASH_8B, name="dflash-qwen3.5-9b", source="model card of z-lab/Qwen3.5-9B-DFlash and its derivatives"),
    replace(
        _DFLASH_8B,
        name="dflash-llama-3.1-8b",
        source="z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat: its 1.95 GiB are this shape; block 10 as measured in vLLM",
        block=10,
    ),
    _BUNDLED,
    replace(
        _BUNDLED,
        name="dflash-smollm2-8b",
        source="the bundled drafter widened like its target",
        hidden=4096,
        heads=64,
        kv_heads=16,
        ffn=14336,
    ),
)

MODELS: Mapping[str, ModelShape] = {shape.name: shape for shape in _MODELS}
DRAFTERS: Mapping[str, DrafterShape] = {shape.name: shape for shape in _DRAFTERS}


def find_model(name: str) -> ModelShape:
    """The model shape of that name; InputError offers the nearest one."""
    if name not in MODELS:
        raise InputError(f"unknown model shape {name!r}{nearest(name, MODELS)}\nKnown: {', '.join(MODELS)}")
    return MODELS[name]


def find_drafter(name: str) -> DrafterShape:
    """The drafter shape of that name; InputError offers the nearest one."""
    if name not in DRAFTERS:
        raise InputError(f"unknown drafter shape {name!r}{nearest(name, DRAFTERS)}\nKnown: {', '.join(DRAFTERS)}")
    return DRAFTERS[name]
