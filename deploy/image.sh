#!/usr/bin/env bash
# Builds the operator's image for a release:
#
#   deploy/image.sh python:3.11-slim@sha256:... REGISTRY/tonnage:0.2.0
#
# The base is named by its digest, so that the same sources give the same image.
set -euo pipefail

if [ $# -ne 2 ]; then
  echo "usage: $0 BASE@sha256:DIGEST TAG" >&2
  exit 2
fi
base=$1 tag=$2
if ! [[ $base =~ @sha256:[0-9a-f]{64}$ ]]; then
  echo "$base has no digest; a release stands on one: NAME:TAG@sha256:..." >&2
  exit 2
fi
cd "$(dirname "$0")/.."
if [ -n "$(git status --porcelain)" ]; then
  echo "the tree has changes that are not committed" >&2
  exit 2
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
exec docker build --file deploy/Dockerfile --tag "$tag" \
  --build-arg BASE="$base" \
  --build-arg VERSION="$version" \
  --build-arg REVISION="$(git rev-parse HEAD)" \
  --label org.opencontainers.image.created="$(git log -1 --format=%cI)" .
