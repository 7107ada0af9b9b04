#!/bin/bash
# Installs Annulus: the library, its header, the programs, their pages, the documents and the examples. See usage below.
set -euo pipefail
umask 022

usage() {
  cat <<'HELP'
Usage: bazel run //:install -- [--destdir DIR] PREFIX
       bazel run //:install -- --uninstall [--destdir DIR] PREFIX

Puts Annulus into PREFIX (include, lib, bin, share), over an older one if there is one. Nothing of what is installed
depends on the place: the folder may be moved.

  --destdir DIR  put DIR before all paths, to make a package of the result
  --uninstall    remove what an earlier call has put there, and nothing else
  --help         show this text

A folder of root's, without building as root:  bazel run --run_under=sudo //:install -- /usr/local
HELP
}

die() {
  echo "install: $*" >&2
  exit 1
}

destdir=
prefix=
uninstall=
while [[ $# -gt 0 ]]; do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --uninstall) uninstall=1 ;;
    --destdir)
      [[ $# -gt 1 && -n $2 ]] || die "--destdir needs a folder; see --help"
      destdir=$2
      shift
      ;;
    --destdir=?*) destdir=${1#*=} ;;
    -*) die "unknown option $1; see --help" ;;
    '') die "PREFIX is empty; see --help" ;;
    *)
      [[ -z $prefix ]] || die "one PREFIX, not '$prefix' and '$1'; see --help"
      prefix=$1
      ;;
  esac
  shift
done
[[ -n $prefix ]] || die "PREFIX is missing, such as /usr/local or ~/annulus; see --help"

# `bazel run` starts this in a folder of its own; a relative path means the one that its user is in.
absolute() { if [[ $1 == /* ]]; then echo "$1"; else echo "${BUILD_WORKING_DIRECTORY:-$PWD}/$1"; fi; }
[[ -n $destdir ]] && root="$(absolute "$destdir")/${prefix#/}" || root=$(absolute "$prefix")
[[ $root == / ]] || root=${root%/}

# What was installed, a path to a line; the next call removes what it no longer has itself.
readonly record=share/doc/annulus/installed-files

# Removes what is on standard input, a path below $root to a line, and the folders that this leaves empty.
remove() {
  local path
  while read -r path; do
    # The record is a file of the user's by now: nothing outside the folder, whatever it says.
    [[ -n $path && $path != /* && /$path/ != */../* ]] || die "$root/$record is damaged: '$path'"
    rm -f -- "$root/$path" || die "cannot remove $root/$path"
    (cd "$root" && rmdir -p --ignore-fail-on-non-empty -- "$(dirname "$path")" 2>/dev/null) || true
  done
}

if [[ -n $uninstall ]]; then
  [[ -f $root/$record ]] || die "no Annulus in $root: there is no $root/$record"
  old=$(<"$root/$record")
  { echo "$old"; echo "$record"; } | remove
  echo "Annulus is removed from $root"
  exit 0
fi

# -- The files, first in a folder of our own --------------------------------------------------------------------------

files="${RUNFILES_DIR:-${BASH_SOURCE[0]}.runfiles}/${TEST_WORKSPACE:-annulus}"
[[ -e $files/packaging/version.txt ]] || die "its files are missing; start it by: bazel run //:install -- PREFIX"
version=$(<"$files/packaging/version.txt")
major=${version%%.*}
staged=$(mktemp -d)
trap 'rm -rf "$staged"' EXIT

# put MODE FOLDER SOURCE...
put() {
  local mode=$1 folder=$2
  shift 2
  mkdir -p "$staged/$folder"
  install -m "$mode" -t "$staged/$folder" -- "$@"
}

cd "$files"

put 644 include collectives/annulus.h
put 644 lib packaging/libannulus.a
put 755 lib packaging/bare_library/libannulus.so
mv "$staged/lib/libannulus.so" "$staged/lib/libannulus.so.$version"
ln -s "libannulus.so.$version" "$staged/lib/libannulus.so.$major"
ln -s "libannulus.so.$major" "$staged/lib/libannulus.so"
put 755 lib frameworks/mpi/bare_wrapper/libannulus_mpiwrapper.so
put 644 lib/pkgconfig packaging/annulus.pc packaging/annulus-static.pc
put 644 lib/cmake/annulus packaging/annulusConfig.cmake packaging/annulusConfigVersion.cmake
put 755 bin packaging/bare_launcher/annulus-run packaging/bare_perf/annulus-perf
put 644 share/man/man1 docs/man/annulus-run.1 docs/man/annulus-perf.1
put 644 share/doc/annulus LICENSE README.md
documents=share/doc/annulus/docs
put 644 "$documents" docs/*.md
for folder in benchmarks decisions images; do put 644 "$documents/$folder" docs/"$folder"/*; done
# The examples lie beside the documents here, and what only the workspace has cannot be linked to.
sed -i 's|](docs/examples/)|](examples/)|; s|\[\([^]]*\)\](CONTRIBUTING.md)|\1|' "$staged/share/doc/annulus/README.md"
sed -i 's|\[\([^]]*\)\](\(\.\./\)*tests/[^)]*)|\1|g' "$staged/$documents"/*.md "$staged/$documents"/*/*.md
examples=share/doc/annulus/examples
put 644 "$examples" docs/examples/{CMakeLists.txt,README.md,allreduce.c}
put 644 "$examples/fashion_mnist" docs/examples/fashion_mnist/*.{cc,h}
put 644 "$examples/python" docs/examples/python/logistic_regression.py
# In the workspace a file is named by its path from the root; here all lie side by side.
sed -i 's|^#include "docs/examples/fashion_mnist/|#include "|' "$staged/$examples"/fashion_mnist/*

# -- Into place -------------------------------------------------------------------------------------------------------

new=$(cd "$staged" && find . ! -type d -printf '%P\n' | LC_ALL=C sort)
echo "$new" >"$staged/$record"

# The record comes first and lists the old files too, so that even half an installation can be removed.
old=
[[ ! -f $root/$record ]] || old=$(<"$root/$record")
if ! mkdir -p "$root/$(dirname "$record")" ||
  ! printf '%s\n' "$new" "$old" | sed '/^$/d' | LC_ALL=C sort -u >"$root/$record"; then
  die "cannot write to $root; name a folder of yours, or see --help for root's"
fi

# place PATH: each file appears at once and whole; a program that runs from the old one keeps it.
place() {
  local to="$root/$1"
  if ! mkdir -p "$(dirname "$to")" ||
    ! cp -P --preserve=mode --remove-destination "$staged/$1" "$to.annulus-new" ||
    ! mv -fT "$to.annulus-new" "$to"; then
    rm -f "$to.annulus-new"
    die "cannot write $to"
  fi
}
while read -r path; do place "$path"; done <<<"$new"
place "$record"
LC_ALL=C comm -13 <(echo "$new") <(LC_ALL=C sort <<<"$old") | sed '/^$/d' | remove

echo "Annulus $version is in $root"
[[ -z $destdir ]] || exit 0
echo "  build:  cc program.c \$(PKG_CONFIG_PATH=$root/lib/pkgconfig pkg-config --cflags --libs annulus)"
echo "  run:    LD_LIBRARY_PATH=$root/lib $root/bin/annulus-run -np 2 ./a.out"
