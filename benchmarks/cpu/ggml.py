"""Products by the ggml libraries of an installed llama_cpp package, as llama.cpp would run them."""

import ctypes
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
P = ctypes.c_void_p


class Tensor(ctypes.Structure):
    """struct ggml_tensor, as far as `data` (ggml.h of llama-cpp-python 0.3.36)."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", P),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", P * 10),
        ("view_src", P),
        ("view_offs", ctypes.c_size_t),
        ("data", P),
    )


class InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", P), ("no_alloc", ctypes.c_bool))


def find_library(directory: str | None) -> Path | None:
    """Folder with libggml.so: the one given where it exists, or that of an importable llama_cpp package."""
    if directory:
        return Path(directory) if Path(directory).is_dir() else None
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "lib"


class Ggml:
    """One context and one CPU backend; tensors live until the process ends."""

    def __init__(self, folder: Path) -> None:
        self._base = ctypes.CDLL(str(folder / "libggml-base.so"), ctypes.RTLD_GLOBAL)
        self._cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"), ctypes.RTLD_GLOBAL)
        self._declare()
        self._context = self._base.ggml_init(InitParams(256 << 20, None, True))
        self._backend = self._cpu.ggml_backend_cpu_init()
        registry = self._cpu.ggml_backend_cpu_reg()
        self._device = self._base.ggml_backend_reg_dev_get(registry, 0)
        address = self._base.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        self._extra = ctypes.CFUNCTYPE(ctypes.POINTER(P), P)(address)(self._device) if address else []
        self._keep: list[Any] = []

    def _declare(self) -> None:
        returns_pointer = (
            "ggml_init",
            "ggml_new_tensor_2d",
            "ggml_mul_mat",
            "ggml_new_graph",
            "ggml_backend_reg_dev_get",
            "ggml_backend_reg_get_proc_address",
            "ggml_backend_buft_alloc_buffer",
        )
        for name in returns_pointer:
            getattr(self._base, name).restype = P
        self._cpu.ggml_backend_cpu_init.restype = self._cpu.ggml_backend_cpu_reg.restype = P
        self._base.ggml_init.argtypes = [InitParams]
        self._base.ggml_new_tensor_2d.argtypes = [P, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        self._base.ggml_mul_mat.argtypes = [P, P, P]
        self._base.ggml_new_graph.argtypes = [P]
        self._base.ggml_build_forward_expand.argtypes = [P, P]
        self._base.ggml_backend_graph_compute.argtypes = [P, P]
        self._base.ggml_backend_reg_dev_get.argtypes = [P, ctypes.c_size_t]
        self._base.ggml_backend_reg_get_proc_address.argtypes = [P, ctypes.c_char_p]
        self._base.ggml_backend_dev_supports_op.argtypes = [P, P]
        self._base.ggml_backend_dev_supports_op.restype = ctypes.c_bool
        self._base.ggml_backend_buft_alloc_buffer.argtypes = [P, ctypes.c_size_t]
        self._base.ggml_backend_tensor_alloc.argtypes = [P, P, P]
        self._base.ggml_backend_buffer_get_base.argtypes = [P]
        self._base.ggml_backend_buffer_get_base.restype = P
        self._base.ggml_backend_tensor_set.argtypes = [P, P, ctypes.c_size_t, ctypes.c_size_t]
        self._base.ggml_backend_buffer_free.argtypes = [P]
        self._cpu.ggml_backend_cpu_set_n_threads.argtypes = [P, ctypes.c_int]

    def set_threads(self, threads: int) -> None:
        self._cpu.ggml_backend_cpu_set_n_threads(self._backend, threads)

    def _tensor(self, type_id: int, shape: tuple[int, int], data: Array | None) -> int:
        rows, k = shape
        tensor: int = self._base.ggml_new_tensor_2d(self._context, type_id, k, rows)
        if data is not None:
            Tensor.from_address(tensor).data = data.ctypes.data
            self._keep.append(data)
        return tensor

    def _place_weight(self, weight: int, product: int, raw: Array) -> Callable[[], None]:
        """The weight re-laid as llama.cpp does at load where it can, else as it lies; returns its release."""
        for buffer_type in self._extra:
            if not buffer_type:
                break
            tensor = Tensor.from_address(weight)
            tensor.buffer = probe = self._base.ggml_backend_buft_alloc_buffer(buffer_type, 0)
            fits = self._base.ggml_backend_dev_supports_op(self._device, product)
            tensor.buffer = None
            self._base.ggml_backend_buffer_free(probe)
            if fits:
                buffer = self._base.ggml_backend_buft_alloc_buffer(buffer_type, raw.nbytes + 4096)
                base = self._base.ggml_backend_buffer_get_base(buffer)
                self._base.ggml_backend_tensor_alloc(buffer, weight, base)
                self._base.ggml_backend_tensor_set(weight, raw.ctypes.data, 0, raw.nbytes)
                return lambda: self._base.ggml_backend_buffer_free(buffer)
        Tensor.from_address(weight).data = raw.ctypes.data
        return lambda: None

    def product(
        self, type_id: int, raw: Array, x: Array, out: Array
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        """(run, release) for out [rows, n] = x [rows, k] times raw [n, row bytes] transposed."""
        weight = self._tensor(type_id, (len(raw), x.shape[1]), None)
        rows = self._tensor(0, (len(x), x.shape[1]), x)
        result = self._base.ggml_mul_mat(self._context, weight, rows)
        Tensor.from_address(result).data = out.ctypes.data
        release = self._place_weight(weight, result, raw)
        graph = self._base.ggml_new_graph(self._context)
        self._base.ggml_build_forward_expand(graph, result)
        self._keep += [raw, x, out]
        return lambda: self._base.ggml_backend_graph_compute(self._backend, graph), release
