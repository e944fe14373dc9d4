// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/pickle.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>

#include "base/error.hpp"
#include "base/text.hpp"

namespace checkpoint {
namespace {

using Kind = PickleValue::Kind;

// An optimizer state of a large model has some 100,000 values.
constexpr size_t kMostValues = size_t{1} << 22;

[[noreturn]] void refuse(const std::string& what) {
  base::fail(base::Exit::checkpoint, "{}", what);
}

class Machine {
 public:
  Machine(std::string_view text, bool (*is_harmless)(std::string_view))
      : text_(text), is_harmless_(is_harmless) {}

  Pickle run() {
    if (take(1) != "\x80") refuse("is not a pickle of protocol 2 or newer");
    if (const unsigned protocol = byte(); protocol < 2 || protocol > 5)
      refuse(fmt::format("is a pickle of protocol {}; 2 to 5 are known", protocol));
    while (step()) {
    }
    const PickleIndex root = pop();
    if (!stack_.empty()) refuse("is a pickle that leaves several values");
    out_.root = root;
    out_.bytes = int64_t(at_);
    return std::move(out_);
  }

 private:
  // ---- reading
  std::string_view take(uint64_t bytes) {
    if (bytes > text_.size() - at_) refuse("is a pickle that was cut");
    const std::string_view part = text_.substr(at_, size_t(bytes));
    at_ += size_t(bytes);
    return part;
  }
  uint8_t byte() { return uint8_t(take(1)[0]); }
  uint64_t little(int bytes) {
    uint64_t n = 0;
    const std::string_view part = take(uint64_t(bytes));
    for (int i = bytes; i-- > 0;) n = n << 8 | uint8_t(part[size_t(i)]);
    return n;
  }
  std::string line() {
    const size_t end = text_.find('\n', at_);
    if (end == text_.npos) refuse("is a pickle that was cut");
    std::string found(text_.substr(at_, end - at_));
    at_ = end + 1;
    return found;
  }

  // ---- stack
  PickleIndex add(PickleValue value) {
    if (out_.values.size() >= kMostValues)
      refuse(fmt::format("is a pickle of more than {} values",
                         base::with_commas(int64_t(kMostValues))));
    out_.values.push_back(std::move(value));
    return PickleIndex(out_.values.size() - 1);
  }
  void push(PickleValue value) { stack_.push_back(add(std::move(value))); }
  PickleIndex top() const {
    if (stack_.empty() || out_[stack_.back()].kind == Kind::mark)
      refuse("is a damaged pickle: a value is missing");
    return stack_.back();
  }
  PickleIndex pop() {
    const PickleIndex value = top();
    stack_.pop_back();
    return value;
  }
  std::vector<PickleIndex> pop_to_mark() {
    size_t mark = stack_.size();
    do {
      if (mark == 0) refuse("is a damaged pickle: a mark is missing");
    } while (out_[stack_[--mark]].kind != Kind::mark);
    std::vector<PickleIndex> found(stack_.begin() + std::ptrdiff_t(mark) + 1, stack_.end());
    stack_.resize(mark);
    return found;
  }

  // ---- values
  void push_text(uint64_t bytes) {
    const std::string_view text = take(bytes);
    push({.kind = base::is_utf8(text) ? Kind::text : Kind::bytes, .text = std::string(text)});
  }
  void push_bytes(uint64_t bytes) { push({.kind = Kind::bytes, .text = std::string(take(bytes))}); }
  void push_number(int64_t number) { push({.kind = Kind::number, .number = number}); }
  void push_whole_number(uint64_t bytes) {
    const std::string_view digits = take(bytes);
    if (bytes > 8) return push({.kind = Kind::bytes, .text = std::string(digits)});
    uint64_t n = bytes > 0 && (digits.back() & 0x80) ? ~uint64_t{0} : 0;
    for (size_t i = digits.size(); i-- > 0;) n = n << 8 | uint8_t(digits[i]);
    push_number(int64_t(n));
  }
  // Python 2 writes numbers of more than 32 bits so, such as the keys of optimizers' states.
  void push_decimal() {
    const std::string digits = line();
    int64_t n = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    if (error != std::errc() || end != digits.data() + digits.size())
      refuse("is a damaged pickle: a number is not one of 64 bits");
    push_number(n);
  }
  void push_list(std::vector<PickleIndex> items) {
    push({.kind = Kind::list, .items = std::move(items)});
  }
  void push_tuple(size_t size) {
    std::vector<PickleIndex> items(size);
    for (size_t i = size; i-- > 0;) items[i] = pop();
    push_list(std::move(items));
  }
  void push_name(const std::string& name) {
    if (!is_harmless_(name))
      refuse(
          fmt::format("names {}, which can run code or is an object of a program: only tensors in "
                      "dicts and lists "
                      "are read. Save the state_dict of the model alone",
                      base::quoted(name)));
    push({.kind = Kind::name, .text = name});
  }
  void push_call(size_t arguments) {
    std::vector<PickleIndex> items(arguments + 1);
    for (size_t i = arguments + 1; i-- > 0;) items[i] = pop();
    if (out_[items[0]].kind != Kind::name)
      refuse("is a damaged pickle: it calls something other than a name");
    push({.kind = Kind::call, .items = std::move(items)});
  }
  void append(const std::vector<PickleIndex>& items) {
    PickleValue& list = out_.values[top()];
    if (list.kind != Kind::list)
      refuse("is a damaged pickle: it appends to something other than a list");
    list.items.insert(list.items.end(), items.begin(), items.end());
  }
  void set(const std::vector<PickleIndex>& items) {
    PickleValue& dict = out_.values[top()];
    if ((dict.kind != Kind::dict && dict.kind != Kind::call) || items.size() % 2)
      refuse("is a damaged pickle: it sets items of something other than a dict");
    for (size_t i = 0; i < items.size(); i += 2) dict.pairs.emplace_back(items[i], items[i + 1]);
  }
  void build() {
    const PickleIndex state = pop();
    PickleValue& object = out_.values[top()];
    if (object.kind != Kind::call)
      refuse("is a damaged pickle: it gives a state to something other than an object");
    object.items.push_back(state);
  }
  void remember(uint64_t place) { memo_[place] = top(); }
  void recall(uint64_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) refuse("is a damaged pickle: it recalls what it never stored");
    stack_.push_back(found->second);
  }

  void drop() {
    if (stack_.empty()) refuse("is a damaged pickle: a value is missing");
    stack_.pop_back();
  }
  void append_one() {
    const PickleIndex item = pop();
    append({item});
  }
  void set_one() {
    const PickleIndex value = pop(), key = pop();
    set({key, value});
  }
  void push_name_of_lines() {
    const std::string module = line();
    push_name(module + "." + line());
  }
  void push_name_of_stack() {
    const PickleIndex name = pop(), module = pop();
    push_name(out_[module].text + "." + out_[name].text);
  }

  using Instruction = void (*)(Machine&);
  static const std::map<uint8_t, Instruction>& instructions() {
    static const std::map<uint8_t, Instruction> all = {
        {'(', [](Machine& m) { m.push({.kind = Kind::mark}); }},
        {'0', [](Machine& m) { m.drop(); }},
        {'1', [](Machine& m) { m.pop_to_mark(); }},
        {'2', [](Machine& m) { m.stack_.push_back(m.top()); }},
        {'N', [](Machine& m) { m.push({}); }},
        {0x88, [](Machine& m) { m.push_number(1); }},
        {0x89, [](Machine& m) { m.push_number(0); }},
        {'I', [](Machine& m) { m.push_decimal(); }},
        {'J', [](Machine& m) { m.push_number(int32_t(uint32_t(m.little(4)))); }},
        {'K', [](Machine& m) { m.push_number(m.byte()); }},
        {'M', [](Machine& m) { m.push_number(int64_t(m.little(2))); }},
        {0x8a, [](Machine& m) { m.push_whole_number(m.byte()); }},
        {0x8b, [](Machine& m) { m.push_whole_number(m.little(4)); }},
        {'G', [](Machine& m) { m.push_bytes(8); }},
        {'U', [](Machine& m) { m.push_text(m.byte()); }},
        {0x8c, [](Machine& m) { m.push_text(m.byte()); }},
        {'T', [](Machine& m) { m.push_text(m.little(4)); }},
        {'X', [](Machine& m) { m.push_text(m.little(4)); }},
        {0x8d, [](Machine& m) { m.push_text(m.little(8)); }},
        {'C', [](Machine& m) { m.push_bytes(m.byte()); }},
        {'B', [](Machine& m) { m.push_bytes(m.little(4)); }},
        {0x8e, [](Machine& m) { m.push_bytes(m.little(8)); }},
        {0x96, [](Machine& m) { m.push_bytes(m.little(8)); }},
        {']', [](Machine& m) { m.push_list({}); }},
        {')', [](Machine& m) { m.push_list({}); }},
        {0x8f, [](Machine& m) { m.push_list({}); }},
        {'l', [](Machine& m) { m.push_list(m.pop_to_mark()); }},
        {'t', [](Machine& m) { m.push_list(m.pop_to_mark()); }},
        {0x91, [](Machine& m) { m.push_list(m.pop_to_mark()); }},
        {0x85, [](Machine& m) { m.push_tuple(1); }},
        {0x86, [](Machine& m) { m.push_tuple(2); }},
        {0x87, [](Machine& m) { m.push_tuple(3); }},
        {'a', [](Machine& m) { m.append_one(); }},
        {'e', [](Machine& m) { m.append(m.pop_to_mark()); }},
        {0x90, [](Machine& m) { m.append(m.pop_to_mark()); }},
        {'}', [](Machine& m) { m.push({.kind = Kind::dict}); }},
        {'s', [](Machine& m) { m.set_one(); }},
        {'u', [](Machine& m) { m.set(m.pop_to_mark()); }},
        {'c', [](Machine& m) { m.push_name_of_lines(); }},
        {0x93, [](Machine& m) { m.push_name_of_stack(); }},
        {'R', [](Machine& m) { m.push_call(1); }},
        {0x81, [](Machine& m) { m.push_call(1); }},
        {0x92, [](Machine& m) { m.push_call(2); }},
        {'b', [](Machine& m) { m.build(); }},
        {'Q', [](Machine& m) { m.push({.kind = Kind::outside, .items = {m.pop()}}); }},
        {'q', [](Machine& m) { m.remember(m.byte()); }},
        {'r', [](Machine& m) { m.remember(m.little(4)); }},
        {0x94, [](Machine& m) { m.remember(m.memo_.size()); }},
        {'h', [](Machine& m) { m.recall(m.byte()); }},
        {'j', [](Machine& m) { m.recall(m.little(4)); }},
        {0x95, [](Machine& m) { m.little(8); }},  // a frame, whose parts are read as they come
    };
    return all;
  }

  // Does one instruction. Returns false at the last one.
  bool step() {
    const uint8_t code = byte();
    if (code == '.') return false;
    const auto found = instructions().find(code);
    if (found == instructions().end())
      refuse(fmt::format("is a pickle with the unknown instruction {:#04x}", code));
    found->second(*this);
    return true;
  }

  std::string_view text_;
  bool (*is_harmless_)(std::string_view);
  size_t at_ = 0;
  Pickle out_;
  std::vector<PickleIndex> stack_;
  std::map<uint64_t, PickleIndex> memo_;
};

}  // namespace

Pickle parse_pickle(std::string_view text, bool (*is_harmless)(std::string_view name)) {
  return Machine(text, is_harmless).run();
}

}  // namespace checkpoint
