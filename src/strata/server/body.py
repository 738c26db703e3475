"""What bodies of all protocols share: how they are checked, and the limits on them."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

MAX_MESSAGES, MAX_TOOLS, MAX_STOPS, MAX_CHOICES, MAX_TOP_LOGPROBS = 4096, 512, 16, 16, 20

Count = Annotated[int, Field(ge=1)]
Temperature = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
TopK = Annotated[int, Field(ge=-1, le=2**31 - 1)]
MinP = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Repetition = Annotated[float, Field(ge=0.001, le=100, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Stops = Annotated[list[str], Field(max_length=MAX_STOPS)]
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")]
Object = dict[str, Any]


class Body(BaseModel):
    """A JSON object; types are taken as they are, fields that nobody knows are ignored, as clients send many."""

    model_config = ConfigDict(extra="allow", strict=True)

    def given(self, name: str) -> Any:
        """A field that this class does not declare."""
        return (self.model_extra or {}).get(name)
