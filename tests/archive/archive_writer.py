"""A process that records attempts as fast as it can, until somebody ends it. Arguments: archive file, samples each."""

import dataclasses
import sys
from pathlib import Path

import archive_records as make

from archive.store import Archive


def main() -> None:
    path, prompts = Path(sys.argv[1]), int(sys.argv[2])
    with Archive.open(path) as archive:
        archive.begin_run(make.run())
        archive.mark_stale("run-a")
        samples = make.samples(tuple(f"seen-{i}" for i in range(prompts)))
        while True:
            number = archive.next_number("run-a")
            archive.begin_attempt(make.attempt(number))
            archive.finish_attempt(dataclasses.replace(make.ok(number), samples=samples))
            sys.stdout.write(f"{number}\n")  # said only once it is stored
            sys.stdout.flush()


if __name__ == "__main__":
    main()
