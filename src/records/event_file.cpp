// SPDX-License-Identifier: Apache-2.0
#include "records/event_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <vector>

#include "base/log.hpp"

namespace records {
namespace {

// ---------------------------------------------------------------- the wire format of messages

namespace proto {

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += char(value | 0x80);
  return out + char(value);
}

// Little endian, as every machine that this program runs on.
template <class T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

enum class Wire : uint64_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

std::string key(int field, Wire wire) { return varint(uint64_t(field) << 3 | uint64_t(wire)); }
std::string integer(int field, int64_t value) {
  return key(field, Wire::varint) + varint(uint64_t(value));
}
std::string real(int field, double value) { return key(field, Wire::fixed64) + raw(value); }
std::string bytes(int field, std::string_view value) {
  return key(field, Wire::bytes) + varint(value.size()) + std::string(value);
}
std::string reals(int field, const std::vector<double>& values) {
  return bytes(field,
               {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)});
}

}  // namespace proto

// ---------------------------------------------------------------- messages

std::string event(int64_t step, const std::string& what) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return tf_record(proto::real(1, now) + proto::integer(2, step) + what);
}

double value_of(const MetricValues& values, std::string_view name) {
  for (const auto& [known, value] : values)
    if (known == name) return value;
  return 0;
}

constexpr std::string_view kPrefix = "events.out.tfevents.";

// Returns the path of the next file in the folder.
std::string next_file(const std::string& folder) {
  int64_t newest = 0;
  for (const std::string& name : io::list_directory(folder)) {
    int64_t number = 0;
    if (!name.starts_with(kPrefix)) continue;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), number);
    newest = std::max(newest, number);
  }
  return fmt::format("{}/{}{:010}", folder, kPrefix, newest + 1);
}

constexpr int64_t kMostEvents = int64_t{64} << 20;

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> out{};
    for (uint32_t i = 0; i < out.size(); ++i) {
      out[i] = i;
      for (int bit = 0; bit < 8; ++bit) out[i] = (out[i] >> 1) ^ (out[i] & 1 ? 0x82f63b78 : 0);
    }
    return out;
  }();
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) crc = (crc >> 8) ^ table[(crc ^ uint8_t(byte)) & 0xff];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8; }

std::string tf_record(std::string_view bytes) {
  const std::string length = proto::raw(uint64_t(bytes.size()));
  return length + proto::raw(masked_crc32c(length)) + std::string(bytes) +
         proto::raw(masked_crc32c(bytes));
}

void Summary::add(const std::string& value) { bytes_ += proto::bytes(1, value); }

void Summary::scalar(const std::string& tag, double value) {
  add(proto::bytes(1, tag) + proto::key(2, proto::Wire::fixed32) + proto::raw(float(value)));
}

void Summary::histogram(const std::string& tag, const MetricValues& values) {
  const double count = value_of(values, "count"), rms = value_of(values, "rms");
  std::vector<double> limits, counts;
  for (const Bucket& bucket : buckets_of(values)) {
    const BucketRange range = range_of(bucket.number);
    // Each bucket begins at the previous limit, and the first one at the least value.
    if (!limits.empty() && limits.back() < range.low) {
      limits.push_back(range.low);
      counts.push_back(0);
    }
    limits.push_back(range.high);
    counts.push_back(bucket.count);
  }
  add(proto::bytes(1, tag) +
      proto::bytes(5, proto::real(1, value_of(values, "min")) +
                          proto::real(2, value_of(values, "max")) + proto::real(3, count) +
                          proto::real(4, count * value_of(values, "mean")) +
                          proto::real(5, count * rms * rms) + proto::reals(6, limits) +
                          proto::reals(7, counts)));
}

void Summary::text(const std::string& tag, const std::string& markdown) {
  constexpr int kText = 7;  // the element type of texts
  const std::string one_element = proto::bytes(2, proto::integer(1, 1));
  add(proto::bytes(1, tag) +
      proto::bytes(
          8, proto::integer(1, kText) + proto::bytes(2, one_element) + proto::bytes(8, markdown)) +
      proto::bytes(9, proto::bytes(1, proto::bytes(1, "text"))));
}

void Summary::png(const std::string& tag, int64_t height, int64_t width, int64_t channels,
                  const std::string& file) {
  add(proto::bytes(1, tag) +
      proto::bytes(4, proto::integer(1, height) + proto::integer(2, width) +
                          proto::integer(3, channels) + proto::bytes(4, file)));
}

EventFile::EventFile(const std::string& folder, int64_t step)
    : records_(next_file(folder), kMostEvents), first_step_(step) {
  begin();
}

void EventFile::begin() {
  constexpr int kStart = 1;
  records_.append(event(0, proto::bytes(3, "brain.Event:2")) +
                  event(first_step_, proto::bytes(7, proto::integer(1, kStart))));
}

void EventFile::write(int64_t step, const Summary& summary) {
  if (!summary.empty()) records_.append(event(step, proto::bytes(5, summary.bytes())));
}

void EventFile::flush() {
  if (records_.keep()) {
    base::log::warning("{} was removed while this job writes it: begun again", records_.path());
    begin();
  }
  records_.sync();
}

}  // namespace records
