"""The C prelude, compiled and called through ctypes: accuracy, special values, SIMD, and no side effects."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch

from burnt.codegen.render.c.prelude import source

COMPILER = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fopenmp"]


def is_gcc() -> bool:
    if COMPILER is None:
        return False
    output = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True).stdout
    return "Free Software Foundation" in output


# Only gcc: clang's reports have another format.
VECTORISER_REPORT = ["-fopt-info-vec-optimized"] if is_gcc() else []

pytestmark = pytest.mark.skipif(
    COMPILER is None, reason="no C compiler: neither gcc nor clang nor cc is here"
)

# Error bounds in units of the last place. Measured over every fifth float on a machine with AVX-512, with
# some room for machines that round between a multiplication and an addition.
UNARY_ULP = {
    "abs": 0, "ceil": 0, "floor": 0, "round": 0, "sign": 0, "trunc": 0, "sqrt": 0.51, "rsqrt": 1.6,
    "exp": 1.2, "exp2": 1.2, "expm1": 1.7, "log": 1.0, "log2": 1.3, "log10": 1.2, "log1p": 1.7,
    "sigmoid": 2.6, "tanh": 2.7, "sinh": 1.8, "cosh": 1.7, "asinh": 2.1, "acosh": 2.3, "atanh": 2.4,
    "erf": 1.2, "erfc": 3.0, "sin": 1.8, "cos": 1.8, "tan": 3.6, "asin": 1.8, "acos": 1.3, "atan": 1.5,
}  # fmt: skip
BINARY_ULP = {"atan2": 2.5, "pow": 0.6}
EXACT_BINARY = ["copysign", "fmax", "fmin", "fmod", "maximum", "minimum", "remainder"]
# Functions that only other functions of the prelude call.
INNER = {
    "fast_exp2_f32",  # exp2_f32 by another name
    "fma_f32", "fma_f64", "bits_f32", "bits_f64", "float_of_bits", "double_of_bits", "power_of_two",
    "scale_f32", "scale_by_sign", "expm1_poly", "exp_reduce", "half_exp", "log_reduce", "log_tail",
    "log_special", "log_scaled", "log1p_positive", "log1p_or_double", "reduce_angle", "sin_poly", "cos_poly",
    "asin_tail", "atan_poly", "philox_round", "fmod_step", "f32_of_f16_vector", "f16_of_f32_vector",
    "floats_of_shorts", "shorts_of_floats", "load_last_shorts", "store_last_shorts",
}  # fmt: skip
TYPES = {
    "float": torch.float32, "double": torch.float64, "uint8_t": torch.uint8, "int8_t": torch.int8,
    "int16_t": torch.int16, "int32_t": torch.int32, "int64_t": torch.int64, "uint16_t": torch.uint16,
    "uint32_t": torch.uint32,
}  # fmt: skip
FUNCTION = re.compile(r"^static inline (\w+) (\w+)\(([^)]*)\)", re.MULTILINE)


@dataclass
class Library:
    """A library with a loop for each function of the prelude, and which loops were vectorised."""

    loaded: ctypes.CDLL
    results: dict[str, torch.dtype]
    vectorised: set[str]

    def __call__(self, name: str, *inputs: torch.Tensor) -> torch.Tensor:
        out = torch.empty(inputs[0].shape, dtype=self.results[name])
        tensors = (out, *(tensor.contiguous() for tensor in inputs))
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        getattr(self.loaded, f"loop_{name}")(*pointers, ctypes.c_long(out.numel()))
        return out

    def row(self, name: str, out: torch.Tensor, source: torch.Tensor) -> None:
        """Convert a row and write it to the first elements of another."""
        pointers = ctypes.c_void_p(out.data_ptr()), ctypes.c_void_p(source.data_ptr())
        getattr(self.loaded, f"call_{name}")(*pointers, ctypes.c_long(source.numel()))


def compile_c(text: str, folder: Path, *flags: str) -> tuple[Path, str]:
    (folder / "kernel.c").write_text(text)
    command = [str(COMPILER), "kernel.c", "-o", "kernel.so", "-shared", "-fPIC", *FLAGS, *flags, "-lm"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "kernel.so", done.stderr


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    lines = source().splitlines()
    results, at_line = {}, {}
    for result, name, arguments in FUNCTION.findall(source()):
        types = [argument.split()[0] for argument in arguments.split(",")]
        if name in INNER or result not in TYPES:
            continue
        pointers = "".join(f"const {t} *restrict x{i}, " for i, t in enumerate(types))
        call = ", ".join(f"x{i}[i]" for i in range(len(types)))
        lines.append(f"void loop_{name}({result} *restrict y, {pointers}long n) {{")
        lines.append("#pragma omp simd")
        lines.append(f"for (long i = 0; i < n; i++) y[i] = {name}({call}); }}")
        results[name] = TYPES[result]
        at_line[len(lines)] = name
    lines.append("""
        void loop_philox(uint32_t *restrict y, const uint32_t *restrict c, uint32_t key0, uint32_t key1,
                         long n) {
            for (long i = 0; i < n; i++) {
                philox_t r = philox((philox_t){c[4*i], c[4*i+1], c[4*i+2], c[4*i+3]}, key0, key1);
                y[4*i] = r.x; y[4*i+1] = r.y; y[4*i+2] = r.z; y[4*i+3] = r.w;
            }
        }""")
    lines.append("""
        void call_f32_of_f16_row(float *y, const uint16_t *x, long n) { f32_of_f16_row(y, x, n); }
        void call_f16_of_f32_row(uint16_t *y, const float *x, long n) { f16_of_f32_row(y, x, n); }
        void call_f32_of_f16_strip(float *y, const uint16_t *x, long n) {
            for (long i = 0; i < n; i += 16) f32_of_f16_strip(y + i, x + i);
        }
        void call_f16_of_f32_strip(uint16_t *y, const float *x, long n) {
            for (long i = 0; i < n; i += 16) f16_of_f32_strip(y + i, x + i);
        }""")
    folder = tmp_path_factory.mktemp("prelude")
    path, output = compile_c("\n".join(lines), folder, *VECTORISER_REPORT)
    found = re.findall(r"kernel\.c:(\d+):\d+: optimized: loop vectorized", output)
    vectorised = {at_line[int(line)] for line in found if int(line) in at_line}
    return Library(ctypes.CDLL(str(path)), results, vectorised)


def sample(seed: int = 0, count: int = 1 << 20) -> torch.Tensor:
    """Return floats spread evenly over all bit patterns, including NaN and denormals, and critical points."""
    step = 2**32 // count
    offsets = np.random.default_rng(seed).integers(0, step, count, dtype=np.uint64)
    patterns = (np.arange(count, dtype=np.uint64) * np.uint64(step) + offsets).astype(np.uint32)
    points = np.array([
        0, 0.25, 0.5, 1, 1.5, 2, np.pi / 4, np.pi / 2, np.pi, 4, 9.01, 10.06, 16.64, 17.33, 88.0297, 88.7228,
        89.4159, 87.3365, 103.972, 126, 127, 128, 149, 150, 2**23, 2**24, 2**30, 2**31, 2.0**80, 3.4028235e38,
        1.1754944e-38, 1e-45, 2.0**-24, 2.0**-12, np.inf,
    ], np.float32)  # fmt: skip
    near = points.view(np.uint32)[:, None].astype(np.int64) + np.arange(-40, 41)
    near = near[(near >= 0) & (near <= 0x7F800001)].astype(np.uint32)
    # The float closest to a multiple of pi/2, where argument reduction loses most bits.
    worst = np.array([16367173 * 2.0**72], np.float32).view(np.uint32)
    patterns = np.concatenate([patterns, near, near | 0x80000000, worst])
    return torch.from_numpy(patterns.astype(np.uint32).view(np.float32).copy())


def moderate(seed: int, count: int = 1 << 18, scale: float = 4.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator) * scale


def errors_in_ulp(found: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return the distance to a float64 reference in units of float32's last place; infinity counts as 2^128.

    NaN must match NaN, and zeros must have the reference's sign.
    """
    assert torch.equal(found.isnan(), truth.isnan())
    zero = found == 0
    assert torch.equal(found[zero].signbit(), truth[zero].signbit())
    limit = 2.0**128
    exponent = torch.frexp(truth.clamp(-limit, limit)).exponent.clamp(-125, 128)
    unit = torch.ldexp(torch.ones_like(truth), exponent - 24)
    distance = (found.double().clamp(-limit, limit) - truth.clamp(-limit, limit)).abs() / unit
    return distance.nan_to_num(0.0)


def assert_same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Assert equality, including the sign of zeros; all NaNs are equal."""
    same = (found == expected) & (found.signbit() == expected.signbit()) | found.isnan() & expected.isnan()
    assert same.all(), (found[~same][:5], expected[~same][:5])


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", UNARY_ULP)
def test_error_over_all_floats(library: Library, name: str) -> None:
    assert UNARY_ULP[name] <= 4
    x = sample()
    error = errors_in_ulp(library(f"{name}_f32", x), getattr(torch, name)(x.double()))
    worst = int(error.argmax())
    assert error[worst] <= UNARY_ULP[name], f"{error[worst]:.3f} ulp at {x[worst].item().hex()}"


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name", ["exp", "expm1", "log", "log1p", "tanh", "erf", "erfc", "sin", "tan", "acos", "atanh"]
)
def test_the_float64_reference_agrees_with_mpmath(name: str) -> None:
    """The bounds above rely on torch's float64 functions being accurate enough."""
    x = sample(seed=3, count=512)
    truth = getattr(torch, name)(x.double())
    with mpmath.workprec(300):
        for value, found in zip(x.tolist(), truth.tolist(), strict=True):
            outside = {
                "log": value <= 0,
                "log1p": value <= -1,
                "acos": abs(value) > 1,
                "atanh": abs(value) >= 1,
            }
            if not np.isfinite(value) or not np.isfinite(found) or outside.get(name, False):
                continue
            exact = getattr(mpmath, name)(mpmath.mpf(value))
            assert abs(found - exact) <= abs(exact) * 1e-13 + 1e-300, value


@pytest.mark.parametrize("name", UNARY_ULP)
def test_special_values_are_torchs(library: Library, name: str) -> None:
    tiny, small, large = 1e-45, 1.1754944e-38, 3.4028235e38
    half = [0.0, tiny, small, 0.5, 1.0, 2.0, 2.5, large, torch.inf, torch.nan]
    # A few elements and many take different paths in torch; and 3 copies leave a tail after the SIMD loop.
    x = torch.tensor(half + [-value for value in half]).repeat(3)
    if name == "log1p":  # torch gives 0 for a denormal
        x = x[(x == 0) | ~(x.abs() < small)]
    found, expected = library(f"{name}_f32", x), getattr(torch, name)(x)
    special = ~expected.isfinite() | (expected == 0)
    assert_same_bits(found[special], expected[special])
    assert torch.equal(~found.isfinite() | (found == 0), special)


def pairs(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pairs over all floats, pairs of moderate size, and all pairs of special values."""
    special = torch.tensor([0.0, 1e-45, 1.1754944e-38, 0.5, 1, 1.5, 2, 3, 4, 5, 1e7, 16777217, 3.4028235e38,
                            torch.inf, torch.nan])  # fmt: skip
    special = torch.cat([special, -special])
    order = torch.randperm(1 << 18, generator=torch.Generator().manual_seed(seed))
    x = torch.cat(
        [sample(seed, 1 << 18)[: 1 << 18], moderate(seed), moderate(seed).round(), special.repeat(30)]
    )
    y = torch.cat([sample(seed + 1, 1 << 18)[order], moderate(seed + 1), moderate(seed + 1).round(),
                   special.repeat_interleave(30)])  # fmt: skip
    return x, y


@pytest.mark.parametrize("name", BINARY_ULP)
def test_error_over_pairs(library: Library, name: str) -> None:
    x, y = pairs(5)
    if name == "pow":  # near 1 the logarithm is small and the exponent may be large
        x = torch.cat([x, 1 + moderate(7, scale=1e-3), moderate(8).abs()])
        y = torch.cat([y, moderate(9, scale=3e4), moderate(10, scale=30.0)])
    error = errors_in_ulp(library(f"{name}_f32", x, y), getattr(torch, name)(x.double(), y.double()))
    worst = int(error.argmax())
    assert error[worst] <= BINARY_ULP[name], f"{error[worst]:.3f} ulp at {x[worst]:.9g}, {y[worst]:.9g}"


def exact(name: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the exact result: torch's, or C's fmod where torch gives NaN for large quotients."""
    if name not in ("fmod", "remainder"):
        return getattr(torch, name)(x, y)
    with np.errstate(invalid="ignore"):
        rest = torch.from_numpy(np.fmod(x.numpy(), y.numpy()))
    if name == "remainder":
        rest = torch.where((rest != 0) & (rest.signbit() != y.signbit()), rest + y, rest)
    torchs = getattr(torch, name)(x, y)
    known = ~torchs.isnan()
    assert known.sum() > known.numel() / 3
    assert_same_bits(torchs[known], rest[known])
    return rest


@pytest.mark.parametrize("name", EXACT_BINARY)
def test_exact_functions_of_pairs(library: Library, name: str) -> None:
    x, y = pairs(11)
    # C's fmax returns NaN if an argument is a signalling NaN.
    x, y = x.where(~x.isnan(), torch.nan), y.where(~y.isnan(), torch.nan)
    if name in ("fmax", "fmin", "maximum", "minimum"):  # which zero torch returns depends on its vector path
        keep = ~((x == 0) & (y == 0))
        x, y = x[keep], y[keep]
    assert_same_bits(library(f"{name}_f32", x, y), exact(name, x, y))


def test_of_equal_values_the_first_is_returned(library: Library) -> None:
    x, y = torch.tensor([0.0, -0.0]), torch.tensor([-0.0, 0.0])
    for name in ("fmax", "fmin", "maximum", "minimum"):
        assert_same_bits(library(f"{name}_f32", x, y), x)
        assert_same_bits(library(f"{name}_f64", x.double(), y.double()), x.double())


def test_fmod_with_quotients_of_every_size(library: Library) -> None:
    """Quotients up to 2^277, compared with Python's integers."""
    x, y = pairs(13)
    keep = (x.abs() > 2.0**60) & (y.abs() < 2.0**-60) & (y != 0) & x.isfinite()
    x, y = x[keep][:2000], y[keep][:2000]
    assert len(x) == 2000
    unit = 2**149
    whole = [(int(a) * unit, round(abs(b) * 2.0**149)) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    expected = torch.tensor(
        [abs(a) % b * 2.0**-149 * (1 if a > 0 else -1) for a, b in whole], dtype=torch.float32
    )
    assert_same_bits(library("fmod_f32", x, y), expected)


@pytest.mark.parametrize("name", [*UNARY_ULP, *BINARY_ULP, *EXACT_BINARY])
def test_double(library: Library, name: str) -> None:
    count = 1 if name in UNARY_ULP else 2
    generator = torch.Generator().manual_seed(17)
    ordinary = torch.randn(count, 4096, generator=generator, dtype=torch.float64) * 3
    special = torch.tensor([0.0, 5e-324, 1, 2.5, 1.7e308, torch.inf, torch.nan], dtype=torch.float64)
    special = torch.cat([special, -special])
    grid = torch.stack([special.repeat(14), special.repeat_interleave(14)])[:count]
    inputs = torch.cat([ordinary, grid], 1)
    if name in ("fmax", "fmin", "maximum", "minimum"):
        inputs = inputs[:, ~(inputs == 0).all(0)]
    if name == "log1p":  # torch gives 0 for a denormal
        inputs = inputs[:, (inputs[0] == 0) | ~(inputs[0].abs() < 1e-300)]
    found = library(f"{name}_f64", *inputs)
    expected = exact(name, *inputs) if name in EXACT_BINARY else getattr(torch, name)(*inputs)
    special_result = ~expected.isfinite() | (expected == 0)
    assert_same_bits(found[special_result], expected[special_result])
    # torch's own functions are within a few ulp in float64.
    torch.testing.assert_close(found, expected, rtol=2e-15, atol=1e-323, equal_nan=True)


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_half_precision_there(library: Library, name: str, dtype: torch.dtype) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    found, expected = library(f"f32_of_{name}", every), every.view(dtype).float()
    assert_same_bits(found, expected)


def rounding_cases(dtype: torch.dtype) -> torch.Tensor:
    """Return all 16-bit numbers, the rounding boundaries between them, and samples of all floats."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    low = every.view(dtype).float()
    middle = (low + low.roll(-1)) / 2  # ties; with the adjacent floats, all boundaries
    ties = torch.cat([middle, middle.nextafter(low), middle.nextafter(low.roll(-1))])
    edges = torch.tensor([65504.0, 65519.996, 65520.0, -65520.0, 3.3895e38, 3.3961776e38, 2.0**-24, 2.0**-25])
    return torch.cat([sample(), low, ties, edges])


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_half_precision_back(library: Library, name: str, dtype: torch.dtype) -> None:
    x = rounding_cases(dtype)
    found = library(f"{name}_of_f32", x).view(dtype)
    assert_same_bits(found.float(), x.to(dtype).float())
    assert found[x.isnan()].isnan().all()


def test_rows_of_float16(library: Library) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    half = every.view(torch.float16)
    for start, stop in (0, 1 << 16), (1, 1 << 16), (5, 12), (0, 0), (31743, 31747):
        count = stop - start
        given, found = every[start:stop], torch.full((count + 17,), 7.0)
        library.row("f32_of_f16_row", found, given)
        assert_same_bits(found[:count].nan_to_num(7e4), half[start:stop].float().nan_to_num(7e4))
        assert (found[-(-count // 16) * 16 :] == 7).all()  # there is room for whole vectors
    x = rounding_cases(torch.float16)
    x = torch.cat([x, torch.zeros(16)])[: len(x)]  # with room for a vector's rest
    for start in 0, 3:
        back = torch.full((len(x) - start + 1,), 7, dtype=torch.uint16)
        library.row("f16_of_f32_row", back, x[start:])
        found, expected = back[:-1].view(torch.float16), x[start:].half()
        assert_same_bits(found.float().nan_to_num(7e4), expected.float().nan_to_num(7e4))
        assert torch.equal(found.isnan(), expected.isnan())
        assert back[-1] == 7


def test_strips_of_float16(library: Library) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    found, expected = torch.empty(1 << 16), every.view(torch.float16).float()
    library.row("f32_of_f16_strip", found, every)
    assert_same_bits(found.nan_to_num(7e4), expected.nan_to_num(7e4))
    x = rounding_cases(torch.float16)
    x = x[: len(x) // 16 * 16]
    back = torch.empty(len(x), dtype=torch.uint16)
    library.row("f16_of_f32_strip", back, x)
    assert_same_bits(back.view(torch.float16).float().nan_to_num(7e4), x.half().float().nan_to_num(7e4))


def test_rounding_to_float16(library: Library) -> None:
    x = rounding_cases(torch.float16)
    found, expected = library("round_f16", x), x.half().float()
    assert_same_bits(found.nan_to_num(7e4), expected.nan_to_num(7e4))
    assert torch.equal(found.isnan(), expected.isnan())


@pytest.mark.parametrize("source_type", ["f32", "f64"])
@pytest.mark.parametrize("name", ["bool", "u8", "i8", "i16", "i32", "i64"])
def test_integers(library: Library, name: str, source_type: str) -> None:
    dtypes = {"bool": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32,
              "i64": torch.int64}  # fmt: skip
    dtype, wide = dtypes[name], torch.float32 if source_type == "f32" else torch.float64
    x = torch.cat(
        [moderate(19, 4099, 1e3), torch.tensor([0.0, -0.0, -0.9, 0.9, 1e-45, 2147483520.0, -(2.0**31)])]
    )
    if name == "bool":
        x = torch.cat([x, torch.tensor([torch.nan, torch.inf])])
    if name == "i64":
        x = torch.cat([x, torch.tensor([2.0**40, -(2.0**62)])])
    x = x.to(wide)
    found = library(f"{name}_of_{source_type}", x)
    assert torch.equal(found.to(torch.int64), x.to(dtype).to(torch.int64))


def test_between_float_and_double(library: Library) -> None:
    x = sample()
    assert_same_bits(library("f64_of_f32", x), x.double())
    y = torch.cat(
        [x.double(), x.double() * (1 + 2.0**-25), torch.tensor([1e308, 1e-320], dtype=torch.float64)]
    )
    assert_same_bits(library("f32_of_f64", y), y.float())


def philox_reference(counter: list[int], key: list[int], bits: int) -> list[int]:
    """Ten rounds of Philox with four words of 32 or 64 bits, from the paper."""
    multipliers, weyl = {
        32: ((0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)),
        64: ((0xD2E7470EE14C6C93, 0xCA5A826395121157), (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)),
    }[bits]
    mask = (1 << bits) - 1
    for _ in range(10):
        low, high = multipliers[0] * counter[0], multipliers[1] * counter[2]
        counter = [
            high >> bits ^ counter[1] ^ key[0],
            high & mask,
            low >> bits ^ counter[3] ^ key[1],
            low & mask,
        ]
        key = [(k + w) & mask for k, w in zip(key, weyl, strict=True)]
    return counter


def philox_in_c(library: Library, counters: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    out = np.empty_like(counters)
    library.loaded.loop_philox(
        ctypes.c_void_p(out.ctypes.data), ctypes.c_void_p(counters.ctypes.data),
        ctypes.c_uint32(key[0]), ctypes.c_uint32(key[1]), ctypes.c_long(len(counters)),
    )  # fmt: skip
    return out


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ("00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_known_answers(library: Library, counter: str, key: str, answer: str) -> None:
    """The known answers in Random123's kat_vectors."""

    def words(text: str) -> list[int]:
        return [int(word, 16) for word in text.split()]

    counters = np.array([words(counter)] * 5, np.uint32)  # five: through SIMD and through its tail
    found = philox_in_c(library, counters, tuple(words(key)))
    assert found.tolist() == [words(answer)] * 5


def test_philox_of_random_counters(library: Library) -> None:
    """Compare with the paper's rounds in Python, which in 64 bits agree with numpy's Philox."""
    numpys = np.random.Philox(counter=[4, 5, 6, 7], key=[8, 9]).random_raw(4).tolist()
    assert philox_reference([5, 5, 6, 7], [8, 9], 64) == numpys  # numpy counts before it draws
    counters = np.random.default_rng(23).integers(0, 2**32, (257, 4), dtype=np.uint32)
    found = philox_in_c(library, counters, (0xDEADBEEF, 0x12345678))
    expected = [philox_reference(counter, [0xDEADBEEF, 0x12345678], 32) for counter in counters.tolist()]
    assert found.tolist() == expected


STREAM = """
void stream(float *restrict y, uint32_t key0, uint32_t key1, long n) {
    #pragma omp simd
    for (long i = 0; i < n; i++) y[i] = uniform_f32(philox((philox_t){(uint32_t)i, 0, 0, 0}, key0, key1).x);
}
"""


def test_uniform_numbers(library: Library, tmp_path: Path) -> None:
    ends = torch.tensor([0, 255, 256, 2**32 - 1], dtype=torch.int64).to(torch.uint32)
    assert library("uniform_f32", ends).tolist() == [0.0, 0.0, 2.0**-24, 1 - 2.0**-24]
    path, output = compile_c(source() + STREAM, tmp_path, *VECTORISER_REPORT)
    assert not VECTORISER_REPORT or "loop vectorized" in output
    draws = torch.empty(1 << 20)
    ctypes.CDLL(str(path)).stream(ctypes.c_void_p(draws.data_ptr()), 1, 2, ctypes.c_long(draws.numel()))
    counts = torch.histc(draws, 64, 0, 1)
    # Chi-squared with 63 degrees of freedom: beyond 130 once in a million.
    expected = draws.numel() / 64
    assert float(((counts - expected) ** 2 / expected).sum()) < 130


def test_terms_of_sums(library: Library) -> None:
    x = torch.cat([-torch.rand(1 << 18) * 87, -moderate(3).abs(), torch.tensor([0.0, -0.0, -87.0])])
    assert float(errors_in_ulp(library("exp_term_f32", x), x.double().exp()).max()) <= 1.2
    wide = -torch.rand(1 << 18, dtype=torch.float64) * 700
    torch.testing.assert_close(library("exp_term_f64", wide), wide.exp(), rtol=4e-16, atol=0.0)
    # Smaller terms add nothing to a sum that is at least 1.
    far = torch.tensor([-87.1, -1e5, -torch.inf])
    assert library("exp_term_f32", far).eq(0).all()
    assert library("exp_term_f64", far.double() * 9).eq(0).all()


def test_every_function_is_tested(library: Library) -> None:
    tested = {
        f"{name}_{suffix}" for name in [*UNARY_ULP, *BINARY_ULP, *EXACT_BINARY] for suffix in ("f32", "f64")
    }
    tested |= {f"{a}_of_{b}" for a in ("bool", "u8", "i8", "i16", "i32", "i64") for b in ("f32", "f64")}
    tested |= {"f32_of_bf16", "bf16_of_f32", "f32_of_f16", "f16_of_f32", "f32_of_f64", "f64_of_f32"}
    tested |= {"exp_term_f32", "exp_term_f64", "round_f16", "philox_pair", "f32_of_f16_row", "f16_of_f32_row"}
    tested |= {"f32_of_f16_strip", "f16_of_f32_strip"}
    # These in tests/codegen/lower/test_float8.py.
    tested |= {"f32_of_e4m3", "f32_of_e5m2", "e4m3_of_f32", "e5m2_of_f32"}
    tested |= {"philox", "uniform_f32", "philox_word", "philox_fill"}  # the last two in test_random.py
    assert {name for _, name, _ in FUNCTION.findall(source())} == tested | INNER


@pytest.mark.skipif(not VECTORISER_REPORT, reason="only gcc's vectorisation reports can be parsed")
def test_loops_become_simd(library: Library) -> None:
    scalar = set(library.results) - library.vectorised
    calls_libm = {f"{name}_f64" for name in [*UNARY_ULP, *BINARY_ULP, "fmod", "remainder"]}
    without_avx512 = {"i64_of_f32", "i64_of_f64"}  # AVX2 has no such conversion
    assert not scalar - calls_libm - without_avx512
    assert (
        not {f"{name}_f64" for name in ("abs", "ceil", "floor", "round", "sign", "trunc", "sqrt", "rsqrt")}
        & scalar
    )


def test_no_warnings(tmp_path: Path) -> None:
    compile_c(source(), tmp_path, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function")


def test_denormals_are_not_flushed(library: Library) -> None:
    """Loading a library built with -ffast-math would flush denormals in the whole process."""
    assert library.loaded is not None
    assert (torch.tensor([1e-40]) * 1 != 0).all()
    assert np.float32(1e-40) * np.float32(0.5) != 0
    assert (library("exp_f32", torch.tensor([-100.0])) > 0).all()
