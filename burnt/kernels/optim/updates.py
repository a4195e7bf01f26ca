"""The formulas of all optimizers with elementwise updates; see `burnt.kernels.optim.formula`.

Names of tensors and scalars are those of the state in `torch.optim`. Operations are in the order of torch's
fused or foreach steps.
"""

from __future__ import annotations

from typing import Any

from burnt.kernels.optim.formula import Update, absolute, lerp, maximum, power, sign, sqrt, where_greater


def _decay(s: Any, o: Any, *, decoupled: bool) -> Any:
    """Apply weight decay: decoupled to ``s.param``, else as an L2 penalty. Returns the gradient."""
    if not o.weight_decay:
        return s.grad
    if decoupled:
        s.param = s.param * (1 - o.lr * o.weight_decay)
        return s.grad
    return s.grad + s.param * o.weight_decay


def _square_mean(mean: Any, x: Any, beta: Any) -> Any:
    return mean * beta + (1 - beta) * x * x


def _sgd(s: Any, o: Any) -> None:
    grad = _decay(s, o, decoupled=False)
    if o.momentum:
        # In a parameter's first step there is no dampening; the buffer is 0.
        weight = where_greater(s.is_first, 0, 1, 1 - o.dampening)
        s.momentum_buffer = s.momentum_buffer * o.momentum + grad * weight
        grad = grad + s.momentum_buffer * o.momentum if o.nesterov else s.momentum_buffer
    s.param = s.param - grad * o.lr


def _adam(s: Any, o: Any) -> None:
    s.step = s.step + 1
    grad = _decay(s, o, decoupled=o.decoupled)
    s.exp_avg = lerp(s.exp_avg, grad, 1 - o.beta1)
    s.exp_avg_sq = largest = _square_mean(s.exp_avg_sq, grad, o.beta2)
    if o.amsgrad:
        s.max_exp_avg_sq = largest = maximum(s.max_exp_avg_sq, s.exp_avg_sq)
    step_size = o.lr / (1 - power(o.beta1, s.step))
    bias_correction = sqrt(1 - power(o.beta2, s.step))
    s.param = s.param - step_size * s.exp_avg / (sqrt(largest) / bias_correction + o.eps)


def _momentum(s: Any, o: Any) -> None:
    s.momentum_buffer = lerp(s.momentum_buffer, s.grad, 1 - o.momentum)
    s.update = lerp(s.grad, s.momentum_buffer, o.momentum) if o.nesterov else s.momentum_buffer


def _muon(s: Any, o: Any) -> None:
    s.param = s.param * (1 - o.lr * o.weight_decay) - s.rate * s.update


def _rms_prop(s: Any, o: Any) -> None:
    s.step = s.step + 1
    grad = _decay(s, o, decoupled=False)
    s.square_avg = variance = _square_mean(s.square_avg, grad, o.alpha)
    if o.centered:
        s.grad_avg = lerp(s.grad_avg, grad, 1 - o.alpha)
        variance = variance - s.grad_avg * s.grad_avg
    update = grad / (sqrt(variance) + o.eps)
    if o.momentum:
        s.momentum_buffer = update = s.momentum_buffer * o.momentum + update
    s.param = s.param - o.lr * update


def _adagrad(s: Any, o: Any) -> None:
    rate = o.lr / (1 + s.step * o.lr_decay)
    s.step = s.step + 1
    grad = _decay(s, o, decoupled=False)
    s.sum = s.sum + grad * grad
    s.param = s.param - rate * grad / (sqrt(s.sum) + o.eps)


def _adadelta(s: Any, o: Any) -> None:
    s.step = s.step + 1
    grad = _decay(s, o, decoupled=False)
    s.square_avg = _square_mean(s.square_avg, grad, o.rho)
    update = sqrt(s.acc_delta + o.eps) / sqrt(s.square_avg + o.eps) * grad
    s.acc_delta = _square_mean(s.acc_delta, update, o.rho)
    s.param = s.param - o.lr * update


def _adamax(s: Any, o: Any) -> None:
    s.step = s.step + 1
    grad = _decay(s, o, decoupled=False)
    s.exp_avg = lerp(s.exp_avg, grad, 1 - o.beta1)
    s.exp_inf = maximum(s.exp_inf * o.beta2, absolute(grad) + o.eps)
    s.param = s.param - o.lr / (1 - power(o.beta1, s.step)) * s.exp_avg / s.exp_inf


def _nadam(s: Any, o: Any) -> None:
    s.step = s.step + 1
    grad = _decay(s, o, decoupled=o.decoupled_weight_decay)
    mu = o.beta1 * (1 - 0.5 * power(0.96, s.step * o.momentum_decay))
    mu_next = o.beta1 * (1 - 0.5 * power(0.96, (s.step + 1) * o.momentum_decay))
    s.mu_product = s.mu_product * mu
    s.exp_avg = lerp(s.exp_avg, grad, 1 - o.beta1)
    s.exp_avg_sq = _square_mean(s.exp_avg_sq, grad, o.beta2)
    denominator = sqrt(s.exp_avg_sq) / sqrt(1 - power(o.beta2, s.step)) + o.eps
    grad_rate = o.lr * (1 - mu) / (1 - s.mu_product)
    mean_rate = o.lr * mu_next / (1 - s.mu_product * mu_next)
    s.param = s.param - (grad_rate * grad + mean_rate * s.exp_avg) / denominator


def _radam(s: Any, o: Any) -> None:
    s.step = s.step + 1
    grad = _decay(s, o, decoupled=o.decoupled_weight_decay)
    s.exp_avg = lerp(s.exp_avg, grad, 1 - o.beta1)
    s.exp_avg_sq = _square_mean(s.exp_avg_sq, grad, o.beta2)
    decayed = power(o.beta2, s.step)
    longest = 2 / (1 - o.beta2) - 1
    length = longest - 2 * s.step * decayed / (1 - decayed)  # of the simple moving average
    rectification = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    scale = sqrt(rectification * (1 - decayed))
    # The variance of the adaptive rate is finite, and it is used, from a length of 5 on.
    adaptive = where_greater(length, 5, scale / (sqrt(s.exp_avg_sq) + o.eps), 1)
    step_size = o.lr / (1 - power(o.beta1, s.step))
    s.param = s.param - step_size * s.exp_avg * adaptive


def _adan(s: Any, o: Any) -> None:
    # The difference of the first gradient to the one before is 0.
    difference = (s.grad - s.previous_grad) * where_greater(s.step, 0, 1, 0)
    s.step = s.step + 1
    s.previous_grad = s.grad
    s.exp_avg = lerp(s.exp_avg, s.grad, 1 - o.beta1)
    s.exp_avg_diff = lerp(s.exp_avg_diff, difference, 1 - o.beta2)
    s.exp_avg_sq = _square_mean(s.exp_avg_sq, s.grad + o.beta2 * difference, o.beta3)
    denominator = sqrt(s.exp_avg_sq) / sqrt(1 - power(o.beta3, s.step)) + o.eps
    mean = s.exp_avg * (o.lr / (1 - power(o.beta1, s.step)))
    mean_difference = s.exp_avg_diff * (o.lr * o.beta2 / (1 - power(o.beta2, s.step)))
    update = (mean + mean_difference) / denominator
    if o.no_prox:
        s.param = s.param * (1 - o.lr * o.weight_decay) - update
    else:
        s.param = (s.param - update) / (1 + o.lr * o.weight_decay)


def _lion(s: Any, o: Any) -> None:
    grad = _decay(s, o, decoupled=True)
    update = sign(lerp(s.exp_avg, grad, 1 - o.beta1))
    s.exp_avg = lerp(s.exp_avg, grad, 1 - o.beta2)
    s.param = s.param - o.lr * update


def _lamb_direction(s: Any, o: Any) -> None:
    s.step = s.step + 1
    s.exp_avg = lerp(s.exp_avg, s.grad, 1 - o.beta1)
    s.exp_avg_sq = _square_mean(s.exp_avg_sq, s.grad, o.beta2)
    mean = s.exp_avg / (1 - power(o.beta1, s.step))
    s.update = mean / (sqrt(s.exp_avg_sq / (1 - power(o.beta2, s.step))) + o.eps)
    if o.weight_decay:
        s.update = s.update + o.weight_decay * s.param


def _lamb(s: Any, o: Any) -> None:
    s.param = s.param - o.lr * s.trust_ratio * s.update


def _schedule_free_adamw(s: Any, o: Any) -> None:
    """The parameter is y, where gradients are computed; z is stepped, x is its average."""
    s.step = s.step + 1
    s.exp_avg_sq = _square_mean(s.exp_avg_sq, s.grad, o.beta2)
    rate = o.lr * sqrt(1 - power(o.beta2, s.step))
    if o.warmup_steps:
        rate = rate * where_greater(o.warmup_steps, s.step, s.step / o.warmup_steps, 1)
    direction = s.grad / (sqrt(s.exp_avg_sq) + o.eps)
    if o.weight_decay:
        direction = direction + o.weight_decay * s.param
    s.z = s.z - rate * direction
    weight = rate * rate
    s.weight_sum = s.weight_sum + weight
    # A rate of 0 in all steps so far leaves x as it is.
    s.x = lerp(s.x, s.z, weight / where_greater(s.weight_sum, 0, s.weight_sum, 1))
    s.param = lerp(s.z, s.x, o.beta1)


SGD = Update("sgd", _sgd, ("param", "momentum_buffer"), values=("is_first",))
ADAM = Update("adam", _adam, ("param", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"), ("step",))
MOMENTUM = Update("momentum", _momentum, ("update", "momentum_buffer"))
"""First half of Muon; `update` is the matrix to orthogonalize."""
MUON = Update("muon", _muon, ("param", "update"), values=("rate",))
"""Second half of Muon."""
RMS_PROP = Update("rms_prop", _rms_prop, ("param", "square_avg", "grad_avg", "momentum_buffer"), ("step",))
ADAGRAD = Update("adagrad", _adagrad, ("param", "sum"), ("step",))
ADADELTA = Update("adadelta", _adadelta, ("param", "square_avg", "acc_delta"), ("step",))
ADAMAX = Update("adamax", _adamax, ("param", "exp_avg", "exp_inf"), ("step",))
NADAM = Update("nadam", _nadam, ("param", "exp_avg", "exp_avg_sq"), ("step", "mu_product"))
RADAM = Update("radam", _radam, ("param", "exp_avg", "exp_avg_sq"), ("step",))
ADAN = Update("adan", _adan, ("param", "exp_avg", "exp_avg_sq", "exp_avg_diff", "previous_grad"), ("step",))
LION = Update("lion", _lion, ("param", "exp_avg"))
LAMB_DIRECTION = Update(
    "lamb_direction", _lamb_direction, ("param", "update", "exp_avg", "exp_avg_sq"), ("step",)
)
"""First half of Lamb."""
LAMB = Update("lamb", _lamb, ("param", "update"), ("trust_ratio",), wide=("trust_ratio",))
"""Second half of Lamb."""
SCHEDULE_FREE_ADAMW = Update(
    "schedule_free_adamw",
    _schedule_free_adamw,
    ("param", "z", "x", "exp_avg_sq"),
    ("step", "weight_sum"),
    wide=("weight_sum",),
)
