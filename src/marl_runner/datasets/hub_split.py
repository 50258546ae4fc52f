"""One split through `datasets.load_dataset`, with its many failures told in one sentence each."""

from __future__ import annotations

import os.path
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marl_runner.datasets.csv_rows import parse_csv
from marl_runner.errors import DataError


def local_folder(name: str) -> Path | None:
    """The folder that `name` means, or None where it is a hub id.

    Raises:
        DataError: `name` is a file, a path that does not exist, or a folder in another format.
    """
    path = os.path.expanduser(name)
    if os.path.isfile(path):
        raise DataError(f"dataset.name={name} is a file; use dataset=files dataset.path={name}")
    if not os.path.isdir(path):
        if name.startswith(("/", "./", "../", "~")):
            raise DataError(f"dataset.name={name} does not exist (working folder {Path.cwd()})")
        return None
    if any(os.path.isfile(os.path.join(path, file)) for file in ("state.json", "dataset_dict.json")):
        raise DataError(
            f"dataset.name={name} was written by save_to_disk; write it with to_parquet and use dataset=files"
        )
    return Path(path)


@contextmanager
def cache_for(folder: Path | None) -> Iterator[str | None]:
    """A cache folder to throw away for a local dataset, None (the library's own cache) for a hub id.

    The library tells changed local files by their time stamps, so its own cache can serve content that is gone.
    """
    if folder is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="marl-runner-") as cache_dir:
        yield cache_dir


def load_split(
    name: str, config: str | None, split: str, *, key: str, folder: Path | None, cache_dir: str | None
) -> Any:
    """The split as a `datasets.Dataset`.

    Args:
        name: Hub id or folder, as the user wrote it.
        config: The dataset's configuration, or None.
        split: Name of the split, or a slice such as `train[:10%]`.
        key: The setting that `split` comes from, for messages: `split` or `eval_split`.
        folder: What `local_folder` says about `name`.
        cache_dir: What `cache_for` gives.

    Raises:
        DataError: The dataset, its configuration or the split is not there or cannot be read.
    """
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    path = str(folder or name)
    asked = f"dataset.name={name} dataset.config={config or 'null'} dataset.{key}={split}"
    options: dict[str, Any] = {}
    if folder is not None:
        with _short_errors(name, asked):
            builder = datasets.load_dataset_builder(path, name=config, cache_dir=cache_dir)
        options = _text_options(builder)
    with _short_errors(name, asked):
        return datasets.load_dataset(path, name=config, split=split, cache_dir=cache_dir, **options)


def _text_options(builder: Any) -> dict[str, Any]:
    """Loading options that keep the cells of CSV files as they are; none for other formats or where types are stated.

    Each file is also read by our own parser, since pandas silently shifts or fills rows of the wrong length.
    """
    if builder.name != "csv" or builder.info.features is not None:
        return {}
    import datasets

    config = builder.config
    files = [Path(file) for paths in config.data_files.values() for file in paths]
    plain = (config.sep, config.names, config.skiprows) == (",", None, None)
    if not plain or any(file.suffix.lower() != ".csv" or not file.is_file() for file in files):
        return {"na_filter": False}
    names = dict.fromkeys(name for file in files for name in parse_csv(file.read_bytes(), file.name)[0])
    return {"na_filter": False, "features": datasets.Features({name: datasets.Value("string") for name in names})}


@contextmanager
def _short_errors(name: str, asked: str) -> Iterator[None]:
    from datasets.exceptions import DatasetNotFoundError, DatasetsError
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        yield
    except (ConnectionError, LocalEntryNotFoundError) as error:
        raise DataError(
            f"dataset.name={name} cannot be fetched, there is no connection to the hub; where there is one, run "
            f"`hf download {name} --repo-type dataset --local-dir DIR`, then set dataset.name=DIR, or use dataset=files"
        ) from error
    except DatasetNotFoundError as error:
        raise DataError(
            f"dataset.name={name} is not on the hub, or is private; check the name, run `hf auth login`, or use "
            "dataset=files"
        ) from error
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        # For a broken file the library's own message says nothing; the true one is the cause below it.
        told = str(error.__cause__ or error).split("\n")[:2]
        raise DataError(f"{asked} cannot be loaded: {' '.join(told)}") from error
