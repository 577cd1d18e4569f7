#!/bin/bash
# Unpack the payload and put the plugins beside it, on the GPU machine. Idempotent. PAY: folder of the payload
# (site.tar.xz, nx.tar.xz, tvm.tar.xz, cache.tar.xz); X: where it goes.
set -e
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PAY=${PAY:-.pay} X=${PROOF_X:-$HOME/x}
if [ ! -f "$X/.done" ]; then
  mkdir -p "$X/site" "$X/nx" "$X/tvm"
  tar xJf "$PAY/site.tar.xz" -C "$X/site" & one=$!
  tar xJf "$PAY/nx.tar.xz" -C "$X/nx" & two=$!
  [ -f "$PAY/tvm.tar.xz" ] && tar xJf "$PAY/tvm.tar.xz" -C "$X/tvm"
  [ -f "$PAY/cache.tar.xz" ] && tar xJf "$PAY/cache.tar.xz" -C "$X"
  wait $one $two
  touch "$X/.done"
fi
rm -rf "$X/plug" && mkdir -p "$X/plug"
cp -r "$here/../../src/dsv4_guard" "$here/lab/dsv4_lab" "$X/plug/"
plugin() {  # name, entry point
  mkdir -p "$X/plug/$1-0.1.dist-info"
  printf 'Metadata-Version: 2.1\nName: %s\nVersion: 0.1\n' "$1" > "$X/plug/$1-0.1.dist-info/METADATA"
  printf '[sglang.srt.plugins]\n%s = %s\n' "$1" "$2" > "$X/plug/$1-0.1.dist-info/entry_points.txt"
}
plugin dsv4_guard dsv4_guard:register
plugin dsv4_lab dsv4_lab:register
