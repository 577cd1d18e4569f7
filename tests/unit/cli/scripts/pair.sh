#!/usr/bin/env bash
# Both roles of one pair, as people keep it on a machine.
set -euo pipefail

MODEL=${MODEL:-deepseek-ai/DeepSeek-V4}
PORT=${PORT:=30000}
export NCCL_DEBUG=WARN
export UCX_NET_DEVICES="mlx5_0:1,mlx5_1:1" PATH="/opt/bin:$PATH"

COMMON=(--model-path "$MODEL" --served-model-name 'deepseek-v4'
  --trust-remote-code # needed by the tokenizer
  --tp 8 --disaggregation-transfer-backend mooncake
)
COMMON+=(--context-length 131072)

cat > /tmp/readme <<EOF
python3 -m sglang.launch_server --bogus "this is text
EOF

if [ -n "${DEBUG:-}" ]; then
  export SGLANG_SIMULATE_ACC_LEN=2
fi

UCX_TLS=rc,cuda_copy,cuda_ipc env MC_SLICE_SIZE=1 python3 -m sglang.launch_server "${COMMON[@]}" \
  --disaggregation-mode prefill \
  --host 0.0.0.0 --port "$PORT" \
  --enable-hierarchical-cache --hicache-ratio=2.0 \
  --hicache-io-backend direct --mem-fraction-static .85 \
  --dist-init-addr "$(hostname -i):5000" --made-up-flag 1 > prefill.log 2>&1 &

exec python3 -m sglang.launch_server ${COMMON[@]} \
  --disaggregation-mode decode --cuda-graph-max-bs 128 --max-running-requests 256 \
  --speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 \
  --speculative-num-draft-tokens 4 --mem-fraction-static 0.9 --tokenizer-path "$TOKENIZER"
