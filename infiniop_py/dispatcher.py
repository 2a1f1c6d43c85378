"""``OpDispatcher``: device type -> implementation of one operator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn, TypeAlias

from .device import DeviceType, as_device_type, refuse_pickle
from .errors import DeviceError, OperandError

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


def _as_impl(impl: Implementation) -> OpImpl:
    if isinstance(impl, OpImpl):
        return impl
    if not callable(impl):
        raise OperandError(f"an implementation is an OpImpl or a function, got {impl!r}")
    function = impl

    def run(call: Any) -> None:
        for tensors in call.plan:
            function(*tensors, *call.params, *call.scalars)

    return OpImpl(_plan_function, run)


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
        self._lock = threading.Lock()
        # By device type: what was registered, and how it is called.
        self._registered: list[Implementation | None] = [None] * len(DeviceType)
        self.table: list[OpImpl | None] = [None] * len(DeviceType)

    def register_device(
        self,
        type: DeviceType | int | str | Iterable[DeviceType | int | str],
        impl: Implementation,
        override_existing: bool = True,
    ) -> None:
        """Register an implementation for a device type or several; without overriding, only where there is
        none yet.
        """
        if not isinstance(type, (int, str, Iterable)):
            raise OperandError(
                f"{self.name}: device type is {type!r}, needs a DeviceType, a name or several of them"
            )
        given = [type] if isinstance(type, (int, str)) else list(type)
        types = [as_device_type(one) for one in given]
        called = _as_impl(impl)
        with self._lock:
            for one in types:
                if override_existing or self.table[one] is None:
                    self._registered[one] = impl
                    self.table[one] = called

    def register_all(self, impl: Implementation, override_existing: bool = True) -> None:
        """Register an implementation for every device type."""
        self.register_device(list(DeviceType), impl, override_existing)

    def lookup(self, type: DeviceType | int | str) -> Implementation:
        """Return what was registered for a device type; DeviceError if nothing was."""
        known = as_device_type(type)
        impl = self._registered[known]
        return self._missing(known) if impl is None else impl

    def implementation(self, type: DeviceType) -> OpImpl:
        """Return the three functions for a device type; DeviceError if nothing was registered."""
        impl = self.table[type]
        return self._missing(type) if impl is None else impl

    __reduce__ = refuse_pickle

    def _missing(self, type: DeviceType) -> NoReturn:
        raise DeviceError(f"{self.name}: no implementation is registered for {type.name}")
