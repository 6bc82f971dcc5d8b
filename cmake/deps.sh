#!/usr/bin/env bash
# Installs what Stemma builds and tests with; run by `make deps`. Idempotent: what is there is left alone. With the word
# `fuzz` also clang and its run-time libraries, which only `make fuzz` needs: 110 MB.
#   1. Debian packages, through apt (as root, or through sudo)
#   2. LibTorch 2.11.0 from its Python wheel, hash pinned, into third_party/site (or TORCH_ROOT: an installed torch 2.11)
#   3. the CUDA libraries that the wheel's own libraries load and that neither the loader nor the wheel has, one by one
#   4. third_party/venv: the Python oracle, the client's test environment; it sees the same torch
#   5. clang-tidy from its wheel, hash pinned, into third_party/venv: Debian 12's reads all of the system's headers too
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf 'deps: %s\n' "$*"; }

apt_packages=(
  cmake ninja-build g++ ccache pkg-config git ca-certificates python3 python3-venv python3-pip
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev libgoogle-glog-dev
  libgtest-dev libgmock-dev libcli11-dev libyaml-cpp-dev nlohmann-json3-dev libssl-dev libsqlite3-dev libgloo-dev prometheus-cpp-dev
  clang-format spin openssl
)
if [ "${1:-}" = fuzz ]; then apt_packages+=(clang libclang-rt-14-dev); fi
missing=()
for package in "${apt_packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if ((${#missing[@]})); then
  say "apt-get install ${missing[*]}"
  as_root=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { say "not root and no sudo: install these first: ${missing[*]}"; exit 1; }
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
else
  say "Debian packages: all ${#apt_packages[@]} present"
fi

# The wheel is built for CPython 3.11 (Debian 12's), and the oracle must be able to import it.
python=""
for candidate in /usr/bin/python3 python3.11 python3; do
  if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
[ -n "$python" ] || { say "Python 3.11 with venv is needed (Debian 12's python3 and python3-venv)"; exit 1; }

venv=third_party/venv
if [ ! -x "$venv/bin/pip" ]; then
  say "python environment: $venv"
  "$python" -m venv "$venv"
fi
pip=("$PWD/$venv/bin/pip" --disable-pip-version-check)

site=$PWD/third_party/site
if [ -n "${TORCH_ROOT:-}" ]; then
  say "LibTorch: TORCH_ROOT=$TORCH_ROOT"
  site=$(cd "$TORCH_ROOT/.." && pwd)
elif [ "$(cat third_party/site/torch/version.py 2>/dev/null | grep -c "2\.11\.0")" = 0 ]; then
  say "LibTorch 2.11.0 from its wheel (531 MB) into third_party/site"
  "${pip[@]}" install -q --no-deps --require-hashes --only-binary=:all: --upgrade --target "$site" -r cmake/requirements-torch.txt
else
  say "LibTorch 2.11.0: present"
fi

# soname -> the wheel that holds it, at the versions torch 2.11.0 was built against.
declare -A wheel_of=(
  [libcudart.so.13]=nvidia-cuda-runtime==13.0.96
  [libcupti.so.13]=nvidia-cuda-cupti==13.0.85
  [libnvrtc.so.13]=nvidia-cuda-nvrtc==13.0.88
  [libnvJitLink.so.13]=nvidia-nvjitlink==13.0.88
  [libnvToolsExt.so.1]=nvidia-nvtx==13.0.85
  [libcublas.so.13]=nvidia-cublas==13.1.0.3
  [libcublasLt.so.13]=nvidia-cublas==13.1.0.3
  [libcufft.so.12]=nvidia-cufft==12.0.0.61
  [libcurand.so.10]=nvidia-curand==10.4.0.35
  [libcusolver.so.12]=nvidia-cusolver==12.0.4.66
  [libcusparse.so.12]=nvidia-cusparse==12.6.3.3
  [libcufile.so.0]=nvidia-cufile==1.15.1.6
  [libcudnn.so.9]=nvidia-cudnn-cu13==9.19.0.56
  [libnccl.so.2]=nvidia-nccl-cu13==2.28.9
  [libcusparseLt.so.0]=nvidia-cusparselt-cu13==0.8.0
  [libnvshmem_host.so.3]=nvidia-nvshmem-cu13==3.4.5
)
unresolved() { ldd "$site"/torch/lib/lib{c10,torch_cpu,c10_cuda,torch_cuda,torch_python}.so 2>/dev/null | awk '/not found/ && !/libpython/ {print $1}' | sort -u; }
for _ in 1 2 3; do  # a library that was just installed can need another
  wheels=()
  for soname in $(unresolved); do
    [ -n "${wheel_of[$soname]:-}" ] || { say "the loader finds no $soname, and no wheel is known to hold it"; exit 1; }
    wheels+=("${wheel_of[$soname]}")
  done
  ((${#wheels[@]})) || break
  mapfile -t wheels < <(printf '%s\n' "${wheels[@]}" | sort -u)
  say "libraries that LibTorch loads and this machine lacks: ${wheels[*]}"
  "${pip[@]}" install -q --no-deps --only-binary=:all: --target "$site" --upgrade "${wheels[@]}"
done

stamp=third_party/venv/.oracle-$(sha256sum cmake/requirements-oracle.txt | cut -c1-16)
if [ ! -e "$stamp" ]; then
  say "Python oracle and client: $(grep -vc '^#' cmake/requirements-oracle.txt) packages"
  # torch must be visible to pip before what depends on it.
  "$venv/bin/python" - "$site" <<'PY'
import sys, sysconfig, pathlib
pathlib.Path(sysconfig.get_path("purelib"), "stemma-torch.pth").write_text(sys.argv[1] + "\n")
PY
  grep -F '# no-deps' cmake/requirements-oracle.txt | "${pip[@]}" install -q --no-deps -r /dev/stdin
  grep -vF '# no-deps' cmake/requirements-oracle.txt | "${pip[@]}" install -q -r /dev/stdin
  touch "$stamp"
else
  say "Python oracle and client: present"
fi
lint_stamp=third_party/venv/.lint-$(sha256sum cmake/requirements-lint.txt | cut -c1-16)
if [ ! -e "$lint_stamp" ]; then
  say "clang-tidy from its wheel"
  "${pip[@]}" install -q --no-deps --require-hashes --only-binary=:all: -r cmake/requirements-lint.txt
  touch "$lint_stamp"
fi
"$venv/bin/python" -c 'import torch; assert torch.__version__.startswith("2.11."), torch.__version__'
say "done"
