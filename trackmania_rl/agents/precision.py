"""In which precision to compute."""

from __future__ import annotations

import torch

from trackmania_rl.settings import AgentSettings


def arithmetic_dtype(device: torch.device, settings: AgentSettings) -> torch.dtype:
    """The precision of the networks' large products.

    A GPU computes as configured, but in float16 where it would have to imitate bfloat16. Of processors, those with
    matrix instructions (Intel's AMX) are several times faster in bfloat16 than in float32, so they follow that setting;
    all others compute in float32, whatever is configured.
    """
    dtype: torch.dtype = getattr(torch, settings.autocast_dtype)
    if device.type == "cuda":
        imitates = dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.float16 if imitates else dtype
    has_matrix_instructions = torch.cpu.get_capabilities().get("amx_bf16", False)
    return dtype if dtype == torch.bfloat16 and has_matrix_instructions else torch.float32
