// SPDX-License-Identifier: Apache-2.0
// Reads initial weights from a file of torch.save (.pth, .pt, .bin, .ckpt, .torch), without PyTorch
// and without running anything (pickle.hpp). Such a file is
//   a zip archive (since PyTorch 1.6): NAME/data.pkl and the numbers of each storage, stored in
//   NAME/data/KEY; or
//   pickles of a magic number, a version, facts of the system, the object and the keys of the
//   storages; then for each key the number of its elements (8 bytes) and the elements.
// A tensor of the object is a call: _rebuild_tensor_v2(storage, offset, sizes, strides, ...). Its
// name is the path of dict keys to it, joined by dots: "state_dict.module.conv1.weight".
// Format: torch/serialization.py and torch/_utils.py. Checksums of the archive are not read, as
// PyTorch neither reads nor always writes them.
#include <algorithm>
#include <map>
#include <set>

#include "base/text.hpp"
#include "checkpoint/pickle.hpp"
#include "checkpoint/weight_file.hpp"
#include "checkpoint/zip_members.hpp"
#include "io/files.hpp"

namespace checkpoint {
namespace {

using Kind = PickleValue::Kind;

constexpr int64_t kLongestPickle = int64_t{256} << 20;
constexpr int kDeepestObject = 32;
constexpr int64_t kMostVisits = int64_t{1} << 22;
constexpr int64_t kMostAxes = 64;
// The number 0x1950a86a20f9469cfc6c, as pickles hold it.
constexpr std::string_view kOldMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr size_t kLongestKeys = 1024;
constexpr int64_t kOldVersion = 1001;

// A type of elements. `type` is none for numbers that cannot be weights.
struct Elements {
  std::string name;
  int64_t bytes;
  std::optional<device::DType> type;
};

// By the class of a storage.
const std::map<std::string, Elements, std::less<>>& storages() {
  using device::DType;
  static const std::map<std::string, Elements, std::less<>> all = {
      {"torch.DoubleStorage", {"float64", 8, DType::f64}},
      {"torch.FloatStorage", {"float32", 4, DType::f32}},
      {"torch.HalfStorage", {"float16", 2, DType::f16}},
      {"torch.BFloat16Storage", {"bfloat16", 2, DType::bf16}},
      {"torch.LongStorage", {"int64", 8, DType::i64}},
      {"torch.IntStorage", {"int32", 4, {}}},
      {"torch.ShortStorage", {"int16", 2, {}}},
      {"torch.CharStorage", {"int8", 1, {}}},
      {"torch.ByteStorage", {"uint8", 1, {}}},
      {"torch.BoolStorage", {"bool", 1, {}}},
      {"torch.ComplexFloatStorage", {"complex64", 8, {}}},
      {"torch.ComplexDoubleStorage", {"complex128", 16, {}}},
      {"torch.storage.UntypedStorage", {"bytes", 1, {}}},
  };
  return all;
}

// By the type that _rebuild_tensor_v3 is given for bytes.
const std::map<std::string, Elements, std::less<>>& types_of_bytes() {
  static const std::map<std::string, Elements, std::less<>> all = {
      {"torch.uint16", {"uint16", 2, {}}},
      {"torch.uint32", {"uint32", 4, {}}},
      {"torch.uint64", {"uint64", 8, {}}},
      {"torch.float8_e4m3fn", {"float8_e4m3fn", 1, {}}},
      {"torch.float8_e5m2", {"float8_e5m2", 1, {}}},
      {"torch.float8_e4m3fnuz", {"float8_e4m3fnuz", 1, {}}},
      {"torch.float8_e5m2fnuz", {"float8_e5m2fnuz", 1, {}}},
      {"torch.float8_e8m0fnu", {"float8_e8m0fnu", 1, {}}},
      {"torch.float4_e2m1fn_x2", {"float4_e2m1fn_x2", 1, {}}},
      {"torch.complex32", {"complex32", 4, {}}},
  };
  return all;
}

// Names that a file may hold beside its tensors. What they make is left unread.
bool is_harmless(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "torch._utils._rebuild_tensor",
      "torch._utils._rebuild_tensor_v2",
      "torch._utils._rebuild_tensor_v3",
      "torch._utils._rebuild_parameter",
      "torch._utils._rebuild_parameter_with_state",
      "torch._tensor._rebuild_from_type_v2",
      "torch.Tensor",
      "torch.Size",
      "torch.int8",
      "torch.uint8",
      "torch.int16",
      "collections.Counter",
      "datetime.date",
      "datetime.datetime",
      "pathlib.Path",
      "pathlib.PosixPath",
      "torch.device",
      "torch.float64",
      "torch.float32",
      "torch.float16",
      "torch.bfloat16",
      "torch.int64",
      "torch.int32",
      "torch.bool",
      "collections.OrderedDict",
      "collections.defaultdict",
      "argparse.Namespace",
      "numpy.dtype",
      "numpy.ndarray",
      "numpy.core.multiarray.scalar",
      "numpy.core.multiarray._reconstruct",
      "numpy._core.multiarray.scalar",
      "numpy._core.multiarray._reconstruct",
      "_codecs.encode",
  };
  static constexpr std::string_view kBuiltins[] = {"dict", "list",  "set", "frozenset",
                                                   "int",  "float", "bool"};
  if (std::ranges::find(kNames, name) != std::end(kNames)) return true;
  for (const std::string_view module : {"builtins.", "__builtin__."})
    if (name.starts_with(module))
      return std::ranges::find(kBuiltins, name.substr(module.size())) != std::end(kBuiltins);
  return storages().contains(name) || types_of_bytes().contains(name);
}

// The numbers of one or more tensors, in a row.
struct Storage {
  int64_t begins = 0, bytes = 0;  // in the file
};

class PthReader : public WeightFile {
 public:
  explicit PthReader(const std::string& path)
      : WeightFile(path), file_(path, io::File::Mode::read) {
    const std::string head = text_at(0, std::min<int64_t>(file_.size(), 512));
    try {
      if (head.starts_with("PK"))
        open_zip();
      else if (head.starts_with('\x80'))
        open_old();
      else if (head.size() > 262 && head.substr(257, 5) == "ustar")
        refuse("is a file of PyTorch before 0.1.10: load it with PyTorch and save it again");
      else
        refuse("was not written by torch.save, or is damaged");
      visit(pickle_.root, "", 0);
      if (tensors().empty())
        refuse("holds no tensors below keys of text or numbers (NumPy arrays are not read)");
    } catch (const base::Error& e) {
      const std::string what = e.what();
      if (what.starts_with(path)) throw;
      refuse(what);
    }
    pickle_ = {};
  }

 private:
  // ---- the file
  std::string text_at(int64_t offset, int64_t bytes) const {
    std::string text(size_t(bytes), '\0');
    file_.read_at(text.data(), bytes, offset);
    return text;
  }

  void open_zip() {
    std::string root;
    std::map<std::string, ZipMember> members;
    for (ZipMember& member : zip_members(path())) {
      const std::string name = member.name;
      if (name.ends_with("/data.pkl") && name.find('/') == name.size() - 9) {
        if (!root.empty()) refuse("holds two objects");
        root = name.substr(0, name.size() - 8);
      }
      if (!members.emplace(name, std::move(member)).second)
        refuse(fmt::format("{} appears twice", base::quoted(name)));
    }
    if (root.empty()) refuse("is a zip archive that torch.save did not write: data.pkl is missing");
    if (members.contains(root + "constants.pkl"))
      refuse("is a TorchScript program: save the state_dict of the model with torch.save");
    auto stored = [&](const ZipMember& m) {
      if (!m.begins)
        refuse(
            fmt::format("{} is compressed, which torch.save never does: unpack the archive, and "
                        "pack it with zip -0",
                        base::quoted(m.name)));
    };
    auto all_of = [&](const ZipMember& m) {
      stored(m);
      if (m.bytes > kLongestPickle) refuse(fmt::format("{} has {} bytes", m.name, m.bytes));
      return text_at(*m.begins, m.bytes);
    };
    if (const auto order = members.find(root + "byteorder"); order != members.end()) {
      const std::string says = all_of(order->second);
      turned_ = says == "big";
      if (!turned_ && says != "little")
        refuse(fmt::format("has the unknown order of bytes {}", base::quoted(says, 40)));
    }
    pickle_ = parse_pickle(all_of(members.at(root + "data.pkl")), is_harmless);
    for (const auto& [name, member] : members) {
      const std::string folder = root + "data/";
      if (!name.starts_with(folder)) continue;
      stored(member);
      storages_[name.substr(folder.size())] = {*member.begins, member.bytes};
    }
  }

  void open_old() {
    const int64_t size = file_.size();
    const std::string text = text_at(0, std::min(size, kLongestPickle));
    int64_t read = 0;
    auto next = [&] {
      Pickle one = parse_pickle(std::string_view(text).substr(size_t(read)), is_harmless);
      read += one.bytes;
      return one;
    };
    const Pickle magic = next();
    if (magic[magic.root].text != kOldMagic) refuse("was not written by torch.save, or is damaged");
    const Pickle version = next();
    if (version[version.root].number != kOldVersion)
      refuse(fmt::format("has version {} of its format; {} is known", version[version.root].number,
                         kOldVersion));
    next();  // facts of the system
    pickle_ = next();
    const Pickle keys = next();
    int64_t at = read;
    std::map<std::string, int64_t> element_bytes;
    for (const PickleValue& v : pickle_.values)
      if (v.kind == Kind::outside) {
        const auto [key, elements] = storage_id(v);
        const auto [known, is_new] = element_bytes.emplace(key, elements->bytes);
        if (!is_new && known->second != elements->bytes)
          refuse(fmt::format("gives the storage {} two types", base::quoted(key)));
      }
    for (const PickleIndex k : keys[keys.root].items) {
      const std::string& key = keys[k].text;
      const auto bytes = element_bytes.find(key);
      if (bytes == element_bytes.end())
        refuse(fmt::format("has a storage {} that no tensor uses", base::quoted(key)));
      if (size - at < 8) refuse("was cut");
      int64_t count = 0;
      file_.read_at(&count, 8, at);
      at += 8;
      if (count < 0 || count > (size - at) / bytes->second)
        refuse(fmt::format("claims {} numbers of {} bytes, where {} bytes are left: cut or damaged",
                           count, bytes->second, size - at));
      storages_[key] = {at, count * bytes->second};
      at += count * bytes->second;
    }
  }

  // ---- the object
  // Returns the key and the type of the storage that a value means.
  std::pair<std::string, const Elements*> storage_id(const PickleValue& outside) const {
    const PickleValue& id = pickle_[outside.items[0]];
    if (id.kind != Kind::list || id.items.size() < 5 || pickle_[id.items[0]].text != "storage")
      refuse("refers to something other than a storage");
    if (id.items.size() > 5 && pickle_[id.items[5]].kind != Kind::none)
      refuse("holds a view of a storage, as PyTorch before 0.4 wrote it: save it again");
    const auto type = storages().find(pickle_[id.items[1]].text);
    if (type == storages().end())
      refuse(fmt::format("has a storage of the unknown class {}",
                         base::quoted(pickle_[id.items[1]].text)));
    return {pickle_[id.items[2]].text, &type->second};
  }

  std::vector<int64_t> numbers(PickleIndex i) const {
    if (pickle_.is_call_of(i, "torch.Size")) {
      const PickleValue& arguments = pickle_[pickle_[i].items[1]];
      if (arguments.items.size() == 1) i = arguments.items[0];
    }
    std::vector<int64_t> found;
    for (const PickleIndex item : pickle_[i].items) {
      if (pickle_[item].kind != Kind::number)
        refuse("has a tensor whose shape is not a list of numbers");
      found.push_back(pickle_[item].number);
    }
    return found;
  }

  void visit(PickleIndex i, const std::string& name, int depth) {
    if (depth > kDeepestObject || ++visits_ > kMostVisits)
      refuse(fmt::format("nests dicts and lists more than {} deep, or holds one in many places",
                         kDeepestObject));
    auto below = [&](const std::string& key, PickleIndex item) {
      const Kind kind = pickle_[item].kind;
      if (kind != Kind::list && kind != Kind::dict && kind != Kind::call) return;
      if (name.size() + key.size() > kLongestKeys)
        refuse(fmt::format("has a longer path of keys than {} bytes: {}", kLongestKeys,
                           base::quoted(name + key, 40)));
      visit(item, name.empty() ? key : name + "." + key, depth + 1);
    };
    const PickleValue& v = pickle_[i];
    if (v.kind == Kind::list)
      for (size_t n = 0; n < v.items.size(); ++n) below(std::to_string(n), v.items[n]);
    for (const auto& [key, item] : v.pairs) {
      const PickleValue& k = pickle_[key];
      if (k.kind == Kind::text) below(k.text, item);
      if (k.kind == Kind::number) below(std::to_string(k.number), item);
    }
    if (v.kind != Kind::call) return;
    const std::string* called = &pickle_[v.items[0]].text;
    const std::vector<PickleIndex>* arguments = &pickle_[v.items[1]].items;
    // A tensor with attributes: (what rebuilds it, its class, the arguments of that, attributes).
    if (*called == "torch._tensor._rebuild_from_type_v2" && arguments->size() >= 3) {
      called = &pickle_[(*arguments)[0]].text;
      arguments = &pickle_[(*arguments)[2]].items;
    }
    if (*called == "collections.OrderedDict" && !arguments->empty()) {  // Python 2: a list of pairs
      for (const PickleIndex pair : pickle_[(*arguments)[0]].items)
        if (const auto& two = pickle_[pair].items; two.size() == 2)
          below(pickle_[two[0]].text, two[1]);
    } else if (called->starts_with("torch._utils._rebuild_parameter") && !arguments->empty()) {
      visit((*arguments)[0], name, depth + 1);
    } else if (called->starts_with("torch._utils._rebuild_tensor")) {
      list(name, *called, *arguments);
    }
  }

  void list(const std::string& name, const std::string& called,
            const std::vector<PickleIndex>& arguments) {
    auto bad = [&](const std::string& what) {
      refuse(fmt::format("{}: {}", base::one_line(name, 80), what));
    };
    if (arguments.size() < 4 || pickle_[arguments[0]].kind != Kind::outside ||
        pickle_[arguments[1]].kind != Kind::number)
      bad("is not made from a storage");
    const bool typed = !called.ends_with("_v3");
    auto [key, elements] = storage_id(pickle_[arguments[0]]);
    if (!typed) {
      if (arguments.size() < 7) bad("has no type");
      const auto type = types_of_bytes().find(pickle_[arguments[6]].text);
      if (type == types_of_bytes().end()) bad("has a type that is unknown");
      elements = &type->second;
    }
    const size_t facts = typed ? 6 : 7;
    if (arguments.size() > facts && !pickle_[arguments[facts]].pairs.empty())
      bad("is conjugated, negated or otherwise marked: save a plain copy of it");
    const auto storage = storages_.find(key);
    if (storage == storages_.end())
      bad(fmt::format("its storage {} is missing", base::quoted(key)));

    FileTensor t{name.empty() ? "tensor" : name, numbers(arguments[2]), elements->type,
                 elements->name};
    Place place{.strides = numbers(arguments[3])};
    const int64_t first = pickle_[arguments[1]].number;
    const std::optional<int64_t> count = checked_count(t.shape);
    if (!count || int64_t(t.shape.size()) > kMostAxes || place.strides.size() != t.shape.size())
      bad(fmt::format("impossible shape [{}] with strides [{}]", fmt::join(t.shape, ", "),
                      fmt::join(place.strides, ", ")));
    // One past the last element that the tensor reads of its storage.
    int64_t end = first, row = 1;
    bool fits = first >= 0;
    for (size_t axis = t.shape.size(); axis-- > 0 && *count > 0;) {
      int64_t span = 0;
      fits = fits && place.strides[axis] >= 0 &&
             !__builtin_mul_overflow(t.shape[axis] - 1, place.strides[axis], &span) &&
             !__builtin_add_overflow(end, span, &end);
      place.in_rows = place.in_rows && (t.shape[axis] == 1 || place.strides[axis] == row);
      row *= t.shape[axis];
    }
    const int64_t there = storage->second.bytes / elements->bytes;
    if (!fits || (*count > 0 && end >= there))
      bad(fmt::format(
          "[{}] with strides [{}] from element {} needs more than the {} elements of its "
          "storage: cut or damaged",
          fmt::join(t.shape, ", "), fmt::join(place.strides, ", "), first, there));
    place.size = elements->bytes;
    place.begins = storage->second.begins + (*count > 0 ? first * elements->bytes : 0);
    place.elements = *count > 0 ? end - first + 1 : 0;
    if (!names_.insert(t.name).second) bad("appears twice");
    places_.push_back(std::move(place));
    add(std::move(t));
  }

  // ---- reading
  void seek(size_t tensor) override {
    place_ = &places_[tensor];
    shape_ = &tensors()[tensor].shape;
    at_ = 0;
    if (!place_->in_rows) {
      spread_ = text_at(place_->begins, place_->elements * place_->size);
      index_.assign(shape_->size(), 0);
    }
  }
  void take(char* to, int64_t bytes) override {
    if (place_->in_rows) {
      file_.read_at(to, bytes, place_->begins + at_);
      at_ += bytes;
    } else {
      gather(to, bytes);
    }
    if (turned_)
      for (char* end = to + bytes; to < end; to += place_->size)
        std::reverse(to, to + place_->size);
  }
  void gather(char* to, int64_t bytes) {
    for (; bytes > 0; bytes -= place_->size, to += place_->size) {
      std::copy_n(spread_.data() + at_ * place_->size, place_->size, to);
      for (size_t axis = index_.size(); axis-- > 0;) {
        at_ += place_->strides[axis];
        if (++index_[axis] < (*shape_)[axis]) break;
        at_ -= place_->strides[axis] * (*shape_)[axis];
        index_[axis] = 0;
      }
    }
  }

  struct Place {
    int64_t begins = 0;    // offset of the first element in the file
    int64_t size = 0;      // bytes of an element
    int64_t elements = 0;  // from the first to the last one that the tensor reads
    std::vector<int64_t> strides;
    bool in_rows = true;  // the elements lie in C order without gaps
  };
  io::File file_;
  Pickle pickle_;
  bool turned_ = false;                      // the most significant byte of a number comes first
  std::map<std::string, Storage> storages_;  // by key
  int64_t visits_ = 0;
  std::set<std::string> names_;
  std::vector<Place> places_;
  // The state of reading the current tensor:
  const Place* place_ = nullptr;
  const std::vector<int64_t>* shape_ = nullptr;
  int64_t at_ = 0;  // bytes that were read; elements behind the first if they are not in rows
  std::string spread_;
  std::vector<int64_t> index_;
};

}  // namespace

std::unique_ptr<WeightFile> open_pth_weights(const std::string& path) {
  return std::make_unique<PthReader>(path);
}

}  // namespace checkpoint
