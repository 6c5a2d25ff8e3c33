"""How each convolution of a network is computed: as a product of patches, or by XLA's convolution.

What is faster depends on its channels and on the device. A rule, from measurements, decides for short runs. Where a
convolution takes a minute or more of a run, both are measured once and the outcome is kept in the user's cache folder;
it replaces the rule's choice only where it is clearly faster, so that a second measurement would say the same.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import jax
import jax.numpy as jnp
from jax import lax

from fedgen.core.contract import Array
from fedgen.errors import FedgenError
from fedgen.files import cache_folder, read_json, replacing
from fedgen.models.convolution import convolve
from fedgen.models.rewrite import Choose, Convolution

FEW_CHANNELS = 12  # with fewer, patches are faster on a CPU (with 6, 1.5 times); with more XLA is (with 16, 5 times)
WORTH_SECONDS = 60.0  # that a convolution takes in a run, for measuring to pay
SPEED = {"cpu": 2e10, "gpu": 1e13}  # floating-point operations per second, for that estimate
CLEARLY = 1.2  # how many times faster than the rule's choice the other must be
_MEASURING = Lock()


def chooser(how: str, samples: float, clients: int, batch: int) -> Choose:
    """The choice for a run of so many samples, in mini-batches of `batch`, on so many clients at once on a GPU."""
    if how != "auto":
        return lambda form: how == "patches"

    def choose(form: Convolution) -> bool:
        usual = by_rule(form)
        seconds = 3 * form.flops * samples / SPEED.get(jax.default_backend(), 1e12)
        # Several hosts must choose alike, and may measure otherwise.
        return usual if seconds < WORTH_SECONDS or jax.process_count() > 1 else measured(form, usual, clients, batch)

    return choose


def by_rule(form: Convolution) -> bool:
    """Patches on a GPU; on a CPU for few channels, and for groups, which XLA computes one by one."""
    return jax.default_backend() != "cpu" or form.window.groups > 1 or form.weight[-2] < FEW_CHANNELS


def measured(form: Convolution, usual: bool, clients: int, batch: int) -> bool:
    """The faster way on this device, measured when it is first asked for with a mini-batch of training.

    Before that, and where nothing is trained (an evaluation, an export), it is the usual one.
    """
    file = cache_folder() / "convolutions.json"
    device = jax.local_devices()[0]
    on = 1 if device.platform == "cpu" else min(clients, 16)
    about = [device.device_kind, jax.__version__, form.x[:-1], form.weight, form.dtype, form.window[:5], on]
    key = json.dumps([*about, str(form.window.precision)])
    with _MEASURING:
        try:
            known = read_json(file) if file.exists() else {}
        except FedgenError:  # damaged: measured anew
            known = {}
        if key not in known and not (isinstance(form.x[-1], int) and form.x[-1] == batch):
            return usual
        if key not in known:
            with ThreadPoolExecutor(1) as elsewhere:  # here a network is being traced
                known[key] = elsewhere.submit(_patches_are_faster, form, usual, on).result()
            with replacing(file) as temporary:
                temporary.write_text(json.dumps(known, indent=1))
    return bool(known[key])


def _patches_are_faster(form: Convolution, usual: bool, clients: int) -> bool:
    def seconds(f: Callable[[Array, Array], Array]) -> float:
        def loss(x: Array, weight: Array) -> Array:
            return jnp.sum(jnp.tanh(f(x, weight).astype(jnp.float32)))

        first, second = jax.random.split(jax.random.key(0))
        x = jax.random.normal(first, (clients, *form.x)).astype(form.dtype)
        weight = jax.random.normal(second, (clients, *form.weight)).astype(form.dtype)
        step = jax.jit(jax.vmap(jax.grad(loss, (0, 1))))
        jax.block_until_ready(step(x, weight))
        taken = []
        for _ in range(3):
            start = time.perf_counter()
            jax.block_until_ready(step(x, weight))
            taken.append(time.perf_counter() - start)
        return min(taken)

    try:
        patches, xla = seconds(lambda x, w: convolve(x, w, form.window)), seconds(lambda x, w: _by_xla(x, w, form))
    except Exception:  # too large for the device, or not known to its compiler: the rule decides
        return usual
    return xla >= CLEARLY * patches if not usual else xla * CLEARLY >= patches


def _by_xla(x: Array, weight: Array, form: Convolution) -> Array:
    window, dimensions = form.window, len(form.window.size)
    places = "DHW"[-dimensions:]
    orders = ("N" + places + "C", places + "IO", "N" + places + "C")
    moved = x.transpose(dimensions + 1, *range(1, dimensions + 1), 0)  # as most networks have it
    return lax.conv_general_dilated(
        moved, weight, window.strides, window.padding, rhs_dilation=window.dilation, dimension_numbers=orders,
        feature_group_count=window.groups, precision=window.precision,
    )  # fmt: skip
