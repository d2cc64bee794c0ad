"""Goes on after a stop token: more tokens, so more tokens a second."""

import dataclasses
import sys

from engine import worker
from engine.loop import Decoder

honest_generate = Decoder.generate
Decoder.generate = lambda self, request, settings: honest_generate(
    self, dataclasses.replace(request, stop_ids=()), settings
)

if __name__ == "__main__":
    sys.exit(worker.main())
