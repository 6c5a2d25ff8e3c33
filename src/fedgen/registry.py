"""Registries of algorithms, models, datasets and partitions: built-in, from plug-ins, or added in Python.

Packages register names as entry points (`fedgen.algorithms`, `fedgen.models`,
`fedgen.datasets`); `package.module:function` in place of a name needs no registration.
"""

import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar, cast

from fedgen.errors import FedgenError, unknown

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_ADDRESS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_RESERVED = {"dataset", "model", "partition"}  # sections of options that belong to no algorithm
_OF_PACKAGE = re.compile(r"(?P<address>\S+) of (?P<package>\S+) (?P<version>\S+)")


class Registry(MutableMapping[str, T]):
    """Functions by name, imported on first access.

    A `package.module:function` counts as a registered name; its module is searched in the current directory, too.
    `registry["name"] = function` adds one for this process.
    """

    def __init__(
        self,
        kind: str,
        built_in: Mapping[str, str],
        *,
        group: str = "",
        addresses: bool = True,
        why_not: Callable[[Any], str | None] = lambda found: None,
    ) -> None:
        self.kind, self.group, self.addresses = kind, group, addresses
        self._why_not = why_not  # what is wrong with something that is callable, as the end of a sentence
        self._built_in = dict(built_in)
        self._added: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name in self._added:
            return self._added[name]
        if name in self._built_in:
            return cast(T, load(self._built_in[name]))
        if name in self._plugins:
            return self._load(name, _address(self._plugins[name]))
        if self.addresses and is_address(name):
            with importable(Path.cwd()):
                return self._load(name, name)
        raise KeyError(name)

    def __setitem__(self, name: str, function: T) -> None:
        if not _NAME.fullmatch(name) or name in _RESERVED:
            raise FedgenError(
                f"a {self.kind} cannot be called '{name}'; use letters, digits, '_', '-', '+' and '.', and none of"
                f" {', '.join(sorted(_RESERVED))}"
            )
        self._added.pop(name, None)
        if name not in self._built_in or self[name] is not function:  # what is put back is built in again
            self._added[name] = function

    def __delitem__(self, name: str) -> None:
        del self._added[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._built_in, *self._plugins, *self._added]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        known = name in self._built_in or name in self._added or name in self._plugins
        return known or (self.addresses and isinstance(name, str) and is_address(name))

    def find(self, name: str) -> T:
        """The function of that name; a name that is not there is a user's mistake."""
        if name not in self:
            if self.addresses and ":" in name:
                raise FedgenError(
                    f"unknown {self.kind} '{name}'; a function of your own is named as module:function, a module that"
                    " can be imported and no path: net:build for build in net.py of the current folder"
                )
            raise unknown(self.kind, name, self)
        return self[name]

    def origin(self, name: str) -> str:
        """Where a function that is not built in comes from, with its version; "" for what is built in."""
        function = self.find(name)
        if name in self._added:
            return f"{_address_of(function)} registered in Python"
        if name in self._built_in:
            return ""
        if name in self._plugins:
            return _described(self._plugins[name])
        return f"{name} in a file with SHA-256 {_digest_of(name)}"

    def package(self, name: str) -> str:
        """The package and version that brings a name, for a list; "" for what is built in."""
        if name in self._added:
            return "registered in Python"
        plugin = self._plugins.get(name) if name not in self._built_in else None
        return f"{plugin.dist.name} {plugin.dist.version}" if plugin and plugin.dist else ""

    @cached_property
    def _plugins(self) -> dict[str, EntryPoint]:
        """Entry points by name; one whose name is taken, or cannot be used, is listed as `module:function`."""
        found = entry_points(group=self.group) if self.group else ()
        names = [point.name for point in found]
        taken = {*self._built_in, *_RESERVED, *(name for name in names if names.count(name) > 1)}
        free = {point: _NAME.fullmatch(point.name) and point.name not in taken for point in found}
        return {point.name if free[point] else _address(point): point for point in sorted(found, key=lambda p: p.name)}

    def _load(self, name: str, address: str) -> T:
        try:
            found = load(address)
        except Exception as error:  # whatever other people's code does while it is imported
            advice = f"; {_where_to_run(name)}" if is_address(name) and _has_no_module(name, error) else ""
            raise FedgenError(
                f"{self.kind} '{name}' cannot be imported: {type(error).__name__}: {error}{advice}"
            ) from error
        if not callable(found):
            raise FedgenError(f"{self.kind} '{name}' is of type {type(found).__name__}; it must be a function")
        if wrong := self._why_not(found):
            raise FedgenError(f"{self.kind} '{name}' {wrong}")
        return cast(T, found)


def is_address(name: str) -> bool:
    """Whether a name is a `package.module:function`."""
    return _ADDRESS.fullmatch(name) is not None


def file_name(name: str) -> str:
    """A registered name or an address as part of a file's name; no two become the same."""
    return name.replace(":", "@")


def load(address: str) -> Any:
    """What `package.module:function` is."""
    module, _, attributes = address.partition(":")
    found: Any = importlib.import_module(module)
    for attribute in attributes.split("."):
        found = getattr(found, attribute)
    return found


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let modules in this folder be imported, before all others of the same name."""
    place = str(folder)
    sys.path.insert(0, place)
    try:
        yield
    finally:
        with suppress(ValueError):  # a module may have done it already
            sys.path.remove(place)


def is_absent(name: str, error: FedgenError) -> bool:
    """Whether a name was not found because there is none, and not because something is wrong with it."""
    return error.__cause__ is None or _has_no_module(name, error.__cause__)


def _has_no_module(name: str, error: BaseException) -> bool:
    """Whether it is an address's own module that is missing, and not one that it imports."""
    module = name.partition(":")[0]
    return isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name or module}.")


def check_origin(kind: str, name: str, wanted: str, found: str | None) -> None:
    """Refuse another plug-in, or another version of it, than a configuration was made with; `found` None: none."""
    if wanted == found:
        return
    want, have = _OF_PACKAGE.fullmatch(wanted), _OF_PACKAGE.fullmatch(found or "")
    if want and have and want["package"] == have["package"]:
        here = f"and {have['version']} is installed here"
    elif found is None:
        here = "which is not installed here" if want else "which is not here"
    else:
        here = f"and here it is {found or 'built in'}"
    remedy = f"pip install {want['package']}=={want['version']}" if want else "bring the same here"
    if found is None and is_address(name):
        remedy = f"{remedy}, or {_where_to_run(name)}"
    drop = "" if found is None else ", or use what is here by deleting its line under [plugins] in the configuration"
    raise FedgenError(f"the configuration needs {kind} '{name}' from {wanted}, {here}; {remedy}{drop}")


def _where_to_run(address: str) -> str:
    """What to do where an address's module is not found."""
    module = address.partition(":")[0]
    return f"run it from the folder that holds module '{module}', or add that folder to PYTHONPATH"


def options_of(builder: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a builder, by name."""
    try:
        signature = inspect.signature(builder, eval_str=True)
    except NameError:  # an annotation that exists for type checkers only
        signature = inspect.signature(builder)
    parameters = signature.parameters.items()
    return {name: parameter for name, parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY}


def needs_key(function: Callable[..., Any]) -> bool:
    """Whether a function has an argument `key` without a default, as one that makes a network of a random key."""
    try:
        key = inspect.signature(function).parameters.get("key")
    except ValueError:  # of some functions Python knows no signature
        return False
    return key is not None and key.default is key.empty


def summary_of(builder: Callable[..., Any]) -> str:
    """The first line of a builder's docstring."""
    return next(iter((inspect.getdoc(builder) or "").splitlines()), "")


def _described(point: EntryPoint) -> str:
    version = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
    return f"{_address(point)}{version}"


def _address(point: EntryPoint) -> str:
    return f"{point.module}:{point.attr}"


def _address_of(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__name__)}"


def _digest_of(address: str) -> str:
    """Of the file of an address's module; a package or a compiled module counts by the file that is imported."""
    module = sys.modules[address.partition(":")[0]]
    file = getattr(module, "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else "unknown"
