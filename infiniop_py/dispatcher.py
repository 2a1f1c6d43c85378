"""``OpDispatcher``: device type -> implementation of one operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from ._bypass import when_implemented
from .device import DeviceType, as_device_type, refuse_pickle
from .errors import DeviceError, OperandError, shown

__all__ = ["OpDispatcher", "OpImpl"]


class OpImpl(NamedTuple):
    """An implementation of an operator, as three functions.

    ``plan(call)`` prepares a call and returns anything; it is kept as ``call.plan``. ``run(call)``
    computes, any number of times. ``cleanup(plan)`` gives back what the plan holds, once the call is gone;
    None if there is nothing to do. `call` is the :class:`~infiniop_py.GraphOperator`: see its ``tensors``,
    ``scalars`` and ``plan``.
    """

    plan: Callable[[Any], Any]
    run: Callable[[Any], None]
    cleanup: Callable[[Any], None] | None = None


def _plan_function(call: Any) -> Any:
    return call.tensors()


Implementation: TypeAlias = "OpImpl | Callable[..., object]"


class _OfFunction(OpImpl):
    """An implementation made of a plain function."""

    function: Callable[..., object]


def _as_impl(impl: Implementation) -> OpImpl:
    if isinstance(impl, OpImpl):
        for name, function in impl._asdict().items():
            if not callable(function) and not (name == "cleanup" and function is None):
                raise OperandError(f"OpImpl: {name} is {shown(function)}, needs a function")
        return impl
    if not callable(impl):
        raise OperandError(f"an implementation is an OpImpl or a function, got {shown(impl)}")
    function = impl

    def run(call: Any) -> None:
        for tensors in call.plan:
            function(*tensors, *call.params, *call.scalars)

    made = _OfFunction(_plan_function, run)
    made.function = function
    return made


class OpDispatcher:
    """Which implementation of one operator runs on which device type.

    An implementation is an :class:`OpImpl`, or a plain function that gets the operands as Tensors, outputs
    first, and then the scalars, and writes the outputs: for Gemm ``f(c, a, b, alpha, beta)``, for Add and
    Mul ``f(c, a, b)``, for AddRMSNorm ``f(y, residual_out, a, b, weight, epsilon)``, for Rearrange ``f(y,
    x)``. Operands come checked and broadcast (with stride 0), and a gemm with more than one batch dimension
    may come as several calls.

    Registering takes effect for calls planned from then on, in every thread; recorded graphs keep what they
    have.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        # Each step on it is one of the interpreter's own: there is no lock that a signal's handler would wait
        # for in the thread that holds it, or a forked child for a thread that is gone.
        self.table: dict[int, OpImpl] = {}

    def register_device(
        self,
        type: DeviceType | int | str | Iterable[DeviceType | int | str],
        impl: Implementation,
        override_existing: bool = True,
    ) -> None:
        """Register an implementation for a device type or several; without overriding, only where there is
        none yet: nowhere for the operators of the package, of which each type has the native one.
        """
        if not isinstance(type, (int, str, Iterable)):
            raise OperandError(
                f"{self.name}: device type is {shown(type)}, needs a DeviceType, a name or several of them"
            )
        given = [type] if isinstance(type, (int, str)) else list(type)
        types = [as_device_type(one) for one in given]
        called = _as_impl(impl)
        for one in types:
            if override_existing:
                self.table[one] = called
            else:
                self.table.setdefault(one, called)
        if DeviceType.CPU in types:
            for tell in when_implemented:
                tell(self.name)

    def register_all(self, impl: Implementation, override_existing: bool = True) -> None:
        """Register an implementation for every device type."""
        self.register_device(list(DeviceType), impl, override_existing)

    def lookup(self, type: DeviceType | int | str) -> Implementation:
        """Return what was registered for a device type; DeviceError if nothing was."""
        impl = self.implementation(as_device_type(type))
        return impl.function if isinstance(impl, _OfFunction) else impl

    def implementation(self, type: DeviceType) -> OpImpl:
        """Return the three functions for a device type; DeviceError if nothing was registered."""
        known = type if isinstance(type, DeviceType) else as_device_type(type)
        impl = self.table.get(known)
        if impl is None:
            raise DeviceError(f"{self.name}: no implementation is registered for {known.name}")
        return impl

    __reduce__ = refuse_pickle
