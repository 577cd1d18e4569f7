"""Index-K of DeepSeek-V4 in bf16: pool, kernels and the places of SGLang that they replace. See docs/bf16.md."""
