// SPDX-License-Identifier: Apache-2.0
// Files as a run needs them: whole writes and reads, atomic replacement, durable renames. Every
// error names the call, the path and the system's reason.
//
// io holds what touches the file system and nothing of tensors or ranks: files (this header) and
// HDF5 (h5.hpp). All system calls on files of a run go through here, one `note_call` each, so that
// a test can count them and kill the process at the i-th one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace io {

// A call of the operating system or of HDF5 that failed. Owners who know what the file means wrap
// it with their exit code; what nobody wraps is of the run's own files.
class Failure : public base::Error {
 public:
  Failure(const std::string& text, int number)
      : base::Error(base::Exit::checkpoint, text), number_(number) {}
  int number() const { return number_; }  // errno, 0 if there is none

 private:
  int number_;
};
[[noreturn]] void fail_call(const char* call, const std::string& path, int number);

// Called before every file-system call, with a running count (from 0). nullptr = none. For fault
// injection; set it before other threads use files.
using CallHook = void (*)(int64_t index, const char* call, const std::string& path);
void set_call_hook(CallHook hook);
int64_t calls_made();
void note_call(const char* call, const std::string& path);

// The identity of a file, whatever its name is: on one machine, for as long as it exists.
struct FileId {
  uint64_t device = 0, number = 0;
  bool operator==(const FileId&) const = default;
};
std::optional<FileId> id_of(const std::string& path);  // nothing if there is no such file

// An open file. Reads and writes are whole or throw; interrupted and short calls are repeated.
class File {
 public:
  enum class Mode {
    read,
    write,   // exists already
    create,  // new or emptied
    append,  // new or continued; use append()
    update,  // new or as it is; use write_at()
  };
  File() = default;
  File(const std::string& path, Mode mode);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();  // closes; errors of a close that matters are reported by close()

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  int64_t size() const;
  // whether its path still leads to this file: it was not removed, renamed or replaced
  bool in_place() const;
  // an end of file inside is a Failure
  void read_at(void* data, int64_t bytes, int64_t offset) const;
  // one after the other, in as few calls
  void read_at(std::vector<std::span<char>> pieces, int64_t offset) const;
  void write_at(const void* data, int64_t bytes, int64_t offset);
  // One after the other from `offset` on, in as few calls as the system allows.
  void write_at(std::vector<std::string_view> pieces, int64_t offset);
  void append(std::string_view text);
  void truncate(int64_t bytes);
  void sync();
  void close();

 private:
  int descriptor_ = -1;
  std::string path_;
};

std::string read_file(const std::string& path);
// The file has either its old or its new content, whatever happens: temporary in the same
// directory, sync, rename, sync of the directory. `durable` = false leaves out the syncs: for files
// that can be made again.
void write_file_atomically(const std::string& path, std::string_view content, bool durable = true);

// A copy with the original's modification time, which appears whole, by rename. A Failure if the
// original changes under it. `to` may be replaced; several processes may do this at once. `token`:
// may ask to give up (base/cancel.hpp).
void copy_file_atomically(const std::string& from, const std::string& to,
                          const std::stop_token& token = {});

bool exists(const std::string& path);
bool is_directory(const std::string& path);
// parents too; an existing directory is fine
void make_directories(const std::string& path);
// names, sorted; empty if there is no such directory
std::vector<std::string> list_directory(const std::string& path);
void rename_file(const std::string& from, const std::string& to);
// A second name for a file (a copy where the file system has no hard links); an existing `to` is
// replaced in one step.
void link_file(const std::string& from, const std::string& to);
bool remove_file(const std::string& path);  // false if there was none
void sync_directory(const std::string& path);
// what this user may still write on that file system
int64_t free_bytes(const std::string& path);
std::string parent_of(const std::string& path);  // "." if there is no slash

}  // namespace io
