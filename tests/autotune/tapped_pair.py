"""A target and an EAGLE-3 drafter that are made for each other, with nothing trained.

The target's layers add to a token's hidden state what depends on that token alone, so its text is one long cycle
through the vocabulary. The drafter reads the output of layer 1 and knows, for each token's state there, which token
comes after the next. It is right about its first draft and only there; with another layer's output, which each layer
changes beyond recognition here, it is lost.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.engine.drafters.tiny import HIDDEN, LAYERS, tiny_config, tiny_weights, write_tiny_target

READS = 2
"""The tap id that the drafter is made for: the input of layer 2."""


def write_pair(folder: Path) -> Path:
    """Writes `folder`/target and `folder`/drafter; returns the path of a deployment of both."""
    weights = {name: tensor.bfloat16() for name, tensor in tiny_weights().items()}
    for name in weights:
        if name.endswith("o_proj.weight"):
            weights[name] = torch.zeros_like(weights[name])
        if name.endswith("down_proj.weight"):
            weights[name] *= 8.0 ** (1 + int(name.split(".")[2]))
    after = _hidden_states(weights)
    vocabulary = len(after[0])
    before = torch.arange(-1, vocabulary - 1) % vocabulary
    weights["lm_head.weight"] = _normed(after[LAYERS])[before].bfloat16()
    weights["model.norm.weight"] = torch.ones(HIDDEN).bfloat16()
    target = write_tiny_target(folder / "target", weights)
    (target / "config.json").write_text(json.dumps(tiny_config() | {"tie_word_embeddings": False, "eos_token_id": 1}))
    _write_drafter(folder / "drafter", weights, _normed(after[READS])[before[before]].bfloat16())
    deployment = folder / "pair.toml"
    deployment.write_text(
        f"""name = "pair"
description = "a target and a drafter that are made for each other"

[target]
source = "{target}"
max_context = 1024

[drafter]
source = "{folder / "drafter"}"

[hardware]
device = "cpu"

[workload]
max_tokens = 16
"""
    )
    return deployment


def shift_taps(folder: Path, by: int) -> None:
    """Makes the drafter read another layer than the one that it is made for."""
    path = folder / "drafter" / "config.json"
    values = json.loads(path.read_text())
    values["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [READS + by]
    path.write_text(json.dumps(values))


def _normed(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


def _hidden_states(weights: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Every token's hidden state before the first layer and after each."""
    states = [weights["model.embed_tokens.weight"].float()]
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        u = _normed(states[-1]) * weights[at + "post_attention_layernorm.weight"].float()
        gate, up = (u @ weights[at + f"mlp.{name}_proj.weight"].float().T for name in ("gate", "up"))
        added = (torch.nn.functional.silu(gate) * up) @ weights[at + "mlp.down_proj.weight"].float().T
        states.append(states[-1] + added)
    return states


def _write_drafter(folder: Path, weights: dict[str, torch.Tensor], head: torch.Tensor) -> None:
    first = "model.layers.0."
    layer = {f"midlayer.{n.removeprefix(first)}": t for n, t in weights.items() if n.startswith(first)}
    for name in layer:
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            layer[name] = torch.cat((layer[name], layer[name]), 1)
        if name.endswith("down_proj.weight"):
            layer[name] = torch.zeros_like(layer[name])
    one = torch.ones(HIDDEN).bfloat16()
    tensors = layer | {"midlayer.hidden_norm.weight": one, "norm.weight": one.clone(), "lm_head.weight": head}
    config = {name: value for name, value in tiny_config().items() if name != "num_hidden_layers"}
    config |= {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
    config |= {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [READS]}}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors | {"fc.weight": torch.eye(HIDDEN).bfloat16()}, folder / "model.safetensors")
