"""Text to token ids and back, with the checkpoint's own chat template. No torch import."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as FastTokenizer

from space.errors import EngineError
from space.prompts import Message


def _fast_tokenizer(path: Path) -> FastTokenizer:
    text = path.read_text(encoding="utf-8")
    if "model" not in json.loads(text):  # checked here: the tokenizers package raises a bare Exception
        raise ValueError(f"{path} has no model")
    return FastTokenizer.from_str(text)


def _text(token: str | dict[str, str]) -> str:
    """A special token's text; some checkpoints give it as an object with its flags."""
    return token if isinstance(token, str) else token["content"]


def _refuse(reason: str) -> NoReturn:
    """What templates call as `raise_exception`."""
    raise TemplateError(reason)


class ChatTokenizer:
    """The tokenizer of a checkpoint folder: tokenizer.json, and the template of tokenizer_config.json."""

    def __init__(self, folder: Path) -> None:
        """Loads both files. EngineError names the file that cannot be read."""
        about_path, template_path = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        try:
            self._fast = _fast_tokenizer(folder / "tokenizer.json")
            about = json.loads(about_path.read_text(encoding="utf-8"))
            source = template_path.read_text(encoding="utf-8") if template_path.exists() else about.get("chat_template")
        except (OSError, ValueError) as error:
            raise EngineError(f"cannot read the tokenizer in {folder}: {error}") from error
        if not source:
            raise EngineError(f"{about_path} has no chat_template: this model cannot be asked in chat form")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise EngineError(f"the chat template in {folder} is no template: {error}") from error
        self._names = {name: _text(about[name]) for name in ("bos_token", "eos_token") if about.get(name)}

    def render(self, messages: Iterable[Message]) -> str:
        """The chat as text, ending where the assistant's answer begins."""
        try:
            return self._template.render(messages=list(messages), add_generation_prompt=True, **self._names)
        except TemplateError as error:
            raise EngineError(f"the chat template refuses these messages: {error}") from error

    def encode(self, messages: Iterable[Message]) -> tuple[int, ...]:
        """Chat messages of {role, content} to prompt token ids."""
        return tuple(self._fast.encode(self.render(messages), add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Token ids to text, control tokens left out."""
        return str(self._fast.decode(list(tokens), skip_special_tokens=True))
