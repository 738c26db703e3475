"""What is known of one request's drafts: its chain, its text, and how its drafts fared."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from strata.engine.drafts.acceptance import Acceptance, ByAgreement, expected
from strata.engine.drafts.counts import Drafter
from strata.engine.drafts.lookup import Lookup
from strata.engine.plan import Chain
from strata.engine.request import Request


@dataclass(frozen=True)
class Proposal:
    """Drafts of one drafter for a sequence's next step."""

    drafter: Drafter
    token_ids: list[int]
    reach: list[float]  # chances that the first n are all accepted
    agreed: int = 0  # of a lookup

    def cut(self, count: int) -> "Proposal":
        """Its first drafts."""
        return replace(self, token_ids=self.token_ids[:count], reach=self.reach[:count])


@dataclass
class Fares:
    """Acceptance by drafter."""

    layer: Acceptance = field(default_factory=Acceptance)
    lookup: ByAgreement = field(default_factory=ByAgreement)

    def of(self, drafter: Drafter, agreed: int) -> Acceptance:
        """Estimates of a drafter."""
        return self.layer if drafter == "layer" else self.lookup.of(agreed)


class Track:
    """Begins with what other requests' drafts have taught, then goes by its own."""

    def __init__(self, request: Request, lookup: bool, begin: Acceptance):
        self.layer = Acceptance(list(begin.rates), [min(s, 6) for s in begin.seen])
        self.chain: Chain | None = None
        self.verified: Proposal | None = None  # in the step that runs
        self._lookup = Lookup([]) if lookup else None
        self._told = 0
        self._request = request

    def proposal(self, most: int, fares: Fares, min_p: float) -> Proposal | None:
        """The better of the two drafters' proposals, of up to `most` drafts."""
        layer, lookup = self.from_chain(most, min_p), self._from_text(most, fares)
        if layer is None or lookup is None:
            return layer or lookup
        return lookup if expected(lookup.reach) > expected(layer.reach) else layer

    def from_chain(self, most: int, min_p: float) -> Proposal | None:
        """What the draft layer's chain gives; it is gone then."""
        chain, self.chain = self.chain, None
        if chain is None:
            return None
        sure = next((i for i, p in enumerate(chain.probabilities) if p < min_p), len(chain.token_ids))
        tokens = chain.token_ids[: min(most, sure)]
        return Proposal("layer", tokens, self.layer.reach(len(tokens))) if tokens else None

    def _from_text(self, most: int, fares: Fares) -> Proposal | None:
        if self._lookup is None or most < 1:
            return None
        request = self._request
        self._lookup.extend(request.tokens(self._told, request.num_tokens))
        self._told = request.num_tokens
        found = self._lookup.find(most)
        if found is None:
            return None
        return Proposal("lookup", found.token_ids, fares.lookup.of(found.agreed).reach(most), found.agreed)

    def layer_reach(self, most: int, beside: Proposal | None) -> Sequence[float]:
        """Chances of the layer's next chain; none where the text's own drafts do better."""
        reach = self.layer.reach(most)
        if beside is not None and beside.drafter == "lookup" and expected(beside.reach) > expected(reach):
            return ()
        return reach
