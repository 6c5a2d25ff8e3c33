"""How each convolution of a network is computed: as a product of patches, by XLA's convolution, or in Winograd's way.

What is faster depends on its channels and on the device. A rule, from measurements, decides for short runs. Where a
convolution takes a minute or more of a run, patches and the other way that the rule knows for it are measured once, and
the outcome is kept in the user's cache folder; it replaces the rule's choice only where it is clearly faster, so that a
second measurement would say the same.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from fedgen.core.contract import Array
from fedgen.errors import FedgenError
from fedgen.files import cache_folder, read_json, replacing
from fedgen.models.channels_last import by_winograd, by_xla
from fedgen.models.convolution import convolve
from fedgen.models.rewrite import Choose, Convolution, How

FEW_CHANNELS = 12  # with fewer, patches are faster on a CPU (with 6, 1.5 times); with more XLA is (with 16, 5 times)
FEW_OUTPUTS = 32  # with more, what comes next is XLA's, and what patches gain is lost to another order of axes
MANY_CHANNELS = 32  # from here on Winograd's way is faster than XLA on a CPU: about twice, with 32 as with 256
WORTH_SECONDS = 60.0  # that a convolution takes in a run, for measuring to pay
SPEED = {"cpu": 2e10, "gpu": 1e13}  # floating-point operations per second, for that estimate
LOOPED = 3  # steps of a measurement
CLEARLY = 1.2  # how many times faster than the rule's choice the other must be
_MEASURING = Lock()


def chooser(how: Literal["auto", "patches", "xla"], samples: float, clients: int, batch: int) -> Choose:
    """The choice for a run of so many samples, in mini-batches of `batch`, on so many clients at once on a GPU."""
    if how != "auto":
        return lambda form: how

    def choose(form: Convolution) -> How:
        usual = by_rule(form)
        seconds = 3 * form.flops * samples / SPEED.get(jax.default_backend(), 1e12)
        # Several hosts must choose alike, and may measure otherwise.
        return usual if seconds < WORTH_SECONDS or jax.process_count() > 1 else measured(form, usual, clients, batch)

    return choose


def by_rule(form: Convolution) -> How:
    """Patches on a GPU; on a CPU for few channels, and for groups, which XLA computes one by one."""
    fan_in, fan_out = form.weight[-2:]
    few = fan_in < FEW_CHANNELS and fan_out < FEW_OUTPUTS
    if jax.default_backend() != "cpu" or form.window.groups > 1 or few:
        return "patches"
    return "winograd" if min(fan_in, fan_out) >= MANY_CHANNELS and suits_winograd(form) else "xla"


def suits_winograd(form: Convolution) -> bool:
    """Whether it is what Winograd's way can do: float32, in two dimensions, by 3x3 windows one beside the other."""
    window = form.window
    plain = window.size == (3, 3) and window.strides == window.dilation == (1, 1) and window.groups == 1
    return plain and form.dtype == "float32"


def measured(form: Convolution, usual: How, clients: int, batch: int) -> How:
    """The faster way on this device, measured when it is first asked for with a mini-batch of training.

    Before that, and where nothing is trained (an evaluation, an export), it is the usual one.
    """
    file = cache_folder() / "convolutions.json"
    device = jax.local_devices()[0]
    on = 1 if device.platform == "cpu" else min(clients, 16)
    about = [device.device_kind, jax.__version__, form.x[:-1], form.weight, form.dtype, form.window[:5], on, usual]
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
    if known[key]:
        return "patches"
    return "xla" if usual == "patches" else usual


def _patches_are_faster(form: Convolution, usual: How, clients: int) -> bool:
    """Where x comes as the usual way has it, as its neighbours do: the other way pays for another order of axes."""
    by_patches = usual == "patches"
    places = form.x if by_patches else (form.x[-1], *form.x[1:-1], form.x[0])

    def seconds(f: Callable[[Array, Array], Array]) -> float:
        def loss(x: Array, weight: Array) -> Array:
            return jnp.sum(jnp.tanh(f(x, weight).astype(jnp.float32)))

        first, second = jax.random.split(jax.random.key(0))
        x = jax.random.normal(first, (clients, *places)).astype(form.dtype)
        weight = jax.random.normal(second, (clients, *form.weight)).astype(form.dtype)

        def step(_: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
            return jax.tree.map(lambda a, b: a - 1e-3 * b, at, jax.grad(loss, (0, 1))(*at))

        # In a loop, as training is one: there memory is taken once, and XLA computes some convolutions otherwise.
        steps = jax.jit(jax.vmap(lambda *at: lax.fori_loop(0, LOOPED, step, at)))
        jax.block_until_ready(steps(x, weight))
        taken = []
        for _ in range(3):
            start = time.perf_counter()
            jax.block_until_ready(steps(x, weight))
            taken.append(time.perf_counter() - start)
        return min(taken)

    def patches(x: Array, weight: Array) -> Array:
        return convolve(x if by_patches else _swapped(x), weight, form.window)

    def other(x: Array, weight: Array) -> Array:
        way = by_winograd if usual == "winograd" else by_xla
        return way(_swapped(x) if by_patches else x, weight, form.window)

    try:
        of_patches, of_other = seconds(patches), seconds(other)
    except Exception:  # too large for the device, or not known to its compiler: the rule decides
        return by_patches
    return of_other * CLEARLY >= of_patches if by_patches else of_other >= CLEARLY * of_patches


def _swapped(x: Array) -> Array:
    """Between [channel, ..., sample], for patches, and [sample, ..., channel], for the others."""
    return jnp.swapaxes(x, 0, -1)
