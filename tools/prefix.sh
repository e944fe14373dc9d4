# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Debian packages in a folder of an ordinary user, for machines where nobody installs them. tools/quickstart and
# tools/test source this file after packages.sh. Needs apt-get, dpkg-deb and a network; neither root nor namespaces.

# use_prefix DIR [PACKAGE...]: unpacks those of the packages into DIR that the system lacks, with what they depend on,
# and sets the environment of a build against them. A second start only sets the environment.
use_prefix() {
  local dir=$1 filled=0
  shift
  # Paths of the folder end up in lists that are split at blanks and colons.
  [[ $dir =~ ^[A-Za-z0-9/._+-]+$ ]] || { echo "error: --prefix '$dir' may have letters, digits and /._+- only" >&2; return 1; }
  mkdir -p "$dir" || return
  dir=$(cd "$dir" && pwd -P) || return
  if [ -e "$dir/made-for" ] && [ "$(cat "$dir/made-for")" != "$dir" ]; then
    echo "error: $dir was $(cat "$dir/made-for") when it was filled, and its files name that path: move it back or use a new folder" >&2
    return 1
  fi
  (flock 8 && fill_prefix "$dir" "$@") 8>"$dir/lock" || filled=$?
  [ "$filled" = 0 ] || return "$filled"
  # shellcheck source=/dev/null
  . "$dir/environment.sh"
}

# Prints those of the given packages that are neither installed nor in the folder $1.
missing_in_prefix() {
  local dir=$1 package
  shift
  missing_packages "$@" | while read -r package; do grep -qsxF "$package" "$dir/packages" || printf '%s\n' "$package"; done
}

fill_prefix() {
  local dir=$1 missing
  shift
  if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "error: --prefix unpacks Debian packages and found no apt-get; jobs/README.md says how to build with other packages" >&2
    return 1
  fi
  missing=$(missing_in_prefix "$dir" "$@")
  if [ -z "$missing" ]; then
    echo "packages all $# installed or in $dir"
  else
    # shellcheck disable=SC2086  # names of packages
    unpack_packages "$dir" $missing || return
  fi
  [ -e "$dir/environment.sh" ] || write_environment "$dir"
}

# apt of an ordinary user: own lists, cache and state, no lock of the system.
user_apt() {
  local dir=$1
  shift
  mkdir -p "$dir/apt/state/lists/partial" "$dir/apt/cache/archives/partial"
  LC_ALL=C apt-get -o Dir::State="$dir/apt/state" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$dir/apt/cache" \
    -o Debug::NoLocking=true -o APT::Sandbox::User=root "$@"
}

# Some packages find each other's files from where they are themselves. If one of them is missing, all go to the folder.
inseparable() {
  local missing=" $* " patterns=()
  case $missing in *" openmpi-bin "* | *" libopenmpi-dev "*) patterns+=('openmpi-*' 'libopenmpi*') ;; esac
  case $missing in *" g++ "*) patterns+=('g++-[0-9]*' 'gcc-[0-9]*' 'cpp-[0-9]*' 'libgcc-*-dev' 'libstdc++-*-dev') ;; esac
  [ ${#patterns[@]} = 0 ] ||
    dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${patterns[@]}" 2>/dev/null | sed -n '/-base$/d; s/^installed //p'
}

unpack_packages() {
  local dir=$1 simulated wanted package deb done=0 begin=$SECONDS
  shift
  echo "packages unpacking $# and what they need into $dir: $*"
  if ! user_apt "$dir" update -qq; then
    echo "error: apt-get update failed: is there a network, and is /etc/apt/sources.list right?" >&2
    return 1
  fi
  if ! simulated=$(user_apt "$dir" install --simulate --no-install-recommends "$@" 2>&1); then
    printf '%s\n' "$simulated" >&2
    echo "error: apt finds no way to install $* (message above)" >&2
    return 1
  fi
  # A newer C library would need its own loader, so the system's stays.
  wanted=$({ sed -n 's/^Inst \([^ ]*\) .*/\1/p' <<< "$simulated" | grep -vxE 'libc6|libc-bin|locales'; inseparable "$@"; } | sort -u)
  rm -rf "$dir/apt/debs"
  mkdir -p "$dir/apt/debs"
  for package in $wanted; do grep -qsxF "$package" "$dir/packages" || printf '%s\n' "$package"; done >"$dir/apt/wanted"
  # shellcheck disable=SC2046  # names of packages
  if ! (cd "$dir/apt/debs" && user_apt "$dir" download -qq $(cat "$dir/apt/wanted") >/dev/null); then
    echo "error: apt-get download failed (its message is above)" >&2
    return 1
  fi
  for deb in "$dir"/apt/debs/*.deb; do
    dpkg-deb --extract "$deb" "$dir" || { echo "error: $deb could not be unpacked into $dir (a full disk?)" >&2; return 1; }
    done=$((done + 1))
  done
  rm -rf "$dir/apt" "$dir/usr/share/doc" "$dir/usr/share/man" "$dir/usr/share/locale" "$dir/environment.sh"
  mend_links "$dir" || return
  mend_texts "$dir" || return
  link_alternatives "$dir" || return
  # Recorded last: a start that was interrupted begins again.
  printf '%s\n' "$dir" >"$dir/made-for"
  touch "$dir/packages"
  { printf '%s\n' "$@" "$wanted"; cat "$dir/packages"; } | sort -u >"$dir/packages.new"
  mv "$dir/packages.new" "$dir/packages"
  echo "packages unpacked $done in $((SECONDS - begin)) s, $(du -sm "$dir" | cut -f1) MiB"
}

# Links of a package lead to files of the folder, or to files of a package that is installed.
mend_links() {
  local dir=$1 link folder target
  find "$dir" -type l -lname '/*' -printf '%p\t%l\n' | while IFS=$'\t' read -r link target; do
    case $target in "$dir"/*) continue ;; esac
    if [ -e "$dir$target" ] || [ -L "$dir$target" ]; then ln -sfn "$dir$target" "$link"; fi
  done
  find "$dir" -xtype l -printf '%p\t%h\t%l\n' | while IFS=$'\t' read -r link folder target; do
    target=$(cd "$folder" && realpath -ms "$target")
    target=${target#"$dir"}
    # /lib and /usr/lib are one folder in the system, and two here.
    for target in "$target" "$dir/usr$target" "$dir${target#/usr}"; do
      if [ -e "$target" ]; then ln -sfn "$target" "$link"; break; fi
    done
  done
}

# Files for compilers name files by absolute paths, which are here if the system lacks them. CMake's own lines about
# _realOrig ask if a file is still where it was installed.
mend_texts() {
  local dir=$1 file path before='[^A-Za-z0-9_}.+-]'
  find "$dir/usr" -name '*.pc' -type f -exec sed -i "s#=/usr#=$dir/usr#" {} +
  find "$dir/usr" \( -name '*.cmake' -o -name '*.so' -size -4k \) -type f -exec grep -lIE "(^|$before)/(usr|lib)/" {} + |
    while read -r file; do
      grep -oE "(^|$before)/(usr|lib)/[A-Za-z0-9_/.+-]+" "$file" | sed 's|^[^/]*||' | sort -u | while read -r path; do
        if [ ! -e "$path" ] && [ -e "$dir$path" ]; then sed -i -E "/_realOrig/!s#(^|$before)$path#\1$dir$path#g" "$file"; fi
      done
    done
}

# Links that Debian's packages make when they are configured.
link_alternatives() {
  local dir=$1 name
  mkdir -p "$dir/bin"
  for name in mpirun mpiexec mpicc h5pcc; do
    [ ! -e "$dir/usr/bin/$name.openmpi" ] || ln -sfn "../usr/bin/$name.openmpi" "$dir/bin/$name"
  done
  [ ! -e "$dir/usr/bin/mpic++.openmpi" ] || ln -sfn ../usr/bin/mpic++.openmpi "$dir/bin/mpicxx"
  # Debian's matplotlib looks beside itself first, and then at its place in the system.
  name=usr/lib/python3/dist-packages/matplotlib
  if [ -d "$dir/$name" ] && [ -d "$dir/usr/share/matplotlib/mpl-data" ]; then
    ln -sfn "$dir/usr/share/matplotlib/mpl-data" "$dir/$name/mpl-data"
  fi
}

# Writes the environment in which the folder's programs and libraries are found. Users who call mpirun or tools
# themselves read it as well:   . DIR/environment.sh
write_environment() {
  local dir=$1 triplet lib
  triplet=$(cd "$dir/usr/lib" 2>/dev/null && find . -maxdepth 1 -name '*-linux-gnu*' -printf '%f\n' | head -n 1)
  [ -n "$triplet" ] || triplet=$(uname -m)-linux-gnu
  lib=$dir/usr/lib/$triplet
  cat >"$dir/environment.sh" <<END
# Made by tools/quickstart --prefix. For a shell that uses what is unpacked here:   . $dir/environment.sh
export TRAINER_PREFIX=$dir
export PATH=$dir/bin:$dir/usr/bin:\$PATH
export LD_LIBRARY_PATH=$lib:$dir/lib/$triplet:$lib/blas:$lib/lapack\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
export PYTHONPATH=$dir/usr/lib/python3/dist-packages\${PYTHONPATH:+:\$PYTHONPATH}
export CMAKE_PREFIX_PATH=$dir/usr\${CMAKE_PREFIX_PATH:+:\$CMAKE_PREFIX_PATH}
export PKG_CONFIG_PATH=$lib/pkgconfig:$dir/usr/share/pkgconfig:$dir/usr/lib/pkgconfig\${PKG_CONFIG_PATH:+:\$PKG_CONFIG_PATH}
# After the system's headers, because headers of C++ continue with those of C. -B finds the start files of programs.
export CXXFLAGS="-idirafter $dir/usr/include/$triplet -idirafter $dir/usr/include -B$lib/\${CXXFLAGS:+ \$CXXFLAGS}"
# Libraries of libraries are found as well, which the newer kind of run path does not do.
export LDFLAGS="-L$lib -L$dir/lib/$triplet -Wl,--disable-new-dtags,-rpath,$lib,-rpath,$dir/lib/$triplet\${LDFLAGS:+ \$LDFLAGS}"
END
  [ ! -e "$dir/etc/matplotlibrc" ] || echo "export MATPLOTLIBRC=$dir/etc/matplotlibrc" >>"$dir/environment.sh"
  [ ! -e "$dir/usr/bin/g++" ] || echo "export CXX=$dir/usr/bin/g++" >>"$dir/environment.sh"
  [ -e "$dir/bin/mpirun" ] || return 0
  cat >>"$dir/environment.sh" <<END
export OPAL_PREFIX=$dir/usr OPAL_SYSCONFDIR=$dir/etc/openmpi PMIX_INSTALL_PREFIX=$lib/pmix2 PMIX_PREFIX=$lib/pmix2
export PRTE_PREFIX=$dir/usr HWLOC_PLUGINS_PATH=$lib/hwloc UCX_MODULE_DIR=$lib/ucx
END
}

# Prints the Python of Debian's packages: the system's, or the folder's where the system has none.
debian_python() {
  if [ -x /usr/bin/python3 ]; then echo /usr/bin/python3; else echo "${TRAINER_PREFIX:-}/usr/bin/python3"; fi
}
