// SPDX-License-Identifier: Apache-2.0
#include "data/stream/loader.hpp"

#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/span.hpp"
#include "base/thread_scope.hpp"

namespace data {
// The batches that are not in use. The pool lives as long as the last batch, which may outlive the
// loader.
struct Loader::Pool {
  std::mutex mutex;
  std::vector<std::unique_ptr<Batch>> idle;

  std::unique_ptr<Batch> take() {
    std::lock_guard lock(mutex);
    if (idle.empty()) return std::make_unique<Batch>();
    std::unique_ptr<Batch> b = std::move(idle.back());
    idle.pop_back();
    return b;
  }
  void give(std::unique_ptr<Batch> b) {
    std::lock_guard lock(mutex);
    idle.push_back(std::move(b));
  }
};

struct Loader::Slot {
  std::unique_ptr<Batch> batch;
  int64_t rows = 0;  // rows to fill; reduced after a failure
  int64_t taken = 0, done = 0;
  int64_t bad_row = std::numeric_limits<int64_t>::max();
  std::exception_ptr error;                         // error of bad_row
  std::map<int64_t, std::vector<BadSample>> found;  // bad samples, by the row that got a substitute
  bool complete() const { return taken == rows && done == taken; }
};

const Array& Batch::array(const std::string& field) const {
  auto it = arrays.find(field);
  CHECK(it != arrays.end(), "the batch has no field '{}'", field);
  return it->second;
}

void check_batchable(const Spec& spec) {
  if (spec.empty()) base::fail(base::Exit::config, "there are no fields");
  for (auto& [field, known] : spec) {
    if (known.fixed()) continue;
    const char* hint = known.kind == FieldSpec::Kind::bytes  ? "decode and resize it"
                       : known.kind == FieldSpec::Kind::text ? "tokenize it"
                                                             : "resize it to one size";
    base::fail(base::Exit::config,
               "field '{}' is {}, which cannot be stacked into a batch: {}, or leave it out with "
               "keep(...)",
               field, text_of(known), hint);
  }
}

Loader::Loader(Mixture mixture, const LoaderOptions& options, LoaderPlan plan)
    : mixture_(std::move(mixture)),
      options_(options),
      plan_(std::move(plan)),
      pool_(std::make_shared<Pool>()),
      opened_(plan_.first),
      next_(plan_.first) {
  check_batchable(mixture_.spec());
  CHECK(plan_.positions != nullptr, "no plan");
  try {
    for (int64_t t = 0; t < std::max<int64_t>(options.threads, 1); ++t)
      threads_.emplace_back([this, t] { work(t); });
  } catch (...) {
    stop();
    throw;
  }
}

Loader::~Loader() { stop(); }

void Loader::stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  takeable_.notify_all();
  for (std::thread& t : threads_) t.join();
  threads_.clear();
}

bool Loader::can_take() const {
  if (!slots_.empty() && slots_.back()->taken < slots_.back()->rows) return true;
  return !failed_ && !opening_ && opened_ < plan_.end &&
         int64_t(slots_.size()) < std::max<int64_t>(options_.prefetch, 1);
}

// Gives a batch its buffers and positions. The caller does not hold the lock, so other threads can
// fill rows of the previous batch.
std::unique_ptr<Loader::Slot> Loader::make_slot(int64_t number) const {
  auto slot = std::make_unique<Slot>();
  slot->batch = pool_->take();
  Batch& batch = *slot->batch;
  batch.number = number;
  try {
    batch.positions = plan_.positions(batch.number);
    int64_t n = batch.size();
    batch.indices.assign(size_t(n), -1);
    batch.parts.assign(size_t(n), 0);
    batch.mask.reset(device::DType::u8, {n});
    for (auto& [field, known] : mixture_.spec()) {
      std::vector<int64_t> shape{n};
      shape.insert(shape.end(), known.shape.begin(), known.shape.end());
      batch.arrays[field].reset(known.type, std::move(shape));
    }
    slot->rows = n;
  } catch (...) {
    slot->error = std::current_exception();
  }
  return slot;
}

void Loader::work(int64_t number) {
  const base::ThreadScope scope(fmt::format("loader {}", number));
  std::unique_lock lock(mutex_);
  while (true) {
    takeable_.wait(lock, [this] { return stopped_ || can_take(); });
    if (stopped_) return;
    if (slots_.empty() || slots_.back()->taken == slots_.back()->rows) {
      opening_ = true;
      const int64_t next = opened_++;
      lock.unlock();
      std::unique_ptr<Slot> slot = make_slot(next);
      lock.lock();
      opening_ = false;
      if (slot->error) failed_ = true;
      if (slot->rows == 0) deliverable_.notify_all();
      slots_.push_back(std::move(slot));
      takeable_.notify_all();
      continue;
    }
    Slot& slot = *slots_.back();
    int64_t row = slot.taken++;
    lock.unlock();
    std::exception_ptr error;
    std::vector<BadSample> bad;
    try {
      base::Span span("load a sample", row, base::SpanKind::load);
      bad = fill(slot, row);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    ++slot.done;
    if (!bad.empty()) slot.found[row] = std::move(bad);
    if (error) {
      // Rows are handed out in order, so all rows before this one have been started. The first bad
      // row therefore does not depend on threads.
      failed_ = true;
      slot.rows = slot.taken;
      if (row < slot.bad_row) {
        slot.bad_row = row;
        slot.error = error;
      }
    }
    if (slot.complete()) deliverable_.notify_all();
  }
}

std::vector<BadSample> Loader::fill(Slot& slot, int64_t row) const {
  Batch& batch = *slot.batch;
  int64_t position = batch.positions[size_t(row)];
  bool padding = position >= plan_.examples;
  batch.mask.u8()[row] = !padding;
  Places places;
  for (auto& [field, array] : batch.arrays) {
    size_t bytes = array.bytes.size() / size_t(batch.size());
    places[field] = {array.bytes.data() + size_t(row) * bytes, bytes};
  }
  if (padding) {
    for (auto& [field, place] : places) std::memset(place.data(), 0, place.size());
    return {};
  }
  Mixture::Item item = mixture_.at(position);
  SampleOrSubstitute got = get(mixture_.dataset(item.part), item.index, position, places);
  batch.parts[size_t(row)] = item.part;
  batch.indices[size_t(row)] = got.index;
  for (auto& [field, place] : places) {
    const uint8_t* from = std::get<Array>(got.sample.at(field)).bytes.data();
    if (from != place.data()) std::memcpy(place.data(), from, place.size());
  }
  return std::move(got.bad);
}

SampleOrSubstitute Loader::get(const Dataset& dataset, int64_t index, int64_t position,
                               const Places& places) const {
  if (options_.substitutes) return get_or_substitute(dataset, index, position, &places);
  try {
    return {dataset.get(index, position, &places), index, {}};
  } catch (const BadSampleError& e) {
    base::fail(
        e.code(),
        "{}; repair the sample or leave it out, or set loader.on_bad_sample = \"substitute\"",
        e.what());
  }
}

BatchPtr Loader::next() {
  CHECK(has_next(), "batch {} of a loader that ends at {}", next_, plan_.end);
  std::unique_ptr<Slot> slot;
  {
    base::TimedSpan waiting("wait for a batch", base::SpanKind::wait);
    std::unique_lock lock(mutex_);
    deliverable_.wait(lock, [this] { return !slots_.empty() && slots_.front()->complete(); });
    waited_s_ += waiting.end_s();
    if (slots_.front()->error) std::rethrow_exception(slots_.front()->error);
    slot = std::move(slots_.front());
    slots_.pop_front();
  }
  takeable_.notify_all();
  ++next_;
  if (options_.log)
    for (auto& [row, bad] : slot->found) {
      ++options_.log->replaced;
      options_.log->found.insert(options_.log->found.end(), bad.begin(), bad.end());
    }
  return BatchPtr(slot->batch.release(), [pool = pool_](const Batch* b) {
    pool->give(std::unique_ptr<Batch>(const_cast<Batch*>(b)));
  });
}

int64_t Loader::ready() const {
  std::lock_guard lock(mutex_);
  return std::count_if(slots_.begin(), slots_.end(), [](auto& s) { return s->complete(); });
}

}  // namespace data
