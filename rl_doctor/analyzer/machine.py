"""Machine code of ``loops``: numba makes it once, and later runs load it with llvmlite alone.

Importing numba and letting it load what it has compiled before takes half a second of CPU, as much as 15 million tokens; this
takes a tenth of that. The code is kept where numba would keep it, under a name that changes with its source, with llvmlite and
with the processor. Where it cannot be made to stand by itself, numba's own function is called.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib.util import source_hash
from pathlib import Path
from typing import Any, Final

import llvmlite
from llvmlite import binding

PIECE: Final = 512
"""Values that a loop takes at once."""
_PIECES: Final = "iiin"
KINDS: Final = {
    "policy": f"cccc nn {_PIECES} b dddd ffffff i s u f i n t ff",
    "divergence": f"cc {_PIECES} dd ffff i f n",
    "pair": f"cc {_PIECES} ffff i f n ff i",
    "tail": f"cc {_PIECES} ffffff i f n",
    "moments": f"cc {_PIECES} f n",
    "distance": f"cc {_PIECES} f",
    "ends": f"k n {_PIECES} kk",
    "powers": f"c {_PIECES} f n i",
    "column": f"c {_PIECES} f",
}
"""Arguments of each loop: ``n`` int64, ``d`` float64, and pointers: ``c`` to a column and ``k`` to its bits as integers, ``f``
float64, ``i`` int64, ``b`` int8, ``s`` float32, ``u`` uint32, ``t`` int32."""
_NUMBERS: Final = {"n": ctypes.c_int64, "d": ctypes.c_double}
_WIDE: Final = "-prefer-256-bit"
"""Lets LLVM use vectors of 512 bits, which it leaves alone as processors of before 2019 slow down for them."""
_AT_FULL_SPEED: Final = "+avx512vbmi2"
"""A feature that processors have which do not."""
_SYMBOL: Final = "rl_doctor_loop"
_DIGEST: Final = 8
"""Bytes of ``source_hash``, which Python finds torn files by as well; hashlib would load OpenSSL."""

_held: Final[list[Any]] = []
"""What keeps the code in memory."""


@cache
def loop(name: str, column: str) -> Callable[..., None]:
    """The loop ``name`` over columns of float32 or float64. It takes arrays by address, and keeps the interpreter's lock."""
    file = f"loops.{name}.{column}.{_key()}.code"
    code = _kept(file)
    if code is None:
        from rl_doctor.analyzer import loops

        code = _alone(*loops.assembly(name, column)) if hasattr(binding, "create_pass_builder") else None  # llvmlite 0.44
        if code is None:
            made = loops.entry(name, column)
            _held.append(made)
            return _function(name, made.address)
        _keep(file, code)
    return _function(name, _loaded(code))


def _function(name: str, address: int) -> Callable[..., None]:
    arguments: list[Any] = [_NUMBERS.get(kind, ctypes.c_void_p) for kind in KINDS[name].replace(" ", "")]
    return ctypes.PYFUNCTYPE(None, *arguments)(address)


@cache
def _target() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    cpu, features = _processor()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="default", codemodel="jitdefault", jit=True
    )


@cache
def _processor() -> tuple[str, str]:
    features = binding.get_host_cpu_features().flatten()
    return binding.get_host_cpu_name(), f"{features},{_WIDE}" if _AT_FULL_SPEED in features else features


@cache
def _key() -> str:
    sources = (Path(__file__).with_name(f"{name}.py").read_bytes() for name in ("machine", "loops", "kernels"))
    told = (llvmlite.__version__, binding.get_process_triple(), *_processor())
    return source_hash(b"\0".join([*sources, *(text.encode() for text in told)])).hex()


def _alone(assembly: str, symbol: str) -> bytes | None:
    """Object code that needs no symbol from outside, with the function as ``_SYMBOL``; None where it would need one.

    Only the function itself stays visible, so that what numba calls for errors, which the loops do not raise, falls away.
    """
    module = binding.parse_assembly(assembly)
    for function in module.functions:
        if not function.is_declaration and function.name != symbol:
            function.linkage = "internal"
    tuning = binding.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = tuning.slp_vectorization = True
    builder = binding.create_pass_builder(_target(), tuning)
    builder.getModulePassManager().run(module, builder)
    if any(function.is_declaration and not function.name.startswith("llvm.") for function in module.functions):
        return None
    module.get_function(symbol).name = _SYMBOL
    code: bytes = _target().emit_object(module)
    return code


def _loaded(code: bytes) -> int:
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _target())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _held.append(engine)
    return int(engine.get_function_address(_SYMBOL))


def _folders() -> Iterator[Path]:
    """Where code may be kept, in order: where the user says, and nowhere else, or beside the module, or in the user's cache."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(chosen)
        return
    yield Path(__file__).with_name("__pycache__")
    with suppress(RuntimeError):  # no home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rl-doctor"


def _kept(file: str) -> bytes | None:
    for folder in _folders():
        with suppress(OSError):
            held = (folder / file).read_bytes()
            if source_hash(held[_DIGEST:]) == held[:_DIGEST]:
                return held[_DIGEST:]
    return None


def _keep(file: str, code: bytes) -> None:
    for folder in _folders():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            whole = folder / f"{file}.{os.getpid()}"
            whole.write_bytes(source_hash(code) + code)
            whole.replace(folder / file)
            return
