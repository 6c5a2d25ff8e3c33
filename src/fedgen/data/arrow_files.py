"""Parquet files, and Arrow files as Hugging Face's `datasets` saves them, read with pyarrow (extra `tables`)."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgen.data.tables import (
    Columns,
    Table,
    check_names,
    dropping,
    float_column,
    has_words,
    label_numbers,
    label_values,
    lacks_label,
    no_numbers,
)
from fedgen.errors import FedgenError


class _Source(NamedTuple):
    """A file: the names and types of its columns, and a function that reads some of them."""

    schema: Any
    read: Callable[[Sequence[str]], Any]


def read_parquet(paths: Sequence[Path], columns: Columns) -> Table:
    """The table in one or several Parquet files."""
    _need_pyarrow()
    return _table(paths, columns, "Parquet", _parquet)


def read_arrow(paths: Sequence[Path], columns: Columns) -> Table:
    """The table in one or several Arrow files, memory-mapped."""
    _need_pyarrow()
    return _table(paths, columns, "Arrow", _arrow)


class Samples(NamedTuple):
    """Samples to predict: numbers [row, column] or the content of image files, and labels where the file has them."""

    x: NDArray[np.float64] | list[bytes]
    labels: list[str] | None


def read_arrow_samples(
    path: Path, choose: Callable[[Sequence[str], Sequence[str]], tuple[Sequence[str], str | None]]
) -> Samples:
    """The samples in a Parquet or Arrow file.

    `choose` says, of the columns' names and of those with images, which are the sample's and which has the labels.
    """
    _need_pyarrow()
    kind, opened = ("Parquet", _parquet) if path.suffix.lower() == ".parquet" else ("Arrow", _arrow)
    source = _guarded(path, kind, opened)
    names = [str(name) for name in source.schema.names]
    check_names(names, path)
    images = [name for name in names if _is_image(source.schema.field(name).type)]
    features, label = choose(names, images)
    used = [*features, *([label] if label and label not in features else [])]
    table = _guarded(path, kind, lambda _: source.read(used))
    if not len(table):
        raise FedgenError(f"{path} has columns and no rows")
    labels = _label_texts(table[label], _named(source.schema, label), label, path) if label else None
    if len(features) == 1 and features[0] in images:
        content = _reader(lambda _: table, features[0], path)
        return Samples([content(row) for row in range(len(table))], labels)
    return Samples(np.stack([_exact_numbers(table[name], name, path) for name in features], axis=1), labels)


def _label_texts(column: Any, names: tuple[str, ...], name: str, place: Path) -> list[str]:
    values, known = _labels(column, names, name, place)
    return [known[int(value)] if known else str(value) for value in values]


def _parquet(path: Path) -> _Source:
    import pyarrow.parquet as parquet

    file = parquet.ParquetFile(path, memory_map=True)
    return _Source(file.schema_arrow, lambda names: file.read(columns=list(names)))


def _arrow(path: Path) -> _Source:
    import pyarrow as pa

    mapped = pa.memory_map(str(path))
    try:
        table = pa.ipc.open_stream(mapped).read_all()
    except pa.ArrowInvalid:  # `datasets` writes streams, others write files, which have an index
        table = pa.ipc.open_file(mapped).read_all()
    return _Source(table.schema, lambda names: table.select(list(names)))


def _need_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401 (only whether it can be imported)
    except ModuleNotFoundError:
        raise FedgenError(
            "Parquet and Arrow files need pyarrow: pip install '.[tables]' in FedGen's folder; CSV files need nothing"
        ) from None


def _table(paths: Sequence[Path], columns: Columns, kind: str, opened: Callable[[Path], _Source]) -> Table:
    import pyarrow as pa

    place = paths[0] if len(paths) == 1 else paths[0].parent
    source_of = {path: _guarded(path, kind, opened) for path in paths}
    schema = source_of[paths[0]].schema
    for path, source in source_of.items():
        if not source.schema.equals(schema):
            raise FedgenError(f"{path} has other columns or types than {paths[0].name}; parts of one table must agree")

    def read(names: Sequence[str]) -> Any:
        return pa.concat_tables([_guarded(path, kind, lambda path: source_of[path].read(names)) for path in paths])

    return _checked(place, schema, columns, read)


def _guarded(path: Path, kind: str, act: Callable[[Path], Any]) -> Any:
    import pyarrow as pa

    try:
        return act(path)
    except (pa.ArrowException, OSError) as error:
        raise FedgenError(f"{path} cannot be read as a file of {kind}: {str(error).splitlines()[0]}") from error


def _checked(place: Path, schema: Any, columns: Columns, read: Callable[[Sequence[str]], Any]) -> Table:
    features = columns.features([str(name) for name in schema.names], place)
    images = [name for name in features if _is_image(schema.field(name).type)]
    if len(images) > 1:
        raise FedgenError(
            f"{place} has several columns of images ({', '.join(images)}); leave out all but one:"
            f" {dropping(*images[1:])}"
        )
    said = [columns.label, *([columns.user] if columns.user else [])]
    table = read(said if images else [*said, *features])
    if not len(table):
        raise FedgenError(f"{place} has columns and no rows")
    labels, class_names = _labels(table[columns.label], _named(schema, columns.label), columns.label, place)
    users = _values(table[columns.user], columns.user, place) if columns.user else None
    if users is not None and users.dtype.kind not in "iuU":
        raise FedgenError(f"{place}: users in column '{columns.user}' must be whole numbers or words")
    if images:
        beside = ", ".join(name for name in features if name not in images)
        notes = (f"{place}: of its columns only the images are learned from, not {beside}",) if beside else ()
        return Table(place, images, None, _reader(read, images[0], place), labels, users, class_names, notes)
    x = np.stack([_numbers(table[name], name, place) for name in features], axis=1)
    return Table(place, features, x, None, labels, users, class_names)


def _labels(column: Any, names: tuple[str, ...], name: str, place: Path) -> tuple[NDArray[Any], tuple[str, ...]]:
    """The labels, and their names where the file has some for numbers."""
    values = _values(column, name, place)
    if values.dtype.kind == "U":
        return label_values(values, name, place), ()
    if values.dtype.kind == "b":
        return values.astype(str), ()
    whole = label_numbers(values, name, place)
    if names and (whole.min() < 0 or whole.max() >= len(names)):
        odd = whole[(whole < 0) | (whole >= len(names))][0]
        raise FedgenError(
            f"{place}: label {odd} in column '{name}' is none of its {len(names)} classes (-1 stands for a sample"
            " without a label); take out such rows"
        )
    return whole, names


def _named(schema: Any, name: str) -> tuple[str, ...]:
    """The names of a column's classes, in what `datasets` adds to a file."""
    try:
        about = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        names = about["info"]["features"][name]["names"]
    except (KeyError, TypeError, ValueError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _values(column: Any, name: str, place: Path) -> NDArray[Any]:
    """A column of labels or users, none of which may be missing, as numbers or words."""
    import pyarrow as pa

    if column.null_count:
        raise lacks_label(name, place, _row(_first_null(column)))
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return column.cast(kind).to_numpy()
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        values = column.cast(pa.float64()).to_numpy()
        if np.isnan(values).any():
            raise lacks_label(name, place, _row(int(np.flatnonzero(np.isnan(values))[0])))
        return values
    if _is_text(kind):
        words = np.array([word.strip() for word in column.cast(kind).to_pylist()])
        if (words == "").any():
            raise lacks_label(name, place, _row(int(np.flatnonzero(words == "")[0])))
        return words
    raise FedgenError(f"{place}: column '{name}' has values of type {kind}; labels and users are numbers or words")


def _numbers(column: Any, name: str, place: Path) -> NDArray[Any]:
    """A column of numbers of the samples."""
    return float_column(_exact_numbers(column, name, place), name, place, _row)


def _exact_numbers(column: Any, name: str, place: Path) -> NDArray[np.float64]:
    """As `_numbers`, not rounded to float32."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind) or _is_text(kind):
        example = next((str(word) for word in column.slice(0, 100).to_pylist() if word is not None), "")
        raise has_words(name, place, example, "")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        raise FedgenError(
            f"{place}: column '{name}' has lists; give each of their numbers a column, or save arrays as .npz"
            f" (docs/data.md), or leave it out: {dropping(name)}"
        )
    kinds = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if not any(is_kind(kind) for is_kind in kinds):
        raise no_numbers(name, place, f"values of type {kind}")
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    values: NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy()  # what is missing becomes NaN
    float_column(values, name, place, _row)
    return values


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_image(kind: Any) -> bool:
    """Whether a column has image files: their bytes, or `datasets`' pairs of bytes and a path."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return {kind.field(i).name for i in range(kind.num_fields)} == {"bytes", "path"}
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)


def _reader(read: Callable[[Sequence[str]], Any], name: str, place: Path) -> Callable[[int], bytes]:
    """The content of an image's file by its row: what the table has of it, or what is at the path that it names.

    The column is read with the first image, which is not needed where all are in the cache.
    """
    folder = place if place.is_dir() else place.parent
    column = cache(lambda: read([name])[name])

    def content(row: int) -> bytes:
        value = column()[row].as_py()
        if isinstance(value, bytes):
            return value
        if value and value["bytes"] is not None:
            return bytes(value["bytes"])
        if value and value["path"]:
            return (folder / value["path"]).read_bytes()
        raise FedgenError(f"{place}: column '{name}' has no image in {_row(row)}; take out such rows")

    return content


def _first_null(column: Any) -> int:
    return int(np.flatnonzero(column.is_null().to_numpy())[0])


def _row(row: int) -> str:
    return f"row {row + 1}"
