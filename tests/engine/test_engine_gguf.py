"""GGUF files become checkpoint folders that hold exactly their weights, or nothing."""

import errno
import resource

import pytest
import torch
from engine_helpers import assert_same_logits, some_prompt
from gguf_files import TOKENS, write_gguf, write_public
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM

import engine.weights.gguf
from engine.loop import Decoder
from engine.tokenizer import ChatTokenizer
from engine.weights.checkpoint import load_checkpoint
from engine.weights.gguf import convert_gguf
from space.errors import EngineError


@pytest.mark.parametrize("tied", [True, False])
def test_a_converted_folder_holds_the_files_weights(tmp_path, tied):
    held = write_gguf(tmp_path / "m.gguf", tied=tied)
    convert_gguf(tmp_path / "m.gguf", tmp_path / "models" / "m")
    found = load_file(tmp_path / "models" / "m" / "model.safetensors")
    assert found.keys() == held.keys()
    for name, tensor in held.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("tied", [True, False])
def test_a_converted_folder_has_the_checkpoints_logits(tmp_path, tied):
    public = write_public(tmp_path / "public", write_gguf(tmp_path / "m.gguf", tied=tied))
    convert_gguf(tmp_path / "m.gguf", tmp_path / "m")
    prompt = some_prompt(50)

    def ours(folder):
        decoder = Decoder(load_checkpoint(folder), 64)
        return decoder.model.logits(decoder.rows(prompt))

    assert torch.equal(ours(tmp_path / "m"), ours(public))
    for folder in (public, tmp_path / "m"):
        reference = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        assert_same_logits(ours(tmp_path / "m"), reference(torch.tensor([prompt])).logits[0])


def test_a_converted_folder_has_a_tokenizer(tmp_path):
    write_gguf(tmp_path / "m.gguf")
    convert_gguf(tmp_path / "m.gguf", tmp_path / "m")
    tokenizer = ChatTokenizer(tmp_path / "m")
    chat = [{"role": "user", "content": "he said: the 12 hens"}]
    ids = tokenizer.encode(chat)
    rendered = "<|start|>user\nhe said: the 12 hens<|end|>\n<|start|>assistant\n"
    assert tokenizer.render(chat) == rendered
    assert ids[0] == 257
    assert ids.count(256) == 3  # he, the, hens
    assert tokenizer.decode(ids) == rendered.replace("<|start|>", "").replace("<|end|>", "")
    assert list(ids) == AutoTokenizer.from_pretrained(tmp_path / "m")(rendered).input_ids


@pytest.mark.parametrize(("flavour", "together"), [("smollm", False), ("gpt2", True)])
def test_smollm_splits_digits_singly(tmp_path, flavour, together):
    """The merged token stands for `12` here: only a pre-tokenizer that keeps digits together lets it be used."""
    tokens = [token if token != "he" else "12" for token in TOKENS]
    fields = {"tokenizer.ggml.pre": flavour, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": ["1 2"]}
    write_gguf(tmp_path / "m.gguf", fields=fields)
    convert_gguf(tmp_path / "m.gguf", tmp_path / "m")
    assert (256 in ChatTokenizer(tmp_path / "m").encode([{"role": "user", "content": "12"}])) == together


def test_optional_keys_have_the_formats_defaults(tmp_path):
    write_gguf(tmp_path / "m.gguf", fields={"llama.rope.freq_base": None, "llama.rope.scaling.type": "none"})
    convert_gguf(tmp_path / "m.gguf", tmp_path / "m")
    assert load_checkpoint(tmp_path / "m").config.rope_theta == 10000.0


def assert_nothing_written(tmp_path, message):
    """The conversion is refused, in at most three lines, and leaves nothing behind."""
    with pytest.raises(EngineError, match=message) as caught:
        convert_gguf(tmp_path / "m.gguf", tmp_path / "models" / "m")
    assert len(str(caught.value).splitlines()) <= 3
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"general.architecture": "qwen2"}, "GGUF general.architecture 'qwen2': allowed is 'llama'"),
        ({"llama.rope.scaling.type": "yarn"}, "GGUF llama.rope.scaling.type 'yarn': allowed is 'none'"),
        ({"tokenizer.ggml.model": "llama"}, "GGUF tokenizer.ggml.model 'llama': allowed is 'gpt2'"),
        ({"tokenizer.ggml.pre": "qwen2"}, "GGUF pre-tokenizer 'qwen2': allowed is smollm, gpt2 or default"),
        ({"llama.embedding_length": None}, "m.gguf: the file has no key 'llama.embedding_length'"),
        ({"tokenizer.ggml.merges": None}, "m.gguf: the file has no key 'tokenizer.ggml.merges'"),
        ({"tokenizer.ggml.token_type": [1, 3]}, "cannot convert .*m.gguf"),
    ],
)
def test_a_model_that_cannot_be_run_is_refused(tmp_path, fields, message):
    write_gguf(tmp_path / "m.gguf", fields=fields)
    assert_nothing_written(tmp_path, message)


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.attn_q.bias", "blk.1.ffn_gate_exps.weight"])
def test_a_tensor_that_would_be_ignored_is_refused(tmp_path, name):
    write_gguf(tmp_path / "m.gguf", extra_tensor=name)
    assert_nothing_written(tmp_path, f"GGUF tensor '{name}' is not one of a plain Llama model")


@pytest.mark.parametrize("kept", [0, 3, 30, 2000, 30_000, -100])
def test_a_truncated_file_is_refused(tmp_path, kept):
    write_gguf(tmp_path / "m.gguf")
    path = tmp_path / "m.gguf"
    path.write_bytes(path.read_bytes()[:kept])
    assert_nothing_written(tmp_path, "cannot convert .*m.gguf: ")


@pytest.mark.parametrize("content", [b"not a model at all " * 50, b"GGUF\x09\0\0\0" + b"\0" * 64, b"\0" * 4096])
def test_a_file_that_is_no_gguf_is_refused(tmp_path, content):
    (tmp_path / "m.gguf").write_bytes(content)
    assert_nothing_written(tmp_path, "cannot convert .*m.gguf: ")


def test_no_file_is_refused(tmp_path):
    assert_nothing_written(tmp_path, "cannot convert .*m.gguf: .*No such file")


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def _full(tensors, path, metadata):
        path.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    write_gguf(tmp_path / "m.gguf")
    monkeypatch.setattr(engine.weights.gguf, "save_file", _full)
    assert_nothing_written(tmp_path, "No space left on device\nRemove a damaged file, or free space, and retry")


def test_a_disk_that_refuses_for_real_leaves_nothing(tmp_path):
    """The operating system's own limit on file size, as safetensors reports it."""
    write_gguf(tmp_path / "m.gguf")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        assert_nothing_written(tmp_path, "cannot convert .*File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_home_that_is_no_folder_is_refused(tmp_path):
    write_gguf(tmp_path / "m.gguf")
    (tmp_path / "models").write_text("a file")
    with pytest.raises(EngineError, match="cannot convert .*File exists|Not a directory"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "models" / "m")
