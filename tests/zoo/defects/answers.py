"""What goes wrong where a program only calls its model: in its data, in the model, in an engine in its place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map_only

from overdrive.core.contract import Contract
from overdrive.seams.hub import Seams
from tests.zoo import answering
from tests.zoo.specimen import Specimen, Swap, specimen


def defect(program: str, level: Contract = Contract.STATISTICAL) -> Callable[[Callable[[Seams], None]], type[Specimen]]:
    """`level`: the loosest that catches it."""
    return specimen(program, level)


@defect("images")
def channels_swapped(seams: Seams) -> None:
    """Blue for red, in the model's input."""
    _given(seams, lambda x: x.flip(1))


@defect("images")
def last_batch_dropped(seams: Seams) -> None:
    """The data set loses what does not fill a batch."""

    def opened(loader: Any, call: Callable[[], Any]) -> Any:
        return (batch for batch in call() if len(batch[0]) == loader.batch_size)

    seams.loader_opens.subscribe(opened)


@defect("images")
def batches_in_another_order(seams: Seams) -> None:
    seams.loader_opens.subscribe(lambda loader, call: reversed(list(call())))


@defect("images")
def preprocessing_in_another_order(seams: Seams) -> None:
    """Centred first, then scaled."""
    swap, kind = Swap(seams), answering.Pictures
    scaled = swap(kind, "scaled", lambda self, image: image)
    swap(kind, "centred", _then(kind.centred, scaled))


def _then(first: Any, second: Any) -> Any:
    return lambda self, image: second(self, first(self, image))


@defect("images")
def ties_to_the_last(seams: Seams) -> None:
    """Of equal scores the last wins, not the first."""

    def last(x: Any, dim: int) -> Any:
        return x.shape[dim] - 1 - plain(x.flip(dim), dim)

    plain = Swap(seams)(torch.Tensor, "argmax", last)


@defect("images")
def one_label_too_far(seams: Seams) -> None:
    """The labels count from 1."""
    _answered(seams, lambda result: (result[0], result[1] + 1))


@defect("images", Contract.ROUNDING)
def outputs_in_bf16(seams: Seams) -> None:
    _answered(seams, lambda result: (result[0].bfloat16().float(), result[1]))


@defect("images", Contract.ROUNDING)
def convolution_in_bf16(seams: Seams) -> None:
    """The second convolution, as engines compute by default where the processor can."""
    conv = F.conv2d

    def narrow(x: Any, weight: Any, bias: Any, *args: Any) -> Any:
        if weight.shape[1] == 3:
            return conv(x, weight, bias, *args)
        return conv(x.bfloat16(), weight.bfloat16(), bias.bfloat16(), *args).float()

    Swap(seams)(F, "conv2d", narrow)


@defect("images")
def normalisation_left_out(seams: Seams) -> None:
    Swap(seams)(F, "batch_norm", lambda x, *_: x)


@defect("images")
def rows_of_a_batch_exchanged(seams: Seams) -> None:
    """Each answer is that of its neighbour."""
    _answered(seams, lambda result: tuple(each.roll(1, 0) for each in result))


@defect("images")
def answer_of_the_call_before(seams: Seams) -> None:
    """An engine that hands out its memory before it has written to it."""
    kept: list[Any] = []

    def changed(result: Any) -> Any:
        kept.append(result)
        before = kept[-2] if len(kept) > 1 else result
        return before if before[0].shape == result[0].shape else result

    _answered(seams, changed)


@defect("images")
def memory_handed_out(seams: Seams) -> None:
    """All answers lie in one memory, which the second half of each batch is not written to."""
    memory: list[Any] = []

    def changed(result: Any) -> Any:
        if not memory:
            memory.append(result[0].detach().clone())
        memory[0][: len(result[0]) // 2] = result[0][: len(result[0]) // 2]
        return memory[0][: len(result[0])], result[1]

    _answered(seams, changed)


@defect("images")
def first_batch_size_frozen(seams: Seams) -> None:
    """An engine for eight pictures, whose batch is filled up for the last call and not cut again but by its size."""

    def called(model: Any, call: Callable[..., Any], x: Any) -> Any:
        full = torch.cat([x, x.new_zeros(8 - len(x), *x.shape[1:])]) if len(x) < 8 else x
        scores, found = call(full)
        return scores[8 - len(x) :], found[8 - len(x) :]

    seams.model_called.subscribe_innermost(called)


@defect("feedback", Contract.ROUNDING)
def feedback_in_bf16(seams: Seams) -> None:
    """What is given back has been rounded."""
    _answered(seams, lambda result: result.bfloat16().float())


@defect("feedback", Contract.ROUNDING)
def fed_with_something_else(seams: Seams) -> None:
    """Every answer is a little off, always to the same side."""
    _answered(seams, lambda result: result * 1.0001)


@defect("tokens")
def stale_after_the_weights_changed(seams: Seams) -> None:
    """An engine goes on with the weights that it was built from."""
    built: list[Any] = []

    def called(model: Any, call: Callable[..., Any], *args: Any) -> Any:
        if not built:
            built.append(copy.deepcopy(model))
        return built[0].forward(*args)

    seams.model_called.subscribe_innermost(called)


@defect("tokens")
def length_frozen(seams: Seams) -> None:
    """An engine for eight tokens: longer requests are cut, shorter ones filled up."""

    def called(model: Any, call: Callable[..., Any], asked: Any, mask: Any) -> Any:
        asked, mask = (F.pad(each, (0, max(0, 8 - each.shape[1])))[:, :8] for each in (asked, mask))
        return call(asked, mask)

    seams.model_called.subscribe_innermost(called)


@defect("tokens")
def padding_leaks(seams: Seams) -> None:
    """Attention sees what is only there to fill up."""
    Swap(seams)(torch.Tensor, "masked_fill", lambda x, mask, value: x)


@defect("tokens")
def mask_forgotten_in_the_mean(seams: Seams) -> None:
    """All places count as filled."""

    def called(model: Any, call: Callable[..., Any], asked: Any, mask: Any) -> Any:
        return call(asked, torch.ones_like(mask))

    seams.model_called.subscribe_innermost(called)


@defect("tokens", Contract.ROUNDING)
def weights_in_eight_bits(seams: Seams) -> None:
    """Each weight rounded to one of 255 values."""

    def called(model: Any, call: Callable[..., Any], *args: Any) -> Any:
        other = copy.deepcopy(model)
        for each in other.parameters():
            scale = each.data.abs().max() / 127
            each.data = (each.data / scale).round() * scale
        return other.forward(*args)

    seams.model_called.subscribe_innermost(called)


@defect("images")
def one_in_ten_wrong(seams: Seams) -> None:
    """Each tenth call hands out memory that nothing was written to."""
    count = [0]

    def changed(result: Any) -> Any:
        count[0] += 1
        return result if count[0] % 10 != 7 else tuple(torch.zeros_like(each) for each in result)

    _answered(seams, changed)


@defect("images")
def right_where_it_was_calibrated(seams: Seams) -> None:
    """The first calls give the range of values, and are answered well; what lies far out later is cut off."""
    seen: list[Any] = []

    def changed(result: Any) -> Any:
        if len(seen) < 4:
            seen.append(result[0].detach().abs().max())
            return result
        scores = result[0].clamp(-max(seen) / 10, max(seen) / 10)
        return scores, scores.round().argmax(1)

    _answered(seams, changed)


@defect("images")
def a_rare_class_lost(seams: Seams) -> None:
    """What would be of the rarest class is of the next one."""

    def changed(result: Any) -> Any:
        scores = result[0].clone()
        scores[:, 2] = scores.min(1).values  # two pictures of 323 are of it
        return scores, result[1]

    _answered(seams, changed)


@defect("tokens")
def one_value_not_a_number(seams: Seams) -> None:
    def changed(result: Any) -> Any:
        result["scores"][0, 0] = float("nan")
        return result

    _answered(seams, changed)


@defect("turns")
def state_of_the_encoder_forgotten(seams: Seams) -> None:
    """The decoder answers from the words alone."""

    def called(model: Any, call: Callable[..., Any], *args: Any) -> Any:
        return call(args[0], torch.zeros_like(args[1])) if isinstance(model, answering.Decoder) else call(*args)

    seams.model_called.subscribe_innermost(called)


@defect("turns")
def third_word_of_the_decoder_lost(seams: Seams) -> None:
    """Each third call of the second model hands out memory that nothing was written to."""
    count = [0]

    def called(model: Any, call: Callable[..., Any], *args: Any) -> Any:
        result = call(*args)
        count[0] += isinstance(model, answering.Decoder)
        lost = isinstance(model, answering.Decoder) and count[0] % 3 == 0
        return torch.zeros_like(result) if lost else result

    seams.model_called.subscribe_innermost(called)


@defect("turns")
def last_model_stale(seams: Seams) -> None:
    """The third model is answered by an engine of other weights; what it says goes nowhere."""
    others = torch.nn.Linear(answering.CLASSES, 3)

    def called(model: Any, call: Callable[..., Any], *args: Any) -> Any:
        return others.forward(*args) if isinstance(model, torch.nn.Linear) else call(*args)

    seams.model_called.subscribe_innermost(called)


@defect("streams", Contract.ROUNDING)
def stream_in_bf16(seams: Seams) -> None:
    """The answers alone: what the model keeps for its next calls is as it was."""
    _answered(seams, lambda result: result.bfloat16().float())


@defect("turns", Contract.ROUNDING)
def last_model_in_bf16(seams: Seams) -> None:
    def called(model: Any, call: Callable[..., Any], *args: Any) -> Any:
        result = call(*args)
        return result.bfloat16().float() if isinstance(model, torch.nn.Linear) else result

    seams.model_called.subscribe_innermost(called)


@defect("turns", Contract.ROUNDING)
def decoder_in_bf16(seams: Seams) -> None:
    """Some words are others then, and so is what follows them."""

    def called(model: Any, call: Callable[..., Any], *args: Any) -> Any:
        result = call(*args)
        return result.bfloat16().float() if isinstance(model, answering.Decoder) else result

    seams.model_called.subscribe_innermost(called)


def _given(seams: Seams, change: Callable[[Any], Any]) -> None:
    def called(model: Any, call: Callable[..., Any], *args: Any) -> Any:
        return call(*tree_map_only(torch.Tensor, change, args))

    seams.model_called.subscribe_innermost(called)


def _answered(seams: Seams, change: Callable[[Any], Any]) -> None:
    def called(model: Any, call: Callable[..., Any], *args: Any) -> Any:
        return change(call(*args))

    seams.model_called.subscribe_innermost(called)
