"""Begins every answer with an id that is no token of the model."""

import dataclasses
import sys

from engine import worker
from engine.loop import Decoder

honest_generate = Decoder.generate


def inventive(self, request, settings):
    generation = honest_generate(self, request, settings)
    return dataclasses.replace(generation, tokens=(10**6, *generation.tokens[1:]))


Decoder.generate = inventive

if __name__ == "__main__":
    sys.exit(worker.main())
