"""Quantized ops: of weights (`weight_only*`), of weights and inputs (`scaled*`), and of values themselves."""
