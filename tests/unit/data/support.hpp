// SPDX-License-Identifier: Apache-2.0
// Tools of this folder's tests: temporary directories, tar files written byte by byte, expected
// errors.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "data/array.hpp"

namespace data::test {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "trainer_data_XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all, ignored);
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline Bytes bytes_of(const std::string& s) {
  Bytes b(s.size());
  if (!s.empty()) std::memcpy(b.data(), s.data(), s.size());
  return b;
}

// A tar archive in standard format, with means to break each field.
class TarText {
 public:
  static std::string header(const std::string& name, int64_t size, char type = '0',
                            const std::string& prefix = "") {
    std::string h(512, '\0');
    auto put = [&](size_t at, const std::string& s) {
      std::memcpy(h.data() + at, s.data(), s.size());
    };
    put(0, name.substr(0, 100));
    put(100, "0000644");
    put(108, "0000000");
    put(116, "0000000");
    if (size < (int64_t{1} << 33)) {
      put(124, fmt::format("{:011o}", size));
    } else {
      h[124] = char(0x80);
      for (int i = 0; i < 8; ++i) h[size_t(135 - i)] = char(size >> (8 * i) & 0xff);
    }
    put(136, "00000000000");
    h[156] = type;
    put(257, std::string("ustar\0"
                         "00",
                         8));
    put(345, prefix);
    return sealed(h);
  }
  static std::string sealed(std::string h) {
    std::memset(h.data() + 148, ' ', 8);
    int sum = 0;
    for (char c : h.substr(0, 512)) sum += uint8_t(c);
    std::memcpy(h.data() + 148, fmt::format("{:06o}", sum).data(), 6);
    h[154] = '\0';
    return h;
  }
  static std::string body(const std::string& bytes) {
    return bytes + std::string((512 - bytes.size() % 512) % 512, '\0');
  }

  TarText& add(const std::string& name, const std::string& bytes, char type = '0',
               const std::string& prefix = "") {
    text += header(name, int64_t(bytes.size()), type, prefix) + body(bytes);
    return *this;
  }
  TarText& pax(const std::vector<std::pair<std::string, std::string>>& records) {
    std::string all;
    for (auto& [key, value] : records) {
      size_t length = key.size() + value.size() + 3, digits = std::to_string(length).size();
      while (std::to_string(length + digits).size() != digits) ++digits;
      all += fmt::format("{} {}={}\n", length + digits, key, value);
    }
    return add("PaxHeaders/x", all, 'x');
  }
  std::string end() const { return text + std::string(1024, '\0'); }
  std::string text;
};

// Checks that `body` fails with this exit code, and that the text holds every one of `parts`.
template <class Body>
void expect_error(base::Exit code, std::vector<std::string> parts, Body&& body) {
  try {
    body();
  } catch (const base::Error& e) {
    EXPECT_EQ(int(e.code()), int(code)) << e.what();
    for (const std::string& part : parts)
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos)
          << part << "\n  in: " << e.what();
    return;
  }
  ADD_FAILURE() << "no error; expected one with: " << (parts.empty() ? "" : parts[0]);
}

}  // namespace data::test
