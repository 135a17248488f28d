#!/usr/bin/env bash
# Builds Horovod with Gloo for the TensorFlow that is installed, and installs it.
#
#     scripts/install_horovod.sh             # into the active environment
#     PYTHON=path/to/python scripts/install_horovod.sh
#
# As published, Horovod 0.28.1 does not build against TensorFlow 2.21: its file
# horovod/tensorflow/xla_mpi_ops.cc wants headers that are gone. It holds an
# experimental way to run collectives inside XLA; it is left out, nothing else is
# changed. About 4 minutes on 2 cores. Needs a C++17 compiler, make and CMake 3.13.
# With GPUs: HOROVOD_GPU_OPERATIONS=NCCL scripts/install_horovod.sh (not tried).
set -euo pipefail

python=${PYTHON:-python3}
version=0.28.1

fail() {
    echo "error: $1" >&2
    exit 2
}

for tool in "$python" cmake make c++; do
    command -v "$tool" >/dev/null || fail "there is no $tool: install it (Debian, Ubuntu: \
apt-get install build-essential cmake) and start again."
done
"$python" -c 'import tensorflow' 2>/dev/null ||
    fail "$python has no TensorFlow: activate the environment in which tfaccel is installed, \
or set PYTHON."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m pip install --quiet cloudpickle packaging psutil pyyaml setuptools wheel
"$python" -m pip download --quiet --no-deps --no-build-isolation --no-binary=:all: \
    --dest "$folder" "horovod==$version"
tar -xf "$folder/horovod-$version.tar.gz" -C "$folder"
sed -i.published '/xla_mpi_ops\.cc/d' \
    "$folder/horovod-$version/horovod/tensorflow/CMakeLists.txt"

export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1
export HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=${HOROVOD_WITHOUT_MPI:-1}
export MAKEFLAGS=${MAKEFLAGS:--j$(nproc)}
# CMake 4 refuses the old minimum that Gloo's files state, unless told so.
export CMAKE_POLICY_VERSION_MINIMUM=3.5
echo "building Horovod $version: this takes minutes"
"$python" -m pip install --no-deps --no-build-isolation --no-cache-dir \
    "$folder/horovod-$version" >"$folder/log" 2>&1 || {
    tail -n 60 "$folder/log" >&2
    fail "the build failed, see above."
}
"$python" -c '
import horovod.tensorflow as hvd
assert hvd.gloo_built(), "Horovod was built without Gloo"
print("installed: Horovod", __import__("horovod").__version__, "with Gloo")'
