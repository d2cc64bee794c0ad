"""Accepts the first drafted token of every step unverified."""

import sys

from engine import loop, worker

honest_chain = loop.greedy_chain


def trusting_chain(draft, choices):
    return draft[:1] + honest_chain(draft[1:], choices[1:]) if draft else honest_chain(draft, choices)


loop.greedy_chain = trusting_chain

if __name__ == "__main__":
    sys.exit(worker.main())
