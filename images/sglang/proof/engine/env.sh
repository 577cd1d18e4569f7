# Environment of the servers on the GPU machine; source after setup.sh.
X=${PROOF_X:-$HOME/x}
export PYTHONPATH=$X/site:$X/nx:$X/plug PYTHONUNBUFFERED=1 TVM_FFI_CACHE_DIR=$X/tvm
# What the payload leaves out, and what a card of compute capability 9.0 cannot do.
export SGLANG_IS_FLASHINFER_AVAILABLE=0 SGLANG_DSV4_FP4_EXPERTS=0 SGLANG_OPT_FP8_WO_A_GEMM=0
export SGLANG_OPT_USE_TILELANG_MHC_PRE=0 SGLANG_OPT_USE_TILELANG_MHC_POST=0 SGLANG_OPT_DEEPGEMM_HC_PRENORM=0
export SGLANG_JIT_DEEPGEMM_PRECOMPILE=0 SGLANG_ENABLE_UNIFIED_RADIX_TREE=1
# Without this the top-k kernel is not deterministic, and equal requests differ.
export SGLANG_TOPK_TRANSFORM_512_TORCH=1
export SGLANG_DG_CACHE_DIR=$X/dg DG_JIT_CACHE_DIR=$X/dg TRITON_CACHE_DIR=$X/triton TORCHINDUCTOR_CACHE_DIR=$X/inductor
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 NO_COLOR=1
[ -z "$CUDA_HOME" ] && export CUDA_HOME=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
