"""What goes from stage to stage, and back as gradients, within the graph that each rank has of its own stage.

Each of these nodes gives a *token* beside what it is for: a number that the call's results are made to hang on. So a
backward pass comes to every one of them, on every rank, in the reverse of the order of the call, whatever it uses: what
one rank waits for, another one is sure to send. They hang themselves on an *anchor*, a number that comes of what the
call is given: so a pass that is made for that alone (`torch.autograd.grad`) comes to all of them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.autograd.function import once_differentiable


class Links(Protocol):
    """The ways between ranks; a rank has one stage.

    Attributes:
        replicas: the ranks that have this stage, each in a row of its own.
    """

    replicas: Any

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def number(self) -> int:
        """Of the next transfer: all ranks count all of them."""

    def send(self, tensor: torch.Tensor, to: int, number: int, back: bool = False) -> None:
        """Without waiting for who takes it. `back`: it is the gradient of what was sent under this number."""

    def receive(self, room: torch.Tensor, source: int, number: int, back: bool = False) -> None:
        """Into `room`, which is of one piece."""

    def later(self, room: torch.Tensor, source: int, number: int) -> Callable[[], None]:
        """The same; returns what waits for it."""

    def summed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Over ranks, in its place."""


class Sent(torch.autograd.Function):
    """To another stage. Gives a token."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, anchor: Any, links: Links, to: int, number: int) -> Any:
        ctx.links, ctx.to, ctx.number = links, to, number
        ctx.like = tensor.new_empty(0), tensor.shape
        links.send(packed(tensor), to, number)
        return tensor.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, token: Any) -> Any:
        like, shape = ctx.like
        room = like.new_empty(shape)
        ctx.links.receive(room, ctx.to, ctx.number, back=True)
        return room, None, None, None, None


class Received(torch.autograd.Function):
    """From another stage. Gives what was sent, and a token. `like` has the shape, and no data."""

    @staticmethod
    def forward(ctx: Any, anchor: Any, links: Links, source: int, number: int, like: Any) -> Any:
        ctx.links, ctx.source, ctx.number = links, source, number
        made = received(links, source, number, like, anchor.device)
        return made, made.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Any, token: Any) -> Any:
        ctx.links.send(gradient.contiguous(), ctx.source, ctx.number, back=True)
        return None, None, None, None, None


class Entered(torch.autograd.Function):
    """What the program gives to the call, with a gradient; every stage may use it. Gives it, and a token."""

    @staticmethod
    def forward(ctx: Any, given: Any, links: Links) -> Any:
        ctx.links = links
        return given.clone(), given.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Any, token: Any) -> Any:
        return ctx.links.summed(gradient.clone(memory_format=torch.contiguous_format)), None


class Delivered(torch.autograd.Function):
    """The call's results, which all ranks have; the gradient goes into those that were made on this one.

    Args:
        reached: is told that a backward pass has come here.
        wholes: the results, in memory of their own: the program may write to them.
        pieces: of each, how many of `tensors` it is made of, and along which dimension; 0 where another rank made it.
        tensors: these, and then tokens.
    """

    @staticmethod
    def forward(
        ctx: Any, reached: Callable[[], None], wholes: list[Any], pieces: list[tuple[int, int]], *tensors: Any
    ) -> Any:
        ctx.reached, ctx.pieces = reached, pieces
        ctx.several = len(wholes) > 1
        ctx.shapes = [each.shape for each in tensors]
        ctx.set_materialize_grads(False)
        return tuple(wholes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.reached()
        some = next(each for each in gradients if each is not None)
        found: list[Any] = []
        for gradient, (count, dim) in zip(gradients, ctx.pieces, strict=True):
            shapes = ctx.shapes[len(found) : len(found) + count]
            if gradient is None or count < 2:
                found += [gradient] * count
            else:
                found += gradient.split([shape[dim] for shape in shapes], dim)
        tokens = [some.new_zeros(()) for _ in ctx.shapes[len(found) :]]
        return None, None, None, *found, *tokens


def one_of_several(result: Any) -> bool:
    """Whether a call in stages has made it, and others with it, which may be computed from it on other ranks: what
    comes here as its gradient may not be all."""
    made = result.grad_fn if isinstance(result, torch.Tensor) and result.requires_grad else None
    if hasattr(made, "crossing"):  # of all replicas
        made = made.next_functions[0][0]  # type: ignore[union-attr]
    return getattr(made, "several", False)


def received(links: Links, source: int, number: int, like: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor as `like`, with its strides."""
    dense = _each_once(like)
    room = torch.empty(dense.shape, dtype=like.dtype, device=device)
    links.receive(room, source, number)
    if dense.stride() != room.stride():
        room = torch.empty_strided(dense.shape, dense.stride(), dtype=like.dtype, device=device).copy_(room)
    return room if room.shape == like.shape else room.expand(like.shape)  # a view could not be written to


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """What `received` waits for: in one piece, each element once."""
    return _each_once(tensor).contiguous()


def _each_once(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor
