// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/narrow.hpp"
#include "eval/evaluator.hpp"

namespace eval {

Rounds::Rounds(const Context& context, const data::Dataset& set, const std::string& stage,
               const Journal::Take& take, int64_t passes)
    : set_(set),
      examples_(passes * set.size()),
      batch_(context.batch),
      ranks_(context.world.size()),
      rank_(context.world.rank()),
      begin_(context.journal ? context.journal->begin(stage, examples_, take) : 0),
      count_(base::ceil_div(examples_ - begin_, batch_ * ranks_)) {}

Rounds::Rounds(const Context& context, const std::string& stage, std::vector<double>& values)
    : Rounds(context, context.dataset, stage, [&](int64_t position, std::string_view bytes) {
        const auto n = size_t(context.dataset.size());
        std::vector<double> numbers(values.size() / n);
        copy_values(bytes, std::span(numbers));
        for (size_t k = 0; k < numbers.size(); ++k) values[k * n + size_t(position)] = numbers[k];
      }) {}

std::unique_ptr<data::Loader> Rounds::loader(const Context& context,
                                             const std::function<int64_t(int64_t)>& place) const {
  auto positions = [rounds = *this, place](int64_t round) {
    std::vector<int64_t> out(static_cast<size_t>(rounds.batch_));
    for (int64_t i = 0; i < rounds.batch_; ++i) out[size_t(i)] = place(rounds.first(round) + i);
    return out;
  };
  return std::make_unique<data::Loader>(set_, data::Order(data::Shuffle::none, set_.size(), 0),
                                        context.loader,
                                        data::LoaderPlan{positions, 0, count_, examples_});
}

void Rounds::store(const Context& context, int64_t round,
                   const std::vector<const std::vector<double>*>& of_batch,
                   std::vector<double>& values) const {
  std::vector<double> numbers(of_batch.size());
  const int64_t begin = first(round), end = std::min(begin + batch_, examples_);
  for (int64_t p = begin; p < end; ++p) {
    for (size_t k = 0; k < numbers.size(); ++k) {
      numbers[k] = (*of_batch[k])[size_t(p - begin)];
      values[k * size_t(examples_) + size_t(p)] = numbers[k];
    }
    if (context.journal) context.journal->add(p, std::span<const double>(numbers));
  }
  if (context.journal) context.journal->write();
}

// x + 0 is exact, so these sums only copy values between ranks.
template <class T>
void share_values(comm::Comm& world, std::vector<T>& values) {
  constexpr int64_t kPart = 1 << 22;  // the exchange needs memory for a part only
  const device::View all{values.data(), sizeof(T) == 4 ? device::DType::f32 : device::DType::f64,
                         int64_t(values.size())};
  for (int64_t at = 0; at < all.count; at += kPart)
    world.all_reduce(all.slice(at, std::min(kPart, all.count - at))).wait();
}
template void share_values(comm::Comm& world, std::vector<double>& values);
template void share_values(comm::Comm& world, std::vector<float>& values);

}  // namespace eval
