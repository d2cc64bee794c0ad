"""Answers one token less than asked for and calls that the full length."""

import dataclasses
import sys

from engine import worker
from engine.loop import Decoder

honest_generate = Decoder.generate


def shorter(self, request, settings):
    generation = honest_generate(self, request, settings)
    return dataclasses.replace(generation, tokens=generation.tokens[:-1], finish="length")


Decoder.generate = shorter

if __name__ == "__main__":
    sys.exit(worker.main())
