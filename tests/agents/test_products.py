"""Products of matrices: the same numbers whichever library computes them."""

import os
import shutil

import pytest
import torch
from torch.nn import functional as F

from trackmania_rl.agents import products
from trackmania_rl.agents.products import has_onednn, is_wide_amd, linear, linear_leaky_relu, product, uses_onednn

CPU = torch.device("cpu")


@pytest.fixture(params=["oneDNN", "torch's own"])
def library(request, monkeypatch):
    """Both ways that a processor has, whichever is faster on this one."""
    is_onednn = request.param == "oneDNN"
    if is_onednn and not has_onednn(CPU, torch.float32):
        pytest.skip("this torch is built without oneDNN")
    monkeypatch.setattr(products, "_IS_ONEDNN_FASTER", is_onednn)
    assert uses_onednn(torch.empty(0)) == is_onednn


@pytest.fixture
def matrices():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in ((5, 7), (9, 7), (9,))]


@pytest.mark.usefixtures("library")
def test_layers_and_products_are_torchs(matrices):
    inputs, weight, bias = matrices
    torch.testing.assert_close(linear(inputs, weight, bias), F.linear(inputs, weight, bias))
    torch.testing.assert_close(
        linear_leaky_relu(inputs, weight, bias), F.leaky_relu(F.linear(inputs, weight, bias), 0.01)
    )
    torch.testing.assert_close(product(inputs, weight.t()), inputs @ weight.t())
    torch.testing.assert_close(product(weight.t(), weight), weight.t() @ weight, msg="transposed ones too")


@pytest.mark.usefixtures("library")
def test_bfloat16_stays_bfloat16(matrices):
    inputs, weight, bias = (matrix.bfloat16() for matrix in matrices)
    for result in (linear(inputs, weight, bias), linear_leaky_relu(inputs, weight, bias), product(inputs, weight.t())):
        assert result.dtype == torch.bfloat16
        assert result.shape == (5, 9)


def test_other_devices_use_their_own_library():
    assert not has_onednn(torch.device("meta"), torch.float32)
    assert product(torch.empty(5, 7, device="meta"), torch.empty(7, 9, device="meta")).shape == (5, 9)


@pytest.mark.slow
def test_they_can_be_compiled_with_weights_that_change(matrices):
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("no C++ compiler here")
    inputs, weight, bias = matrices

    def layers(inputs, weight, bias):
        hidden = linear_leaky_relu(inputs, weight, bias)
        return product(hidden.t(), inputs) + linear(inputs, weight, bias).sum()

    compiled = torch.compile(layers, fullgraph=True)
    for factor in (1.0, -2.0):
        torch.testing.assert_close(compiled(inputs, factor * weight, bias), layers(inputs, factor * weight, bias))


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"cpu_name": "AMD EPYC", "avx512_f": True}, True),
        ({"cpu_name": "AMD EPYC", "avx512_f": False}, False),
        ({"cpu_name": "Intel(R) Xeon(R)", "avx512_f": True}, False),
        ({"architecture": "aarch64"}, False),
    ],
)
def test_onednn_is_for_amds_wide_processors(capabilities, expected):
    assert is_wide_amd(capabilities) == expected


def test_float16_is_left_to_torch():
    assert not has_onednn(CPU, torch.float16)
    matrix = torch.ones((3, 3), dtype=torch.float16)
    assert product(matrix, matrix).dtype == torch.float16
