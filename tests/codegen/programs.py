"""Random programs of tensors, from a seed: a grammar that writes Python, line by line.

Every line is run by eager torch as it is written, so shapes and dtypes follow torch's own rules, a line that
torch refuses is left out, and values stay of a sane size. `Program.source` is the whole of a program, inputs
and all, to be read and run.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

DTYPES = {
    "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16,
    "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8,
    "flag": torch.bool,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MOST_ELEMENTS = 200_000
MOST_ON_THE_WAY = 1 << 26  # 256 MB of float32
MOST_TERMS = 1_000_000  # that a product may add up
# Beyond the sizes from which kernels run on several threads, split their folds, and tile their columns.
LARGE = [
    (3, 40_000), (2, 50, 401), (300, 257), (70_001,), (513, 67), (37_000, 2), (1, 36_000), (2, 3, 96, 97)
]  # fmt: skip
# Where an index does not fit in 32 bits.
FAR = [
    (2**31 + 5,), (3, 2**30 + 1), (65_537, 65_539), (2**31 + 11, 1), (7, 2**29), (2, 3, 2**30),
    (1, 2**32 + 3), (50_000, 3, 20_011), (65_536, 32_771), (2**30 + 7, 4), (5, 11, 2**27), (2**20, 2**13),
    (2, 2**20, 3, 2**12),
]  # fmt: skip


def large(shape: tuple[int, ...], dtype: torch.dtype, layout: str, seed: int) -> Tensor:
    """An input without memory, which is laid out as `tensor` does it."""
    wide = {"sliced": [2 * s + 1 for s in shape], "permuted": list(reversed(shape))}.get(layout, list(shape))
    if layout == "expanded":
        wide = [1 if i % 2 == seed % 2 else s for i, s in enumerate(shape)]
    result = torch.empty(wide, dtype=dtype, device="meta")
    return laid_out(result, shape, layout)


def tensor(shape: tuple[int, ...], dtype: torch.dtype, layout: str, seed: int) -> Tensor:
    """An input: values of a seed, laid out in memory as asked."""
    source = torch.Generator().manual_seed(seed)
    wide = {"sliced": [2 * s + 1 for s in shape], "permuted": list(reversed(shape))}.get(layout, list(shape))
    if layout == "expanded":
        wide = [1 if i % 2 == seed % 2 else s for i, s in enumerate(shape)]
    if dtype == torch.bool:
        result = torch.rand(wide, generator=source) > 0.5
    elif dtype.is_floating_point:
        result = torch.randn(wide, generator=source, dtype=torch.float64) * 1.5
        if layout == "special":
            odd = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-40, 1.0, 2.0])
            where = torch.rand(wide, generator=source) < 0.2
            result = torch.where(where, odd[torch.randint(8, wide, generator=source)].double(), result)
        # As far as the dtype holds it, so that float64 and the dtype's own run begin with the same values.
        result = result.to(dtype)
    else:
        low = 0 if dtype == torch.uint8 else -9
        result = torch.randint(low, 10, wide, generator=source).to(dtype)
    return laid_out(result, shape, layout)


def laid_out(made: Tensor, shape: tuple[int, ...], layout: str) -> Tensor:
    """What was made for a layout, as a view of the shape."""
    if layout == "sliced":
        made = made[tuple(slice(1, None, 2) for _ in shape)]
    elif layout == "permuted":
        made = made.permute(tuple(reversed(range(len(shape)))))
    elif layout == "expanded":
        made = made.expand(shape)
    elif layout == "channels_last" and len(shape) == 4:
        made = made.to(memory_format=torch.channels_last)
    return made


@dataclasses.dataclass(frozen=True)
class Program:
    """A program and its inputs.

    Args:
        seed: what it was made from.
        arguments: how each input is made, as Python.
        lines: the body, one assignment each.
        results: the names that are returned.
        gradients: whether its floating inputs are to require gradients.
        families: the names of the floating dtypes that occur.
        grammar: whose program it is: ``"plain"``, ``"wider"`` or ``"far"``.
    """

    seed: int
    arguments: tuple[str, ...]
    lines: tuple[str, ...]
    results: tuple[str, ...]
    gradients: bool
    families: frozenset[str]
    grammar: str = "plain"

    @property
    def source(self) -> str:
        """The program as Python."""
        names = [f"x{i}" for i in range(len(self.arguments))]
        result = "\n".join(f"{n} = {text}" for n, text in zip(names, self.arguments, strict=True))
        body = "\n".join(f"    {line}" for line in (*self.lines, f"return {', '.join(self.results)}"))
        title = f"# seed {self.seed}, {self.grammar}{', gradients' * self.gradients}"
        return f"{title}\n{result}\ndef program({', '.join(names)}):\n{body}\n"

    def built(self, *, wide: bool = False) -> tuple[Callable[..., Any], list[Any]]:
        """The function and its inputs; `wide` has float64 in place of every floating dtype."""
        space = _space()
        exec(self.source, space)
        args = [space[f"x{i}"] for i in range(len(self.arguments))]
        if wide:
            space |= dict.fromkeys(("f32", "f64", "bf16", "f16"), torch.float64)
            args = [widened(a) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
        return space["program"], args


def widened(x: Tensor) -> Tensor:
    """A tensor in float64, laid out in memory as it was: what may be viewed stays the same."""
    memory = x.untyped_storage()
    whole = torch.empty(0, dtype=x.dtype, device=x.device).set_(memory, 0, (len(memory) // x.itemsize,))
    return whole.double().as_strided(x.shape, x.stride(), x.storage_offset())


def written(x: Tensor, part: Tensor) -> Tensor:
    """A copy, every other element of which is another's."""
    x = x.clone()
    x[..., ::2] = part[..., ::2]
    return x


def bumped(x: Tensor) -> Tensor:
    """A copy that is changed through a view, and looked at through it."""
    x = x.clone()
    view = x[..., 1:]
    view += 1
    return x * view.amax()


def _space() -> dict[str, Any]:
    return {
        "torch": torch,
        "F": F,
        "tensor": tensor,
        "large": large,
        "written": written,
        "bumped": bumped,
        **DTYPES,
    }


def _templates(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# {a}, {b}, {c}: names of tensors; {n}: a number; {i}: an integer; the rest is of the shape of {a}: axes, an
# order of them, sizes that fit. What comes after is kept within the domain and in size by the templates.
FLOAT_UNARY = _templates("""
    torch.exp({a}.clamp(-4,4)) torch.exp2({a}.clamp(-4,4)) torch.expm1({a}.clamp(-4,4))
    torch.log({a}.abs()+0.5) torch.log2({a}.abs()+0.5) torch.log10({a}.abs()+0.5) torch.log1p({a}.abs())
    torch.sqrt({a}.abs()+0.1) torch.rsqrt({a}.abs()+0.1) torch.sin({a}) torch.cos({a})
    torch.tan({a}.clamp(-1,1)) torch.sinh({a}.clamp(-3,3)) torch.cosh({a}.clamp(-3,3)) torch.tanh({a})
    torch.asin({a}.clamp(-0.9,0.9)) torch.acos({a}.clamp(-0.9,0.9)) torch.atan({a}) torch.asinh({a})
    torch.acosh({a}.abs()+1.1) torch.atanh({a}.clamp(-0.9,0.9)) torch.erf({a}) torch.erfc({a})
    torch.sigmoid({a}) torch.reciprocal({a}.abs()+0.3) torch.ceil({a}) torch.floor({a}) torch.round({a})
    torch.trunc({a}) torch.frac({a}) F.relu({a}) F.gelu({a}) F.gelu({a},approximate='tanh') F.silu({a})
    F.softplus({a}) F.elu({a}) F.leaky_relu({a},0.1) F.hardtanh({a}) F.hardswish({a}) F.hardsigmoid({a})
    F.mish({a}) F.logsigmoid({a}) F.relu6({a}) F.softshrink({a},0.3) F.hardshrink({a},0.3) {a}**2 {a}**3
    {a}**4 ({a}.abs()+0.5)**0.5 ({a}.abs()+0.5)**-1.5 ({a}.abs()+0.5)**-1 torch.log({a}) torch.sqrt({a})
    torch.nan_to_num({a}) torch.square({a}) torch.isnan({a}) torch.isinf({a}) {a}.to(f64) {a}.to(f32)
    {a}.to(bf16) {a}.to(f16) {a}.nan_to_num(0,0,0).clamp(-9,9).to(i32)
    {a}.nan_to_num(0,0,0).clamp(-9,9).to(i64) {a}.nan_to_num(0,0,0).clamp(-9,9).to(i8)
    {a}.nan_to_num(0,0,0).clamp(0,9).to(u8) {a}.to(flag) torch.special.expit({a}) torch.celu({a})
    torch.threshold({a},0.1,0.2)
""")
ANY_UNARY = _templates("""
    -{a} {a}.abs() {a}.sign() {a}+{n} {a}*{n} {n}-{a} {a}/{m} {a}+{i} {a}*{i} {i}-{a}
    {a}.clamp({n},{n}+1) {a}.clamp(min={i}) {a}.clamp(max={n}) {a}>{n} {a}<={i} {a}=={i} {a}!={i}
    torch.where({a}>{n},{a},{n}) {a}.logical_not() ~{a} {a}.nan_to_num(0,0,0).clamp(-99,99).to(i16)
    {a}.nan_to_num(0,0,0).clamp(0,99).to(u8) {a}.to(f32) {a}.type(f32) {a}.to(flag) {a}.bool()
    {a}.masked_fill({a}>{n},{i}) torch.zeros_like({a}) torch.ones_like({a}) torch.full_like({a},{i})
    {a}%{m} torch.fmod({a},{m}) torch.div({a},{m},rounding_mode='floor') {a}//2
    torch.div({a},3,rounding_mode='trunc') {a}**2 {a}.clone() {a}.contiguous() {a}.sqrt() {a}.exp()
    {a}.tanh() {a}.clamp({i},{i}+3)
""")
BINARY = _templates("""
    {a}+{b} {a}-{b} {a}*{b} {a}/({b}.abs()+0.5) {a}/{b} torch.maximum({a},{b}) torch.minimum({a},{b})
    torch.fmax({a},{b}) torch.fmin({a},{b}) torch.atan2({a},{b}) torch.copysign({a},{b}) {a}>{b} {a}<{b}
    {a}>={b} {a}<={b} {a}=={b} {a}!={b} torch.where({a}>{b},{a},{b}) torch.where({a}.bool(),{a},{b})
    {a}&{b} {a}|{b} {a}^{b} torch.add({a},{b},alpha={i}) torch.sub({a},{b},alpha=2)
    torch.logical_and({a},{b}) torch.logical_or({a},{b}) torch.logical_xor({a},{b})
    torch.where({c}>0,{a},{b}) torch.where({c}.bool(),{a},{n}) {a}.masked_fill({c}.bool(),{n})
    torch.addcmul({a},{b},{c}) torch.addcdiv({a},{b},({c}.abs()+0.5)) torch.lerp({a},{b},0.3)
    F.mse_loss({a},{b}) torch.clamp({a},{b},{c}) torch.remainder({a},{b}.abs()+1)
    torch.pow({a}.abs()+0.5,{b}.clamp(-2,2)) F.smooth_l1_loss({a},{b},reduction='none')
    torch.hypot({a},{b}) torch.logaddexp({a},{b}) torch.xlogy({a},{b})
""")
VIEWS = _templates("""
    {a}.transpose({d},{e}) {a}.permute({p}) {a}.mT {a}.reshape(-1) {a}.reshape({r}) {a}.flatten({d})
    {a}.unsqueeze({u}) {a}.squeeze() {a}.squeeze({d}) {a}.select({d},{k}) {a}.narrow({d},{k},1)
    {a}.flip({d}) {a}.flip({d},{e}) torch.cat([{a},{a}],{d}) torch.cat([{a},{b}],{d})
    torch.stack([{a},{a}*2],{u}) F.pad({a},(1,2)) F.pad({a},(0,1,2,0)) F.pad({a},(-1,1),value=1.5)
    {a}.repeat({t}) {a}.chunk(2,{d})[0] {a}.chunk(2,{d})[-1] {a}.split(2,{d})[0] {a}.unbind({d})[-1]
    {a}[...,::2] {a}[1:] {a}[...,1:-1] {a}[::3] {a}[-2:] {a}[...,None] {a}.expand({x}) {a}.expand_as({b})
    {a}.unsqueeze(0).expand(3,*{a}.shape) {a}.roll(1,{d}) {a}.diagonal() {a}.tril() {a}.triu()
    torch.broadcast_to({a},{b}.shape) {a}.movedim({d},{e}) {a}.view({r}) {a}.reshape({q})
    {a}.repeat_interleave(2,{d})
""")
# Views of views, whose indices are quotients and remainders of one another.
NESTED = _templates("""
    {a}.repeat({t}).reshape(-1) {a}.repeat({t}).reshape(-1)[1::2] F.pad({a},(1,2)).reshape(-1)[::2]
    torch.cat([{a},{b}],{d}).reshape(-1)[1:] {a}.transpose({d},{e}).reshape(-1)[1::3]
    {a}.flip({d}).reshape({q})
    {a}.repeat_interleave(2,{d}).reshape(-1).flip(0) {a}.repeat({t}).transpose({d},{e}).reshape({q})
    {a}.reshape(-1).repeat(2).reshape(2,-1) F.pad({a},(0,1)).transpose({d},{e}).reshape(-1)
    {a}.permute({p}).reshape(-1).roll(1,0) {a}.reshape({r}).mT.reshape(-1) {a}.repeat({t}).roll(1,{d})
    {a}.unfold({d},2,1) {a}.tril().reshape(-1) torch.stack([{a},{a}],{u}).reshape(-1)
""")
GATHERS = _templates("""
    {a}.index_select({d},torch.arange({a}.shape[{d}],device={a}.device).flip(0)) {a}[...,torch.tensor([0,-1])]
    {a}.gather({d},{a}.argmax({d},keepdim=True)) {a}.take_along_dim({a}.argmin({d},keepdim=True),{d})
    {a}.flatten()[({b}>0).long()%{a}.numel()] {a}.take(({b}>0).int().long()-1) {a}[({a}>{n}).long().argmax(0)]
    F.embedding(({b}>0).long().flatten(),{a}.reshape(-1,{a}.shape[-1]).repeat(2,1)) {a}.max({d})[1]
    F.cross_entropy({a},({a}.select(1,0)>0).long()) {a}.scatter({d},{a}.argmin({d},keepdim=True),{i})
    F.cross_entropy({a},({a}.select(1,0)>0).long(),reduction='none',ignore_index=1)
    {a}[{k}:,torch.tensor([0,0])]
    F.cross_entropy({a},({a}.select(1,0)>0).long(),label_smoothing=0.1) F.pad({a},(1,1),mode='reflect')
    F.one_hot(({b}>0).long(),3) {a}[torch.tensor([0]),...,torch.tensor([[0],[-1]])]
    {a}.index_select({d},({b}.flatten()>0).long()%{a}.shape[{d}]) F.pad({a},(1,2),mode='replicate')
    torch.softmax({a},{d})[torch.tensor([-1,0,0])] {a}.gather({d},{a}.argsort({d}))
""")
INTEGERS = _templates("""
    {a}//({b}|1) torch.div({a},{b}|1,rounding_mode='trunc') {a}%({b}|1) torch.fmod({a},{b}|1) {a}<<({b}&3)
    {a}>>({b}&7) {a}<<({b}|0) {a}>>({b}|0) torch.pow({a},{b}&3) torch.pow({a},{b}) {a}**3 {a}**5 2**({a}&7)
    {a}.prod({d}) {a}.abs() -{a} ~{a} {a}.sum({d}) {a}.max({d})[0] {a}.min({d})[1] {a}//3 {a}%-3 {a}//-1
    torch.bitwise_xor({a},{b}) {a}.aminmax()[1] {a}.type(f32).mean({d}) {a}.sign() 100//({a}|1) {a}.to(i8)*100
    {a}.to(u8) {a}.to(i64)*{i}
""")
# Changes in place of what the program made itself.
CHANGES = _templates("""
    ({a}+0).add_({b}) ({a}*1).mul_({n}) {a}.clone().clamp_(-1,1) {a}.clone().masked_fill_({b}>0,{i})
    torch.zeros_like({a}).copy_({b}) torch.empty_like({a}).fill_({i}).sub_({b}) ({a}*2).relu_()
    {a}.clone().transpose_({d},{e}).add_(1) {a}.clone().select({d},{k}).zero_() written({a},{b}) bumped({a})
    {a}.clone().squeeze_().mul_({i}) ({a}+{b}).t_() {a}.contiguous().clone().view(-1).add_({i})
""")
ARGUMENTS = _templates("""
    x0.mul_({n}) x0.copy_({b}) x0[...,:1].zero_() x0.sub_({b}) x0.select({d},{k}).add_(1) x0.clamp_(max={i})
""")
REDUCTIONS = _templates("""
    {a}.sum({ax}) {a}.mean({ax}) {a}.amax({ax}) {a}.amin({ax}) {a}.sum() {a}.mean() {a}.max() {a}.min()
    {a}.prod({d}) {a}.clamp(-1.5,1.5).prod({d},keepdim=True) {a}.var({ax}) {a}.std({d})
    {a}.var({d},correction=0) {a}.argmax({d}) {a}.argmin({d}) {a}.argmax({d},keepdim=True) {a}.argmax()
    {a}.any({d}) {a}.all({d}) {a}.any() {a}.all() {a}-{a}.mean({d},keepdim=True)
    {a}/({a}.abs().sum({d},keepdim=True)+1) {a}-{a}.amax({d},keepdim=True)
    {a}*{a}.var({d},keepdim=True,correction=0) torch.softmax({a},{d}) torch.log_softmax({a},{d})
    torch.logsumexp({a},{d}) torch.logsumexp({a},{d},keepdim=True) F.layer_norm({a},{a}.shape[-1:])
    F.layer_norm({a},{a}.shape[-2:]) torch.softmax({a}*{n},-1) {a}.mean({d},keepdim=True)+{a}
    torch.var_mean({a},{d})[1] {a}.sum({d},dtype=f64) {a}.norm() {a}.max({d})[0] {a}.min({d}).values
    {a}.amax({d},keepdim=True) F.normalize({a},dim={d}) {a}.count_nonzero() {a}.cumsum({d})
""")

# Pools and scans. {w}: a window, a stride, a padding that fits it.
WINDOWS = _templates("""
    F.max_pool1d({a},{w}) F.max_pool2d({a},{w}) F.max_pool3d({a},{w}) F.max_pool2d({a},3,2,0,2)
    F.max_pool2d({a},{w},1,True) F.max_pool2d({a},{w},return_indices=True)[1]
    F.max_pool1d({a},{w},ceil_mode=True,return_indices=True)[1] F.avg_pool1d({a},{w}) F.avg_pool2d({a},{w})
    F.avg_pool3d({a},{w}) F.avg_pool2d({a},{w},True) F.avg_pool2d({a},{w},True,False)
    F.avg_pool2d({a},{w},False,False) F.avg_pool2d({a},{w},False,True,3) F.adaptive_avg_pool1d({a},3)
    F.adaptive_avg_pool2d({a},(2,3)) F.adaptive_avg_pool3d({a},2) F.adaptive_max_pool1d({a},3)
    F.adaptive_max_pool2d({a},(3,2)) F.adaptive_max_pool2d({a},2,return_indices=True)[1]
    F.adaptive_max_pool3d({a},2) F.lp_pool2d({a}.abs()+0.1,2,2) F.relu(F.max_pool2d({a},{w}))
""")
SCANS = _templates("""
    {a}.cumsum({d}) {a}.clamp(-1.5,1.5).cumprod({d}) {a}.cummax({d})[0] {a}.cummin({d}).values
    {a}.cummax({d})[1] {a}.cummin({d}).indices torch.logcumsumexp({a},{d}) {a}.cumsum({d})-{a}
    {a}.flip({d}).cumsum({d}).flip({d}) {a}.cumsum({d}).cumsum({e}) ({a}*{b}).cumsum({d})
    torch.softmax({a},{d}).cumsum({d}) {a}.cumsum({d}).amax({d}) {a}.flip({d}).cummax({d})[1]
    {a}.cumsum({d}).transpose({d},{e}) {a}.cumsum({d},dtype=f64) {a}.cumsum({d}).select({d},{k})
""")
# What the wider grammar has besides: products, and numbers that are drawn.
PRODUCTS = _templates("""
    {a}@{a}.mT {a}.mT@{a} {a}@{b} {a}@{b}.mT F.linear({a},{b}) F.relu({a}@{a}.mT+{n})
    F.gelu(F.linear({a},{b})) F.linear({a},{a}.reshape(-1,{a}.shape[-1]).tanh())
    torch.softmax({a}@{a}.mT*{n},-1) torch.addmm({c},{a},{b}.mT) torch.bmm({a},{b}.mT)*{n} torch.mv({a},{b})
    ({a}*{n})@{b}.mT+{c}
    torch.einsum('...i,...j->...ij',{a},{a}) torch.baddbmm({c},{a},{a}.mT,beta={n}) {a}.sum(-1)@{b}
    F.layer_norm({a},{a}.shape[-1:])@{a}.mT ({a}@{a}.mT).sum(-1)
""")
DRAWS = _templates("""
    F.dropout({a},0.3) F.dropout({a},0.5)*{b} F.dropout({a}*{n},0.1).tanh() torch.rand_like({a})
    torch.randn_like({a}) {a}+torch.randn_like({a})*{n} torch.bernoulli(torch.sigmoid({a}))
    {a}*torch.rand_like({b}) torch.randint_like({a},5) torch.rand_like({a}).sum({d})
    F.dropout(F.dropout({a},0.2).exp().clamp(max=9),0.5) F.dropout({a}.transpose({d},{e}),0.4)
    torch.softmax(F.dropout({a},0.2),{d})
""")


# Programs in which torch and we differ for a reason that `judge` does not find.
SET_ASIDE = {
    86: "an argmax among values of xlogy that are a rounding step apart, in two of 37,000 rows of bfloat16",
    3502: "the mean of var_mean next to an infinity: torch's is NaN, that of torch.mean, and ours, infinite",
}


def program(seed: int, grammar: str = "plain") -> Program:
    """The program of a seed; always the same one.

    Args:
        seed: any number.
        grammar: ``"plain"``, or ``"wider"``, which has axes without elements, gradients in 16 bits, matrix
            products and random numbers besides, or ``"far"``, whose tensors have more than 2^31 elements and
            no memory. Seeds of one mean the same whatever the others have.
    """
    with torch.random.fork_rng(devices=[]), torch.device("meta" if grammar == "far" else "cpu"):
        torch.manual_seed(seed)
        return _program(seed, grammar)


def _program(seed: int, grammar: str) -> Program:
    wider, far = grammar == "wider", grammar == "far"
    chance = random.Random(seed)
    gradients = seed % 3 == 0
    short = [2, 1] if wider or not gradients else [0, 0]
    family = chance.choices(["f32", "f64", "bf16", "f16"], [6, 1, *short])[0]
    base = chance.choice(FAR) if far else _shape(chance)
    if wider and base and chance.random() < 0.15:
        axis = chance.randrange(len(base))
        base = (*base[:axis], 0, *base[axis + 1 :])
    arguments: list[str] = []
    space = _space()
    live: dict[str, Tensor] = {}
    for i in range(chance.randint(1, 4)):
        shape = _broadcast_from(chance, base) if i else base
        others = [name for name in DTYPES if wider or not (gradients and name in ("bf16", "f16"))]
        dtype = chance.choice(others) if chance.random() < (0.25 if i else 0.08) else family
        layouts = ["plain", "permuted", "sliced", "expanded", "channels_last", "special"]
        layout = chance.choices(layouts, [8, 2, 2, 1, 2, 0.5])[0]
        arguments.append(f"{'large' if far else 'tensor'}({shape}, {dtype}, {layout!r}, {seed * 7 + i})")
        live[f"x{i}"] = eval(arguments[-1], space)
    number = ""
    if chance.random() < 0.3:
        number = f"x{len(arguments)}"
        arguments.append(repr(round(chance.uniform(-2, 2), 2)))
        space[number] = float(arguments[-1])
    # An argument that is changed in place has memory of its own.
    changing = not gradients and seed % 4 == 1 and "expanded" not in arguments[0]
    lines: list[str] = []
    length = chance.randint(2, 14)
    for _ in range(300):
        if len(lines) >= length:
            break
        text = _line(chance, live, number, changing, grammar)
        if far and _bits_of_floats(text, live):
            continue  # which torch refuses where there is memory alone
        if not far and _too_large(text, space, live):
            continue
        try:
            result = eval(text, {**space, **live})
            if wider and not result.numel():
                # Of what has no elements torch takes more than its own tracing does.
                eval(text, {**space, **{name: value.to("meta") for name, value in live.items()}})
        except (RuntimeError, TypeError, IndexError, ValueError, AssertionError):
            continue  # torch refuses it: other dtypes or shapes than this op takes
        # torch's own gradient of it has 1/6 in float32.
        if "hardsigmoid" in text and gradients and result.dtype == torch.float64:
            continue
        if not (_fits(result) if far else _useful(result, least=0 if wider else 1)):
            continue
        if gradients and not wider and result.dtype in (torch.bfloat16, torch.float16):
            continue
        name = f"v{len(lines)}"
        lines.append(f"{name} = {text}")
        live[name] = result
    body = "\n".join(line.split(" = ", 1)[1] for line in lines)
    unused = [n for n in live if n.startswith("v") and not re.search(rf"\b{n}\b", body)]
    results = tuple(unused[-4:]) + (("x0",) if changing else ())
    gradients = gradients and not far and _differentiable({**space, **live}, lines, results, len(arguments))
    families = frozenset(NAMES[t.dtype] for t in live.values() if t.dtype.is_floating_point)
    return Program(seed, tuple(arguments), tuple(lines), results, gradients, families, grammar)


def _bits_of_floats(text: str, live: dict[str, Tensor]) -> bool:
    named = [live[name] for name in re.findall(r"\b[xv]\d+\b", text) if name in live]
    return any(op in text for op in ("|", "&", "^", "~", "<<", ">>")) and any(
        t.dtype.is_floating_point for t in named
    )


class _Largest(TorchDispatchMode):
    """Notes how many elements the largest result has."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def _too_large(text: str, space: dict[str, Any], live: dict[str, Tensor]) -> bool:
    """Whether gigabytes would be taken before anybody sees so: by rows of many indices, or long products."""
    if not any(part in text for part in ("embedding", "@", "linear")):
        return False
    try:
        with _Largest() as largest:
            eval(text, {**space, **{name: value.to("meta") for name, value in live.items()}})
    except (RuntimeError, TypeError, IndexError, ValueError, AssertionError):
        return False  # torch says so where it is computed
    return largest.elements > MOST_ON_THE_WAY


def _fits(made: Any) -> bool:
    """A tensor of a dtype that the gate looks at, which a machine's address space would hold."""
    return isinstance(made, Tensor) and made.dtype in NAMES and 0 < made.numel() < 1 << 40


def _useful(made: Any, least: int) -> bool:
    """A tensor of a dtype and size that the gate looks at, with values that do not drown one another."""
    if not isinstance(made, Tensor) or made.dtype not in NAMES or not least <= made.numel() <= MOST_ELEMENTS:
        return False
    return (
        not made.numel()
        or not made.dtype.is_floating_point
        or float(made.abs().nan_to_num(0, 0, 0).max()) < 1e5
    )


def _differentiable(space: dict[str, Any], lines: list[str], results: tuple[str, ...], count: int) -> bool:
    """Whether torch finds the gradients: of a few ops it does not, for the shapes or dtypes at hand."""
    for name in (f"x{i}" for i in range(count)):
        if isinstance(space[name], Tensor) and space[name].is_floating_point():
            space[name] = space[name].detach().requires_grad_()
    try:
        exec("\n".join(lines), space)
        for name in results:
            if space[name].requires_grad:
                space[name].sum().backward(retain_graph=True)
    except RuntimeError:
        return False
    return True


def _shape(chance: random.Random) -> tuple[int, ...]:
    if chance.random() < 0.08:
        return chance.choice(LARGE)
    sizes = [1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 31, 64]
    rank = chance.choices([0, 1, 2, 3, 4], [1, 3, 8, 5, 3])[0]
    shape = tuple(chance.choice(sizes) for _ in range(rank))
    while torch.Size(shape).numel() > 20_000:
        shape = tuple(max(1, s // 2) for s in shape)
    if rank == 2 and chance.random() < 0.05:
        return chance.choice([3, 17]), chance.choice([255, 300, 523])
    return shape


def _broadcast_from(chance: random.Random, base: tuple[int, ...]) -> tuple[int, ...]:
    kind = chance.random()
    if kind < 0.5:
        return base
    shape = [1 if chance.random() < 0.4 else s for s in base]
    return tuple(shape[chance.randint(0, len(shape)) :] if kind < 0.75 else shape)


def _line(chance: random.Random, live: dict[str, Tensor], number: str, changing: bool, grammar: str) -> str:
    names = list(live)

    def pick() -> str:
        return chance.choice(names[-2:] if chance.random() < 0.7 else names)

    name = pick()
    value = live[name]
    rank, shape = value.dim(), tuple(value.shape)
    unary = FLOAT_UNARY if value.dtype.is_floating_point else ANY_UNARY
    whole = not value.dtype.is_floating_point and value.dtype != torch.bool
    groups = [unary, ANY_UNARY, BINARY, VIEWS, NESTED, REDUCTIONS, GATHERS, CHANGES, INTEGERS, ARGUMENTS]
    weights = [4, 2, 4, 3, 1.5, 3, 2, 1, 4 if whole else 0, 1 if changing else 0]
    more, their_weights = [WINDOWS, SCANS], [1.5, 1.0]
    if grammar == "wider":
        more, their_weights = [*more, PRODUCTS, DRAWS], [*their_weights, 3, 3]
    template = chance.choice(chance.choices([*groups, *more], [*weights, *their_weights])[0])
    size = chance.randint(1, 5)
    axes = list(range(rank))
    order = chance.sample(axes, rank)
    some = sorted(chance.sample(axes, chance.randint(1, rank))) if rank else []
    axis = order[0] if rank else 0
    if rank and shape[axis] > 64 and ("unbind" in template or ".split(2" in template):
        template = "{a}.abs()"  # a tensor for each of so many parts is too much for torch as well
    total = value.numel()
    factor = next((f for f in (chance.choice([2, 3, 5, 7, 4]), 2, 3, 1) if total % f == 0), 1)
    if grammar == "far" and any(
        result in template for result in ("adaptive", "torch.tensor", "torch.arange")
    ):
        template = "{a}.abs()"  # adaptive windows are of any size, and are written out; constants have memory
    if template in DRAWS and not value.dtype.is_floating_point:
        template = "{a}.abs()"
    if template in PRODUCTS and max(t.numel() * max(t.shape, default=1) for t in live.values()) > MOST_TERMS:
        template = "{a}.abs()"
    count = number if number and chance.random() < 0.5 else str(round(chance.uniform(-2, 2), 1))
    other = order[-1] if rank else 0
    keep = chance.choice(["", ",keepdim=True"])
    merged = (shape[0] * shape[1], *shape[2:]) if rank > 1 else (1, *shape)
    return template.format(
        a=name, b=pick(), c=pick(), n=count, i=chance.randint(-3, 3), m=chance.choice([2, 3, 1.5, -2]),
        d=chance.choice([axis, axis - rank]), e=other, u=chance.randint(0, rank),
        k=shape[axis] - 1 if rank else 0,
        p=",".join(map(str, order)) or "()", r=f"{factor},{total // factor}", q=merged,
        t=",".join(["2", *["1"] * (rank - 1)]) if chance.random() < 0.5 else ",".join(["1"] * rank + ["2"]),
        x=",".join(str(s if s != 1 else chance.choice([1, 3, 5])) for s in shape) or "2",
        w=f"{size},{chance.randint(1, 4)},{chance.randint(0, size // 2)}",
        ax=f"({','.join(map(str, some))},){keep}" if some else f"(){keep}",
    )  # fmt: skip
