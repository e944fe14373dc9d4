// SPDX-License-Identifier: Apache-2.0
#include "data/sources/staging.hpp"

#include <atomic>
#include <cctype>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <thread>

#include "base/cancel.hpp"
#include "base/hash.hpp"
#include "base/span.hpp"
#include "base/thread_scope.hpp"
#include "data/sources/file.hpp"
#include "data/sources/source.hpp"
#include "io/files.hpp"

namespace data {
namespace {

using base::Exit;

bool is_same(const std::string& copy, const File& original) {
  if (!io::exists(copy)) return false;
  File file(copy);
  // Another file of equal size and time may have taken the original's place since.
  return file.size() == original.size() && file.modified_ns() == original.modified_ns() &&
         file.changed_ns() >= original.changed_ns();
}

std::string gib(int64_t bytes) { return fmt::format("{:.2f} GiB", double(bytes) / 0x1p30); }

}  // namespace

std::string expand_variables(const std::string& text) {
  auto is_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '$') {
      out += text[at++];
      continue;
    }
    bool braced = at + 1 < text.size() && text[at + 1] == '{';
    size_t begin = at + 1 + braced, end = begin;
    while (end < text.size() && is_name(text[end])) ++end;
    std::string name = text.substr(begin, end - begin);
    if (name.empty() || (braced && (end == text.size() || text[end] != '}')))
      base::fail(Exit::config, "\"{}\": a variable is written $NAME or ${{NAME}}", text);
    const char* value = std::getenv(name.c_str());
    if (!value || !*value)
      base::fail(Exit::config, "\"{}\": the environment variable {} is not set here", text, name);
    out += value;
    at = end + braced;
  }
  return out;
}

std::string staged_path(const std::string& directory, const std::string& original) {
  std::string absolute = std::filesystem::absolute(original).lexically_normal().string();
  return fmt::format("{}/{:016x}-{}", directory, base::xxh3(absolute),
                     std::filesystem::path(absolute).filename().string());
}

std::string OpenContext::local(const std::string& path) const {
  return stage_dir.empty() ? path : staged_path(stage_dir, path);
}

Staged stage_files(const std::vector<std::string>& originals, const std::string& directory,
                   int threads, const std::stop_token& token) try {
  io::make_directories(directory);
  Staged result;
  std::vector<std::string> missing;
  for (const std::string& path : originals) {
    base::end_if_asked(token);
    if (!io::exists(path) || io::is_directory(path)) continue;
    File original(path);
    ++result.files;
    result.bytes += original.size();
    if (is_same(staged_path(directory, path), original)) continue;
    missing.push_back(path);
    ++result.copied_files;
    result.copied_bytes += original.size();
  }
  if (int64_t room = io::free_bytes(directory); result.copied_bytes > room)
    base::fail(
        Exit::data,
        "{} has {} free, but {} in {} files are still to be copied there ({} in all): make room, "
        "set loader.stage_dir to a larger place, or leave that key empty to read in place",
        directory, gib(room), gib(result.copied_bytes), result.copied_files, gib(result.bytes));

  std::atomic<size_t> next{0};
  std::vector<std::exception_ptr> errors(missing.size());
  auto work = [&] {
    for (size_t i; (i = next++) < missing.size();) {
      try {
        base::Span span("stage a file", int64_t(i), base::SpanKind::load);
        io::copy_file_atomically(missing[i], staged_path(directory, missing[i]), token);
      } catch (...) {
        errors[i] = std::current_exception();
        next = missing.size();  // skip the remaining files
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int t = 1; t < threads && size_t(t) < missing.size(); ++t)
      helpers.push_back(base::thread("staging", work));
    work();
  }
  for (const std::exception_ptr& e : errors)
    if (e) std::rethrow_exception(e);
  return result;
} catch (const base::Error& e) {
  base::fail(Exit::data, "loader.stage_dir: {}", e.what());
}

}  // namespace data
