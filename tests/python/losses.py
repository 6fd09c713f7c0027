"""dtrain.linear_cross_entropy(), add_layer_norm() and add_rms_norm() against torch's functions, without a run.

    losses.py BIN_FOLDER [TestClass[.test] ...]
"""
import itertools
import unittest

import forked
import torch
from torch.nn import functional


def unfused(hidden, weight, target, linear_bias=None, **keys):
    return functional.cross_entropy(functional.linear(hidden, weight, linear_bias).flatten(0, -2), target.flatten(), **keys)


class LinearCrossEntropy(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(11)
        self.hidden = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
        self.weight = torch.randn(13, 6, dtype=torch.float64, requires_grad=True)
        self.bias = torch.randn(13, dtype=torch.float64, requires_grad=True)
        self.target = torch.randint(13, (2, 5))
        self.target[0, 2] = -100

    def test_gradients_are_those_of_finite_differences(self):
        for reduction, smoothing, chunk in itertools.product(("mean", "sum"), (0.0, 0.1), (1, 1000, 1 << 20)):
            with self.subTest(reduction=reduction, smoothing=smoothing, chunk=chunk):
                self.assertTrue(torch.autograd.gradcheck(
                    lambda hidden, weight, bias: dtrain.linear_cross_entropy(
                        hidden, weight, self.target, linear_bias=bias, reduction=reduction, label_smoothing=smoothing,
                        chunk_bytes=chunk), (self.hidden, self.weight, self.bias)))

    def test_values_are_torchs(self):
        for keys in ({}, {"reduction": "sum"}, {"ignore_index": 3}, {"label_smoothing": 0.2}):
            for target in (self.target.clamp_min(0), torch.full_like(self.target, 3)):
                with self.subTest(keys=keys):
                    torch.testing.assert_close(dtrain.linear_cross_entropy(self.hidden, self.weight, target, **keys),
                                               unfused(self.hidden, self.weight, target, **keys), equal_nan=True)

    def test_parts_that_learn_nothing(self):
        for frozen in (self.hidden, self.weight):
            frozen.requires_grad_(False)
            dtrain.linear_cross_entropy(self.hidden, self.weight, self.target).backward()
            self.assertIsNone(frozen.grad)
            frozen.requires_grad_(True)
            self.hidden.grad = self.weight.grad = None
        with torch.no_grad():
            self.assertFalse(dtrain.linear_cross_entropy(self.hidden, self.weight, self.target).requires_grad)

    def test_autocast(self):
        hidden, weight = (tensor.detach().float().requires_grad_() for tensor in (self.hidden, self.weight))
        with torch.autocast("cpu", torch.bfloat16):
            loss = dtrain.linear_cross_entropy(hidden, weight, self.target)
        loss.backward()
        unfused(self.hidden, self.weight, self.target).backward()
        self.assertEqual((loss.dtype, hidden.grad.dtype, weight.grad.dtype), (torch.float32,) * 3)
        torch.testing.assert_close(weight.grad.double(), self.weight.grad, rtol=0.05, atol=0.05)

    def test_what_torch_func_traces(self):
        gradient = torch.func.grad(lambda weight: dtrain.linear_cross_entropy(self.hidden.detach(), weight, self.target))
        unfused(self.hidden, self.weight, self.target).backward()
        torch.testing.assert_close(gradient(self.weight.detach()), self.weight.grad)

    def test_errors(self):
        loss = dtrain.linear_cross_entropy(self.hidden, self.weight, self.target)
        with self.assertRaisesRegex(RuntimeError, "linear_cross_entropy: backward with create_graph=True"):
            torch.autograd.grad(loss, self.weight, create_graph=True)
        with self.assertRaisesRegex(ValueError, "reduction is 'none'"):
            dtrain.linear_cross_entropy(self.hidden, self.weight, self.target, reduction="none")
        with self.assertRaisesRegex(dtrain.Error, r"\[2, 5, 6\], and the weight \[6, 13\]"):
            dtrain.linear_cross_entropy(self.hidden, self.weight.t(), self.target)


class AddNorm(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(11)
        self.input, self.residual = (torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
        self.weight, self.bias = (torch.randn(6, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def test_values_are_torchs(self):
        total = self.residual + self.input
        for bias in (self.bias, None):
            normalized, found = dtrain.add_layer_norm(self.input, self.residual, self.weight, bias, eps=1e-3)
            torch.testing.assert_close(found, total)
            torch.testing.assert_close(normalized, functional.layer_norm(total, (6,), self.weight, bias, 1e-3))
        for eps in (1e-3, None):
            normalized, found = dtrain.add_rms_norm(self.input, self.residual, self.weight, eps=eps)
            torch.testing.assert_close(found, total)
            torch.testing.assert_close(normalized, functional.rms_norm(total, (6,), self.weight, eps))

    def test_gradients_are_those_of_finite_differences(self):
        self.assertTrue(torch.autograd.gradcheck(dtrain.add_layer_norm, (self.input, self.residual, self.weight, self.bias)))
        self.assertTrue(torch.autograd.gradcheck(dtrain.add_rms_norm, (self.input, self.residual, self.weight)))

    def test_autocast(self):
        narrow = [tensor.detach().float() for tensor in (self.input, self.residual, self.weight)]
        with torch.autocast("cpu", torch.bfloat16):
            normalized, total = dtrain.add_rms_norm(narrow[0].bfloat16(), *narrow[1:])
        self.assertEqual((normalized.dtype, total.dtype), (torch.bfloat16, torch.float32))

    def test_what_torch_func_traces(self):
        def loss(weight):
            return dtrain.add_layer_norm(self.input.detach(), self.residual.detach(), weight)[0].pow(3).sum()
        loss(self.weight).backward()
        torch.testing.assert_close(torch.func.grad(loss)(self.weight.detach()), self.weight.grad)

    def test_errors(self):
        with self.assertRaisesRegex(dtrain.Error, r"add_layer_norm: the input has the shape \[2, 5, 6\], and the residual"):
            dtrain.add_layer_norm(self.input, self.residual[0], self.weight)


if __name__ == "__main__":
    forked.use_package()
    import dtrain

    unittest.main(verbosity=2)
