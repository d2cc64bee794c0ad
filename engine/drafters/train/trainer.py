"""The training loop: batches of anchors, Muon for matrices and AdamW for the rest, a cosine over steps or seconds."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import structlog
import torch
from torch import Tensor, nn

from engine.drafters.dflash import DFlash
from engine.drafters.dflash_files import save_drafter
from engine.drafters.train.corpus import Tapped
from engine.drafters.train.muon import Matrix, Muon
from engine.drafters.train.objective import NOT_DRAFTED, judge, objective
from engine.drafters.train.options import TrainOptions
from engine.drafters.train.target import Target

_LOOKS = 15  # times a run measures held-out acceptance and saves itself
_LOG_EVERY = 50
_log = structlog.get_logger()


def new_drafter(options: TrainOptions, target: Target, tap_scale: Tensor, drafted: Tensor) -> DFlash:
    """A drafter before training: branches add nothing yet, and every tap channel weighs alike whatever its size.

    `drafted`: token ids of the draft vocabulary, most frequent first; read only if the options ask for one.
    """
    model = DFlash(options.drafter(target.config))
    if model.d2t is not None:
        model.d2t.copy_(drafted.cpu() - torch.arange(len(drafted)))
    generator = torch.Generator().manual_seed(options.seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.normal_(0, weight.shape[1] ** -0.5, generator=generator)
                if name.endswith(("o_proj.weight", "down_proj.weight", "out_proj.weight")):
                    weight.zero_()
        model.norm.weight.copy_(target.norm)
        model.fc.weight.div_(tap_scale.cpu())
        size = target.embedding.float().square().mean().sqrt().item()
        model.mask_embedding.normal_(0, size, generator=generator)
        if model.markov_head is not None:
            model.markov_head.in_proj.weight.div_(_head_scale(target).cpu())
    return model.to(target.device)


def _head_scale(target: Target) -> Tensor:
    """Typical sizes of the Markov head's inputs: a final hidden state and a token's embedding, [2 * hidden]."""
    token = target.embedding.float().square().mean(0).sqrt()
    return torch.cat((target.norm.float().abs(), token)).clamp(min=1e-6)


class Trainer:
    """One run: starts where the folder's last checkpoint stands, and trains on one chunk of text after the other.

    `held` is text kept from training; no text is longer than `width`, a multiple of 8; `drafted` are the token ids
    of the draft vocabulary.
    """

    def __init__(
        self, options: TrainOptions, target: Target, held: Tapped, width: int, drafted: Tensor, folder: Path
    ) -> None:
        self._options, self._target, self._folder, self._width = options, target, folder, width
        self._held = held
        device = target.device
        self._random = torch.Generator(device).manual_seed(options.seed)
        held_random = torch.Generator(device).manual_seed(options.seed + 1)
        self._held_anchors = held.draw(len(held.corpus), options.anchors, held_random)
        tap_scale = held.scale(held_random)
        self.model = new_drafter(options, target, tap_scale, drafted)
        scales = {"fc.weight": tap_scale, "markov_head.in_proj.weight": _head_scale(target)}
        ids = self.model.draft_ids()
        self._head = target.head if ids is None else target.head[ids]
        self._row = torch.arange(len(target.head), device=device)
        if ids is not None:
            self._row = torch.full_like(self._row, NOT_DRAFTED).index_copy_(
                0, ids, torch.arange(len(ids), device=device)
            )
        named = list(self.model.named_parameters())
        self._muon = Muon([Matrix(p, scales.get(name)) for name, p in named if p.dim() == 2])
        rest = [p for _, p in named if p.dim() != 2]
        self._adam = torch.optim.AdamW(rest, lr=options.adam_rate, betas=(0.9, 0.95), weight_decay=0.0)
        self.step, self.elapsed, self._looks = 0, 0.0, 0
        # Compiling costs half a minute and pays only on a GPU.
        self._objective: Callable[..., Tensor] = torch.compile(objective) if device.type == "cuda" else objective
        self._losses: list[Tensor] = []
        if (folder / "state.pt").exists():
            self._load()

    @property
    def progress(self) -> float:
        """How much of the budget is used, 0 to 1."""
        options = self._options
        used = self.step / options.steps if options.steps else self.elapsed / options.seconds
        return min(1.0, used)

    def train(self, text: Tapped, stop_at: float = 1.0) -> None:
        """Trains on a text until `progress` reaches stop_at, measuring and saving on the way."""
        if self.progress >= stop_at:
            return
        before = self._random.get_state()
        self._backward(text)  # compiles; the clock starts after it, and the batch is drawn again
        self._clear()
        self._random.set_state(before)
        start = time.monotonic() - self.elapsed
        while self.progress < stop_at:
            self._losses.append(self._backward(text))
            self._update()
            self.step += 1
            if self.step % _LOG_EVERY == 0:
                self._write(loss=torch.stack(self._losses).mean().item())
                self._losses.clear()
            self.elapsed = time.monotonic() - start
            if self.progress * _LOOKS >= self._looks + 1:
                self._looks += 1
                self._look()
                self.save()
                self.elapsed = time.monotonic() - start
        self.save()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._target.device.type, torch.bfloat16)

    def _backward(self, text: Tapped) -> Tensor:
        options = self._options
        rows, anchors = text.draw(options.texts, options.anchors, self._random)
        batch = text.batch(rows, anchors, options.block, self._width)
        headed = torch.rand(batch.labels.shape, generator=self._random, device=anchors.device) >= options.head_dropout
        target = self._target
        with self._autocast():
            labels = self._row[batch.labels]
            shown = headed.to(target.embedding.dtype)
            loss = self._objective(self.model, target.embedding, self._head, batch, labels, shown)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _rate(self) -> float:
        warm, at = self._options.warm_up, self.progress
        if at < warm:
            return at / warm
        return 0.5 * (1 + math.cos(math.pi * (at - warm) / (1 - warm)))

    def _update(self) -> None:
        rate = self._rate()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._muon.step(self._options.muon_rate * rate)
        for group in self._adam.param_groups:
            group["lr"] = self._options.adam_rate * rate
        self._adam.step()
        self._clear()

    def _clear(self) -> None:
        for p in self.model.parameters():
            p.grad = None

    @torch.no_grad()
    def _look(self) -> None:
        tapped = self._held
        total = hits = labels = 0.0
        for some, at in zip(*(torch.split(part, self._options.texts) for part in self._held_anchors), strict=True):
            batch = tapped.batch(some, at, self._options.block, self._width)
            with self._autocast():
                judged = judge(self.model, self._target.embedding, self._target.head, batch)
            total += float(judged.accepted.sum())
            hits += float(judged.hits[0, 0])
            labels += float(judged.labels[0])
        self._write(held_tau=1 + total / self._held_anchors[1].numel(), held_first=hits / labels)

    def _write(self, **values: float) -> None:
        record = {"step": self.step, "seconds": round(self.elapsed, 2), "rate": self._rate(), **values}
        with (self._folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        _log.info("training", **record)

    def save(self) -> None:
        """Writes the drafter (config.json, model.safetensors) and what a resumed run needs (state.pt)."""
        save_drafter(self.model, self._folder)
        state = {
            "model": self.model.state_dict(),
            "muon": self._muon.buffers,
            "adam": self._adam.state_dict(),
            "random": self._random.get_state(),
            "counts": [self.step, self._looks, self.elapsed],
        }
        fresh = self._folder / "state.pt.new"
        torch.save(state, fresh)
        fresh.replace(self._folder / "state.pt")  # a run stopped while writing keeps the older state

    def _load(self) -> None:
        state = torch.load(self._folder / "state.pt", map_location=self._target.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        for buffer, saved in zip(self._muon.buffers, state["muon"], strict=True):
            buffer.copy_(saved)
        self._adam.load_state_dict(state["adam"])
        self._random.set_state(state["random"].cpu())
        self.step, self._looks, self.elapsed = int(state["counts"][0]), int(state["counts"][1]), state["counts"][2]
        _log.info("resumed", step=self.step, seconds=round(self.elapsed, 1))
