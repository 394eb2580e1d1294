"""A task from whatever lies at a path: a folder of tables, one table, folders of images, or a folder of arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cloister.data.arguments import IS_PATH
from cloister.data.paths import TABLES, expect_there
from cloister.data.task import Task
from cloister.data.user.array_folder import from_array_folder, is_array_folder
from cloister.data.user.from_tables import AnySchema, from_file, from_folder
from cloister.data.user.image_folder import from_image_folder
from cloister.data.user.schema_files import schema_of
from cloister.errors import expect

LossName = Literal["cross_entropy", "ordinal", "mse", "mae", "huber", "multi_label", "hazards", "cox"]

ArrayLossName = Literal["cross_entropy", "ordinal", "next_token", "mse", "mae", "huber", "multi_label", "cox"]


def from_path(path: str | Path, **options: Any) -> Task:
    """A task from a path: a folder with a table per client, a table with a column of clients, folders of images, or
    arrays that stay on the disk (a folder with inputs.npy).

    Options are those of `from_folder`, `from_file`, `from_image_folder` or `from_array_folder`.
    """
    expect(isinstance(path, (str, Path)), "path to be that of a folder or a file", path, "give a text")
    return maker_of(str(path))(**options)


def maker_of(path: str) -> Callable[..., Task]:
    """The function that makes a task of what lies at a path; its arguments are the keys of a run."""
    where = Path(path)
    expect_there(path)
    if where.is_dir() and is_array_folder(where):
        return partial(from_array_path, path)
    if where.is_dir() and _has_folders_alone(where):
        return partial(from_image_folder, path)
    return partial(from_table_path, where)


def _has_folders_alone(folder: Path) -> bool:
    seen = [one for one in folder.iterdir() if not one.name.startswith(".")]
    return any(one.is_dir() for one in seen) and not any(one.suffix in TABLES for one in seen if one.is_file())


def from_table_path(
    path: str | Path,
    schema: Annotated[str | None, "a TOML file that says what the columns are", IS_PATH] = None,
    label: Annotated[
        str | None, "the column of labels (several with commas); by default the schema's, or label"
    ] = None,
    client: Annotated[str | None, "for one file: the column that says whose a row is"] = None,
    test_file: Annotated[str | None, "a file to test on, in place of a part of every client's rows", IS_PATH] = None,
    test_fraction: Annotated[float | None, "the part of every client's rows to test on (default: 0.2)"] = None,
    loss: Annotated[LossName | None, "what is minimized; by default what fits the label"] = None,
    classes: Annotated[int | None, "without a schema: how many classes there are"] = None,
    intervals: Annotated[list[float] | None, "for survival: the ends of the intervals"] = None,
    public_samples: Annotated[int, "samples to set aside as public, of whole clients"] = 0,
    split_seed: Annotated[int, "seed by which samples are held out and set aside"] = 0,
) -> Task:
    """A task from a folder with a table per client, or from one table with a column of clients."""
    options: dict[str, Any] = {"label": _columns(label), "public_samples": public_samples, "seed": split_seed}
    given = {
        "test": test_file,
        "test_fraction": test_fraction,
        "loss": loss,
        "classes": classes,
        "intervals": intervals,
    }
    options |= {name: value for name, value in given.items() if value is not None}
    known: AnySchema | None = None if schema is None else schema_of(schema)
    if test_file is not None:
        expect(schema is not None, "a schema beside a file to test on", "none", "it says how to read that file")
    if Path(path).is_dir():
        expect(client is None, "one file, beside client", f"the folder {path}", "there, files are clients")
        return from_folder(path, schema=known, **options)
    return from_file(path, schema=known, client=client, **options)


def from_array_path(
    path: str | Path,
    loss: Annotated[ArrayLossName, "what is minimized"] = "cross_entropy",
    classes: Annotated[int | None, "how many classes there are; by default one more than the largest label"] = None,
    **options: Any,
) -> Task:
    """A task from a folder of arrays that stay on the disk: inputs.npy, labels.npy and sizes.npy."""
    return from_array_folder(str(path), classes, loss, **options)


def _columns(label: Any) -> Any:
    if isinstance(label, str) and "," in label:
        return [name.strip() for name in label.split(",")]
    return label
