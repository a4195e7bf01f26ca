"""Passes over aten graphs that choose which library computes a node; they serve Inductor's graphs too.

A pass takes an FX graph whose nodes have their fake tensors as ``meta["val"]``, and changes it in place. It
says why it chose a library as ``meta["library"]``, which `burnt.explain` shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from burnt.kernels.ops.matmul import is_onednn_best, onednn_addmm, onednn_mm
from burnt.torch_speed import find_fact

aten = torch.ops.aten

_CAST = torch.ops.prims.convert_element_type.default  # which Inductor has a lowering for, too
_ATTENTION_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def run_passes(graph: Graph, products: Sequence[Any] = (onednn_mm, onednn_addmm)) -> None:
    """Run all passes; `products` are what multiplies by oneDNN, without and with a bias."""
    drop_double_transposes(graph)
    multiply_by_onednn(graph, *products)
    differentiate_attention_in_float32(graph)
    graph.eliminate_dead_code()


def drop_double_transposes(graph: Graph) -> None:
    """Replace the transpose of a transpose, as in the gradient of a weight, by what is transposed."""
    for node in graph.nodes:
        if node.target is aten.t.default and node.args[0].target is aten.t.default:
            node.replace_all_uses_with(node.args[0].args[0])


def multiply_by_onednn(graph: Graph, mm: Any, addmm: Any) -> None:
    """Multiply matrices by oneDNN where it is faster than torch's call."""
    for node in graph.nodes:
        is_addmm = node.target is aten.addmm.default and not node.kwargs
        if not is_addmm and node.target is not aten.mm.default:
            continue
        *bias, a, b = node.args
        left, right = a.meta["val"], b.meta["val"]
        if any(isinstance(size, torch.SymInt) for size in (*left.shape, *right.shape)):
            continue
        if (bias and bias[0].meta["val"].shape != right.shape[1:]) or not is_onednn_best(left, right.t()):
            continue
        if not left.is_contiguous() and left.t().is_contiguous():  # oneDNN needs rows: a kernel copies them
            with graph.inserting_before(node):
                a = _call(graph, aten.clone.default, a, memory_format=torch.contiguous_format)
        node.target, node.args = addmm if is_addmm else mm, (*bias, a, b)
        node.meta["library"] = "oneDNN is faster here than the library of torch's call"
        node.meta["returns_new_memory"] = True


def differentiate_attention_in_float32(graph: Graph) -> None:
    """Compute gradients of 16-bit attention in float32 where torch's kernel for 16 bits is slower."""
    for node in graph.nodes:
        if node.target is not _ATTENTION_BACKWARD:
            continue
        query = node.args[1].meta["val"]
        features = {"length": query.shape[2], "width": query.shape[3]}
        fact = find_fact("aten::attention gradient", True, query.dtype, True, features)
        if fact is None or fact.use != "float32":
            continue
        with graph.inserting_before(node):
            wide = [_call(graph, _CAST, a, torch.float32) for a in node.args[:5]]
        node.args = (*wide, *node.args[5:])
        node.meta["library"] = f"torch's call is used in float32: {fact.reason}"
        node.meta["val"] = tuple(g.float() for g in node.meta["val"])
        for part in list(node.users):
            part.meta["val"] = part.meta["val"].float()
            with graph.inserting_after(part):
                narrow = _call(graph, _CAST, part, query.dtype)
            part.replace_all_uses_with(narrow, delete_user_cb=lambda user, narrow=narrow: user is not narrow)


def _call(graph: Graph, op: Any, a: Node, *rest: Any, **options: Any) -> Node:
    node = graph.call_function(op, (a, *rest), options)
    node.meta["val"] = op(a.meta["val"], *rest, **options)
    return node
