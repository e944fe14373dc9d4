// SPDX-License-Identifier: Apache-2.0
// Tests the reader of files of torch.save: files that PyTorch wrote (tests/data/make_pth.py), and
// pickles that no honest program writes.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "checkpoint/pickle.hpp"
#include "io/files.hpp"
#include "tests/unit/recorded.hpp"
#include "weight_fixture.hpp"

namespace {

using Floats = std::vector<float>;
using namespace std::string_literals;

class PthFile : public tests::WeightFileTest {
 protected:
  static std::map<std::string, Floats> read(const std::string& path) {
    std::map<std::string, Floats> found;
    for (auto& [name, values] : read_all(path, 3)) found[name] = std::move(values);
    return found;
  }
  // Returns the recorded files, and those of the folder PTH_FOLDER, which make_pth.py also made.
  static std::vector<std::string> recorded(const std::string& part) {
    std::vector<std::string> found, folders = {tests::source_file("tests/data/pth")};
    if (const char* more = std::getenv("PTH_FOLDER")) folders.push_back(more);
    for (const std::string& folder : folders)
      for (const auto& entry : std::filesystem::directory_iterator(folder))
        if (entry.path().filename().string().find(part) != std::string::npos)
          found.push_back(entry.path());
    EXPECT_GE(found.size(), 2u);
    return found;
  }
  // Returns a zip archive of torch.save with this object and one storage of 4 floats.
  static std::string saved(const std::string& pickle, const std::string& storage = "") {
    return tests::zip(
        {{"a/data.pkl", pickle},
         {"a/data/0", storage.empty() ? tests::bytes_of(Floats{1, 2, 3, 4}) : storage},
         {"a/version", "3\n"}});
  }
};

Floats counted(size_t n, float first = 0) {
  Floats out(n);
  for (size_t i = 0; i < n; ++i) out[i] = first + float(i) / 4;
  return out;
}

std::string text(const std::string& value) { return "\x8c"s + char(value.size()) + value; }
std::string number(uint8_t value) { return "K"s + char(value); }
// Returns the instructions that make a tensor of storage "0".
std::string tensor(const std::string& sizes, const std::string& strides, uint8_t offset = 0,
                   const std::string& type = "FloatStorage") {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\n" + type + "\n" +
         text("0") + text("cpu") + number(4) + "tQ" + number(offset) + "(" + sizes + "t(" +
         strides + "t\x89}tR";
}
// Returns a pickle of { "x": value }.
std::string object(const std::string& value) { return "\x80\x02}" + text("x") + value + "s."; }

TEST_F(PthFile, TrainingScriptsOfPyTorch) {
  for (const std::string& path : recorded("_training")) {
    SCOPED_TRACE(path);
    const auto found = read(path);
    EXPECT_EQ(found.at("state_dict.conv.weight"), counted(4 * 3 * 2 * 2));
    EXPECT_EQ(found.at("state_dict.norm.running_var"), counted(4));
    EXPECT_EQ(found.at("state_dict.norm.num_batches_tracked"), Floats{0});
    EXPECT_EQ(found.at("list.0"), counted(2));
    // Old versions number the states of an optimizer by addresses.
    size_t states = 0;
    for (const auto& [name, values] : found)
      states += name.starts_with("optimizer.state.") && values.size() == 48;
    EXPECT_EQ(states, 1u);
    EXPECT_EQ(found.size(), 7u + 1 + 4);
  }
}

TEST_F(PthFile, TensorsThatDoNotLieInARow) {
  for (const std::string& path : recorded("_places")) {
    SCOPED_TRACE(path);
    const auto found = read(path);
    EXPECT_GE(found.size(), 10u);
    std::map<std::string, float> first = {{"rows", 2}, {"cells", 2}, {"one", 0.75}};
    for (const auto& [name, values] : found)
      EXPECT_EQ(values, name == "expanded" ? Floats(6, 0) : counted(values.size(), first[name]))
          << name;
    EXPECT_EQ(found.at("channels_last").size(), 24u);
    EXPECT_EQ(found.at("empty").size(), 0u);
    EXPECT_EQ(found.at("scalar").size(), 1u);
  }
}

// Weights below the keys of programs, with their prefixes, in every protocol of pickles.
TEST_F(PthFile, KeysOfPrograms) {
  for (const std::string& path : recorded("_nested")) {
    SCOPED_TRACE(path);
    const auto found = read(path);
    for (const char* in : {"model.", "state_dict.module.encoder_q.", "teacher.",
                           "classy_state_dict.base_model.model.trunk._feature_blocks."}) {
      EXPECT_EQ(found.at(in + "conv.weight"s), counted(4 * 3 * 2 * 2)) << in;
      EXPECT_EQ(found.at(in + "norm.bias"s), counted(4)) << in;
    }
    EXPECT_EQ(found.size(), 3u * 7 + 4);
  }
}

TEST_F(PthFile, TensorsWithAttributes) {
  for (const std::string& path : recorded("_marked")) {
    SCOPED_TRACE(path);
    const auto found = read(path);
    EXPECT_EQ(found.at("plain"), counted(3));
    EXPECT_EQ(found.at("parameter"), counted(4));
    EXPECT_EQ(found.at("buffer"), counted(2));
  }
}

TEST_F(PthFile, OneTensorAlone) {
  for (const std::string& path : recorded("_single")) {
    SCOPED_TRACE(path);
    EXPECT_EQ(read(path), (std::map<std::string, Floats>{{"tensor", counted(6)}}));
  }
}

TEST_F(PthFile, TypesOfNumbers) {
  for (const std::string& path : recorded("_types")) {
    SCOPED_TRACE(path);
    const auto found = read(path);
    const auto weights = checkpoint::open_weights(path);
    std::map<std::string, std::string> types;
    for (const checkpoint::FileTensor& t : weights->tensors()) types[t.name] = t.dtype;
    for (const auto& [name, values] : found)
      EXPECT_EQ(values, name == "i64" ? Floats({0, 1, 2}) : counted(3)) << name;
    EXPECT_EQ(found.size(), types.contains("bf16") ? 4u : 3u);
    const std::map<std::string, std::string> known = {
        {"f64", "float64"}, {"f16", "float16"},     {"bf16", "bfloat16"}, {"i64", "int64"},
        {"i32", "int32"},   {"u8", "uint8"},        {"bool", "bool"},     {"complex", "complex64"},
        {"u16", "uint16"},  {"f8", "float8_e4m3fn"}};
    for (const auto& [name, type] : types) EXPECT_EQ(type, known.at(name)) << name;
  }
}

// Every file, cut at many places, and with single bytes changed: an error or the old number of
// values, and nothing is read beyond the file.
TEST_F(PthFile, DamagedFiles) {
  std::vector<std::string> paths = recorded("_places");
  for (const char* more : {"_training", "_marked"})
    for (const std::string& path : recorded(more)) paths.push_back(path);
  for (const std::string& path : paths) {
    const std::string good = io::read_file(path);
    for (size_t at = 0; at < good.size(); at += 7) {
      EXPECT_NE(problem(file("cut.pth", good.substr(0, at))), "") << path << " cut at " << at;
      std::string other = good;
      other[at] = char(other[at] ^ 0x41);
      problem(file("changed.pth", other));
    }
  }
}

TEST_F(PthFile, NothingIsRun) {
  const std::string mark = directory_ + "/run";
  const std::string command = text("touch " + mark);
  std::map<std::string, std::string> hostile = {
      {"posix.system", "cposix\nsystem\n" + command + "\x85R"},
      {"os.system", "cos\nsystem\n(" + command + "tR"},
      {"builtins.eval", "cbuiltins\neval\n" + command + "\x85R"},
      {"builtins.getattr", "cbuiltins\ngetattr\n(" + command + command + "tR"},
      {"subprocess.Popen", text("subprocess") + text("Popen") + "\x93" + command + "\x85R"},
      {"__main__.Net", "c__main__\nNet\n)\x81}b"},
      {"torch.load", "ctorch\nload\n" + command + "\x85R"},
      {"torch._utils._rebuild_sparse_tensor", "ctorch._utils\n_rebuild_sparse_tensor\n)R"},
  };
  for (const auto& [name, instructions] : hostile) {
    refused("hostile.pth", saved(object(instructions)), "names \"" + name + "\"");
    EXPECT_FALSE(std::filesystem::exists(mark)) << name;
  }
  refused("hostile.pth", saved("(S'touch x'\nios\nsystem\n."), "protocol 2 or newer");
  refused("hostile.pth", saved("\x80\x02(S'touch x'\nios\nsystem\n."), "unknown instruction");
  refused("hostile.pth", saved("\x80\x02\x82\x01."), "unknown instruction");  // an extension's code
}

TEST_F(PthFile, HostileTensors) {
  const std::string two = number(2);
  EXPECT_EQ(read(file("x.pth", saved(object(tensor(two + two, two + number(1)))))).at("x"),
            (Floats{1, 2, 3, 4}));
  EXPECT_EQ(read(file("x.pth", saved(object(tensor(two + two, number(1) + two))))).at("x"),
            (Floats{1, 3, 2, 4}));
  EXPECT_EQ(read(file("x.pth", saved(object(tensor(two, number(1), 2))))).at("x"), (Floats{3, 4}));
  auto bad = [&](const std::string& value, const std::string& fragment) {
    refused("x.pth", saved(object(value)), fragment);
  };
  bad(tensor(two, number(1), 3), "more than the 4 elements");
  bad(tensor(number(5), number(1)), "more than the 4 elements");
  bad(tensor(two, number(4)), "more than the 4 elements");
  bad(tensor(two, "J\xff\xff\xff\xff"), "more than the 4 elements");  // -1
  bad(tensor("J\xff\xff\xff\xff", number(1)), "impossible shape");
  bad(tensor(two + two, number(1)), "impossible shape");
  bad(tensor(number(3), number(1), 0, "DoubleStorage"), "more than the 2 elements");
  bad(tensor(two, number(1), 0, "QInt8Storage"), "torch.QInt8Storage");
  // 2^40 elements from one: known by their shape, and not kept anywhere.
  const std::string many = "\x8a\x06\x00\x00\x00\x00\x00\x01"s;
  const auto wide = checkpoint::open_weights(file("x.pth", saved(object(tensor(many, number(0))))));
  EXPECT_EQ(wide->tensors()[0].count(), int64_t{1} << 40);
  bad(tensor(many + many, number(0) + number(0)), "impossible shape");
}

TEST_F(PthFile, HostilePickles) {
  auto bad = [&](const std::string& pickle, const std::string& fragment) {
    refused("x.pth", saved(pickle), fragment);
  };
  bad("", "cut");
  bad("\x80\x02", "cut");
  bad("\x80\x06N.", "protocol 6");
  bad("\x80\x02X\xff\xff\xff\xffx", "cut");
  bad("\x80\x02.", "a value is missing");
  bad("\x80\x02NN.", "several values");
  bad("\x80\x02(.", "a value is missing");
  bad("\x80\x02t.", "a mark is missing");
  bad("\x80\x02h\x05.", "recalls what it never stored");
  bad("\x80\x02N)R.", "calls something other than a name");
  bad("\x80\x02NNs.", "a value is missing");
  for (const char* digits : {"", "-", "7x", "9223372036854775808"})
    bad("\x80\x02I"s + digits + "\n.", "not one of 64 bits");
  bad("\x80\x02NNa.", "other than a list");
  bad(object(std::string(100, ']') + std::string(99, 'a')), "deep");
  // A list that holds itself, and one that holds the one before twice, thirty times.
  bad("\x80\x02]q\0h\0a."s, "deep");
  std::string doubled = "\x80\x02(]q\0"s;
  for (char i = 1; i < 31; ++i) doubled += "]q"s + i + "h" + char(i - 1) + "ah" + char(i - 1) + "a";
  bad(doubled + "t.", "many places");
  // Many values in few bytes.
  bad("\x80\x02}" + text("x") + "]s.", "holds no tensors");
  bad("\x80\x02}X\x88\x13\x00\x00"s + std::string(5000, 'k') + tensor(number(1), number(1)) + "s.",
      "a longer path");
  bad("\x80\x02(" + std::string(5'000'000, 'N') + "t.", "more than");
}

TEST_F(PthFile, OtherZipArchives) {
  const std::string one = object(tensor(number(2), number(1)));
  refused("x.pth", tests::zip({{"readme.txt", "x"}}), "data.pkl is missing");
  refused("x.pth", tests::zip({{"a/data.pkl", one}}), "storage \"0\" is missing");
  refused("x.pth", tests::zip({{"a/data.pkl", one}, {"b/data.pkl", one}}), "two objects");
  refused("x.pth", tests::zip({{"a/data.pkl", one}, {"a/constants.pkl", ""}}), "TorchScript");
  refused("x.pth", tests::zip({{"a/data.pkl", one}, {"a/byteorder", "middle"}}),
          "unknown order of bytes \"middle\"");
  refused("x.pth", tests::zip({{"a/data.pkl", one + std::string(200, ' ')}}, true), "compressed");
  refused("x.pth", "PK and nothing else", "not a zip archive");
  refused("x.pth", "", "not written by torch.save");
  refused("x.pth", one, "not written by torch.save");
  refused("x.pth", std::string(257, '\0') + "ustar" + std::string(300, '\0'), "before 0.1.10");
}

TEST_F(PthFile, NumbersOfOtherMachines) {
  std::string turned = tests::bytes_of(Floats{1, 2, 3, 4});
  for (size_t at = 0; at < turned.size(); at += 4)
    std::reverse(turned.begin() + std::ptrdiff_t(at), turned.begin() + std::ptrdiff_t(at) + 4);
  const std::string two = number(2);
  for (const auto& [strides, want] : std::map<std::string, Floats>{
           {two + number(1), {1, 2, 3, 4}}, {number(1) + two, {1, 3, 2, 4}}}) {
    const std::string pickle = object(tensor(two + two, strides));
    file("x.pth",
         tests::zip({{"a/data.pkl", pickle}, {"a/data/0", turned}, {"a/byteorder", "big"}}));
    EXPECT_EQ(read(directory_ + "/x.pth").at("x"), want);
  }
}

TEST_F(PthFile, ShardsByTheirIndex) {
  auto shard = [&](const std::string& name, const std::string& tensor_name, float value) {
    file(name, tests::safetensors(
                   "{\"" + tensor_name + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                   tests::bytes_of(Floats{value})));
  };
  shard("m-1.safetensors", "b", 1);
  shard("m-2.safetensors", "a", 2);
  file("m-3.bin", saved("\x80\x02}" + text("c") + tensor(number(4), number(1)) + "s."));
  auto index = [](const std::string& map) {
    return "{\"metadata\":{},\"weight_map\":" + map + "}";
  };
  const std::string name = "m.safetensors.index.json";
  const auto found =
      read(file(name, index(R"({"a":"m-2.safetensors","b":"m-1.safetensors","c":"m-3.bin"})")));
  EXPECT_EQ(found.at("a"), Floats{2});
  EXPECT_EQ(found.at("b"), Floats{1});
  EXPECT_EQ(found.at("c"), (Floats{1, 2, 3, 4}));
  refused(name, "{}", "not an index of weights");
  refused(name, "[", "not an index of weights");
  refused(name, index("{}"), "names no tensor");
  refused("Y.INDEX.JSON", index(R"({"a":"Y.INDEX.JSON"})"), "folder of the index");
  refused(name, index(R"({"a":7})"), "not an index of weights");
  refused(name, index(R"({"a":"../m-2.safetensors"})"), "folder of the index");
  refused(name, index(R"({"a":"m-2.safetensors","x":"m-2.safetensors"})"), "does not hold it");
  refused(name, index(R"({"x":"m-2.safetensors"})"), "does not list a under m-2.safetensors");
  refused(name, index(R"({"a":"m-2.safetensors","b":"m.safetensors.index.json"})"),
          "folder of the index");
  try {
    checkpoint::open_weights(file(name, index(R"({"a":"none.safetensors"})")));
    ADD_FAILURE();
  } catch (const base::Error& e) {
    EXPECT_EQ(std::string(e.what()), directory_ + "/none.safetensors: there is no such file");
  }
}

}  // namespace
