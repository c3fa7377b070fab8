"""Functions in machine code, written as Python that emits LLVM's instructions.

A kernel for given sizes is a Python function that is run once: what it computes with `Value`s
becomes instructions, its own `for` loops are unrolled, and `Code.loop` makes loops that stay loops.
LLVM translates the result for the processor at hand, in memory: no compiler is needed and no file
is written.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from llvmlite import binding, ir

_INT = ir.IntType(64)
_BYTE = ir.IntType(8)
_BIT = ir.IntType(1)
# A product and a sum become one instruction where the processor has one.
_FUSED = ("contract",)
Kernel = Callable[..., None]


class Value:
    """A number or a vector of numbers that the kernel computes."""

    def __init__(self, code: Code, ir_value: Any) -> None:
        self.code = code
        self.ir = ir_value

    def _integer(self) -> bool:
        return isinstance(self.ir.type, ir.IntType)

    def _operand(self, other: Value | int) -> Any:
        if isinstance(other, Value):
            return other.ir
        return ir.Constant(self.ir.type, other)

    def __add__(self, other: Value | int) -> Value:
        builder = self.code.builder
        if self._integer():
            return Value(self.code, builder.add(self.ir, self._operand(other)))
        return Value(self.code, builder.fadd(self.ir, self._operand(other), flags=_FUSED))

    def __mul__(self, other: Value | int) -> Value:
        builder = self.code.builder
        if self._integer():
            return Value(self.code, builder.mul(self.ir, self._operand(other)))
        return Value(self.code, builder.fmul(self.ir, self._operand(other), flags=_FUSED))

    def __sub__(self, other: Value | int) -> Value:
        return Value(self.code, self.code.builder.sub(self.ir, self._operand(other)))

    def __floordiv__(self, other: int) -> Value:
        """Divide an integer that is not negative."""
        return Value(self.code, self.code.builder.udiv(self.ir, self._operand(other)))

    def __mod__(self, other: int) -> Value:
        return Value(self.code, self.code.builder.urem(self.ir, self._operand(other)))

    def compare(self, sign: str, other: Value | int) -> Value:
        """Compare integers, or floats: then the result is false where one is not a number."""
        builder = self.code.builder
        if self._integer():
            return Value(self.code, builder.icmp_signed(sign, self.ir, self._operand(other)))
        return Value(self.code, builder.fcmp_ordered(sign, self.ir, self._operand(other)))

    def __or__(self, other: Value) -> Value:
        return Value(self.code, self.code.builder.or_(self.ir, other.ir))

    def is_nan(self) -> Value:
        """Return where it is not a number."""
        return Value(self.code, self.code.builder.fcmp_unordered("uno", self.ir, self.ir))

    def where(self, yes: Value, no: Value) -> Value:
        """Choose, by this bit or vector of bits, between two values."""
        return Value(self.code, self.code.builder.select(self.ir, yes.ir, no.ir))

    def spread(self, lanes: int) -> Value:
        """Return a vector that has this number in each of its lanes."""
        undefined = ir.Constant(ir.VectorType(self.ir.type, lanes), ir.Undefined)
        builder = self.code.builder
        first = builder.insert_element(undefined, self.ir, ir.Constant(ir.IntType(32), 0))
        return Value(self.code, first).lanes([0] * lanes)

    def lanes(self, chosen: Sequence[int]) -> Value:
        """Return a vector of some lanes of this one."""
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(chosen)), list(chosen))
        undefined = ir.Constant(self.ir.type, ir.Undefined)
        return Value(self.code, self.code.builder.shuffle_vector(self.ir, undefined, mask))


class Array:
    """Numbers of one type that lie one after the other in memory."""

    def __init__(self, code: Code, address: Any, number: Any) -> None:
        self.code = code
        self.address = address
        self.number = number

    def __add__(self, offset: Value | int) -> Array:
        """Return the numbers from an offset on."""
        return Array(self.code, self._at(offset), self.number)

    def _at(self, offset: Value | int) -> Any:
        index = self.code.integer(offset).ir
        return self.code.builder.gep(self.address, [index], source_etype=self.number)

    def __getitem__(self, offset: Value | int) -> Value:
        return Value(self.code, self.code.builder.load(self._at(offset), typ=self.number))

    def __setitem__(self, offset: Value | int, value: Value) -> None:
        """Write a number, or a vector from there on."""
        self.code.builder.store(value.ir, self._at(offset), align=_bytes(self.number))

    def vector(self, offset: Value | int, lanes: int) -> Value:
        """Read a vector."""
        kind = ir.VectorType(self.number, lanes)
        align = _bytes(self.number)
        return Value(self.code, self.code.builder.load(self._at(offset), align=align, typ=kind))


class Variable:
    """A value that changes; LLVM keeps it in a register if it can."""

    def __init__(self, code: Code, start: Value) -> None:
        self.code = code
        self.kind = start.ir.type
        with code.builder.goto_entry_block():
            self.place = code.builder.alloca(self.kind)
        self.set(start)

    def get(self) -> Value:
        """Return its value now."""
        return Value(self.code, self.code.builder.load(self.place, typ=self.kind))

    def set(self, value: Value) -> None:
        """Change it."""
        self.code.builder.store(value.ir, self.place)


class Code:
    """The code of a kernel under construction, whose numbers are floats of so many bits."""

    def __init__(self, bits: int) -> None:
        self.float = {32: ir.FloatType(), 64: ir.DoubleType()}[bits]
        self.builder: Any = None

    def integer(self, value: Value | int) -> Value:
        """Return an integer of the program as one of the kernel."""
        if isinstance(value, Value):
            return value
        return Value(self, ir.Constant(_INT, value))

    def byte(self, value: int, lanes: int) -> Value:
        """Return a vector of equal bytes."""
        return Value(self, ir.Constant(ir.VectorType(_BYTE, lanes), [value] * lanes))

    def zero(self, lanes: int | None = None) -> Value:
        """Return the float 0, or a vector of it."""
        if lanes is None:
            return Value(self, ir.Constant(self.float, 0.0))
        return Value(self, ir.Constant(ir.VectorType(self.float, lanes), [0.0] * lanes))

    def widened(self, byte: Value) -> Value:
        """Return a byte as an integer."""
        return Value(self, self.builder.zext(byte.ir, _INT))

    def number(self, integer: Value) -> Value:
        """Return an integer as a float."""
        return Value(self, self.builder.sitofp(integer.ir, self.float))

    @contextmanager
    def loop(self, count: Value | int) -> Iterator[Value]:
        """Repeat the block for 0, 1, … count − 1, which is what it is given."""
        index = Variable(self, self.integer(0))
        head = self.builder.append_basic_block()
        body = self.builder.append_basic_block()
        end = self.builder.append_basic_block()
        self.builder.branch(head)
        self.builder.position_at_end(head)
        more = index.get().compare("<", count)
        self.builder.cbranch(more.ir, body, end)
        self.builder.position_at_end(body)
        yield index.get()
        index.set(index.get() + 1)
        self.builder.branch(head)
        self.builder.position_at_end(end)

    @contextmanager
    def only_if(self, condition: Value) -> Iterator[None]:
        """Do the block where the condition holds."""
        with self.builder.if_then(condition.ir):
            yield


def compiled(name: str, bits: int, kinds: str, write: Callable[..., None]) -> Kernel:
    """Return a kernel as a function that is called with addresses and integers.

    `kinds` has a letter for each argument: `f` floats, `b` bytes, `i` integers (arrays of them),
    `n` one integer. `write(code, *arguments)` emits the kernel.
    """
    code = Code(bits)
    arrays = {"f": code.float, "b": _BYTE, "i": _INT}
    types = [_INT if kind == "n" else ir.PointerType() for kind in kinds]
    module = ir.Module(name)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), types), name)
    for argument in function.args:
        if isinstance(argument.type, ir.PointerType):
            argument.add_attribute("noalias")
    entry = function.append_basic_block()
    # Variables are made in the entry block, before what the kernel does.
    code.builder = ir.IRBuilder(entry)
    body = function.append_basic_block()
    code.builder.branch(body)
    code.builder.position_at_end(body)
    given = [
        Value(code, a) if kind == "n" else Array(code, a, arrays[kind])
        for a, kind in zip(function.args, kinds, strict=True)
    ]
    write(code, *given)
    code.builder.ret_void()
    return _translated(str(module), name, len(kinds))


@cache
def _machine() -> Any:
    """Return LLVM's description of the processor at hand."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    features = binding.get_host_cpu_features().flatten()
    return target.create_target_machine(binding.get_host_cpu_name(), features, opt=3)


# LLVM frees what it has translated with its engine: the engines live as long as the process.
_engines: list[Any] = []


def _translated(text: str, name: str, arguments: int) -> Kernel:
    """Return the function of a module of LLVM's language."""
    machine = _machine()
    module = binding.parse_assembly(text)
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=2)
    # The kernels are unrolled and vectorised as they are written.
    options.loop_unrolling = False
    options.loop_vectorization = False
    options.slp_vectorization = False
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _engines.append(engine)
    # ctypes lets other threads run Python while the kernel computes.
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)
    return kind(engine.get_function_address(name))


def _bytes(number: Any) -> int:
    return {_BYTE: 1, ir.FloatType(): 4}.get(number, 8)
