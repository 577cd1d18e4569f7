"""A GPU-less stand-in for SGLang DeepSeek-V4 prefill and decode engines. A simulator: it has no model."""

__version__ = "0.1.0"
