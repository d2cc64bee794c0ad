"""A DFlash drafter at the speed of the memory bus: fused layers, context written in place, its head as two tables.

Same drafts as `engine.drafters.dflash.DFlash`, its reference, up to bf16 rounding. The tied head
`E (h + B silu(A [h ; E[previous]]))` costs two matrix products a token as it stands. With `E B` (a row for each token
that may be drafted) and `A_e E` (a row for each token that may stand before) it costs two rows and a dot product.
"""

from dataclasses import MISSING, fields, replace

import torch
from torch import Tensor
from torch.nn import functional

from engine.base import Lattice
from engine.cache import KVCache
from engine.drafters.dflash import DFlash
from engine.drafters.dflash_body import DFlashConfig, DraftLayer, DraftTables
from engine.drafters.lattice import best_first, pair_lattice, row_lattice
from engine.models.config import LlamaConfig
from engine.models.linear import Linear
from engine.models.llama import Llama, LlamaLayer, rotate
from engine.weights.checkpoint import interleave
from space.errors import EngineError


def _layer(layer: DraftLayer, heads: int, kv_heads: int, dim: int) -> LlamaLayer:
    attention, mlp = layer.self_attn, layer.mlp
    q, k = (interleave(part.weight, dim) for part in (attention.q_proj, attention.k_proj))
    norms = [(attention.q_norm.weight, heads), (attention.k_norm.weight, kv_heads)]
    halves = torch.cat([weight.float().expand(count, dim) for weight, count in norms])
    return LlamaLayer(
        attention_norm=layer.input_layernorm.weight,
        qkv=Linear(torch.cat((q, k, attention.v_proj.weight))),
        out=Linear(attention.o_proj.weight),
        ffn_norm=layer.post_attention_layernorm.weight,
        gate_up=Linear(torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight))),
        down=Linear(mlp.down_proj.weight),
        head_norm=halves.view(-1, 2, dim // 2).transpose(1, 2).flatten(1),
    )


def packable(config: DFlashConfig) -> bool:
    """Whether a drafter is of the common shape that this layout is for; others run as their reference does."""
    usual = DFlashConfig(
        **{field.name: getattr(config, field.name) for field in fields(config) if field.default is MISSING}
    )
    shape = ("block_size", "rms_norm_eps", "rope_theta", "markov_rank", "draft_vocab_size", "mask_token_id")
    return replace(usual, **{name: getattr(config, name) for name in shape}) == config


class PackedDFlash:
    """The weights of one drafter for one target, laid out for drafting; shared by all requests."""

    @torch.inference_mode()
    def __init__(self, model: DFlash, tables: DraftTables, target: Llama) -> None:
        """Takes a loaded drafter that fits `target` and is `packable`, and the tables that it reads and writes with."""
        config = model.config
        self.config = config
        self._tables = tables
        shape = LlamaConfig(
            hidden=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            ffn=config.intermediate_size,
            vocab=len(tables.embedding),
            rope_theta=config.rope_theta,
            norm_eps=config.rms_norm_eps,
            tied=False,
            max_position=target.config.max_position + config.block_size,
            stop_ids=(),
        )
        sizes = (shape.heads, shape.kv_heads, shape.head_dim)
        layers = [_layer(layer, *sizes) for layer in model.stack]
        self._heads = {0: Linear(tables.head)}
        self.body = Llama(shape, tables.embedding, layers, model.norm.weight, self._heads[0])
        self._fc = Linear(model.fc.weight)
        self._context_norm = model.hidden_norm.weight
        rotated = shape.heads * shape.head_dim
        self._context = Linear(torch.cat([layer.qkv.weight[rotated:] for layer in layers]))
        self._key_norm = torch.cat([layer.head_norm[shape.heads :] for layer in layers if layer.head_norm is not None])
        self._mask = model.mask_embedding
        self._markov = None
        if model.markov_head is not None:
            own, before = model.markov_head.in_proj.weight.chunk(2, 1)
            self._markov = Linear(own.contiguous())
            self._before = functional.linear(tables.embedding, before)
            self._after = functional.linear(tables.head, model.markov_head.out_proj.weight.T.contiguous())

    def use(self, linear_path: str, vocabulary: int) -> None:
        """Chooses the weight layout, and how many tokens of the draft vocabulary may be drafted (0: all)."""
        if vocabulary not in self._heads:
            self._heads[vocabulary] = Linear(self._tables.head[:vocabulary].contiguous())
        self.body.head = self._heads[vocabulary]
        self.body.use(linear_path)
        for linear in (self._fc, self._context, self._markov):
            if linear is not None:
                linear.use(linear_path)

    def cache(self) -> KVCache:
        """An empty context for one request."""
        return KVCache(self.body.config, self.body.config.max_position)

    def inject(self, taps: Tensor, cache: KVCache) -> None:
        """Appends the context of newly committed positions, from taps [rows, taps * hidden] bf16."""
        rows, config = taps.shape[0], self.body.config
        cache.reserve(rows)
        hidden = functional.rms_norm(self._fc(taps), (config.hidden,), self._context_norm, config.norm_eps)
        both = self._context(hidden).view(rows, config.layers, 2, config.kv_heads, config.head_dim)
        positions = torch.arange(cache.length, cache.length + rows)
        rotation = self.body.rotation(positions)[:, config.heads :].repeat(1, config.layers, 1)
        keys = rotate(both[:, :, 0].flatten(1, 2), rotation, self._key_norm, config.norm_eps)
        cache.write_all(keys.view(rows, config.layers, config.kv_heads, config.head_dim), both[:, :, 1])
        cache.commit(list(range(rows)))

    def hidden(self, anchor: int, limit: int, cache: KVCache, ahead: int = 0) -> Tensor:
        """Final hidden states [limit, hidden] of the mask rows behind `anchor`, `ahead` positions after the context."""
        block = self.config.block_size
        rows = torch.cat((self._tables.embedding[anchor][None], self._mask.expand(block - 1, -1)))
        start = cache.length + ahead
        positions = torch.arange(start, start + block)
        everything = torch.ones(block, block, dtype=torch.bool)
        return self.body.body(rows, positions, cache, everything)[0][1 : limit + 1]

    def chain(self, hidden: Tensor, anchor: int, candidates: int | None) -> list[int]:
        """Greedy drafts for mask rows [K, hidden], left to right.

        The head rescores the `candidates` best tokens of a position (0: all); None leaves it out.
        """
        scores = self.body.logits(hidden)
        if self._markov is None or candidates is None:
            return self._tables.tokens(scores.argmax(-1)).tolist()
        best = scores.topk(min(candidates or scores.shape[1], scores.shape[1]))
        own, after, ids = self._markov(hidden), self._after[best.indices], self._tables.tokens(best.indices)
        drafted, previous = [], anchor
        for k in range(len(hidden)):
            shift = functional.silu(own[k] + self._before[previous])
            previous = int(ids[k, (best.values[k] + torch.mv(after[k], shift)).argmax()])
            drafted.append(previous)
        return drafted

    def lattice(self, hidden: Tensor, anchor: int, width: int, candidates: int | None) -> Lattice:
        """The best tokens of each mask row [K, hidden], as `DFlash.lattice` gives them."""
        scores = self.body.logits(hidden)
        if self._markov is None or candidates is None:
            rows = best_first(scores, width)
            return row_lattice(rows, scores, self._tables.tokens(rows), width)
        rows = best_first(scores, candidates or scores.shape[1])
        own, after, unary = self._markov(hidden), self._after[rows], scores.gather(-1, rows)

        def corrected(position: int, before: Tensor, _: Tensor) -> Tensor:
            shift = functional.silu(own[position] + self._before[before])
            return unary[position] + (shift @ after[position].T).float()

        return pair_lattice(self._tables.tokens(rows), torch.tensor([anchor]), corrected, width)


class PackedSession:
    """One request's drafting with a PackedDFlash; the context's room grows with the request."""

    def __init__(self, model: PackedDFlash) -> None:
        """Starts without context."""
        self._model = model
        self._cache = model.cache()

    @torch.inference_mode()
    def extend(self, taps: Tensor) -> None:
        """Injects taps [rows, taps * hidden] of newly committed positions; the context never holds a rejected one."""
        self._model.inject(taps, self._cache)

    @torch.inference_mode()
    def propose(self, anchor: int, limit: int, candidates: int | None) -> list[int]:
        """Drafts at most `limit` tokens after `anchor`, the committed token behind the context."""
        return self._model.chain(self._hidden(anchor, limit), anchor, candidates)

    @torch.inference_mode()
    def lattice(self, anchor: int, limit: int, width: int, candidates: int | None, ahead: int = 0) -> Lattice:
        """Scores at most `limit` positions after `anchor`, which stands `ahead` positions behind the committed text."""
        return self._model.lattice(self._hidden(anchor, limit, ahead), anchor, width, candidates)

    def _hidden(self, anchor: int, limit: int, ahead: int = 0) -> Tensor:
        if not self._cache.length:
            raise EngineError("the drafter has no context: extend it with the prompt's taps before it proposes")
        return self._model.hidden(anchor, limit, self._cache, ahead)
