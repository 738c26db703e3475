"""The disk tier of sessions: which files there are, a thread that writes them, and what a start finds."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.engine.session_files import SessionFile, write_session_file
from strata.errors import ModelFileError, UsageError
from strata.log import logger
from strata.memory import Checkpoint, End, Node, PrefixTree

log = logger(__name__)
MOST_QUEUED = 256 << 20  # bytes that wait for the writer
CELLS, STATE = ".cells", ".state"


@dataclass(frozen=True)
class Read:
    """What was asked for, or why there is none."""

    kept: Node | End
    cells: NDArray[np.uint8] | None = None
    state: Checkpoint | None = None
    error: ModelFileError | None = None


class SessionDisk:
    """Files of one model in a directory of its own below `root`. Only the writer thread writes and removes files, and
    only the reader thread reads bodies."""

    def __init__(self, root: Path, model: str, limit: int):
        self._directory, self._model, self.limit = root / f"strata-{model[:16]}", model, limit
        self.nbytes = 0  # of files, by the writer's count
        self._queued = 0
        self._sizes: dict[Path, int] = {}  # the writer's
        self._known: set[Path] = set()  # written or queued; the engine's
        self._jobs: queue.SimpleQueue[tuple[int, Callable[[], None]] | None] = queue.SimpleQueue()
        self._room = threading.Condition()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--session-dir {root}: {error.strerror}") from None
        self._wanted: queue.SimpleQueue[tuple[Node | End, bool, bool] | None] = queue.SimpleQueue()
        self._found: queue.SimpleQueue[Read] = queue.SimpleQueue()
        self._arrived = threading.Event()
        self._threads = [threading.Thread(target=t, daemon=True) for t in (self._run, self._read)]
        for thread in self._threads:
            thread.start()

    def fill(self, tree: PrefixTree) -> None:
        """Enters what the directory holds into an empty tree; removes what is not whole, not ours or not reachable."""
        found: dict[bytes, SessionFile] = {}
        states: dict[bytes, SessionFile] = {}
        for path in sorted(self._directory.iterdir()):
            try:
                file = SessionFile.open(path, self._model)
                kind = {CELLS: found, STATE: states}[path.suffix]
                kind[bytes.fromhex(file.header["digest"])] = file
            except (ModelFileError, KeyError, ValueError) as error:
                log.warning("a session file is removed: %s", error)
                _remove(path)
        used = self._enter(tree, found, states)
        for digest, file in [*found.items(), *states.items()]:
            if digest not in used:
                _remove(file.path)
            else:
                self._sizes[file.path] = file.nbytes
                self._known.add(file.path)
        self.nbytes = sum(self._sizes.values())
        if used:
            log.info("sessions: %d pages and turns found, %d MiB", len(used), self.nbytes >> 20)

    def _enter(
        self, tree: PrefixTree, found: dict[bytes, SessionFile], states: dict[bytes, SessionFile]
    ) -> set[bytes]:
        """Builds nodes from the root on; returns the digests that were reached."""
        below: dict[str, list[SessionFile]] = {}
        for file in found.values():
            below.setdefault(file.header["parent"], []).append(file)
        used: set[bytes] = set()
        stack = [tree.root]
        while stack:
            node = stack.pop()
            for file in below.get(node.digest.hex(), ()):
                kept = _entered(tree, node, file.header)
                if kept.digest.hex() != file.header["digest"]:
                    continue
                kept.on_disk, kept.state_on_disk = True, kept.digest in states
                used.add(kept.digest)
                if isinstance(kept, Node):
                    stack.append(kept)
        return used

    @property
    def full(self) -> bool:
        """Whether the writer is behind."""
        return self._queued >= MOST_QUEUED

    def wait_for_room(self, seconds: float) -> None:
        """Until the writer has caught up, or so long."""
        with self._room:
            self._room.wait_for(lambda: not self.full, seconds)

    def has_cells(self, kept: Node | End) -> bool:
        """Whether its cells are written or queued."""
        return self._path(kept, CELLS) in self._known

    def has_state(self, kept: Node | End) -> bool:
        """Whether its state is written or queued."""
        return self._path(kept, STATE) in self._known

    def wait_until_written(self) -> None:
        """Until nothing is queued."""
        with self._room:
            self._room.wait_for(lambda: not self._queued)

    def write_cells(self, node: Node, kept: Node | End, cells: NDArray[Any]) -> None:
        """Queues a page's cells; `on_disk` is set when they are there."""
        header: dict[str, Any] = {"model": self._model, "digest": kept.digest.hex()}
        if isinstance(kept, End):
            header |= {"parent": node.digest.hex(), "tail": list(kept.tail), "decoded": kept.decoded}
        else:
            parent = b"" if kept.parent is None else kept.parent.digest
            header |= {"parent": parent.hex(), "key": kept.key.hex()}

        def done() -> None:
            kept.on_disk = True

        self._submit(self._path(kept, CELLS), header, np.ascontiguousarray(cells), done)

    def write_state(self, kept: Node | End, state: Checkpoint) -> None:
        """Queues a checkpoint; `state_on_disk` is set when it is there."""
        header = {"model": self._model, "digest": kept.digest.hex()}

        def done() -> None:
            kept.state_on_disk = True

        self._submit(self._path(kept, STATE), header, state.to_bytes(), done)

    def ask(self, kept: Node | End, cells: bool, state: bool) -> None:
        """Queues the reading of a page's cells, of a checkpoint, or of both; `collect` gives them."""
        self._arrived.clear()
        self._wanted.put((kept, cells, state))

    def collect(self) -> list[Read]:
        """What has been read since the last call."""
        found = []
        while not self._found.empty():
            found.append(self._found.get())
        return found

    def wait_for_reads(self, seconds: float) -> None:
        """Until something has been read since it was last asked for, or so long."""
        self._arrived.wait(seconds)

    def _read(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            kept, with_cells, with_state = wanted
            try:
                cells = np.frombuffer(self._body(kept, CELLS), np.uint8) if with_cells else None
                state = Checkpoint.from_bytes(bytes(self._body(kept, STATE))) if with_state else None
                self._found.put(Read(kept, cells, state))
            except ModelFileError as error:
                self._found.put(Read(kept, error=error))
            if self._wanted.empty():
                self._arrived.set()

    def _body(self, kept: Node | End, suffix: str) -> bytearray:
        return SessionFile.open(self._path(kept, suffix), self._model).read()

    def remove(self, kept: Node | End) -> None:
        """Queues the removal of its files, after their writing where that is queued."""
        paths = [self._path(kept, suffix) for suffix in (CELLS, STATE)]
        kept.on_disk = kept.state_on_disk = False
        self._known.difference_update(paths)

        def job() -> None:
            self._remove(paths)
            kept.on_disk = kept.state_on_disk = False

        self._jobs.put((0, job))

    def close(self) -> None:
        """Ends the threads, the writer after what is queued."""
        self._jobs.put(None)
        self._wanted.put(None)
        for thread in self._threads:
            thread.join()

    def _path(self, kept: Node | End, suffix: str) -> Path:
        return self._directory / (kept.digest.hex() + suffix)

    def _submit(self, path: Path, header: dict[str, Any], body: Any, done: Callable[[], None]) -> None:
        size = memoryview(body).nbytes

        def job() -> None:
            self._sizes[path] = write_session_file(path, header, body)
            done()

        self._known.add(path)
        with self._room:
            self._queued += size
        self._jobs.put((size, job))

    def _remove(self, paths: list[Path]) -> None:
        for path in paths:
            self._sizes.pop(path, None)
            _remove(path)

    def _run(self) -> None:
        while (queued := self._jobs.get()) is not None:
            size, job = queued
            try:
                job()
            except OSError as error:
                log.warning("a session file could not be written: %s", error)
            self.nbytes = sum(self._sizes.values())
            with self._room:
                self._queued -= size
                self._room.notify_all()


def _entered(tree: PrefixTree, node: Node, header: dict[str, Any]) -> Node | End:
    if "key" in header:
        return tree.extend(node, bytes.fromhex(header["key"]))
    return tree.put_end(node, tuple(header["tail"]), bool(header["decoded"]))


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s: %s", path, error.strerror)
