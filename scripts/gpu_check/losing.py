"""Stage 10: a model that is served by another thread than loaded it and gives its memory back; what is said after its
context was lost, and whether the same process may open another (on an H200 it may not)."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from gpu_check.common import Report, digest, load_gpu, say
from gpu_check.files import model_file
from gpu_check.rehearsal import EMULATED, open_gpu, sized
from gpu_check.sanitized import Planted
from strata.backends.cuda.driver import Driver, Kernel, Launch
from strata.engine import Engine, SamplingParams
from strata.errors import DeviceError


def run(report: Report) -> None:
    path = model_file("planted-2.gguf")
    report["free at first"] = _free()
    engine = Engine(load_gpu(path, kv="int8", max_model_len=1024))
    report["first"] = want = _elsewhere(lambda: _answer(engine))
    report["free while loaded"] = _driver(engine).free_memory()
    engine.close()
    report["free after close"] = _free()
    if EMULATED:  # a process of the emulated device would end
        return
    report["lost"] = _lose_and_load_again(path, want)
    say(str({k: v for k, v in report.items() if k != "build_s"}))


def _lose_and_load_again(path: Any, want: Any) -> Report:
    found: Report = {}
    engine = Engine(load_gpu(path, kv="int8", max_model_len=1024))
    driver = _driver(engine)
    try:
        node = Launch(
            Kernel(Planted("memcheck"), "wrong"), (1, 1, 1), 64, (np.uint64(4096),), dependent=False
        )
        driver.launch(node)
        _answer(engine)
    except DeviceError as error:
        found["told"] = str(error)
    engine.abandon()
    try:
        again = Engine(load_gpu(path, kv="int8", max_model_len=1024))
        found["same answer"] = _elsewhere(lambda: _answer(again)) == want
        again.close()
    except DeviceError as error:
        found["not loaded again"] = str(error)
    return found


def _answer(engine: Engine) -> str:
    request = engine.add(
        [5, 9, 17], SamplingParams(max_tokens=sized(24, 4), temperature=1.0, seed=3, ignore_eos=True)
    )
    while request.finish_reason is None:
        engine.step()
    return digest(np.array(request.output_token_ids))


def _elsewhere(work: Callable[[], Any]) -> Any:
    """What work gives, or the error it ends with, in a thread of its own."""
    found: list[Any] = []

    def body() -> None:
        try:
            found.append(work())
        except DeviceError as error:
            found.append(f"failed: {error}")

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return found[0]


def _driver(engine: Engine) -> Driver:
    return engine._runner.backend.driver  # type: ignore[attr-defined,no-any-return]  # a CudaBackend's


def _free() -> int:
    driver = open_gpu(0).driver
    try:
        return driver.free_memory()
    finally:
        driver.close()
