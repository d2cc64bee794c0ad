"""What a training run is asked to do; two runs with equal options and device train on equal text."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from engine.drafters.dflash import DFlashConfig
from engine.drafters.train.target import TargetConfig
from space.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """Options of a run, checked. `steps` 0 means: train for `seconds`; the learning rate follows whichever is given."""

    seed: int = 0
    chunks: int = 8
    prompts: int = 33_000
    turn_tokens: int = 80
    answer_tokens: int = 192
    slots: int = 4096
    held: int = 256
    layers: int = 4
    taps: tuple[int, ...] = (1, 8, 14, 20, 27)
    block: int = 8
    markov_rank: int = 256
    head_dropout: float = 0.1
    draft_vocabulary: int = 16_384
    texts: int = 128
    anchors: int = 32
    muon_rate: float = 2e-3
    adam_rate: float = 1e-3
    warm_up: float = 0.03
    steps: int = 0
    seconds: float = 264.0

    def __post_init__(self) -> None:
        whole = ("seed", "markov_rank", "draft_vocabulary", "steps")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value < (0 if field.name in whole else 1):
                flag = "--" + field.name.replace("_", "-")
                raise InputError(f"{flag} {value} must be {'0 or more' if field.name in whole else '1 or more'}")
        for name in ("head_dropout", "warm_up"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"--{name.replace('_', '-')} {getattr(self, name)} must be at least 0 and below 1")
        for name in ("muon_rate", "adam_rate", "seconds"):
            if not getattr(self, name) > 0:
                raise InputError(f"--{name.replace('_', '-')} {getattr(self, name)} must be above 0")

    def drafter(self, target: TargetConfig) -> DFlashConfig:
        """The drafter's shape: the target's width and heads, `layers` deep."""
        return DFlashConfig(
            hidden_size=target.hidden_size,
            intermediate_size=target.intermediate_size,
            num_hidden_layers=self.layers,
            num_attention_heads=target.num_heads,
            num_key_value_heads=target.num_kv_heads,
            head_dim=target.head_dim,
            vocab_size=target.vocab_size,
            num_target_layers=target.num_layers,
            target_layer_ids=self.taps,
            block_size=self.block,
            rms_norm_eps=target.rms_norm_eps,
            rope_theta=target.rope_theta,
            markov_rank=self.markov_rank,
            draft_vocab_size=min(self.draft_vocabulary, target.vocab_size),
        )

    def to_json(self) -> dict[str, object]:
        """Plain data; `taps` as a list."""
        return {**asdict(self), "taps": list(self.taps)}

    def claim(self, folder: Path) -> None:
        """Marks a folder as this run's, or checks that it is: resuming with other options would mix two runs."""
        path = folder / "options.json"
        mine = self.to_json()
        if not path.exists():
            path.write_text(json.dumps(mine, indent=2) + "\n", encoding="utf-8")
            return
        found = json.loads(path.read_text(encoding="utf-8"))
        for name, value in mine.items():
            if found.get(name) != value:
                raise InputError(
                    f"{folder} holds a run with {name} {found.get(name)!r}, this one has {value!r}; "
                    "use the same options to resume, or another --out"
                )
