// SPDX-License-Identifier: Apache-2.0
// Event files of TensorBoard: records of the messages Event and Summary, in the form of TFRecord.
// Only the fields that this program writes are supported.
//
//   RUN/tensorboard/events.out.tfevents.0000000003      one file per attempt, in their order
//
// The first record holds the version. The second one begins a session at a step. A reader then
// drops the events of earlier files from that step on. A killed job may leave a torn record at the
// end of its file. Readers stop there and go on with the next file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "io/waiting.hpp"
#include "records/tensor_rows.hpp"

namespace records {

// CRC-32C, and the masked form that records store.
uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);
// Length, its checksum, the bytes, their checksum.
std::string tf_record(std::string_view bytes);

// The values of one event, encoded.
class Summary {
 public:
  void scalar(const std::string& tag, double value);
  // `values`: a row of a histogram (tensor_rows.hpp).
  void histogram(const std::string& tag, const MetricValues& values);
  void text(const std::string& tag, const std::string& markdown);
  void png(const std::string& tag, int64_t height, int64_t width, int64_t channels,
           const std::string& file);
  bool empty() const { return bytes_.empty(); }
  const std::string& bytes() const { return bytes_; }

 private:
  void add(const std::string& value);
  std::string bytes_;
};

class EventFile {
 public:
  // Begins the folder's next file, with a session that replaces all events from `step` on.
  EventFile(const std::string& folder, int64_t step);
  void write(int64_t step, const Summary& summary);
  // Makes sure that events are on the disk. Begins the file again if it was removed.
  void flush();

 private:
  void begin();
  io::WaitingLines records_;
  int64_t first_step_;
};

}  // namespace records
