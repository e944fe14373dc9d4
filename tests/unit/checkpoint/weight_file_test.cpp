// SPDX-License-Identifier: Apache-2.0
// Tests readers of files with initial weights: every value is exact, and readers check every claim
// of a file.
#include "checkpoint/weight_file.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "checkpoint/header.hpp"
#include "checkpoint/npy_header.hpp"
#include "weight_files.hpp"
#include "weight_fixture.hpp"

namespace {

using tests::bytes_of;
using tests::npy;
using tests::npy_header;
using tests::safetensors;
using tests::zip;
using Floats = std::vector<float>;

class WeightFile : public tests::WeightFileTest {};

// Compares every bit pattern of both 16-bit types with the definition of the formats.
TEST_F(WeightFile, SixteenBitTypesAreExact) {
  std::vector<uint16_t> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = uint16_t(i);
  auto check = [&](const std::string& path, int exponent_bits) {
    auto read = read_all(path, 1000);
    ASSERT_EQ(read.size(), 1u);
    int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    for (size_t i = 0; i < all.size(); ++i) {
      int sign = i >> 15 ? -1 : 1, e = int(i >> mantissa_bits) & ((1 << exponent_bits) - 1);
      int m = int(i) & ((1 << mantissa_bits) - 1);
      double want = e == 0 ? std::ldexp(m, 1 - bias - mantissa_bits)
                           : std::ldexp(m + (1 << mantissa_bits), e - bias - mantissa_bits);
      float got = read[0].second[i];
      if (e == (1 << exponent_bits) - 1)
        EXPECT_TRUE(m ? std::isnan(got) : std::isinf(got)) << i;
      else
        EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(float(sign * want))) << i;
      EXPECT_EQ(std::signbit(got), sign < 0) << i;
    }
  };
  check(file("a.npz", zip({{"x.npy", npy(npy_header("<f2", "(65536,)"), bytes_of(all))}})), 5);
  check(file("b.npz", zip({{"x.npy", npy(npy_header("|V2", "(256, 256)"), bytes_of(all))}}, true)),
        8);
  auto header = [](const char* dtype) {
    return std::string("{\"x\":{\"dtype\":\"") + dtype +
           "\",\"shape\":[65536],\"data_offsets\":[0,131072]}}";
  };
  check(file("a.safetensors", safetensors(header("F16"), bytes_of(all))), 5);
  check(file("b.safetensors", safetensors(header("BF16"), bytes_of(all))), 8);
}

// Arrays of other machines have the most significant byte first.
TEST_F(WeightFile, BigEndianArrays) {
  auto reversed = [](std::string bytes, size_t size) {
    for (size_t at = 0; at < bytes.size(); at += size)
      std::reverse(bytes.begin() + long(at), bytes.begin() + long(at + size));
    return bytes;
  };
  const Floats floats = {1, -2.5f, 3, 4, 5, 6};
  const std::vector<uint16_t> halves = {0x3c00, 0xc100};  // 1 and -2.5
  const std::string fortran = "{'descr': '>f4', 'fortran_order': True, 'shape': (3, 2), }";
  const auto read = read_all(
      file("x.npz", zip({{"a.npy", npy(npy_header(">f4", "(2, 3)"), reversed(bytes_of(floats), 4))},
                         {"b.npy", npy(npy_header(">f8", "(1,)"),
                                       reversed(bytes_of(std::vector<double>{-2.5}), 8))},
                         {"c.npy", npy(npy_header(">f2", "(2,)"), reversed(bytes_of(halves), 2))},
                         {"d.npy", npy(npy_header(">i8", "()"),
                                       reversed(bytes_of(std::vector<int64_t>{1000}), 8))},
                         {"e.npy", npy(fortran, reversed(bytes_of(floats), 4))},
                         {"f.npy", npy(npy_header("<f4", "(6,)"), bytes_of(floats))}})));
  ASSERT_EQ(read.size(), 6u);
  EXPECT_EQ(read[0].second, floats);
  EXPECT_EQ(read[1].second, Floats{-2.5f});
  EXPECT_EQ(read[2].second, (Floats{1, -2.5f}));
  EXPECT_EQ(read[3].second, Floats{1000});
  EXPECT_EQ(read[4].second, (Floats{1, 4, -2.5f, 5, 3, 6}));
  EXPECT_EQ(read[5].second, floats);
}

// NumPy reads what other writers put into the header, and other programs pack arrays again.
TEST_F(WeightFile, ArraysOfOtherWriters) {
  const Floats floats = {1, -2.5f};
  const std::vector<double> doubles = {1, -2.5};
  const std::vector<uint16_t> halves = {0x3c00, 0xc100};
  tests::Members members = {{"__MACOSX/._a.npy", "x"}, {".DS_Store", "x"}, {"folder/", ""}};
  for (const char* type : {"=f4", "f4", "|f4", "float32"})
    members.push_back(
        {fmt::format("{}.npy", members.size()), npy(npy_header(type, "(2,)"), bytes_of(floats))});
  members.push_back({"double.npy", npy(npy_header("float64", "(2,)"), bytes_of(doubles))});
  members.push_back({"half.npy", npy(npy_header("=f2", "(2,)"), bytes_of(halves))});
  members.push_back({"tab.npy", npy("{'descr':\t'<f4',\r\n'fortran_order': False, 'shape': (2,)}",
                                    bytes_of(floats))});
  const auto read = read_all(file("x.npz", zip(members)));
  EXPECT_EQ(read.size(), 7u);
  for (const auto& [name, values] : read) EXPECT_EQ(values, floats) << name;
  const auto eight_bits =
      read_all(file("x.safetensors",
                    safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                R"("b":{"dtype":"F8_E4M3FNUZ","shape":[2],"data_offsets":[8,10]}})",
                                bytes_of(floats) + "xx")));
  ASSERT_EQ(eight_bits.size(), 1u);
  EXPECT_EQ(eight_bits[0].second, floats);
}

TEST_F(WeightFile, EveryVersionTypeAndShape) {
  std::vector<double> doubles = {1.0 / 3, -2.5e300, 1e-300, 7};
  Floats floats = {1, -0.0f, 3.5e-40f, 4, 5, 6}, rounded(doubles.begin(), doubles.end());
  tests::Members members = {
      {"params/a/kernel.npy", npy(npy_header("<f4", "(2, 3)"), bytes_of(floats))},
      {"params/b.npy", npy(npy_header("<f8", "(4,)"), bytes_of(doubles), 2)},
      {"count.npy", npy(npy_header("<i4", "()"), std::string(4, '\1'))},
      {"params/c.npy",
       npy("{\"shape\":(),\"fortran_order\":True,\"descr\":\"<f4\"}", bytes_of(Floats{9}), 3)},
      {"bn1.num_batches_tracked.npy",
       npy(npy_header("<i8", "()"), bytes_of(std::vector<int64_t>{1000}))},
      {"names.npy", npy(npy_header("<U3", "(1,)"), std::string(12, '\0'))},
      {"params/none.npy", npy(npy_header("<f4", "(0, 7)"), "")},
  };
  for (bool deflate : {false, true}) {
    auto read = read_all(file("x.npz", zip(members, deflate)));
    ASSERT_EQ(read.size(), 5u);
    EXPECT_EQ(read[0].first, "params/a/kernel");
    EXPECT_EQ(bytes_of(read[0].second), bytes_of(floats));
    EXPECT_EQ(read[1].second, rounded);
    EXPECT_EQ(read[2].second, Floats{9});
    EXPECT_EQ(read[3].second, Floats{1000});
    EXPECT_EQ(read[4].second, Floats{});
  }
  // Offsets need not follow the order of the names.
  std::string header =
      R"({"__metadata__":{"format":"np"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[32,56]},)"
      R"("a":{"dtype":"F64","shape":[4],"data_offsets":[0,32]},"c":{"dtype":"I64","shape":[],"data_offsets":[56,64]}}   )";
  auto read =
      read_all(file("x.safetensors", safetensors(header, bytes_of(doubles) + bytes_of(floats) +
                                                             bytes_of(std::vector<int64_t>{77}))));
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[0].first, "a");
  EXPECT_EQ(read[0].second, rounded);
  EXPECT_EQ(bytes_of(read[1].second), bytes_of(floats));
  EXPECT_EQ(read[2].second, Floats{77});
}

TEST_F(WeightFile, NamesOfFiles) {
  EXPECT_NE(problem(directory_ + "/none.npz").find("no such file"), std::string::npos);
  refused("x.weights", "abc", ".safetensors");
  refused("x.h5", std::string(5000, 'x'), "checkpoint");
  refused("model.pkl", "abc", "pickles");
  for (const char* name : {"x.npz", "x.safetensors", "x.h5"})
    refused(name, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
            "pointer of Git LFS");
  auto header = [&](const std::string& name, const std::string& bytes) -> std::string {
    try {
      checkpoint::check_header(file(name, bytes));
      return "";
    } catch (const base::Error& e) {
      return e.what();
    }
  };
  // A small file of another kind is not cut.
  EXPECT_EQ(header("model.safetensors.index.json", "{ \"weight_map\": {} }"),
            "it does not begin as a checkpoint of this program; init.from takes the weights of "
            "such files");
  for (const char* part : {"", "trainer checkpoint: an HDF5"})
    EXPECT_NE(header("x.h5", part).find("it is cut"), std::string::npos) << part;
  EXPECT_NE(header("x.h5", std::string(40, '\0')).find("it is cut"), std::string::npos);
  // A folder of such a file is that file.
  EXPECT_EQ(problem(directory_), problem(directory_ + "/model.safetensors.index.json"));
  std::filesystem::remove(directory_ + "/model.safetensors.index.json");
  EXPECT_NE(problem(directory_).find("holds no checkpoint"), std::string::npos);
}

TEST_F(WeightFile, HostileNpz) {
  std::string good = npy(npy_header("<f4", "(2,)"), bytes_of(Floats{1, 2}));
  auto one = [](const std::string& array) { return zip({{"x.npy", array}}); };
  refused("a.npz", "", "not a .npz");
  refused("a.npz", "PK\3\4 and nothing else", "not a .npz");
  refused("a.npz", zip({{"readme.txt", "hello"}}), "readme.txt");
  refused("a.npz", zip({{"x.npy", good}, {"x.npy", good}}), "twice");
  refused("a.npz", one(""), "cut");
  refused("a.npz", one("not an array"), "does not begin");
  refused("a.npz", one(npy(npy_header("|O", "(1,)"), "\x80\x04K\1.")), "pickled");
  refused("a.npz",
          one(npy("{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (1,), }", "........")),
          "pickled");
  refused("a.npz", one(npy(npy_header("<f4", "(3,)"), bytes_of(Floats{1, 2}))), "cut");
  refused("a.npz", one(npy(npy_header("<f4", "(1,)"), bytes_of(Floats{1, 2}))), "cut or damaged");
  refused("a.npz", one(npy(npy_header("<f4", "(-1,)"), "")), "impossible");
  refused("a.npz", one(npy(npy_header("<f4", "(4294967296, 4294967296)"), "")), "impossible shape");
  refused("a.npz", one(npy(npy_header("<f4", "(99999999999999999999,)"), "")), "impossible");
  refused("a.npz", one(npy(npy_header("<f4", "(1000000000000,)"), "abcd")), "cut");
  refused("a.npz", one(npy(npy_header("<f4", "(2,)"), "", 9)), "version 9");
  std::string long_header = npy(std::string(70000, ' '), "", 2);
  refused("a.npz", one(long_header), "header of 70000");
  long_header[11] = '\x7f';  // two GiB
  refused("a.npz", one(long_header), "claims a header");
  // The reader refuses other compressions, with which a few bytes may expand to gigabytes. 14 is
  // LZMA.
  std::string method = one(good);
  method[8] = 14;
  method[method.find("PK\1\2") + 10] = 14;
  refused("a.npz", method, "does not know: ZIP");
  // A file that is cut anywhere is refused. A file with any changed byte is refused or gives the
  // written values.
  std::string whole =
      zip({{"x.npy", good}, {"y.npy", npy(npy_header("<f4", "(3,)"), bytes_of(Floats{1, 2, 3}))}},
          true);
  for (size_t cut = 0; cut < whole.size(); ++cut)
    EXPECT_NE(problem(file("cut.npz", whole.substr(0, cut))), "") << cut;
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string bad = whole;
    bad[at] = char(bad[at] ^ 0x11);
    std::string path = file("flip.npz", bad);
    if (!problem(path).empty()) continue;
    for (const auto& [name, values] : read_all(path))
      EXPECT_TRUE(values == Floats({1, 2}) || values == Floats({1, 2, 3}));
  }
}

TEST_F(WeightFile, HostileSafetensors) {
  std::string data(16, '\0');
  auto with = [&](const std::string& header) { return safetensors(header, data); };
  auto entry = [](const std::string& name, const std::string& shape, int64_t begin, int64_t end) {
    return fmt::format("\"{}\":{{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[{},{}]}}", name,
                       shape, begin, end);
  };
  std::string a = entry("a", "[2]", 0, 8), b = entry("b", "[2]", 8, 16);
  EXPECT_EQ(problem(file("a.safetensors", with("{" + a + "," + b + "}"))), "");
  for (auto& [header, fragment] : std::vector<std::pair<std::string, std::string>>{
           {"{" + a + "}", "its tensors end at byte 8"},
           {"{" + a + "," + entry("b", "[1]", 12, 16) + "}", "belong to no tensor"},
           {"{" + a + "," + entry("b", "[3]", 4, 16) + "}", "overlaps"},
           {"{" + a + "," + entry("b", "[4]", 0, 16) + "}", "overlaps"},
           {"{" + a + "," + entry("b", "[3]", 8, 20) + "}", "outside"},
           {"{" + a + "," + entry("b", "[2]", 16, 8) + "}", "outside"},
           {"{" + a + "," + entry("b", "[2]", -8, 0) + "}", "outside"},
           {"{" + a + "," + entry("b", "[3]", 8, 16) + "}", "need 12"},
           {"{" + a + "," + entry("b", "[-2]", 8, 16) + "}", "impossible shape"},
           {"{" + a + "," + entry("b", "[2.5]", 8, 16) + "}", "impossible shape"},
           {"{" + a + "," + entry("b", "[4294967296,4294967296]", 8, 16) + "}", "impossible shape"},
           {"{" + a + "," + entry("b", "[18446744073709551615]", 8, 16) + "}", "impossible shape"},
           {"{" + a + "," + entry("b", "2", 8, 16) + "}", "not a list"},
           {"{" + a + "," + a + "}", "twice"},
           {"{" + a + ",\"b\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[8,16]}}", "F31"},
           {"{" + a + ",\"b\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[8,16]}}", "dtype 7"},
           {"{" + a + ",\"b\":{\"dtype\":\"F32\",\"shape\":[2]}}", "needs dtype"},
           {"{" + a + ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8]}}",
            "not two numbers"},
           {"{" + a + ",\"b\":3}", "needs dtype"},
           {"{" + a + ",\"\":" + b.substr(4) + "}", "no name"},
           {"[]", "not a JSON object"},
           {"{", "not JSON"},
           {"{\"a\":\"\xff\"}", "not JSON"},
           {std::string(100000, '['), "nested deeper"},
           {"", "not JSON"}})
    refused("a.safetensors", with(header), fragment);
  refused("a.safetensors", "abc", "cut");
  refused("a.safetensors", std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10),
          "claims a header");
  refused("a.safetensors", std::string("\0\0\0\1\0\0\0\0{}", 10), "claims a header");
  std::string whole = with("{" + a + "," + b + "}");
  for (size_t cut = 0; cut < whole.size(); ++cut)
    EXPECT_NE(problem(file("cut.safetensors", whole.substr(0, cut))), "") << cut;
}

// Seeded mutations of good files give values, or an error that names the file, and nothing else.
TEST_F(WeightFile, MutatedFiles) {
  std::mt19937_64 random(7);
  auto below = [&](size_t n) { return size_t(random() % n); };
  std::string header =
      R"({"__metadata__":{"format":"np"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[32,56]},)"
      R"("a":{"dtype":"F64","shape":[4],"data_offsets":[0,32]},"c":{"dtype":"BF16","shape":[2],"data_offsets":[56,60]}})";
  tests::Members members = {
      {"params/a.npy", npy(npy_header("<f4", "(2, 3)"), bytes_of(Floats(6, 1.5f)))},
      {"b.npy", npy(npy_header("|V2", "(4,)"), "xxxxxxxx", 2)},
      {"c.npy", npy(npy_header("<i8", "()"), "xxxxxxxx")}};
  const std::vector<std::pair<std::string, std::string>> good = {
      {"s.safetensors", safetensors(header, std::string(60, '\1'))},
      {"z.npz", zip(members)},
      {"d.npz", zip(members, true)}};
  const std::vector<std::string> words = {"\x93NUMPY",
                                          "'descr'",
                                          "|O",
                                          "(",
                                          ")",
                                          "[",
                                          "]",
                                          "{",
                                          "}",
                                          "-1",
                                          "18446744073709551615",
                                          "data_offsets",
                                          "\xff\xff\xff\xff",
                                          "PK\1\2",
                                          "PK\5\6"};
  int read = 0, rounds = 900;
  for (int round = 0; round < rounds; ++round) {
    auto [name, bytes] = good[size_t(round) % good.size()];
    for (size_t change = 1 + below(4); change > 0; --change) {
      size_t at = below(bytes.size());
      switch (below(5)) {
        case 0:
          bytes[at] = char(random());
          break;
        case 1:
          bytes[at] = char(bytes[at] ^ (1 << below(8)));
          break;
        case 2:
          bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(16)));
          break;
        case 3:
          bytes.erase(at, 1 + below(8));
          bytes += 'x';
          break;
        case 4:
          bytes.replace(at, 4, words[below(words.size())]);
          break;
      }
    }
    read += problem(file(name, bytes)).empty();
  }
  EXPECT_GT(read, rounds / 100) << "the changes are so large that only the first check is reached";
  EXPECT_LT(read, rounds / 2);
}

TEST(NpyHeader, AcceptsWhatNumpyWritesAndNothingElse) {
  checkpoint::NpyHeader h = checkpoint::parse_npy_header(
      "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }  \n");
  EXPECT_EQ(h.descr, "<f4");
  EXPECT_EQ(h.shape, (std::vector<int64_t>{3, 4}));
  EXPECT_FALSE(h.fortran);
  // NumPy under Python 2 wrote numbers of type long.
  const std::string begin = "{'descr': '<f4', 'fortran_order': False, 'shape': ";
  EXPECT_EQ(checkpoint::parse_npy_header(begin + "(64L, 3L), }\n").shape,
            (std::vector<int64_t>{64, 3}));
  EXPECT_EQ(checkpoint::parse_npy_header(begin + "(7L,), }").shape, (std::vector<int64_t>{7}));
  for (const char* bad : {"(L,), }", "(7LL,), }", "(7 L,), }"})
    EXPECT_THROW(checkpoint::parse_npy_header(begin + bad), base::Error) << bad;
  EXPECT_EQ(checkpoint::parse_npy_header(
                "{'descr': [('a', '<f4', (2,)), ('b', '|O')], 'fortran_order': True, 'shape': ()}")
                .descr,
            "[('a', '<f4', (2,)), ('b', '|O')]");
  for (const char* bad :
       {"", "{", "{}", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': False, 'shape': (3}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)} x",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'x': 1}",
        "{'descr': [(, 'fortran_order': False",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (a,)}",
        "{'descr': '\\x41', 'fortran_order': False, 'shape': (3,)}",
        "{descr: '<f4', 'fortran_order': False, 'shape': (3,)}"})
    EXPECT_THROW(checkpoint::parse_npy_header(bad), base::Error) << bad;
  std::string axes = "{'descr': '<f4', 'fortran_order': False, 'shape': (";
  for (int i = 0; i < 33; ++i) axes += "1, ";
  EXPECT_THROW(checkpoint::parse_npy_header(axes + ")}"), base::Error);
}

}  // namespace
