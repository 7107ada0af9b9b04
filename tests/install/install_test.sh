#!/bin/bash
# Installs Annulus into an empty folder and uses it from there as a stranger would: with pkg-config and with CMake, from
# C and C++, shared and as an archive.
set -euo pipefail

here="$TEST_SRCDIR/$TEST_WORKSPACE"
install="$here/packaging/install"
sources="$here/tests/install"
work="$TEST_TMPDIR/install_test"
mkdir -p "$work"
cd "$work"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# quietly COMMAND...: its output is shown only when it fails.
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "$*"; }; }

# must_fail TEXT COMMAND...: the command fails, and TEXT is in what it says.
must_fail() {
  local text=$1
  shift
  if "$@" >"$work/log" 2>&1; then fail "succeeded: $*"; fi
  grep -qF -- "$text" "$work/log" || { cat "$work/log" >&2; fail "'$text' is missing from what was said by: $*"; }
}

# sums PROGRAM: two ranks of it print the right sum.
sums() {
  local out
  out=$("$prefix/bin/annulus-run" --no-prefix -np 2 "$@") || fail "$1 exits with status $?"
  [[ $out == $'2 ranks: 3\n2 ranks: 3' ]] || fail "$1 prints: $out"
}

# The same over TCP, encrypted: every build can do that.
sums_encrypted() { ANNULUS_TRANSPORT=tcp ANNULUS_ENCRYPT=required sums "$@"; }

needs() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

# Installed in one place and moved to another: nothing that follows may depend on where it was.
quietly "$install" "$work/elsewhere"
mv "$work/elsewhere" "$work/prefix"
prefix="$work/prefix"
export PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
version=$(sed -nE 's/^#define ANNULUS_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' "$prefix/include/annulus.h" | paste -sd.)
[[ $version =~ ^([0-9]+)\.([0-9]+)\.([0-9]+)$ ]] || fail "annulus.h has the version '$version'"
major=${BASH_REMATCH[1]} minor=${BASH_REMATCH[2]}

everything_is_there() {
  local path folder
  for path in include/annulus.h lib/libannulus.a share/doc/annulus/LICENSE share/man/man1/annulus-{run,perf}.1 \
    share/doc/annulus/examples/{CMakeLists.txt,allreduce.c,fashion_mnist/main.cc,python/logistic_regression.py}; do
    [[ -f $prefix/$path && $(stat -c %a "$prefix/$path") == 644 ]] || fail "no $path, or its mode is not 644"
  done
  for path in bin/annulus-run bin/annulus-perf "lib/libannulus.so.$version" lib/libannulus_mpiwrapper.so; do
    [[ -f $prefix/$path && $(stat -c %a "$prefix/$path") == 755 ]] || fail "no $path, or its mode is not 755"
  done
  folder=$(find "$prefix" -type d ! -perm 755)
  [[ -z $folder ]] || fail "the mode is not 755 of $folder"
  [[ $(readlink "$prefix/lib/libannulus.so") == "libannulus.so.$major" ]] || fail "libannulus.so is no link to its soname"
  [[ $(readlink "$prefix/lib/libannulus.so.$major") == "libannulus.so.$version" ]] || fail "the soname is no link"
  readelf -d "$prefix/lib/libannulus.so" | grep -F "soname: [libannulus.so.$major]" >/dev/null || fail "the soname is another one"
  diff <(cd "$prefix" && find . ! -type d ! -name installed-files -printf '%P\n' | sort) <(sort "$prefix/share/doc/annulus/installed-files") ||
    fail "installed-files (>) differs from what is there (<)"
}

documents_are_there_and_their_links_lead_somewhere() {
  local file target path
  for path in README.md docs/{tuning,failures,launchers}.md docs/decisions/0020-installed-files.md docs/benchmarks/README.md; do
    [[ -f $prefix/share/doc/annulus/$path && $(stat -c %a "$prefix/share/doc/annulus/$path") == 644 ]] ||
      fail "no share/doc/annulus/$path, or its mode is not 644"
  done
  while read -r file; do
    while read -r target; do
      path=${target%%#*}
      [[ $target =~ ^[a-z]+: || -z $path || -e $(dirname "$file")/$path ]] || fail "$file: the link $target leads nowhere"
    done < <(grep -oE '\]\([^) ]+' "$file" | cut -c3-)
  done < <(find "$prefix/share/doc/annulus" -name '*.md')
}

only_our_names_are_seen() {
  local others
  # In small letters are what only the loader sees (thread-local data); u, v and w are kinds that all see.
  others=$(nm -D --defined-only "$prefix/lib/libannulus.so" | awk '$2 ~ /[A-Zuvw]/ { print $3 }' |
    grep -vE '^(annulus_[a-z0-9_]+@@)?ANNULUS_[0-9.]+$' || true)
  [[ -z $others ]] || fail "libannulus.so exports: $others"
  nm -D --defined-only "$prefix/lib/libannulus.so" | awk '$2 == "T" { print $3 }' | sed 's/@.*//' | sort >"$work/shared"
  nm -g --defined-only "$prefix/lib/libannulus.a" | awk 'NF == 3 { print $3 }' | sort >"$work/archive"
  [[ -s $work/shared ]] || fail "libannulus.so exports nothing"
  diff "$work/shared" "$work/archive" || fail "the library (<) and the archive (>) show different names"
}

the_door_for_mpi_stands_beside() {
  local file="$prefix/lib/libannulus_mpiwrapper.so" others
  ldd "$file" | grep -F "libannulus.so.$major => $prefix/lib/libannulus.so.$major" >/dev/null || fail "$file does not find the library beside it: $(ldd "$file")"
  others=$(nm -D --defined-only "$file" | awk '{ print $3 }' | grep -vE '^(MPIX?ABI_|mpiabi_|mpiwrapper_|annulus_mpi_set_meeting$)' || true)
  [[ -z $others ]] || fail "$file exports: $others"
}

nothing_tells_where_it_was_built() {
  local file found
  for file in "$prefix"/bin/* "$prefix"/lib/libannulus{.so,.a,_mpiwrapper.so}; do
    found=$(strings -a "$file" | grep -E 'bazel-out|execroot|sandbox|/home/|/tmp/' | head -n 3 || true)
    [[ -z $found ]] || fail "$file holds: $found"
  done
  for file in "$prefix"/bin/* "$prefix/lib/libannulus.so"; do
    if readelf -d "$file" | grep -E 'RPATH|RUNPATH'; then fail "$file looks for libraries in a fixed place"; fi
  done
}

pkg_config_serves_c99() {
  local strict=(cc -std=c99 -pedantic -Wall -Wextra -Werror)
  [[ $(pkg-config --modversion annulus) == "$version" ]] || fail "pkg-config knows another version"
  read -ra flags <<<"$(pkg-config --cflags --libs annulus)"
  quietly "${strict[@]}" "$sources/app.c" "${flags[@]}" -o app
  needs app | grep -x "libannulus.so.$major" >/dev/null || fail "app is not linked with the shared library"
  LD_LIBRARY_PATH="$prefix/lib" sums "$work/app"
  LD_LIBRARY_PATH="$prefix/lib" sums_encrypted "$work/app"

  read -ra flags <<<"$(pkg-config --cflags --libs annulus-static)"
  quietly "${strict[@]}" "$sources/app.c" "${flags[@]}" -o app_archive
  if needs app_archive | grep libannulus; then fail "app_archive needs the shared library"; fi
  sums "$work/app_archive"

  # The usual way to a static library: by --static, where there is no shared one.
  cp -a "$prefix" "$work/archive_only"
  rm "$work"/archive_only/lib/libannulus.so*
  read -ra flags <<<"$(PKG_CONFIG_PATH="$work/archive_only/lib/pkgconfig" pkg-config --cflags --libs --static annulus)"
  quietly "${strict[@]}" "$sources/app.c" "${flags[@]}" -o app_static
  sums "$work/app_static"
  sums_encrypted "$work/app_static"
}

the_archive_goes_into_a_shared_library() {
  read -ra flags <<<"$(pkg-config --cflags --libs annulus-static)"
  quietly cc -shared -fPIC -Wl,--no-undefined -Wl,-z,text "$sources/app.c" "${flags[@]}" -o libapp.so
}

cmake_serves_c_and_cpp() {
  local program
  quietly cmake -S "$sources/project" -B project "-DSOURCES=$sources" "-DCMAKE_PREFIX_PATH=$prefix"
  quietly cmake --build project
  for program in app_c app_c_static app_cc app_cc_static; do sums "$work/project/$program"; done
  needs project/app_cc | grep -x "libannulus.so.$major" >/dev/null || fail "app_cc is not linked with the shared library"
  if needs project/app_cc_static | grep libannulus; then fail "app_cc_static needs the shared library"; fi
}

cmake_tells_versions_apart() {
  local fits="$major.$minor;$version;$major.$minor...9999;0.0...$version" differs="9999;$major.$((minor + 1));0.0...<$version"
  [[ $major -gt 0 || $minor -eq 0 ]] || differs+=";0.0"
  quietly cmake -S "$sources/versions" -B versions "-DFITS=$fits" "-DDIFFERS=$differs" "-DCMAKE_PREFIX_PATH=$prefix"
}

examples_build_and_run() {
  quietly cmake -S "$prefix/share/doc/annulus/examples" -B examples -DCMAKE_BUILD_TYPE=None "-DCMAKE_PREFIX_PATH=$prefix"
  quietly cmake --build examples --parallel 2
  quietly "$prefix/bin/annulus-run" -np 2 examples/allreduce_example
  quietly examples/train --help
}

programs_run() {
  [[ $("$prefix/bin/annulus-run" --version) == "annulus-run $version" ]] || fail "annulus-run is of another version"
  quietly "$prefix/bin/annulus-run" -np 2 "$prefix/bin/annulus-perf" -e 1K -n 5 --limit 0
}

a_new_version_replaces_the_old_one() {
  # An older version that had one file more, and a file that is not Annulus's.
  touch "$prefix/lib/libannulus.so.0.0.1" "$prefix/lib/mine"
  echo lib/libannulus.so.0.0.1 >>"$prefix/share/doc/annulus/installed-files"
  echo damaged >"$prefix/include/annulus.h"
  quietly "$install" "$prefix"
  cmp "$prefix/include/annulus.h" "$here/collectives/annulus.h" || fail "an old file was left"
  [[ ! -e $prefix/lib/libannulus.so.0.0.1 ]] || fail "the old version's file is still there"
  [[ -e $prefix/lib/mine ]] || fail "a file that is not Annulus's was removed"
  rm "$prefix/lib/mine"
  everything_is_there
}

stages_below_another_root() {
  quietly "$install" --destdir "$work/stage" /usr
  diff -r "$work/stage/usr" "$prefix" || fail "staged files differ from installed ones"
}

uninstalls_its_own_files_only() {
  touch "$work/stage/usr/lib/mine"
  quietly "$install" --uninstall --destdir="$work/stage" /usr
  [[ $(cd "$work/stage/usr" && find . ! -type d) == ./lib/mine ]] || fail "left: $(find "$work/stage")"
  [[ $(cd "$work/stage/usr" && find . -mindepth 1 -type d) == ./lib ]] || fail "folders are left: $(find "$work/stage")"
  must_fail "no Annulus in $work/stage/usr" "$install" --uninstall --destdir "$work/stage" /usr
  mkdir -p "$work/damaged/share/doc/annulus"
  echo ../stage/usr/lib/mine >"$work/damaged/share/doc/annulus/installed-files"
  must_fail "is damaged: '../stage/usr/lib/mine'" "$install" --uninstall "$work/damaged"
  [[ -e $work/stage/usr/lib/mine ]] || fail "a file outside the folder was removed"
}

mistakes_are_named() {
  must_fail "cannot write to /proc/annulus" "$install" /proc/annulus
  must_fail "cannot write to $prefix/include/annulus.h/under" "$install" "$prefix/include/annulus.h/under"
  must_fail "PREFIX is missing" "$install"
  must_fail "PREFIX is empty" "$install" ""
  must_fail "unknown option --prefix" "$install" --prefix "$work/x"
  must_fail "one PREFIX" "$install" "$work/x" "$work/y"
  must_fail "--destdir needs a folder" "$install" --destdir
  # A relative path is one of the user's folder, which `bazel run` hands on.
  mkdir -p "$work/users"
  BUILD_WORKING_DIRECTORY="$work/users" quietly "$install" mine
  [[ -f $work/users/mine/include/annulus.h ]] || fail "a relative PREFIX is not in the user's folder"
}

for check in everything_is_there documents_are_there_and_their_links_lead_somewhere only_our_names_are_seen the_door_for_mpi_stands_beside \
  nothing_tells_where_it_was_built pkg_config_serves_c99 the_archive_goes_into_a_shared_library cmake_serves_c_and_cpp cmake_tells_versions_apart examples_build_and_run \
  programs_run a_new_version_replaces_the_old_one stages_below_another_root uninstalls_its_own_files_only \
  mistakes_are_named; do
  begin=$SECONDS
  "$check"
  echo "$check: passed, $((SECONDS - begin)) s"
done
