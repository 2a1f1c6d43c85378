"""``GraphOperator``, one planned call of an operator.

Executing an operator plans it, and then either runs it or, while this thread records, appends it to the
graph::

    execute -> views -> plan (dispatcher, cache) -> recording? append : run
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from sys import is_finalizing
from time import perf_counter_ns
from typing import Any, ClassVar, ParamSpec, Protocol, TypeVar, cast

from numpy import ndarray

from ._layout import Layout
from ._log import logger
from ._native import NULL
from ._native_op import (
    FACTORS,
    NATIVE,
    Descriptor,
    NativeOp,
    Problem,
    refuse,
    refuse_overlap,
    refuse_self_overlap,
    reserve,
)
from .cache import CAPACITY, OpCache
from .device import CPU, Device, refuse_pickle, thread
from .dispatcher import OpDispatcher, OpImpl
from .dtypes import DType
from .errors import (
    DeviceError,
    DTypeError,
    InfiniopError,
    OperandError,
    ShapeError,
    StrideError,
    shown,
)
from .interop import (
    FRESH,
    as_tensor,
    common_device,
    count_writes,
    keeping,
    need_writable,
    one_stream,
    stream_order,
    views,
    write_counts,
)
from .tensor import Tensor, View

__all__ = ["GraphOperator"]


def _is_quiet() -> bool:
    return not logger.isEnabledFor(logging.DEBUG)


class _Cleanup:
    """Cleans up after a plan when it goes itself, also where the plan refers to the call that holds it."""

    __slots__ = ("_cleanup", "_plan")

    def __init__(self, cleanup: Callable[[Any], None], plan: Any) -> None:
        self._cleanup = cleanup
        self._plan = plan

    def __del__(self) -> None:
        if not is_finalizing():
            self._cleanup(self._plan)


class _ThreadCache(threading.local):
    def __init__(self, name: str) -> None:
        self.cache = OpCache(CAPACITY, name)
        self.cpu = self.cache.get_cache(CPU)


#: Every operator, by its name in the library.
OPERATORS: dict[str, type[GraphOperator]] = {}


class GraphOperator(ABC):
    """One planned call of an operator: operands, scalars, and the plan to run it any number of times.

    The subclasses are the operators. Their constructors plan a call, and everything that can be wrong with
    it is refused there; calling it computes the outputs from what the operands hold then, which costs a
    small part of what the function of the operator costs; :meth:`run` does so with other operands of the
    same layouts.

    >>> import numpy as np
    >>> from infiniop_py import gemm
    >>> a, b, c = np.eye(2), np.ones((2, 2)), np.empty((2, 2))
    >>> plan = gemm.plan(c, a, b)  # outputs first
    >>> plan(alpha=3.0)
    array([[3., 3.],
           [3., 3.]])
    >>> a[0, 0] = 5.0
    >>> plan.run(); c
    array([[5., 5.],
           [1., 1.]])
    >>> plan.run(b=2 * b); c
    array([[10., 10.],
           [ 2.,  2.]])

    A plan may be run by several threads at once if their outputs differ. It keeps its operands, and holds
    their addresses like a :class:`Graph`.

    The class that fills in `native` is an operator and gets a dispatcher and a cache; classes above it hold
    what several share, and classes below it are the same operator in other words.
    """

    __slots__ = (
        "__weakref__",
        "_asked",
        "_end",
        "_how",
        "_impl",
        "_prepared",
        "device",
        "layouts",
        "names",
        "operands",
        "params",
        "plan",
        "pointers",
        "scalars",
    )

    #: Rows that a subclass fills in.
    name: ClassVar[str]
    operand_names: ClassVar[tuple[str, ...]]
    n_outputs: ClassVar[int]
    native: ClassVar[NativeOp]

    #: Does it only move elements, from its operand 1 to its operand 0?
    is_copy: ClassVar[bool] = False
    #: Of products: what does the same as it and an elementwise operator of this name on its result.
    epilogues: ClassVar[dict[str, type[GraphOperator]]] = {}
    #: Of products: element types in which their sums are kept, so that nothing is rounded at the end.
    keeps_sums: ClassVar[frozenset[DType]] = frozenset()

    #: See :func:`_shortcut` and :func:`_shortcut_to_new`.
    again: ClassVar[Callable[..., bool]]
    again_to_new: ClassVar[Callable[..., tuple[Any, ...] | None]]
    #: The layouts of the results that a call makes on the CPU, by those of its inputs.
    results: ClassVar[dict[tuple[Layout, ...], tuple[Layout, ...]]]

    #: Inputs whose memory an output may be, exactly.
    may_be_output: ClassVar[frozenset[str]] = frozenset()

    #: Of `params` and of `scalars`, in their order.
    param_names: ClassVar[tuple[str, ...]] = ()
    scalar_names: ClassVar[tuple[str, ...]] = ()

    _dispatcher: ClassVar[OpDispatcher]
    _local: ClassVar[_ThreadCache]

    device: Device
    operands: tuple[Any, ...]  # outputs first
    names: Sequence[str]  # of the operands, in messages
    layouts: tuple[Layout, ...]
    pointers: list[Any]
    params: tuple[float, ...]  # scalars fixed by the plan
    scalars: tuple[float, ...]  # scalars of one run
    plan: Any
    _impl: OpImpl
    _how: str  # where the plan came from; known only while that is logged
    # Outputs to ask at each run whether they may be written, as NumPy arrays may be no more; torch counts it.
    _asked: Sequence[tuple[str, Any]]
    _end: object  # what is to be done with the plan once the call is gone
    _prepared: Callable[[], int] | None  # the whole run as one native call, which returns its status

    def __init_subclass__(cls) -> None:
        if "native" not in cls.__dict__:
            return
        OPERATORS.setdefault(cls.native.name, cls)
        cls._dispatcher = OpDispatcher(cls.name)
        cls._dispatcher.register_all(NATIVE, override_existing=False)
        cls._local = _ThreadCache(cls.name)
        cls.again = staticmethod(_shortcut(cls))
        cls.results = {}
        cls.again_to_new = staticmethod(_shortcut_to_new(cls))

    @classmethod
    def dispatcher(cls) -> OpDispatcher:
        """The operator's table of implementations."""
        return cls._dispatcher

    @classmethod
    def cache(cls) -> OpCache:
        """The operator's descriptors in this thread."""
        return cls._local.cache

    @classmethod
    def execute(cls, *operands: Any, **scalars: Any) -> None:
        """Run the operator, or record it: the arguments are those of the constructor, outputs first."""
        cls(*operands, **scalars).submit()

    @classmethod
    @abstractmethod
    def check(cls, layouts: tuple[Layout, ...], names: Sequence[str]) -> Problem:
        """Refuse operands that do not fit each other; return the problem in the form C takes."""

    @classmethod
    def reads_outputs(cls, scalars: tuple[float, ...]) -> bool:
        """Does a call with these scalars read what its outputs held before?"""
        return False

    @classmethod
    def most_runs(cls, layouts: tuple[Layout, ...]) -> int:
        """Native calls of a call at most, as far as can be said before :meth:`check`."""
        return 1

    @classmethod
    @abstractmethod
    def flops(cls, layouts: tuple[Layout, ...], scalars: tuple[float, ...]) -> int:
        """Multiplications and additions of a call, scaling by scalars left out."""

    def _plan(
        self,
        operands: tuple[Any, ...],
        operand_views: Sequence[View],
        params: tuple[float, ...] = (),
        scalars: tuple[float, ...] = (),
        names: Sequence[str] | None = None,
    ) -> None:
        """Fill in this call. Views are those of the operands; outputs are known to be writable."""
        self.names = names = names or self.operand_names
        self.device = device = common_device(self.name, names, operand_views)
        self.operands = operands
        self.layouts = tuple([view[1] for view in operand_views])
        self.pointers = [view[2] for view in operand_views]
        self.params = params
        self.scalars = scalars
        self._asked = ()
        self._prepared = None
        self._plan_by(self._dispatcher.implementation(device.type))

    def _plan_by(self, impl: OpImpl) -> None:
        if impl is not NATIVE:
            refuse_self_overlap(self)
            if self.device is not CPU:
                impl = impl._replace(run=_in_stream_order(impl.run))
        self._impl = impl
        self.plan = impl.plan(self) if _is_quiet() else self._plan_logged(impl)
        self._end = None if impl.cleanup is None else _Cleanup(impl.cleanup, self.plan)

    def _take(
        self, operands: tuple[Any, ...], params: tuple[float, ...] = (), scalars: tuple[float, ...] = ()
    ) -> None:
        """Fill in this call from operands as a caller gave them, for any number of runs."""
        operand_views = views(self.name, self.operand_names, operands)
        for name, output in zip(self.operand_names, operands[: self.n_outputs]):
            need_writable(self.name, name, output)
        kept = [
            (device, layout, keeping(operand, pointer))
            for operand, (device, layout, pointer) in zip(operands, operand_views)
        ]
        self._plan(operands, kept, params, scalars)
        self._ask_each_run()
        if self._impl is NATIVE:
            executor = refuse(self)
            # Each thread has a workspace and a stream of its own.
            if self.device is CPU and not self.plan.workspace_size:
                self._prepared = executor.bound()

    @classmethod
    def _again(
        cls,
        operands: tuple[Any, ...],
        operand_views: Sequence[View],
        params: tuple[float, ...],
        scalars: tuple[float, ...],
    ) -> bool:
        # The same layouts on the same device, so all that `check` and `create` ask is answered. What is
        # asked of pointers the library asks at each run; a refusal is worded by the call that follows.
        devices, layouts, pointers = zip(*operand_views)
        device = devices[0]
        if devices.count(device) != len(devices):
            return False
        key = layouts + params
        if device is CPU:
            return cls.again(key, pointers if cls.native.direct is None else (*pointers, NULL)[:3], scalars)
        if (
            thread.recording is not None
            or not _is_quiet()
            or cls._dispatcher.table.get(device.type) is not NATIVE
        ):
            return False
        cache = cls._local.cache.get_cache(device)
        entry = cache.entries.get(key)
        if entry is None:
            return False
        descriptor: Descriptor = entry[0]
        if descriptor.offsets is not None:
            return False
        stream = one_stream(device, operands)
        if stream is None or descriptor.run_once(pointers, scalars, stream):
            return False
        cache.use(key, entry)
        return True

    @classmethod
    def remember_results(cls, made: Sequence[View], inputs: Sequence[View]) -> None:
        """Results whose layouts depend on those of the inputs alone."""
        if made[0][0] is CPU:
            if len(cls.results) >= _MOST_RESULTS:
                cls.results.clear()
            layouts_of_inputs = tuple(layout for _, layout, _ in inputs)
            cls.results[layouts_of_inputs] = tuple(layout for _, layout, _ in made)

    @classmethod
    def launch(
        cls,
        operands: tuple[Any, ...],
        operand_views: Sequence[View],
        params: tuple[float, ...] = (),
        scalars: tuple[float, ...] = (),
        names: Sequence[str] | None = None,
    ) -> None:
        """Plan, then run or record, with views already taken."""
        if cls._again(operands, operand_views, params, scalars):
            if write_counts:
                count_writes(operands[: cls.n_outputs])
            return
        cls.launch_new(operands, operand_views, params, scalars, names)

    @classmethod
    def launch_new(
        cls,
        operands: tuple[Any, ...],
        operand_views: Sequence[View],
        params: tuple[float, ...] = (),
        scalars: tuple[float, ...] = (),
        names: Sequence[str] | None = None,
    ) -> None:
        """:meth:`launch` for a caller who knows that no call like this one ran before."""
        self = cls.__new__(cls)
        self._plan(operands, operand_views, params, scalars, names)
        self.submit()

    def submit(self) -> None:
        """Append the call to the graph this thread records, or else run it."""
        graph = thread.recording
        if graph is not None:
            graph._append(self)
        else:
            self._run()

    def __call__(self) -> Any:
        """Run the call, or record it if this thread records a graph; return the output, or all of them."""
        self.submit()
        return self.operands[0] if self.n_outputs == 1 else self.operands[: self.n_outputs]

    def run(self, /, **operands: Any) -> None:
        """Compute the outputs from the current contents of the inputs, at once, also while recording.

        Operands that are given, by the names of :attr:`operand_names`, stand in for those of the plan in
        this run. They need the same device and layout: else DTypeError, ShapeError, StrideError or
        DeviceError.
        """
        call = self._with_operands(operands) if operands else self
        call._run()

    def _ask_each_run(self) -> None:
        outputs = zip(self.names, self.operands[: self.n_outputs])
        self._asked = [(name, output) for name, output in outputs if type(output) is not Tensor]

    def _run(self) -> None:
        for name, output in self._asked:
            if type(output) is not ndarray or not output.flags.writeable:  # else a call less
                need_writable(self.name, name, output)
        if logger.isEnabledFor(logging.DEBUG):
            self._run_logged()
        elif self._prepared is None or self._prepared():  # which has no words for what is refused
            if self._impl is not NATIVE:
                refuse_overlap(self)
            self._impl.run(self)
        if write_counts:
            count_writes(self.operands[: self.n_outputs])

    def _submit_with(self, scalars: tuple[float, ...]) -> None:
        """Submit this call with other scalars of a run."""
        if (
            thread.recording is None
            and self._impl is NATIVE
            and self.device is CPU
            and _is_quiet()
            and not self.plan.offsets
        ):
            for name, output in self._asked:
                need_writable(self.name, name, output)
            if self.plan.run_once(self.pointers, scalars) == 0:
                if write_counts:
                    count_writes(self.operands[: self.n_outputs])
                return
        self._varied(self.operands, self.pointers, scalars).submit()

    def _with_operands(self, given: dict[str, Any]) -> GraphOperator:
        """This call with other operands of the same layouts."""
        operands, pointers = list(self.operands), list(self.pointers)
        for name, operand in given.items():
            if name not in self.operand_names:
                raise OperandError(
                    f"{self.name}: there is no operand {shown(name)}, only {', '.join(self.operand_names)}"
                )
            i = self.operand_names.index(name)
            ((device, layout, pointer),) = views(self.name, (name,), (operand,))
            need_alike(self.name, name, (device, layout), (self.device, self.layouts[i]), "the plan")
            if i < self.n_outputs:
                need_writable(self.name, name, operand)
            operands[i], pointers[i] = operand, pointer
        return self._varied(tuple(operands), pointers, self.scalars)

    def _varied(
        self, operands: tuple[Any, ...], pointers: list[Any], scalars: tuple[float, ...]
    ) -> GraphOperator:
        """This call with other operands of the same layouts, or with other scalars of a run."""
        other = type(self).__new__(type(self))
        other.names, other.device, other.layouts = self.names, self.device, self.layouts
        other.operands, other.pointers = operands, pointers
        other.params, other.scalars = self.params, scalars
        other._prepared = None
        other._ask_each_run()
        if self._impl is NATIVE:
            other._impl, other.plan = NATIVE, self.plan
        else:  # plans of others may hold their operands and scalars
            other._plan_by(self._impl)
        return other

    def problem(self) -> Problem:
        """The call in the form C takes."""
        return self.check(self.layouts, self.names)

    def tensors(self) -> list[tuple[Tensor, ...]]:
        """The operands as Tensors, outputs first, checked and broadcast; one tuple for each run the call
        needs.
        """
        problem = self.problem()
        sources = [as_tensor(self.name, name, operand) for name, operand in zip(self.names, self.operands)]
        steps = problem.offsets or ((0,) * len(sources),)
        return [
            tuple(
                source._derive(shape, strides, step)
                for source, (_, shape, strides), step in zip(sources, problem.layouts, offsets)
            )
            for offsets in steps
        ]

    __reduce__ = refuse_pickle

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._described()}>"

    # ---- logging -----------------------------------------------------------------------------------------

    def _described(self) -> str:
        operands = ", ".join(
            f"{name} {layout[0].name}{list(layout[1])}" for name, layout in zip(self.names, self.layouts)
        )
        scalars = "".join(f", {value:g}" for value in (*self.params, *self.scalars))
        return f"{operands}{scalars} on {self.device}"

    def _plan_logged(self, impl: OpImpl) -> Any:
        cache = self.cache().get_cache(self.device)
        misses = cache.misses
        plan = impl.plan(self)
        self._how = "own" if impl is not NATIVE else "cache miss" if cache.misses != misses else "cache hit"
        return plan

    def _run_logged(self) -> None:
        described = self._described()
        logger.debug("%s enter: %s, %s", self.name, described, getattr(self, "_how", "planned before"))
        outcome = "failed"
        start = perf_counter_ns()
        try:
            if self._impl is not NATIVE:
                refuse_overlap(self)
            self._impl.run(self)
            outcome = "exit"
        finally:
            microseconds = (perf_counter_ns() - start) / 1e3
            logger.debug("%s %s: %s, %.1f us", self.name, outcome, described, microseconds)


def _in_stream_order(run: Callable[[Any], None]) -> Callable[[Any], None]:
    """The run of an implementation, on the stream on which the native one would run."""

    def ordered(call: GraphOperator) -> None:
        with stream_order(call.name, call.device, call.operands):
            run(call)

    return ordered


_LAYOUT = ("dtype", "shape", "byte strides")
_LAYOUT_ERRORS = (DTypeError, ShapeError, StrideError)


def need_alike(
    op: str, name: str, new: tuple[Device, Layout], old: tuple[Device, Layout], whose: str
) -> None:
    """Refuse an operand that cannot stand for another one: whose device or layout differs."""
    if new[0] is not old[0]:
        raise DeviceError(f"{op}: {name} is on {new[0]}, but {whose} is for {old[0]}")
    for what, error, given, wanted in zip(_LAYOUT, _LAYOUT_ERRORS, new[1], old[1]):
        if given != wanted:
            raise error(f"{op}: {name} has {what} {given}, but {whose} is for {wanted}")


P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
C_co = TypeVar("C_co", covariant=True, bound=GraphOperator)


class Planned(Protocol[P, R_co, C_co]):
    """A function of an operator; ``f.plan`` makes a planned call: see :class:`GraphOperator`."""

    @property
    def plan(self) -> type[C_co]: ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


def planned(op: type[C_co]) -> Callable[[Callable[P, R_co]], Planned[P, R_co, C_co]]:
    """Decorator that gives an operator's function its ``plan``."""

    def decorate(function: Callable[P, R_co]) -> Planned[P, R_co, C_co]:
        function.plan = op  # type: ignore[attr-defined]
        return cast("Planned[P, R_co, C_co]", function)

    return decorate


def _shortcut(op: type[GraphOperator]) -> Callable[..., bool]:
    """The short way for calls on the CPU: a function of their layouts and params, their pointers, as
    :attr:`NativeOp.direct` wants them where there is one, and their scalars, which runs a call whose like the
    operator ran before and returns True, or does nothing and returns False.

    What is asked of layouts was answered then; what is asked of pointers the library asks at each run.
    Whatever else there is to look at, to log or to refuse is left to the long way. Each step here is paid for
    by every small call, hence the missing function calls.
    """
    table = op.dispatcher().table
    plain = FACTORS[: len(op.scalar_names)]
    run: Any = op.native.direct
    is_logged = logger.isEnabledFor
    debug = logging.DEBUG

    def again(key: tuple[Any, ...], pointers: tuple[Any, ...], scalars: tuple[float, ...] = ()) -> bool:
        ready = thread.ready
        try:
            cache = ready[op]
            entry = cache.entries[key]
        except KeyError:
            if thread.recording is None:
                ready[op] = op._local.cpu  # a recording that a signal starts just now has another `ready`
            return False
        if table[0] is not NATIVE or is_logged(debug):
            return False
        descriptor = entry[0]
        pointer = descriptor.direct
        if pointer is not None and scalars == plain:
            at_0, at_1, at_2 = pointers  # a call of a C function with `*pointers` takes longer
            if run(pointer, at_0, at_1, at_2):
                return False
        elif descriptor.offsets is not None or descriptor.run_once(pointers, scalars):
            return False
        if entry is cache.newest:
            cache.hits += 1
        else:
            cache.use(key, entry)
        return True

    return again


_MOST_RESULTS = 1 << 12


def _shortcut_to_new(op: type[GraphOperator]) -> Callable[..., tuple[Any, ...] | None]:
    """The short way for calls on the CPU that make their results, and whose inputs are of one kind.

    A function of the inputs, the params and the scalars, which returns the results of a call whose like the
    operator ran before, and of which it was told by :meth:`GraphOperator.remember_results`; or does nothing
    and returns None.
    """
    again, results = op.again, op.results
    # Of these the long way says what they are; others may be of a handler of signals.
    wrong = KeyError, InfiniopError, MemoryError
    fill = () if op.native.direct is None else (NULL,) * (3 - len(op.operand_names))

    def of_two(
        inputs: tuple[Any, Any], params: tuple[float, ...] = (), scalars: tuple[float, ...] = ()
    ) -> tuple[Any, ...] | None:
        a, b = inputs
        kind = type(a)
        if kind is not type(b) or op not in thread.ready:
            return None
        try:
            view, fresh = FRESH[kind]
            on_a, layout_a, at_a = view(a)
            on_b, layout_b, at_b = view(b)
            if not (on_a is on_b is CPU):
                return None
            (layout,) = results[layout_a, layout_b]
            out, at = fresh(layout)
        except wrong:
            return None
        return (out,) if again((layout, layout_a, layout_b), (at, at_a, at_b), scalars) else None

    def of_any(
        inputs: tuple[Any, ...], params: tuple[float, ...] = (), scalars: tuple[float, ...] = ()
    ) -> tuple[Any, ...] | None:
        kind = type(inputs[0])
        if op not in thread.ready:
            return None
        for one in inputs:
            if type(one) is not kind:
                return None
        try:
            view, fresh = FRESH[kind]
            devices, layouts, pointers = zip(*[view(one) for one in inputs])
            if devices.count(CPU) != len(devices):
                return None
            made = results[layouts]
            outputs, places = zip(*[fresh(layout) for layout in made])
        except wrong:
            return None
        return outputs if again(made + layouts + params, places + pointers + fill, scalars) else None

    # What most calls are is worth a function without loops: the other one takes 1.4 us more.
    return of_two if len(op.operand_names) == 3 and op.n_outputs == 1 else of_any


def submit_together(*calls: GraphOperator) -> None:
    """Submit several calls in order: all, or none if one of them would be refused."""
    for call in calls:
        if call._impl is not NATIVE:
            refuse_overlap(call)
            continue
        refuse(call)
        if thread.recording is None:
            reserve(call)
    for call in calls:
        call.submit()
