"""Ends every answer after four tokens and says that the model stopped there."""

import dataclasses
import sys

from engine import worker
from engine.loop import Decoder

honest_generate = Decoder.generate


def early(self, request, settings):
    short = dataclasses.replace(request, max_tokens=4)
    return dataclasses.replace(honest_generate(self, short, settings), finish="stop")


Decoder.generate = early

if __name__ == "__main__":
    sys.exit(worker.main())
