#!/bin/sh
# Build the images fedrfq-server and fedrfq-client on a base made from Debian packages:
#   sh deploy/images.sh [FOLDER]          # FOLDER is for what lies between: build/images by default
# This needs buildah and mmdebstrap, and a Python of the base's version (3.11) with pip. No image registry
# is asked, and pip's index only for wheels, before the build. So that clients get PyTorch for CPUs, set
# PIP_EXTRA_INDEX_URL to the index of these builds, as PyTorch's installation page names it.
set -eu
work=$(mkdir -p "${1:-build/images}" && cd "${1:-build/images}" && pwd)
cd "$(dirname "$0")/.."
release=bookworm
export BUILDAH_ISOLATION="${BUILDAH_ISOLATION:-chroot}"

if ! [ -f "$work/base.tar" ]; then
    mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,ca-certificates "$release" "$work/base.tmp.tar"
    mv "$work/base.tmp.tar" "$work/base.tar"
fi
printf 'FROM scratch\nADD base.tar /\n' > "$work/Containerfile"
buildah build -q -t fedrfq-base -f "$work/Containerfile" "$work"

"${PYTHON:-python3}" -m pip wheel -qq --wheel-dir "$work/wheels" -c constraints.txt hatchling '.[train]'
for party in server client; do
    buildah build -q --format docker -f deploy/Containerfile --target "$party" -t "fedrfq-$party" \
        --build-arg BASE=localhost/fedrfq-base --build-arg PIP_NO_INDEX=1 \
        --build-arg PIP_FIND_LINKS=/wheels -v "$work/wheels:/wheels:ro" .
done
buildah images
