"""Raw images as inputs, for whoever predicts later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cloister.data.arrays import tensor_of
from cloister.data.user.decoding import SUFFIXES, ImageForm, decode
from cloister.data.user.image_files import images_below
from cloister.errors import CloisterError, expect


class ImageRows(NamedTuple):
    """Image files, and their names as they are shown."""

    files: list[Path]
    names: list[str]


@dataclass(frozen=True)
class ImageEncoder:
    """A folder of images (however deep they lie), one image, a list of paths, or an array of bytes, as inputs."""

    form: ImageForm
    class_names: tuple[str, ...] = ()
    workers: int | None = None

    def read(self, raw: Any) -> ImageRows | Tensor:
        """Which images are meant."""
        if isinstance(raw, (ImageRows, Tensor)):
            return raw
        if isinstance(raw, (str, Path)):
            path = Path(raw)
            if path.is_dir():
                files = images_below(path)
                return ImageRows(files, [file.relative_to(path).as_posix() for file in files])
            fine = path.is_file() and path.suffix.lower() in SUFFIXES
            expect(fine, "a folder of images, or an image", str(path), "check the name")
            return ImageRows([path], [path.name])
        if isinstance(raw, Sequence) and raw and all(isinstance(one, (str, Path)) for one in raw):
            return ImageRows([Path(one) for one in raw], [str(one) for one in raw])
        return self._bytes(tensor_of("images", raw))

    def encode(self, raw: Any) -> Tensor:
        """Bytes [n, channels, height, width]."""
        rows = self.read(raw)
        return (
            self._bytes(rows)
            if isinstance(rows, Tensor)
            else torch.from_numpy(decode(rows.files, self.form, self.workers))
        )

    def labels(self, raw: Any) -> Tensor | None:
        """The classes of images that lie in folders of these names, if all of them do."""
        rows = self.read(raw)
        if isinstance(rows, Tensor) or not self.class_names:
            return None
        number = {name: at for at, name in enumerate(self.class_names)}
        found = [number.get(file.parent.name) for file in rows.files]
        return None if None in found else torch.tensor(found)

    def identity(self, raw: Any) -> dict[str, Any]:
        """The names of the files; and of the clients, where they lie as client/class/image.png."""
        rows = self.read(raw)
        if isinstance(rows, Tensor):
            return {}
        columns = {"file": rows.names}
        parts = [name.split("/") for name in rows.names]
        if self.labels(rows) is not None and all(len(part) == 3 for part in parts):
            columns["client"] = [part[0] for part in parts]
        return columns

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"kind": "images", **asdict(self.form), "class_names": list(self.class_names)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ImageEncoder:
        """The inverse."""
        form = ImageForm(**{name: found[name] for name in ("height", "width", "channels", "resize")})
        return cls(form, tuple(map(str, found["class_names"])))

    def _bytes(self, images: Tensor) -> Tensor:
        """An array as it is, if it is such as the files would give."""
        if images.dim() == 3 and self.form.channels == 1:
            images = images.unsqueeze(1)
        kind = str(images.dtype).removeprefix("torch.")
        expect(images.dtype == torch.uint8, "images of uint8", kind, "give bytes from 0 to 255")
        if tuple(images.shape[1:]) != self.form.shape:
            raise CloisterError(
                f"Expected images of shape {('n', *self.form.shape)}, found {tuple(images.shape)}: channels come "
                "before height and width."
            )
        return images
