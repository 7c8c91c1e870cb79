"""torch.compile where it works, and the eager form where it does not."""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

from trackmania_rl.agents.fused_radam import FusedRAdamStep
from trackmania_rl.agents.iqn import GradientStep, IQNLoss, Taus, Transitions
from trackmania_rl.places import user_folder

log = logging.getLogger(__name__)

MOST_COMPILATIONS: Final = 64
"""How often a function is compiled, each time for other settings or shapes, before it runs as it is. Torch's own limit
is 8, which edits of the configuration reach in a run of weeks."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Compiler:
    """Compiles functions when they are first called; once that has failed, all run as they are.

    It fails above all where there is no compiler: on a processor torch needs one for C++. One warning says so.

    Args:
        mode: of `torch.compile`; "reduce-overhead" records CUDA graphs.
    """

    def __init__(self, mode: str | None = None) -> None:
        self._mode = mode
        # What torch compiles is code. Its own place for it is in the temporary folder, where others might put theirs.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(user_folder("torch_compile")))
        torch._dynamo.config.trace_autograd_ops = True  # lets a graph hold gradients
        torch._dynamo.config.recompile_limit = MOST_COMPILATIONS
        self._works = True

    def compiled(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """The function as a single graph, so that a failure to compile it comes before anything of it has run.

        Args:
            function: works on tensors; what else it reads should seldom change, or it is compiled again.
        """
        graph = torch.compile(function, fullgraph=True, mode=self._mode)

        @functools.wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            if self._works:
                try:
                    return graph(*args, **kwargs)
                except (TorchDynamoException, FailOnRecompileLimitHit) as error:  # the second is not one of the first
                    self._works = False
                    log.warning("use_torch_compile: it runs without, since: %s", _reason(error))
            return function(*args, **kwargs)

        return call


def compile_update(loss: IQNLoss, step: GradientStep) -> None:
    """Have an update compiled when it is first made: losses with their gradient, clipping, and the optimizer's step.

    Loss and gradient are one graph, in half of the time that a compiled loss and its backward take one after the other
    at the default size. The loss then has its gradient at hand, and `backward` adds that to the weights' gradient.

    Args:
        loss: its `compute` is replaced.
        step: its `move_weights` is replaced, or its optimizer's `step`.
    """
    compiler = Compiler(mode="reduce-overhead" if loss.device.type == "cuda" else None)
    parameters = list(loss.online.parameters())
    one = torch.ones((), device=loss.device)

    def differentiate(batch: Transitions, taus: Taus, scale: Tensor) -> tuple[Tensor, ...]:
        total, td_error, mean_q = loss.compute_losses(batch, taus)
        gradients = torch.autograd.grad(total * scale, parameters, materialize_grads=True)  # of float32 weights
        return total.detach(), td_error, mean_q, torch.cat([gradient.reshape(-1) for gradient in gradients]) / scale

    compiled = compiler.compiled(differentiate)

    def compute(batch: Transitions, taus: Taus) -> tuple[Tensor, Tensor, Tensor]:
        total, td_error, mean_q, gradient = compiled(batch, taus, step.scaler.scale(one))
        with_gradient = _WithGradient.apply(step.weights, total, gradient)  # type: ignore[no-untyped-call]
        if loss.device.type == "cuda":  # the next CUDA graph writes where this one did
            td_error, mean_q = td_error.clone(), mean_q.clone()
        return with_gradient, td_error, mean_q

    loss.compute = compute
    if loss.device.type == "cpu":
        step.move_weights = FusedRAdamStep(step, compiler.compiled)
    else:  # without the wrappers that every optimizer's step has: for profilers, and for steps that are differentiated
        plain_step = functools.partial(inspect.unwrap(type(step.optimizer).step), step.optimizer)
        step.optimizer.step = compiler.compiled(torch.no_grad()(plain_step))  # type: ignore[method-assign]


class _WithGradient(torch.autograd.Function):
    """A loss whose gradient is known already."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, total: Tensor, gradient: Tensor) -> Tensor:  # type: ignore[override]
        """Take weights (P,), loss () and gradient (P,); return the loss, as one that depends on the weights."""
        ctx.save_for_backward(gradient)
        return total.clone()

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        """Give the gradient, times that of what was made of the loss."""
        (gradient,) = ctx.saved_tensors
        # Where nothing was made of the loss: to ask is cheaper than to multiply.
        is_alone = grad_total.device.type == "cpu" and grad_total.item() == 1
        return (gradient if is_alone else gradient * grad_total), None, None


def _reason(error: Exception) -> str:
    """What to say of a failure, in one line."""
    if isinstance(error, FailOnRecompileLimitHit):  # its own text speaks of torch's options only
        return f"it was compiled {MOST_COMPILATIONS} times, for edited settings; the next start compiles it again"
    return str(error).splitlines()[0]
