"""Whole models through torch.compile, on burnt's kernels: Dynamo and AOTAutograd in front, codegen behind."""
