"""Workers for candidates with patches: each in a sandbox, with the patched code as its own.

A candidate without patches is the project's own code with other knobs. It runs in the long-lived worker outside, whose
start is paid once a session; a patched one pays for its own process, since no process may outlive the code it ran.
"""

from dataclasses import replace
from pathlib import Path
from types import TracebackType

from autotune.client import ROOT, Launch, RequestFailed, WorkerClient
from autotune.environment import memory_gib, usable_cores
from autotune.sandbox.base import UNCONFINED, Confinement, Limits, Sandbox
from autotune.sandbox.gpu import gpu_memory_total
from autotune.sandbox.probe import best_sandbox
from autotune.sandbox.workspace import Workspace
from engine.weights.source import home_folder
from space.errors import PatchError, SandboxError
from space.genome import Genome
from space.outcome import Outcome
from space.patch import CodeTree, Patch, applied, syntax_error

_WALL = 1800.0
_MEMORY_SHARE = 0.7
_FREE_SHARE = 0.03
_GPU_SHARE = 0.9


def candidate_limits() -> Limits:
    """What a candidate may use on this machine: most of its memory, its cores for half an hour."""
    memory = memory_gib() * 2**30
    return Limits(
        wall=_WALL,
        cpu=_WALL * usable_cores(),
        memory=int(_MEMORY_SHARE * memory),
        free_memory=int(_FREE_SHARE * memory),
        gpu_memory=int(_GPU_SHARE * total) if (total := gpu_memory_total()) else None,
    )


class PatchedWorkers:
    """Starts a confined worker for a patched candidate; another one's, or `close`, ends it. A context manager."""

    def __init__(self, launch: Launch, *, unsafe: bool, root: Path = ROOT) -> None:
        """`launch` is how the unpatched candidate is started; `unsafe` accepts rlimits only, see best_sandbox."""
        self._launch = launch
        self._unsafe = unsafe
        self._root = root
        self._patches: tuple[Patch, ...] = ()
        self._workspace: Workspace | None = None
        self._client: WorkerClient | None = None

    def __enter__(self) -> "PatchedWorkers":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def level(self, genome: Genome) -> str:
        """What is stored as the sandbox of a candidate's evaluation. SandboxError, see best_sandbox."""
        return self._sandbox().level.value if genome.patches else UNCONFINED

    def worker(self, genome: Genome) -> WorkerClient:
        """The worker of a patched genome.

        Raises:
            RequestFailed: a patch does not apply (invalid), or leaves a file that is no Python (compile).
            SandboxError: this machine cannot confine it.
        """
        if self._client is None or genome.patches != self._patches:
            self.close()
            tree = _patched_tree(self._root, genome.patches)
            shown = tuple(folder for folder in (self._launch.model, self._launch.drafter) if folder is not None)
            _refuse_to_show_home(shown)
            self._workspace = Workspace(tree, shown)
            confinement = Confinement(sandbox=self._sandbox(), view=self._workspace.view, limits=candidate_limits())
            self._client = WorkerClient(replace(self._launch, confinement=confinement))
            self._patches = genome.patches
        return self._client

    def close(self) -> None:
        """Ends the worker and removes its folder."""
        if self._client is not None:
            self._client.close()
        if self._workspace is not None:
            self._workspace.close()
        self._client = self._workspace = None

    def _sandbox(self) -> Sandbox:
        return best_sandbox(unsafe=self._unsafe)


def _refuse_to_show_home(shown: tuple[Path, ...]) -> None:
    for folder in shown:
        if home_folder().resolve().is_relative_to(folder.resolve()):
            raise SandboxError(
                f"{folder} would be shown to patched code, and with it the archive in {home_folder()}\n"
                "Move the checkpoint into a folder of its own."
            )


def _patched_tree(root: Path, patches: tuple[Patch, ...]) -> CodeTree:
    tree = CodeTree.read(root)
    for patch in patches:
        try:
            tree = applied(tree, patch)
        except PatchError as error:
            raise RequestFailed(Outcome.INVALID, f"patch {patch.id}: {error}") from error
        broken = syntax_error(tree, patch.files)
        if broken is not None:
            raise RequestFailed(Outcome.COMPILE, f"patch {patch.id}: {broken}")
    return tree
