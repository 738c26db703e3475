"""Where kept pages and states lie: in the pool while it has room, then in RAM, then on disk; the oldest go first."""

from collections import deque
from collections.abc import Iterable

from strata.engine.keeper import Keeper
from strata.engine.ram_budget import RamBudget
from strata.engine.request import Request
from strata.engine.session_disk import SessionDisk
from strata.log import logger
from strata.memory import End, Kept, Match, Node, PageTable, PrefixTree

UPKEEP_PAGES = 32  # handed to the disk at a time when nothing else is to do
SLACK_PAGES = 16  # let go at once beyond what is asked for, so that not every new page costs a search

log = logger(__name__)


class SessionStore:
    """Moves what the prefix tree knows between tiers."""

    def __init__(
        self, recurrent: bool, pages: PageTable, keeper: Keeper, budget: RamBudget, disk: SessionDisk | None
    ):
        self.tree = PrefixTree(recurrent)
        self._recurrent = recurrent
        self._pages, self._keeper, self._budget, self._disk = pages, keeper, budget, disk
        self.parked_bytes = 0  # of sequences that had to make room
        self._unwritten: deque[tuple[Node, Node | End]] = deque()
        self._needed: dict[Request, set[Kept]] = {}  # by requests that are to be started
        self._asked: set[Kept] = set()  # of the disk
        if disk is not None:
            disk.fill(self.tree)

    def ready(self, request: Request, match: Match) -> bool:
        """Whether all that a match needs is in the pool or in RAM, where it stays until `settle`. What lies on disk is
        asked for; what proves damaged is forgotten, and the match no longer stands."""
        if self._disk is None:
            self._needed[request] = {*match.path, *([match.end] if match.end else [])}
            return True
        self._collect(self._disk)
        needed: list[Node | End] = [*match.path, *([match.end] if match.end else [])]
        self._needed[request] = set(needed)
        missing = [kept for kept in needed if kept.gone or self._is_missing(kept, kept is match.last)]
        for kept in missing:
            if not kept.gone and kept not in self._asked:
                self._asked.add(kept)
                cells = kept.page < 0 and kept.cells is None
                self._disk.ask(kept, cells, self._recurrent and kept is match.last and kept.state is None)
        return not missing

    def _is_missing(self, kept: Node | End, with_state: bool) -> bool:
        cells = kept.page < 0 and kept.cells is None
        return cells or (with_state and self._recurrent and kept.state is None)

    def _collect(self, disk: SessionDisk) -> None:
        """Takes in what the disk has read meanwhile."""
        for read in disk.collect():
            kept = read.kept
            self._asked.discard(kept)
            if kept.gone:
                continue
            if read.error is not None:
                log.warning("a session file is left out: %s", read.error)
                self.forget(*next(item for item in self.tree.kept() if item[1] is kept))
                continue
            if read.cells is not None and kept.page < 0:
                kept.cells = read.cells
            kept.state = kept.state or read.state

    def wait_for_reads(self, seconds: float) -> None:
        """Until the disk has read something, or so long."""
        if self._disk is not None:
            self._disk.wait_for_reads(seconds)

    def to_pool(self, nodes: Iterable[Node]) -> None:
        """Gives pages of the pool to nodes that lie in RAM."""
        for node in nodes:
            assert node.cells is not None, f"node {node.depth} is neither in the pool nor in RAM"
            node.page = self._pages.take()
            self._keeper.write_cells([node.page], node.cells[None])
            node.cells = None

    def settle(self, request: Request) -> None:
        """The request is started, or given up."""
        if self._needed.pop(request, None):
            self.fit()

    def _free_to_go(self, kept: Kept) -> bool:
        return not any(kept in needed for needed in self._needed.values())

    def make_room(self, pages: int, request: Request | None = None) -> bool:
        """Frees pages of the pool until so many are free, none of those that a request needs; False where that cannot
        be."""
        short = pages - self._pages.num_free
        if short <= 0:
            return True
        needed = self._needed.get(request, set()) if request else set()
        held = [i for i in self.tree.kept() if self._only_ours(i[1]) and i[1] not in needed]
        if len(held) < short:
            return False
        for _, kept in self.tree.oldest(held)[: short + SLACK_PAGES]:
            if kept.cells is None and not kept.on_disk:
                kept.cells = self._keeper.read_cells([kept.page])[0]
            self._pages.release(kept.page)
            kept.page = -1
        self.fit()
        return True

    def _only_ours(self, kept: Kept) -> bool:
        return kept.page >= 0 and self._pages.ref_count(kept.page) == 1

    @property
    def ram_bytes(self) -> int:
        """Bytes kept in RAM besides the pool."""
        return sum(kept.ram_bytes for _, kept in self.tree.kept()) + self.parked_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of session files."""
        return 0 if self._disk is None else self._disk.nbytes

    def fit(self) -> None:
        """Lets go of the oldest in RAM until the budget holds the rest."""
        used = self.ram_bytes
        over = used - self._budget.limit(used)
        if over <= 0:
            return
        held = [i for i in self.tree.kept() if i[1].ram_bytes and self._free_to_go(i[1])]
        for node, kept in self.tree.oldest(held):
            if over <= 0:
                return
            over -= kept.ram_bytes
            kept.cells = kept.state = None
            if kept.page < 0 and not kept.on_disk:
                self.forget(node, kept)

    def forget(self, node: Node, kept: Node | End) -> None:
        """Takes something, and what lies behind it, out of all tiers."""
        for _, gone in self.tree.remove(node, kept):
            if gone.page >= 0:
                self._pages.release(gone.page)
                gone.page = -1
            gone.cells = gone.state = None
            if self._disk is not None and self._disk.has_cells(gone):
                self._disk.remove(gone)

    def forget_all(self) -> None:
        """Takes everything out of all tiers."""
        for node in list(self.tree.root.children.values()):
            self.forget(node, node)
        for end in list(self.tree.root.ends.values()):
            self.forget(self.tree.root, end)

    def write_later(self, node: Node, kept: Node | End) -> None:
        """Something new at a node: it and the nodes before it are to reach the disk, the first first."""
        if self._disk is None:
            return
        path = [node]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        ahead = [(n, n) for n in reversed(path[:-1]) if not n.on_disk or (n.state and not n.state_on_disk)]
        self._unwritten += [*ahead, *([] if kept is node else [(node, kept)])]

    @property
    def pending(self) -> bool:
        """Whether something is still to be handed to the disk."""
        return bool(self._unwritten)

    def upkeep(self, pages: int) -> None:
        """Hands up to `pages` pages of what is to be written to the disk, and lets the oldest files go."""
        if self._disk is None:
            return
        while pages and self._unwritten and not self._disk.full:
            node, kept = self._unwritten.popleft()
            if not kept.gone:
                self._write(self._disk, node, kept)
                pages -= 1
        if self._disk.nbytes > self._disk.limit:
            self._trim(self._disk)

    def _write(self, disk: SessionDisk, node: Node, kept: Node | End) -> None:
        if not disk.has_cells(kept) and (kept.cells is not None or kept.page >= 0):
            cells = self._keeper.read_cells([kept.page])[0] if kept.cells is None else kept.cells
            disk.write_cells(node, kept, cells)
        if kept.state is not None and not disk.has_state(kept):
            disk.write_state(kept, kept.state)

    def _trim(self, disk: SessionDisk) -> None:
        over = disk.nbytes - disk.limit
        for node, kept in self.tree.oldest([item for item in self.tree.kept() if item[1].on_disk]):
            if over <= 0:
                return
            over -= self._keeper.page_bytes
            disk.remove(kept)
            if kept.page < 0 and kept.cells is None:
                self.forget(node, kept)

    def wait_for_disk(self, seconds: float) -> None:
        """Until the writer takes more, or so long."""
        if self._disk is not None:
            self._disk.wait_for_room(seconds)

    def abandon(self) -> None:
        """Ends the writer without what would have to be read from the pool first."""
        self._unwritten.clear()
        self.close()

    def close(self) -> None:
        """Writes what is to be written, and ends the writer."""
        while self.pending:
            self.wait_for_disk(1.0)
            self.upkeep(UPKEEP_PAGES)
        if self._disk is not None:
            self._disk.wait_until_written()
            self.upkeep(0)
            self._disk.close()
            self._disk = None
