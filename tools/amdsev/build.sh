#!/bin/bash
# Builds OVMF for SEV-SNP guests whose kernel the host hands over (edk2, OvmfPkg/AmdSev), from Debian's source package of edk2 with
# Debian's patches: its binary packages have no firmware with a page for kernel hashes. The sources are locked by their digests, and
# the result is the same bytes each time with the same compiler. Usage: build.sh FILE
set -euo pipefail

version=2025.02-8+deb13u1
declare -A sources=(
  [edk2_${version%-*}.orig.tar.xz]=b63b6053d6d89c74d9291f9e96fde1584be99e6fb9c169ba9511505129d6b049
  [edk2_$version.debian.tar.xz]=e2a7f6fc58640818416a028d6d5e9dfc255697a7cdc60c14566c236df6bd9b08
)

fail() {
  echo "amdsev: $*" >&2
  exit 1
}

[ $# -eq 1 ] || { echo "usage: build.sh FILE" >&2; exit 2; }
out=$(realpath -m "$1")
for program in nasm iasl patch python3 gcc make curl xz; do
  command -v "$program" >/dev/null || fail "$program is missing: apt-get install nasm acpica-tools patch python3 gcc g++ make curl xz-utils uuid-dev"
done
[ -e /usr/include/uuid/uuid.h ] || fail "uuid/uuid.h is missing: apt-get install uuid-dev"
mirror=${MIRROR:-$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | head -n 1)}
[ -n "$mirror" ] || fail "this machine's APT configuration names no Debian archive: set MIRROR"

# Paths get into the result, so it is built at the same one each time: a folder of this program's own, which it alone sees there.
if [ -z "${AMDSEV_WORK:-}" ]; then
  AMDSEV_WORK=$(mktemp -d)
  trap 'rm -rf "$AMDSEV_WORK"' EXIT
  export AMDSEV_WORK
  unshare --user --map-root-user --mount "$0" "$out"
  exit
fi
mount --bind "$AMDSEV_WORK" /mnt
cd /mnt
for name in "${!sources[@]}"; do
  echo "fetch $name"
  curl -fsSLO "$mirror/pool/main/e/edk2/$name" || fail "$mirror has no $name: name another archive with MIRROR"
  echo "${sources[$name]}  $name" | sha256sum -c --quiet || fail "$name is not what is locked"
done
mkdir edk2 packaging
tar -xJf edk2_${version%-*}.orig.tar.xz -C edk2 --strip-components 1
tar -xJf "edk2_$version.debian.tar.xz" -C packaging
cd edk2
while read -r name; do
  case $name in '' | '#'*) continue ;; esac
  patch -p1 -s <"../packaging/debian/patches/$name"
done <../packaging/debian/patches/series
# GRUB would be what starts from an encrypted disk. A kernel that the host hands over starts without it, so there is none.
touch OvmfPkg/AmdSev/Grub/grub.efi
export SOURCE_DATE_EPOCH=1735689600 PYTHON_COMMAND=python3 WORKSPACE=$PWD EDK_TOOLS_PATH=$PWD/BaseTools
echo "build the tools"
make -C BaseTools -j"$(nproc)" >../tools.log 2>&1 || { tail -n 20 ../tools.log >&2; fail "the tools were not built"; }
echo "build the firmware (2 minutes on 2 processors)"
set +eu
set --
. ./edksetup.sh >/dev/null
set -eu
build -n "$(nproc)" -a X64 -t GCC -b RELEASE -p OvmfPkg/AmdSev/AmdSevX64.dsc >../build.log 2>&1 || { tail -n 20 ../build.log >&2; fail "the firmware was not built"; }
mkdir -p "$(dirname "$out")"
cp Build/AmdSev/RELEASE_GCC/FV/OVMF.fd "$out.new"
mv "$out.new" "$out"
sha256sum "$out"
