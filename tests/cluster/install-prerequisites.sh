#!/bin/sh
# Installs what the local cluster needs from the distribution's packages; says what it does and asks nothing.
#   install-prerequisites.sh control-plane   Go (checked, not installed) and openssl
#   install-prerequisites.sh node            also network plugins, nftables, what builds runc, and what builds images
# For Debian 12 and later, and Ubuntu 24.04 and later.
set -eu

say() { echo "prerequisites: $*"; }
fail() { echo "prerequisites: error: $*" >&2; exit 1; }

mode=${1:-node}
case $mode in
control-plane) wanted="openssl" ;;
node)
    # iproute2, nftables: namespace, links, kube-proxy. containernetworking-plugins: pod network.
    # gcc, libc6-dev, libseccomp-dev, pkg-config: runc with seccomp. buildah, mmdebstrap: images without a registry.
    wanted="openssl iproute2 nftables containernetworking-plugins \
        gcc libc6-dev libseccomp-dev pkg-config buildah mmdebstrap"
    ;;
*) fail "usage: $0 [control-plane|node]" ;;
esac

command -v dpkg-query >/dev/null || fail "this script knows Debian and Ubuntu only; install by hand: $wanted"

missing=""
for package in $wanted; do
    # "pkgconf" provides pkg-config on newer releases, so the program counts, not the package.
    if [ "$package" = pkg-config ] && command -v pkg-config >/dev/null; then continue; fi
    if [ "$package" = openssl ] && command -v openssl >/dev/null; then continue; fi
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $package"
done

if [ -n "$missing" ]; then
    [ "$(id -u)" = 0 ] || fail "these packages are missing:$missing; run as root: sudo $0 $mode"
    say "installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || fail "apt-get update failed: check the package sources and the network"
    # shellcheck disable=SC2086 # a list of names
    apt-get install -y -qq --no-install-recommends $missing >/dev/null ||
        fail "apt-get install failed for:$missing"
else
    say "all packages are installed"
fi

command -v go >/dev/null || fail "the Go toolchain is missing: install Go 1.21 or newer and put it on PATH"
version=$(go env GOVERSION | sed 's/^go//')
major=${version%%.*}
rest=${version#*.}
minor=${rest%%.*}
if [ "$major" -lt 1 ] || { [ "$major" -eq 1 ] && [ "$minor" -lt 21 ]; }; then
    # From 1.21 on, go fetches by itself the toolchain that a module asks for (1.26 here).
    fail "Go $version is too old: 1.21 or newer is needed"
fi
if [ "$mode" = node ] && [ "$(id -u)" != 0 ]; then
    say "note: node mode itself runs as root (namespaces, mounts, containers)"
fi
say "ready for $mode mode (Go $version)"
