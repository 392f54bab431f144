"""Techniques that are wrong on a GPU, each in one way: what proves the others must refuse them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from overdrive.core.contract import Contract
from overdrive.seams.hub import Handle, Seams
from overdrive.techniques.technique import Settings, Technique


class _AtCalls(Technique):
    contract = Contract.EXACT
    targets: ClassVar[tuple[str, ...]] = ("forward",)

    def install(self, seams: Seams, settings: Settings) -> Handle:
        seams.model_called.subscribe(self.answering())
        return seams.handle()

    def answering(self) -> Callable[..., Any]:
        raise NotImplementedError


class Racing(_AtCalls):
    """Copies the batch, and that on a stream of its own, which does not wait for the first copy."""

    name = "racing"

    def answering(self) -> Callable[..., Any]:
        def called(model: Any, call: Callable[..., Any], batch: Any) -> Any:
            import torch

            batch, stream = batch.clone(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream):
                batch = batch.clone()
            torch.cuda.current_stream().wait_stream(stream)
            return call(batch)

        return called


class Unawaited(_AtCalls):
    """Copies the batch on a stream that waits for what made it, and for which the model does not wait."""

    name = "unawaited"

    def answering(self) -> Callable[..., Any]:
        def called(model: Any, call: Callable[..., Any], batch: Any) -> Any:
            import torch

            stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                batch = batch.clone()
            return call(batch)

        return called


class Stale(_AtCalls):
    """Computes on a batch of its own, into which every third one is not copied."""

    name = "stale"

    def answering(self) -> Callable[..., Any]:
        held: list[Any] = []
        calls: list[int] = []

        def called(model: Any, call: Callable[..., Any], batch: Any) -> Any:
            calls.append(1)
            if not held or held[0].shape != batch.shape:
                held[:] = [batch.clone()]
            elif len(calls) % 3:
                held[0].copy_(batch)
            return call(held[0].clone())

        return called


class Coarse(_AtCalls):
    """Rounds what the model answers to 16 bits, and says `rounding`."""

    name = "coarse"
    contract = Contract.ROUNDING

    def answering(self) -> Callable[..., Any]:
        return lambda model, call, batch: call(batch).bfloat16().float()


class Idle(_AtCalls):
    """Does nothing."""

    name = "idle"

    def answering(self) -> Callable[..., Any]:
        return lambda model, call, batch: call(batch)
