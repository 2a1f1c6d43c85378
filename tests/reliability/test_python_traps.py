"""What Python lets an operand be: right, or refused by name with nothing written; in every place of every
operator, computed at once, planned and recorded."""

from __future__ import annotations

import gc
import mmap
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _producers import Interface, Producer
from everything import Caught
from soak import SCALE

import infiniop_py as ip
from infiniop_py._conformance.cases import DTYPES, FLOATS, INTEGERS

Array = np.ndarray[Any, Any]
Record = Callable[[str, object], None]

N = 4
#: The operators as functions of their operands, outputs first.
EAGER: dict[type[ip.GraphOperator], Callable[..., object]] = {
    ip.Add: ip.add_,
    ip.Mul: ip.mul_,
    ip.Gemm: ip.gemm_,
    ip.GemmAdd: lambda y, a, b, d: ip.gemm_add(a, b, d, out=y),
    ip.GemmMul: lambda y, a, b, d: ip.gemm_mul(a, b, d, out=y),
    ip.AddRMSNorm: ip.add_rms_norm_,
    ip.Rearrange: ip.rearrange_,
}


def dtypes_of(op: type[ip.GraphOperator]) -> tuple[str, ...]:
    return FLOATS + INTEGERS if op in (ip.Add, ip.Mul, ip.Rearrange) else FLOATS


def good(op: type[ip.GraphOperator], dtype: str) -> list[Array]:
    """Operands of a legal call: outputs of 7s, inputs of small numbers."""
    operands = []
    for i, name in enumerate(op.operand_names):
        values = np.full((N, N), 7) if i < op.n_outputs else np.arange(i, i + N * N).reshape(N, N) % 5
        operands.append((values[0] if name == "weight" else values).astype(DTYPES[dtype]))
    return operands


@contextmanager
def recorded() -> Iterator[None]:
    with ip.Graph() as graph:
        yield
    graph.run()


def forms(op: type[ip.GraphOperator], operands: list[Any]) -> dict[str, Callable[[], object]]:
    def planned() -> None:
        op(*operands)()

    def record() -> None:
        with recorded():
            EAGER[op](*operands)

    return {"at once": lambda: EAGER[op](*operands), "planned": planned, "recorded": record}


def places(*, outputs: bool = True, inputs: bool = True) -> Iterator[tuple[type[ip.GraphOperator], str, int]]:
    for op in EAGER:
        for dtype in dtypes_of(op):
            for place in range(len(op.operand_names)):
                if outputs if place < op.n_outputs else inputs:
                    yield op, dtype, place


# ---- refused -----------------------------------------------------------------------------------------------


def fields(array: Array, *names: tuple[str, Any]) -> Array:
    """The field "v" of an array of records, with the values of `array`."""
    records = np.zeros(array.shape, list(names))
    records["v"] = array
    return records["v"]


def swapped(dtype: Any) -> Any:
    return dtype.newbyteorder("S")


def swappable(array: Array) -> bool:
    return array.itemsize > 1 and array.dtype.kind in "fiu"


#: None where a row has nothing to say of an array.
REFUSED: dict[str, Callable[[Array], Any]] = {
    "other byte order": lambda x: x.astype(swapped(x.dtype)) if swappable(x) else None,
    "other byte order in records": lambda x: (
        fields(x, ("u", x.dtype), ("v", swapped(x.dtype))) if swappable(x) else None
    ),
    "records of an odd size": lambda x: fields(x, ("v", x.dtype), ("u", "i1")) if x.itemsize > 1 else None,
    "records of an odd size, between": lambda x: (
        fields(x, ("u", "i1"), ("v", x.dtype)) if x.itemsize > 1 else None
    ),
    "unaligned": lambda x: (
        np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape) if x.itemsize > 1 else None
    ),
    "objects": lambda x: x.astype(object),
    "dates": lambda x: np.zeros(x.shape, "M8[s]"),
    "spans of time": lambda x: np.zeros(x.shape, "m8[us]"),
    "texts": lambda x: np.zeros(x.shape, "U4"),
    "bytes": lambda x: np.zeros(x.shape, f"S{x.itemsize}"),
    "void": lambda x: np.zeros(x.shape, f"V{x.itemsize}"),
    "records": lambda x: np.zeros(x.shape, [("v", x.dtype)]),
    "long doubles": lambda x: np.zeros(x.shape, np.longdouble),
    "another type of the same size": lambda x: (
        x.view({1: "?", 2: "u2", 4: "u4", 8: "u8"}[x.itemsize]) if x.dtype.kind != "u" else None
    ),
    "masked": lambda x: np.ma.masked_array(x, x == 1),
    "a list": lambda x: x.tolist(),
    "a number": lambda x: 1.0,
    "a NumPy scalar": lambda x: x.reshape(-1)[0],
    "an object": lambda x: object(),
    "a generator": lambda x: (row for row in x),
    "the array's class": lambda x: type(x),
    "another shape": lambda x: np.zeros((N + 1, N + 1), x.dtype),
    "16 dimensions and one": lambda x: np.zeros((1,) * 17, x.dtype),
    "complex": lambda x: x.astype("c8"),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("trap", REFUSED)
def test_refused(trap: str, record_property: Record) -> None:
    cases = 0
    for op, dtype, place in places():
        operands: list[Any] = good(op, dtype)
        before = [operand.tobytes() for operand in operands]
        operands[place] = REFUSED[trap](operands[place])
        if operands[place] is None:
            continue
        trapped = operands[place].view(np.ndarray) if isinstance(operands[place], np.ndarray) else None
        inside = b"" if trapped is None else trapped.tobytes()
        for form, call in forms(op, operands).items():
            with pytest.raises(ip.InfiniopError, match=rf"^{op.name}: ") as caught:
                call()
            name = "(out|y)" if op in (ip.GemmAdd, ip.GemmMul) and place == 0 else op.operand_names[place]
            assert re.search(rf"\b{name}\b", str(caught.value).partition(": ")[2]), (form, str(caught.value))
            assert not ip.is_graph_recording()
            for i, operand in enumerate(operands):
                assert i == place or operand.tobytes() == before[i], f"{form}: {op.operand_names[i]} changed"
            assert trapped is None or trapped.tobytes() == inside
            cases += 1
    assert cases > 50
    record_property("cases", cases)


# ---- read-only outputs -------------------------------------------------------------------------------------


def frozen(x: Array) -> Array:
    x = x.copy()
    x.flags.writeable = False
    return x


READ_ONLY: dict[str, Callable[[Array], Any]] = {
    "an array": frozen,
    "a view": lambda x: frozen(x)[...],
    "a transpose of rows that are one": lambda x: np.broadcast_to(x[0], x.shape),
    "bytes": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "a buffer": lambda x: np.asarray(memoryview(x.view(np.uint8)).toreadonly()).view(x.dtype),
    "a page": lambda x: np.frombuffer(
        mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ), x.dtype, x.size
    ).reshape(x.shape),
    "an interface": lambda x: Interface(frozen(x)),
    "a capsule": lambda x: Producer(x.copy(), read_only=True),
    "a Tensor": lambda x: ip.from_numpy(frozen(x)),
    "a Tensor of a capsule": lambda x: ip.from_dlpack(Producer(x.copy(), read_only=True)),
}


def contents(operand: Any) -> bytes:
    if isinstance(operand, (Interface, Producer)):
        operand = operand._array
    array = operand.numpy() if isinstance(operand, ip.Tensor) else operand
    return bytes(array.tobytes())


@pytest.mark.parametrize("kind", READ_ONLY)
def test_read_only_outputs_are_refused(kind: str, record_property: Record) -> None:
    cases = 0
    for op, dtype, place in places(inputs=False):
        if kind == "an interface" and dtype == "bf16":
            continue  # has no name in that protocol
        operands: list[Any] = good(op, dtype)
        forms(op, list(operands))["at once"]()  # of this layout there was one before
        operands = good(op, dtype)
        operands[place] = READ_ONLY[kind](operands[place])
        before = [contents(operand) for operand in operands]
        for form, call in forms(op, operands).items():
            wanted = rf"^{op.name}: (out|{op.operand_names[place]}) with shape .* is read-only"
            with pytest.raises(ip.ParamError, match=wanted):
                call()
            assert [contents(operand) for operand in operands] == before, form
            cases += 1
    record_property("cases", cases)


# ---- right -------------------------------------------------------------------------------------------------


def stored(x: Array, folder: Path) -> Array:
    made = np.memmap(folder / "x", x.dtype, "w+", shape=x.shape)
    made[...] = x
    return made


RIGHT: dict[str, Callable[[Array, Path], Any]] = {
    "read-only": lambda x, _: frozen(x),
    "of bytes": lambda x, _: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "a read-only page": lambda x, _: np.frombuffer(
        mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ), x.dtype, x.size
    ).reshape(x.shape),
    "a read-only capsule": lambda x, _: Producer(x, read_only=True),
    "records of an even size": lambda x, _: fields(x, ("u", x.dtype), ("v", x.dtype)),
    "records with a pad": lambda x, _: fields(x, ("v", x.dtype), ("u", f"V{3 * x.itemsize}")),
    "a recarray": lambda x, _: fields(x, ("v", x.dtype), ("u", x.dtype)).view(np.recarray),
    "a mapped file": stored,
    "a type with metadata": lambda x, _: x.view(np.dtype(x.dtype, metadata={"of": "mine"})),
    "a type in this byte order": lambda x, _: x.view(x.dtype.newbyteorder("=")) if swappable(x) else x,
    "a column": lambda x, _: np.asfortranarray(x),
}


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("kind", RIGHT)
def test_right(kind: str, record_property: Record, tmp_path: Path) -> None:
    cases = 0
    for op, dtype, place in places(outputs=False):
        operands: list[Any] = good(op, dtype)
        if op is ip.AddRMSNorm and kind.startswith(("records", "a recarray", "a column")):
            continue  # its rows lie in one piece
        operands[place] = RIGHT[kind](operands[place], tmp_path)
        plain = [np.asarray(x._array) if isinstance(x, Producer) else np.array(x) for x in operands]
        EAGER[op](*plain)
        for form, call in forms(op, operands).items():
            for output in operands[: op.n_outputs]:
                output[...] = 7
            call()
            for got, wanted in zip(operands[: op.n_outputs], plain):
                assert got.tobytes() == wanted.tobytes(), (op.name, dtype, place, form)
            cases += 1
    record_property("cases", cases)


def test_a_matrix_is_an_array(record_property: Record) -> None:
    with pytest.warns(PendingDeprecationWarning):
        x = np.matrix(np.arange(4.0).reshape(2, 2))
    plain = np.asarray(x)
    for function in (ip.add, ip.mul, ip.gemm, ip.gemm_add, ip.gemm_mul):
        count = 3 if function in (ip.gemm_add, ip.gemm_mul) else 2
        np.testing.assert_array_equal(function(*[x] * count), function(*[plain] * count))
    record_property("cases", 5)


def test_no_dimensions(record_property: Record) -> None:
    for dtype in FLOATS + INTEGERS:
        x, y = np.array(3, DTYPES[dtype]), np.zeros((), DTYPES[dtype])
        assert ip.add_(y, x, x)[()] == 6 and ip.mul_(y, x, x)[()] == 9 and ip.rearrange_(y, x)[()] == 3
        for op in (ip.gemm_, lambda y, a, b: ip.add_rms_norm_(y, y, a, b, b)):
            with pytest.raises(ip.ShapeError):
                op(y, x, x)
        assert y[()] == 3
    record_property("cases", 5 * len(FLOATS + INTEGERS))


# ---- memory that moves -------------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[Array], Any]] = {
    "itself": lambda x: x,
    "a slice": lambda x: x[::2],
    "a transpose": lambda x: x.reshape(10, -1).T,
    "a view of a buffer": lambda x: np.asarray(memoryview(x))[1:],
    "a Tensor": lambda x: ip.from_numpy(x)[2:],
    "a Tensor by DLPack": lambda x: ip.from_dlpack(x)[2:],
}


def resized(array: Array) -> bool:
    """Does NumPy let it have other memory, where it is told not to count references?"""
    try:
        array.resize(100_000, refcheck=False)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("holder", ["graph", "planned call", "name", "own implementation", "Tensor"])
def test_memory_that_is_held_stays_in_place(holder: str, view: str, own: Any) -> None:
    array = np.ones(100, "f4")
    seen = VIEWS[view](array)
    held: Any
    if holder == "planned call":
        held = ip.Add(np.empty(seen.shape, "f4"), seen, seen)
    elif holder == "Tensor":
        held = seen if isinstance(seen, ip.Tensor) else ip.from_numpy(seen)
    else:
        if holder == "own implementation":
            own(ip.Add, lambda c, a, b: c.numpy().fill(a.numpy().sum()))
        held = ip.Graph()
        with held:
            result = ip.add(seen, seen)
            if holder == "name":
                held.name(seen=seen)
        if isinstance(result, np.ndarray) and result.ndim == 1:
            assert not resized(result), "an output"
        held.run()
    del seen
    assert not resized(array)
    if holder == "planned call":
        assert held().sum() > 0
    del held
    gc.collect()
    assert resized(array)


# ---- temporaries -------------------------------------------------------------------------------------------


def test_temporaries_while_threads_allocate_and_free(record_property: Record) -> None:
    """No operand is kept by anything but the call."""
    calls = round(60 * SCALE)

    def work(seed: int) -> None:
        for i in range(calls):
            size = 100 + (seed * 131 + i * 17) % 3000
            x = np.arange(2.0 * size)
            np.testing.assert_array_equal(ip.add(x[::2], x[1::2] + 1), x[::2] + x[1::2] + 1)
            np.testing.assert_array_equal(ip.mul(np.full(size, 2.0), ip.rearrange(x[::-2] * 1)), 2 * x[::-2])
            y, _ = ip.add_rms_norm(np.ones((2, size)), np.zeros((2, size)), np.full(size, float(seed)))
            np.testing.assert_allclose(y, seed, rtol=1e-5)
            m = x[: 2 * (size // 2)].reshape(2, -1)
            np.testing.assert_array_equal(ip.gemm(m + 0, np.eye(m.shape[1])[:, :3] + 0), m[:, :3])

    threads = [Caught(lambda seed=seed: work(seed)) for seed in range(6)]  # type: ignore[misc]
    for thread in threads:
        thread.finish()
    record_property("cases", 6 * 5 * calls)


# ---- objects that lie, raise or call back ------------------------------------------------------------------


class Mine(Exception):
    pass


RAISED: list[type[BaseException]] = [
    Mine, KeyError, AttributeError, ValueError, TypeError, StopIteration, MemoryError, RecursionError,
    BufferError, SystemError, ip.ShapeError, KeyboardInterrupt, SystemExit,
]  # fmt: skip


def speaking(protocol: str, call: Callable[[], Any], array: Array) -> Any:
    """An object with one protocol, which calls `call` before it answers for `array`."""

    class Interfaced:
        @property
        def __array_interface__(self) -> Any:
            call()
            return array.__array_interface__

    class Exported:
        def __dlpack_device__(self) -> tuple[int, int]:
            call()
            return 1, 0

        def __dlpack__(self, **given: Any) -> Any:
            call()
            return array.__dlpack__(**given)

    return {"__array_interface__": Interfaced, "__dlpack__": Exported}[protocol]()


def operands_with(op: type[ip.GraphOperator], place: int, operand: Any) -> list[Any]:
    operands: list[Any] = good(op, "f32")
    operands[place] = operand
    return operands


@pytest.mark.parametrize("protocol", ["__array_interface__", "__dlpack__"])
def test_objects_that_raise(protocol: str, record_property: Record) -> None:
    cases = 0
    for op in EAGER:
        for place in range(len(op.operand_names)):
            for error in RAISED:

                def fail(error: type[BaseException] = error) -> None:
                    raise error("no")

                wanted = ip.InfiniopError if issubclass(error, Exception) else error
                operands = operands_with(op, place, speaking(protocol, fail, good(op, "f32")[place]))
                for call in forms(op, operands).values():
                    with pytest.raises(wanted):
                        call()
                    assert not ip.is_graph_recording()
                    outputs = [x for i, x in enumerate(operands[: op.n_outputs]) if i != place]
                    assert all((output == 7).all() for output in outputs)
                    cases += 1
        EAGER[op](*good(op, "f32"))
    record_property("cases", cases)


def _record_one() -> None:
    with recorded():
        ip.add(np.ones(3), np.ones(3))


def _shrink() -> None:
    for op in EAGER:
        op.cache().set_capacity(0)
        op.cache().set_capacity(100)


def _fail() -> None:
    with pytest.raises(ip.ShapeError):
        ip.gemm(np.ones((2, 3)), np.ones((2, 3)))


BACK: dict[str, Callable[[], object]] = {
    "the same call": lambda: [EAGER[op](*good(op, "f32")) for op in EAGER],
    "another call": lambda: ip.gemm(np.ones((3, 5), "f8"), np.ones((5, 70), "f8")),
    "a graph": _record_one,
    "no cache": lambda: [op.cache().clear() for op in EAGER],
    "no capacity": _shrink,
    "a collection": lambda: gc.collect(0),
    "a failure": _fail,
}


@pytest.mark.parametrize("back", BACK)
@pytest.mark.parametrize("protocol", ["__array_interface__", "__dlpack__"])
def test_objects_that_call_back(protocol: str, back: str, record_property: Record) -> None:
    cases = 0
    for op in EAGER:
        for place in range(op.n_outputs, len(op.operand_names)):
            plain = good(op, "f32")
            EAGER[op](*plain)
            array = good(op, "f32")[place]
            operands = operands_with(op, place, speaking(protocol, BACK[back], array))
            for form in ("at once", "planned"):  # recordings do not nest
                for output in operands[: op.n_outputs]:
                    output[...] = 7
                forms(op, operands)[form]()
                for got, wanted in zip(operands[: op.n_outputs], plain):
                    np.testing.assert_array_equal(got, wanted)
                cases += 1
    record_property("cases", cases)


class Bad:
    """A number for all who ask, which never says which."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def _fail(self, *_: object) -> Any:
        raise self.error("no")

    __index__ = __float__ = __int__ = __len__ = __bool__ = __iter__ = __getitem__ = _fail
    __add__ = __mul__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __hash__ = _fail  # type: ignore[assignment]


Real.register(Bad)
Integral.register(Bad)
SCALARS: dict[str, Callable[[Any], object]] = {
    "alpha": lambda bad: ip.gemm_(*good(ip.Gemm, "f32"), bad),
    "beta": lambda bad: ip.gemm(*good(ip.Gemm, "f32")[1:], 1.0, bad, c=good(ip.Gemm, "f32")[0]),
    "planned alpha": lambda bad: ip.Gemm(*good(ip.Gemm, "f32"))(alpha=bad),
    "epsilon": lambda bad: ip.add_rms_norm_(*good(ip.AddRMSNorm, "f32"), bad),
    "shape": lambda bad: ip.empty((2, bad)),
    "sizes": lambda bad: ip.zeros(bad),
    "index": lambda bad: ip.ones(3)[bad],
    "slice": lambda bad: ip.ones(3)[bad:],
    "narrow": lambda bad: ip.ones(3).narrow(0, bad, 1),
    "permute": lambda bad: ip.ones((3, 3)).permute(bad, 0),
    "as_strided": lambda bad: ip.ones(9).as_strided((2,), (bad,)),
    "from_blob": lambda bad: ip.from_blob(bad, (2,), ip.DType.F32),
    "arange": lambda bad: ip.arange(bad),
    "an element": lambda bad: ip.ones(3).__setitem__(0, bad),
    "threads": lambda bad: ip.set_num_threads(bad),
    "threads of a block": lambda bad: ip.num_threads(bad),
    "device": lambda bad: ip.Device("cpu", bad),
    "capacity": lambda bad: ip.Gemm.cache().set_capacity(bad),
    "profile": lambda bad: _profiled(bad),
    "operand": lambda bad: ip.add(bad, np.ones(2)),
}


def _profiled(n: Any) -> None:
    with ip.Graph() as graph:
        ip.add(np.ones(3), np.ones(3))
    graph.profile(n)


@pytest.mark.parametrize("place", SCALARS)
def test_numbers_that_raise(place: str, record_property: Record) -> None:
    for error in RAISED:
        # RuntimeError: what a generator makes of StopIteration.
        with pytest.raises((ip.InfiniopError, TypeError, RuntimeError, error)):
            SCALARS[place](Bad(error))
        assert not ip.is_graph_recording()
        EAGER[ip.Gemm](*good(ip.Gemm, "f32"))
    assert ip.Gemm.cache().cache_info().capacity == 100
    record_property("cases", len(RAISED))
