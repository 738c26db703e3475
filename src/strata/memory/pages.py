"""Which pages of the KV pool a sequence holds, and who else does."""

from collections.abc import Sequence

from strata.errors import ContextLengthError
from strata.ops import PAGE_CELLS


class PageTable:
    """Hands out pages to sequences; a sequence's pages in order are its row of the step's page table.

    Pages are shared by reference counts: sequences with a common beginning and the prefix tree may hold one page.
    Whoever shares a page shares all its cells, so that nobody writes it any more. It is free when nobody holds it.
    """

    def __init__(self, num_pages: int):
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._pages: dict[int, list[int]] = {}
        self._ref_counts = [0] * num_pages
        self._sequences_of = [0] * num_pages
        self.num_in_use = 0  # pages that sequences hold; others may read it at any time

    @property
    def num_free(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    def pages(self, sequence: int) -> list[int]:
        """The pages of a sequence, in order of cells."""
        return self._pages.get(sequence, [])

    def ref_count(self, page: int) -> int:
        """How many hold the page."""
        return self._ref_counts[page]

    def missing(self, sequence: int, cells: int) -> int:
        """Pages that the sequence lacks to hold `cells` cells."""
        return max(-(-cells // PAGE_CELLS) - len(self.pages(sequence)), 0)

    def grow(self, sequence: int, cells: int) -> list[int]:
        """Makes the sequence hold at least `cells` cells; returns its pages."""
        missing = self.missing(sequence, cells)
        if missing > len(self._free):
            raise ContextLengthError(
                f"{cells} tokens need {missing} more KV pages of {PAGE_CELLS}, {len(self._free)} of "
                f"{self.num_pages} are free; raise --max-context"
            )
        pages = self._pages.setdefault(sequence, [])
        for _ in range(missing):
            pages.append(self.take())
            self._use(pages[-1], 1)
        return pages

    def _use(self, page: int, change: int) -> None:
        before = self._sequences_of[page]
        self._sequences_of[page] = before + change
        self.num_in_use += (before + change > 0) - (before > 0)

    def take(self) -> int:
        """A free page, held once."""
        page = self._free.pop()
        self._ref_counts[page] = 1
        return page

    def hold(self, page: int) -> None:
        """One more holds the page."""
        assert self._ref_counts[page], f"page {page} is free"
        self._ref_counts[page] += 1

    def release(self, page: int) -> None:
        """One fewer holds the page."""
        self._ref_counts[page] -= 1
        if not self._ref_counts[page]:
            self._free.append(page)

    def share(self, sequence: int, pages: Sequence[int]) -> None:
        """Makes `pages` the first of a sequence that holds none."""
        assert not self.pages(sequence), f"sequence {sequence} already holds pages"
        for page in pages:
            self.hold(page)
            self._use(page, 1)
        self._pages[sequence] = list(pages)

    def fork(self, parent: int, child: int, cells: int) -> tuple[int, int] | None:
        """Gives a sequence without pages the parent's first `cells` cells; returns the (page, copy) to fill where they
        end inside a page."""
        whole = cells // PAGE_CELLS
        self.share(child, self.pages(parent)[:whole])
        if cells % PAGE_CELLS == 0:
            return None
        return self.pages(parent)[whole], self.grow(child, cells)[-1]

    def free(self, sequence: int) -> None:
        """Gives up the sequence's pages."""
        for page in reversed(self._pages.pop(sequence, [])):
            self._use(page, -1)
            self.release(page)
