// SPDX-License-Identifier: Apache-2.0
// Files of a run: whole writes and reads, atomic replacement, durable renames. Every error names
// the call, the path and the system's reason.
//
// The folder io accesses the file system and knows neither tensors nor ranks. It holds files (this
// header) and HDF5 (h5.hpp). All system calls on files of a run are made here, with one `note_call`
// each. A test can count them and kill the process at the i-th one.
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

// A failed call of the operating system or of HDF5. Callers that know the purpose of the file
// rethrow it with their exit code. The default code is for the run's own files.
class Failure : public base::Error {
 public:
  Failure(const std::string& text, int number)
      : base::Error(base::Exit::checkpoint, text), number_(number) {}
  int number() const { return number_; }  // errno, 0 if there is none

 private:
  int number_;
};
[[noreturn]] void fail_call(const char* call, const std::string& path, int number);

// Sets a function that is called before every file-system call, with a running count from 0;
// nullptr = none. It injects faults. Set it before other threads use files.
using CallHook = void (*)(int64_t index, const char* call, const std::string& path);
void set_call_hook(CallHook hook);
int64_t calls_made();
void note_call(const char* call, const std::string& path);

// Identifies a file independently of its name, on one machine and while the file exists.
struct FileId {
  uint64_t device = 0, number = 0;
  bool operator==(const FileId&) const = default;
};
std::optional<FileId> id_of(const std::string& path);  // empty if there is no such file

// An open file. Reads and writes complete or throw; interrupted and short calls are repeated.
class File {
 public:
  enum class Mode {
    read,
    write,   // the file must exist
    create,  // creates or empties the file
    append,  // creates or continues the file; use append()
    update,  // creates the file or keeps its content; use write_at()
  };
  File() = default;
  File(const std::string& path, Mode mode);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();  // closes without reporting errors; close() reports them

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  int64_t size() const;
  // True if the path still leads to this file: it was not removed, renamed or replaced.
  bool in_place() const;
  // Throws Failure if the file ends before `bytes` are read.
  void read_at(void* data, int64_t bytes, int64_t offset) const;
  // Fills the pieces from `offset` on, one after the other, in as few calls as the system allows.
  void read_at(std::vector<std::span<char>> pieces, int64_t offset) const;
  void write_at(const void* data, int64_t bytes, int64_t offset);
  // Writes the pieces from `offset` on, one after the other, in as few calls as the system allows.
  void write_at(std::vector<std::string_view> pieces, int64_t offset);
  void append(std::string_view text);
  void truncate(int64_t bytes);
  // Locks the whole file for this process until it closes any descriptor of the file. Returns false
  // if another process holds the lock. Throws Failure if the file system has no locks.
  bool try_lock();
  void sync();
  void close();

 private:
  int descriptor_ = -1;
  std::string path_;
};

// Reads from a file that another library has opened under this descriptor, as File::read_at does.
void read_descriptor(int descriptor, const std::string& path, void* data, int64_t bytes,
                     int64_t offset);
std::string read_file(const std::string& path);
// Replaces a file. After any failure the file has either its old or its new content. A temporary
// file in the same directory is written, synced and renamed, and the directory is synced.
// `durable` = false omits the syncs, for files that the program can recreate.
void write_file_atomically(const std::string& path, std::string_view content, bool durable = true);

// Copies a file with its modification time. The copy appears complete, by rename, and may replace
// `to`. Throws Failure if the original changes meanwhile. Several processes may copy to the same
// name at once. `token` can cancel the copy (base/cancel.hpp).
void copy_file_atomically(const std::string& from, const std::string& to,
                          const std::stop_token& token = {});

bool exists(const std::string& path);
bool is_directory(const std::string& path);
// Creates a directory and its parents, if they do not exist.
void make_directories(const std::string& path);
// Returns the sorted names; empty if there is no such directory.
std::vector<std::string> list_directory(const std::string& path);
void rename_file(const std::string& from, const std::string& to);
// Gives a file a second name, or copies it if the file system has no hard links. Replaces an
// existing `to` in one step.
void link_file(const std::string& from, const std::string& to);
// Makes `path` a symbolic link to `target`, a name relative to the link's folder. Replaces an
// existing link or file in one step. Returns false if the file system has no symbolic links.
bool replace_symlink(const std::string& target, const std::string& path);
bool remove_file(const std::string& path);  // returns false if there was no such file
// Removes a directory with all that it holds.
void remove_tree(const std::string& path);
// Removes an empty directory; returns false if it holds something or does not exist.
bool remove_directory(const std::string& path);
void sync_directory(const std::string& path);
// Returns the bytes that this user can still write to the file system of `path`.
int64_t free_bytes(const std::string& path);
std::string parent_of(const std::string& path);  // returns "." if there is no slash

}  // namespace io
