"""Images between the forms that transforms are given: Pillow's pictures, and tensors of channels × height × width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from overdrive.datacache.layout import Unfit

if TYPE_CHECKING:
    import torch

_PICTURES = {"L": 1, "RGB": 3}  # modes whose pixels are bytes, and how many of them


def mode_of(image: Any) -> str | None:
    """A picture's mode; None for a tensor.

    Raises:
        Unfit: it is neither, or a picture whose pixels are not one or three bytes.
    """
    import torch

    if isinstance(image, torch.Tensor):
        return None
    mode = getattr(image, "mode", None)
    if mode not in _PICTURES:
        raise Unfit(f"its transforms are given other things than pictures or tensors ({type(image).__name__})")
    return str(mode)


def to_tensor(image: Any) -> torch.Tensor:
    """A picture's bytes; a tensor as it is.

    Raises:
        Unfit: as `mode_of`.
    """
    import torch

    mode = mode_of(image)
    if mode is None:
        return image.as_subclass(torch.Tensor)  # type: ignore[no-any-return]
    pixels = np.array(image, dtype=np.uint8).reshape(image.size[1], image.size[0], _PICTURES[mode])
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def to_image(tensor: torch.Tensor, mode: str | None) -> Any:
    """What `to_tensor` was given, of its own memory."""
    if mode is None:
        return tensor.clone()
    from PIL import Image

    pixels = tensor.numpy()
    pixels = pixels[0] if mode == "L" else np.ascontiguousarray(pixels.transpose(1, 2, 0))
    return Image.frombytes(mode, (pixels.shape[1], pixels.shape[0]), pixels.tobytes())


def turn_hues(images: np.ndarray[Any, np.dtype[np.uint8]], shifts: Any) -> Any:
    """Pictures of three colours, as bytes (samples × 3 × height × width), each with its hue shifted by so much of 256.

    All at once, as one picture that is so much higher: Pillow's own arithmetic.
    """
    from PIL import Image

    count, _, height, width = images.shape
    pixels = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    one = Image.frombytes("RGB", (width, count * height), pixels.tobytes()).convert("HSV")
    turned = np.array(one, dtype=np.uint8).reshape(count, height, width, 3)
    turned[..., 0] += np.asarray(shifts, dtype=np.uint8).reshape(-1, 1, 1)
    back = Image.frombytes("HSV", (width, count * height), turned.tobytes()).convert("RGB")
    return np.array(back, dtype=np.uint8).reshape(count, height, width, 3).transpose(0, 3, 1, 2)
