"""A device that fails in the middle of a step: its requests end with one clear line, the model is loaded again, and
what cannot be loaded is said by every answer until it can."""

import threading
import time

import pytest
from emulated_driver import EmulatedDriver
from requests_over import TEXT, ask, idle, post
from tiny import write_tiny_llama

from strata.backends.cuda import CudaBackend
from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams
from strata.engine.load import load_model
from strata.errors import DeviceError

LOST = "a kernel failed; the GPU context is lost (replaying: CUDA_ERROR_LAUNCH_FAILED 719)"
BODY = {"prompt": [1, 2, 3], "max_tokens": 6, "temperature": 0, "ignore_eos": True}
ALWAYS = {"close", "properties", "left", "closed"}


class FailingDriver(EmulatedDriver):
    """Is lost after so many replays; from then on nothing but `close` works."""

    def __init__(self, left: int):
        super().__init__()
        self.left = left

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name in ALWAYS or name.startswith("_") or not callable(found):
            return found
        if name == "replay":
            self.left -= 1
        if self.left < 0:
            raise DeviceError(LOST)
        return found


@pytest.fixture
def on_device(tiny_path, serving):
    """`on_device(lives)`: a server whose loads get devices that live for so many replays; None: a load that fails."""

    def start(lives, **options):
        drivers, left = [], list(lives)

        def load():
            life = left.pop(0)
            if life is None:
                raise DeviceError(
                    "no NVIDIA GPU is visible; --device cpu runs without one (opening the GPU: 100)"
                )
            drivers.append(FailingDriver(life))
            options = EngineOptions(device="cpu", prefill=0, max_model_len=256)
            return Engine(load_model(tiny_path, options, None, CudaBackend(drivers[-1], slab_bytes=1 << 20)))

        more = {k: options.pop(k) for k in ("reload",) if k in options}
        server = serving(tiny_path, load=load, server_options=options, **{"reload": True, **more})
        server.drivers = drivers
        return server

    return start


def health(server):
    return ask(server, "GET", "/health")


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_its_requests_end_and_the_model_is_loaded_again(on_device):
    want = post(on_device([1000]), TEXT, BODY)[1]["choices"]
    server = on_device([5, 1000])
    status, answer = post(server, TEXT, BODY)
    assert (status, answer["error"]["message"]) == (503, LOST)
    wait_for(lambda: server.drivers[0].closed)  # what it held is given back
    wait_for(lambda: health(server)[0] == 200)
    assert post(server, TEXT, BODY)[1]["choices"] == want


def test_all_open_requests_are_told(on_device):
    server, answers = on_device([9, 1000]), []
    bodies = [{**BODY, "prompt": [i, 2, 3], "max_tokens": 40} for i in range(3)]
    threads = [threading.Thread(target=lambda b=b: answers.append(post(server, TEXT, b))) for b in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lost = [a for a in answers if a[0] == 503]
    assert lost and all(a["error"]["message"] == LOST for _, a in lost)
    assert all(status == 200 for status, _ in answers if status != 503), (
        "those that came after it were served"
    )


def test_a_stream_ends_with_the_error(on_device):
    status, _, body = ask(on_device([8, 1000]), "POST", TEXT, {**BODY, "max_tokens": 50, "stream": True})
    assert status == 200 and LOST.encode() in body and b"[DONE]" not in body


def test_what_cannot_be_loaded_is_said_until_it_can(on_device):
    server = on_device([5, None, None, 1000])
    assert post(server, TEXT, BODY)[0] == 503
    wait_for(lambda: b"no NVIDIA GPU" in health(server)[2])
    assert health(server)[0] == 503
    status, answer = post(server, TEXT, BODY)
    assert status == 503 and "no NVIDIA GPU is visible" in answer["error"]["message"]
    assert post(server, TEXT, BODY)[0] == 200 and health(server)[0] == 200


def test_without_a_way_to_load_it_again_requests_are_refused(on_device):
    server = on_device([5], reload=False)
    for _ in range(2):
        status, answer = post(server, TEXT, BODY)
        assert (status, answer["error"]["message"]) == (503, LOST)
    assert health(server)[0] == 503


def test_a_device_that_fails_while_a_client_leaves(on_device):
    """Ending a request touches the device where its turn is kept."""
    server = on_device([1000, 1000])
    engine = server.service.engine
    wait_for(lambda: engine.loaded)
    thread = threading.Thread(target=post, args=(server, TEXT, {**BODY, "max_tokens": 200}))
    thread.start()
    wait_for(lambda: engine.num_open == 1)
    server.drivers[0].left = 0
    thread.join()
    assert idle(server)
    wait_for(lambda: health(server)[0] == 200)


def test_an_idle_model_gives_its_device_back(on_device):
    server = on_device([1000, 1000], idle_unload=0.2)
    first = post(server, TEXT, BODY)[1]["choices"]
    wait_for(lambda: not server.service.engine.loaded)
    wait_for(lambda: server.drivers[0].closed)
    assert post(server, TEXT, BODY)[1]["choices"] == first


def test_the_engine_alone_raises_it(tmp_path):
    options = EngineOptions(device="cpu", prefill=0, max_model_len=256)
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    engine = Engine(load_model(path, options, None, CudaBackend(FailingDriver(6), slab_bytes=1 << 20)))
    engine.add([1, 2, 3], SamplingParams(max_tokens=50, ignore_eos=True))
    with pytest.raises(DeviceError, match="719"):
        for _ in range(20):
            engine.step()
    engine.abandon()
