"""What `strata inspect` says of a model file: sizes by role and type, and where it contradicts itself."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from strata.gguf.reader import ModelFile
from strata.models.disagreements import find_disagreements
from strata.models.roles import Role, roles_of


@dataclass(frozen=True, slots=True)
class RoleSize:
    """Tensors of one role: how many, their values and bytes, and bytes by type name, largest first."""

    tensors: int
    parameters: int
    nbytes: int
    types: dict[str, int]


@dataclass(frozen=True, slots=True)
class Summary:
    """Facts about one model file; `bits_per_weight` counts tensor bytes alone, not metadata."""

    path: str
    files: int
    version: int
    architecture: str
    name: str
    parameters: int
    file_bytes: int
    tensor_bytes: int
    bits_per_weight: float
    context_length: int | None
    tensors: int
    types: dict[str, int]
    roles: dict[str, RoleSize]
    disagreements: list[str]

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings and numbers."""
        return asdict(self)


def summarise(model: ModelFile) -> Summary:
    """Read everything from the records and metadata; no tensor data is touched."""
    architecture = model.get("general.architecture", str, "")
    tensors = model.tensors.values()
    parameters = sum(t.values for t in tensors)
    tensor_bytes = sum(t.nbytes for t in tensors)
    types: Counter[str] = Counter()
    for t in tensors:
        types[t.type.name] += t.nbytes
    return Summary(
        path=str(model.path),
        files=len(model.shards),
        version=model.version,
        architecture=architecture,
        name=model.get("general.name", str, ""),
        parameters=parameters,
        file_bytes=model.nbytes,
        tensor_bytes=tensor_bytes,
        bits_per_weight=round(8 * tensor_bytes / parameters, 3) if parameters else 0.0,
        context_length=model.get(f"{architecture}.context_length", int, 0) or None,
        tensors=len(tensors),
        types=dict(types.most_common()),
        roles=_role_sizes(model, architecture),
        disagreements=find_disagreements(model, architecture),
    )


def _role_sizes(model: ModelFile, architecture: str) -> dict[str, RoleSize]:
    drafts = model.get(f"{architecture}.nextn_predict_layers", int, 0)
    blocks = model.get(f"{architecture}.block_count", int, 0)
    roles = roles_of(model.tensors, blocks - drafts if drafts else None)
    grouped: dict[Role, list[str]] = {role: [] for role in Role}
    for name in model.tensors:
        grouped[roles.of(name)].append(name)
    return {role.value: _size(model, names) for role, names in grouped.items() if names}


def _size(model: ModelFile, names: list[str]) -> RoleSize:
    infos = [model.tensors[name] for name in names]
    types: Counter[str] = Counter()
    for info in infos:
        types[info.type.name] += info.nbytes
    return RoleSize(
        len(infos), sum(i.values for i in infos), sum(i.nbytes for i in infos), dict(types.most_common())
    )


def lines(summary: Summary) -> list[str]:
    """The summary as text, one line each."""
    context = f"{summary.context_length:,}" if summary.context_length else "not given"
    out = [
        f"file             {summary.path} (GGUF {summary.version}, {_files(summary.files)})",
        f"architecture     {_printable(summary.architecture) or 'not given'}",
        f"name             {_printable(summary.name) or 'not given'}",
        f"parameters       {_count(summary.parameters)} in {summary.tensors:,} tensors",
        f"size             {_bytes(summary.file_bytes)}",
        f"bits per weight  {summary.bits_per_weight:.2f}",
        f"context length   {context}",
        "",
        f"{'role':<18}{'tensors':>8}{'parameters':>12}{'size':>12}  types",
    ]
    for role, size in summary.roles.items():
        types = _types(size.types, size.nbytes)
        out.append(
            f"{role:<18}{size.tensors:>8}{_count(size.parameters):>12}{_bytes(size.nbytes):>12}  {types}"
        )
    types = _types(summary.types, summary.tensor_bytes)
    count, nbytes = _count(summary.parameters), _bytes(summary.tensor_bytes)
    out.append(f"{'all':<18}{summary.tensors:>8}{count:>12}{nbytes:>12}  {types}")
    if summary.disagreements:
        out += ["", *(f"disagreement: {_printable(text)}" for text in summary.disagreements)]
    return out


def _printable(text: str) -> str:
    """Text from the file without line ends or terminal controls."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _types(types: dict[str, int], total: int) -> str:
    """Types with their share of the bytes, largest first."""
    if len(types) == 1:
        return next(iter(types))
    return ", ".join(f"{name} {100 * nbytes / total:.3g} %" for name, nbytes in types.items())


def _count(number: int) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return str(number)


def _bytes(number: int) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number} B"
