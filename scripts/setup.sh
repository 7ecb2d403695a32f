# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by the other scripts, from the root of the repository.
#   need_packages NAME...  installs the Debian packages that are missing; asks nothing
#   need_venv              makes build/venv with scripts/requirements.txt
#   build_packages         what a build with all tests needs
#   clang_packages         what one with the sanitizers of clang needs, too. Without llvm's llvm-symbolizer their reports
#                          name neither functions nor lines

if [[ $PWD == *[[:space:]]* ]]; then
  echo "the path of this folder has a space, which what pkg-config and cgo say cannot have: $PWD" >&2
  exit 1
fi

build_packages=(g++ cmake ninja-build git binutils pkg-config python3 python3-dev python3-venv libgtest-dev
  libgmock-dev libbenchmark-dev libcli11-dev nlohmann-json3-dev libxxhash-dev libssl-dev
  libhiredis-dev liburing-dev openssl)
# shellcheck disable=SC2034 # of those that source this
clang_packages=(clang-14 libclang-rt-14-dev libomp-14-dev llvm)

# pip's own five tries are over after eight seconds.
export PIP_RETRIES=${PIP_RETRIES:-8}

# Jobs of a build: all cores, but a compiler may take 1.5 GB.
jobs=$(awk -v cores="$(nproc)" '/MemAvailable/ { n = int($2 / 1500000); if (n < 1) n = 1
  print n < cores ? n : cores }' /proc/meminfo)
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$jobs}
export CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-$(nproc)}

need_packages() {
  local name missing=()
  if ! command -v dpkg-query >/dev/null; then
    echo "no dpkg here; this needs what Debian calls: $*" >&2
    return 0
  fi
  for name in "$@"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed ||
      missing+=("$name")
  done
  [[ ${#missing[@]} -eq 0 ]] && return 0
  local sudo=()
  [[ $(id -u) -eq 0 ]] || sudo=(sudo)
  echo "installing: ${missing[*]}" >&2
  # A fresh machine may be updating itself, and a mirror be busy. The lock of the lists is not waited for.
  local tries=0 apt=(apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=5)
  until "${sudo[@]}" "${apt[@]}" update >&2; do
    ((++tries < 6)) || return 1
    sleep 10
  done
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >&2 </dev/null
}

need_venv() {
  cmp -s scripts/requirements.txt build/venv/requirements.txt && return 0
  rm -rf build/venv
  mkdir -p build
  python3 -m venv build/venv
  build/venv/bin/python -m pip -q --disable-pip-version-check install \
    -r scripts/requirements.txt >&2
  cp scripts/requirements.txt build/venv/requirements.txt
}

# configure PRESET [cmake options]
configure() {
  local log=build/$1.configure.log times
  for times in first second; do
    cmake --preset "$@" >"$log" 2>&1 || {
      cat "$log" >&2
      return 1
    }
    # In a folder that had another compiler it began anew, and forgot what else the preset says.
    grep -q "require your cache to be deleted" "$log" || break
    [[ $times == first ]] || return 1
  done
  grep -A 3 "CMake Warning" "$log" >&2 || true
}

# build PRESET [TARGET...]: configures and builds it, all of it or these targets. Two that run at once take turns: cmake
# and ninja would write the same files.
build() {
  (
    flock 9
    echo "== $1: configure and build" >&2
    configure "$1" && cmake --build --preset "$1" ${2:+--target "${@:2}"}
  ) 9>"build/$1.lock"
}

# fresh PRESET TEST [NAME=VALUE...] [ARGUMENT...]: builds this program of tests, and runs it. What an earlier build left
# there would say nothing of the sources as they are.
fresh() {
  build "$1" "$2" || return 1
  local program=build/$1/tests/$2 settings=()
  shift 2
  while [[ ${1:-} =~ ^[A-Z_]+= ]]; do
    settings+=("$1")
    shift
  done
  env "${settings[@]}" "$program" "$@"
}

# run_tests PRESET [ctest options]: the counts go to build/PRESET/junit.xml, read by scripts/totals.
run_tests() {
  local preset=$1
  shift
  echo "== $preset: tests" >&2
  rm -rf "build/$preset/junit.xml" "build/$preset/pytest"
  ctest --preset "$preset" --output-junit junit.xml "$@"
}
