# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What mmdebstrap needs to make a root of another Debian with this machine's apt. Scripts source this file.

# debian_sources SYSTEM: prints this machine's Debian sources, one a line, for the wanted Debian; nothing if it has none.
debian_sources() {
  local here
  here=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  [ -n "$here" ] && command -v apt-get >/dev/null || return 0
  apt-get indextargets --format "deb \$(REPO_URI) \$(RELEASE) \$(COMPONENT)" 'Created-By: Packages' 2>/dev/null |
    sed -n -E "/ $here(-updates|-security)? main\$/s/ $here(-|[ ])/ $1\1/p" | sort -u
}

# Prints this machine's settings of apt that decide about the way to the sources.
apt_settings() {
  command -v apt-config >/dev/null || return 0
  apt-config dump | grep -E '^Acquire::((http|https|ftp)::(Proxy|Verify)|Check-|Retries)' || true
}
