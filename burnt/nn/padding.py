"""Padding: elements added at both ends of the last axes, or removed where the number is negative."""

from __future__ import annotations

import torch

from burnt.module import Module


class CircularPad1d(Module, torch.nn.CircularPad1d, init=False):
    """Continues sequences from the opposite end, as if they were periodic.

    As `CircularPad2d`, for ``[batch, channels, length]`` or without batch and a padding of ``(left, right)``.

    >>> CircularPad1d(2)(torch.arange(4.0).view(1, 1, 4))
    tensor([[[2., 3., 0., 1., 2., 3., 0., 1.]]])
    """


class CircularPad2d(Module, torch.nn.CircularPad2d, init=False):
    """Continues images from the opposite end, as if they were periodic.

    Args:
        padding: how much on each side, or ``(left, right, top, bottom)``; at most the axis' size.

    Shapes:
        input ``[batch, channels, height, width]`` or without batch, output the same with longer axes.

    >>> CircularPad2d((1, 1, 2, 0))(torch.zeros(1, 1, 4, 5)).shape
    torch.Size([1, 1, 6, 7])
    """


class CircularPad3d(Module, torch.nn.CircularPad3d, init=False):
    """Continues volumes from the opposite end, as if they were periodic.

    As `CircularPad2d`, for ``[batch, channels, depth, height, width]`` or without batch and a padding of
    ``(left, right, top, bottom, front, back)``.

    >>> CircularPad3d((1, 1, 2, 0, 0, 1))(torch.zeros(1, 1, 4, 5, 6)).shape
    torch.Size([1, 1, 5, 7, 8])
    """


class ConstantPad1d(Module, torch.nn.ConstantPad1d, init=False):
    """Surrounds sequences with a constant.

    As `ConstantPad2d`, for ``[*, length]`` and a padding of ``(left, right)``.

    >>> ConstantPad1d((1, 2), 9.0)(torch.zeros(1, 1, 2))
    tensor([[[9., 0., 0., 9., 9.]]])
    """


class ConstantPad2d(Module, torch.nn.ConstantPad2d, init=False):
    """Surrounds images with a constant.

    Args:
        padding: how much on each side, or ``(left, right, top, bottom)``.
        value: the constant that padding holds.

    Shapes:
        input ``[*, height, width]``, output the same with longer axes.

    >>> ConstantPad2d((1, 1, 2, 0), 9.0)(torch.zeros(1, 1, 4, 5)).shape
    torch.Size([1, 1, 6, 7])
    """


class ConstantPad3d(Module, torch.nn.ConstantPad3d, init=False):
    """Surrounds volumes with a constant.

    As `ConstantPad2d`, for ``[*, depth, height, width]`` and a padding of
    ``(left, right, top, bottom, front, back)``.

    >>> ConstantPad3d((1, 1, 2, 0, 0, 1), 9.0)(torch.zeros(1, 1, 4, 5, 6)).shape
    torch.Size([1, 1, 5, 7, 8])
    """


class ReflectionPad1d(Module, torch.nn.ReflectionPad1d, init=False):
    """Mirrors sequences at their outermost elements, which are not repeated.

    As `ReflectionPad2d`, for ``[batch, channels, length]`` or without batch and a padding of
    ``(left, right)``.

    >>> ReflectionPad1d(2)(torch.arange(4.0).view(1, 1, 4))
    tensor([[[2., 1., 0., 1., 2., 3., 2., 1.]]])
    """


class ReflectionPad2d(Module, torch.nn.ReflectionPad2d, init=False):
    """Mirrors images at their outermost elements, which are not repeated.

    Args:
        padding: how much on each side, or ``(left, right, top, bottom)``; less than the axis' size.

    Shapes:
        input ``[batch, channels, height, width]`` or without batch, output the same with longer axes.

    >>> ReflectionPad2d((1, 1, 2, 0))(torch.zeros(1, 1, 4, 5)).shape
    torch.Size([1, 1, 6, 7])
    """


class ReflectionPad3d(Module, torch.nn.ReflectionPad3d, init=False):
    """Mirrors volumes at their outermost elements, which are not repeated.

    As `ReflectionPad2d`, for ``[batch, channels, depth, height, width]`` or without batch and a padding of
    ``(left, right, top, bottom, front, back)``.

    >>> ReflectionPad3d((1, 1, 2, 0, 0, 1))(torch.zeros(1, 1, 4, 5, 6)).shape
    torch.Size([1, 1, 5, 7, 8])
    """


class ReplicationPad1d(Module, torch.nn.ReplicationPad1d, init=False):
    """Repeats the outermost elements of sequences.

    As `ReplicationPad2d`, for ``[batch, channels, length]`` or without batch and a padding of
    ``(left, right)``.

    >>> ReplicationPad1d((1, 2))(torch.arange(3.0).view(1, 1, 3))
    tensor([[[0., 0., 1., 2., 2., 2.]]])
    """


class ReplicationPad2d(Module, torch.nn.ReplicationPad2d, init=False):
    """Repeats the outermost elements of images.

    Args:
        padding: how much on each side, or ``(left, right, top, bottom)``.

    Shapes:
        input ``[batch, channels, height, width]`` or without batch, output the same with longer axes.

    >>> ReplicationPad2d((1, 1, 2, 0))(torch.zeros(1, 1, 4, 5)).shape
    torch.Size([1, 1, 6, 7])
    """


class ReplicationPad3d(Module, torch.nn.ReplicationPad3d, init=False):
    """Repeats the outermost elements of volumes.

    As `ReplicationPad2d`, for ``[batch, channels, depth, height, width]`` or without batch and a padding of
    ``(left, right, top, bottom, front, back)``.

    >>> ReplicationPad3d((1, 1, 2, 0, 0, 1))(torch.zeros(1, 1, 4, 5, 6)).shape
    torch.Size([1, 1, 5, 7, 8])
    """


class ZeroPad1d(Module, torch.nn.ZeroPad1d, init=False):
    """Surrounds sequences with zeros.

    As `ZeroPad2d`, for ``[*, length]`` and a padding of ``(left, right)``.

    >>> ZeroPad1d((1, 2))(torch.ones(1, 1, 2))
    tensor([[[0., 1., 1., 0., 0.]]])
    """


class ZeroPad2d(Module, torch.nn.ZeroPad2d, init=False):
    """Surrounds images with zeros.

    Args:
        padding: how much on each side, or ``(left, right, top, bottom)``.

    Shapes:
        input ``[*, height, width]``, output the same with longer axes.

    >>> ZeroPad2d((1, 1, 2, 0))(torch.zeros(1, 1, 4, 5)).shape
    torch.Size([1, 1, 6, 7])
    """


class ZeroPad3d(Module, torch.nn.ZeroPad3d, init=False):
    """Surrounds volumes with zeros.

    As `ZeroPad2d`, for ``[*, depth, height, width]`` and a padding of
    ``(left, right, top, bottom, front, back)``.

    >>> ZeroPad3d((1, 1, 2, 0, 0, 1))(torch.zeros(1, 1, 4, 5, 6)).shape
    torch.Size([1, 1, 5, 7, 8])
    """
