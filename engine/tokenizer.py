"""Text to token ids and back, with the checkpoint's own chat template. No torch import."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as FastTokenizer

from space.errors import EngineError
from space.prompts import Message


class ChatTokenizer:
    """The tokenizer of a checkpoint folder: tokenizer.json, and the template of tokenizer_config.json."""

    def __init__(self, folder: Path) -> None:
        """Loads both files. EngineError names the file that cannot be read."""
        about_path, template_path = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        try:
            self._fast = FastTokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
            about = json.loads(about_path.read_text(encoding="utf-8"))
            source = template_path.read_text(encoding="utf-8") if template_path.exists() else about.get("chat_template")
        except (OSError, ValueError) as error:
            raise EngineError(f"cannot read the tokenizer in {folder}: {error}") from error
        if not source:
            raise EngineError(f"{about_path} has no chat_template: this model cannot be asked in chat form")
        self._template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)
        self._names = {name: about.get(name) for name in ("bos_token", "eos_token") if isinstance(about.get(name), str)}

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
