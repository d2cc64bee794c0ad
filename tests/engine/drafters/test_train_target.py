from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from transformers import LlamaConfig, LlamaForCausalLM

from engine.drafters.train.generate import Decoding, SlotGenerator
from engine.drafters.train.target import SlotCache, Target
from engine.drafters.train.target_files import load_target
from space.errors import EngineError
from tests.engine.drafters import tiny

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_tiny_target(tmp_path_factory.mktemp("target"), tiny.tiny_weights())


@pytest.fixture(scope="module")
def target(folder: Path) -> Target:
    return load_target(folder, CPU, torch.float32)[0]


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in tiny.tiny_config().items() if k != "architectures"}))
    model.load_state_dict(tiny.tiny_weights(), strict=False)
    model.tie_weights()
    return model.eval()


def test_forward_and_taps_agree_with_transformers(target: Target, reference: LlamaForCausalLM) -> None:
    tokens = torch.randint(0, target.config.vocab_size, (2, 11), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = reference(tokens, output_hidden_states=True)
    torch.testing.assert_close(target.logits(tokens), wanted.logits, rtol=1e-4, atol=1e-4)
    taps = target.hidden(tokens, (0, 2))
    expected = torch.cat((wanted.hidden_states[1], wanted.hidden_states[3]), -1)
    torch.testing.assert_close(taps, expected, rtol=1e-4, atol=1e-4)


def test_decode_agrees_with_forward_at_different_positions(target: Target) -> None:
    tokens = torch.randint(0, target.config.vocab_size, (2, 9), generator=torch.Generator().manual_seed(1))
    cache, whole = SlotCache(target, 2, 16), target.logits(tokens)
    cache.data.fill_(7.0)  # what a slot's last text left behind is never seen
    positions = torch.tensor([0, 0])
    for _ in range(8):
        logits = target.decode(tokens.gather(1, positions[:, None])[:, 0], positions, cache)
        torch.testing.assert_close(logits, whole[torch.arange(2), positions], rtol=1e-4, atol=1e-4)
        positions = positions + torch.tensor([1, int(positions[0] % 2)])  # the slots drift apart
        positions[1] = min(int(positions[1]), 8)


def alone(target: Target, prompt: list[int], decoding: Decoding) -> list[int]:
    text = list(prompt)
    while len(text) - len(prompt) < decoding.max_new:
        text.append(int(target.logits(torch.tensor([text]))[0, -1].argmax()))
        if text[-1] == decoding.stop:
            break
    return text[len(prompt) :]


def test_slots_write_what_each_prompt_gets_alone(target: Target) -> None:
    generator = torch.Generator().manual_seed(2)
    prompts = [[5, 6, 7, *torch.randint(0, 258, (n % 4 + 1,), generator=generator).tolist()] for n in range(11)]
    usual = [alone(target, p, Decoding(max_new=9, stop=-1)) for p in prompts]
    decoding = Decoding(max_new=9, stop=usual[0][4])  # a stop token that really occurs
    assert SlotGenerator(target, prompts, decoding, 4).run() == [alone(target, p, decoding) for p in prompts]


def test_sampling_above_the_best_probability_is_greedy(target: Target) -> None:
    prompts = [[1, 2, 3], [1, 9], [1, 2, 3, 4]]
    greedy = SlotGenerator(target, prompts, Decoding(max_new=5, stop=-1), 3).run()
    sampled = Decoding(max_new=5, stop=-1, temperature=1.0, min_p=1.0)
    assert SlotGenerator(target, prompts, sampled, 3).run() == greedy
    torch.manual_seed(0)
    free = Decoding(max_new=5, stop=-1, temperature=5.0)
    assert SlotGenerator(target, prompts, free, 3).run() != greedy


def test_sampling_follows_the_probabilities(target: Target) -> None:
    torch.manual_seed(0)
    prompts, decoding = [[1, 2, 3]] * 4000, Decoding(max_new=1, stop=-1, temperature=1.0)
    drawn = torch.tensor(SlotGenerator(target, prompts, decoding, 500).run())[:, 0]
    expected = target.logits(torch.tensor([[1, 2, 3]]))[0, -1].softmax(-1)
    best = expected.topk(5)
    share = torch.stack([(drawn == i).float().mean() for i in best.indices])
    assert torch.all((share - best.values).abs() < 5 * (best.values / 4000).sqrt() + 1e-3)


def test_deadline_gives_up_what_is_not_finished(target: Target) -> None:
    texts = SlotGenerator(target, [[1, 2], [1, 3]], Decoding(max_new=4, stop=-1), 1).run(deadline=0.0)
    assert texts == [[], []]


def write_gguf(path: Path, architecture: str = "llama", pre: str = "smollm") -> dict[str, torch.Tensor]:
    weights, config = tiny.tiny_weights(), tiny.tiny_config()
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
    names |= {"self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm", "mlp.gate_proj": "ffn_gate"}
    names |= {"post_attention_layernorm": "ffn_norm", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(tiny.LAYERS)
    writer.add_embedding_length(tiny.HIDDEN)
    writer.add_feed_forward_length(tiny.FFN)
    writer.add_head_count(tiny.HEADS)
    writer.add_head_count_kv(tiny.KV_HEADS)
    writer.add_rope_dimension_count(tiny.SIZE)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    vocabulary = sorted(tiny.tiny_tokenizer().get_vocab().items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if token in tiny.SPECIAL else 1 for token, _ in vocabulary])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(1)
    writer.add_chat_template(tiny.TEMPLATE)
    for name, tensor in weights.items():
        values = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:  # the converter's reordering: halves of a head become pairs
            values = values.reshape(-1, 2, tiny.SIZE // 2, tiny.HIDDEN).swapaxes(1, 2).reshape(values.shape)
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            writer.add_tensor(f"blk.{layer}.{names[rest.removesuffix('.weight')]}.weight", np.ascontiguousarray(values))
        else:
            writer.add_tensor("token_embd.weight" if "embed" in name else "output_norm.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def test_gguf_gives_the_same_target(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    loaded, chat = load_target(path, CPU, torch.float32)
    plain, other = load_target(folder, CPU, torch.float32)
    tokens = torch.tensor([[0, 5, 90, 200, 7]])
    assert replace(loaded.config, rms_norm_eps=1e-5) == plain.config  # GGUF keeps it in float32
    torch.testing.assert_close(loaded.logits(tokens), plain.logits(tokens))
    assert (chat.before, chat.after, chat.stop) == (other.before, other.after, other.stop)
    assert chat.prompt("hi abc") == other.prompt("hi abc")
    assert chat.tokenizer.decode(chat.encode("a1 b\nü")) == "a1 b\nü"


def test_what_is_no_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="does not exist"):
        load_target(tmp_path / "none.gguf", CPU)
    (tmp_path / "text.gguf").write_text("not a model, but long enough to hold a header")
    with pytest.raises(EngineError, match="is not a GGUF file"):
        load_target(tmp_path / "text.gguf", CPU)
    write_gguf(tmp_path / "other.gguf", architecture="qwen2")
    with pytest.raises(EngineError, match="architecture 'qwen2'"):
        load_target(tmp_path / "other.gguf", CPU)
