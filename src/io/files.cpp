// SPDX-License-Identifier: Apache-2.0
#include "io/files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/cancel.hpp"
#include "base/clock.hpp"
#include "base/span.hpp"
#include "io/sync_times.hpp"

namespace io {
namespace {

std::atomic<CallHook> g_hook{nullptr};
std::atomic<int64_t> g_calls{0};

// bytes per call; Linux transfers at most 2 GiB - 4 KiB, and 1 GiB keeps the pieces aligned
constexpr int64_t kLargestPiece = int64_t{1} << 30;

template <class Call>
auto repeat(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

thread_local double t_synced_s = 0;
std::atomic<double> g_longest_sync_s{0};

// File systems without sync_file_range leave all to fsync.
bool lacks_range_sync(int number) {
  return number == ENOSYS || number == EINVAL || number == ESPIPE;
}

// Writes the parts of a large file to the disk, each in a span. One sync of the whole file would
// take minutes on a slow disk and look like a hang. Returns -1 with errno set if a write was lost.
// The kernel reports that only once, so a later fsync would succeed.
int sync_parts(int descriptor) {
  constexpr int64_t kPart = int64_t{256} << 20;
  constexpr unsigned kWritten =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  struct stat s {};
  if (::fstat(descriptor, &s) < 0 || s.st_size < 4 * kPart) return 0;
  for (int64_t at = 0; at < s.st_size; at += kPart) {
    base::Span span("sync a file from MiB", at >> 20, base::SpanKind::save);
    if (repeat([&] { return ::sync_file_range(descriptor, at, kPart, kWritten); }) == 0) continue;
    return lacks_range_sync(errno) ? 0 : -1;
  }
  return 0;
}

// Returns the result of fsync, and keeps errno.
int timed_sync(int descriptor) {
  const base::Stopwatch watch;
  int result = sync_parts(descriptor);
  if (result == 0) result = repeat([&] { return ::fsync(descriptor); });
  const double seconds = watch.seconds();
  t_synced_s += seconds;
  double longest = g_longest_sync_s;
  while (longest < seconds && !g_longest_sync_s.compare_exchange_weak(longest, seconds)) {
  }
  return result;
}

}  // namespace

double synced_s() { return t_synced_s; }
double take_longest_sync_s() { return g_longest_sync_s.exchange(0); }

void fail_call(const char* call, const std::string& path, int number) {
  throw Failure(fmt::format("{}: cannot {}: {}", path, call, std::strerror(number)), number);
}

void set_call_hook(CallHook hook) { g_hook = hook; }
int64_t calls_made() { return g_calls; }
void note_call(const char* call, const std::string& path) {
  int64_t index = g_calls++;
  if (CallHook hook = g_hook) hook(index, call, path);
}

std::optional<FileId> id_of(const std::string& path) {
  struct stat s {};
  note_call("stat", path);
  if (::stat(path.c_str(), &s) == 0) return FileId{s.st_dev, s.st_ino};
  if (errno != ENOENT && errno != ENOTDIR && errno != ESTALE) fail_call("stat", path, errno);
  return {};
}

File::File(const std::string& path, Mode mode) : path_(path) {
  int flags = O_CLOEXEC;
  switch (mode) {
    case Mode::read:
      flags |= O_RDONLY | O_NONBLOCK;  // opening a pipe without a writer must not block
      break;
    case Mode::write:
      flags |= O_RDWR;
      break;
    case Mode::create:
      flags |= O_RDWR | O_CREAT | O_TRUNC;
      break;
    case Mode::append:
      flags |= O_RDWR | O_CREAT | O_APPEND;
      break;
    case Mode::update:
      flags |= O_RDWR | O_CREAT;
      break;
  }
  note_call("open", path);
  descriptor_ = repeat([&] { return ::open(path.c_str(), flags, 0666); });
  if (descriptor_ < 0) fail_call("open", path, errno);
  struct stat s {};
  if (mode == Mode::read && ::fstat(descriptor_, &s) == 0 && !S_ISREG(s.st_mode) &&
      !S_ISDIR(s.st_mode)) {
    ::close(descriptor_);
    throw Failure(fmt::format("{} is not a regular file", path), 0);
  }
}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = std::exchange(other.descriptor_, -1);
    path_ = std::move(other.path_);
  }
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int64_t File::size() const {
  struct stat s {};
  note_call("fstat", path_);
  if (::fstat(descriptor_, &s) < 0) fail_call("stat", path_, errno);
  return s.st_size;
}

bool File::in_place() const {
  struct stat s {};
  note_call("fstat", path_);
  if (::fstat(descriptor_, &s) < 0) {
    if (errno == ESTALE) return false;  // another machine removed it
    fail_call("stat", path_, errno);
  }
  return id_of(path_) == FileId{s.st_dev, s.st_ino};
}

void read_descriptor(int descriptor, const std::string& path, void* data, int64_t bytes,
                     int64_t offset) {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    note_call("read", path);
    ssize_t n = repeat(
        [&] { return ::pread(descriptor, to, size_t(std::min(bytes, kLargestPiece)), offset); });
    if (n < 0) fail_call("read", path, errno);
    if (n == 0)
      throw Failure(fmt::format("{}: ends at byte {}, {} more were expected", path, offset, bytes),
                    0);
    to += n;
    offset += n;
    bytes -= n;
  }
}

void File::read_at(void* data, int64_t bytes, int64_t offset) const {
  read_descriptor(descriptor_, path_, data, bytes, offset);
}

void File::read_at(std::vector<std::span<char>> pieces, int64_t offset) const {
  std::vector<iovec> vectors;
  for (size_t first = 0; first < pieces.size();) {
    vectors.clear();
    for (size_t i = first; i < pieces.size() && i - first < IOV_MAX; ++i)
      vectors.push_back({pieces[i].data(), pieces[i].size()});
    note_call("read", path_);
    ssize_t n =
        repeat([&] { return ::preadv(descriptor_, vectors.data(), int(vectors.size()), offset); });
    if (n < 0) fail_call("read", path_, errno);
    if (n == 0)
      throw Failure(fmt::format("{}: ends at byte {}, more were expected", path_, offset), 0);
    offset += n;
    for (; first < pieces.size() && size_t(n) >= pieces[first].size(); ++first)
      n -= ssize_t(pieces[first].size());
    if (n > 0) pieces[first] = pieces[first].subspan(size_t(n));  // cut short
  }
}

void File::write_at(const void* data, int64_t bytes, int64_t offset) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    note_call("write", path_);
    ssize_t n = repeat([&] {
      return ::pwrite(descriptor_, from, size_t(std::min(bytes, kLargestPiece)), offset);
    });
    if (n < 0) fail_call("write", path_, errno);
    from += n;
    offset += n;
    bytes -= n;
  }
}

void File::write_at(std::vector<std::string_view> pieces, int64_t offset) {
  std::vector<iovec> vectors;
  for (size_t first = 0; first < pieces.size();) {
    vectors.clear();
    for (size_t i = first; i < pieces.size() && i - first < IOV_MAX; ++i)
      vectors.push_back({const_cast<char*>(pieces[i].data()), pieces[i].size()});
    note_call("write", path_);
    ssize_t n =
        repeat([&] { return ::pwritev(descriptor_, vectors.data(), int(vectors.size()), offset); });
    if (n < 0) fail_call("write", path_, errno);
    offset += n;
    for (size_t left = size_t(n); first < pieces.size() && left >= pieces[first].size(); ++first) {
      left -= pieces[first].size();
      n -= ssize_t(pieces[first].size());
    }
    if (n > 0) pieces[first].remove_prefix(size_t(n));  // cut short
  }
}

void File::append(std::string_view text) {
  while (!text.empty()) {
    note_call("write", path_);
    ssize_t n = repeat([&] { return ::write(descriptor_, text.data(), text.size()); });
    if (n < 0) fail_call("write", path_, errno);
    text.remove_prefix(size_t(n));
  }
}

bool File::try_lock() {
  struct flock all {};
  all.l_type = F_WRLCK;
  all.l_whence = SEEK_SET;
  note_call("lock", path_);
  if (::fcntl(descriptor_, F_SETLK, &all) == 0) return true;
  if (errno == EACCES || errno == EAGAIN) return false;
  fail_call("lock", path_, errno);
}

void File::truncate(int64_t bytes) {
  note_call("truncate", path_);
  if (repeat([&] { return ::ftruncate(descriptor_, bytes); }) < 0)
    fail_call("truncate", path_, errno);
}

void File::sync() {
  note_call("fsync", path_);
  if (timed_sync(descriptor_) < 0) fail_call("sync", path_, errno);
}

void start_writeback(const File& file, int64_t offset, int64_t bytes) {
  // It changes no file, so it is none of the calls that tests count.
  const int result = repeat(
      [&] { return ::sync_file_range(file.descriptor(), offset, bytes, SYNC_FILE_RANGE_WRITE); });
  if (result < 0 && !lacks_range_sync(errno)) fail_call("begin to sync", file.path(), errno);
}

void File::close() {
  if (descriptor_ < 0) return;
  note_call("close", path_);
  // Linux closes the descriptor even after EINTR. A second close could close another thread's file.
  if (::close(std::exchange(descriptor_, -1)) < 0 && errno != EINTR)
    fail_call("close", path_, errno);
}

std::string read_file(const std::string& path) {
  File file(path, File::Mode::read);
  if (is_directory(path)) fail_call("read", path, EISDIR);
  std::string content(size_t(file.size()), '\0');
  file.read_at(content.data(), int64_t(content.size()), 0);
  return content;
}

void write_file_atomically(const std::string& path, std::string_view content, bool durable) {
  // Each file has one writer, so a fixed name is enough. It overwrites the leftover of a dead job.
  std::string temporary = path + ".tmp";
  try {
    File file(temporary, File::Mode::create);
    file.write_at(content.data(), int64_t(content.size()), 0);
    if (durable) file.sync();
    file.close();
    rename_file(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  if (durable) sync_directory(parent_of(path));
}

void copy_file_atomically(const std::string& from, const std::string& to,
                          const std::stop_token& token) {
  constexpr int64_t kPiece = int64_t{8} << 20;
  auto status_of = [](const File& file) {
    struct stat s {};
    note_call("fstat", file.path());
    if (::fstat(file.descriptor(), &s) < 0) fail_call("stat", file.path(), errno);
    return s;
  };
  File original(from, File::Mode::read);
  struct stat before = status_of(original);
  char host[256] = "";
  // Nodes that share the directory may have equal process numbers.
  ::gethostname(host, sizeof host - 1);
  std::string temporary = fmt::format("{}.{}.{}.copying", to, host, ::getpid());
  try {
    File copy(temporary, File::Mode::create);
    std::vector<char> piece(size_t(std::min<int64_t>(kPiece, before.st_size)));
    for (int64_t at = 0; at < before.st_size;) {
      base::end_if_asked(token);
      int64_t count = std::min<int64_t>(kPiece, before.st_size - at);
      original.read_at(piece.data(), count, at);
      copy.write_at(piece.data(), count, at);
      at += count;
    }
    struct stat after = status_of(original);
    if (after.st_size != before.st_size || after.st_mtim.tv_sec != before.st_mtim.tv_sec ||
        after.st_mtim.tv_nsec != before.st_mtim.tv_nsec)
      throw Failure(fmt::format("{}: changed while it was copied", from), 0);
    copy.sync();
    note_call("futimens", temporary);
    timespec times[2] = {before.st_atim, before.st_mtim};
    if (::futimens(copy.descriptor(), times) < 0) fail_call("set the time of", temporary, errno);
    copy.close();
    rename_file(temporary, to);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

bool exists(const std::string& path) {
  struct stat s {};
  note_call("stat", path);
  if (::stat(path.c_str(), &s) == 0) return true;
  if (errno != ENOENT && errno != ENOTDIR) fail_call("stat", path, errno);
  return false;
}

bool is_directory(const std::string& path) {
  struct stat s {};
  note_call("stat", path);
  return ::stat(path.c_str(), &s) == 0 && S_ISDIR(s.st_mode);
}

void make_directories(const std::string& path) {
  constexpr int kTriesOfDirectory = 10;
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    std::string part = path.substr(0, end);
    for (int tries = 1; !part.empty() && !is_directory(part); ++tries) {
      note_call("mkdir", part);
      if (::mkdir(part.c_str(), 0777) == 0) break;
      // EEXIST: another process may have made the directory, and may even have removed it since.
      if (const int number = errno; number != EEXIST || tries == kTriesOfDirectory)
        fail_call("create the directory", part, number);
    }
    if (end == std::string::npos) return;
  }
}

std::vector<std::string> list_directory(const std::string& path) {
  note_call("opendir", path);
  DIR* directory = ::opendir(path.c_str());
  if (!directory) {
    if (errno == ENOENT) return {};
    fail_call("list", path, errno);
  }
  std::vector<std::string> names;
  int number = 0;
  while (true) {
    errno = 0;  // only errno distinguishes an error of readdir from the end
    dirent* entry = ::readdir(directory);
    if (!entry) {
      number = errno;
      break;
    }
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  ::closedir(directory);
  if (number) fail_call("list", path, number);
  std::sort(names.begin(), names.end());
  return names;
}

void rename_file(const std::string& from, const std::string& to) {
  note_call("rename", to);
  if (::rename(from.c_str(), to.c_str()) < 0)
    fail_call(("rename " + from + " to this name").c_str(), to, errno);
}

void link_file(const std::string& from, const std::string& to) {
  std::string temporary = to + ".tmp";
  remove_file(temporary);
  note_call("link", to);
  if (::link(from.c_str(), temporary.c_str()) < 0) {
    if (errno != EPERM && errno != ENOTSUP && errno != ENOSYS && errno != EMLINK)
      fail_call("link", to, errno);
    File source(from, File::Mode::read), copy(temporary, File::Mode::create);
    std::vector<char> buffer(size_t{1} << 20);
    for (int64_t at = 0, bytes = source.size(); at < bytes; at += int64_t(buffer.size())) {
      int64_t n = std::min(int64_t(buffer.size()), bytes - at);
      source.read_at(buffer.data(), n, at);
      copy.write_at(buffer.data(), n, at);
    }
    copy.sync();
    copy.close();
  }
  rename_file(temporary, to);
}

bool replace_symlink(const std::string& target, const std::string& path) {
  const std::string temporary = path + ".tmp";
  remove_file(temporary);
  note_call("symlink", path);
  if (::symlink(target.c_str(), temporary.c_str()) < 0) {
    if (errno == EPERM || errno == ENOTSUP || errno == ENOSYS) return false;
    fail_call("symlink", path, errno);
  }
  try {
    rename_file(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  return true;
}

bool remove_file(const std::string& path) {
  note_call("unlink", path);
  if (::unlink(path.c_str()) == 0) return true;
  if (errno != ENOENT) fail_call("remove", path, errno);
  return false;
}

void remove_tree(const std::string& path) {
  note_call("unlink", path);
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) fail_call("remove", path, error.value());
}

bool remove_directory(const std::string& path) {
  note_call("rmdir", path);
  if (::rmdir(path.c_str()) == 0) return true;
  if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOENT) fail_call("remove", path, errno);
  return false;
}

void sync_directory(const std::string& path) {
  note_call("open", path);
  int descriptor = repeat([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor < 0) fail_call("open", path, errno);
  note_call("fsync", path);
  int number = timed_sync(descriptor) < 0 ? errno : 0;
  ::close(descriptor);
  // Some network file systems cannot sync directories. Their renames are durable on return.
  if (number && number != EINVAL && number != ENOTSUP) fail_call("sync", path, number);
}

int64_t free_bytes(const std::string& path) {
  struct statvfs s {};
  note_call("statvfs", path);
  if (repeat([&] { return ::statvfs(path.c_str(), &s); }) < 0)
    fail_call("ask for the free space of", path, errno);
  return int64_t(s.f_bavail) * int64_t(s.f_frsize);
}

std::string parent_of(const std::string& path) {
  size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace io
