"""Technique `prefix_cache`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.datacache.switch import SharedFlag
from overdrive.seams.hub import Handle
from overdrive.seams.points import reason_of
from overdrive.techniques.technique import Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.datacache.audit import Audit
    from overdrive.seams.hub import Seams
    from overdrive.techniques.data.prefix_cache.halving import Halving


class PrefixCache(Technique):
    """Keeps what a sample is before its random augmentation begins, and augments it anew each time.

    What it does: finds the method that fetches one sample (mostly `__getitem__`), and the last place in its
    body before any random number is drawn; cuts it there in two; keeps what the first half makes (a decoded
    picture, say) as rows of bytes, in a file mapped into memory that the loader's workers share; and runs
    only the second half from then on. Where that half begins with a list of transforms, the ones before the
    first random one are kept as well. The file outlives the process, beside those of `sample_cache`.

    When it helps: where samples are decoded and resized first and augmented then, which `sample_cache` has to
    refuse: most image training.

    When it hurts: where the augmentation takes most of the time, or where decoded samples fit neither the memory
    nor the disk (then it refuses). A first run spends time on writing them down.

    Contract: exact. Found by trying, in a forked process, never by names: both halves, with the kept values
    between them, must make the same samples in every bit as the method itself, and leave all random
    generators, the data set's own among them, in the same state, for a dozen samples and several seeds. The
    first half runs on a stand-in for the data set that shows it only those attributes that it was seen to
    read; these, its code and its files are what a kept sample depends on. A sample whose first half draws,
    fails or differs in form is not kept, and is fetched by the method itself each time.

    What it watches: before each batch, as `sample_cache` does, what the first half depends on, and the class; each of
    the program's workers looks for itself, and this process at what they share with it. All through a run some samples
    are made again whole in a forked copy of the program and compared with those that are made from what is kept
    (docs/data.md): a change that nobody watched is found by that, late, if it touches more than a few samples. What
    would escape, beside what escapes `sample_cache`: a second half that changes what the first halves of other samples
    of the same batch depend on, where that is neither an attribute of the data set nor of what it holds.

    Source: the split of a pipeline into a cached and a random part is that of tf.data,
    https://www.tensorflow.org/guide/data_performance, and of Plumber, https://arxiv.org/abs/2111.04131.
    """

    name = "prefix_cache"
    programs = ("training", "inference")
    contract = Contract.EXACT
    computes = False
    targets = ("data",)
    expected_saving = 0.6
    survives = True
    order = 11
    knobs = (Knob("memory_share", 0.5, "share of the available memory that samples may take", low=0.05, high=0.9),)
    switchable = True

    def applies(self, facts: Facts) -> str | None:
        if facts.items_draw() is False:
            return "fetching an item draws no random numbers: sample_cache keeps samples whole"
        return facts.no_samples_to_gain_by()

    def expected_step_saving(self, facts: Facts) -> float:
        return facts.taken_by_data() * self.expected_saving

    def install(self, seams: Seams, settings: Settings) -> Handle:
        handle = PrefixHandle(seams, float(settings["memory_share"]))
        seams.loader_opens.subscribe(handle.opens, always=True)
        seams.on_undo(handle.undo)
        return handle


class PrefixHandle(Handle):
    """While it is off, the methods fetch whole samples, in workers that were forked before as well."""

    def __init__(self, seams: Seams, memory_share: float) -> None:
        self.halving: Halving | None = None
        self._seams = seams
        self._memory_share = memory_share
        self.switch = SharedFlag()
        self._opened_off: WeakSet[Any] = WeakSet()  # loaders
        super().__init__(seams, self._turn_on, self.switch.off)

    def opens(self, loader: Any, call: Callable[[], Any]) -> Any:
        from overdrive.seams.torch.iterators import kept_open

        self._prepare(loader) if self.switch else self._opened_off.add(loader)
        workers_begin = loader.num_workers > 0 and kept_open(loader) is None
        iterator = call()
        if workers_begin and self.switch and self.halving is not None:
            self.halving.opened(loader)
        self._attend(iterator)
        return iterator

    def _make_audit(self, drop: Callable[[str], None]) -> Audit | None:
        from overdrive.datacache.audit import audits_of

        audits = audits_of(self._seams)
        return None if audits is None else audits.audit(lambda: [PrefixCache.name], drop)

    def _attend(self, iterator: Any) -> None:
        """Have all that is kept looked at before each batch, where the iterator fetches in this process."""
        from overdrive.datacache.loader import is_served
        from overdrive.seams.torch.drawn_indices import announce
        from overdrive.seams.torch.fetchers import Announcing, fetch_by, fetcher_of
        from overdrive.seams.torch.iterators import is_of_workers

        def told(tell: Callable[[Halving], None]) -> None:
            try:
                if self.halving is not None:
                    tell(self.halving)
            except Exception as error:  # what cannot be looked at is not served
                self._seams.leave_out(PrefixCache.name, reason_of(error))

        def about_to_fetch() -> None:
            told(lambda halving: halving.new_batch())

        def fetched() -> None:
            told(lambda halving: halving.batch_is_made())

        real = fetcher_of(iterator)
        if is_of_workers(iterator):
            announce(iterator, lambda: told(lambda halving: halving.hands_out()))
        if real is not None and type(real) is not Announcing and not is_served(iterator):
            fetch_by(iterator, Announcing(real, about_to_fetch, fetched))

    def _prepare(self, loader: Any) -> None:
        from overdrive.datacache.manager import fills_at_once
        from overdrive.techniques.data.prefix_cache.halving import Halving

        first = self.halving is None
        how = (self._memory_share, fills_at_once(), self.switch, self._make_audit)
        self.halving = halving = self.halving or Halving(*how)
        halving.prepare(loader)
        if first and (not halving.useful or fills_at_once()):
            halving.prepare_others()
        if not halving.useful:
            self._seams.leave_out(PrefixCache.name, halving.reasons[0])

    def _turn_on(self) -> None:
        self.switch.on()
        for loader in list(self._opened_off):
            self._prepare(loader)
        self._opened_off.clear()

    def undo(self) -> None:
        if self.halving is not None:
            self.halving.close()
