"""Seams *value asked* and *shape asked*: Python takes from a tensor what depends on its numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from overdrive.seams.torch import asked as asked_seam
from overdrive.worker.session import Session


class Asked:
    """Makes each call, and notes what was asked for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def observe(self, seams: Any) -> None:
        seams.value_asked.subscribe(self._noted)
        seams.shape_asked.subscribe(self._noted)

    def _noted(self, subject: Any, call: Callable[[], Any]) -> Any:
        self.names.append(subject[0])
        return call()


def test_a_choice_by_truth_values_is_heard_of_and_a_tensor_stays_no_sequence() -> None:
    """For C: of a list that holds tensors without dimensions a tensor is made, of one that holds others none."""
    number, parameter = torch.tensor(2.0), torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    asked = Asked()
    with Session(observers=[asked.observe]):
        assert torch.ones(3)[torch.tensor([True, False, True])].shape == (2,)
        assert parameter[parameter > 3.5].shape == (1,) and parameter[0].detach() == 3
        assert asked.names == ["__getitem__", "__getitem__", "__bool__"]
        assert torch.tensor([number, parameter[1].detach()]).tolist() == [2.0, 4.0]
        assert torch.as_tensor([[number], [number]]).shape == (2, 1)
        assert torch.arange(3)[[torch.tensor(1)],].tolist() == [1]

        class Loss(torch.Tensor):
            pass

        class Chosen(torch.Tensor):
            def __getitem__(self, place: Any) -> Any:
                return super().__getitem__(place)

        assert torch.tensor([number.as_subclass(Loss)]).tolist() == [2.0]
        assert torch.ones(3).as_subclass(Chosen)[1] == 1
        for held in (torch.ones(2), torch.nn.Parameter(torch.ones(2))):
            try:
                torch.tensor([held])
            except (ValueError, TypeError) as error:
                assert "only one element tensors" in str(error)
            else:
                raise AssertionError("a tensor counts as a sequence")
    assert not {"__getitem__", "__init_subclass__"} & vars(torch.Tensor).keys()
    assert torch.tensor([number]).tolist() == [2.0]


def kept_by(scores: torch.Tensor, threshold: float) -> torch.Tensor:
    return (scores > threshold).nonzero()[:, 0]


def test_operators_of_libraries_whose_shapes_depend_on_values_are_heard_of() -> None:
    """By the tag that they have; torchvision's `nms` has none."""
    tag = torch.Tag.dynamic_output_shape
    libraries = {name: torch.library.Library(name, "FRAGMENT") for name in ("torchvision", "library")}
    for name, tags in (("torchvision::nms", ()), ("library::kept", (tag,)), ("library::plain", ())):
        space, _, own = name.partition("::")
        if not hasattr(getattr(torch.ops, space), own):
            torch.library.define(name, "(Tensor scores, float threshold) -> Tensor", lib=libraries[space], tags=tags)
            torch.library.impl(name, "CPU", kept_by, lib=libraries[space])
    scores, asked = torch.tensor([0.1, 0.6, 0.9]), Asked()
    with Session(observers=[asked.observe]):
        assert torch.ops.library.kept(scores, 0.5).tolist() == [1, 2]
        assert torch.ops.library.plain(scores, threshold=0.7).tolist() == [2]
        assert torch.ops.torchvision.nms(scores, 0.5).tolist() == [1, 2]
        heard = [each for each in asked.names if each not in ("nonzero", "tolist")]
    assert heard == ["library.kept", "torchvision.nms"]


def test_all_of_pytorchs_own_operators_whose_shapes_depend_on_values_are_heard_of() -> None:
    """`ctc_loss` returns a loss of a known shape; `lstsq` leaves its residuals away where the rank is not full."""
    seen = {"_unique": "unique", "_unique2": "unique", "unique_dim": "unique", "index": "__getitem__"}
    seen |= {"unique_dim_consecutive": "unique_consecutive", "_ctc_loss": None, "linalg_lstsq": None}
    tagged = set()
    for full in torch._C._dispatch_get_all_op_names():
        library, _, rest = full.partition("::")
        name, _, overload = rest.partition(".")
        if library == "aten":
            operator = getattr(getattr(torch.ops.aten, name), overload or "default")
            tagged |= {name} if torch.Tag.dynamic_output_shape in operator.tags else set()
    assert {"nonzero", "unique_dim_consecutive"} <= tagged
    assert {seen.get(name, name) for name in tagged} <= {*asked_seam._SHAPED, "one_hot", "__getitem__", None}


def test_torchscript_knows_what_is_heard_of() -> None:
    def choose(x: torch.Tensor) -> torch.Tensor:
        places = torch.nonzero(x).sum() + torch.masked_select(x, x > 0).sum() + torch.rand(2).sum()
        return torch.where(x > 0, x, torch.zeros_like(x)) + places * 0

    asked = Asked()

    def observe(seams: Any) -> None:
        asked.observe(seams)
        seams.random_drawn.subscribe(lambda *drawn: None)

    with Session(observers=[observe]):
        assert torch.jit.script(choose)(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
    assert torch.jit.script(choose)(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]


def test_classes_that_are_counted_are_heard_of() -> None:
    labels, asked = torch.tensor([0, 3]), Asked()
    functional = torch.nn.functional
    plain = functional.one_hot
    with Session(observers=[asked.observe]):
        assert functional.one_hot(labels).shape == functional.one_hot(labels, num_classes=-1).shape == (2, 4)
        assert functional.one_hot(labels, 5).shape == functional.one_hot(labels, num_classes=5).shape == (2, 5)
        assert asked.names == ["one_hot", "one_hot"]
    assert functional.one_hot is plain


def test_pytorch_warns_of_the_program_s_line() -> None:
    loss = torch.ones(1, requires_grad=True).sum()
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with Session(observers=[Asked().observe]), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert float(loss) == int(loss) == 1
    finally:
        torch.set_warn_always(always)
    assert {each.filename for each in warned} == {__file__}
