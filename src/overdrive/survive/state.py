"""The numbers that a program holds: taken at the end of a step, and put back into another run that came as far.

All is data: raw bytes by memory (so that views of one memory stay views of one), JSON for the rest.
"""

from __future__ import annotations

import base64
import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from overdrive.changes.generators import set_state, state_of
from overdrive.core.rng import States
from overdrive.seams.torch.internals import storage_id
from overdrive.seams.torch.layouts import strided_parts
from overdrive.survive import part_state
from overdrive.survive.heap import Heap
from overdrive.survive.in_parts import Parts
from overdrive.survive.optimizer_states import OptimizerStates
from overdrive.survive.program_walk import difference
from overdrive.survive.refusals import CannotTake, OtherState

_PLAIN = (bool, int, float, str, type(None))


class Taking:
    """Takes everything: numbers are copied at once, since the program goes on.

    Attributes:
        header: what `put_back` needs beside the blocks.
        blocks: arrays of bytes.
    """

    def __init__(self, heap: Heap, states: OptimizerStates, parts: Parts | None = None) -> None:
        """
        Args:
            parts: what this rank has of parameters that are divided.

        Raises:
            CannotTake: there is something whose next results are not in its tensors alone.
        """
        if heap.compiled:
            raise CannotTake(f"{heap.compiled} is compiled, and its last bits depend on the calls that it had before")
        if heap.hidden:
            raise CannotTake(f"{heap.hidden}, and some tensors are in nothing else")
        self.blocks: list[np.ndarray] = []
        self._memories: dict[int, int] = {}
        gradients: list[Any] = []
        tensors: list[int | None] = []
        own: list[Any] = []  # parts of parameters
        for path, tensor in heap.tensors:
            if tensor.layout is not torch.strided or tensor.is_quantized:
                raise CannotTake(f"{path} is a tensor of an unusual kind ({type(tensor).__name__}, {tensor.layout})")
            if tensor.is_meta:
                tensors.append(None)
                continue
            if parts is not None and parts.told(tensor):
                own.append([len(tensors), *part_state.told(parts, tensor, self._block)])
                tensors.append(None)
            else:
                tensors.append(self._memory(tensor))
            if tensor.is_leaf and tensor.grad is not None:
                gradients.append([len(tensors) - 1, *self._gradient(tensor.grad)])
        self.header = {
            "heap": heap.digest(),
            "tensors": tensors,
            "gradients": gradients,
            "attributes": [_attributes(each) for each in heap.optimizers],
            "optimizers": [states.told(each) for each in heap.optimizers],
            "generators": [_told(state_of(each)) for each in heap.generators],
            "random": _random_now(),
        }
        if parts is not None:
            self.header["parts"] = own
            self.header["states in parts"] = [parts.states_of(each) for each in heap.optimizers]

    def _block(self, flat: torch.Tensor) -> int:
        self.blocks.append(flat.detach().view(torch.uint8).cpu().clone().numpy())
        return len(self.blocks) - 1

    def _memory(self, tensor: torch.Tensor) -> int:
        key = storage_id(tensor)
        if key not in self._memories:
            self._memories[key] = len(self.blocks)
            self.blocks.append(_bytes_of(tensor).cpu().clone().numpy())
        return self._memories[key]

    def _gradient(self, gradient: torch.Tensor) -> tuple[list[Any], list[Any]]:
        """Tensors that are made anew, and what they are the indices and values of: an embedding's may be sparse."""
        if gradient.layout is torch.strided:
            return [self._whole(gradient)], []
        if gradient.layout is not torch.sparse_coo:
            raise CannotTake(f"a gradient is {gradient.layout}")
        parts = [self._whole(each) for each in strided_parts(gradient)]
        return parts, [list(gradient.shape), gradient.is_coalesced()]

    def _whole(self, tensor: torch.Tensor) -> list[Any]:
        """A tensor that is made anew."""
        about = [list(tensor.shape), list(tensor.stride()), int(tensor.storage_offset())]
        return [self._memory(tensor), *about, str(tensor.dtype).removeprefix("torch."), str(tensor.device)]


def make_states(heap: Heap, states: OptimizerStates, header: dict[str, Any]) -> None:
    """Have the optimizers that `heap` found keep what they kept, without its numbers: they are looked through after it.

    Raises:
        OtherState: there are more of them, or fewer.
    """
    if len(heap.optimizers) != len(header["optimizers"]):
        raise OtherState(f"{len(header['optimizers'])} optimizers at the snapshot, {len(heap.optimizers)} now")
    for optimizer, attributes, told in zip(heap.optimizers, header["attributes"], header["optimizers"], strict=True):
        vars(optimizer).update(attributes)
        states.make(optimizer, *told)
        states.stepped(optimizer)


def put_back(heap: Heap, header: dict[str, Any], block: Any, parts: Parts | None = None) -> None:
    """Make what `heap` found hold the numbers of `header` and its blocks.

    Args:
        block: gives the bytes of one, by its number; they can be written to, as PyTorch would warn of others.
        parts: see `Taking`.

    Raises:
        OtherState: this run holds other things.
    """
    if found := difference(header["heap"], heap.digest()):
        raise OtherState(found)
    with torch.no_grad():
        memories = _fill(heap, header["tensors"], block)
        for tensor in (each for _, each in heap.tensors):
            if tensor.is_leaf and tensor.grad is not None:
                tensor.grad = None
        for number, parts_made, sparse in header["gradients"]:
            made = [_made(each, block, memories) for each in parts_made]
            heap.tensors[number][1].grad = _sparse(made, *sparse) if sparse else made[0]
        if parts is not None:
            divided = [(*heap.tensors[place], values) for place, *values in header["parts"]]
            part_state.put_back(parts, divided, block)
            for optimizer, names in zip(heap.optimizers, header["states in parts"], strict=True):
                parts.put_states(optimizer, names)
    for generator, told in zip(heap.generators, header["generators"], strict=True):
        set_state(generator, _of_told(told))
    _put_back_random(header["random"])


def _fill(heap: Heap, memories: list[int | None], block: Any) -> dict[int, torch.Tensor]:
    """Returns: the memory that is filled with each block."""
    by_storage: dict[int, int] = {}
    by_number: dict[int, int] = {}
    for (path, tensor), number in zip(heap.tensors, memories, strict=True):
        if number is None:
            continue
        key = storage_id(tensor)
        if by_storage.setdefault(key, number) != number or by_number.setdefault(number, key) != key:
            raise OtherState(f"{path} shares its memory with another tensor than at the snapshot")
    done: dict[int, torch.Tensor] = {}
    for (path, tensor), number in zip(heap.tensors, memories, strict=True):
        if number is None or number in done:
            continue
        data, memory = block(number), _bytes_of(tensor)
        if memory.numel() != len(data):
            raise OtherState(f"{path} has {memory.numel()} bytes, and had {len(data)} at the snapshot")
        if memory.numel():
            memory.copy_(torch.frombuffer(data, dtype=torch.uint8))
        done[number] = memory
    return done


def _made(whole: list[Any], block: Any, memories: dict[int, Any]) -> torch.Tensor:
    number, shape, strides, offset, dtype, device = whole
    if number not in memories:
        memories[number] = torch.frombuffer(bytearray(block(number)) or bytearray(8), dtype=torch.uint8).to(device)
    kind = getattr(torch, dtype)
    tensor = torch.empty(0, dtype=kind, device=device)
    tensor.set_(memories[number].untyped_storage(), offset, shape, strides)
    return tensor


def _sparse(parts: list[torch.Tensor], shape: list[int], coalesced: bool) -> torch.Tensor:
    indices, values = parts
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=coalesced, check_invariants=False)


def _attributes(optimizer: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(optimizer).items() if type(value) in _PLAIN}


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All of the memory that it lies in, which it shares."""
    storage = tensor.untyped_storage()
    view = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return view.set_(storage, 0, (storage.nbytes(),), (1,))


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(bytes(state.tolist())).decode()


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def _told(state: Any) -> Any:
    """A generator's state, as JSON."""
    if isinstance(state, torch.Tensor):
        return {"bytes": _text(state)}
    if isinstance(state, np.ndarray):
        return {"array": state.tolist(), "dtype": str(state.dtype)}
    if isinstance(state, dict):
        return {"dict": {key: _told(value) for key, value in state.items()}}
    return [_told(each) for each in state] if isinstance(state, tuple) else state


def _of_told(told: Any) -> Any:
    if isinstance(told, list):
        return tuple(map(_of_told, told))
    if not isinstance(told, dict):
        return told
    if "dict" in told:
        return {key: _of_told(value) for key, value in told["dict"].items()}
    return _tensor(told["bytes"]) if "bytes" in told else np.array(told["array"], dtype=told["dtype"])


def _random_now() -> dict[str, Any]:
    """Of the global generators: PyTorch's; those of Python and NumPy are compared, for they came here by themselves."""
    states = States.now()
    return {"torch": _text(states.torch), "cuda": [_text(each) for each in states.cuda], "host": host_digest()}


def host_digest() -> str:
    states = States.now(with_cuda=False)
    return States(states.python, states.numpy, None, []).digest()


def _put_back_random(saved: dict[str, Any]) -> None:
    if saved["host"] != host_digest():
        raise OtherState("the random numbers of Python or NumPy are others than at the snapshot")
    torch.set_rng_state(_tensor(saved["torch"]))
    if saved["cuda"]:
        torch.cuda.set_rng_state_all([_tensor(each) for each in saved["cuda"]])


def some_keep_draws(models: Callable[[], Iterable[torch.nn.Module]]) -> bool:
    """Whether one of these does, for which they are asked on a GPU alone."""
    return torch.cuda.is_available() and any(map(keeps_draws_to_itself, models()))


def keeps_draws_to_itself(model: torch.nn.Module) -> bool:
    """Whether it draws random numbers whose state nobody can save.

    cuDNN's dropout between the layers of an LSTM or GRU does (https://github.com/pytorch/pytorch/issues/104697): on an
    H200 a public language model went on with others.
    """
    return any(
        isinstance(each, torch.nn.RNNBase)
        and each.training
        and each.dropout > 0
        and each.num_layers > 1
        and next(each.parameters()).is_cuda
        for each in model.modules()
    )


def host_state() -> Any:
    """Equal, and mostly the very same, where neither Python's nor NumPy's generator was used in between."""
    return States.of_host()


def torch_state() -> bytes:
    """Of PyTorch's generator on the CPU."""
    state = torch.default_generator.get_state()
    return ctypes.string_at(state.data_ptr(), state.nbytes)  # `numpy()` is a question of a tensor


def torch_told(state: bytes) -> str:
    """As text."""
    return base64.b64encode(state).decode()


def set_torch(told: str) -> None:
    torch.default_generator.set_state(_tensor(told))


def set_states(python: Any, numpy: Any, of_torch: bytes) -> None:
    """All three at once."""
    States(python, numpy, torch.frombuffer(bytearray(of_torch), dtype=torch.uint8), []).restore()


def host_told() -> list[Any]:
    """As JSON."""
    saved = States.now(with_cuda=False).plain()
    return [saved["python"], saved["numpy"]]


def set_host(told: list[Any]) -> None:
    States.of_plain({"python": told[0], "numpy": told[1], "torch": None, "cuda": []}).restore()
