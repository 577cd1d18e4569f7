"""Kubernetes operator for prefill/decode-disaggregated DeepSeek-V4 serving on SGLang."""

__version__ = "0.1.0"
