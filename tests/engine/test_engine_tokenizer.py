"""Text to tokens: the template and the ids are those of transformers; a folder that cannot be used says why."""

import json
import shutil

import pytest
from transformers import AutoTokenizer

from engine.tokenizer import ChatTokenizer
from space.errors import EngineError

CHATS = [
    [{"role": "user", "content": "Hello, 12 café?\n  Twice  spaced."}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "<|end|> is a token; so is <|start|>"},
        {"role": "assistant", "content": "日本語 and 🙂"},
        {"role": "user", "content": ""},
    ],
]


@pytest.fixture
def folder(tiny_folder, tmp_path):
    return shutil.copytree(tiny_folder, tmp_path / "model")


def change(folder, **about):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | about))


def assert_like_transformers(folder, chat):
    ours, theirs = ChatTokenizer(folder), AutoTokenizer.from_pretrained(folder)
    rendered = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert ours.render(chat) == rendered
    assert list(ours.encode(chat)) == theirs(rendered, add_special_tokens=False).input_ids


@pytest.mark.parametrize("chat", CHATS)
def test_a_chat_is_rendered_and_encoded_as_transformers_does(tiny_folder, chat):
    assert_like_transformers(tiny_folder, chat)


@pytest.mark.parametrize("bos", ["<|start|>", {"content": "<|start|>", "special": True, "__type": "AddedToken"}])
def test_a_template_may_use_special_tokens_loops_and_blank_lines(folder, bos):
    template = "{{ bos_token }}\n  {% for m in messages %}\n    {{ m.content | trim }}\n  {% endfor %}\n{{ eos_token }}"
    change(folder, bos_token=bos, chat_template=template)
    assert_like_transformers(folder, CHATS[1])
    assert ChatTokenizer(folder).render(CHATS[0]).startswith("<|start|>")


def test_a_template_file_stands_before_the_configured_template(folder):
    (folder / "chat_template.jinja").write_text("file: {{ messages[0].content }}")
    assert ChatTokenizer(folder).render([{"role": "user", "content": "x"}]) == "file: x"
    assert_like_transformers(folder, CHATS[0])


@pytest.mark.parametrize("chat", CHATS)
def test_decoding_gives_the_text_without_control_tokens(tiny_folder, chat):
    tokenizer = ChatTokenizer(tiny_folder)
    text = tokenizer.decode(tokenizer.encode(chat))
    assert text == tokenizer.render(chat).replace("<|start|>", "").replace("<|end|>", "")


def test_a_missing_template_is_refused(folder):
    change(folder, chat_template="")
    with pytest.raises(EngineError, match=r"tokenizer_config.json has no chat_template: .* cannot be asked in chat"):
        ChatTokenizer(folder)


def test_a_broken_template_is_refused(folder):
    change(folder, chat_template="{% for %}")
    with pytest.raises(EngineError, match="the chat template in .*model is no template"):
        ChatTokenizer(folder)


def test_a_template_that_fails_is_an_engine_error(folder):
    change(folder, chat_template="{{ messages[7].content.x }}")
    with pytest.raises(EngineError, match="the chat template refuses these messages"):
        ChatTokenizer(folder).render(CHATS[0])


def test_a_template_that_raises_says_why(folder):
    change(folder, chat_template="{{ raise_exception('no system role here') }}")
    with pytest.raises(EngineError, match="the chat template refuses these messages: no system role here"):
        ChatTokenizer(folder).render(CHATS[0])


def test_a_template_cannot_reach_out_of_its_sandbox(folder):
    change(folder, chat_template="{{ messages.__class__.__mro__ }}")
    with pytest.raises(EngineError, match="refuses these messages"):
        ChatTokenizer(folder).render(CHATS[0])


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", None),
        ("tokenizer.json", '{"model": {"type": "BPE", "vo'),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", None),
        ("tokenizer_config.json", "{'chat_template': 1}"),
    ],
)
def test_an_unreadable_tokenizer_is_refused_in_one_line(folder, file, content):
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(EngineError, match="cannot read the tokenizer in .*model: ") as caught:
        ChatTokenizer(folder)
    assert len(str(caught.value).splitlines()) == 1
